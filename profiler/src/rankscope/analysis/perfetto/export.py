"""Export of a run directory or of traces as one Chrome JSON file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rankscope.analysis.engine import analyze
from rankscope.analysis.perfetto.chrome_json import TraceWriter
from rankscope.analysis.perfetto.collective_tracks import (
    MAX_ARROWS,
    CollectiveKey,
    RankWait,
    SlicePosition,
    collective_key,
    find_arrows,
    waiting_of,
    write_collectives,
)
from rankscope.analysis.perfetto.export_result import EXPORT_SCHEMA, ExportResult, clock_sentence
from rankscope.analysis.perfetto.plan import ExportSource, Plan, Progress
from rankscope.analysis.perfetto.run_source import RunExportSource
from rankscope.analysis.perfetto.selection import Selection
from rankscope.analysis.perfetto.traces_source import TracesSource
from rankscope.analysis.perfetto.verdict_tracks import write_annotations
from rankscope.analysis.result.text import counted
from rankscope.analysis.trace.locations import location
from rankscope.base.errors import InputError
from rankscope.runs.named import named_run


def export_perfetto(
    paths: Sequence[Path | str],
    write: Callable[[bytes], object],
    *,
    selection: Selection | None = None,
    raw: bool | None = None,
    verdict: bool = True,
    progress: Progress = lambda *_: None,
) -> ExportResult:
    """Write the run or the traces that ``paths`` name to ``write``, in parts; see ``engine.analyze`` for valid paths.

    The same input gives the same bytes. Without ``verdict`` no analysis is made, so memory does not depend on the length of the
    run. Raises ``InputError``, after the first write only where input disappeared meanwhile, and the exceptions of ``write``.
    """
    selection = selection or Selection()
    analysis = None
    try:
        source = _source(paths, selection, raw, progress)
        if verdict:
            progress("Analysing", 0, 1)
            analysis = analyze(paths)
        plan = source.plan
        writer = TraceWriter(write, base_ns=plan.base_ns)
        places = _write_ranks(source, writer, progress)
        source.finish(writer)
    except OSError as error:
        if error.filename is None:  # not from reading an input
            raise
        raise InputError(error.filename, error.strerror or str(error)) from error
    arrows = _write_arrows(plan, writer, places)
    if writer.out_of_range:
        plan.left_out.append(f"{counted(writer.out_of_range, 'event')}: times that are far from those of the rest")
    if writer.without_lane:
        plan.left_out.append(f"{counted(writer.without_lane, 'slice')}: too many on one track at once")
    extent = (plan.base_ns if writer.first_ns is None else writer.first_ns, writer.last_ns)
    write_annotations(writer, analysis, plan.clock, step_times=plan.step_times, extent=extent, left_out=plan.left_out)
    writer.close(_metadata(plan))
    return ExportResult(
        path="-",
        kind=plan.kind,
        ranks=list(plan.names),
        steps=plan.steps,
        events=writer.events,
        bytes=0,
        base_unix_ns=plan.base_ns,
        simulated=bool(plan.identity["simulated"]),
        clock=plan.clock,
        arrows=arrows,
        left_out=plan.left_out,
    )


def _source(paths: Sequence[Path | str], selection: Selection, raw: bool | None, progress: Progress) -> ExportSource:
    if not paths:
        raise InputError(os.curdir, "nothing to export: name a run directory or traces")
    places = [location(path) for path in paths]
    runs = [run for place in places if isinstance(place, Path) and (run := named_run(place)) is not None]
    if not runs:
        return TracesSource(places, selection, progress=progress)
    if len(paths) > 1:
        raise InputError(paths[1], f"cannot be exported together with the run {runs[0].path}; export one run at a time")
    return RunExportSource(runs[0], selection, raw=raw, progress=progress)


def _write_ranks(source: ExportSource, writer: TraceWriter, progress: Progress) -> dict[CollectiveKey, SlicePosition]:
    plan = source.plan
    waiting: dict[CollectiveKey, RankWait] = {}
    for match, waited in waiting_of(plan.matching.matches, plan.clocks):
        waiting.update({collective_key(rank, row): waited[rank] for rank, row in zip(match.ranks, match.records, strict=True)})
    places: dict[CollectiveKey, SlicePosition] = {}
    for order, (rank, name) in enumerate(plan.names.items()):
        progress("Writing", order, len(plan.names))
        pid = writer.process(name, order=order)
        source.write_rank(writer, pid, rank)
        places |= write_collectives(writer, pid, rank, plan.collectives[rank], waiting, clocks=plan.clocks)
        source.write_raw(writer, pid, rank)
    return places


def _write_arrows(plan: Plan, writer: TraceWriter, places: dict[CollectiveKey, SlicePosition]) -> int:
    arrows = find_arrows(plan.matching.matches, plan.clocks, places)
    if len(arrows) > MAX_ARROWS:
        plan.left_out.append(f"{len(arrows) - MAX_ARROWS:,} of {len(arrows):,} arrows, those of the shortest waits")
    written = 0
    for arrow in itertools.islice(arrows, MAX_ARROWS):
        begin, end = places[arrow.begin], places[arrow.end]
        written += writer.flow("waited for", "wait", (begin.thread, arrow.at_ns), (end.thread, arrow.at_ns))
    return written


def _metadata(plan: Plan) -> dict[str, object]:
    return {
        "schema": EXPORT_SCHEMA,
        **plan.identity,
        "kind": plan.kind,
        "ranks": len(plan.names),
        "steps": plan.steps,
        "base_unix_ns": str(plan.base_ns),
        "clock": clock_sentence(plan.clock),
        "clock_offsets": msgspec.to_builtins(plan.clock, str_keys=True),
        "left_out": plan.left_out,
    }
