"""Answer of the what-if analysis from a run: from the step records of an attempt, or the collectives of its profiled steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.matched import match_windows
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.costs.rare_steps import rare_time
from rankscope.analysis.evidence.compared import MINIMUM_STEPS, comparable_own_times
from rankscope.analysis.evidence.damage import table_warnings
from rankscope.analysis.evidence.peers import peer_groups
from rankscope.analysis.evidence.step_table.rank_files import ReportProgress, ignore_progress
from rankscope.analysis.evidence.step_table.simultaneous import find_step_numbers
from rankscope.analysis.evidence.step_table.steps import METRICS, Matrices, StepTable
from rankscope.analysis.evidence.typical import typical_steps
from rankscope.analysis.inference.profiled_steps import profile_of_windows
from rankscope.analysis.statistics import lower_median
from rankscope.analysis.trace.possible import is_possible_breakdown, is_possible_collective
from rankscope.analysis.whatif.cause_parts import CAUSE_METRICS, Causes
from rankscope.analysis.whatif.graph import Times
from rankscope.analysis.whatif.healed import HealingSavings
from rankscope.analysis.whatif.outcome import TOO_LITTLE, CostTerms, Outcome, answer, insufficient
from rankscope.analysis.whatif.step_graph import GRAPH_METRICS, build_step_graph
from rankscope.analysis.whatif.step_scenarios import MOST_CAUSES, StepScenarios, play_steps
from rankscope.analysis.whatif.whatif_result import WhatIf, WhatIfSource
from rankscope.analysis.whatif.windows_answer import whatif_of_windows
from rankscope.runs.named import NamedRun
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, RankInfo, StepBreakdown

TABLE_METRICS: Final = (*GRAPH_METRICS, *CAUSE_METRICS, "blocked_us")
"""Metrics of the step records that an answer needs."""
_SECONDS: Final = 1e-6


@dataclass(frozen=True, slots=True)
class AnswerGraph:
    """Graph that an answer from step records was played on."""

    causes: Causes
    """Causes that the records have a signal for, and their graph."""
    ranks: list[int]
    """Rank of each row of the graph."""
    combined: list[str]
    """Causes that cost most, which combinations are computed for."""


def whatif_with_graph(
    run: NamedRun, terms: CostTerms, report: ReportProgress = ignore_progress, *, table: StepTable | None = None
) -> tuple[WhatIf, AnswerGraph | None]:
    """Answer from an attempt of a run, and return its graph; ``None`` if the answer is not from step records.

    Hours count the world size of the attempt. ``report`` receives the number of ranks read. ``table`` with ``TABLE_METRICS`` at
    least, of an undamaged run: not read again. Raises ``InputError``.
    """
    reader = RunReader(run.path)
    attempt = run.chosen(reader.attempts())
    if table is None or table.attempt != attempt:
        table = StepTable.load(reader, attempt, report=report, metrics=TABLE_METRICS)
        table = table.renumbered(find_step_numbers(table, reader.infos(attempt)))
    table = replace(table, start_unix_ns=None)  # of no use here, and as large as two metrics
    ranks = table.ranks.tolist()
    infos = reader.infos(attempt)
    hosts = {rank: info.host for rank, info in infos.items()}
    about = reader.attempt(attempt)
    world_size = max(about.world_size if about else 0, *(info.world_size for info in infos.values()), len(ranks)) or None
    recorded = reader.info
    if terms.price_per_gpu_hour is None and recorded.price_per_gpu_hour is not None:
        terms = replace(terms, price_per_gpu_hour=recorded.price_per_gpu_hour, currency=recorded.currency or terms.currency)
    terms = replace(
        terms,
        accelerated=any(info.device_kind != "cpu" for info in infos.values()),
        world_size=world_size or len(ranks) or 1,
        trained_steps=len(table.steps) or None,
    )
    source = WhatIfSource(
        kind="run",
        path=os.fspath(run.path),
        name=recorded.name,
        evidence="steps",
        ranks=int(table.has_record.any(axis=1).sum()),
        world_size=world_size,
        steps=0,
        steps_left_out=len(table.steps),
        trained_steps=len(table.steps) or None,
        simulated=recorded.simulated,
        warnings=[*table_warnings(reader, table), *table.numbers.warnings()],
    )
    result, answer_graph = _from_steps(source, reader, table, infos, terms)
    if result.status == "ok":
        return result, answer_graph
    reductions = {rank: _profiled(reader, table, rank) for rank in ranks}
    matched = match_windows(reductions, infos, world_size)
    profile = profile_of_windows(reductions, matched, world_size, hosts)
    windows = {rank: reduction.breakdowns for rank, reduction in reductions.items()}
    by_windows = whatif_of_windows(windows, matched, profile, source, terms)
    if by_windows.status == "ok":
        return by_windows, None
    if not any(windows.values()):
        return result, None
    neither = f"{result.summary} Profiled steps do not help: {by_windows.summary.removeprefix(TOO_LITTLE)}"
    return msgspec.structs.replace(result, summary=neither), None


def _profiled(reader: RunReader, table: StepTable, rank: int) -> Reduction:
    """Return the breakdowns and collectives of a rank's profiled steps, without impossible ones."""
    collectives = list(filter(is_possible_collective, reader.collectives(table.attempt, rank)))
    return Reduction(
        breakdowns=table.numbers.breakdowns(rank, _profiled_steps(reader, table.attempt, rank)),
        collectives=table.numbers.collectives(rank, collectives),
    )


def _profiled_steps(reader: RunReader, attempt: int, rank: int) -> list[StepBreakdown]:
    return list(filter(is_possible_breakdown, reader.windows(attempt, rank)))


def _from_steps(
    source: WhatIfSource, reader: RunReader, table: StepTable, infos: dict[int, RankInfo], terms: CostTerms
) -> tuple[WhatIf, AnswerGraph | None]:
    ranks = [int(rank) for rank in table.ranks]
    if len(peer_groups(ranks, infos)) > 1:
        reason = "stages of a pipeline wait for each other at every micro-batch, which step records do not tell apart"
        return insufficient(source, reason), None
    typical = typical_steps(table, infos)
    comparable = table.numbers.comparable(ranks)
    if table.numbers.separate_ranks and len(comparable) < 2:
        return insufficient(source, table.numbers.incomparable()), None
    own_times = comparable_own_times(_meeting_at_the_end(typical.table) if typical.per_entry > 1 else typical.table, comparable)
    if own_times is None:
        return insufficient(source, _missing(source, table)), None
    count = len(own_times.steps)
    graph = build_step_graph(own_times.table, own_times.rows)
    if graph is None:
        reason = "no rank ever waited for another, as far as the step records tell, so it is not known where they meet"
        return insufficient(source, reason), None
    compared = own_times.ranks
    missing = (source.world_size or 0) - len(compared)
    steps = min(round(typical.per_entry * count), len(table.steps))
    source = msgspec.structs.replace(
        source,
        ranks=len(compared),
        steps=steps,
        steps_left_out=len(table.steps) - steps,
        rare_steps=int(typical.rare.sum()),
        rare_share=rare_time(typical).share,
        estimated_share=0.0 if graph.gaps is None else len(graph.gaps.rows) / (len(compared) * count),
        warnings=source.warnings
        + (
            [f"{missing} of {source.world_size} ranks are not in it: what they did counts as communication"]
            if missing > 0
            else []
        ),
    )
    hosts = {rank: info.host for rank, info in infos.items()}
    causes = Causes(graph, _busy_above(reader, table.attempt, compared) if terms.accelerated else None)
    played = play_steps(causes, HealingSavings(own_times, hosts))
    if not played.measured.any():
        return insufficient(source, _NO_TIME), None
    costly = sorted(played.causes, key=lambda part: -_total(part.lost))
    answer_graph = AnswerGraph(causes, compared, [part.key["cause"] for part in costly[:MOST_CAUSES]])
    return answer(_outcome(played, answer_graph, hosts), source, terms), answer_graph


_NO_TIME: Final = "the steps took no time by the clock that they were measured with"


def _total(times: Times | None) -> float:
    return 0.0 if times is None else float(times.sum())


def _busy_above(reader: RunReader, attempt: int, ranks: Sequence[int]) -> Times | None:
    """Return the device time per step above that of the rank in the middle, or 0, [ranks]; ``None`` unless every rank has
    complete profiled steps.
    """
    busy = np.array([_busy(_profiled_steps(reader, attempt, rank)) for rank in ranks])
    return np.maximum(busy - lower_median(busy), 0.0) if np.isfinite(busy).all() else None


def _busy(rows: Sequence[StepBreakdown]) -> float:
    """Return the mean compute and exposed copies per profiled step; NaN without a complete one."""
    times = [row.compute_us + row.exposed_memcpy_us for row in rows if not row.truncated]
    return float(np.mean(times)) if times else float("nan")


def _meeting_at_the_end(table: StepTable) -> StepTable:
    """Return a table whose entries end with a meeting, with all waiting in the last phase."""
    known_metrics = {metric: table.stored(metric).astype(np.float32) for metric in METRICS if table.is_known(metric)}
    last = [phase for phase in PHASES if f"own_{phase}_us" in known_metrics][-1:]
    known_metrics |= {f"blocked_{phase}_us": known_metrics["blocked_us"] for phase in last}
    return replace(table, values=Matrices(known_metrics, table.ranks, np.arange(len(table.steps))))


def _missing(source: WhatIfSource, table: StepTable) -> str:
    if source.world_size == 1:
        return "there is one rank, so no rank waits for another"
    if not source.ranks:
        return "no rank has left step records"
    if source.ranks < 2:
        return f"step records of {source.ranks} rank only, of a world of {source.world_size or 'unknown size'}"
    if not table.is_known("own_us"):
        return "the step records do not separate own time from waiting"
    if not (table.stored("wall_us") > 0).any():
        return _NO_TIME
    return f"{len(table.steps)} steps recorded, {MINIMUM_STEPS} steps after warm-up with own times of half of the ranks needed"


def _outcome(played: StepScenarios, answer_graph: AnswerGraph, hosts: Mapping[int, str]) -> Outcome:
    return Outcome(
        steps=answer_graph.causes.graph.table.steps,
        measured=played.measured,
        actual=played.actual,
        ideal=played.ideal,
        ranks=[replace(part, key={**part.key, "host": hosts.get(part.key["rank"])}) for part in played.ranks],
        hosts=played.hosts,
        slowest=played.slowest,
        without_slowest=played.without_slowest,
        savings_of="verdict",
        ops=played.phases,
        causes=played.causes,
        seconds=_SECONDS,
    )
