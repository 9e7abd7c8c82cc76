"""Analysis of a few profiled steps of a run alone, as after a capture, without the step records of all steps."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final

from rankscope.analysis.collectives.blame import Blame
from rankscope.analysis.collectives.links import run_fabric
from rankscope.analysis.collectives.matched import Matched, match_windows
from rankscope.analysis.collectives.transfers import communication_parts
from rankscope.analysis.collectives.windows import Reduction, odd_windows
from rankscope.analysis.collectives.world import least_ranks
from rankscope.analysis.costs.ledger import ledger_of_blame
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.costs.window_costs import costs_of_windows
from rankscope.analysis.evidence.device_times import times_of_windows
from rankscope.analysis.inference.device_stragglers import judge_windows, window_named
from rankscope.analysis.report.assessment import assessed_windows
from rankscope.analysis.report.ranks import rank_result
from rankscope.analysis.result.analysis import Analysis, Finding, Source, Verdict
from rankscope.analysis.trace.possible import are_possible_steps, is_possible_breakdown, is_possible_collective
from rankscope.analysis.trace_analysis import imposed_result, matching_result
from rankscope.analysis.verdict.bottleneck import shares_of
from rankscope.analysis.verdict.builders import Setting, among, insufficient, limits, no_straggler, ranks_were, straggler
from rankscope.analysis.verdict.slow_links import with_slow_links
from rankscope.runs.control import MAX_STEPS
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepRecord
from rankscope.runs.step_columns import records_of
from rankscope.runs.world_size import told_world_size

_MORE_STEPS: Final = 20
"""Steps to capture next. More than ``late.ENOUGH_STEPS``, so that steps are the units of chance even where some show nothing."""


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
    held = {rank: captured_steps(reader, attempt, rank, steps) for rank in sorted(ranks)}
    told = told_world_size(reader.attempt(attempt), infos.values())
    least = max((least_ranks(rank, reduction.collectives) for rank, reduction in held.items()), default=0)
    world_size = max(len(held) if told is None else told, least)
    matched = match_windows(held, infos, world_size)
    matching, blame = matched.matching, matched.blame
    collectives = matching_result(matched, run_fabric(infos, ()))
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
    )
    costs = _costs(held, blame if matching.matches else None, world_size)
    verdict, findings = _verdict(held, matched, costs, setting)
    verdict, findings = with_slow_links(
        verdict, findings, collectives.by_op, {rank: one.breakdowns for rank, one in held.items()}, run=setting.run
    )
    parts = communication_parts(matching.matches)
    missing = [rank for rank, reduction in held.items() if not reduction.breakdowns]
    analysis = Analysis(
        source=Source(
            kind="run",
            path=os.fspath(reader.path),
            ranks=len(held) - len(missing),
            world_size=world_size,
            steps=len(steps),
            coverage=min(1.0, sum(len({row.step for row in one.breakdowns}) for one in held.values()) / (len(held) * len(steps)))
            if held
            else None,
            simulated=reader.info.simulated,
            run_id=reader.info.run_id,
            name=reader.info.name,
            warnings=[f"rank {rank} has no profile of these steps" for rank in missing[:8]]
            + odd_windows(reader.path, attempt, {rank: reduction.breakdowns for rank, reduction in held.items()}),
        ),
        ranks=[
            rank_result(
                rank,
                breakdowns=reduction.breakdowns,
                blame=blame,
                steps=len(reduction.breakdowns),
                attempt=attempt,
                info=infos.get(rank),
                communication_parts=parts.get(rank),
                clock=matched.clocks.found.get(rank),
            )
            for rank, reduction in held.items()
        ],
        collectives=collectives,
        imposed_wait=imposed_result(blame) if matching.matches else [],
        imposed_wait_source="windows" if matching.matches else None,
        ledger=ledger_of_blame(blame, "windows"),
        verdict=verdict,
        findings=findings,
    )
    return assessed_windows(analysis, costs, matched)


def _costs(
    held: Mapping[int, Reduction], blame: Blame | None, world_size: int | None, *, without: Collection[int] = ()
) -> Costs | None:
    """Return the costs of all ranks, leaving out those in ``without``."""
    return costs_of_windows(held, blame, world_size=world_size, source="windows", without=without)


def _verdict(
    held: Mapping[int, Reduction], matched: Matched, costs: Costs | None, setting: Setting
) -> tuple[Verdict, list[Finding]]:
    blame, matching = matched.blame, matched.matching
    profiled = [row for reduction in held.values() for row in reduction.breakdowns]
    again = _MORE_STEPS if setting.step_count < _MORE_STEPS else MAX_STEPS
    counts = [len(reduction.breakdowns) for reduction in held.values() if reduction.breakdowns]
    if not profiled:
        return insufficient("none of these steps has been profiled", run=setting.run, lack="short_capture", capture=again), []
    shares = shares_of(costs, matched.figures)
    if setting.world_size == 1:
        return no_straggler(shares, setting, confidence=None, why="There is one rank, so no rank waits for another")
    times = times_of_windows(held, setting.world_size)
    steps = max(counts)
    window = sum(row.window_us for row in profiled) / len(counts)
    found = judge_windows(blame, matched.waits, times, window)
    breakdowns = {one: reduction.breakdowns for one, reduction in held.items()}
    named = window_named(found, blame, times, breakdowns, window, steps=steps)
    if found.suspects:
        missing = f"{ranks_were(found.suspects)} last, but so rarely that it may be chance; capture more steps"
        return insufficient(missing, run=setting.run, lack="short_capture", capture=again), limits(shares, setting, lead="")
    if named is None and not matching.matches and not found.is_whole:
        missing = "no collective of these steps could be matched across the ranks"
        return insufficient(missing, run=setting.run, lack="short_capture", capture=again), limits(
            shares, setting, lead="On the ranks at hand "
        )
    if named is None:
        restriction = "" if found.is_whole else among(len(blame.ranks), setting.world_size, "matched collectives")
        return no_straggler(
            shares, setting, confidence=None, why=f"In these steps no rank makes the others wait beyond chance{restriction}"
        )
    verdict, findings = straggler(named, setting)
    besides = _costs(held, blame, setting.world_size, without=named.ranks)
    return verdict, [*findings, *limits(shares_of(besides), setting, lead="Besides that, ")]
