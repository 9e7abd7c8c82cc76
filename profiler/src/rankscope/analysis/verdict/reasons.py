"""Signals, evidence and physical reason of a rank that was named: in a run, by own times or by profiled windows."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rankscope.analysis.evidence.compared import StepOwnTimes, imposed_wait
from rankscope.analysis.evidence.kernels.kernel_calls import compare_calls
from rankscope.analysis.evidence.order import last_ranks
from rankscope.analysis.evidence.peers import peer_groups, stage_of
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.evidence.typical import after_warm_up
from rankscope.analysis.inference.judging.healing import period
from rankscope.analysis.inference.judging.moving_wait import MovingWait
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks
from rankscope.analysis.inference.profiled_steps import busy_excess
from rankscope.analysis.inference.reasons.diagnosis import Diagnosis, described_as_moving, diagnosis_of, own_time_evidence
from rankscope.analysis.inference.reasons.hardware_reason import explain_diagnosis
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.inference.reasons.signals import Signals
from rankscope.analysis.inference.reasons.stalled_line import evenly, line_of_run
from rankscope.analysis.inference.reasons.step_signals import signals_of, signals_of_moving
from rankscope.analysis.result.analysis import Evidence
from rankscope.analysis.statistics import over_median
from rankscope.base.text import ranks_text
from rankscope.runs.records import PHASES

_SMALL: Final = 0.15
"""Share of the step below which a lasting difference in CPU time may be due to cores, caches and other processes."""


def signals_beside_windows(
    run: RunEvidence,
    ranks: Sequence[int],
    gain_us: float,
    steps: Container[int] | None = None,
    *,
    affected: Collection[int] | None = None,
) -> Signals:
    """Return the signals in the step records of the first of ``ranks``, which was late elsewhere, to find out why.

    ``steps``: profiled steps in which it was, if not in all. ``affected``: the same of all steps.
    """
    table, rank, count = run.table, ranks[0], len(run.table.steps)
    usual = after_warm_up(count) & ~table.profiled.any(axis=0)
    if affected is not None and (in_affected := usual & np.isin(table.steps, list(affected))).any():
        usual = in_affected
    others = [other for other in run.ranks if other != rank]
    alike = next(group for group in peer_groups(run.ranks, run.infos) if rank in group)
    peers = [other for other in alike if other not in ranks] or [other for other in others if other not in ranks] or others
    # Profiled steps between the slow ones would show a device that is as fast as the others.
    profiled = affected if steps is None else steps
    busy = _busy_excess(run, rank, peers, profiled)
    signals = signals_of(table, rank, usual, peers, device_busy_us=busy, own_us=gain_us)
    signals = _with_work(signals, run, rank, peers, profiled)
    return replace(signals, device_unseen=busy is None and run.accelerated)


def _with_work(
    signals: Signals, run: RunEvidence, rank: int, peers: Sequence[int], steps: Container[int] | None = None
) -> Signals:
    """Return the signals with the calls in the profiled steps of a rank, or in those in ``steps``, against some of its peers.

    Also with what the line with most of its extra time shows: whether it loads batches there and, on a host, whether its peers
    never reach it.
    """
    attempt, sampled_peers = run.table.attempt, evenly(peers)
    kernels = {each: list(run.reader.kernels(attempt, each)) for each in (rank, *sampled_peers) if each in run.windows}
    profiled = {row.step for row in kernels.get(rank, []) if steps is None or row.step in steps}
    line = None
    if len(run.table.steps):
        bounds = int(run.table.steps[0]), int(run.table.steps[-1]) + 1
        wall_us = float(np.nanmean(run.table.of_rank("wall_us", int(np.searchsorted(run.table.ranks, rank)))))
        line, _ = line_of_run(run, rank, sampled_peers, bounds, cost_share=min(1.0, signals.own_us / wall_us))
    return replace(
        signals,
        calls=compare_calls(kernels, rank, sampled_peers, profiled),
        other_line=line is not None and line.healthy_share == 0 and not run.accelerated and signals.part(signals.cpu_us) > 0,
        loads_in=line.runs_in if line is not None and line.loads else None,
        loader_workers=run.infos[rank].loader_workers if rank in run.infos else None,
    )


def _is_on_device(table: StepTable, rank: int) -> bool:
    """Return whether the own times of a rank are those of its device: those of a host are never longer than its phases."""
    row = int(np.searchsorted(table.ranks, rank))
    return any(
        bool((table.of_rank(f"own_{phase}_us", row) > 1.001 * table.of_rank(f"{phase}_us", row) + 1.0).any()) for phase in PHASES
    )


def _busy_excess(run: RunEvidence, rank: int, peers: Sequence[int], steps: Container[int] | None = None) -> float | None:
    """Return ``busy_excess`` of a rank over ``peers`` in the profiled steps, or in those of them that are in ``steps``."""
    breakdowns = {each: run.windows[each].breakdowns for each in (rank, *peers) if each in run.windows}
    if steps is not None:
        breakdowns = {each: [row for row in rows if row.step in steps] for each, rows in breakdowns.items()}
    return busy_excess(rank, breakdowns, peers)


def _slow_and_profiled(run: RunEvidence, rank: int, peers: Sequence[int], excess_us: float) -> frozenset[int]:
    """Return the profiled steps of a rank in which its own time was longer than its peers' by at least half of ``excess_us``."""
    profiled = [row.step for row in run.windows[rank].breakdowns] if rank in run.windows else []
    profiled_table = run.table.columns(np.isin(run.table.steps, profiled))
    own = profiled_table.stored("own_us")
    slow = (
        over_median(own[np.searchsorted(profiled_table.ranks, rank)], own[np.searchsorted(profiled_table.ranks, peers)])
        >= excess_us / 2
    )
    return frozenset(profiled_table.steps[slow].tolist())


def diagnosis_of_slow(run: RunEvidence, judged: StepOwnTimes, slow: SlowRanks) -> Diagnosis:
    """Return the slow rank, with the physical reason if there is one."""
    looked_at = np.isin(run.table.steps, judged.table.steps)
    late = looked_at if slow.pattern == "fixed" else np.isin(run.table.steps, judged.table.steps[slow.affected])
    diagnosis = _diagnosis(run, judged, slow)
    physical = explain_diagnosis(diagnosis, run, late, looked_at)
    return physical if physical.cause is diagnosis.cause else replace(physical, cause_confidence=None)


def diagnosis_of_moving(run: RunEvidence, judged: StepOwnTimes, moving: MovingWait) -> Diagnosis:
    """Return the waiting that moves between ranks, with the cause that the ranks have while they are last."""
    slow = moving.as_slow(judged)
    return described_as_moving(diagnosis_of_slow(run, judged, slow), moving, slow.gain_us)


def _diagnosis(run: RunEvidence, judged: StepOwnTimes, slow: SlowRanks) -> Diagnosis:
    worst = slow.ranks[0]
    peers = [rank for rank in judged.ranks if rank not in slow.ranks] or [rank for rank in judged.ranks if rank != worst]
    affected = slow.affected
    if slow.pattern == "rotating":
        affected = affected & (last_ranks(judged.own) == judged.ranks.index(worst))
        peers = [rank for rank in judged.ranks if rank != worst]
    # Profiled steps between the slow ones would show a device that is as fast as the others, and as many calls.
    profile = None if slow.pattern == "fixed" else _slow_and_profiled(run, worst, peers, slow.excess_us)
    busy = _busy_excess(run, worst, peers, profile) if run.accelerated else None
    if slow.pattern == "rotating":
        last = judged.rows[last_ranks(judged.own)]
        signals = replace(signals_of_moving(judged.table, last, slow.affected, judged.rows), device_busy_us=busy)
    else:
        signals = signals_of(judged.table, worst, affected, peers, device_busy_us=busy)
        signals = _with_work(signals, run, worst, peers, profile)
    signals = replace(signals, device_unseen=busy is None and _is_on_device(judged.table, worst))
    excluded_ranks = [] if slow.pattern == "rotating" else slow.ranks
    imposed = imposed_wait(judged, without=excluded_ranks)
    steps = judged.own.shape[1]
    victims = max(1, len(judged.ranks) - max(1, len(excluded_ranks)))
    wait = sum(imposed[rank] for rank in slow.ranks) / steps / victims
    evidence = [
        Evidence(name="imposed_wait", value=wait, unit="us", detail="per step and waiting rank"),
        *own_time_evidence(slow, steps),
    ]
    note = ""
    if slow.pattern == "intermittent":
        share, every = float(slow.affected.mean()), period(judged.table.steps[slow.affected])
        evidence.append(Evidence(name="slow_steps", value=share, unit="ratio", detail="of the steps, in which it was an outlier"))
        if every is not None:
            evidence.append(Evidence(name="period", value=float(every), unit="steps", detail="between slow steps"))
        note = f"It is slow in {share:.0%} of the steps" + (f", one in {every}." if every is not None else ".")
    diagnosis = diagnosis_of(
        slow,
        signals,
        wait_us=wait,
        step_us=judged.wall_us,
        confidence=round(min(0.99, slow.certainty), 3),
        evidence=evidence,
        stage=stage_of(run.infos.get(worst)),
    )
    if diagnosis.cause.explained_by == "more_calls" and signals.calls is not None:
        calls = signals.calls
        detail = f"of {calls.name} per profiled step, {calls.usual_calls:.0f} on its peers"
        diagnosis.evidence.append(Evidence(name="calls", value=calls.calls, unit="calls", detail=detail))
    notes = (note, _next(slow), _shared(run, judged, diagnosis))
    return replace(
        diagnosis,
        saves_us=None if slow.gain_low_us is None or slow.gain_high_us is None else (slow.gain_low_us, slow.gain_high_us),
        cause_confidence=signals.agreement,
        note=" ".join(part for part in notes if part),
    )


def _next(slow: SlowRanks) -> str:
    """Return the note that other ranks are slow, too, but less than these."""
    if not slow.behind:
        return ""
    subject = ranks_text(slow.behind)
    return (
        f"{subject[0].upper()}{subject[1:]} {'is' if len(slow.behind) == 1 else 'are'} slow, too, but less: the next to look at."
    )


def _shared(run: RunEvidence, judged: StepOwnTimes, diagnosis: Diagnosis) -> str:
    """Return the note that a small difference in CPU time may be the machine's, where ranks share the CPUs of a host."""
    hosts = {info.host for info in run.infos.values()}
    cpus = all(info.device_kind == "cpu" for info in run.infos.values())
    share = diagnosis.gain_us / judged.wall_us
    if len(hosts) != 1 or not cpus or share >= _SMALL or diagnosis.cause.cause != "compute":
        return ""
    lasting = f"a lasting difference as small as {share:.0%} of the step may be the machine's"
    return f"All ranks share the CPUs of host {hosts.pop()}: {lasting}."
