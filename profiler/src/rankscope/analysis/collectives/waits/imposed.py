"""Sums of imposed waits: by rank, by rank and step, and by process group, origin and victim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import Arrivals, Floats, Numbers, combined, numbered, sums
from rankscope.analysis.collectives.spans import NumberedSpans, covered, unions

Group = tuple[str | None, tuple[int, ...]]
"""Name and members of a process group."""


@dataclass(frozen=True)
class Pairs:
    """Imposed wait per process group, origin and victim, [pairs], ordered by these. Overlapping waits count once in a group."""

    groups: list[Group]
    """Groups with imposed wait."""
    group: Numbers
    """Place in ``groups``."""
    origin: Numbers
    victim: Numbers
    imposed_us: Floats
    exposed_us: Floats
    steps: Numbers
    """Number of steps with such a wait."""

    def __len__(self) -> int:
        return len(self.group)


_NOTHING: Final = np.zeros(0, np.int64)
NO_PAIRS: Final = Pairs([], _NOTHING, _NOTHING, _NOTHING, np.zeros(0), np.zeros(0), _NOTHING)


class ImposedByStep(NamedTuple):
    """Imposed wait of each rank in each step in which it imposed any."""

    rank: Numbers
    step: Numbers
    imposed_us: Floats


NO_IMPOSED_WAITS: Final = ImposedByStep(_NOTHING, _NOTHING, np.zeros(0))


class Charges(NamedTuple):
    """Waits, or parts of one, and the ranks that they are charged to, [charges]."""

    arrival: Numbers
    """Arrival of the victim."""
    origin: Numbers
    """Rank that it is charged to."""
    start: Numbers
    """On the victim's own clock, as its compute."""
    end: Numbers
    amount: Floats
    """Nanoseconds, before the span was cut to whole ones."""


class PairSums:
    """Sums of imposed waits by process group, origin and victim, over blocks of steps."""

    def __init__(self, ranks: Numbers) -> None:
        self._ranks = ranks
        self._groups: dict[Group, int] = {}
        self._key = _NOTHING
        """Group, origin and victim as one number, ascending, [pairs]."""
        self._sums: list[NDArray[Any]] = [_NOTHING, _NOTHING, np.zeros(0, np.int32)]
        """Nanoseconds of imposed wait and of its exposed part, and number of steps, each [pairs]."""

    def add(self, every: Arrivals, charges: Charges) -> tuple[tuple[Floats, Floats], ImposedByStep]:
        """Add charges. Return the imposed wait of each rank and its exposed part, and the first by step.

        In these, overlapping waits of all groups count once.
        """
        instance = every.instance[charges.arrival]
        victim, step = every.rank[charges.arrival], every.step[instance]
        place, start, end = every.busy(np.arange(len(every.row)))
        code = combined(np.append(victim, every.rank[place]), np.append(step, every.step[every.instance[place]]))
        busy = unions((code[len(victim) :], start, end))
        origin, count = np.searchsorted(self._ranks, charges.origin), len(self._ranks)
        key = (self._numbers(every)[instance] * count + origin) * count + np.searchsorted(self._ranks, victim)
        first, number = numbered(key, step)
        total, bare = _measured(number, first, charges, code, busy)
        self._merge(key[first], total, bare)
        of_ranks, number = numbered(origin, victim, step)
        if len(of_ranks) < len(first):
            total, bare = _measured(number, of_ranks, charges, code, busy)
            first = of_ranks
        of_steps, number = numbered(origin[first], step[first])
        imposed_us = sums(number, total, len(of_steps)) / 1000
        imposed_by_step = ImposedByStep(self._ranks[origin[first[of_steps]]], step[first[of_steps]], imposed_us)
        return (sums(origin[first], total, count), sums(origin[first], bare, count)), imposed_by_step

    def _numbers(self, every: Arrivals) -> Numbers:
        """Return the number of the group of each instance."""
        first, number = numbered(every.group, every.team)
        names = [(every.group_names[every.group[at]], every.teams[every.team[at]]) for at in first.tolist()]
        return np.array([self._groups.setdefault(name, len(self._groups)) for name in names], dtype=np.int64)[number]

    def _merge(self, key: Numbers, total: Numbers, bare: Numbers) -> None:
        """Add waits of single steps to the sums."""
        keys = np.concatenate([self._key, key])
        keys.sort(kind="stable")
        keys = keys[np.append(np.diff(keys) != 0, np.ones(min(1, len(keys)), np.bool_))]
        before, place = np.searchsorted(keys, self._key), np.searchsorted(keys, key)
        values: list[NDArray[Any]] = [total, bare, np.ones(len(total), np.int32)]
        for at, added in enumerate(values):
            merged = np.zeros(len(keys), added.dtype)
            merged[before] = self._sums[at]
            np.add.at(merged, place, added)
            self._sums[at] = merged
        self._key = keys

    def result(self) -> Pairs:
        """Return the sums in microseconds."""
        count = max(1, len(self._ranks))
        used, group = np.unique(self._key // count**2, return_inverse=True)
        groups = list(self._groups)
        ranks: NDArray[Any] = self._ranks.astype(np.int32)
        steps = self._sums.pop()
        return Pairs(
            groups=[groups[at] for at in used.tolist()],
            group=group.astype(np.int32),
            origin=ranks[self._key // count % count],
            victim=ranks[self._key % count],
            exposed_us=self._sums.pop() / 1000,
            imposed_us=self._sums.pop() / 1000,
            steps=steps,
        )


def _measured(
    number: Numbers, first: Numbers, charges: Charges, of_victim: Numbers, busy: NumberedSpans
) -> tuple[Numbers, Numbers]:
    """Return the length of the union of each set of charges, and of its part outside of the victim's compute."""
    of, start, end = unions((number, charges.start, charges.end))
    bare = end - start - covered((of_victim[first][of], start, end), busy)
    total, exposed = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    np.add.at(total, of, end - start)
    np.add.at(exposed, of, bare)
    return total, exposed
