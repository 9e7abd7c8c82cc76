"""Analysis of Kineto traces, one per rank."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from rankscope.analysis.collectives.communication import communication_parts
from rankscope.analysis.collectives.matched import MatchedCollectives, match_ranks
from rankscope.analysis.collectives.traffic.links import Fabric, StatedLink
from rankscope.analysis.collectives.windows import Reduction, matchable
from rankscope.analysis.inference.doubts import MOST_COMMUNICATION
from rankscope.analysis.parallel.workers import Engine
from rankscope.analysis.rank_traces import RankTrace, find_traces, read_ranks
from rankscope.analysis.report.assembly import assemble, attribution_of_blame, matching_result
from rankscope.analysis.report.ranks import rank_result
from rankscope.analysis.result.analysis import Analysis, Source
from rankscope.analysis.trace.locations import Location, common_folder
from rankscope.analysis.trace_case import (
    answer_of_traces,
    costs_of_traces,
    explained_by,
    stated_world_size,
    world_size_of_traces,
)
from rankscope.analysis.verdict.builders import Setting
from rankscope.analysis.verdict.slow_links import with_slow_links


def analyze_traces(
    paths: Sequence[Location],
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "USD",
    links: Sequence[StatedLink] = (),
    communication_pattern: re.Pattern[str] | None = None,
    cycle: int | None = None,
    detail: bool = False,
    engine: Engine,
) -> Analysis:
    """Analyse traces of one or many ranks; see ``engine.analyze``."""
    files, explicit = find_traces(paths)
    traces, job, warnings = read_ranks(files, explicit, communication_pattern, cycle=cycle, detail=detail, engine=engine)
    if communication_pattern is not None and not any(trace.pattern_found for trace in traces):
        warnings.append(f"the communication pattern {communication_pattern.pattern!r} is in no kernel's name")
    # A collective missing from a trace would look as if its rank took no part and another rank came last.
    # So a rank whose trace lacks a part counts as missing.
    complete = {trace.rank: trace.reduction for trace in traces if not trace.defect and job.problem is None}
    stated, world_size = (None, None) if job.problem else (stated_world_size(traces), world_size_of_traces(traces))
    if stated is not None and stated != world_size:
        warnings.append(f"the traces state {stated} ranks, but their process groups are of a job of at least {world_size}")
    fabric = fabric_of(traces, links)
    matched = match_traces(traces, complete, fabric, world_size)
    matching, blame = matched.matching, matched.blame
    explained = explained_by(matched, complete)
    collectives = matching_result(matched, fabric, explained=explained)
    if matching.matches and explained is not None and explained < MOST_COMMUNICATION:
        warnings.append(_UNEXPLAINED.format(share=explained))
    windows = {trace.rank: trace.reduction.breakdowns[0] for trace in traces}
    parts = communication_parts(
        matching.matches, {rank: (window.communication_us, window.overlap_us) for rank, window in windows.items()}
    )
    costs = None if job.problem else costs_of_traces(traces, matched)
    steps = sorted({number for trace in traces for number in trace.steps})
    setting = Setting(
        source="traces",
        world_size=world_size or len(traces),
        steps=(steps[0], steps[-1] + 1) if steps else None,
        step_count=1,
        unit="window",
        accelerated=any(trace.device_kind != "cpu" for trace in traces),
        hosts={trace.rank: trace.host for trace in traces if trace.host},
        price_per_gpu_hour=price_per_gpu_hour,
        currency=currency,
    )
    answer = answer_of_traces(traces, job, matched, costs, setting, explained=explained, paths=_quoted(paths, files))
    answer = with_slow_links(*answer, collectives.by_op, {rank: reduction.breakdowns for rank, reduction in complete.items()})
    return assemble(
        Source(
            kind="traces",
            path=os.fspath(paths[0]) if len(paths) == 1 else common_folder(files),
            ranks=len(traces),
            world_size=world_size,
            steps=max(1, len(steps)),
            coverage=None if job.problem else _coverage(traces, len(files) - job.other_files, steps),
            simulated=False,
            world_size_is_least=world_size is not None and stated != world_size,
            is_one_job=job.problem is None,
            cycle=job.cycle,
            cycles=job.cycles,
            warnings=warnings,
        ),
        [
            rank_result(
                trace.rank,
                breakdowns=trace.reduction.breakdowns,
                blame=blame,
                steps=max(1, len(trace.steps)),
                host=trace.host,
                device_kind=trace.device_kind,
                communication_parts=parts.get(trace.rank),
                detail=trace.detail,
                clock=matched.clocks.rank_clocks.get(trace.rank),
                truncated=trace.defect is not None,
                data_quality=trace.quality,
            )
            for trace in traces
        ],
        answer,
        setting,
        matched=matched,
        collectives=collectives,
        attribution=attribution_of_blame(blame, "traces"),
        costs=costs,
        kernels=[row for reduction in complete.values() for row in reduction.kernels],
    )


def match_traces(
    traces: Sequence[RankTrace], complete: Mapping[int, Reduction], fabric: Fabric, world_size: int | None
) -> MatchedCollectives:
    """Match the collectives of the ``complete`` traces; of the others, waits are not known."""
    matched = match_ranks(
        matchable(complete),
        ranks=[trace.rank for trace in traces],
        clock_names={trace.rank: trace.host for trace in traces if trace.host},
        machines=fabric.hosts,
        world_size=max(len(traces), world_size or 0),
        source="traces",
    )
    return _with_uncalled(matched, max((reduction.uncalled for reduction in complete.values()), default=0))


_UNEXPLAINED: Final = (
    "matched collectives explain {share:.0%} of the communication time: waits in the rest are charged to no rank, and a rank "
    "that is late only there is not named. Trace the same whole steps on all ranks; --format json shows why the others did not "
    "match (collectives.unmatched_by, collectives.excluded)"
)


def _with_uncalled(matched: MatchedCollectives, uncalled: int) -> MatchedCollectives:
    """Return the matching with the collectives whose calls are in no trace counted as unmatched."""
    if not uncalled:
        return matched
    matching = matched.matching
    by = dict(sorted((Counter(matching.unmatched_by) + Counter(call_missing=uncalled)).items()))
    counted_too = msgspec.structs.replace(matching, unmatched=matching.unmatched + uncalled, unmatched_by=by)
    return msgspec.structs.replace(matched, matching=counted_too)


def fabric_of(traces: Sequence[RankTrace], links: Sequence[StatedLink]) -> Fabric:
    """Return the hosts, GPUs and links of the ranks of ``traces``."""
    gpus_of_host = {trace.host: len(trace.gpu_names) for trace in traces if trace.host}
    ranks = Counter(trace.host for trace in traces)
    return Fabric(
        # If a host name has more ranks than GPUs, several machines share it.
        hosts={trace.rank: trace.host for trace in traces if trace.host and not 0 < gpus_of_host[trace.host] < ranks[trace.host]},
        # If all GPUs of the host are of one model, it does not matter which one the rank used.
        gpu_names={trace.rank: trace.gpu_names[0] for trace in traces if len(set(trace.gpu_names)) == 1},
        gpus_on_host=gpus_of_host,
        stated_links=links,
    )


def _coverage(traces: Sequence[RankTrace], files: int, steps: Sequence[int]) -> float:
    """Return the share of the job's steps that is seen. ``files``: number of traces, of which some may be unreadable."""
    expected = max(world_size_of_traces(traces) or files, len(traces))
    # The missing part of a torn trace is of unknown length, so its last step counts half.
    step_count = sum(_whole_steps(trace) for trace in traces)
    return step_count / (expected * max(1, len(steps)))


def _whole_steps(trace: RankTrace) -> float:
    """Return the number of steps that a trace shows; one without annotations is one step."""
    if trace.quality.problem is not None or trace.difference is not None:
        return 0
    return max(1, len(set(trace.steps))) - trace.quality.damaged_steps - (0.5 if trace.torn else 0)


def _quoted(paths: Sequence[Location], files: Sequence[Location]) -> str:
    """Return the paths of the traces for a command line: as the user named them, or their folder if they are many."""
    named = [os.fspath(path) for path in paths] if len(paths) <= _MOST_PATHS else [common_folder(files)]
    return shlex.join(named)


_MOST_PATHS: Final = 3
