"""Kineto traces of any number of ranks as a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rankscope.analysis.collectives.arrivals import arrival_ns
from rankscope.analysis.collectives.clock import consistent, fit_clocks
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.windows import reduce_file, step_numbers
from rankscope.analysis.evidence.data_quality import quality_warnings
from rankscope.analysis.perfetto.chrome_json import HORIZON_NS, TraceWriter
from rankscope.analysis.perfetto.raw_trace import RawTrace, Sizes, read_raw_trace, threshold, write_raw
from rankscope.analysis.perfetto.selection import Selection
from rankscope.analysis.perfetto.source import Plan, Progress, clock_of, none_of_these, process_name, step_range
from rankscope.analysis.rank_traces import find_traces
from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.trace.columns import Trace, read_traces
from rankscope.analysis.trace.locations import Location, base_name
from rankscope.analysis.trace_job import TraceIdentity, identity_of, job_of
from rankscope.base.errors import InputError
from rankscope.runs.records import CollectiveRecord

_OTHER = {
    "damaged": "damaged events",
    "far": "events whose times are far from those of the rest",
    "C": "counter events",
    "B": "events without their end",
    "E": "ends of events",
}
"""Kind of events that are not shown, to its name in messages."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Data kept of a trace between the two readings; times are those of its own clock."""

    file: Location
    processes: Collection[str] | None
    """See ``Trace``."""
    host: str | None
    world_size: int | None
    collectives: list[CollectiveRecord]
    extent: tuple[int, int] | None
    """Time span that is exported; ``None``: none."""
    annotated: list[int]
    """All annotated steps, ascending."""
    steps: dict[int, tuple[int, int]]
    """Exported step to its start and end."""
    sizes: Sizes
    cut_ends: Mapping[int, int]
    """See ``Trace``."""
    quality: DataQuality
    other: Counter[str]
    """Events that are not shown, see ``RawTrace``."""


@dataclass(frozen=True, slots=True)
class _Identified:
    """Data kept of a trace until it is known of which rank and job it is."""

    identity: TraceIdentity
    processes: Collection[str] | None
    """See ``Trace``."""
    host: str | None
    collectives: list[CollectiveRecord]
    extent: tuple[int, int] | None
    """See ``Trace``, like the next two."""
    cut_ends: Mapping[int, int]
    quality: DataQuality


def _identified(trace: Trace) -> _Identified:
    if trace.quality.problem is not None:
        raise InputError(trace.path, f"the trace {trace.quality.reason}")
    reduction = reduce_file(trace)
    identity = identity_of(trace, collectives=reduction.count, steps=len(step_numbers(trace)))
    return _Identified(identity, trace.processes, trace.host, reduction.collectives, trace.extent, trace.cut_ends, trace.quality)


class TracesSource:
    """Source that reads traces, each twice: first to plan, then to write. Only one at a time is in memory."""

    def __init__(self, paths: Sequence[Location], selection: Selection, *, progress: Progress) -> None:
        self._selection = selection
        left_out: list[str] = []
        everything = self._look(paths, left_out, progress)
        self._exported = {rank: known for rank, known in everything.items() if known.extent is not None}
        if not self._exported:
            raise InputError(paths[0], self._nothing(everything))
        sizes = [known.sizes for known in self._exported.values()]
        self._shown = threshold(sizes, selection.max_events)
        other = sum((known.other for known in self._exported.values()), Counter[str]())
        left_out += [f"{count:,} {_OTHER.get(kind, f'events of kind {kind!r}')}" for kind, count in sorted(other.items())]
        left_out += quality_warnings({rank: known.quality for rank, known in self._exported.items()})
        left_out += self._shown.sentences(sizes)
        self.plan = self._make_plan(everything, left_out)

    def _look(self, paths: Sequence[Location], left_out: list[str], progress: Progress) -> dict[int, _Known]:
        files, named = find_traces(paths)
        found: list[_Identified] = []
        for done, file in enumerate(files):
            progress("Looking through", done, len(files))
            try:
                found += [_identified(trace) for trace in read_traces(file, whole=True)]
            except InputError as error:
                if file in named or len(files) == 1:
                    raise
                left_out.append(str(error))
        if not found:
            raise InputError(paths[0], f"no trace in it can be read; {left_out[0]}")
        job = job_of([trace.identity for trace in found], self._selection.cycle)
        left_out += job.warnings
        if job.reason is not None:
            left_out.append(f"what ranks have to do with each other: {job.reason}")
        self._is_one_job = job.problem is None
        known = {rank: self._know(rank, found[at]) for rank, at in job.traces.items()}
        left_out += [
            f"rank {rank}: its trace has none of these steps"
            for rank, one in known.items()
            if one.extent is None and self._selection.has_rank(rank)
        ]
        return known

    def _know(self, rank: int, trace: _Identified) -> _Known:
        file = trace.identity.path
        is_shown = self._selection.has_rank(rank)
        raw = read_raw_trace(file, trace.processes).with_ends(trace.cut_ends) if is_shown else RawTrace(file)
        annotated = raw.steps()
        steps = {step: span for step, span in annotated.items() if self._selection.has_step(step)}
        extent = self._extent(trace.extent, raw, steps)
        cut = raw.within(*extent) if extent else RawTrace(file)
        if not self._selection.chose_steps and len(cut.slices) < len(raw.slices):
            cut.other["far"] += raw.host_slices - cut.host_slices
        return _Known(
            file=file,
            processes=trace.processes,
            host=trace.host,
            world_size=trace.identity.world_size,
            collectives=trace.collectives,
            extent=extent,
            annotated=sorted(annotated),
            steps=steps,
            sizes=cut.sizes,
            cut_ends=trace.cut_ends,
            quality=trace.quality,
            other=cut.other,
        )

    def _extent(
        self, near: tuple[int, int] | None, raw: RawTrace, steps: Mapping[int, tuple[int, int]]
    ) -> tuple[int, int] | None:
        if not self._selection.chose_steps:
            return None if near is None else raw.extent(near)
        return (min(start for start, _ in steps.values()), max(end for _, end in steps.values())) if steps else None

    def _nothing(self, everything: Mapping[int, _Known]) -> str:
        """Return the message for traces without anything to export."""
        if not any(map(self._selection.has_rank, everything)):
            return none_of_these(everything)
        if not self._selection.chose_steps:
            return "there is no event in it that could be shown"
        found = [step for known in everything.values() for step in known.annotated]
        if not found:
            return "no steps to choose from: none are annotated in it (ProfilerStep)"
        return f"none of these steps; there are {step_range((min(found), max(found) + 1))}"

    def _make_plan(self, everything: Mapping[int, _Known], left_out: list[str]) -> Plan:
        hosts = {rank: known.host for rank, known in everything.items() if known.host}
        world_size = max((known.world_size for known in everything.values() if known.world_size is not None), default=None)
        compared = everything if self._is_one_job else {}
        matching = match_collectives({rank: known.collectives for rank, known in compared.items()}, world_size=world_size)
        clocks = fit_clocks(matching.matches, hosts)
        step_times: dict[int, tuple[int, int]] = {}
        starts: list[int] = []
        shown: dict[int, list[CollectiveRecord]] = {}
        for rank, known in self._exported.items():
            correct = partial(clocks.correct, rank)
            shown[rank] = [
                row for row in known.collectives if not self._selection.chose_steps or self._selection.has_step(row.step)
            ]
            assert known.extent is not None, "else it is not exported"
            # Collectives that damage moved to a far time are left out.
            arrivals = (arrival_ns(row) for row in shown[rank])
            starts += [correct(known.extent[0]), *(correct(at) for at in arrivals if abs(at - known.extent[0]) < HORIZON_NS / 2)]
            for step, (start, end) in known.steps.items():
                first, last = step_times.get(step, (correct(start), correct(end)))
                step_times[step] = (min(first, correct(start)), max(last, correct(end)))
        return Plan(
            kind="traces",
            about={
                "files": [base_name(file) for file in dict.fromkeys(known.file for known in self._exported.values())],
                "simulated": False,
            },
            steps=(min(step_times), max(step_times) + 1) if step_times else None,
            names={rank: process_name(rank, hosts.get(rank), None, simulated=False) for rank in self._exported},
            collectives=shown,
            matching=consistent(matching, clocks),
            clocks=clocks,
            clock=clock_of(clocks, len(matching.matches), list(self._exported), hosts),
            base_ns=min(starts),
            step_times=step_times,
            left_out=left_out,
        )

    def write_rank(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """Write the annotated steps of a rank."""
        correct = self.plan.on_common_clock(rank)
        track = writer.track(pid, "steps", nest=False)
        for step, (start, end) in sorted(self._exported[rank].steps.items(), key=lambda item: (item[1][0], -item[1][1])):
            track.slice(f"step {step}", correct(start), correct(end), {"step": step}, kind="step")

    def write_raw(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """Write the events of a rank's trace that are shown."""
        known = self._exported[rank]
        assert known.extent is not None, "else it is not exported"
        raw = read_raw_trace(known.file, known.processes).with_ends(known.cut_ends).within(*known.extent)
        write_raw(writer, pid, raw, self._shown, self.plan.on_common_clock(rank))

    def write_hosts(self, writer: TraceWriter) -> None:
        """Do nothing: traces have no hardware samples."""

    def finish(self) -> None:
        """Do nothing: the second reading already raises for a missing trace."""
