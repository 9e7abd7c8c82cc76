"""Steps of a job inferred from its collectives, where nothing marks them: a training step repeats the same sequence.

On each rank the shortest sequence that repeats is searched. The step begins after the longest pause in it. Steps are numbered
alike on all ranks by the collectives that ranks share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

REPEATS: Final = 4
"""Minimum number of steps."""
MOSTLY: Final = 0.8
"""Minimum share of operations that are the same one step later. Evaluations and start-up differ."""
_SEVERAL: Final = 3
"""Minimum number of steps between evaluations."""
_SEARCHED: Final = 50_000
"""Number of last operations in which a step is searched."""


@dataclass(frozen=True, slots=True)
class Issued:
    """Operation as a rank issued it."""

    key: tuple[str, int] | None
    """Group and sequence number, the same on all members; ``None``: members of the group cannot be told from it."""
    kind: Hashable
    """What repeats from step to step: group, operation, sizes, and whether autograd issued it."""
    created_ns: int
    backward: bool = False
    """True if autograd issued it."""


def steps_of(ranks: Mapping[int, Sequence[Issued]]) -> dict[int, list[int | None]]:
    """Return the step of each operation of each rank, in order; ``None`` outside of steps, as before the first.

    Numbers begin at 0. The dictionary is empty where no rank's operations repeat.
    """
    known: dict[tuple[str, int], int | None] = {}
    found: dict[int, list[int | None]] = {}
    waiting = dict(ranks)
    rank, steps = next(((rank, steps) for rank in sorted(ranks) if (steps := _cut(ranks[rank])) is not None), (-1, []))
    while rank in waiting:
        issued = waiting.pop(rank)
        found[rank] = steps
        known.update({one.key: step for one, step in zip(issued, steps, strict=True) if one.key is not None})
        shared = {other: sum(one.key in known for one in row) for other, row in waiting.items()}
        rank = max(shared, key=lambda other: shared[other], default=-1)
        steps = _like(waiting[rank], known) if shared.get(rank) else []
        if not steps:
            break
    return found


def _like(issued: Sequence[Issued], known: Mapping[tuple[str, int], int | None]) -> list[int | None]:
    """Return the steps of a rank's operations, numbered as those ``known`` of other ranks."""
    said = [known.get(one.key) if one.key is not None else None for one in issued]
    own = _cut(issued)
    if own is None:
        return said
    apart = Counter(step - mine for step, mine in zip(said, own, strict=True) if step is not None and mine is not None)
    shift = apart.most_common(1)[0][0] if apart else 0
    return [
        known[one.key] if one.key is not None and one.key in known else None if mine is None else mine + shift
        for one, mine in zip(issued, own, strict=True)
    ]


def _cut(issued: Sequence[Issued]) -> list[int | None] | None:
    """Return the step of each operation of one rank; ``None`` if none repeats."""
    numbers: dict[Hashable, int] = {}
    kinds = np.array([numbers.setdefault(one.kind, len(numbers)) for one in issued], dtype=np.int64)
    length = _length(kinds, np.array([one.backward for one in issued], dtype=bool))
    if length is None:
        return None
    created = np.array([one.created_ns for one in issued], dtype=np.int64)
    # A sequence that begins at the median place of those that are followed by themselves is one that occurs often.
    same = np.flatnonzero(_windows(kinds[length:] == kinds[:-length], length))
    if not len(same):
        return None
    begin = int(same[len(same) // 2])
    begin += _after_pause(created[begin : begin + 2 * length], length)
    template = kinds[begin : begin + length]
    steps: list[int | None] = [None] * len(kinds)
    at, step = begin % length, 0
    while at + length <= len(kinds):
        if (kinds[at : at + length] == template).all():
            steps[at : at + length] = [step] * length
            at, step = at + length, step + 1
        else:
            at += 1
    return steps


def _windows(true: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """Return at which places ``length`` values in a row are true, for places that have as many behind them."""
    total = np.concatenate([[0], np.cumsum(true)])
    found: NDArray[np.bool_] = total[length:] - total[:-length] == length
    return found


def _length(kinds: NDArray[np.int64], backward: NDArray[np.bool_]) -> int | None:
    """Return the number of operations after which they repeat; ``None`` where they do not.

    It is the shortest of those after which about as many operations are the same as after any other. Where this is a number of
    steps with an evaluation or the like after them, the step itself is found: what is mostly the same after fewer operations,
    and has a backward pass, or, where no operation is known to be of one, different operations.
    """
    some, backward = kinds[-_SEARCHED:].astype(np.int32), backward[-_SEARCHED:]
    count = len(some)
    differ = np.array([(some[length:] != some[:-length]).mean() for length in range(1, count // REPEATS + 1)])
    if not len(differ) or differ.min() > 1 - MOSTLY:
        return None
    longest = int(np.flatnonzero(differ <= 1.2 * differ.min() + 1e-9)[0]) + 1
    for length in (np.flatnonzero(differ[: longest // _SEVERAL] <= 1 - MOSTLY) + 1).tolist():
        same = np.flatnonzero(_windows(some[length:] == some[:-length], length))
        step = slice(same[len(same) // 2], same[len(same) // 2] + length) if len(same) else slice(0)
        if backward[step].any() if backward.any() else len(np.unique(some[step])) > 1:
            return int(length)
    return longest


def _after_pause(created: NDArray[np.int64], length: int) -> int:
    """Return the place, below ``length``, of the operation before which the pause is longest; ``created``: of two steps."""
    pauses = np.diff(created)[:length]
    return (int(pauses.argmax()) + 1) % length if len(pauses) else 0
