"""Verdict on a run: from step records first, from durations of collectives or profiled windows where these cannot decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.evidence.compared import MINIMUM_STEPS, StepOwnTimes
from rankscope.analysis.evidence.peers import peer_groups, stage_of
from rankscope.analysis.evidence.typical import WARM_UP
from rankscope.analysis.inference.judging.job_judgement import Bound, GroupJudgement, Judgement, judge
from rankscope.analysis.inference.judging.moving_wait import MOST_WAITING, MovingWait, moving_waits
from rankscope.analysis.inference.judging.rank_judge import LEVEL, SuspectedRanks
from rankscope.analysis.inference.judging.significance import LIMIT
from rankscope.analysis.inference.judging.slow_ranks import MINIMUM_EFFECT
from rankscope.analysis.inference.pipeline_bound import saved_by_schedule_us
from rankscope.analysis.inference.profiled_steps import DeviceStraggler, Profile, profile_of_windows
from rankscope.analysis.inference.reasons.diagnosis import Diagnosis
from rankscope.analysis.inference.reasons.hardware_reason import explain_diagnosis
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.result.text import counted
from rankscope.analysis.verdict.bottleneck import LimitRow, limit_of, shares_of
from rankscope.analysis.verdict.bubble import bubble_explained
from rankscope.analysis.verdict.builders import MissingEvidence, Setting, among_compared, finding_of_moving, limit_findings
from rankscope.analysis.verdict.endings import endings
from rankscope.analysis.verdict.job_verdict import Case, VerdictAndFindings, verdict_of, with_judgement
from rankscope.analysis.verdict.reasons import diagnosis_of_moving, diagnosis_of_slow, signals_beside_windows
from rankscope.base.text import format_duration, ranks_text, share_bound

CAPTURE: Final = 20
"""Number of steps to profile for a verdict from windows: more than ``profiled.ENOUGH_STEPS``, as some steps may show nothing."""


def setting_of(run: RunEvidence, price: float | None, currency: str) -> Setting:
    """Return the properties of the analysis of a run that its verdicts share."""
    steps, ended = run.table.steps, endings(run.infos)
    return Setting(
        source="steps",
        world_size=run.world_size or len(run.ranks),
        steps=(int(steps[0]), int(steps[-1]) + 1) if len(steps) else None,
        step_count=len(steps),
        unit="step",
        accelerated=run.accelerated,
        hosts=run.hosts,
        price_per_gpu_hour=price,
        currency=currency,
        run=run.path,
        liveness=run.liveness,
        failed=bool(ended.crashed or ended.killed),
        recorded_steps=len(steps) + run.earlier.steps,
        capture=CAPTURE,
    )


def run_verdict(
    run: RunEvidence,
    setting: Setting,
    costs: Callable[[tuple[int, ...]], Costs | None],
    by_durations: Callable[[Setting, Figures], Case] | None = None,
) -> VerdictAndFindings:
    """Return the verdict and all findings, most costly first.

    ``costs`` maps ranks to the costs of the step without them; the resulting waterfall shows what limits the step.
    ``by_durations`` judges by durations of collectives, where own times are unknown.
    """
    return bubble_explained(*verdict_of(_case(run, setting, costs, by_durations)), run.pipeline, run.path)


def pipeline_bound(run: RunEvidence) -> Bound[StepOwnTimes]:
    """Return the function that limits what slow ranks cost by the schedule of their pipeline."""
    return lambda ranks, judged: saved_by_schedule_us(ranks, judged, run.infos, run.pipeline)


def _case(
    run: RunEvidence,
    setting: Setting,
    costs: Callable[[tuple[int, ...]], Costs | None],
    by_durations: Callable[[Setting, Figures], Case] | None,
) -> Case:
    steps = len(run.table.steps)
    if not steps:
        yet = "" if run.liveness == "over" else " yet"
        missing = f"no step has been recorded{yet}" if run.ranks else f"no rank has recorded anything{yet}"
        return Case(setting, {}, missing=MissingEvidence(missing, "few_steps"))
    case = Case(setting, shares_of(costs(()), run.matched.figures))
    if run.world_size == 1:
        few = MissingEvidence(f"{counted(steps, 'step')} recorded, {MINIMUM_STEPS} needed", "few_steps")
        return replace(case, missing=few if steps < MINIMUM_STEPS else _unseen_communication(run))
    if not run.compared:
        return _case_without_own_times(run, case, None if by_durations is None else by_durations(setting, case.shares))
    judgement = judge(run.compared, hosts=run.hosts, at_most_us=pipeline_bound(run))
    setting = replace(
        setting,
        judged_ranks=sum(len(judged.ranks) for judged in run.compared),
        judged_steps=round(run.typical.per_entry * max(judged.own.shape[1] for judged in run.compared)),
    )
    straggler = judgement.straggler
    if straggler is None or straggler.times is None:
        return _case_without_straggler(run, replace(case, setting=setting), judgement)
    judged, slow = straggler.times, straggler.slow
    diagnosis = diagnosis_of_slow(run, judged, slow)
    if straggler.is_bounded:
        diagnosis = replace(diagnosis, wait_us=min(diagnosis.wait_us, slow.gain_us), saves_us=None)
    moving = moving_waits(judged, slow.ranks) if len(judged.ranks) - len(slow.ranks) > 1 else None
    besides = []
    if moving is not None and moving.share >= MOST_WAITING and run.pipeline is None:
        besides = [finding_of_moving(diagnosis_of_moving(run, judged, moving), setting, lead="Besides that, ")]
    without = shares_of(costs(tuple(slow.ranks)))
    return replace(case, setting=setting, diagnosis=diagnosis, shares_without=without, besides=besides)


def _case_without_own_times(run: RunEvidence, case: Case, by_durations: Case | None) -> Case:
    """Return the case where step records cannot decide: durations of collectives are of all steps, windows of some."""
    if by_durations is not None and by_durations.lacking is None:
        return by_durations
    missing_evidence = _lacking(run)
    if by_durations is not None and by_durations.lacking is not None:
        missing_evidence = replace(
            missing_evidence, what=f"{missing_evidence.what}. By the durations of collectives, {by_durations.lacking.what}"
        )
    windows = _case_of_windows(run, case)
    if windows is not None:
        return windows
    if run.pipeline is not None and limit_findings(case.shares, case.setting, lead=""):
        return replace(case, calm="Every pipeline stage is on one rank, so there is none to compare it with")
    return replace(case, missing=missing_evidence)


def _unseen_communication(run: RunEvidence) -> MissingEvidence | None:
    """Return what is missing where processes work together without torch.distributed; ``None`` where none is known to."""
    infos = run.infos.values()
    if not infos or any(info.process_group is not False for info in infos):
        return None
    if run.world_size != 1:
        subject = "the ranks have no process group of torch.distributed"
    elif any(info.shared_parameters for info in infos):
        subject = "the process shares its model's parameters with others, which are not recorded, and has no process group"
    else:
        return None
    lead = "As far as the recorded processes show, "
    return MissingEvidence(f"{subject}, so how they wait for each other is not seen", "unseen_groups", lead=lead)


def _lacking(run: RunEvidence) -> MissingEvidence:
    """Return what the step records lack for the comparison of ranks."""
    reporting = _reporting(run)
    if reporting < 2:
        return MissingEvidence(
            f"step records of {reporting} rank only, of a world of {run.world_size or 'unknown size'}", "few_ranks"
        )
    if (unseen := _unseen_communication(run)) is not None:
        return unseen
    numbers = run.table.numbers
    if numbers.separate_ranks and len(numbers.comparable(run.ranks)) < 2:
        return MissingEvidence(numbers.incomparable(), "steps_apart")
    if not np.isfinite(run.table.stored("own_us")).any():
        return MissingEvidence(
            "the step records do not separate own time from waiting, and no profiled window decides", "few_windows"
        )
    if all(len(peers) == 1 for peers in peer_groups(run.ranks, run.infos)):
        alone = "every pipeline stage is on one rank, so its own time has none to be compared with"
        return MissingEvidence(alone, "one_rank_per_stage")
    steps = len(run.table.steps)
    return MissingEvidence(
        f"{counted(steps, 'step')} recorded, {MINIMUM_STEPS} steps complete on all ranks after warm-up needed", "few_steps"
    )


def _case_without_straggler(run: RunEvidence, case: Case, judgement: Judgement[StepOwnTimes]) -> Case:
    groups, setting, shares = judgement.groups, case.setting, case.shares
    is_pipeline = run.pipeline is not None or len(groups) > 1
    moving = None if is_pipeline else _waiting_in_turn(groups[0].times, shares)
    suspected = judgement.suspected
    suspect = None if suspected is None else suspected.answer.suspect
    if suspected is not None and suspect is not None and not _is_one_in_turn(suspect, suspected.times, moving):
        needed = _in_run(suspect.steps_needed)
        return replace(case, doubt=MissingEvidence(_suspected(suspect, suspected.times), "few_steps", needed))
    compared = setting.judged_ranks or 0
    restriction = among_compared(compared, setting.world_size, "records")
    # A rank that is slow at no cost, as its pipeline's schedule leaves time for it, raises no doubt.
    calm = [group for group in groups if group.slow is None]
    sure = math.prod(group.answer.sure_of_none for group in calm)
    at_most = max((group.answer.at_most_us / group.times.wall_us for group in calm), default=0.0)
    if not is_pipeline:
        setting = replace(setting, costs_at_most=at_most)
    confidence = round(min(0.99, sure) * min(1.0, compared / setting.world_size), 3)
    case = replace(case, setting=setting, confidence=confidence)
    limit = limit_of(shares)
    if moving is not None:
        diagnosis = diagnosis_of_moving(run, groups[0].times, moving)
        # Compute is what a step is for: it is no limit beside waiting.
        if limit is None or limit[0].kind == "compute_bound" or limit[1] < moving.share:
            return replace(case, diagnosis=diagnosis, shares_without=shares)
        case = replace(case, besides=[finding_of_moving(diagnosis, setting, lead="Besides that, ")])
    unit = "rank or host" if len(set(run.hosts.values())) > 1 else "rank"
    unproven = _waits_for_unseen(run, setting, shares, limit)
    if unproven is None and limit is None and (sure < _SURE or at_most >= MOST_WAITING):
        steps = setting.judged_steps
        unproven = MissingEvidence(
            f"a {unit} may cost up to {at_most:.0%} of the step, as far as the {steps} steps show", "few_steps"
        )
    why = case.calm
    if not is_pipeline:  # what a rank costs in a pipeline depends on its schedule
        why = f"No {unit} costs more than {share_bound(at_most, upper=True)} of the step"
    return replace(case, unproven=unproven, calm=f"{why}{restriction}{_costless(groups)}")


_SURE: Final = 0.8
"""Probability that no rank or host costs enough to be named from which a verdict says that none does."""


def _costless(groups: Sequence[GroupJudgement[StepOwnTimes]]) -> str:
    """Return the clause about ranks that are slow in time that the pipeline's schedule leaves; empty without any."""
    slow_ranks = [group.slow for group in groups if group.slow is not None]
    if not slow_ranks:
        return ""
    slow = max(slow_ranks, key=lambda slow: slow.gain_us)
    return (
        f" ({ranks_text(slow.ranks)} {'takes' if len(slow.ranks) == 1 else 'take'} {format_duration(slow.excess_us)} longer than "
        "others of the same stage, but the pipeline's schedule leaves time for it: it costs "
        f"less than {MINIMUM_EFFECT:.0%} of the step)"
    )


def _waiting_in_turn(judged: StepOwnTimes, shares: Figures) -> MovingWait | None:
    """Return the waiting for whichever rank is last; ``None`` below ``MOST_WAITING`` of the step."""
    moving = moving_waits(judged)
    # The waterfall treats missing records in another way, and so differs a little.
    waiting = shares["share.straggler_wait"].value if "share.straggler_wait" in shares else 0.0
    return moving if max(moving.share, waiting) >= MOST_WAITING else None


def _is_one_in_turn(suspect: SuspectedRanks, judged: StepOwnTimes, moving: MovingWait | None) -> bool:
    """Return whether the suspect may be ahead by chance of others that cause most of the waiting."""
    return moving is not None and suspect.p_value > LIMIT and 2 * suspect.gain.mean <= moving.share * judged.wall_us


def _waits_for_unseen(
    run: RunEvidence, setting: Setting, shares: Figures, limit: tuple[LimitRow, float] | None
) -> MissingEvidence | None:
    """Return what is missing where the compared ranks wait, and the reason may be a rank that is not compared."""
    compared = setting.judged_ranks or 0
    waiting = shares.get("share.exposed_communication")
    is_limited = limit is not None and limit[0].kind not in ("communication_bound", "compute_bound")
    if is_limited or compared >= setting.world_size or run.matching.matches or waiting is None or waiting.value < MOST_WAITING:
        return None
    unseen = setting.world_size - compared
    other_text = "the other rank" if unseen == 1 else f"one of the {unseen} other ranks"
    return MissingEvidence(
        f"the {compared} ranks with enough records wait {waiting.value:.0%} of the step, all at the same time: for "
        f"communication, or for {other_text}",
        "few_ranks",
    )


def _suspected(suspect: SuspectedRanks, judged: StepOwnTimes) -> str:
    """Return the evidence against the suspected ranks, and the number of steps that are needed."""
    ranks, steps = judged.own.shape
    low, high = (bound / judged.wall_us for bound in suspect.gain.bounds(LEVEL))
    outlying = None if suspect.needed is None else f"{suspect.needed} such steps"
    total = None if suspect.steps_needed is None else f"about {_in_run(suspect.steps_needed)} steps in all"
    enough = ", ".join(part for part in (outlying, total) if part) or "more steps"
    chance = (
        f"by chance among {ranks} ranks this happens with a probability of {suspect.p_value:.2g} (at most {LIMIT:g} is needed)"
        if suspect.p_value > LIMIT
        else "chance is excluded, but not that it costs little"
    )
    interval = "" if math.isinf(high) else f" ({max(0.0, low):.0%} to {high:.0%})"
    pronoun = "it" if len(suspect.ranks) == 1 else "them"
    return (
        f"{ranks_text(suspect.ranks)} made the others wait in {suspect.far} of {steps} steps after warm-up; healing {pronoun} "
        f"would save {suspect.gain.mean / judged.wall_us:.0%} of the step{interval}: "
        f"{chance}; {enough} are needed"
    )


def _in_run(steps: float | None) -> int | None:
    """Return the number of steps of a run in which as many can be judged, rounded up to two digits."""
    if steps is None:
        return None
    run_steps = steps + min(WARM_UP, steps // 4)  # warm-up is a fifth of a short run
    digits: int = 10 ** max(0, len(str(int(run_steps))) - 2)
    return math.ceil(run_steps / digits) * digits


def _reporting(run: RunEvidence) -> int:
    return int(run.table.has_record.any(axis=1).sum())


def _case_of_windows(run: RunEvidence, case: Case) -> Case | None:
    """Return the case of the profiled windows, for runs whose step records cannot decide; ``None`` where windows cannot."""
    setting = replace(case.setting, source="windows")
    profile = profile_of_windows(run.windows, run.matched, run.world_size, run.hosts)
    if profile is None:
        return None
    judgement = profile.judge()
    has_matches, straggler = bool(run.matching.matches), judgement.straggler
    if not has_matches and (straggler is None or straggler.times is None) and not judgement.is_tested:
        return None
    compared = len(np.unique(run.matching.matches.rank))
    restriction = "" if judgement.is_tested else among_compared(compared, setting.world_size, "matched collectives")
    calm = f"In the profiled steps no rank makes the others wait beyond chance{restriction}"
    case = with_judgement(
        replace(case, setting=setting, calm=calm),
        judgement,
        lambda straggler: _diagnosis_by_windows(run, profile, straggler),
        more=MissingEvidence("more profiled steps are needed", "few_windows"),
    )
    if case.doubt is None and case.diagnosis is None and _reporting(run) < 2:
        # A few profiled steps are not evidence for all the steps without a record.
        missing_evidence = _lacking(run)
        what = f"{missing_evidence.what}; in the profiled steps no rank was late beyond chance"
        return replace(case, missing=replace(missing_evidence, what=what))
    return case


def _diagnosis_by_windows(run: RunEvidence, profile: Profile, straggler: DeviceStraggler) -> Diagnosis:
    """Describe a straggler in the profiled windows by the signals in the step records."""
    diagnosis = profile.describe(
        straggler, signals_of=partial(signals_beside_windows, run), stage=stage_of(run.infos.get(straggler.slow.ranks[0]))
    )
    # A few profiled steps can fall between two hardware readings, so readings of all steps are used.
    all_steps = np.ones(len(run.table.steps), dtype=bool)
    return explain_diagnosis(diagnosis, run, all_steps, all_steps)
