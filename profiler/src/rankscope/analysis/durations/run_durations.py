"""Verdict on a run whose step records do not know own times, from the durations of collectives that its helpers recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.arrivals import Numbers
from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.collectives.growing_columns import NONE
from rankscope.analysis.collectives.world import least_ranks_of_groups
from rankscope.analysis.durations.blocks import calls_of_blocks, is_usable, last_blocks
from rankscope.analysis.durations.duration_calls import MAX_CALLS
from rankscope.analysis.durations.job_durations import compare_durations
from rankscope.analysis.durations.sources import Durations, reader
from rankscope.analysis.inference.reasons.hardware_reason import explain_diagnosis
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.inference.reasons.signals import Signals
from rankscope.analysis.result.text import counted
from rankscope.analysis.verdict.builders import Setting
from rankscope.analysis.verdict.durations_case import DurationEvidence, duration_case
from rankscope.analysis.verdict.job_verdict import Case
from rankscope.analysis.verdict.reasons import signals_beside_windows
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text
from rankscope.runs.durations import DurationBlock

_CAPTURE = "capture some steps with `rankscope capture`"
_SLACK_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class RunDurations:
    """Durations of the collectives of a run, compared."""

    evidence: DurationEvidence
    by_time: bool
    """True if steps are those of the run; otherwise they are inferred from repeating operations, and numbered from 0."""

    def case(self, run: RunEvidence, setting: Setting, shares: Figures) -> Case:
        """Return the judgement on the ranks. ``setting``, ``shares``: those of the run."""
        are_known = self.evidence.in_steps
        setting = replace(
            setting,
            source=self.evidence.source.kind,
            steps=self.evidence.steps if self.by_time else setting.steps if are_known else None,
            step_count=setting.step_count if are_known else 1,
            unit="step" if are_known else "window",
        )
        every = np.ones(len(run.table.steps), dtype=bool)

        def signals_of(ranks: Sequence[int], gain_us: float, affected: Collection[int] | None) -> Signals:
            return signals_beside_windows(run, ranks, gain_us, affected=affected if self.by_time else None)

        return duration_case(
            self.evidence,
            setting,
            shares=shares,
            signals_of=signals_of,
            explain=lambda diagnosis: explain_diagnosis(diagnosis, run, every, every),
        )


def durations_of_run(run: RunEvidence) -> tuple[RunDurations | None, list[str]]:
    """Return the durations of a run and warnings about them; ``None`` where there are none, or where steps decide."""
    if run.compared or not run.durations or not run.ranks:
        return None, []
    warnings = [*_missing(run)]
    try:
        durations = _stored_durations(run.durations, run.world_size or len(run.ranks))
    except InputError as error:
        return None, [*warnings, f"durations of collectives are of no use: {error.reason}"]
    if durations is None:
        return None, warnings
    source = durations.source
    more_order = source.more_order.replace(source.more_evidence, _CAPTURE)
    source = msgspec.structs.replace(source, more_evidence=_CAPTURE, more_order=more_order)
    durations = replace(durations, source=source)
    timed = _in_steps_of_run(durations, run)
    evidence = compare_durations(durations if timed is None else timed)
    by_time = timed is not None and evidence.in_steps and bool(evidence.matched.matching.matches)
    if timed is not None and not by_time:
        durations.warnings.clear()
        evidence = compare_durations(durations)
    result = RunDurations(evidence, by_time)
    return result, [*warnings, *evidence.warnings, _coverage(run, result)]


def _stored_durations(blocks: Mapping[int, Sequence[DurationBlock]], world_size: int) -> Durations | None:
    """Return the durations of a run from the blocks of its ranks.

    Of all ranks together at most the last ``MAX_CALLS`` operations count. Blocks of the source of most ranks are used. ``None``
    where there are none. Raises ``InputError`` if no operation has a duration.
    """
    ranks = {rank: [block for block in rows if is_usable(block)] for rank, rows in blocks.items()}
    sources = [rows[-1].source for rows in ranks.values() if rows]
    if not sources:
        return None
    source = max(sources, key=sources.count)
    each = max(1, MAX_CALLS // len(ranks))
    calls = {rank: calls_of_blocks(rows) for rank, every in ranks.items() if (rows := last_blocks(every, source, each))}
    groups = [group for of_rank in calls.values() for group in of_rank.groups.values()]
    members = [group.ranks for group in groups if group.ranks]
    world_size = max(world_size, least_ranks_of_groups([calls, *members], [group.size or 0 for group in groups]))
    return reader(source).stored_durations(calls, world_size)


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


def _coverage(run: RunEvidence, durations: RunDurations) -> str:
    evidence = durations.evidence
    ranks, count = len(evidence.matched.blame.ranks), evidence.step_count
    steps = "steps that are not known" if count is None else f"{count:,} of {len(run.table.steps):,} steps"
    inferred = "" if durations.by_time or count is None else ", inferred from repeating operations"
    share = "" if evidence.explained is None else f", {evidence.explained:.0%} of the communication"
    return (
        f"the step records do not know own times; durations of collectives ({evidence.source.title}) cover "
        f"{ranks} of {counted(run.world_size or len(run.ranks), 'rank')}, {steps}{inferred}{share}"
    )


def _in_steps_of_run(durations: Durations, run: RunEvidence) -> Durations | None:
    """Return the durations in the steps that the run has recorded, by the times at which the host issued the operations.

    Operations are left out in steps of which any rank has only a part, as at the ends of what was recorded. ``None`` where these
    times are not known.
    """
    calls = durations.calls
    if not durations.is_timed:
        return None
    step = np.full(len(calls.rank), NONE)
    for rank, part in calls.of_ranks():
        step[part] = _steps_at(run, rank, calls.issued_ns[part])
    # One collective is in one step, even if hosts issue it at the border of two: that of the first rank.
    key = calls.issued(calls.is_matchable).key
    matched = np.flatnonzero((key >= 0) & (step != NONE))
    of_key = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
    of_key[key[matched[::-1]]] = step[matched[::-1]]
    step[matched] = of_key[key[matched]]
    complete_steps = set.intersection(*(_complete_steps(step[part]) for _, part in calls.of_ranks()))
    in_complete = (step == NONE) | np.isin(step, list(complete_steps))
    steps = step[in_complete] if complete_steps else np.full(int(in_complete.sum()), NONE)
    return replace(durations, calls=calls.chosen(in_complete), steps_of=lambda _: steps)


def _complete_steps(step: Numbers) -> set[int]:
    """Return the steps that have about as many operations as most have."""
    numbers, counts = np.unique(step[step != NONE], return_counts=True)
    return set(numbers[counts >= _LEAST_COMPLETE * np.median(counts)].tolist()) if len(counts) else set()


_LEAST_COMPLETE: Final = 0.9


def _steps_at(run: RunEvidence, rank: int, unix_ns: Numbers) -> Numbers:
    """Return the steps that the host of a rank was in at some times; ``NONE`` where it was in none."""
    row = run.ranks.index(rank) if rank in run.ranks else None
    walls = None if row is None else run.table.stored("wall_us")[row]
    recorded = np.zeros(0, np.int64) if walls is None else np.flatnonzero(np.isfinite(walls))
    if row is None or walls is None or not len(recorded):
        return np.full(len(unix_ns), NONE)
    starts = run.table.starts(row)[recorded]
    order = np.argsort(starts, kind="stable")
    recorded, starts = recorded[order], starts[order]
    steps, ends = run.table.steps[recorded], starts + (1000 * walls[recorded].astype(np.float64)).astype(np.int64)
    # The time of a step may be that of the device, while the host was in the step until the next one began.
    ends[:-1] = np.where(np.diff(steps) == 1, np.maximum(ends[:-1], starts[1:]), ends[:-1])
    at = np.searchsorted(starts, unix_ns, side="right") - 1
    return np.where((at >= 0) & (unix_ns < ends[at] + _SLACK_NS), steps[at], NONE)
