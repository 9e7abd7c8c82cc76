"""Construction of a window: match the records of all ranks, correct them to one clock and lay them side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rankscope.analysis.captured import captured_steps
from rankscope.analysis.collectives.arrivals import Match, arrival_ns
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.matched import match_windows
from rankscope.analysis.collectives.matching import Matching
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.perfetto.collective_tracks import CollectiveKey, collective_key, waiting_of
from rankscope.analysis.perfetto.plan import clock_of, shared_by_names
from rankscope.analysis.trace.intervals import EMPTY, Spans, union
from rankscope.analysis.trace.work import Work
from rankscope.base.errors import InputError
from rankscope.base.process import collector_paused
from rankscope.dashboards.data.progress import OnProgress, Progress
from rankscope.dashboards.timeline.data import Collective, CollectiveCalls, WindowData, WindowInfo, write_window
from rankscope.dashboards.timeline.parts import NO_VALUE, Numbers, Parts, RecordedIntervals, join_parts, parts_of
from rankscope.dashboards.timeline.raw_events import RawEvents, kept_files
from rankscope.runs.reader import RunReader
from rankscope.runs.records import CollectiveRecord
from rankscope.runs.world_size import recorded_world_size

_APART_NS: Final = 60_000_000_000
"""Largest plausible distance between ranks of a window; a rank further away has a clock that could not be corrected."""


@collector_paused()
def derive_window(run: Path, attempt: int, steps: range, folder: Path, on_progress: OnProgress) -> None:
    """Write the window that ``read_window`` reads. Raises ``RankscopeError`` and ``OSError``."""
    reader = RunReader(run)
    all_ranks = reader.ranks(attempt)
    reductions: dict[int, Reduction] = {}
    for at, rank in enumerate(all_ranks):
        on_progress(Progress("reading the collectives of all ranks", at, len(all_ranks)))
        reductions[rank] = captured_steps(reader, attempt, rank, steps)
    on_progress(Progress("finding which collectives are the same"))
    infos = reader.infos(attempt)
    clock_names = {rank: info.clock_name for rank, info in infos.items()}
    matched = match_windows(reductions, infos, recorded_world_size(reader.attempt(attempt), infos.values()))
    clocks = shared_by_names(matched.clocks, clock_names)
    captured = {rank: reduction for rank, reduction in reductions.items() if reduction.breakdowns or reduction.collectives}
    if not captured:
        raise InputError(run, f"nothing of steps {steps.start} to {steps.stop - 1} is left: retention has removed it")
    raw = RawEvents()
    for rank, file in kept_files(reader.path, attempt, captured, steps):
        on_progress(Progress("reading raw traces", len(raw.work)))
        raw.read(rank, file)
    on_progress(Progress("laying the ranks side by side"))
    write_window(arrange_window(captured, clocks, matched.matching, raw, steps, clock_names=clock_names), folder)


def arrange_window(
    captured: Mapping[int, Reduction],
    clocks: Clocks,
    matching: Matching,
    raw: RawEvents,
    steps: range,
    *,
    clock_names: Mapping[int, str],
) -> WindowData:
    """Return the window. ``captured``: of the ranks with records of it, at least one. Ranks of one kernel have one clock name."""
    starts = {rank: clocks.correct(rank, _start(reduction)) for rank, reduction in captured.items()}
    typical = int(np.median(list(starts.values())))
    ranks = [rank for rank in sorted(captured) if abs(starts[rank] - typical) <= _APART_NS]
    left_out = [
        f"rank {rank}: its clock could not be corrected and shows another time" for rank in sorted(captured) if rank not in ranks
    ]
    base = min(starts[rank] for rank in ranks)
    linked = _LinkedCollectives(matching, clocks, base)
    for rank in ranks:
        linked.add_unmatched(rank, captured[rank].collectives)
    parts: list[Parts] = []
    calls: list[Numbers] = []
    for row, rank in enumerate(ranks):
        rank_calls = _calls(row, rank, captured[rank].collectives, linked)
        calls.append(rank_calls)
        parts.append(parts_of(row, _intervals_of(rank, captured[rank], rank_calls, raw.work.get(rank), linked)))
    all_parts, table = join_parts(parts), np.concatenate(calls)
    offsets = {rank: base + clocks.offset_at(rank, starts[rank]) for rank in ranks}
    events = raw.events(offsets)
    return WindowData(
        info=WindowInfo(
            first=steps.start,
            past=steps.stop,
            ranks=ranks,
            extent_ns=int(max(all_parts.end.max(initial=1), table[:, 3].max(initial=1))),
            clock=clock_of(clocks, len(matching.matches), ranks, clock_names),
            steps=_steps(ranks, captured, clocks, base),
            matched=len(matching.matches) + len(matching.directed),
            unmatched=matching.unmatched,
            collectives=linked.collectives,
            raw_ranks=[rank for rank in ranks if rank in raw.work],
            lanes=raw.lanes,
            names=raw.names,
            left_out=[*left_out, *raw.problems],
        ),
        parts=all_parts,
        calls=CollectiveCalls(*table.T),
        events=events,
        offset_ns=np.array([offsets[rank] for rank in ranks], dtype=np.int64),
    )


def _steps(ranks: Iterable[int], captured: Mapping[int, Reduction], clocks: Clocks, base: int) -> list[tuple[int, int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    for rank in ranks:
        for row in captured[rank].breakdowns:
            start = clocks.correct(rank, row.start_unix_ns) - base
            first, last = spans.get(row.step, (start, start))
            spans[row.step] = (min(first, start), max(last, start + round(row.window_us * 1000)))
    return [(step, *spans[step]) for step in sorted(spans)]


@dataclass(slots=True)
class _LinkedCollectives:
    """Collectives of the window, and the records that belong to each."""

    collectives: list[Collective]
    number_of: dict[CollectiveKey, int]
    wait_ns: dict[CollectiveKey, int]
    clocks: Clocks
    base_ns: int

    def __init__(self, matching: Matching, clocks: Clocks, base_ns: int) -> None:
        self.collectives, self.number_of, self.wait_ns = [], {}, {}
        self.clocks, self.base_ns = clocks, base_ns
        for match, waited in waiting_of(matching.matches, clocks):
            spread_us = max(wait.wait_us for wait in waited.values())
            keys = self._add(match, last=next(iter(waited.values())).last, spread_ns=round(spread_us * 1000))
            self.wait_ns |= {keys[rank]: max(0, round(wait.wait_us * 1000)) for rank, wait in waited.items()}
        for match in matching.directed:
            self._add(match)

    def add_unmatched(self, rank: int, records: Iterable[CollectiveRecord]) -> None:
        """Add each unmatched record of a rank as a collective of its own."""
        for record in records:
            if collective_key(rank, record) not in self.number_of:
                self._add(Match(record.step, record.group, record.op, [rank], [record]), matched=False)

    def _add(
        self, match: Match, *, last: int | None = None, spread_ns: int | None = None, matched: bool = True
    ) -> dict[int, CollectiveKey]:
        keys = {rank: collective_key(rank, record) for rank, record in zip(match.ranks, match.records, strict=True)}
        number = len(self.collectives)
        self.number_of |= dict.fromkeys(keys.values(), number)
        of_each = list(zip(match.ranks, match.records, strict=True))
        self.collectives.append(
            Collective(
                key=_name(match, matched=matched),
                op=match.op,
                group=match.group,
                step=match.step,
                bytes=max((record.bytes for record in match.records if record.bytes is not None), default=None),
                ranks=len(match.ranks),
                matched=matched,
                last=last,
                spread_ns=spread_ns,
                first_ns=min(self.on_clock(rank, arrival_ns(record)) for rank, record in of_each),
            )
        )
        return keys

    def on_clock(self, rank: int, unix_ns: int) -> int:
        """Return a time of a rank in nanoseconds since the window began."""
        return self.clocks.correct(rank, unix_ns) - self.base_ns


def _name(match: Match, *, matched: bool) -> str:
    first = match.records[0]
    ranks_prefix = "" if matched and match.rule != "pair" else f"{'-'.join(map(str, match.ranks))}@"
    sequence = None if match.rule == "pair" else first.sequence
    return f"{match.group}:{ranks_prefix}{f'{match.step}.{first.index}' if sequence is None else sequence}"


def _calls(row: int, rank: int, records: list[CollectiveRecord], linked: _LinkedCollectives) -> Numbers:
    """Return [n, 5]: the columns of ``CollectiveCalls``."""
    return np.array(
        [
            (
                row,
                linked.number_of[key := collective_key(rank, record)],
                linked.on_clock(rank, arrival_ns(record)),
                linked.on_clock(rank, record.end_unix_ns),
                linked.wait_ns.get(key, NO_VALUE),
            )
            for record in records
        ],
        dtype=np.int64,
    ).reshape(-1, 5)


def _intervals_of(
    rank: int, reduction: Reduction, calls: Numbers, work: Work | None, linked: _LinkedCollectives
) -> RecordedIntervals:
    clocks, base = linked.clocks, linked.base_ns
    steps = [
        (start := clocks.correct(rank, record.start_unix_ns) - base, start + round(record.window_us * 1000))
        for record in reduction.breakdowns
    ]
    if work is not None:
        offset = base + clocks.offset_at(rank, _start(reduction))
        compute, copies = work.compute - offset, work.copies - offset
    else:
        enqueued = [clocks.correct(rank, record.enqueue_unix_ns) - base for record in reduction.collectives]
        compute, copies = _union([_computing(reduction.collectives, enqueued)]), EMPTY
    return RecordedIntervals(
        steps=_union([np.array(steps, dtype=np.int64).reshape(-1, 2)]),
        collectives=calls[:, 2:4],
        waits=calls[:, 4],
        numbers=calls[:, 1],
        compute=compute,
        copies=copies,
        is_whole=work is not None,
    )


def _computing(records: Sequence[CollectiveRecord], enqueued_ns: Sequence[int]) -> Spans:
    spans = np.array([span for record in records for span in record.compute_spans_us], dtype=np.float64).reshape(-1, 2) * 1000
    relative_ns: Spans = np.rint(spans.clip(-_APART_NS, _APART_NS)).astype(np.int64)
    counts = np.array([len(record.compute_spans_us) for record in records], dtype=np.intp)
    return relative_ns + np.repeat(np.array(enqueued_ns, dtype=np.int64), counts)[:, None]


def _union(spans: Iterable[Spans]) -> Spans:
    concatenated = np.concatenate([EMPTY, *spans])
    return union(concatenated[:, 0], concatenated[:, 1])


def _start(reduction: Reduction) -> int:
    return min([*(row.start_unix_ns for row in reduction.breakdowns), *(arrival_ns(row) for row in reduction.collectives)])
