"""Verdict on a run: from step records first, from profiled windows where step records cannot decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.evidence.compared import MINIMUM_STEPS, Judged
from rankscope.analysis.evidence.device_times import times_of_windows
from rankscope.analysis.evidence.peers import peer_groups, stage_of
from rankscope.analysis.evidence.typical import WARM_UP
from rankscope.analysis.inference.device_stragglers import device_named, device_step_signals, judge_windows
from rankscope.analysis.inference.explained import explained
from rankscope.analysis.inference.judge import LEVEL, Judgement, Suspect, by_chance_elsewhere, judge_ranks
from rankscope.analysis.inference.late import late_named, slow_steps
from rankscope.analysis.inference.moving import MOST_WAITING, Moving, moving_waits
from rankscope.analysis.inference.pipelined import saved_at_most_us, schedule_of
from rankscope.analysis.inference.run_evidence import RunEvidence
from rankscope.analysis.inference.significance import LIMIT
from rankscope.analysis.inference.slow import MINIMUM_EFFECT, Slow
from rankscope.analysis.result.analysis import Finding, Verdict
from rankscope.analysis.verdict.bottleneck import LimitRow, limit_of, shares_of
from rankscope.analysis.verdict.bubble import bubble_explained
from rankscope.analysis.verdict.builders import (
    Beside,
    ByDurations,
    Lack,
    Setting,
    among,
    finding_of_moving,
    insufficient,
    limits,
    no_straggler,
    ranks_were,
    straggler,
)
from rankscope.analysis.verdict.endings import endings
from rankscope.analysis.verdict.reasons import moving_named, signals_beside_windows, slow_named
from rankscope.base.text import duration, ranks_text, share_bound

CAPTURE: Final = 20
"""Number of steps to profile for a verdict from windows: more than ``late.ENOUGH_STEPS``, as some steps may show nothing."""


def setting_of(run: RunEvidence, price: float | None, currency: str) -> Setting:
    """Return the properties of the analysis of a run that its verdicts share."""
    steps = run.table.steps
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
    )


def run_verdict(
    run: RunEvidence,
    costs: Callable[[tuple[int, ...]], Costs | None],
    price: float | None,
    currency: str,
    by_durations: ByDurations | None = None,
) -> tuple[Verdict, list[Finding]]:
    """Return the verdict and all findings, most costly first.

    ``costs`` maps ranks to the costs of the step without them; the resulting waterfall shows what limits the step.
    ``by_durations`` judges by durations of collectives, where own times are unknown.
    """
    return bubble_explained(*_run_verdict(run, costs, price, currency, by_durations), run.pipeline, run.path)


def _run_verdict(
    run: RunEvidence,
    costs: Callable[[tuple[int, ...]], Costs | None],
    price: float | None,
    currency: str,
    by_durations: ByDurations | None,
) -> tuple[Verdict, list[Finding]]:
    setting = setting_of(run, price, currency)

    if not len(run.table.steps):
        yet = "" if run.liveness == "over" else " yet"
        return _too_little(run, f"no step has been recorded{yet}" if run.ranks else f"no rank has recorded anything{yet}")
    shares = shares_of(costs(()), run.matched.figures)
    if run.world_size == 1:
        if len(run.table.steps) < MINIMUM_STEPS:
            return _too_little(run, f"{len(run.table.steps)} steps recorded, {MINIMUM_STEPS} needed")
        return no_straggler(shares, setting, confidence=None, why="There is one rank, so no rank waits for another")
    if not run.compared:
        return _without_own_times(run, setting, shares, by_durations)
    each = judged_each(run.compared, run.hosts)
    setting = replace(
        setting,
        judged_ranks=sum(len(judged.ranks) for judged in run.compared),
        judged_steps=round(run.typical.per_entry * max(judged.own.shape[1] for judged in run.compared)),
    )
    slow_groups = [(judged, one.slow) for judged, one in each if one.slow is not None]
    costly = in_pipeline(run, slow_groups)
    if not costly:
        return _nobody_slow(run, setting, shares, each)
    judged, slow = max(costly, key=lambda one: one[1].gain_us)
    named = slow_named(run, judged, slow)
    if not any(slow is one for _, one in slow_groups):
        named = replace(named, wait_us=min(named.wait_us, slow.gain_us), saves_us=None)
    verdict, findings = straggler(named, setting)
    beside = moving_waits(judged, slow.ranks) if len(judged.ranks) - len(slow.ranks) > 1 else None
    if beside is not None and beside.share >= MOST_WAITING and run.pipeline is None:
        findings += [finding_of_moving(moving_named(run, judged, beside), setting, lead="Besides that, ")]
    return verdict, [*findings, *limits(shares_of(costs(tuple(slow.ranks))), setting, lead="Besides that, ")]


def _without_own_times(
    run: RunEvidence, setting: Setting, shares: Figures, by_durations: ByDurations | None
) -> tuple[Verdict, list[Finding]]:
    """Return the verdict where step records cannot decide: durations of collectives are of all steps, windows of some."""
    every = np.ones(len(run.table.steps), dtype=bool)
    beside = Beside(
        shares,
        lambda ranks, gain_us, affected: signals_beside_windows(run, ranks, gain_us, affected=affected),
        lambda named: explained(named, run.witness, every, every),
    )
    found = None if by_durations is None else by_durations(setting, beside)
    if isinstance(found, tuple):
        return found
    missing, lack = _missing(run)
    missing += "" if found is None else f". By the durations of collectives, {found}"
    return _from_windows(run, setting, shares) or _of_stages(run, setting, shares) or _too_little(run, missing, lack)


def slow_ranks(compared: Sequence[Judged], hosts: Mapping[int, str]) -> list[tuple[Judged, Slow]]:
    """Return the groups of ranks with slow ranks, and those ranks; see ``judged_each``."""
    return [(judged, found.slow) for judged, found in judged_each(compared, hosts) if found.slow is not None]


def judged_each(compared: Sequence[Judged], hosts: Mapping[int, str]) -> list[tuple[Judged, Judgement]]:
    """Judge each group of ranks that do the same work. P-values are corrected for the number of groups."""
    found = [(judged, judge_ranks(judged, hosts)) for judged in compared]
    calm = [judged for judged, one in found if one.slow is None]
    return [
        (judged, one)
        if one.slow is None or (one.slow.p_value or 0.0) + by_chance_elsewhere(judged, one.slow, calm) <= LIMIT
        else (judged, replace(one, slow=None))
        for judged, one in found
    ]


def in_pipeline(run: RunEvidence, slow_groups: Sequence[tuple[Judged, Slow]]) -> list[tuple[Judged, Slow]]:
    """Return the groups with slow ranks that cost enough to be named, with what the schedule of their pipeline lets them cost."""
    found = []
    for judged, slow in slow_groups:
        at_most_us = saved_at_most_us(slow.ranks, schedule_of(judged, run.infos, run.pipeline))
        if at_most_us >= slow.gain_us:
            found.append((judged, slow))
        elif at_most_us >= MINIMUM_EFFECT * judged.wall_us:
            found.append((judged, replace(slow, gain_us=at_most_us)))
    return found


def _too_little(
    run: RunEvidence, missing: str, lack: Lack = "few_steps", *, needed: int | None = None
) -> tuple[Verdict, list[Finding]]:
    ended = endings(run.infos)
    verdict = insufficient(
        missing,
        run=run.path,
        lack=lack,
        capture=CAPTURE,
        liveness=run.liveness,
        failed=bool(ended.crashed or ended.killed),
        recorded=len(run.table.steps) + run.earlier.steps,
        needed=needed,
    )
    return verdict, []


def _missing(run: RunEvidence) -> tuple[str, Lack]:
    reporting = _reporting(run)
    if reporting < 2:
        return f"step records of {reporting} rank only, of a world of {run.world_size or 'unknown size'}", "few_ranks"
    if not np.isfinite(run.table.stored("own_us")).any():
        return "the step records do not separate own time from waiting, and no profiled window decides", "few_windows"
    if all(len(peers) == 1 for peers in peer_groups(run.ranks, run.infos)):
        return "every pipeline stage is on one rank, so its own time has none to be compared with", "one_rank_per_stage"
    steps = len(run.table.steps)
    return f"{steps} steps recorded, {MINIMUM_STEPS} steps complete on all ranks after warm-up needed", "few_steps"


def _of_stages(run: RunEvidence, setting: Setting, shares: Figures) -> tuple[Verdict, list[Finding]] | None:
    """Return the verdict on a pipeline with one rank per stage: no rank can be named, but what limits the step can."""
    if run.pipeline is None:
        return None
    why = "Every pipeline stage is on one rank, so there is none to compare it with"
    verdict, findings = no_straggler(shares, setting, confidence=None, why=why)
    return (verdict, findings) if findings else None


def _nobody_slow(
    run: RunEvidence, setting: Setting, shares: Figures, each: Sequence[tuple[Judged, Judgement]]
) -> tuple[Verdict, list[Finding]]:
    is_pipeline = run.pipeline is not None or len(each) > 1
    moving = None if is_pipeline else _waiting_in_turn(each[0][0], shares)
    for judged, one in each:
        if (
            one.suspect is not None
            and _may_cost(run, judged, one.suspect.ranks)
            and not _is_one_in_turn(one.suspect, judged, moving)
        ):
            return _too_little(run, _suspected(one.suspect, judged), needed=_in_run(one.suspect.steps_needed))
    compared = sum(len(judged.ranks) for judged in run.compared)
    restriction = among(compared, setting.world_size, "records")
    # A rank that is slow at no cost, as its pipeline's schedule leaves time for it, raises no doubt.
    sure = math.prod(one.sure_of_none for _, one in each if one.slow is None)
    at_most = max((one.at_most_us / judged.wall_us for judged, one in each if one.slow is None), default=0.0)
    if not is_pipeline:
        setting = replace(setting, costs_at_most=at_most)
    confidence = round(min(0.99, sure) * min(1.0, compared / setting.world_size), 3)
    limit = limit_of(shares)
    besides: list[Finding] = []
    if moving is not None:
        named = moving_named(run, each[0][0], moving)
        # Compute is what a step is for: it is no limit beside waiting.
        if limit is None or limit[0].kind == "compute_bound" or limit[1] < moving.share:
            verdict, findings = straggler(named, setting)
            return verdict, [*findings, *limits(shares, setting, lead="Besides that, ")]
        besides = [finding_of_moving(named, setting, lead="Besides that, ")]
    if (lacking := _waits_for_unseen(run, setting, shares, limit)) is not None:
        return lacking
    unit = "rank or host" if len(set(run.hosts.values())) > 1 else "rank"
    if limit is None and (sure < _SURE or at_most >= MOST_WAITING):
        return _too_little(
            run, f"a {unit} may cost up to {at_most:.0%} of the step, as far as the {setting.judged_steps} steps show"
        )
    why = f"No rank makes the others wait beyond chance{restriction}"
    if not is_pipeline:  # what a rank costs in a pipeline depends on its schedule
        why = f"No {unit} costs more than {share_bound(at_most, upper=True)} of the step{restriction}"
    verdict, findings = no_straggler(shares, setting, confidence=confidence, why=why + _costless(each))
    return verdict, [*findings, *besides]


_SURE: Final = 0.8
"""Probability that no rank or host costs enough to be named from which a verdict says that none does."""


def _costless(each: Sequence[tuple[Judged, Judgement]]) -> str:
    """Return the clause about ranks that are slow in time that the pipeline's schedule leaves; empty without any."""
    slow_ones = [(judged, one.slow) for judged, one in each if one.slow is not None]
    if not slow_ones:
        return ""
    _, slow = max(slow_ones, key=lambda one: one[1].gain_us)
    return (
        f" ({ranks_text(slow.ranks)} {'takes' if len(slow.ranks) == 1 else 'take'} {duration(slow.excess_us)} longer than others "
        "of the same stage, but the pipeline's schedule leaves time for it: it costs "
        f"less than {MINIMUM_EFFECT:.0%} of the step)"
    )


def _waiting_in_turn(judged: Judged, shares: Figures) -> Moving | None:
    """Return the waiting for whichever rank is last; ``None`` below ``MOST_WAITING`` of the step."""
    moving = moving_waits(judged)
    # The waterfall treats missing records in another way, and so differs a little.
    waiting = shares["share.straggler_wait"].value if "share.straggler_wait" in shares else 0.0
    return moving if max(moving.share, waiting) >= MOST_WAITING else None


def _is_one_in_turn(suspect: Suspect, judged: Judged, moving: Moving | None) -> bool:
    """Return whether the suspect may be ahead by chance of others that cause most of the waiting."""
    return moving is not None and suspect.p_value > LIMIT and 2 * suspect.gain.mean <= moving.share * judged.wall_us


def _may_cost(run: RunEvidence, judged: Judged, ranks: Sequence[int]) -> bool:
    """Return whether slow ranks cost enough to be named, as far as their pipeline's schedule shows."""
    at_most_us = saved_at_most_us(ranks, schedule_of(judged, run.infos, run.pipeline))
    return at_most_us >= MINIMUM_EFFECT * judged.wall_us


def _waits_for_unseen(
    run: RunEvidence, setting: Setting, shares: Figures, limit: tuple[LimitRow, float] | None
) -> tuple[Verdict, list[Finding]] | None:
    """Return the verdict where the compared ranks wait, and the reason may be a rank that is not compared; else ``None``."""
    compared = setting.judged_ranks or 0
    waiting = shares.get("share.exposed_communication")
    is_limited = limit is not None and limit[0].kind not in ("communication_bound", "compute_bound")
    if is_limited or compared >= setting.world_size or run.matching.matches or waiting is None or waiting.value < MOST_WAITING:
        return None
    unseen = setting.world_size - compared
    which = "the other rank" if unseen == 1 else f"one of the {unseen} other ranks"
    return _too_little(
        run,
        f"the {compared} ranks with enough records wait {waiting.value:.0%} of the step, all at the same time: for "
        f"communication, or for {which}",
        "few_ranks",
    )


def _suspected(suspect: Suspect, judged: Judged) -> str:
    """Return the evidence against the suspected ranks, and the number of steps that are needed."""
    ranks, steps = judged.own.shape
    low, high = (bound / judged.wall_us for bound in suspect.gain.bounds(LEVEL))
    such = None if suspect.needed is None else f"{suspect.needed} such steps"
    total = None if suspect.steps_needed is None else f"about {_in_run(suspect.steps_needed)} steps in all"
    enough = ", ".join(part for part in (such, total) if part) or "more steps"
    chance = (
        f"by chance among {ranks} ranks this happens with a probability of {suspect.p_value:.2g} (at most {LIMIT:g} is needed)"
        if suspect.p_value > LIMIT
        else "chance is excluded, but not that it costs little"
    )
    interval = "" if math.isinf(high) else f" ({max(0.0, low):.0%} to {high:.0%})"
    it = "it" if len(suspect.ranks) == 1 else "them"
    return (
        f"{ranks_text(suspect.ranks)} made the others wait in {suspect.far} of {steps} steps after warm-up; healing {it} "
        f"would save {suspect.gain.mean / judged.wall_us:.0%} of the step{interval}: "
        f"{chance}; {enough} are needed"
    )


def _in_run(steps: float | None) -> int | None:
    """Return the number of steps of a run in which as many can be judged, rounded up to two digits."""
    if steps is None:
        return None
    whole = steps + min(WARM_UP, steps // 4)  # warm-up is a fifth of a short run
    digits: int = 10 ** max(0, len(str(int(whole))) - 2)
    return math.ceil(whole / digits) * digits


def _reporting(run: RunEvidence) -> int:
    return int(run.table.has_record.any(axis=1).sum())


def _from_windows(run: RunEvidence, setting: Setting, shares: Figures) -> tuple[Verdict, list[Finding]] | None:
    """Return the verdict from profiled windows, for runs whose step records cannot decide; ``None`` where windows cannot."""
    profiled = [row for reduction in run.windows.values() for row in reduction.breakdowns]
    counts = [len(reduction.breakdowns) for reduction in run.windows.values() if reduction.breakdowns]
    if not profiled:
        return None
    window = sum(row.window_us for row in profiled) / len(counts)
    times = times_of_windows(run.windows, run.world_size)
    found = judge_windows(run.blame, run.matched.waits, times, window)
    if not run.matching.matches and found.device is None and not found.is_whole:
        return None
    by_windows = replace(setting, source="windows")
    if found.suspects:
        missing = f"{ranks_were(found.suspects)} last, but so rarely that it may be chance; more profiled steps are needed"
        return _too_little(run, missing, "few_windows")
    # A few profiled steps can fall between two hardware readings, so readings of all steps are used.
    every = np.ones(len(run.table.steps), dtype=bool)
    if found.device is not None:
        slow = found.device.slow
        signals = signals_beside_windows(run, slow.ranks, slow.excess_us)
        signals = replace(signals, device_busy_us=device_step_signals(found.device, times).device_busy_us)
        stage = stage_of(run.infos.get(slow.ranks[0]))
        named = device_named(found.device, signals, run.blame, stage=stage)
    elif found.late is not None:
        # Blame sums over the profiled steps; verdicts are per step.
        steps = max(counts)
        slow_ones = slow_steps(found.late, run.blame)
        gain = found.late.gain_us / steps if slow_ones is None else found.late.excess_us / len(run.blame.steps)
        signals = signals_beside_windows(run, found.late.ranks, gain, slow_ones)
        named = late_named(found.late, run.blame, window, signals, steps=steps)
    elif _reporting(run) < 2:
        # A few profiled steps are not evidence for all the steps without a record.
        missing, lack = _missing(run)
        return _too_little(run, f"{missing}; in the profiled steps no rank was late beyond chance", lack)
    else:
        compared = len(np.unique(run.matching.matches.rank))
        restriction = "" if found.is_whole else among(compared, setting.world_size, "matched collectives")
        why = f"In the profiled steps no rank makes the others wait beyond chance{restriction}"
        return no_straggler(shares, by_windows, confidence=None, why=why)
    return straggler(explained(named, run.witness, every, every), by_windows)
