"""Steps of a job inferred from its collectives, where nothing marks them: a training step repeats the same sequence.

On each rank the shortest sequence that repeats is searched. The step begins after the longest pause in it. Steps are numbered
alike on all ranks by the collectives that ranks share, and by time where they share none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

REPEATS: Final = 4
"""Minimum number of steps."""
MOSTLY: Final = 0.8
"""Minimum share of operations that are the same one step later. Evaluations and start-up differ."""
_SEARCHED: Final = 50_000
"""Number of last operations in which a step is searched."""


@dataclass(frozen=True, slots=True)
class Issued:
    """Operation as a rank issued it."""

    key: tuple[str, int] | None
    """Group and sequence number, the same on all members; ``None``: the operation cannot be matched across ranks."""
    kind: Hashable
    """Properties that repeat from step to step: group, operation, sizes, and whether autograd issued it."""
    created_ns: int
    backward: bool = False
    """True if autograd issued it."""
    elements: int = 0
    """Number of elements that it reduces; 0 for other operations."""


Cut = Callable[[Sequence[Issued]], list[int | None] | None]
"""Function from one rank's operations to their steps; ``None`` where none repeats."""


def steps_of(ranks: Mapping[int, Sequence[Issued]]) -> dict[int, list[int | None]]:
    """Return the step of each operation of each rank, in order; ``None`` outside of steps, as before the first.

    Numbers begin at 0. The dictionary is empty where no rank's operations repeat.
    """
    return _steps_of(ranks, _cut, apart=True)


def steps_by_group(ranks: Mapping[int, Sequence[Issued]], *, apart: bool = False) -> dict[int, list[int | None]]:
    """Return the same as ``steps_of`` where only the order within each group is exact.

    The group whose operations repeat least often marks the steps of a rank: mostly the one that reduces gradients, at the end of
    a step. So operations of other groups belong to the step of the next operation of that group. ``apart``: see ``_steps_of``.
    """
    return _steps_of(ranks, _cut_by_group, apart=apart)


def _steps_of(ranks: Mapping[int, Sequence[Issued]], cut: Cut, *, apart: bool) -> dict[int, list[int | None]]:
    """Return the steps; ``apart``: also of ranks that share no operation with the first ones."""
    known: dict[tuple[str, int], int | None] = {}
    found: dict[int, list[int | None]] = {}
    holders: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, issued in ranks.items():
        for one in issued:
            if one.key is not None:
                holders[one.key].append(rank)
    # Number of operations of the other ranks that are known by those of the ranks before.
    shared = dict.fromkeys(ranks, 0)
    starts: dict[int, int] = {}
    while shared:
        rank = max(shared, key=lambda other: shared[other])
        if shared[rank]:
            steps = _like(ranks[rank], known, cut)
        else:
            rank, steps = _first_cut({one: ranks[one] for one in shared}, starts, cut)
            if not steps or (found and not apart):
                break
        found[rank] = steps
        del shared[rank]
        for one, step in zip(ranks[rank], steps, strict=True):
            if step is not None:
                starts.setdefault(step, one.created_ns)
            if one.key is not None and one.key not in known:
                known[one.key] = step
                shared.update({other: shared[other] + 1 for other in holders[one.key] if other in shared})
    return found


def _first_cut(ranks: Mapping[int, Sequence[Issued]], starts: Mapping[int, int], cut: Cut) -> tuple[int, list[int | None]]:
    """Return the first rank whose operations repeat, and its steps; no steps if there is none."""
    for rank in sorted(ranks):
        steps = cut(ranks[rank])
        if steps is not None:
            return rank, _at_times(steps, ranks[rank], starts)
    return -1, []


def _at_times(steps: list[int | None], issued: Sequence[Issued], starts: Mapping[int, int]) -> list[int | None]:
    """Return steps that share no operation with those known, as with other stages of a pipeline, numbered by their times.

    ``starts``: time of the first operation of each known step.
    """
    first = next((one.created_ns for one, step in zip(issued, steps, strict=True) if step is not None), None)
    if not starts or first is None:
        return steps
    shift = min(starts, key=lambda step: abs(starts[step] - first))
    return [None if step is None else step + shift for step in steps]


def _like(issued: Sequence[Issued], known: Mapping[tuple[str, int], int | None], cut: Cut) -> list[int | None]:
    """Return the steps of a rank's operations, numbered as those ``known`` of other ranks."""
    said = [known.get(one.key) if one.key is not None else None for one in issued]
    own = cut(issued)
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
    found = _cycle(kinds, np.array([one.backward for one in issued], dtype=bool), np.array([one.elements for one in issued]))
    if found is None:
        return None
    begin, length = found
    created = np.array([one.created_ns for one in issued], dtype=np.int64)
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


def _cut_by_group(issued: Sequence[Issued]) -> list[int | None] | None:
    """Return the step of each operation of one rank, from the operations of one of its groups; ``None`` if none repeats."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for at, one in enumerate(issued):
        if one.key is not None:
            places[one.key[0]].append(at)
    found: dict[int, list[tuple[int, int | None]]] = {}
    for rows in places.values():
        steps = _cut([issued[at] for at in rows])
        inside = [at for at, step in zip(rows, steps or (), strict=False) if step is not None]
        count = 1 + max((step for step in steps or () if step is not None), default=-1)
        # A group that is used for a while only, as by an evaluation, marks no steps.
        if steps is not None and count >= REPEATS and 2 * (inside[-1] - inside[0]) >= len(issued) - 1:
            found.setdefault(count, list(zip(rows, steps, strict=True)))
    if not found:
        return None
    marks = dict(found[min(found)])
    current: int | None = None
    every: list[int | None] = []
    for at in reversed(range(len(issued))):
        current = marks.get(at, current)
        every.append(current)
    return every[::-1]


def _windows(true: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """Return at which places ``length`` values in a row are true, for places that have as many behind them."""
    total = np.concatenate([[0], np.cumsum(true)])
    found: NDArray[np.bool_] = total[length:] - total[:-length] == length
    return found


def _cycle(kinds: NDArray[np.int64], backward: NDArray[np.bool_], elements: NDArray[np.int64]) -> tuple[int, int] | None:
    """Return the first operation and the number of operations of a typical step; ``None`` where they do not repeat.

    A step is the shortest sequence after which most operations are the same, and which contains every operation that autograd
    repeats: a layer lacks those of the other pass, and a micro-step of gradient accumulation the reduction of the gradients.
    Where the script reduces more elements at once than autograd ever does, these are the gradients, so a step contains that, too.
    Where no operation is known to be autograd's, it contains every operation that repeats.
    """
    skipped = max(0, len(kinds) - _SEARCHED)
    some, backward = kinds[skipped:].astype(np.int32), backward[skipped:]
    late = slice(len(some) // 2, None)  # start-up differs
    reduced = elements[skipped:]
    gradients = reduced > reduced[backward].max(initial=0)
    counting = (backward | gradients)[late] if backward.any() else np.ones_like(backward[late])
    names, counts = np.unique(some[late][counting], return_counts=True)
    needed = names[counts > 1]
    forward = backward.any() and (~backward).mean() > 1 - MOSTLY
    for length in range(1, len(some) // REPEATS + 1):
        same = some[length:] == some[:-length]
        if same.mean() < MOSTLY:
            continue
        # A sequence that begins at the median place of those that are followed by themselves is one that occurs often.
        followed = np.flatnonzero(_windows(same, length))
        if not len(followed):
            continue
        begin = int(followed[len(followed) // 2])
        step = slice(begin, begin + length)
        if np.isin(needed, some[step]).all() and not (forward and backward[step].all()):
            return skipped + begin, length
    return None


def _after_pause(created: NDArray[np.int64], length: int) -> int:
    """Return the place, below ``length``, of the operation before which the pause is longest; ``created``: of two steps."""
    pauses = np.diff(created)[:length]
    return (int(pauses.argmax()) + 1) % length if len(pauses) else 0
