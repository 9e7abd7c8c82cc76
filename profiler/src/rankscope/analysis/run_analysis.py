"""Analysis of a run directory: step records first, supplemented by profiled windows."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.collectives.arrivals import CollectiveColumnsBuilder
from rankscope.analysis.collectives.matched import MatchedCollectives, match_windows
from rankscope.analysis.collectives.traffic.links import StatedLink, run_fabric
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.collectives.world import least_ranks
from rankscope.analysis.costs.memory import memory_of
from rankscope.analysis.costs.pipeline import pipeline_of
from rankscope.analysis.costs.rare_steps import rare_steps_of
from rankscope.analysis.costs.recorder_cost import recorder_share
from rankscope.analysis.costs.run_costs import costs_of_run
from rankscope.analysis.costs.step_costs import usual_steps
from rankscope.analysis.durations.blocks import read_durations
from rankscope.analysis.durations.run_durations import durations_of_run
from rankscope.analysis.evidence.compared import own_times_of_groups
from rankscope.analysis.evidence.damage import unreadable_files
from rankscope.analysis.evidence.hardware import device_memory
from rankscope.analysis.evidence.liveness import liveness, silence_s
from rankscope.analysis.evidence.peers import peer_groups
from rankscope.analysis.evidence.step_table.chosen_steps import ALL_STEPS, StepRange
from rankscope.analysis.evidence.step_table.rank_columns import ALL_METRICS, LOADED_METRICS
from rankscope.analysis.evidence.step_table.rank_files import ReportProgress, ignore_progress
from rankscope.analysis.evidence.step_table.recent import MOST_RECORDS, EarlierTotals
from rankscope.analysis.evidence.step_table.simultaneous import find_step_numbers
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.evidence.throughput import throughput_of
from rankscope.analysis.evidence.typical import typical_steps
from rankscope.analysis.hang.activity import read_activities, standing_rank
from rankscope.analysis.hang.hang_result import StandingRank
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.report.assembly import (
    NO_COLLECTIVES,
    assemble,
    attribution_of_blame,
    attribution_of_steps,
    matching_result,
)
from rankscope.analysis.report.ranks import rank_result, typical_values
from rankscope.analysis.result.analysis import Analysis, Cost, Source
from rankscope.analysis.run_warnings import warnings_of_run
from rankscope.analysis.trace.possible import is_possible_breakdown, is_possible_collective
from rankscope.analysis.verdict.endings import endings
from rankscope.analysis.verdict.hung_run import hung_verdict
from rankscope.analysis.verdict.rare_verdict import with_rare_steps
from rankscope.analysis.verdict.run_verdict import run_verdict, setting_of
from rankscope.analysis.verdict.slow_links import with_slow_links
from rankscope.analysis.verdict.stalled_verdict import with_stalled_line
from rankscope.base.process import collector_paused
from rankscope.runs.durations import DurationBlock
from rankscope.runs.reader import RunReader
from rankscope.runs.records import STAGE_DIMENSIONS, RankInfo
from rankscope.runs.world_size import recorded_world_size

STANDING_SECONDS: Final = 10.0
"""Silence from which on it is read what the ranks are doing."""
_KERNEL_RANKS: Final = 4
"""Number of ranks whose costliest kernels are read; a few suffice, as all ranks compute in the same data types."""


@collector_paused()
def analyze_run(
    path: os.PathLike[str],
    attempt: int | None = None,
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "USD",
    links: Sequence[StatedLink] = (),
    steps: StepRange = ALL_STEPS,
) -> Analysis:
    """Analyse an attempt of a run, the last by default; see ``engine.analyze``."""
    run = read_evidence(path, attempt, steps=steps)
    return analysis_of(run, price_per_gpu_hour=price_per_gpu_hour, currency=currency, links=links, chosen=steps != ALL_STEPS)


def analysis_of(
    run: RunEvidence,
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "USD",
    links: Sequence[StatedLink] = (),
    chosen: bool = False,
) -> Analysis:
    """Return the analysis of the evidence read from a run. ``chosen``: of some steps, so a hang after them is no verdict."""
    recorded = run.reader.info
    if price_per_gpu_hour is None and recorded.price_per_gpu_hour is not None:
        price_per_gpu_hour, currency = recorded.price_per_gpu_hour, recorded.currency or currency
    table = run.table
    throughput = throughput_of(run.typical.table, usual_steps(run.typical.table), run.infos, run.world_size)
    costs = costs_of_run(run, throughput)
    durations, about_durations = durations_of_run(run)
    setting = setting_of(run, price_per_gpu_hour, currency)
    by_durations = None if durations is None else partial(durations.case, run)
    verdict, findings = run_verdict(run, setting, costs, by_durations)
    setting = replace(setting, judged_ranks=verdict.judged_ranks)
    rare = rare_steps_of(run)
    verdict, findings = with_rare_steps(verdict, findings, rare, setting, costs(()))
    late = durations is not None and verdict.evidence_source == durations.evidence.source.kind
    has_collectives = len(run.matched.records.rank) > 0
    collectives = matching_result(run.matched, run_fabric(run.infos, links)) if has_collectives else NO_COLLECTIVES
    breakdowns = {rank: reduction.breakdowns for rank, reduction in run.windows.items()}
    verdict, findings = with_slow_links(verdict, findings, collectives.by_op, breakdowns, run=run.path)
    verdict, findings = with_stalled_line(verdict, findings, run)
    if not chosen and (hung := hung_verdict(run)) is not None:
        verdict, findings = hung[0], [hung[1], *findings]
    ended = endings(run.infos)
    failure = None if verdict.kind == "hang" else ended.failure()
    next_actions = ended.advise(verdict, run.hosts)
    if chosen and verdict.kind == "insufficient_data":
        next_actions = [f"Choose more steps: rankscope analyze {shlex.quote(run.path)} --steps A:B"]
    verdict = msgspec.structs.replace(verdict, next=next_actions, failure=failure)
    has_record = table.has_record
    if durations is not None and late:
        attribution = attribution_of_blame(durations.evidence.matched.blame, durations.evidence.source.kind)
    elif run.matching.matches:
        attribution = attribution_of_blame(run.blame, "windows")
    else:
        attribution = attribution_of_steps(run.compared)
    kernels = [row for rank in run.ranks[:_KERNEL_RANKS] for row in run.reader.kernels(table.attempt, rank)]
    memory = memory_of(table, device_memory(run.reader, run.infos))
    return assemble(
        Source(
            kind="run",
            path=run.path,
            ranks=int(has_record.any(axis=1).sum()),
            world_size=run.world_size,
            steps=len(table.steps) + run.earlier.steps,
            coverage=_coverage(run, chosen=chosen),
            simulated=recorded.simulated,
            run_id=recorded.run_id,
            name=recorded.name,
            # What the recorder cost is known of all steps only.
            recorder_share=None if chosen else recorder_share(table, run.infos, earlier_us=run.earlier.wall_us),
            recorder_budget=max((info.budget for info in run.infos.values() if info.budget is not None), default=None),
            gpu_hour=None if price_per_gpu_hour is None else Cost(amount=price_per_gpu_hour, currency=currency),
            unreadable=unreadable_files(run.reader),
            warnings=[*warnings_of_run(run, [] if failure is not None else ended.sentences(), chosen=chosen), *about_durations],
        ),
        [
            rank_result(
                rank,
                breakdowns=run.windows[rank].breakdowns,
                blame=run.blame,
                steps=count + run.earlier.records.get(rank, 0),
                attempt=table.attempt,
                info=run.infos.get(rank),
                typical=typical,
                clock=run.matched.clocks.rank_clocks.get(rank),
                activity=_activity(run, rank),
            )
            for rank, count, typical in zip(run.ranks, has_record.sum(axis=1).tolist(), typical_values(table), strict=True)
        ],
        (verdict, findings),
        setting,
        matched=run.matched,
        collectives=collectives,
        attribution=attribution,
        costs=costs(()),
        kernels=kernels,
        pipeline=run.pipeline,
        rare_steps=rare,
        throughput=throughput,
        memory=memory,
    )


def read_evidence(
    path: os.PathLike[str],
    attempt: int | None = None,
    *,
    report: ReportProgress = ignore_progress,
    metrics: Collection[str] = LOADED_METRICS,
    most_records: int = MOST_RECORDS,
    steps: StepRange = ALL_STEPS,
    on_records: Callable[[RunReader, StepTable], None] | None = None,
) -> RunEvidence:
    """Read an attempt of a run, the last by default. Raises ``InputError``.

    ``on_records`` is called when the step records have been read, and the rest has not.
    ``report`` and ``metrics`` are those of ``StepTable.load``. Of a run with more than ``most_records`` step records only the
    last steps are read. Durations of collectives have no step: of chosen ``steps`` none are read.
    """
    reader = RunReader(Path(path))
    about = reader.attempt(attempt if attempt is not None else max(reader.attempts(), default=0))
    if about is not None and any(about.layout.get(name, 1) > 1 for name in STAGE_DIMENSIONS):
        # Costs of a pipeline are means over all ranks: reading them on request would read all files twice.
        metrics = {*metrics, *ALL_METRICS}
    table = StepTable.load(reader, attempt, report=report, metrics=metrics, most_records=most_records)
    infos = reader.infos(table.attempt)
    numbers = find_step_numbers(table, infos)
    table = steps.cut(table.renumbered(numbers), path)
    if on_records is not None:
        on_records(reader, table)
    windows: dict[int, Reduction] = {}
    damaged = Counter(table.damaged)
    builder, least = CollectiveColumnsBuilder(), 0
    for rank in map(int, table.ranks):
        breakdowns = list(reader.windows(table.attempt, rank))
        collectives = list(reader.collectives(table.attempt, rank))
        possible = list(filter(is_possible_collective, collectives))
        builder.add(rank, steps.of(numbers.collectives(rank, possible)))
        # Only sends and receives are needed as records: they show stages and micro-batches.
        messages = steps.of(numbers.collectives(rank, [row for row in possible if row.p2p]))
        usable = list(filter(is_possible_breakdown, breakdowns))
        windows[rank] = Reduction(breakdowns=steps.of(numbers.breakdowns(rank, usable)), collectives=messages)
        damaged[rank] += len(breakdowns) - len(usable) + len(collectives) - len(possible)
        least = max(least, least_ranks(rank, possible))
    world_size = world_size_of(reader, table, infos, least)
    matched = match_windows(windows, infos, world_size, builder.build())
    return evidence_of(
        reader,
        table,
        infos,
        windows,
        matched,
        world_size=world_size,
        damaged=+damaged,
        now=time.time(),
        earlier=table.earlier,
        durations=lambda: read_durations(reader, table.attempt, list(windows)) if steps == ALL_STEPS else {},
    )


def evidence_of(
    reader: RunReader,
    table: StepTable,
    infos: dict[int, RankInfo],
    windows: dict[int, Reduction],
    matched: MatchedCollectives,
    *,
    world_size: int | None,
    damaged: Mapping[int, int],
    now: float,
    earlier: EarlierTotals | None = None,
    durations: Callable[[], Mapping[int, Sequence[DurationBlock]]] = dict,
) -> RunEvidence:
    """Return the evidence of an attempt: the data read, and groups, pipeline and liveness derived from it.

    ``now``: Unix seconds. ``durations`` reads the durations of collectives; it is called if no own times can be compared.
    """
    typical = typical_steps(table, infos)
    compared = own_times_of_groups(typical.table, peer_groups(table.numbers.comparable(table.ranks.tolist()), infos))
    about = reader.attempt(table.attempt)
    over = table.attempt != max(reader.attempts(), default=table.attempt)
    silent_s = silence_s(table, infos, start_unix_ns=(about or reader.info).start_unix_ns, now=now)
    stands = not over and silent_s > STANDING_SECONDS
    return RunEvidence(
        reader=reader,
        table=table,
        typical=typical,
        compared=compared,
        infos=infos,
        windows=windows,
        world_size=world_size,
        matched=matched,
        damaged=damaged,
        pipeline=pipeline_of(typical.table, infos, None if about is None else about.pipeline),
        liveness="over" if over else liveness(table, infos, silent_s),
        silent_s=silent_s,
        activities=read_activities(reader, table.attempt, infos, now_unix_ns=round(now * 1e9)) if stands else None,
        earlier=earlier or EarlierTotals(),
        durations={} if compared else durations(),
    )


def world_size_of(reader: RunReader, table: StepTable, infos: Mapping[int, RankInfo], least: int) -> int | None:
    """Return the expected number of ranks; ``None`` if it is not recorded and no rank is known to be missing.

    ``least``: number of ranks that the job has at least, by the numbers of its ranks and the process groups of profiled steps.
    """
    recorded_size = recorded_world_size(reader.attempt(table.attempt), infos.values())
    if recorded_size is None:
        return least if least > len(table.ranks) else None
    return max(recorded_size, least, len(table.ranks)) or None


def _activity(run: RunEvidence, rank: int) -> StandingRank | None:
    activities = run.activities
    return standing_rank(activities, rank) if activities is not None and rank in activities.doing else None


def _coverage(run: RunEvidence, *, chosen: bool) -> float | None:
    expected = (run.world_size or len(run.ranks)) * (len(run.table.steps) + run.earlier.steps)
    expected += 0 if chosen else sum(info.unwritten_steps for info in run.infos.values())
    recorded = int(run.table.has_record.sum()) + sum(run.earlier.records.values())
    return min(1.0, recorded / expected) if expected else None
