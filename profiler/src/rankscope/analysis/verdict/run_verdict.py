"""Verdict on a run: from step records first, from profiled windows where step records cannot decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.evidence.compared import MINIMUM_STEPS, WARM_UP, Judged, imposed_wait
from rankscope.analysis.evidence.device_times import times_of_windows
from rankscope.analysis.evidence.order import last_ranks
from rankscope.analysis.evidence.peers import peer_groups, stage_of
from rankscope.analysis.inference.cause import Signals, cause_of
from rankscope.analysis.inference.device_stragglers import device_named, device_step_signals, judge_windows
from rankscope.analysis.inference.explained import explained
from rankscope.analysis.inference.late import busy_excess, late_named, slow_steps
from rankscope.analysis.inference.named import Named
from rankscope.analysis.inference.rotating import find_rotating
from rankscope.analysis.inference.run_evidence import RunEvidence
from rankscope.analysis.inference.significance import LIMIT
from rankscope.analysis.inference.slow import Slow
from rankscope.analysis.inference.step_signals import signals_of
from rankscope.analysis.inference.stragglers import Suspect, by_chance_elsewhere, find_slow, period, too_short
from rankscope.analysis.result.analysis import Evidence, Finding, Verdict
from rankscope.analysis.verdict.bottleneck import shares_of
from rankscope.analysis.verdict.bubble import bubble_explained
from rankscope.analysis.verdict.builders import (
    Beside,
    ByDurations,
    Lack,
    Setting,
    among,
    insufficient,
    limits,
    no_straggler,
    ranks_were,
    straggler,
)
from rankscope.analysis.verdict.endings import endings
from rankscope.base.text import duration, ranks_text

CAPTURE: Final = 20
"""Number of steps to profile for a verdict from windows: more than ``late.ENOUGH_STEPS``, as some steps may show nothing."""


def _setting(run: RunEvidence, price: float | None, currency: str) -> Setting:
    steps = run.table.steps
    return Setting(
        source="steps",
        world_size=run.world_size or len(run.ranks),
        steps=(int(steps[0]), int(steps[-1]) + 1) if len(steps) else None,
        step_count=len(steps),
        unit="step",
        accelerated=any(info.device_kind != "cpu" for info in run.infos.values()),
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
    setting = _setting(run, price, currency)

    if not len(run.table.steps):
        yet = "" if run.liveness == "over" else " yet"
        return _too_little(run, f"no step has been recorded{yet}" if run.ranks else f"no rank has recorded anything{yet}")
    shares = shares_of(costs(()), run.matched.figures)
    if run.world_size == 1:
        if len(run.table.steps) < MINIMUM_STEPS:
            return _too_little(run, f"{len(run.table.steps)} steps recorded, {MINIMUM_STEPS} needed")
        return no_straggler(shares, setting, confidence=None, why="There is one rank, so nobody can make others wait")
    if not run.compared:
        return _without_own_times(run, setting, shares, by_durations)
    slow_groups = slow_ranks(run.compared)
    if not slow_groups:
        return _nobody_slow(run, setting, shares)
    judged, slow = max(slow_groups, key=lambda one: one[1].gain_us)
    verdict, finding = straggler(_explained(run, judged, slow), setting)
    return verdict, [finding, *limits(shares_of(costs(tuple(slow.ranks))), setting, lead="Besides that, ")]


def _without_own_times(
    run: RunEvidence, setting: Setting, shares: Figures, by_durations: ByDurations | None
) -> tuple[Verdict, list[Finding]]:
    """Return the verdict where step records cannot decide: durations of collectives are of all steps, windows of some."""
    every = np.ones(len(run.table.steps), dtype=bool)
    beside = Beside(shares, partial(_signals_beside_windows, run), lambda named: explained(named, run.witness, every, every))
    found = None if by_durations is None else by_durations(setting, beside)
    if isinstance(found, tuple):
        return found
    missing, lack = _missing(run)
    missing += "" if found is None else f". By the durations of collectives, {found}"
    return _from_windows(run, setting, shares) or _of_stages(run, setting, shares) or _too_little(run, missing, lack)


def slow_ranks(compared: Sequence[Judged]) -> list[tuple[Judged, Slow]]:
    """Return the groups of ranks with slow ranks, and those ranks; the p-values are corrected for the number of groups."""
    found = [(judged, slow) for judged in compared if (slow := find_rotating(judged) or find_slow(judged)) is not None]
    calm = [judged for judged in compared if all(judged is not other for other, _ in found)]
    return [one for one in found if (one[1].p_value or 0.0) + by_chance_elsewhere(*one, calm) <= LIMIT]


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
        return "the step records do not tell own time from waiting, and no profiled window decides", "few_windows"
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


def _nobody_slow(run: RunEvidence, setting: Setting, shares: Figures) -> tuple[Verdict, list[Finding]]:
    for judged in run.compared:
        if (suspect := too_short(judged)) is not None:
            return _too_little(run, _suspected(suspect, judged), needed=_in_run(suspect.steps_needed))
    compared = sum(len(judged.ranks) for judged in run.compared)
    restriction = among(compared, setting.world_size, "records")
    confidence = min(_calm(judged) for judged in run.compared) * min(1.0, compared / setting.world_size)
    return no_straggler(shares, setting, confidence=confidence, why=f"No rank makes the others wait beyond chance{restriction}")


def _suspected(suspect: Suspect, judged: Judged) -> str:
    """Return the evidence against the suspected ranks, the criterion that it misses, and the number of steps that are needed."""
    ranks, steps = judged.own.shape
    peers = "the other rank's" if ranks == 2 else "the median of its peers"
    if suspect.p_value > LIMIT:
        missed = f"its probability is {suspect.p_value:.2g}, and at most {LIMIT:g} is needed"
    elif suspect.excess_us > suspect.noise_us:
        missed = "its slow steps do not stand out from those of the others"
    elif np.isinf(suspect.noise_us):
        missed = "their noise lasts as long as these steps"
    else:
        missed = f"lasting noise may make up {duration(suspect.noise_us)} per step"
    such = None if suspect.needed is None else f"{suspect.needed} such steps"
    total = None if suspect.steps_needed is None else f"about {_in_run(suspect.steps_needed)} steps in all"
    enough = ", ".join(part for part in (such, total) if part) or "more"
    return (
        f"{ranks_text(suspect.ranks)} made the others wait in {suspect.far} of {steps} steps after warm-up. The own time of "
        f"rank {suspect.ranks[0]} was longer than {peers} in {suspect.longer} steps, by {duration(suspect.excess_us)} per step "
        f"on average ({suspect.excess_us / judged.wall_us:.0%} of the step). This may be chance among {ranks} ranks: {missed}; "
        f"{enough} are needed"
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
        signals = _signals_beside_windows(run, slow.ranks, slow.excess_us)
        signals = replace(signals, device_busy_us=device_step_signals(found.device, times).device_busy_us)
        stage = stage_of(run.infos.get(slow.ranks[0]))
        named = device_named(found.device, signals, run.blame, stage=stage)
    elif found.late is not None:
        # Blame sums over the profiled steps; verdicts are per step.
        steps = max(counts)
        slow_ones = slow_steps(found.late, run.blame)
        gain = found.late.gain_us / steps if slow_ones is None else found.late.excess_us / len(run.blame.steps)
        signals = _signals_beside_windows(run, found.late.ranks, gain, slow_ones)
        named = late_named(found.late, run.blame, window, signals, steps=steps)
    elif _reporting(run) < 2:
        # A few profiled steps are not evidence for all the steps without a record.
        missing, lack = _missing(run)
        return _too_little(run, f"{missing}; in the profiled steps nobody was late beyond chance", lack)
    else:
        compared = len({rank for match in run.matching.matches for rank in match.ranks})
        restriction = "" if found.is_whole else among(compared, setting.world_size, "matched collectives")
        why = f"In the profiled steps no rank makes the others wait beyond chance{restriction}"
        return no_straggler(shares, by_windows, confidence=None, why=why)
    verdict, finding = straggler(explained(named, run.witness, every, every), by_windows)
    return verdict, [finding]


def _signals_beside_windows(
    run: RunEvidence, ranks: Sequence[int], gain_us: float, steps: Container[int] | None = None
) -> Signals:
    """Return the signals in the step records of the first of ``ranks``, which windows named, to find out why it was late.

    ``steps``: profiled steps in which it was, if not in all.
    """
    table, rank, count = run.table, ranks[0], len(run.table.steps)
    usual = (np.arange(count) >= min(WARM_UP, count // 5)) & ~table.profiled.any(axis=0)
    others = [one for one in run.ranks if one != rank]
    alike = next(group for group in peer_groups(run.ranks, run.infos) if rank in group)
    peers = [one for one in alike if one not in ranks] or [one for one in others if one not in ranks] or others
    busy = _busy_excess(run, rank, peers, steps)
    found = signals_of(table, rank, usual, peers, device_busy_us=busy, own_us=gain_us)
    # Where no profiled step shows the device, a host that uses no CPU may wait for it.
    unseen = busy is None and any(info.device_kind != "cpu" for info in run.infos.values())
    return replace(found, run_queue_us=None) if unseen else found


def _busy_excess(run: RunEvidence, rank: int, peers: Sequence[int], steps: Container[int] | None = None) -> float | None:
    """Return ``busy_excess`` of a rank over ``peers`` in the profiled steps, or in those of them that are in ``steps``."""
    found = {one: run.windows[one].breakdowns for one in (rank, *peers) if one in run.windows}
    if steps is not None:
        found = {one: [row for row in rows if row.step in steps] for one, rows in found.items()}
    return busy_excess(rank, found)


def _slow_and_profiled(run: RunEvidence, rank: int, peers: Sequence[int], excess_us: float) -> frozenset[int]:
    """Return the profiled steps of a rank in which its own time was longer than its peers' by at least half of ``excess_us``."""
    profiled = [row.step for row in run.windows[rank].breakdowns] if rank in run.windows else []
    some = run.table.columns(np.isin(run.table.steps, profiled))
    mine, others = np.searchsorted(some.ranks, rank), np.searchsorted(some.ranks, peers)
    own = some.stored("own_us")
    slow = own[mine] - np.median(own[others], axis=0) >= excess_us / 2
    return frozenset(some.steps[slow].tolist())


def _explained(run: RunEvidence, judged: Judged, slow: Slow) -> Named:
    """Return the slow rank, with the physical reason if there is one."""
    looked_at = np.isin(run.table.steps, judged.table.steps)
    late = looked_at if slow.pattern == "fixed" else np.isin(run.table.steps, judged.table.steps[slow.affected])
    named = _named(run, judged, slow)
    found = explained(named, run.witness, late, looked_at)
    return found if found.cause is named.cause else replace(found, cause_confidence=None)


def _named(run: RunEvidence, judged: Judged, slow: Slow) -> Named:
    worst = slow.ranks[0]
    peers = [rank for rank in judged.ranks if rank not in slow.ranks] or [rank for rank in judged.ranks if rank != worst]
    affected = slow.affected
    if slow.pattern == "rotating":
        affected = affected & (last_ranks(judged.own) == judged.ranks.index(worst))
        peers = [rank for rank in judged.ranks if rank != worst]
    busy = None
    if any(info.device_kind != "cpu" for info in run.infos.values()):
        # Profiled steps between the slow ones would show a device that is as fast as the others.
        seen = None if slow.pattern == "fixed" else _slow_and_profiled(run, worst, peers, slow.excess_us)
        busy = _busy_excess(run, worst, peers, seen)
    signals = signals_of(judged.table, worst, affected, peers, device_busy_us=busy)
    imposed = imposed_wait(judged)
    steps = judged.own.shape[1]
    victims = max(1, len(judged.ranks) - (1 if slow.pattern == "rotating" else len(slow.ranks)))
    wait = sum(imposed[rank] for rank in slow.ranks) / steps / victims
    confidence = slow.stability * (1 - (slow.p_value or 0.0))
    evidence = [
        Evidence(name="imposed_wait", value=wait, unit="us", detail="per step and waiting rank"),
        Evidence(
            name="saved",
            value=slow.gain_us,
            unit="us",
            detail="per step, if it delayed the others no more than a typical rank does",
        ),
        Evidence(
            name="own_time_excess",
            value=slow.excess_us,
            unit="us",
            detail="over the median of its peers, in its slow steps",
        ),
        Evidence(name="last", value=slow.last_share, unit="ratio", detail="of the steps"),
        Evidence(name="steps_judged", value=float(steps), unit="steps"),
    ]
    note = ""
    if slow.pattern == "intermittent":
        share, every = float(slow.affected.mean()), period(judged.table.steps[slow.affected])
        evidence.append(Evidence(name="slow_steps", value=share, unit="ratio", detail="of the steps, in which it was an outlier"))
        if every is not None:
            evidence.append(Evidence(name="period", value=float(every), unit="steps", detail="between slow steps"))
        note = f"It is slow in {share:.0%} of the steps" + (f", one in {every}." if every is not None else ".")
    if slow.p_value is not None:
        evidence.append(
            Evidence(
                name="p_value", value=slow.p_value, unit="probability", detail="permutation test against the run's own noise"
            )
        )
    for name, value, unit in (
        ("cpu_excess", signals.cpu_us, "us"),
        ("run_queue_excess", signals.run_queue_us, "us"),
        ("gc_excess", signals.gc_us, "us"),
        ("device_busy_excess", signals.device_busy_us, "us"),
        ("work_excess", signals.work, "ratio"),
        ("loaded_work_excess", signals.loaded_work, "ratio"),
    ):
        if value is not None:
            evidence.append(Evidence(name=name, value=value, unit=unit, detail="over the median of its peers"))
    evidence.extend(
        Evidence(name=f"phase_excess.{phase}", value=value, unit="us", detail="own time over the median of its peers")
        for phase, value in signals.phases_us.items()
    )
    return Named(
        ranks=slow.ranks,
        pattern=slow.pattern,
        cause=cause_of(signals),
        phase=signals.phase,
        stage=stage_of(run.infos.get(worst)),
        gain_us=slow.gain_us,
        wait_us=wait,
        step_us=judged.wall_us,
        confidence=round(min(0.99, confidence), 3),
        cause_confidence=signals.agreement,
        evidence=evidence,
        note=f"{note} {_shared(run, judged, slow, signals)}".strip(),
    )


def _shared(run: RunEvidence, judged: Judged, slow: Slow, signals: Signals) -> str:
    """Return the note that a small difference in CPU time may be the machine's, where ranks share the CPUs of a host."""
    hosts = {info.host for info in run.infos.values()}
    cpus = all(info.device_kind == "cpu" for info in run.infos.values())
    share = slow.gain_us / judged.wall_us
    if len(hosts) != 1 or not cpus or share >= _SMALL or cause_of(signals).cause != "compute":
        return ""
    lasting = f"a lasting difference as small as {share:.0%} of the step may be the machine's"
    return f"All ranks share the CPUs of host {hosts.pop()}: {lasting}."


_SMALL: Final = 0.15
"""Share of the step below which a lasting difference in CPU time may be due to cores, caches and other processes."""


def _calm(judged: Judged) -> float:
    """Return the confidence that no rank is slow: the share of pieces of the run (up to 8) in which no rank would be named."""
    count: int = judged.own.shape[1]
    pieces = max(1, min(8, count // (2 * MINIMUM_STEPS)))
    calm = 0
    for piece in np.array_split(np.arange(count), pieces):
        keep = np.zeros(count, dtype=bool)
        keep[piece] = True
        part = Judged(judged.table.columns(keep), judged.rows, judged.own[:, keep], judged.wall_us)
        calm += int(find_slow(part) is None)
    # One piece is added for and one against (Laplace): a few pieces give no certainty.
    return (calm + 1) / (pieces + 2)
