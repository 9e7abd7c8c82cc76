"""Verdict on a run whose step records do not know own times, from the durations of collectives that its helpers recorded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.durations.analysis import Compared, compare_durations
from rankscope.analysis.durations.blocks import StepsAt, in_steps_of_run, stored_durations
from rankscope.analysis.durations.calls import MAX_CALLS
from rankscope.analysis.durations.case import duration_case
from rankscope.analysis.inference.explained import explained
from rankscope.analysis.inference.run_evidence import RunEvidence
from rankscope.analysis.inference.signals import Signals
from rankscope.analysis.result.text import counted
from rankscope.analysis.verdict.builders import Setting
from rankscope.analysis.verdict.job_verdict import Case
from rankscope.analysis.verdict.reasons import signals_beside_windows
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text
from rankscope.runs.durations import DurationSource

_CAPTURE = "capture some steps with `rankscope capture`"
_SLACK_NS = 1_000_000
_NAMES: dict[DurationSource, str] = {"flight_recorder": "the Flight Recorder", "nccl_inspector": "NCCL Inspector"}


@dataclass(frozen=True, slots=True)
class RunDurations:
    """Durations of the collectives of a run, compared."""

    source: DurationSource
    compared: Compared
    by_time: bool
    """True if steps are those of the run; otherwise they are inferred from repeating operations, and numbered from 0."""

    def case(self, run: RunEvidence, setting: Setting, shares: Figures) -> Case:
        """Return the judgement on the ranks. ``setting``, ``shares``: those of the run."""
        are_known = self.compared.evidence.steps is not None
        setting = replace(
            setting,
            source=self.source,
            steps=self.compared.steps if self.by_time else setting.steps if are_known else None,
            step_count=setting.step_count if are_known else 1,
            unit="step" if are_known else "window",
        )
        every = np.ones(len(run.table.steps), dtype=bool)

        def signals_of(ranks: Sequence[int], gain_us: float, affected: Collection[int] | None) -> Signals:
            return signals_beside_windows(run, ranks, gain_us, affected=affected if self.by_time else None)

        return duration_case(
            self.compared.evidence,
            setting,
            shares=shares,
            signals_of=signals_of,
            explain=lambda diagnosis: explained(diagnosis, run.data, every, every),
        )


def durations_of_run(run: RunEvidence, *, most: int = MAX_CALLS) -> tuple[RunDurations | None, list[str]]:
    """Return the durations of a run and warnings about them; ``None`` where there are none, or where steps decide."""
    if run.compared or not run.durations or not run.ranks:
        return None, []
    warnings = [*_missing(run)]
    try:
        found = stored_durations(run.durations, run.world_size or len(run.ranks), most=most)
    except InputError as error:
        return None, [*warnings, f"durations of collectives are of no use: {error.reason}"]
    if found is None:
        return None, warnings
    durations, are_issued = found
    wording = durations.wording
    durations = replace(
        durations,
        wording=replace(wording, more_evidence=_CAPTURE, more_order=wording.more_order.replace(wording.more_evidence, _CAPTURE)),
    )
    timed = in_steps_of_run(durations, _steps_at(run)) if are_issued else durations
    compared = compare_durations(timed)
    by_time = are_issued and compared.evidence.steps is not None and bool(compared.matched.matching.matches)
    if are_issued and not by_time:
        durations.warnings.clear()
        compared = compare_durations(durations)
    result = RunDurations(durations.kind, compared, by_time)
    return result, [*warnings, *compared.warnings, _coverage(run, result)]


def _missing(run: RunEvidence) -> Sequence[str]:
    """Return the warnings about what the helpers could not record."""
    blocks = {rank: rows for rank, rows in run.durations.items() if rows}
    reasons = {rank: rows[-1].missing for rank, rows in blocks.items() if rows[-1].missing is not None}
    warnings = []
    if reasons:
        warnings.append(f"no durations of collectives from {ranks_text(sorted(reasons))}: {next(iter(reasons.values()))}")
    if lost := sum(block.lost for rows in blocks.values() for block in rows):
        warnings.append(f"{counted(lost, 'duration')} of collectives were overwritten before they could be read")
    if damaged := {rank: number for rank, rows in blocks.items() if (number := sum(block.damaged for block in rows))}:
        count = counted(sum(damaged.values()), "record")
        warnings.append(f"{count} of collectives of {ranks_text(sorted(damaged))} left out, which make no sense")
    return warnings


def _coverage(run: RunEvidence, found: RunDurations) -> str:
    ranks, evidence = len(found.compared.matched.blame.ranks), found.compared.evidence
    steps = "steps that are not known" if evidence.steps is None else f"{evidence.steps:,} of {len(run.table.steps):,} steps"
    inferred = "" if found.by_time or evidence.steps is None else ", inferred from repeating operations"
    share = "" if evidence.explained is None else f", {evidence.explained:.0%} of the communication"
    return (
        f"the step records do not know own times; durations of collectives ({_NAMES[found.source]}) cover "
        f"{ranks} of {counted(run.world_size or len(run.ranks), 'rank')}, {steps}{inferred}{share}"
    )


def _steps_at(run: RunEvidence) -> StepsAt:
    """Return the function from a rank and times to the steps that the rank's host was in."""
    known = {}
    walls = run.table.stored("wall_us")
    for row, rank in enumerate(run.ranks):
        there = np.flatnonzero(np.isfinite(walls[row]))
        starts = run.table.starts(row)[there]
        order = np.argsort(starts, kind="stable")
        there, starts = there[order], starts[order]
        steps, ends = run.table.steps[there], starts + (1000 * walls[row][there].astype(np.float64)).astype(np.int64)
        # The time of a step may be that of the device, while the host was in the step until the next one began.
        ends[:-1] = np.where(np.diff(steps) == 1, np.maximum(ends[:-1], starts[1:]), ends[:-1])
        known[rank] = (starts, ends, steps)

    def steps_at(rank: int, unix_ns: NDArray[np.int64]) -> list[int | None]:
        if rank not in known or not len(known[rank][0]):
            return [None] * len(unix_ns)
        starts, ends, steps = known[rank]
        at = np.searchsorted(starts, unix_ns, side="right") - 1
        inside = (at >= 0) & (unix_ns < ends[at] + _SLACK_NS)
        return [step if there else None for step, there in zip(steps[at].tolist(), inside.tolist(), strict=True)]

    return steps_at
