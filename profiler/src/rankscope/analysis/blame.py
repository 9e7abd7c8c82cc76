"""Who waited for whom: imposed wait, from matched collectives.

A rank arrives at a collective on a device when its kernel starts; its kernels end together, so each collective is its own
clock: whoever spent the shortest time in it arrived last, and the others waited for as long as theirs took longer. On the CPU
a rank arrives when the calling thread enqueues the collective, for a worker thread may start late for reasons of its own; ends
are less sharp there, so arrivals are compared on the corrected clock.

Charged is the origin: a rank that was last because another group had kept it waiting is a victim itself (``upstream``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.clock import Clocks
from rankscope.analysis.few_spans import Span, covered, length, merge
from rankscope.analysis.matching import Match, arrival_ns
from rankscope.analysis.upstream import Charge, Meeting, charge_origins
from rankscope.runs.records import CollectiveRecord

Group = tuple[str | None, tuple[int, ...]]
"""Name and members of a process group."""

Row = tuple[float, float, int]
"""Imposed microseconds, those that no compute hid, and in how many steps."""


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
    waited_us: NDArray[np.float64]
    """[instances, ranks]: how long each member waited for the last, NaN for who is none."""
    saved_us: dict[int, float]
    """Per rank: exposed time that a typical victim would not have waited had this rank arrived with the last of the others."""
    rows: dict[Group, dict[tuple[int, int], Row]] = field(default_factory=dict)
    """Who delayed whom: per process group and (origin, victim) the imposed wait. Overlapping waits count once within a group."""

    def share(self, rank: int) -> float | None:
        """This rank's part of all imposed wait, or ``None`` when nobody waited."""
        total = sum(self.imposed_us.values())
        return self.imposed_us[rank] / total if total > 0 else None


def assign_blame(matches: Sequence[Match], clocks: Clocks, ranks: Sequence[int]) -> Blame:
    """Imposed wait of every rank of ``ranks``."""
    everyone = sorted(ranks)
    column = {rank: at for at, rank in enumerate(everyone)}
    waits: dict[tuple[int, int, int], list[tuple[int, Span, Span]]] = {}
    compute: dict[tuple[int, int], list[Span]] = {}
    transfer = dict.fromkeys(everyone, 0.0)
    waiting = dict.fromkeys(everyone, 0.0)
    gain = np.zeros((len(matches), len(everyone)))
    waited = np.full((len(matches), len(everyone)), np.nan)
    threshold = clocks.residual_ns or 0.0
    meetings = [_meeting(match, clocks) for match in matches]
    charged = charge_origins(
        meetings, lambda number, victim: _exposed(matches[number], meetings[number], victim), least_ns=threshold
    )
    for number, (match, meeting, charges) in enumerate(zip(matches, meetings, charged, strict=True)):
        shortest = min(record.end_unix_ns - arrival_ns(record) for record in match.records)
        soonest, least = meeting.soonest
        if least > threshold:
            for origin, amount in charges.get(soonest, {meeting.culprit: least}).items():
                gain[number, column[origin]] = amount / 1000
        for rank, record in zip(match.ranks, match.records, strict=True):
            waited[number, column[rank]] = meeting.waits_ns.get(rank, 0) / 1000
            # On the rank's own clock, where its compute is.
            here = arrival_ns(record)
            transfer[rank] += shortest / 1000
            waiting[rank] += (record.end_unix_ns - here - shortest) / 1000
            if wait := meeting.waits_ns.get(rank):
                for origin, (begin, end) in _parts(charges.get(rank), meeting.culprit, (here, here + wait)):
                    avoidable = (max(begin, here + wait - least), end)
                    waits.setdefault((origin, rank, match.step), []).append((number, (begin, end), avoidable))
            compute.setdefault((rank, match.step), []).extend(_compute(record))
    hidden = {key: merge(spans) for key, spans in compute.items()}
    imposed = dict.fromkeys(everyone, 0.0)
    exposed = dict.fromkeys(everyone, 0.0)
    saved: dict[int, dict[int, float]] = {rank: {} for rank in everyone}
    rows: dict[Group, dict[tuple[int, int], Row]] = {}
    for (origin, victim, step), found in waits.items():
        busy = hidden[victim, step]
        whole, bare = _measured([span for _, span, _ in found], busy)
        imposed[origin] += whole
        exposed[origin] += bare
        saved[origin][victim] = saved[origin].get(victim, 0.0) + _measured([span for _, _, span in found], busy)[1]
        by_group: dict[Group, list[Span]] = {}
        for number, span, _ in found:
            by_group.setdefault((matches[number].group, meetings[number].members), []).append(span)
        for group, spans in by_group.items():
            part = (whole, bare) if len(by_group) == 1 else _measured(spans, busy)
            row = rows.setdefault(group, {}).get((origin, victim), (0.0, 0.0, 0))
            rows[group][origin, victim] = (row[0] + part[0], row[1] + part[1], row[2] + 1)
    return Blame(
        ranks=everyone,
        imposed_us=imposed,
        exposed_us=exposed,
        transfer_us=transfer,
        wait_us=waiting,
        steps=sorted({match.step for match in matches}),
        gain_us=gain,
        instance_step=np.array([match.step for match in matches], dtype=np.int64),
        waited_us=waited,
        saved_us={rank: _typical(saved[rank], rank, everyone) for rank in everyone},
        rows=rows,
    )


def _parts(charge: Charge | None, culprit: int, waited: Span) -> list[tuple[int, Span]]:
    """One wait, cut into what each origin is charged with. Whoever did most of it comes last, for that is what had to be healed
    for the others to go on earlier.
    """
    if charge is None:
        return [(culprit, waited)]
    parts: list[tuple[int, Span]] = []
    begin, stop = waited
    for origin, amount in sorted(charge.items(), key=lambda part: part[1]):
        end = min(begin + round(amount), stop)
        parts.append((origin, (begin, end)))
        begin = end
    return parts


def _typical(saved: dict[int, float], culprit: int, ranks: Sequence[int]) -> float:
    others = [saved.get(victim, 0.0) for victim in ranks if victim != culprit]
    return float(np.median(others)) if others else 0.0


def _measured(spans: Sequence[Span], busy: Sequence[Span]) -> tuple[float, float]:
    """Their union, and the part of it that is not in ``busy``, in microseconds."""
    merged = merge(spans)
    whole = length(merged)
    return whole / 1000, (whole - covered(merged, busy)) / 1000


def _meeting(match: Match, clocks: Clocks) -> Meeting:
    """Who kept whom waiting."""
    arrivals = _arrivals(match, clocks)
    last = int(np.argsort(arrivals, kind="stable")[-1])
    waits = {rank: arrivals[last] - arrival for rank, arrival in zip(match.ranks, arrivals, strict=True)}
    return Meeting(
        step=match.step,
        members=tuple(match.ranks),
        culprit=match.ranks[last],
        when_ns=clocks.correct(match.ranks[last], arrival_ns(match.records[last])),
        waits_ns={rank: wait for rank, wait in waits.items() if wait > 0},
    )


def _exposed(match: Match, meeting: Meeting, victim: int) -> float:
    """Share of a victim's wait at one collective that its compute did not hide."""
    record = match.records[match.ranks.index(victim)]
    begin, wait = arrival_ns(record), meeting.waits_ns[victim]
    return 1 - covered([(begin, begin + wait)], merge(_compute(record))) / wait


def _arrivals(match: Match, clocks: Clocks) -> list[int]:
    """Arrival of each rank, in nanoseconds on a clock they share."""
    if any(record.stream is None for record in match.records):
        return [clocks.correct(rank, arrival_ns(record)) for rank, record in zip(match.ranks, match.records, strict=True)]
    return [arrival_ns(record) - record.end_unix_ns for record in match.records]


def _compute(record: CollectiveRecord) -> list[Span]:
    at = record.enqueue_unix_ns
    return [(at + round(begin * 1000), at + round(end * 1000)) for begin, end in record.compute_spans_us]
