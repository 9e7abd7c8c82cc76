"""Costs and verdict of Kineto traces, with the doubts that traces raise."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.communication import explained_share, longest_extent_us
from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.collectives.matched import MatchedCollectives
from rankscope.analysis.collectives.stages import stages_of_records
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.costs.window_costs import costs_of_windows
from rankscope.analysis.evidence.kernels.device_times import DeviceOwnTimes, DeviceTimes
from rankscope.analysis.evidence.kernels.unknown_kernels import RankKernels, kernels_with_waits
from rankscope.analysis.inference.doubts import MOST_COMMUNICATION, contradiction, impossible_pairs, incomplete_ranks
from rankscope.analysis.inference.judging.job_judgement import Judgement
from rankscope.analysis.inference.judging.moving_wait import MOST_WAITING, moving_waits
from rankscope.analysis.inference.profiled_steps import Profile
from rankscope.analysis.inference.reasons.diagnosis import Diagnosis
from rankscope.analysis.rank_traces import RankTrace
from rankscope.analysis.trace_job import Job
from rankscope.analysis.verdict.bottleneck import limit_of, shares_of
from rankscope.analysis.verdict.builders import Lack, MissingEvidence, Setting, among_compared, insufficient_verdict
from rankscope.analysis.verdict.job_verdict import Case, VerdictAndFindings, verdict_of, with_judgement
from rankscope.analysis.verdict.unnamed_communication import WAITS, with_unnamed_waits, without_communication
from rankscope.runs.records import StepBreakdown


def answer_of_traces(
    traces: Sequence[RankTrace],
    job: Job,
    matched: MatchedCollectives,
    costs: Costs | None,
    setting: Setting,
    *,
    explained: float | None,
    paths: str,
) -> VerdictAndFindings:
    """Return the verdict and the findings. ``explained``: share of the communication that is matched. ``paths``: for commands."""
    if job.reason is not None:
        return insufficient_verdict(MissingEvidence(job.reason, job.problem), setting), []
    if _lack_communication(traces):
        return without_communication(_kernels(traces), paths, setting), []
    answer = verdict_of(_case(traces, matched, costs, explained, setting))
    calm = len(traces) > 1 and answer[0].kind not in ("straggler", "insufficient_data")
    if calm and (unnamed := with_unnamed_waits(_kernels(traces), paths, setting)) is not None:
        return unnamed, []
    return answer


def profile_of_traces(traces: Sequence[RankTrace], matched: MatchedCollectives, hosts: Mapping[int, str]) -> Profile | None:
    """Return the traced steps for the judge; ``None`` where they show neither matched collectives nor times of devices."""
    incomplete = incomplete_ranks(matched.matching, {trace.rank for trace in traces})
    times = {} if incomplete else _device_times(traces, world_size_of_traces(traces))
    if not matched.matching.matches and not times:
        return None
    return Profile(matched, times, _compared(traces, matched.blame.steps), _extent_us(traces, matched), hosts=hosts)


def _compared(traces: Sequence[RankTrace], steps: Sequence[int]) -> dict[int, Sequence[StepBreakdown]]:
    """Return the window of each trace; that of the ``steps`` with matched collectives, where all traces have these whole.

    A trace that ends earlier than the others has less compute in its whole window.
    """
    wanted = set(steps)
    rows = {trace.rank: [row for row in trace.by_step if row.step in wanted and not row.truncated] for trace in traces}
    if not wanted or any(len(of_rank) < len(wanted) for of_rank in rows.values()):
        return {trace.rank: trace.reduction.breakdowns for trace in traces}
    return {rank: [_sum_of(of_rank)] for rank, of_rank in rows.items()}


def _sum_of(rows: Sequence[StepBreakdown]) -> StepBreakdown:
    """Return the window and the work of several steps together."""
    return msgspec.structs.replace(
        rows[0],
        window_us=sum(row.window_us for row in rows),
        compute_us=sum(row.compute_us for row in rows),
        exposed_memcpy_us=sum(row.exposed_memcpy_us for row in rows),
    )


def doubt_of_traces(traces: Sequence[RankTrace], matched: MatchedCollectives, profile: Profile | None) -> str | None:
    """Return why the waits in the traces do not show what slow ranks cost, as a clause; ``None`` if they do."""
    if (reason := _of_several_runs(traces, matched)) is not None:
        return reason
    if profile is None:
        return None
    straggler = profile.judge().straggler
    explained = explained_by(matched, {trace.rank: trace.reduction for trace in traces})
    if (doubt := contradiction(straggler, matched, profile.window_us, known_share=explained or 0.0)) is not None:
        return doubt
    calm = straggler is None and not _lack_communication(traces)
    return WAITS if calm and kernels_with_waits(_kernels(traces)) else None


def explained_by(matched: MatchedCollectives, reductions: Mapping[int, Reduction]) -> float | None:
    """Return the share of the communication time of some ranks that is in matched collectives; ``None`` without any."""
    communication_us = {rank: reduction.breakdowns[0].communication_us for rank, reduction in reductions.items()}
    return explained_share([matched.matching.matches, matched.matching.directed], communication_us)


def costs_of_traces(traces: Sequence[RankTrace], matched: MatchedCollectives, *, without: Collection[int] = ()) -> Costs | None:
    """Return the costs of the mean window of all whole traces ``without`` some ranks."""
    complete = [trace for trace in traces if not trace.defect and trace.rank not in without]
    has_matches = bool(matched.matching.matches)
    return costs_of_windows(
        {trace.rank: trace.reduction for trace in complete},
        matched.blame if has_matches else None,
        world_size=world_size_of_traces(traces),
        source="traces",
        unit="window",
        input_us=_input_us(complete),
        extent_us=_extent_us(traces, matched) if has_matches else None,
        without=without,
    )


def _extent_us(traces: Sequence[RankTrace], matched: MatchedCollectives) -> float:
    """Return the time from the first start on any rank to the last end on any. At least one trace must lack nothing."""
    windows = {trace.rank: trace.reduction.breakdowns[0] for trace in traces if not trace.defect}
    return longest_extent_us(windows, matched.matching.matches, matched.clocks)


def _input_us(traces: Sequence[RankTrace]) -> float | None:
    """Return the mean idle time of the devices while their hosts load data; ``None`` unless all traces show a data loader."""
    times = [trace.input_us for trace in traces if trace.input_us is not None]
    return float(np.mean(times)) if times and len(times) == len(traces) else None


def stated_world_size(traces: Sequence[RankTrace]) -> int | None:
    """Return the largest number of ranks that a trace states; ``None`` where none does."""
    return max((size for trace in traces if (size := trace.identity.world_size) is not None), default=None)


def world_size_of_traces(traces: Sequence[RankTrace]) -> int | None:
    """Return the number of ranks of the job, at least that of its process groups; ``None`` where neither shows other ranks."""
    stated, least = stated_world_size(traces), max(trace.least_ranks for trace in traces)
    if stated is None:
        return least if least > len(traces) else None
    return max(stated, least)


def _of_ranks(traces: Sequence[RankTrace]) -> str:
    """Return the number of ranks of the job for a sentence: "8", or "at least 8" where only process groups show it."""
    stated, world_size = stated_world_size(traces), world_size_of_traces(traces)
    return f"{world_size}" if stated == world_size else f"at least {world_size}"


def _case(
    traces: Sequence[RankTrace], matched: MatchedCollectives, costs: Costs | None, explained: float | None, setting: Setting
) -> Case:
    """Return the judgement on the ranks, with the doubts that traces raise."""
    world_size, matches = world_size_of_traces(traces), matched.matching.matches
    case = Case(setting, shares_of(costs, matched.figures))
    if (reason := _of_several_runs(traces, matched)) is not None:
        return replace(case, missing=MissingEvidence(reason, "several_jobs"))
    profile = profile_of_traces(traces, matched, setting.hosts)
    if profile is None:
        return replace(case, missing=_unmatched(traces, world_size))
    judgement = profile.judge()
    restriction = among_compared(len(traces), setting.world_size, "traces")
    if explained is not None and explained < MOST_COMMUNICATION and not judgement.is_tested:
        restriction += f" in the collectives that could be matched, which are {explained:.0%} of the communication"
    doubt = contradiction(judgement.straggler, matched, profile.window_us, known_share=explained or 0.0)
    in_turn = _waiting_in_turn(profile, judgement, case.shares)
    return with_judgement(
        replace(
            case,
            doubt=None if doubt is None else MissingEvidence(doubt, "damaged", lead=""),
            unproven=_too_damaged(traces),
            calm=f"{case.calm}{restriction}",
            diagnosis=in_turn,
            shares_without=None if in_turn is None else case.shares,
        ),
        judgement,
        partial(profile.describe, unit_seen="step" if setting.steps else "window", explained=explained),
        more=MissingEvidence("trace more steps", "short_recording", lead=""),
        shares_without=lambda ranks: shares_of(costs_of_traces(traces, matched, without=ranks)),
        unmatched=None if matches else _unmatched(traces, world_size),
    )


def _waiting_in_turn(profile: Profile, judgement: Judgement[DeviceOwnTimes], shares: Figures) -> Diagnosis | None:
    """Return the waiting for whichever rank is last; ``None`` below ``MOST_WAITING``, or where something else limits more.

    Compute is what a step is for: it is no limit beside waiting.
    """
    waiting, limit = shares.get("share.straggler_wait"), limit_of(shares)
    is_calm = judgement.straggler is None and not judgement.suspects and judgement.is_tested and len(judgement.groups) == 1
    if not is_calm or waiting is None or waiting.value < MOST_WAITING:
        return None
    if limit is not None and limit[0].kind != "compute_bound" and limit[1] >= waiting.value:
        return None
    times = judgement.groups[0].times
    moving = moving_waits(times)
    # Ranks also wait for each other where transfers take longer in the group of some of them, and once in a while.
    recurs = moving.certainty >= _SURE and 2 * moving.share >= waiting.value
    return profile.describe_moving(times, moving) if recurs else None


_SURE: Final = 0.95
"""Probability, by the spread over the steps, from which ranks wait for each other in most windows, and not in one of a few."""


def _of_several_runs(traces: Sequence[RankTrace], matched: MatchedCollectives) -> str | None:
    """Return why the traces are not of the same run; ``None`` where they may be.

    Communication on the CPU shows no process groups, so what is paired there may be of different groups.
    """
    on_device = any(row.stream is not None for trace in traces for row in trace.reduction.collectives)
    return impossible_pairs(matched.matching) if on_device else None


def _too_damaged(traces: Sequence[RankTrace]) -> MissingEvidence | None:
    damaged, steps = _damaged_steps(traces), len({number for trace in traces for number in trace.steps})
    if 2 * damaged <= steps:
        return None
    missing = f"{damaged} of {steps} steps lack device events of some rank, and in the others no rank is late"
    return MissingEvidence(missing, "damaged", lead="")


def _damaged_steps(traces: Sequence[RankTrace]) -> int:
    """Return the number of steps that lack device events of any rank."""
    damaged = [trace for trace in traces if trace.quality.damaged_steps]
    return len({row.step for trace in damaged for row in trace.device.by_step if row.truncated})


def _lack_communication(traces: Sequence[RankTrace]) -> bool:
    """Return whether a job of several ranks shows no communication at all, in whole traces of devices."""
    several = max(len(traces), world_size_of_traces(traces) or 0) > 1
    all_complete = all(trace.device_kind != "cpu" and not trace.defect for trace in traces)
    return (
        several
        and all_complete
        and not any(trace.reduction.collectives or trace.reduction.breakdowns[0].communication_us for trace in traces)
    )


def _kernels(traces: Sequence[RankTrace]) -> dict[int, RankKernels]:
    windows = {trace.rank: trace.reduction.breakdowns[0] for trace in traces}
    return {
        trace.rank: RankKernels(
            windows[trace.rank].window_us,
            windows[trace.rank].exposed_communication_us,
            trace.device.kernels,
            trace.own_streams,
        )
        for trace in traces
    }


def _device_times(traces: Sequence[RankTrace], world_size: int | None) -> dict[int, DeviceTimes]:
    """Return the times on the devices by rank; empty unless all ranks of the job have whole traces with steps."""
    if len(traces) < (world_size or 0) or any(trace.defect or not trace.device.by_step for trace in traces):
        return {}
    stages = stages_of_records({trace.rank: trace.reduction.collectives for trace in traces})
    return {trace.rank: msgspec.structs.replace(trace.device, stage=stages.get(trace.rank)) for trace in traces}


def _unmatched(traces: Sequence[RankTrace], world_size: int | None) -> MissingEvidence | None:
    """Return what is missing for matched collectives; ``None`` for a job of one rank, which has none to match."""
    unusable = [trace for trace in traces if trace.defect]
    lack_kind: Lack | None = None
    if unusable:
        lack_kind = "torn_trace" if any(trace.torn for trace in unusable) else unusable[0].quality.problem or "damaged"
    if len(unusable) == len(traces):
        first = f"rank {traces[0].rank} {traces[0].defect}"
        missing = f"the trace of {first}" if len(traces) == 1 else f"no trace can be used: that of {first}"
    elif (world_size or 1) == 1 and len(traces) == 1:
        return None
    elif len(traces) < (world_size or 1):
        lack_kind = None
        trace_text = f"the trace of 1 rank of {_of_ranks(traces)} cannot show which rank waits for which"
        if len(traces) > 1:
            trace_text = f"the traces of {len(traces)} ranks of {_of_ranks(traces)} cannot show who was last"
        missing = f"{trace_text}; give the traces of all ranks"
    elif unusable:
        missing = f"the trace of rank {unusable[0].rank} {unusable[0].defect}, and that rank may have been last"
    elif any(trace.quality.damaged_steps or trace.reduction.without_order for trace in traces):
        lack_kind = "damaged"
        missing = "device events are missing from the traces, so that no collective could be matched across the ranks"
    elif not any(trace.quality.device_events or trace.reduction.collectives for trace in traces):
        missing, lack_kind = "the traces show no device and no collective, only what the hosts did", "no_activity"
    else:
        missing, lack_kind = "no collective could be matched across the ranks", "all_ranks_given"
    return MissingEvidence(missing, lack_kind, lead="On the ranks at hand " if len(traces) > 1 else "On this rank ")
