"""Kineto traces of any number of ranks as a source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rankscope.analysis.collectives.clock import consistent, fit_clocks
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.windows import reduce_file
from rankscope.analysis.evidence.kernels.quality_warnings import quality_warnings
from rankscope.analysis.perfetto.chrome_json import TraceWriter
from rankscope.analysis.perfetto.plan import Plan, Progress, clock_of, none_of_these, process_name, widen
from rankscope.analysis.perfetto.raw_trace import RawTracks, read_raw_trace
from rankscope.analysis.perfetto.selection import Selection
from rankscope.analysis.rank_traces import find_traces
from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.trace.columns import Trace, read_traces
from rankscope.analysis.trace.locations import Location, base_name
from rankscope.analysis.trace.work import annotated_steps
from rankscope.analysis.trace_job import TraceIdentity, identity_of, job_of
from rankscope.base.errors import InputError
from rankscope.base.text import step_range
from rankscope.runs.records import CollectiveRecord

_MARGIN_NS = 1_000_000_000
"""Time around the events that count: others, such as frames of Python, may begin earlier or end later."""


@dataclass(frozen=True, slots=True)
class _ExportedTrace:
    """Data kept of a trace between the two readings; times are those of its own clock."""

    identity: TraceIdentity
    processes: Collection[str] | None
    """See ``Trace``."""
    host: str | None
    collectives: list[CollectiveRecord]
    steps: dict[int, tuple[int, int]]
    """Annotated step to its start and end."""
    extent: tuple[int, int] | None
    """See ``Trace``."""
    damaged: int
    quality: DataQuality

    def exported(self, selection: Selection) -> tuple[int, int] | None:
        """Return the time span of the chosen steps, or of all; ``None`` for none."""
        if not selection.chose_steps:
            return self.extent
        spans = [span for step, span in self.steps.items() if selection.steps.has(step)]
        return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None


def _rank_trace(trace: Trace) -> _ExportedTrace:
    if trace.quality.problem is not None:
        raise InputError(trace.path, f"the trace {trace.quality.reason}")
    reduction = reduce_file(trace)
    spans: dict[int, tuple[int, int]] = {}
    if (annotated := annotated_steps(trace)) is not None:
        for step, start, end in zip(annotated.numbers, annotated.start.tolist(), annotated.end.tolist(), strict=True):
            widen(spans, step, start, end)
    return _ExportedTrace(
        identity=identity_of(trace, collectives=reduction.count, steps=annotated.numbers if annotated else []),
        processes=trace.processes,
        host=trace.host,
        collectives=reduction.collectives,
        steps=spans,
        extent=trace.extent,
        damaged=trace.damaged,
        quality=trace.quality,
    )


class TracesSource:
    """Source that reads traces, each twice: first to plan, then to write. Only one at a time is in memory."""

    def __init__(self, paths: Sequence[Location], selection: Selection, *, progress: Progress) -> None:
        self._selection = selection
        left_out: list[str] = []
        files, explicit = find_traces(paths)
        traces: list[_ExportedTrace] = []
        for number, file in enumerate(files):
            progress("Looking through", number, len(files))
            try:
                traces += map(_rank_trace, read_traces(file, complete_only=True))
            except InputError as error:
                if file in explicit or len(files) == 1:
                    raise
                left_out.append(str(error))
        if not traces:
            raise InputError(paths[0], f"no trace in it can be read; {left_out[0]}")
        job = job_of([trace.identity for trace in traces], selection.cycle)
        left_out += job.warnings
        if job.reason is not None:
            left_out.append(f"what ranks have to do with each other: {job.reason}")
        ranks = {rank: traces[at] for rank, at in job.traces.items()}
        extents = {rank: trace.exported(selection) for rank, trace in ranks.items() if selection.has_rank(rank)}
        self._extents = {rank: extent for rank, extent in extents.items() if extent is not None}
        if not self._extents:
            raise InputError(paths[0], _nothing(ranks, selection, any_rank=bool(extents)))
        left_out += [f"rank {rank}: its trace has none of these steps" for rank in extents.keys() - self._extents.keys()]
        self._traces = {rank: ranks[rank] for rank in self._extents}
        left_out += quality_warnings(
            {rank: trace.quality for rank, trace in self._traces.items()},
            {rank: trace.damaged for rank, trace in self._traces.items()},
        )
        self._raw = RawTracks(selection.max_events, len(self._traces))
        self.plan = self._make_plan(ranks, left_out, is_one_job=job.problem is None)

    def _make_plan(self, ranks: Mapping[int, _ExportedTrace], left_out: list[str], *, is_one_job: bool) -> Plan:
        hosts = {rank: trace.host for rank, trace in ranks.items() if trace.host}
        sizes = [trace.identity.world_size for trace in ranks.values() if trace.identity.world_size is not None]
        compared = {rank: trace.collectives for rank, trace in ranks.items()} if is_one_job else {}
        matching = match_collectives(compared, world_size=max(sizes, default=None))
        clocks = fit_clocks(matching.matches, hosts)
        step_times: dict[int, tuple[int, int]] = {}
        for rank in self._traces:
            for step, (start, end) in self._steps(rank).items():
                widen(step_times, step, clocks.correct(rank, start), clocks.correct(rank, end))
        return Plan(
            kind="traces",
            identity={
                "files": [base_name(path) for path in dict.fromkeys(trace.identity.path for trace in self._traces.values())],
                "simulated": False,
            },
            steps=(min(step_times), max(step_times) + 1) if step_times else None,
            names={rank: process_name(rank, hosts.get(rank), None, simulated=False) for rank in self._traces},
            collectives={rank: self._selection.steps.of(trace.collectives) for rank, trace in self._traces.items()},
            matching=consistent(matching, clocks),
            clocks=clocks,
            clock=clock_of(clocks, len(matching.matches), list(self._traces), hosts),
            base_ns=min(clocks.correct(rank, start) for rank, (start, _) in self._extents.items()) - _MARGIN_NS,
            step_times=step_times,
            left_out=left_out,
        )

    def _steps(self, rank: int) -> dict[int, tuple[int, int]]:
        return {step: span for step, span in self._traces[rank].steps.items() if self._selection.steps.has(step)}

    def write_rank(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """Write the annotated steps of a rank."""
        correct = self.plan.on_common_clock(rank)
        track = writer.track(pid, "steps", nest=False)
        for step, (start, end) in sorted(self._steps(rank).items(), key=lambda item: (item[1][0], -item[1][1])):
            track.slice(f"step {step}", correct(start), correct(end), {"step": step}, kind="step")

    def write_raw(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """Write the events of a rank's trace that are shown."""
        trace = self._traces[rank]
        start, end = self._extents[rank]
        margin = 0 if self._selection.chose_steps else _MARGIN_NS
        raw = read_raw_trace(trace.identity.path, (start - margin, end + margin), trace.processes)
        self._raw.write(writer, pid, raw, self.plan.on_common_clock(rank))

    def finish(self, _writer: TraceWriter, /) -> None:
        """Add to the plan what was left out; traces have no hardware samples."""
        self.plan.left_out.extend(self._raw.sentences())


def _nothing(ranks: Mapping[int, _ExportedTrace], selection: Selection, *, any_rank: bool) -> str:
    """Return the message for traces without anything to export."""
    if not any_rank:
        return none_of_these(ranks)
    if not selection.chose_steps:
        return "there is no event in it that could be shown"
    steps = [step for trace in ranks.values() for step in trace.steps]
    if not steps:
        return "no steps to choose from: none are annotated in it (ProfilerStep)"
    return f"none of these steps; there are {step_range((min(steps), max(steps) + 1))}"
