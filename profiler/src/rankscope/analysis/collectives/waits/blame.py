"""Imposed wait of each rank, from matched collectives.

On a device, a rank arrives at a collective when its kernel starts. All kernels of a collective end together, so each collective
is its own clock: the rank with the shortest kernel arrived last, and the others waited for as long as their kernels took longer.
On the CPU, a rank arrives when the calling thread enqueues the collective, because a worker thread may start late for reasons of
its own. Ends are less sharp there, so arrivals are compared on the corrected clock.

Waits for a root, or of a root, come from ``waiting``. Waits in sends and receives count as waiting, but not as imposed wait:
between the stages of a pipeline most of them are its schedule.

A wait is charged to its origin: a rank that was last because another group had kept it waiting is a victim itself (``origin``).

Steps do not depend on each other, so they are processed in blocks: the memory beyond the result is that of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from rankscope.analysis.collectives.arrivals import FROM_ROOT, Arrivals, Floats, Numbers, numbered, offsets, sums
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.growing_columns import GrowingColumn
from rankscope.analysis.collectives.spans import covered, unions
from rankscope.analysis.collectives.waits.imposed import NO_IMPOSED_WAITS, NO_PAIRS, Charges, ImposedByStep, Pairs, PairSums
from rankscope.analysis.collectives.waits.origin import ArrivalLateness, charge_origins
from rankscope.analysis.collectives.waits.waiting import NO_WAITS, Waits

_BLOCK: Final = 2**16
"""Number of arrivals in a block of steps, unless one step has more."""


@dataclass(frozen=True)
class CollectiveWaits:
    """Waits at each collective, [arrivals] with offsets [instances + 1], in microseconds; instances ascend by step."""

    step: Numbers
    """Step of each instance."""
    first: Numbers
    member: Numbers
    """Rank of each arrival, as its place in the ranks of ``Blame``."""
    waited_us: Floats
    """Wait for the last rank; 0 where it is below the clocks' residual."""
    exposed_us: Floats
    """The part of it that no compute hid."""
    gain_of: Numbers
    """Instance of each gain, [gains]."""
    gain_by: Numbers
    """Rank of each gain, as its place."""
    gain_us: Floats
    """How much earlier the other ranks could have continued, had this rank not been the last: last arrival minus the one before
    it. There is none where the difference is below the clocks' residual."""

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def instance(self) -> Numbers:
        """Instance of each arrival."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))


@dataclass(frozen=True)
class Blame:
    """Waits of all ranks, in microseconds."""

    ranks: list[int]
    imposed_us: dict[int, float]
    """Per rank: the wait it imposed on others, summed over victims and steps, overlapping waits of a victim counted once. Waits
    below the clocks' residual are charged to no rank."""
    exposed_us: dict[int, float]
    """Per rank: the part of its imposed wait that the victims' compute did not hide."""
    transfer_us: dict[int, float]
    """Per rank: time in collectives without waiting. Per collective, it is the shortest duration over its ranks."""
    wait_us: dict[int, float]
    """Per rank: time in collectives beyond ``transfer_us``."""
    waits: CollectiveWaits
    pairs: Pairs = NO_PAIRS
    imposed_by_step: ImposedByStep = NO_IMPOSED_WAITS

    @cached_property
    def steps(self) -> list[int]:
        """Steps with a match, ascending."""
        steps: list[int] = np.unique(self.waits.step).tolist()
        return steps

    def share(self, rank: int) -> float | None:
        """Return this rank's share of all imposed wait, or ``None`` when no rank waited."""
        total = sum(self.imposed_us.values())
        return self.imposed_us[rank] / total if total > 0 else None


def assign_blame(matches: Arrivals, clocks: Clocks, ranks: Sequence[int], directed: Waits = NO_WAITS) -> Blame:
    """Return the imposed wait of every rank of ``ranks``; ``directed``: waits in operations that are not among ``matches``."""
    ordered = np.array(sorted(ranks), dtype=np.int64)
    threshold = clocks.residual_ns or 0.0
    times, pairs, waits = np.zeros((4, len(ordered))), PairSums(ordered), _WaitColumns(ordered)
    imposed_of_blocks: list[ImposedByStep] = []
    for block, of_block in _blocks(matches, directed):
        late = _lateness(block, clocks, threshold)
        charges = _charged(block, clocks, late, threshold)
        of_roots = _of_roots(of_block, len(block.row))
        every = block.joined(of_block.judged)
        imposed, imposed_by_step = pairs.add(every, _joined(charges, of_roots))
        imposed_of_blocks.append(imposed_by_step)
        times += np.stack([*imposed, *_times(block, of_block, ordered)])
        waits.add(every, (late, of_block), _gains(block, late, charges, threshold), of_roots)
    imposed_us, exposed_us, transfer_us, wait_us = (
        dict(zip(ordered.tolist(), (ns / 1000).tolist(), strict=True)) for ns in times
    )
    imposed_by_step = ImposedByStep(
        *(np.concatenate(columns) for columns in zip(NO_IMPOSED_WAITS, *imposed_of_blocks, strict=True))
    )
    return Blame(ordered.tolist(), imposed_us, exposed_us, transfer_us, wait_us, waits.result(), pairs.result(), imposed_by_step)


def _blocks(matches: Arrivals, directed: Waits) -> Iterator[tuple[Arrivals, Waits]]:
    """Yield matches and directed waits of blocks of steps, ascending."""
    judged = directed.judged
    step = np.concatenate([matches.step, judged.step])
    if not len(step):
        return
    _, place = np.unique(step, return_inverse=True)
    arrivals = np.cumsum(sums(place, np.concatenate([matches.count, judged.count]), int(place.max()) + 1))
    block = (np.concatenate([[0], arrivals[:-1]]) // _BLOCK)[place]
    for number in np.unique(block):
        of_block = block == number
        yield matches.chosen(of_block[: len(matches)]), directed.chosen(of_block[len(matches) :])


def waits_for_last(matches: Arrivals, clocks: Clocks) -> tuple[Numbers, Numbers]:
    """Return the arrival that came last at each instance, and the nanoseconds by which each arrival was before it.

    Both are on a clock that the ranks of the collective share.
    """
    on_cpu = matches.most(matches.records.on_cpu[matches.row])[matches.instance]
    arrival = -matches.inside_ns
    if on_cpu.any():
        arrival = np.where(on_cpu, clocks.corrected(matches.rank, matches.arrival_ns), arrival)
    latest = matches.most(arrival)[matches.instance]
    return matches.most(np.where(arrival == latest, np.arange(len(arrival)), -1)), latest - arrival


def next_to_last(matches: Arrivals, last: Numbers, wait: Numbers) -> Numbers:
    """Return the arrival at each instance that waited least for the ``last`` one."""
    place = np.arange(len(wait))
    others = np.where(place == last[matches.instance], np.iinfo(np.int64).max, wait)
    return matches.least(np.where(others == matches.least(others)[matches.instance], place, len(place)))


def _lateness(matches: Arrivals, clocks: Clocks, threshold: float) -> ArrivalLateness:
    last, wait = waits_for_last(matches, clocks)
    counted = np.where(wait > threshold, wait, 0)
    return ArrivalLateness(last, wait, counted, _exposed_ns(matches, counted))


def _exposed_ns(arrivals: Arrivals, wait: Numbers) -> Numbers:
    """Return the part of each wait [arrivals] that the compute recorded with the collective did not hide."""
    at = np.flatnonzero(wait > 0)
    start = arrivals.arrival_ns[at]
    exposed = wait.copy()
    exposed[at] -= covered((np.arange(len(at)), start, start + wait[at]), unions(arrivals.busy(at)))
    return exposed


def _charged(matches: Arrivals, clocks: Clocks, late: ArrivalLateness, threshold: float) -> Charges:
    """Return what each wait is charged to."""
    when = clocks.corrected(matches.rank[late.last], matches.arrival_ns[late.last])
    parts = charge_origins(matches, late, when, threshold)
    undivided = late.counted > 0
    undivided[parts.arrival] = False
    at = np.flatnonzero(undivided)
    start = matches.arrival_ns[at]
    origin = matches.rank[late.last[matches.instance[at]]]
    charges = Charges(at, origin, start, start + late.counted[at], late.counted[at].astype(np.float64))
    # The origin with the largest charge comes last, as its delay must be removed for the others to continue earlier.
    first = np.flatnonzero(np.diff(parts.arrival, prepend=-1))
    rounded = np.rint(parts.amount).astype(np.int64)
    until = np.cumsum(rounded)
    until -= np.repeat(until[first] - rounded[first], np.diff(np.append(first, len(until))))
    start = matches.arrival_ns[parts.arrival]
    stop = start + late.counted[parts.arrival]
    end = np.minimum(start + until, stop)
    return _joined(charges, Charges(parts.arrival, parts.origin, np.minimum(end, start + until - rounded), end, parts.amount))


def _joined(charges: Charges, other: Charges) -> Charges:
    if not len(other.arrival):
        return charges
    return Charges(*(np.concatenate(both) for both in zip(charges, other, strict=True)))


_Gains = tuple[Numbers, Numbers, Floats]
"""Instance, rank and microseconds of each gain."""


def _gains(matches: Arrivals, late: ArrivalLateness, charges: Charges, threshold: float) -> _Gains:
    """Return the gains at collectives of all ranks: the wait of the rank that waited least, by what it is charged to."""
    soonest = next_to_last(matches, late.last, late.wait)
    is_soonest = np.zeros(len(late.wait), np.bool_)
    is_soonest[soonest[late.wait[soonest] > threshold]] = True
    chosen = is_soonest[charges.arrival]
    return matches.instance[charges.arrival[chosen]], charges.origin[chosen], charges.amount[chosen] / 1000


def _of_roots(directed: Waits, offset: int) -> Charges:
    """Return the waits in operations with a root. ``offset``: of the arrivals of ``directed``."""
    chosen = ~directed.is_of_pair
    waited = (directed.end - directed.start)[chosen].astype(np.float64)
    return Charges(
        directed.arrival[chosen] + offset, directed.origin[chosen], directed.start[chosen], directed.end[chosen], waited
    )


def _gains_of_roots(every: Arrivals, directed: Waits, of_roots: Charges) -> _Gains:
    """Return the gains at operations with a root, of those in which all ranks that can wait did."""
    # If every rank that can wait did, all of them waited for the same rank.
    instance = every.instance[of_roots.arrival]
    waits = np.bincount(instance, minlength=len(every))
    complete = waits == np.where(every.rule == FROM_ROOT, every.count - 1, 1)
    first, number = numbered(instance)
    sooner = (directed.end - directed.since)[~directed.is_of_pair]
    gain = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(gain, number, sooner)
    is_complete = complete[instance[first]]
    return instance[first][is_complete], of_roots.origin[first][is_complete], gain[is_complete] / 1000


def _times(matches: Arrivals, directed: Waits, ranks: Numbers) -> tuple[Floats, Floats]:
    """Return each rank's time in collectives without waiting, and with waiting, in nanoseconds."""
    transfer, waiting = np.zeros(len(ranks)), np.zeros(len(ranks))
    shortest = matches.shortest_ns[matches.instance]
    waited = directed.end - directed.start
    for total, rank, ns in (
        (transfer, matches.rank, shortest),
        (waiting, matches.rank, matches.inside_ns - shortest),
        (transfer, directed.judged.rank, directed.judged.inside_ns),
        (waiting, directed.waiter, waited),
        (transfer, directed.waiter, -waited),
    ):
        total += sums(np.searchsorted(ranks, rank), ns, len(ranks))  # noqa: PLW2901  # in place
    return transfer, waiting


class _WaitColumns:
    """Columns of the waits at collectives, over blocks of steps."""

    def __init__(self, ranks: Numbers) -> None:
        self._ranks = ranks
        self._numbers = {name: GrowingColumn(np.int64) for name in ("step", "count", "gain_of")}
        self._places = {name: GrowingColumn(np.int32) for name in ("member", "gain_by")}
        self._times = {name: GrowingColumn(np.float64) for name in ("waited_us", "exposed_us", "gain_us")}
        self._instances = 0

    def add(self, every: Arrivals, waits: tuple[ArrivalLateness, Waits], gains: _Gains, of_roots: Charges) -> None:
        """Add the waits at the collectives of all ranks, and at operations with a root that all ranks waited for."""
        late, directed = waits
        judged = directed.judged
        wait = np.concatenate([late.counted, np.zeros(len(judged.row), np.int64)])
        wait[of_roots.arrival] = of_roots.end - of_roots.start
        exposed = np.concatenate([late.exposed, _exposed_ns(judged, wait[len(late.wait) :])])
        by_roots = _gains_of_roots(every, directed, of_roots)
        is_counted = np.arange(len(every)) < len(late.last)
        is_counted[by_roots[0]] = True
        order = np.flatnonzero(is_counted)
        order = order[np.argsort(every.step[order], kind="stable")]
        count = every.count[order]
        arrival = np.repeat(every.first[:-1][order] - offsets(count)[:-1], count) + np.arange(int(count.sum()))
        number = np.zeros(len(every), np.int64)
        number[order] = np.arange(len(order)) + self._instances
        self._instances += len(order)
        instance, rank, gain_us = (np.concatenate(both) for both in zip(gains, by_roots, strict=True))
        for name, values in (("step", every.step[order]), ("count", count), ("gain_of", number[instance])):
            self._numbers[name].add(values)
        for name, ranks in (("member", every.rank[arrival]), ("gain_by", rank)):
            self._places[name].add(np.searchsorted(self._ranks, ranks))
        for name, us in (("waited_us", wait[arrival] / 1000), ("exposed_us", exposed[arrival] / 1000), ("gain_us", gain_us)):
            self._times[name].add(us)

    def result(self) -> CollectiveWaits:
        """Return the waits."""
        columns = {**self._numbers, **self._places, **self._times}
        first = offsets(columns.pop("count").values())
        return CollectiveWaits(first=first, **{name: column.values() for name, column in columns.items()})
