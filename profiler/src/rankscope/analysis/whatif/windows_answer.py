"""Answer of the what-if analysis from the profiled steps of a run, or from Kineto traces of its ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import Match
from rankscope.analysis.collectives.clock import Clocks, consistent, fit_clocks
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.windows import Reduction, matchable, quality_of, reduce_file, reduce_trace, step_numbers
from rankscope.analysis.evidence.data_quality import quality_warnings
from rankscope.analysis.rank_traces import find_traces, least_ranks_of
from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.trace.columns import Trace, read_traces
from rankscope.analysis.trace.locations import Location, common_folder
from rankscope.analysis.trace.work import work_events
from rankscope.analysis.trace_job import TraceIdentity, identity_of, job_of
from rankscope.analysis.verdict.unnamed_communication import NO_COMMUNICATION
from rankscope.analysis.whatif.graph import CycleError, NodeDurations, Times, play, with_and_without
from rankscope.analysis.whatif.outcome import MAX_RANKS, Outcome, Terms, answer, insufficient, parts, slowest_count
from rankscope.analysis.whatif.result import WhatIf, WhatIfSource
from rankscope.analysis.whatif.window_graph import OWN, WindowGraph, build_window_graph
from rankscope.base.errors import InputError
from rankscope.runs.records import DeviceKind, StepBreakdown

_SECONDS: Final = 1e-9

_MAX_RECORDS: Final = 200_000
"""Maximum collectives that are played, summed over the ranks; beyond it only the last steps are."""

_FEW: Final = 3
"""Minimum profiled steps for an answer about a run: fewer may be atypical. Traces have no minimum: they are all there is."""

_MUCH: Final = 0.1
"""Maximum point-to-point transfers per matched collective: with more, the graph lacks too many edges."""

Chosen = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Profiled:
    """Records of profiled steps, by rank."""

    reductions: Mapping[int, Reduction]
    hosts: Mapping[int, str]
    clock_names: Mapping[int, str]
    """Ranks of one kernel have the same name."""
    world_size: int | None
    evidence: Literal["windows", "traces"]


def whatif_of_traces(paths: Sequence[Location], terms: Terms) -> WhatIf:
    """Answer from Kineto traces, one per rank; hours count their world size. Raises ``InputError``."""
    files, named = find_traces(paths)
    found: list[_TraceRecords] = []
    warnings: list[str] = []
    for file in files:
        try:
            found += [_records(trace, terms.communication_pattern) for trace in read_traces(file, whole=True)]
        except InputError as error:
            if file in named:
                raise
            warnings.append(f"left out: {error}")
    if not found:
        raise InputError(paths[0], f"no trace can be used; {warnings[0]}")
    job = job_of([trace.identity for trace in found], terms.cycle)
    traces = {rank: found[at] for rank, at in job.traces.items()}
    warnings += [*job.warnings, *quality_warnings({rank: trace.quality for rank, trace in traces.items()})]
    told = max((trace.identity.world_size for trace in traces.values() if trace.identity.world_size), default=0)
    least = max(trace.least_ranks for trace in traces.values())
    world_size = max(told, least) if told or least > len(traces) else None
    source = WhatIfSource(
        kind="traces",
        path=os.fspath(paths[0]) if len(paths) == 1 else common_folder(files),
        name=None,
        evidence="traces",
        ranks=len(traces),
        world_size=None if job.problem else world_size,
        steps=0,
        steps_left_out=0,
        warnings=warnings,
    )
    if job.reason is not None:
        return insufficient(source, job.reason)
    hosts = {rank: trace.host for rank, trace in traces.items() if trace.host}
    accelerated = any(trace.device_kind != "cpu" for trace in traces.values())
    terms = replace(terms, accelerated=accelerated, world_size=world_size or len(traces))

    def lacks(rank: int) -> str | None:
        return traces[rank].quality.reason or job.lacking.get(rank)

    reductions = {rank: trace.reduction for rank, trace in traces.items() if not lacks(rank)}
    if missing := [rank for rank in traces if rank not in reductions]:
        return insufficient(source, f"the trace of rank {missing[0]} {lacks(missing[0])}, so that waiting is not known")
    return whatif_of_profiled(Profiled(reductions, hosts, hosts, world_size, "traces"), source, terms)


@dataclass(frozen=True, slots=True)
class _TraceRecords:
    """What is kept of a trace."""

    identity: TraceIdentity
    least_ranks: int
    host: str | None
    device_kind: DeviceKind
    quality: DataQuality
    reduction: Reduction


def _records(trace: Trace, communication: re.Pattern[str] | None) -> _TraceRecords:
    """Reduce the annotated steps of a trace, or without any the whole file as one step. Raises ``InputError``."""
    events = work_events(trace, communication)
    quality = quality_of(trace, events)
    reduction = Reduction() if quality.problem else reduce_trace(trace, events)
    if not reduction.breakdowns:
        reduction = reduce_file(trace, events)
    identity = identity_of(trace, collectives=reduction.count, steps=len(step_numbers(trace)))
    return _TraceRecords(identity, least_ranks_of(trace, reduction), trace.host, trace.device_kind, quality, reduction)


def whatif_of_profiled(profiled: Profiled, source: WhatIfSource, terms: Terms) -> WhatIf:
    """Answer from the collectives of profiled steps that all ranks have."""
    windows = _whole_windows(profiled)
    seen = {row.step for reduction in profiled.reductions.values() for row in reduction.breakdowns}
    source = msgspec.structs.replace(source, evidence=profiled.evidence, steps_left_out=len(seen))
    if len(profiled.reductions) < 2:
        return insufficient(source, "one rank cannot show which rank waits for which; all ranks are needed")
    matching = match_collectives(matchable(profiled.reductions), world_size=profiled.world_size)
    clocks = fit_clocks(matching.matches, profiled.clock_names)
    matching = consistent(matching, clocks)
    if not matching.matches:
        silent = terms.accelerated and not any(reduction.collectives for reduction in profiled.reductions.values())
        return insufficient(source, NO_COMMUNICATION if silent else "no collective could be matched across the ranks")
    # Each is recorded twice: as a send and as a receive.
    transfers = sum(row.p2p for reduction in profiled.reductions.values() for row in reduction.collectives) // 2
    if transfers > _MUCH * len(matching.matches):
        return insufficient(
            source, f"{transfers} point-to-point transfers make ranks wait for each other, and are not in the graph"
        )
    graphs, impossible = _graphs(matching.matches, windows, clocks)
    if not graphs:
        return insufficient(source, "no step was profiled on all ranks, with collectives that could be matched")
    if profiled.evidence == "windows" and len(graphs) < _FEW:
        return insufficient(source, f"{len(graphs)} profiled steps that all ranks have; {_FEW} needed to speak for a run")
    ranks = len(windows[graphs[0].step])
    left = matching.unmatched + sum(matching.excluded.values()) + len(matching.directed)
    missing = (source.world_size or 0) - ranks
    warnings = [
        *source.warnings,
        *([f"{impossible} profiled steps left out: the order of their collectives contradicts itself"] if impossible else []),
        *([f"{left} collectives, unmatched or rooted, are not in the graph; time in them counts as own"] if left else []),
        *([f"{missing} of {source.world_size} ranks are not in it"] if missing > 0 else []),
    ]
    source = msgspec.structs.replace(
        source, steps=len(graphs), steps_left_out=len(seen) - len(graphs), ranks=ranks, warnings=warnings
    )
    return answer(_outcome(graphs, profiled.hosts), source, terms)


def _graphs(
    matches: Iterable[Match], windows: Mapping[int, Mapping[int, StepBreakdown]], clocks: Clocks
) -> tuple[list[WindowGraph], int]:
    """Return the graphs of the steps, ascending, and the number of steps left out as impossible."""
    by_step: dict[int, list[Match]] = {}
    for match in matches:
        by_step.setdefault(match.step, []).append(match)
    graphs: list[WindowGraph] = []
    records = 0
    impossible = 0
    for step in sorted(set(by_step) & set(windows), reverse=True):
        records += sum(len(match.ranks) for match in by_step[step])
        if graphs and records > _MAX_RECORDS:
            break
        try:
            graph = build_window_graph(step, by_step[step], windows[step], clocks, following=windows.get(step + 1))
        except CycleError:
            impossible += 1
            continue
        if graph is not None:
            graphs.append(graph)
    return graphs[::-1], impossible


def _whole_windows(profiled: Profiled) -> dict[int, dict[int, StepBreakdown]]:
    """Return step to the windows of all ranks, for the steps that every rank has in full."""
    found: dict[int, dict[int, StepBreakdown]] = {}
    for rank, reduction in profiled.reductions.items():
        for row in reduction.breakdowns:
            if not row.truncated:
                found.setdefault(row.step, {})[rank] = row
    ranks = sum(bool(reduction.breakdowns) for reduction in profiled.reductions.values())
    return {step: rows for step, rows in found.items() if len(rows) == ranks}


def _outcome(graphs: Sequence[WindowGraph], hosts: Mapping[int, str]) -> Outcome:
    ranks = sorted({int(rank) for graph in graphs for rank in np.unique(graph.ranks)})
    excess = {rank: sum(_excess(graph, graph.ranks == rank) for graph in graphs) for rank in ranks}
    order = sorted(ranks, key=lambda rank: (-excess[rank], rank))
    slowest = order[: slowest_count(len(ranks))]
    kinds = sorted({kind for graph in graphs for kind in graph.kinds}, key=lambda kind: (kind != OWN, kind))
    played = iter(np.concatenate([_played(graph, slowest, order[:MAX_RANKS], kinds) for graph in graphs], axis=1))
    actual, ideal, without_slowest = islice(played, 3)
    return Outcome(
        steps=np.array([graph.step for graph in graphs]),
        measured=np.array([graph.measured for graph in graphs]),
        actual=actual,
        ideal=ideal,
        ranks=parts(({"rank": rank, "host": hosts.get(rank)} for rank in order[:MAX_RANKS]), played),
        slowest=slowest,
        without_slowest=without_slowest,
        ops=parts(({"op": kind} for kind in kinds), played),
        seconds=_SECONDS,
    )


def _played(graph: WindowGraph, slowest: list[int], ranks: list[int], kinds: list[str]) -> Times:
    """Return the step times [scenarios, 1] in the order in which ``_outcome`` reads them."""
    everything = np.ones((len(graph.real), 1), dtype=bool)
    rank_of, kind_of = graph.ranks[:, None], np.array(graph.kinds)[:, None]
    masks = chain(
        [everything, ~everything, ~np.isin(rank_of, slowest)],
        with_and_without(rank_of == rank for rank in ranks),
        with_and_without(kind_of == kind for kind in kinds),
    )
    return play(graph.graph, NodeDurations(graph.real[:, None, None], graph.ideal), masks)


def _excess(graph: WindowGraph, chosen: Chosen) -> float:
    return float((graph.real - graph.ideal)[chosen].sum())
