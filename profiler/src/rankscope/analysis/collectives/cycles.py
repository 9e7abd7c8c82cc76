"""Steps of a job inferred from its collectives, where nothing marks them: a training step repeats the same sequence.

On each rank the shortest sequence that repeats is searched. The step begins after the longest pause in it. Steps are numbered
alike on all ranks by the collectives that ranks share, and by time where they share none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from rankscope.analysis.collectives.arrivals import Flags, Numbers
from rankscope.analysis.collectives.growing_columns import NONE

REPEATS: Final = 4
"""Minimum number of steps."""
LEAST_REPEATING: Final = 0.8
"""Minimum share of operations that are the same one step later. Evaluations and start-up differ."""
_SEARCHED: Final = 50_000
"""Number of last operations in which a step is searched."""
_UNSEEN: Final = NONE + 1
"""Step of a collective that no rank so far has issued."""


@dataclass(frozen=True)
class IssuedOperations:
    """Operations as columns, [operations]; those of a rank follow each other in the order in which it issued them."""

    first: Numbers
    """Offset of the first operation of each rank, and at last the number of all, [ranks + 1]."""
    key: Numbers
    """Number of the collective, from 0, the same on all members; -1: it cannot be matched across ranks."""
    group: Numbers
    kind: Numbers
    """Number of the properties that repeat from step to step: group, operation, sizes, and whether autograd issued it."""
    created_ns: Numbers
    backward: Flags
    """Whether autograd issued it."""
    elements: Numbers
    """Number of elements that it reduces; 0 for other operations."""

    def of_rank(self, place: int) -> IssuedOperations:
        """Return the operations of one rank."""
        return self.at(np.arange(self.first[place], self.first[place + 1]))

    def at(self, row: Numbers) -> IssuedOperations:
        """Return the operations of one rank at the places ``row``."""
        columns = (self.key, self.group, self.kind, self.created_ns, self.backward, self.elements)
        return IssuedOperations(np.array([0, len(row)]), *(column[row] for column in columns))  # type: ignore[arg-type]

    @cached_property
    def holders(self) -> tuple[Numbers, Numbers]:
        """Return the place of the rank of each operation with a key, by key, and the offset of each key."""
        rank = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        order = np.argsort(self.key, kind="stable")
        edges = np.searchsorted(self.key[order], np.arange(int(self.key.max(initial=-1)) + 2))
        return rank[order], edges


StepFinder = Callable[[IssuedOperations], Numbers | None]
"""Function from one rank's operations to their steps; ``None`` where none repeats."""


def steps_of(issued: IssuedOperations, *, by_group: bool = False, all_groups: bool = True) -> Numbers:
    """Return the step of each operation, from 0; ``NONE`` outside of steps, as before the first, and where nothing repeats.

    ``by_group``: only the order within each group is exact. The group whose operations repeat least often then marks the steps of
    a rank: mostly the one that reduces gradients, at the end of a step. So operations of other groups belong to the step of the
    next operation of that group. ``all_groups``: also of ranks that share no operation with the first ones.
    """
    find_steps = _steps_by_group if by_group else _repeating_steps
    steps = np.full(len(issued.key), NONE)
    holders, edges = issued.holders
    step_of_key = np.full(len(edges), _UNSEEN)  # the last is of the key -1
    # Number of operations that are known by those of the ranks before; -1 for these.
    shared = np.zeros(len(issued.first) - 1, np.int64)
    starts: dict[int, int] = {}
    while (shared >= 0).any():
        place = int(shared.argmax())
        of_rank: Numbers | None
        if shared[place]:
            of_rank = _steps_like_others(issued.of_rank(place), step_of_key, find_steps)
        else:
            remaining = np.flatnonzero(shared == 0).tolist() if all_groups or (shared >= 0).all() else []
            candidates = ((other, find_steps(issued.of_rank(other))) for other in remaining)
            place, of_rank = next(
                ((other, steps_of_place) for other, steps_of_place in candidates if steps_of_place is not None), (-1, None)
            )
            if of_rank is None:
                break
            of_rank = _at_times(of_rank, issued.of_rank(place), starts)
        of_place = issued.of_rank(place)
        steps[issued.first[place] : issued.first[place + 1]] = of_rank
        shared[place] = -1
        numbers, begins = np.unique(of_rank, return_index=True)
        for step, begin in zip(numbers.tolist(), begins.tolist(), strict=True):
            if step != NONE:
                starts.setdefault(step, int(of_place.created_ns[begin]))
        new = np.flatnonzero((of_place.key >= 0) & (step_of_key[of_place.key] == _UNSEEN))[::-1]
        step_of_key[of_place.key[new]] = of_rank[new]
        for key in np.unique(of_place.key[new]).tolist():
            others = holders[edges[key] : edges[key + 1]]
            shared[others] += shared[others] >= 0
    return steps


def _at_times(steps: Numbers, issued: IssuedOperations, starts: dict[int, int]) -> Numbers:
    """Return steps numbered by their times, where the rank shares no operation with others, as with other stages of a pipeline.

    ``starts``: time of the first operation of each known step.
    """
    inside = np.flatnonzero(steps != NONE)
    if not starts or not len(inside):
        return steps
    first = int(issued.created_ns[inside[0]])
    shift = min(starts, key=lambda step: abs(starts[step] - first))
    return np.where(steps == NONE, NONE, steps + shift)


def _steps_like_others(issued: IssuedOperations, step_of_key: Numbers, find_steps: StepFinder) -> Numbers:
    """Return the steps of a rank's operations, numbered as those of other ranks (``step_of_key``)."""
    is_seen = (issued.key >= 0) & (step_of_key[issued.key] != _UNSEEN)
    others = np.where(is_seen, step_of_key[issued.key], NONE)
    own = find_steps(issued)
    if own is None:
        return others
    both = (others != NONE) & (own != NONE)
    shifts, first, counts = np.unique(others[both] - own[both], return_index=True, return_counts=True)
    # Of several that are as frequent, the first.
    shift = int(shifts[np.lexsort((first, -counts))[0]]) if len(shifts) else 0
    return np.where(is_seen, others, np.where(own == NONE, NONE, own + shift))


def _repeating_steps(issued: IssuedOperations) -> Numbers | None:
    """Return the step of each operation of one rank; ``None`` if none repeats."""
    kinds = issued.kind
    cycle = _cycle(kinds, issued.backward, issued.elements)
    if cycle is None:
        return None
    begin, length = cycle
    begin += _after_pause(issued.created_ns[begin : begin + 2 * length], length)
    template = kinds[begin : begin + length]
    steps = np.full(len(kinds), NONE)
    at, step = begin % length, 0
    while at + length <= len(kinds):
        if (kinds[at : at + length] == template).all():
            steps[at : at + length] = step
            at, step = at + length, step + 1
        else:
            at += 1
    return steps


def _steps_by_group(issued: IssuedOperations) -> Numbers | None:
    """Return the step of each operation of one rank, from the operations of one of its groups; ``None`` if none repeats."""
    can_match = issued.key >= 0
    marks: tuple[int, Numbers, Numbers] | None = None
    for group in dict.fromkeys(issued.group[can_match].tolist()):
        places = np.flatnonzero(can_match & (issued.group == group))
        steps = _repeating_steps(issued.at(places))
        if steps is None:
            continue
        inside, count = places[steps != NONE], 1 + int(steps.max())
        # A group that is used for a while only, as by an evaluation, marks no steps.
        lasts = count >= REPEATS and 2 * (inside[-1] - inside[0]) >= len(issued.key) - 1
        if lasts and (marks is None or count < marks[0]):
            marks = count, places, steps
    if marks is None:
        return None
    _, places, steps = marks
    return np.append(steps, NONE)[np.searchsorted(places, np.arange(len(issued.key)))]


def _windows(true: Flags, length: int) -> Flags:
    """Return at which places ``length`` values in a row are true, for places that have as many behind them."""
    total = np.concatenate([[0], np.cumsum(true)])
    is_full: Flags = total[length:] - total[:-length] == length
    return is_full


def _cycle(kinds: Numbers, backward: Flags, elements: Numbers) -> tuple[int, int] | None:
    """Return the first operation and the number of operations of a typical step; ``None`` where they do not repeat.

    A step is the shortest sequence after which most operations are the same, and which contains every operation that autograd
    repeats: a layer lacks those of the other pass, and a micro-step of gradient accumulation the reduction of the gradients.
    Where the script reduces more elements at once than autograd ever does, these are the gradients, so a step contains that, too.
    Where no operation is known to be autograd's, it contains every operation that repeats.
    """
    skipped = max(0, len(kinds) - _SEARCHED)
    repeated_kinds, backward = kinds[skipped:].astype(np.int32), backward[skipped:]
    late = slice(len(repeated_kinds) // 2, None)  # start-up differs
    reduced = elements[skipped:]
    gradients = reduced > reduced[backward].max(initial=0)
    counting = (backward | gradients)[late] if backward.any() else np.ones_like(backward[late])
    names, counts = np.unique(repeated_kinds[late][counting], return_counts=True)
    needed = names[counts > 1]
    forward = backward.any() and (~backward).mean() > 1 - LEAST_REPEATING
    for length in range(1, len(repeated_kinds) // REPEATS + 1):
        same = repeated_kinds[length:] == repeated_kinds[:-length]
        if same.mean() < LEAST_REPEATING:
            continue
        # A sequence that begins at the median place of those that are followed by themselves is one that occurs often.
        followed = np.flatnonzero(_windows(same, length))
        if not len(followed):
            continue
        begin = int(followed[len(followed) // 2])
        step = slice(begin, begin + length)
        if np.isin(needed, repeated_kinds[step]).all() and not (forward and backward[step].all()):
            return skipped + begin, length
    return None


def _after_pause(created: Numbers, length: int) -> int:
    """Return the place, below ``length``, of the operation before which the pause is longest; ``created``: of two steps."""
    pauses = np.diff(created)[:length]
    return (int(pauses.argmax()) + 1) % length if len(pauses) else 0
