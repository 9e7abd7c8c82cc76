"""Answer of the what-if analysis from the profiled steps of a run, or from Kineto traces of its ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import Match
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.matched import MatchedCollectives
from rankscope.analysis.inference.judging.healing import rows_by_host
from rankscope.analysis.inference.profiled_steps import Profile
from rankscope.analysis.parallel.workers import Engine
from rankscope.analysis.rank_traces import find_traces, read_ranks
from rankscope.analysis.trace.locations import Location, common_folder
from rankscope.analysis.trace_analysis import fabric_of, match_traces
from rankscope.analysis.trace_case import doubt_of_traces, profile_of_traces, world_size_of_traces
from rankscope.analysis.verdict.unnamed_communication import NO_COMMUNICATION
from rankscope.analysis.whatif.graph import CycleError, NodeDurations, Times, play, with_and_without
from rankscope.analysis.whatif.healed import HealingSavings, healed_of_profile
from rankscope.analysis.whatif.outcome import MAX_RANKS, CostTerms, Outcome, answer, insufficient, parts, slowest_count
from rankscope.analysis.whatif.whatif_result import WhatIf, WhatIfSource
from rankscope.analysis.whatif.window_graph import OWN, WindowGraph, build_window_graph
from rankscope.runs.records import StepBreakdown

_SECONDS: Final = 1e-9

_MAX_RECORDS: Final = 200_000
"""Maximum collectives that are played, summed over the ranks; beyond it only the last steps are."""

_LEAST_STEPS: Final = 3
"""Minimum profiled steps for an answer about a run: fewer may be atypical. Traces have no minimum: they are all there is."""

_MOST_UNMATCHED_SHARE: Final = 0.1
"""Maximum point-to-point transfers per matched collective: with more, the graph lacks too many edges."""

Chosen = NDArray[np.bool_]


def whatif_of_traces(paths: Sequence[Location], terms: CostTerms, engine: Engine) -> WhatIf:
    """Answer from Kineto traces, one per rank; hours count their world size. Raises ``InputError``."""
    files, explicit = find_traces(paths)
    traces, job, warnings = read_ranks(
        files, explicit, terms.communication_pattern, cycle=terms.cycle, complete_only=True, engine=engine
    )
    world_size = None if job.problem else world_size_of_traces(traces)
    source = WhatIfSource(
        kind="traces",
        path=os.fspath(paths[0]) if len(paths) == 1 else common_folder(files),
        name=None,
        evidence="traces",
        ranks=len(traces),
        world_size=world_size,
        steps=0,
        steps_left_out=0,
        warnings=warnings,
    )
    if job.reason is not None:
        return insufficient(source, job.reason)
    if unusable := [trace for trace in traces if trace.defect]:
        return insufficient(source, f"the trace of rank {unusable[0].rank} {unusable[0].defect}, so that waiting is not known")
    hosts = {trace.rank: trace.host for trace in traces if trace.host}
    accelerated = any(trace.device_kind != "cpu" for trace in traces)
    reductions = {trace.rank: trace.reduction for trace in traces}
    matched = match_traces(traces, reductions, fabric_of(traces, ()), world_size)
    windows = {trace.rank: trace.by_step or trace.reduction.breakdowns for trace in traces}
    terms = replace(terms, accelerated=accelerated, world_size=world_size or len(traces))
    profile = profile_of_traces(traces, matched, hosts)
    if (doubt := doubt_of_traces(traces, matched, profile)) is not None:
        return insufficient(source, doubt)
    return whatif_of_windows(windows, matched, profile, source, terms)


def whatif_of_windows(
    windows: Mapping[int, Sequence[StepBreakdown]],
    matched: MatchedCollectives,
    profile: Profile | None,
    source: WhatIfSource,
    terms: CostTerms,
) -> WhatIf:
    """Answer from the collectives of profiled steps that all ranks have.

    ``windows``: breakdowns of the steps of each rank. ``profile``: of the same steps.
    """
    complete_windows = _whole_windows(windows)
    steps_seen = {row.step for rows in windows.values() for row in rows}
    evidence: Literal["windows", "traces"] = "traces" if source.kind == "traces" else "windows"
    source = msgspec.structs.replace(source, evidence=evidence, steps_left_out=len(steps_seen))
    if len(windows) < 2:
        return insufficient(source, "one rank cannot show which rank waits for which; all ranks are needed")
    matching = matched.matching
    if not matching.matches or profile is None:
        silent = terms.accelerated and not any(matched.collectives.values())
        return insufficient(source, NO_COMMUNICATION if silent else "no collective could be matched across the ranks")
    # Each is recorded twice: as a send and as a receive.
    transfers = sum(row.p2p for rows in matched.collectives.values() for row in rows) // 2
    if transfers > _MOST_UNMATCHED_SHARE * len(matching.matches):
        return insufficient(
            source, f"{transfers} point-to-point transfers make ranks wait for each other, and are not in the graph"
        )
    graphs, impossible = _graphs(matching.matches, complete_windows, matched.clocks)
    if not graphs:
        return insufficient(source, "no step was profiled on all ranks, with collectives that could be matched")
    if evidence == "windows" and len(graphs) < _LEAST_STEPS:
        return insufficient(source, f"{len(graphs)} profiled steps that all ranks have; {_LEAST_STEPS} needed to speak for a run")
    ranks = len(complete_windows[graphs[0].step])
    unmatched = matching.unmatched + sum(matching.excluded.values()) + len(matching.directed)
    missing = (source.world_size or 0) - ranks
    warnings = [
        *source.warnings,
        *([f"{impossible} profiled steps left out: the order of their collectives contradicts itself"] if impossible else []),
        *(
            [f"{unmatched} collectives, unmatched or rooted, are not in the graph; time in them counts as own"]
            if unmatched
            else []
        ),
        *([f"{missing} of {source.world_size} ranks are not in it"] if missing > 0 else []),
    ]
    source = msgspec.structs.replace(
        source, steps=len(graphs), steps_left_out=len(steps_seen) - len(graphs), ranks=ranks, warnings=warnings
    )
    return answer(_outcome(graphs, profile.hosts, healed_of_profile(profile, len(steps_seen))), source, terms)


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


def _whole_windows(windows: Mapping[int, Sequence[StepBreakdown]]) -> dict[int, dict[int, StepBreakdown]]:
    """Return step to the windows of all ranks, for the steps that every rank has in full."""
    complete_windows: dict[int, dict[int, StepBreakdown]] = {}
    for rank, rows in windows.items():
        for row in rows:
            if not row.truncated:
                complete_windows.setdefault(row.step, {})[rank] = row
    ranks = sum(map(bool, windows.values()))
    return {step: rows for step, rows in complete_windows.items() if len(rows) == ranks}


def _outcome(graphs: Sequence[WindowGraph], hosts: Mapping[int, str], healed: Sequence[HealingSavings]) -> Outcome:
    """Play the ``graphs``. ``healed``: what ranks save, where that is known of all of them."""
    ranks = sorted({int(rank) for graph in graphs for rank in np.unique(graph.ranks)})
    excess = {rank: sum(float((graph.real - graph.ideal)[graph.ranks == rank].sum()) for graph in graphs) for rank in ranks}
    order = sorted(ranks, key=lambda rank: (-excess[rank], rank))
    slowest = order[: slowest_count(len(ranks))]
    kinds = sorted({kind for graph in graphs for kind in graph.kinds}, key=lambda kind: (kind != OWN, kind))
    of_hosts = _ranks_of_hosts(ranks, hosts, healed)
    units = [[rank] for rank in order[:MAX_RANKS]] + list(of_hosts.values())
    played = iter(np.concatenate([_played(graph, slowest, units, kinds) for graph in graphs], axis=1))
    actual, ideal, without_slowest = islice(played, 3)
    of_ranks = parts(({"rank": rank, "host": hosts.get(rank)} for rank in order[:MAX_RANKS]), played)
    by_host = parts(({"host": host, "ranks": members} for host, members in of_hosts.items()), played)
    ops = parts(({"op": kind} for kind in kinds), played)
    group_of = {rank: group for group in healed for rank in group.ranks}
    if is_judged := all(rank in group_of for rank in ranks):

        def without(members: Sequence[int]) -> Times:
            groups = {id(group_of[rank]): group_of[rank] for rank in members}.values()
            saved_us = max(group.saves_us([rank for rank in members if group_of[rank] is group]) for group in groups)
            times: Times = actual - saved_us * 1000
            return times

        of_ranks = [replace(part, without=without([part.key["rank"]])) for part in of_ranks]
        by_host = [replace(part, without=without(part.key["ranks"])) for part in by_host]
        without_slowest = without(slowest)
    return Outcome(
        steps=np.array([graph.step for graph in graphs]),
        measured=np.array([graph.measured for graph in graphs]),
        actual=actual,
        ideal=ideal,
        ranks=of_ranks,
        hosts=by_host,
        slowest=slowest,
        without_slowest=without_slowest,
        savings_of="verdict" if is_judged else "graph",
        ops=ops,
        seconds=_SECONDS,
    )


def _ranks_of_hosts(ranks: Sequence[int], hosts: Mapping[int, str], healed: Sequence[HealingSavings]) -> dict[str, list[int]]:
    """Return the ranks of each host of several: those that take part in its slowness, where the steps are judged."""
    if len(healed) == 1:
        return dict(islice(healed[0].hosts.items(), MAX_RANKS))
    every = rows_by_host(ranks, hosts)
    return {host: [ranks[row] for row in every[host]] for host in islice(every, MAX_RANKS)}


def _played(graph: WindowGraph, slowest: Sequence[int], units: Sequence[Sequence[int]], kinds: Sequence[str]) -> Times:
    """Return the step times [scenarios, 1] in the order in which ``_outcome`` reads them; ``units``: ranks."""
    everything = np.ones((len(graph.real), 1), dtype=bool)
    rank_of, kind_of = graph.ranks[:, None], np.array(graph.kinds)[:, None]
    masks = chain(
        [everything, ~everything, ~np.isin(rank_of, slowest)],
        with_and_without(np.isin(rank_of, members) for members in units),
        with_and_without(kind_of == kind for kind in kinds),
    )
    return play(graph.graph, NodeDurations(graph.real[:, None, None], graph.ideal), masks)
