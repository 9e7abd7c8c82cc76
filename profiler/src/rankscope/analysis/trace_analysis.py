"""Analysis of Kineto traces, one per rank."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.communication import communication_parts, explained_share, longest_extent_us
from rankscope.analysis.collectives.links import Fabric, ToldLink
from rankscope.analysis.collectives.matched import Matched, match_ranks
from rankscope.analysis.collectives.stages import stages_of_records
from rankscope.analysis.collectives.windows import Reduction, matchable
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.costs.window_costs import costs_of_windows
from rankscope.analysis.evidence.device_times import DeviceTimes
from rankscope.analysis.evidence.unknown_kernels import RankKernels
from rankscope.analysis.inference.doubts import MOST_COMMUNICATION, contradiction, incomplete_ranks
from rankscope.analysis.inference.profiled import Profile
from rankscope.analysis.parallel.workers import Engine
from rankscope.analysis.rank_traces import RankTrace, find_traces, read_ranks
from rankscope.analysis.report.assembly import assemble, attribution_of_blame, matching_result
from rankscope.analysis.report.ranks import rank_result
from rankscope.analysis.result.analysis import Analysis, Source
from rankscope.analysis.trace.locations import Location, common_folder
from rankscope.analysis.verdict.bottleneck import shares_of
from rankscope.analysis.verdict.builders import Lack, Missing, Setting, among, insufficient
from rankscope.analysis.verdict.job_verdict import Answer, Case, verdict_of, with_judgement
from rankscope.analysis.verdict.slow_links import with_slow_links
from rankscope.analysis.verdict.unnamed_communication import with_unnamed_waits, without_communication


def analyze_traces(
    paths: Sequence[Location],
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "USD",
    links: Sequence[ToldLink] = (),
    communication_pattern: re.Pattern[str] | None = None,
    cycle: int | None = None,
    detail: bool = False,
    engine: Engine,
) -> Analysis:
    """Analyse traces of one or many ranks; see ``engine.analyze``."""
    files, named = find_traces(paths)
    traces, job, warnings = read_ranks(files, named, communication_pattern, cycle=cycle, detail=detail, engine=engine)
    if communication_pattern is not None and not any(trace.pattern_found for trace in traces):
        warnings.append(f"the communication pattern {communication_pattern.pattern!r} is in no kernel's name")
    # A collective missing from a trace would look as if its rank took no part and another rank came last.
    # So a rank whose trace lacks a part counts as missing.
    whole = {trace.rank: trace.reduction for trace in traces if not trace.lacks and job.problem is None}
    told, world_size = (None, None) if job.problem else (_told_world_size(traces), world_size_of_traces(traces))
    if told is not None and told != world_size:
        warnings.append(f"the traces state {told} ranks, but their process groups are of a job of at least {world_size}")
    fabric = fabric_of(traces, links)
    matched = match_traces(traces, whole, fabric, world_size)
    matching, blame = matched.matching, matched.blame
    explained = explained_share(
        [matching.matches, matching.directed],
        {rank: reduction.breakdowns[0].communication_us for rank, reduction in whole.items()},
    )
    collectives = matching_result(matched, fabric, explained=explained)
    if matching.matches and explained is not None and explained < MOST_COMMUNICATION:
        warnings.append(_UNEXPLAINED.format(share=explained))
    windows = {trace.rank: trace.reduction.breakdowns[0] for trace in traces}
    parts = communication_parts(
        matching.matches, {rank: (window.communication_us, window.overlap_us) for rank, window in windows.items()}
    )
    costs = None if job.problem else _costs(traces, matched)
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
    answer: Answer
    if job.reason is not None:
        answer = insufficient(Missing(job.reason, job.problem), setting), []
    elif _lack_communication(traces):
        answer = without_communication(_kernels(traces), _quoted(paths, files), setting), []
    else:
        answer = verdict_of(_case(traces, matched, costs, explained, setting))
        calm = len(traces) > 1 and answer[0].kind not in ("straggler", "insufficient_data")
        if calm and (unnamed := with_unnamed_waits(_kernels(traces), _quoted(paths, files), setting)) is not None:
            answer = unnamed, []
    answer = with_slow_links(*answer, collectives.by_op, {rank: reduction.breakdowns for rank, reduction in whole.items()})
    return assemble(
        Source(
            kind="traces",
            path=os.fspath(paths[0]) if len(paths) == 1 else common_folder(files),
            ranks=len(traces),
            world_size=world_size,
            steps=max(1, len(steps)),
            coverage=None if job.problem else _coverage(traces, len(files) - job.other_cycles, steps),
            simulated=False,
            world_size_is_least=world_size is not None and told != world_size,
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
                clock=matched.clocks.found.get(trace.rank),
                truncated=trace.lacks is not None,
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
        kernels=[row for reduction in whole.values() for row in reduction.kernels],
    )


def match_traces(traces: Sequence[RankTrace], whole: Mapping[int, Reduction], fabric: Fabric, world_size: int | None) -> Matched:
    """Match the collectives of the ``whole`` traces; of the others, waits are not known."""
    matched = match_ranks(
        matchable(whole),
        ranks=[trace.rank for trace in traces],
        clock_names={trace.rank: trace.host for trace in traces if trace.host},
        machines=fabric.hosts,
        world_size=max(len(traces), world_size or 0),
        source="traces",
    )
    return _with_uncalled(matched, max((reduction.uncalled for reduction in whole.values()), default=0))


def profile_of_traces(traces: Sequence[RankTrace], matched: Matched, hosts: Mapping[int, str]) -> Profile | None:
    """Return the traced steps for the judge; ``None`` where they show neither matched collectives nor times of devices."""
    incomplete = incomplete_ranks(matched.matching, {trace.rank for trace in traces})
    times = {} if incomplete else _device_times(traces, world_size_of_traces(traces))
    if not matched.matching.matches and not times:
        return None
    breakdowns = {trace.rank: trace.reduction.breakdowns for trace in traces}
    return Profile(matched, times, breakdowns, _extent_us(traces, matched), hosts=hosts)


def _costs(traces: Sequence[RankTrace], matched: Matched, *, without: Collection[int] = ()) -> Costs | None:
    """Return the costs of the mean window of all whole traces ``without`` some ranks."""
    those = [trace for trace in traces if not trace.lacks and trace.rank not in without]
    has_matches = bool(matched.matching.matches)
    return costs_of_windows(
        {trace.rank: trace.reduction for trace in those},
        matched.blame if has_matches else None,
        world_size=world_size_of_traces(traces),
        source="traces",
        unit="window",
        input_us=_input_us(those),
        extent_us=_extent_us(traces, matched) if has_matches else None,
        without=without,
    )


_UNEXPLAINED: Final = (
    "matched collectives explain {share:.0%} of the communication time: waits in the rest are charged to no rank, and a rank "
    "that is late only there is not named. Trace the same whole steps on all ranks; --format json shows why the others did not "
    "match (collectives.unmatched_by, collectives.excluded)"
)


def _with_uncalled(matched: Matched, uncalled: int) -> Matched:
    """Return the matching with the collectives whose calls are in no trace counted as unmatched."""
    if not uncalled:
        return matched
    matching = matched.matching
    by = dict(sorted((Counter(matching.unmatched_by) + Counter(call_missing=uncalled)).items()))
    counted_too = msgspec.structs.replace(matching, unmatched=matching.unmatched + uncalled, unmatched_by=by)
    return msgspec.structs.replace(matched, matching=counted_too)


def _extent_us(traces: Sequence[RankTrace], matched: Matched) -> float:
    """Return the time from the first start on any rank to the last end on any. At least one trace must lack nothing."""
    windows = {trace.rank: trace.reduction.breakdowns[0] for trace in traces if not trace.lacks}
    return longest_extent_us(windows, matched.matching.matches, matched.clocks)


def _input_us(traces: Sequence[RankTrace]) -> float | None:
    """Return the mean idle time of the devices while their hosts load data; ``None`` unless all traces show a data loader."""
    known = [trace.input_us for trace in traces if trace.input_us is not None]
    return float(np.mean(known)) if known and len(known) == len(traces) else None


def fabric_of(traces: Sequence[RankTrace], links: Sequence[ToldLink]) -> Fabric:
    """Return the hosts, GPUs and links of the ranks of ``traces``."""
    seen = {trace.host: len(trace.gpu_names) for trace in traces if trace.host}
    ranks = Counter(trace.host for trace in traces)
    return Fabric(
        # If a host name has more ranks than GPUs, several machines share it.
        hosts={trace.rank: trace.host for trace in traces if trace.host and not 0 < seen[trace.host] < ranks[trace.host]},
        # If all GPUs of the host are of one model, it does not matter which one the rank used.
        gpu_names={trace.rank: trace.gpu_names[0] for trace in traces if len(set(trace.gpu_names)) == 1},
        gpus_on_host=seen,
        told=links,
    )


def _told_world_size(traces: Sequence[RankTrace]) -> int | None:
    return max((trace.world_size for trace in traces if trace.world_size is not None), default=None)


def world_size_of_traces(traces: Sequence[RankTrace]) -> int | None:
    """Return the number of ranks of the job, at least that of its process groups; ``None`` where neither shows other ranks."""
    told, least = _told_world_size(traces), max(trace.least_ranks for trace in traces)
    if told is None:
        return least if least > len(traces) else None
    return max(told, least)


def _of_ranks(traces: Sequence[RankTrace]) -> str:
    """Return the number of ranks of the job for a sentence: "8", or "at least 8" where only process groups show it."""
    told, world_size = _told_world_size(traces), world_size_of_traces(traces)
    return f"{world_size}" if told == world_size else f"at least {world_size}"


def _coverage(traces: Sequence[RankTrace], files: int, steps: Sequence[int]) -> float:
    """Return the share of the job's steps that is seen. ``files``: number of files, of which some may be unreadable."""
    expected = max(world_size_of_traces(traces) or files, len(traces))
    # The missing part of a torn trace is of unknown length, so its last step counts half.
    seen = sum(_whole_steps(trace) for trace in traces)
    return seen / (expected * max(1, len(steps)))


def _whole_steps(trace: RankTrace) -> float:
    """Return the number of steps that a trace shows; one without annotations is one step."""
    if trace.quality.problem is not None or trace.lacking is not None:
        return 0
    return max(1, len(set(trace.steps))) - trace.quality.damaged_steps - (0.5 if trace.torn else 0)


def _case(traces: Sequence[RankTrace], matched: Matched, costs: Costs | None, explained: float | None, setting: Setting) -> Case:
    """Return the judgement on the ranks, with the doubts that traces raise."""
    world_size, matches = world_size_of_traces(traces), matched.matching.matches
    case = Case(setting, shares_of(costs, matched.figures))
    profile = profile_of_traces(traces, matched, setting.hosts)
    if profile is None:
        return replace(case, missing=_unmatched(traces, world_size))
    judgement = profile.judge()
    restriction = among(len(traces), setting.world_size, "traces")
    if explained is not None and explained < MOST_COMMUNICATION and not judgement.is_tested:
        restriction += f" in the collectives that could be matched, which are {explained:.0%} of the communication"
    doubt = contradiction(judgement.straggler, matched, profile.window_us, known_share=explained or 0.0)
    return with_judgement(
        replace(
            case,
            doubt=None if doubt is None else Missing(doubt, "damaged", lead=""),
            unproven=_too_damaged(traces),
            calm=f"{case.calm}{restriction}",
        ),
        judgement,
        partial(profile.describe, seen="step" if setting.steps else "window", explained=explained),
        more=Missing("trace more steps", lead=""),
        shares_without=lambda ranks: shares_of(_costs(traces, matched, without=ranks)),
        unmatched=None if matches else _unmatched(traces, world_size),
    )


def _too_damaged(traces: Sequence[RankTrace]) -> Missing | None:
    damaged, steps = _damaged_steps(traces), len({number for trace in traces for number in trace.steps})
    if 2 * damaged <= steps:
        return None
    missing = f"{damaged} of {steps} steps lack device events of some rank, and in the others no rank is late"
    return Missing(missing, "damaged", lead="")


def _damaged_steps(traces: Sequence[RankTrace]) -> int:
    """Return the number of steps that lack device events of any rank."""
    lacking = [trace for trace in traces if trace.quality.damaged_steps]
    return len({row.step for trace in lacking for row in trace.device.by_step if row.truncated})


def _lack_communication(traces: Sequence[RankTrace]) -> bool:
    """Return whether a job of several ranks shows no communication at all, in whole traces of devices."""
    several = max(len(traces), world_size_of_traces(traces) or 0) > 1
    whole = all(trace.device_kind != "cpu" and not trace.lacks for trace in traces)
    return (
        several
        and whole
        and not any(trace.reduction.collectives or trace.reduction.breakdowns[0].communication_us for trace in traces)
    )


def _kernels(traces: Sequence[RankTrace]) -> dict[int, RankKernels]:
    return {
        trace.rank: RankKernels(trace.reduction.breakdowns[0].window_us, trace.device.kernels, trace.own_streams)
        for trace in traces
    }


def _quoted(paths: Sequence[Location], files: Sequence[Location]) -> str:
    """Return the paths of the traces for a command line: as the user named them, or their folder if they are many."""
    named = [os.fspath(path) for path in paths] if len(paths) <= _MOST_PATHS else [common_folder(files)]
    return shlex.join(named)


_MOST_PATHS: Final = 3


def _device_times(traces: Sequence[RankTrace], world_size: int | None) -> dict[int, DeviceTimes]:
    """Return the times on the devices by rank; empty unless all ranks of the job have whole traces with steps."""
    if len(traces) < (world_size or 0) or any(trace.lacks or not trace.device.by_step for trace in traces):
        return {}
    stages = stages_of_records({trace.rank: trace.reduction.collectives for trace in traces})
    return {trace.rank: msgspec.structs.replace(trace.device, stage=stages.get(trace.rank)) for trace in traces}


def _unmatched(traces: Sequence[RankTrace], world_size: int | None) -> Missing | None:
    """Return what is missing for matched collectives; ``None`` for a job of one rank, which has none to match."""
    lacking = [trace for trace in traces if trace.lacks]
    lack: Lack | None = None
    if lacking:
        lack = "torn_trace" if any(trace.torn for trace in lacking) else lacking[0].quality.problem or "damaged"
    if len(lacking) == len(traces):
        first = f"rank {traces[0].rank} {traces[0].lacks}"
        missing = f"the trace of {first}" if len(traces) == 1 else f"no trace can be used: that of {first}"
    elif (world_size or 1) == 1 and len(traces) == 1:
        return None
    elif len(traces) < (world_size or 1):
        lack = None
        some = f"the trace of 1 rank of {_of_ranks(traces)} cannot show which rank waits for which"
        if len(traces) > 1:
            some = f"the traces of {len(traces)} ranks of {_of_ranks(traces)} cannot show who was last"
        missing = f"{some}; give the traces of all ranks"
    elif lacking:
        missing = f"the trace of rank {lacking[0].rank} {lacking[0].lacks}, and that rank may have been last"
    elif any(trace.quality.damaged_steps or trace.reduction.without_order for trace in traces):
        lack = "damaged"
        missing = "device events are missing from the traces, so that no collective could be matched across the ranks"
    elif not any(trace.quality.device_events or trace.reduction.collectives for trace in traces):
        missing, lack = "the traces show no device and no collective, only what the hosts did", "no_activity"
    else:
        missing = "no collective could be matched across the ranks"
    return Missing(missing, lack, lead="On the ranks at hand " if len(traces) > 1 else "On this rank ")
