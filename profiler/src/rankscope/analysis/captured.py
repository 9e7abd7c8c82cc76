"""Analysis of a few profiled steps of a run alone, as after a capture, without the step records of all steps."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final

from rankscope.analysis.collectives.communication import communication_parts
from rankscope.analysis.collectives.matched import MatchedCollectives, match_windows
from rankscope.analysis.collectives.traffic.links import run_fabric
from rankscope.analysis.collectives.windows import Reduction, suspicious_windows
from rankscope.analysis.collectives.world import least_ranks
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.costs.window_costs import costs_of_windows
from rankscope.analysis.inference.profiled_steps import profile_of_windows
from rankscope.analysis.report.assembly import assemble, attribution_of_blame, matching_result
from rankscope.analysis.report.ranks import rank_result
from rankscope.analysis.result.analysis import Analysis, Source
from rankscope.analysis.trace.possible import are_possible_steps, is_possible_breakdown, is_possible_collective
from rankscope.analysis.verdict.bottleneck import shares_of
from rankscope.analysis.verdict.builders import MissingEvidence, Setting, among_compared
from rankscope.analysis.verdict.job_verdict import Case, verdict_of, with_judgement
from rankscope.analysis.verdict.slow_links import with_slow_links
from rankscope.runs.control import MAX_STEPS
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepRecord
from rankscope.runs.step_columns import records_of
from rankscope.runs.world_size import recorded_world_size

_MORE_STEPS: Final = 20
"""Steps to capture next. More than ``profiled.ENOUGH_STEPS``, so that steps are the units of chance even if some show nothing."""


def captured_steps(reader: RunReader, attempt: int, rank: int, steps: range) -> Reduction:
    """Read the records of ``rank`` in its profiled ``steps``, without those whose times are impossible."""
    return Reduction(
        breakdowns=[row for row in reader.windows(attempt, rank) if row.step in steps and is_possible_breakdown(row)],
        collectives=[row for row in reader.collectives(attempt, rank) if row.step in steps and is_possible_collective(row)],
    )


def step_records(reader: RunReader, attempt: int, rank: int, steps: range) -> list[StepRecord]:
    """Read the step records of ``rank`` in ``steps``, without those whose times are impossible."""
    chosen = [
        rows[(rows["step"] >= steps.start) & (rows["step"] < steps.stop) & are_possible_steps(rows)]
        for rows in reader.step_rows(attempt, rank)
    ]
    if not any(map(len, chosen)):
        return []
    # Read after the rows, because a step's event is written before its row.
    events = {event.step: event for event in reader.events(attempt, rank) if event.step in steps}
    return [record for rows in chosen for record in records_of(rows, events)]


def analyze_captured(reader: RunReader, attempt: int, ranks: Collection[int], steps: range) -> Analysis:
    """Analyse ``steps`` on ``ranks``; a rank without a profile of any of them causes a warning."""
    infos = {rank: info for rank in sorted(ranks) if (info := reader.rank(attempt, rank)) is not None}
    reductions = {rank: captured_steps(reader, attempt, rank, steps) for rank in sorted(ranks)}
    stated = recorded_world_size(reader.attempt(attempt), infos.values())
    least = max((least_ranks(rank, reduction.collectives) for rank, reduction in reductions.items()), default=0)
    world_size = max(len(reductions) if stated is None else stated, least)
    matched = match_windows(reductions, infos, world_size)
    setting = Setting(
        source="windows",
        world_size=world_size,
        steps=(steps.start, steps.stop),
        step_count=len(steps),
        unit="step",
        accelerated=any(info.device_kind != "cpu" for info in infos.values()),
        hosts={rank: info.host for rank, info in infos.items()},
        price_per_gpu_hour=reader.info.price_per_gpu_hour,
        currency=reader.info.currency or "USD",
        run=os.fspath(reader.path),
        capture=_MORE_STEPS if len(steps) < _MORE_STEPS else MAX_STEPS,
    )
    breakdowns = {rank: reduction.breakdowns for rank, reduction in reductions.items()}
    collectives = matching_result(matched, run_fabric(infos, ()))
    costs = _costs(reductions, matched, world_size)
    answer = with_slow_links(
        *verdict_of(_case(reductions, matched, costs, setting)), collectives.by_op, breakdowns, run=setting.run
    )
    parts = communication_parts(matched.matching.matches)
    missing = [rank for rank, rows in breakdowns.items() if not rows]
    profiled = sum(len({row.step for row in rows}) for rows in breakdowns.values())
    return assemble(
        Source(
            kind="run",
            path=os.fspath(reader.path),
            ranks=len(reductions) - len(missing),
            world_size=world_size,
            steps=len(steps),
            coverage=min(1.0, profiled / (len(reductions) * len(steps))) if reductions else None,
            simulated=reader.info.simulated,
            run_id=reader.info.run_id,
            name=reader.info.name,
            warnings=[f"rank {rank} has no profile of these steps" for rank in missing[:8]]
            + suspicious_windows(reader.path, attempt, breakdowns),
        ),
        [
            rank_result(
                rank,
                breakdowns=rows,
                blame=matched.blame,
                steps=len(rows),
                attempt=attempt,
                info=infos.get(rank),
                communication_parts=parts.get(rank),
                clock=matched.clocks.rank_clocks.get(rank),
            )
            for rank, rows in breakdowns.items()
        ],
        answer,
        setting,
        matched=matched,
        collectives=collectives,
        attribution=attribution_of_blame(matched.blame, "windows"),
        costs=costs,
    )


def _costs(
    reductions: Mapping[int, Reduction], matched: MatchedCollectives, world_size: int, *, without: Collection[int] = ()
) -> Costs | None:
    """Return the costs of all ranks, leaving out those in ``without``."""
    blame = matched.blame if matched.matching.matches else None
    return costs_of_windows(reductions, blame, world_size=world_size, source="windows", without=without)


def _case(reductions: Mapping[int, Reduction], matched: MatchedCollectives, costs: Costs | None, setting: Setting) -> Case:
    profile = profile_of_windows(reductions, matched, setting.world_size, setting.hosts)
    if profile is None:
        return Case(setting, {}, missing=MissingEvidence("none of these steps has been profiled", "short_capture"))
    judgement = profile.judge()
    restriction = (
        "" if judgement.is_tested else among_compared(len(matched.blame.ranks), setting.world_size, "matched collectives")
    )
    missing = "no collective of these steps could be matched across the ranks"
    unmatched = MissingEvidence(missing, "short_capture", lead="On the ranks at hand ")
    return with_judgement(
        Case(
            setting,
            shares_of(costs, matched.figures),
            calm=f"In these steps no rank makes the others wait beyond chance{restriction}",
        ),
        judgement,
        profile.describe,
        more=MissingEvidence("capture more steps", "short_capture", lead=""),
        shares_without=lambda ranks: shares_of(_costs(reductions, matched, setting.world_size, without=ranks)),
        unmatched=None if matched.matching.matches or setting.world_size == 1 else unmatched,
    )
