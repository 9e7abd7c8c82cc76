"""Who waited for whom: imposed wait, from matched collectives.

A rank arrives at a collective on a device when its kernel starts; its kernels end together, so each collective is its own
clock: whoever spent the shortest time in it arrived last, and the others waited for as long as theirs took longer. On the CPU
a rank arrives when the calling thread enqueues the collective, for a worker thread may start late for reasons of its own; ends
are less sharp there, so arrivals are compared on the corrected clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.clock import Clocks
from rankscope.analysis.intervals import EMPTY, Spans, join, measure, subtract, union
from rankscope.analysis.matching import Match, arrival_ns
from rankscope.runs.records import CollectiveRecord


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
    """[instances]: the step of each."""
    saved_us: dict[int, float]
    """Per rank: exposed time that a typical victim would not have waited had this rank arrived with the last of the others."""

    def share(self, rank: int) -> float | None:
        """This rank's part of all imposed wait, or ``None`` when nobody waited."""
        total = sum(self.imposed_us.values())
        return self.imposed_us[rank] / total if total > 0 else None


def assign_blame(matches: Sequence[Match], clocks: Clocks, ranks: Sequence[int]) -> Blame:
    """Imposed wait of every rank of ``ranks``."""
    everyone = sorted(ranks)
    column = {rank: at for at, rank in enumerate(everyone)}
    waits: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    hidden: dict[tuple[int, int], list[Spans]] = {}
    avoidable: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
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
    compute = {key: join(*spans) for key, spans in hidden.items()}
    imposed = dict.fromkeys(everyone, 0.0)
    exposed = dict.fromkeys(everyone, 0.0)
    saved: dict[int, dict[int, float]] = {rank: dict.fromkeys(everyone, 0.0) for rank in everyone}
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
        steps=sorted({match.step for match in matches}),
        gain_us=gain,
        instance_step=np.array([match.step for match in matches], dtype=np.int64),
        saved_us={rank: _typical(saved[rank], rank) for rank in everyone},
    )


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
