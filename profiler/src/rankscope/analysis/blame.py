"""Who waited for whom: imposed wait, from matched collectives.

A rank arrives at a collective on a device when its kernel starts; its kernels end together, so each collective is its own
clock: whoever spent the shortest time in it arrived last, and the others waited for as long as theirs took longer. On the CPU
a rank arrives when the calling thread enqueues the collective, for a worker thread may start late for reasons of its own; ends
are less sharp there, so arrivals are compared on the corrected clock.

Where a root is waited for, or waits itself, ``waiting`` says by how long. Waits of sends and receives count as waiting, but
impose nothing here: between the stages of a pipeline most of them are its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.clock import Clocks
from rankscope.analysis.intervals import EMPTY, Spans, join, measure, subtract, union
from rankscope.analysis.matching import Match, arrival_ns
from rankscope.analysis.waiting import NOBODY_WAITED, Wait, Waits
from rankscope.runs.records import CollectiveRecord

_Victims = dict[tuple[int, int, int], list[tuple[int, int]]]
"""(Culprit, victim, step) to the intervals in which one waited for the other."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Waiting of all ranks; microseconds."""

    ranks: list[int]
    imposed_us: dict[int, float]
    """Per rank: the wait it imposed on others, summed over victims and steps, overlapping waits of a victim counted once."""
    exposed_us: dict[int, float]
    """Per rank: the part of it that the victims' compute did not hide."""
    transfer_us: dict[int, float]
    """Per rank: time in collectives without waiting, the shortest duration over the ranks of each."""
    wait_us: dict[int, float]
    """Per rank: time in collectives beyond it."""
    steps: list[int]
    """Steps with a match, ascending."""
    gain_us: NDArray[np.float64]
    """[instances, ranks]: how much earlier the others could have gone on had this rank not been the last: last arrival minus
    the one before it, 0 for everyone else and where that is below the clocks' residual."""
    instance_step: NDArray[np.int64]
    """[instances]: the step of each, ascending."""
    saved_us: dict[int, float]
    """Per rank: exposed time that a typical victim would not have waited had this rank arrived with the last of the others."""

    def share(self, rank: int) -> float | None:
        """This rank's part of all imposed wait, or ``None`` when nobody waited."""
        total = sum(self.imposed_us.values())
        return self.imposed_us[rank] / total if total > 0 else None


def assign_blame(matches: Sequence[Match], clocks: Clocks, ranks: Sequence[int], directed: Waits = NOBODY_WAITED) -> Blame:
    """Imposed wait of every rank of ``ranks``; ``directed``: the waits of what is not among ``matches``."""
    everyone = sorted(ranks)
    column = {rank: at for at, rank in enumerate(everyone)}
    waits: _Victims = {}
    hidden: dict[tuple[int, int], list[Spans]] = {}
    avoidable: _Victims = {}
    transfer = dict.fromkeys(everyone, 0.0)
    waiting = dict.fromkeys(everyone, 0.0)
    gain = np.zeros((len(matches), len(everyone)))
    threshold = clocks.residual_ns or 0.0
    for number, match in enumerate(matches):
        shortest = min(record.end_unix_ns - arrival_ns(record) for record in match.records)
        arrivals = _arrivals(match, clocks)
        order = np.argsort(arrivals, kind="stable")
        culprit, last, before = match.ranks[order[-1]], arrivals[order[-1]], arrivals[order[-2]]
        if last - before > threshold:
            gain[number, column[culprit]] = (last - before) / 1000
        for rank, record, arrival in zip(match.ranks, match.records, arrivals, strict=True):
            transfer[rank] += shortest / 1000
            waiting[rank] += (record.end_unix_ns - arrival_ns(record) - shortest) / 1000
            if rank != culprit and last > arrival:
                # On the victim's own clock, where its compute is.
                here = arrival_ns(record)
                waits.setdefault((culprit, rank, match.step), []).append((here, here + last - arrival))
                avoidable.setdefault((culprit, rank, match.step), []).append(
                    (here + max(before, arrival) - arrival, here + last - arrival)
                )
            hidden.setdefault((rank, match.step), []).append(_compute(record))
    _add_directed(directed, transfer=transfer, waiting=waiting, hidden=hidden, waits=waits, avoidable=avoidable)
    rooted = _rooted_gains(directed.waits)
    gain = np.concatenate((gain, np.zeros((len(rooted), len(everyone)))))
    for number, (_, culprit, gained) in enumerate(rooted, start=len(matches)):
        gain[number, column[culprit]] = gained
    instance_step = np.array([*(match.step for match in matches), *(step for step, _, _ in rooted)], dtype=np.int64)
    in_order = np.argsort(instance_step, kind="stable")
    compute = {key: join(*spans) for key, spans in hidden.items()}
    imposed = dict.fromkeys(everyone, 0.0)
    exposed = dict.fromkeys(everyone, 0.0)
    saved = {rank: dict.fromkeys(everyone, 0.0) for rank in everyone}
    for (culprit, victim, step), spans in waits.items():
        waited = _merged(spans)
        busy = compute.get((victim, step), EMPTY)
        imposed[culprit] += measure(waited) / 1000
        exposed[culprit] += measure(subtract(waited, busy)) / 1000
        saved[culprit][victim] += measure(subtract(_merged(avoidable[culprit, victim, step]), busy)) / 1000
    return Blame(
        ranks=everyone,
        imposed_us=imposed,
        exposed_us=exposed,
        transfer_us=transfer,
        wait_us=waiting,
        steps=sorted({*instance_step.tolist()}),
        gain_us=gain[in_order],
        instance_step=instance_step[in_order],
        saved_us={rank: _typical(saved[rank], rank) for rank in everyone},
    )


def _add_directed(
    directed: Waits,
    *,
    transfer: dict[int, float],
    waiting: dict[int, float],
    hidden: dict[tuple[int, int], list[Spans]],
    waits: _Victims,
    avoidable: _Victims,
) -> None:
    for match, _ in directed.transfers_ns:
        for rank, record in zip(match.ranks, match.records, strict=True):
            transfer[rank] += (record.end_unix_ns - arrival_ns(record)) / 1000
            hidden.setdefault((rank, match.step), []).append(_compute(record))
    for wait in directed.waits:
        waiting[wait.waiter] += (wait.end - wait.start) / 1000
        transfer[wait.waiter] -= (wait.end - wait.start) / 1000
        if wait.match.rule != "pair":
            waits.setdefault((wait.origin, wait.waiter, wait.match.step), []).append((wait.start, wait.end))
            avoidable.setdefault((wait.origin, wait.waiter, wait.match.step), []).append((wait.since, wait.end))


def _rooted_gains(waits: Sequence[Wait]) -> list[tuple[int, int, float]]:
    """Step, culprit and microseconds of every instance with a root in which all that may wait waited for the same rank."""
    by_match: dict[int, list[Wait]] = {}
    for wait in waits:
        if wait.match.rule != "pair":
            by_match.setdefault(id(wait.match), []).append(wait)
    found: list[tuple[int, int, float]] = []
    for group in by_match.values():
        match = group[0].match
        if len(group) == (len(match.ranks) - 1 if match.rule == "from_root" else 1):
            found.append((match.step, group[0].origin, min(wait.end - wait.since for wait in group) / 1000))
    return found


def _typical(saved: dict[int, float], culprit: int) -> float:
    others = [value for victim, value in saved.items() if victim != culprit]
    return float(np.median(others)) if others else 0.0


def _merged(spans: Sequence[tuple[int, int]]) -> Spans:
    pairs = np.array(spans, dtype=np.int64)
    return union(pairs[:, 0], pairs[:, 1])


def _arrivals(match: Match, clocks: Clocks) -> list[int]:
    """Arrival of each rank, in nanoseconds on a clock they share."""
    if any(record.stream is None for record in match.records):
        return [clocks.correct(rank, arrival_ns(record)) for rank, record in zip(match.ranks, match.records, strict=True)]
    return [arrival_ns(record) - record.end_unix_ns for record in match.records]


def _compute(record: CollectiveRecord) -> Spans:
    if not record.compute_spans_us:
        return EMPTY
    spans = np.rint(np.array(record.compute_spans_us, dtype=np.float64) * 1000).astype(np.int64)
    spans += record.enqueue_unix_ns
    return union(spans[:, 0], spans[:, 1])
