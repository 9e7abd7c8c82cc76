"""Steps that are inferred from the order of collectives."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.collectives.cycles import IssuedOperations, steps_of
from rankscope.analysis.collectives.growing_columns import NONE


class Operation(NamedTuple):
    """Operation of one rank."""

    key: tuple[str, int]
    kind: str | int
    created_ns: int
    backward: bool = False


def issued(kinds: str, *, group: str = "0", pause: int = 10) -> list[Operation]:
    """Return operations by letters, capital ones as autograd's; a space is a pause."""
    operations: list[Operation] = []
    at = 0
    for kind in kinds:
        if kind == " ":
            at += pause
            continue
        at += 1
        operations.append(Operation((group, len(operations) + 1), kind, at, kind.isupper()))
    return operations


def steps(*ranks: list[Operation]) -> list[list[int | None]]:
    """Return the steps of the operations of each rank; ``None`` outside of steps."""
    every = [operation for rank in ranks for operation in rank]
    number: dict[object, int] = {}
    first = np.cumsum([0, *map(len, ranks)])
    columns = IssuedOperations(
        first,
        key=np.array([number.setdefault(item.key, len(number)) for item in every], np.int64),
        group=np.array([number.setdefault(item.key[0], len(number)) for item in every], np.int64),
        kind=np.array([number.setdefault(item.kind, len(number)) for item in every], np.int64),
        created_ns=np.array([item.created_ns for item in every], np.int64),
        backward=np.array([item.backward for item in every], np.bool_),
        elements=np.zeros(len(every), np.int64),
    )
    result = [None if step == NONE else step for step in steps_of(columns).tolist()]
    return [result[begin:end] for begin, end in pairwise(first.tolist())]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("ab ab ab ab ab", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
        # the pause decides where a step begins
        ("b ab ab ab ab a", [None, 0, 0, 1, 1, 2, 2, 3, 3, None]),
        # start-up, and something else between the steps
        (
            f"xyz{' aab' * 16} q{' aab' * 16}",
            [None] * 3
            + [step for step in range(16) for _ in range(3)]
            + [None]
            + [step for step in range(16, 32) for _ in range(3)],
        ),
        # an evaluation after every fifth step
        (f"{' aaB' * 5} q" * 6, [at // 3 + 5 * block if at < 15 else None for block in range(6) for at in range(16)]),
        # and without names of threads, that belongs to the step
        (f" {' aab' * 5} q" * 6, [block for block in range(6) for _ in range(16)]),
        # a layer repeats, too, in each pass
        (" aaaaBBBBC" * 8, [step for step in range(8) for _ in range(9)]),
        # micro-steps of gradient accumulation are no steps, though what follows each of them repeats
        ("  aaaBBB aaaBBB aaaBBBC" * 8, [step for step in range(8) for _ in range(19)]),
        # a part of the step repeats, too
        ("aaaab aaaab aaaab aaaab", [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5),
        ("a a a a a", [0, 1, 2, 3, 4]),
    ],
)
def test_a_step_is_the_shortest_sequence_that_repeats(kinds: str, expected: list[int | None]) -> None:
    assert steps(issued(kinds)) == [expected]


@pytest.mark.parametrize(
    "kinds", ["", "a", "abcdefghij", "ab ab ab", "aabbaabc", f" {'a' * 40}{'B' * 40}C" * 3, f" {'a' * 40}b" * 3]
)
def test_sequences_that_do_not_repeat_have_no_steps(kinds: str) -> None:
    assert set(steps(issued(kinds))[0]) <= {None}


def test_ranks_with_fewer_records_get_the_same_step_numbers() -> None:
    whole = issued("ab " * 12)
    cut = whole[9:]
    inferred_steps = steps(whole, cut)
    assert inferred_steps[1] == inferred_steps[0][9:]
    # also where the first rank has less
    inferred_steps = steps(cut, whole)
    assert inferred_steps[1][9:] == [
        step if step is not None else inferred_steps[0][at] for at, step in enumerate(inferred_steps[0])
    ]


def test_ranks_that_share_a_group_pass_their_steps_to_other_groups() -> None:
    # given two rows of tensor parallelism that meet in one data-parallel group
    rows = []
    for row in range(2):
        operations = []
        for step in range(8):
            at = 100 * step
            operations += [Operation((f"tp{row}", 3 * step + layer), "tp", at + layer) for layer in range(3)]
            operations.append(Operation(("dp", step), "dp", at + 10))
        rows.append(operations)
    inferred_steps = steps(rows[0], rows[1][7:])
    assert inferred_steps[0] == [step for step in range(8) for _ in range(4)]
    assert inferred_steps[1][1:] == inferred_steps[0][8:]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 59))
def test_inferred_steps_never_decrease(kinds: list[int], cut: int) -> None:
    row = [Operation(("0", at), kind, at) for at, kind in enumerate(kinds)]
    for of_rank in steps(row, row[cut:]):
        collected = [step for step in of_rank if step is not None]
        assert collected == sorted(collected)
        assert len(set(collected)) == 0 or max(np.diff(sorted(set(collected))), default=1) >= 1
