"""What-if from a run directory: the step records of an attempt, or the collectives of its profiled steps."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.damage import damage_warnings
from rankscope.analysis.own_time import MINIMUM_STEPS, Judged, judge
from rankscope.analysis.peers import peer_groups
from rankscope.analysis.possible import LAST_STEP, is_possible_breakdown, is_possible_collective
from rankscope.analysis.reduce import Reduction
from rankscope.analysis.steps import Matrix, StepTable
from rankscope.analysis.whatif.causes import CAUSES
from rankscope.analysis.whatif.outcome import MAX_RANKS, TOO_LITTLE, Outcome, Part, Terms, answer, insufficient, slowest_count
from rankscope.analysis.whatif.result import WhatIf, WhatIfSource
from rankscope.analysis.whatif.step_graph import (
    StepGraph,
    Stretches,
    actual_times,
    build_step_graph,
    ideal_times,
    of_amounts,
    of_rank,
    of_ranks,
)
from rankscope.analysis.whatif.windows_answer import Profiled, whatif_of_profiled
from rankscope.runs.named import NamedRun
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, Phase, RankInfo, StepRecord

_SECONDS: Final = 1e-6


class _Blocked:
    """Blocked time per phase, noted while records pass by on their way into the step table."""

    def __init__(self) -> None:
        # As bare numbers: objects of a thousand ranks' steps would fill memory.
        self._seen: dict[tuple[int, Phase], tuple[array[int], array[float]]] = {}

    def noting(self, rank: int, records: Iterable[StepRecord]) -> Iterator[StepRecord]:
        """The same records."""
        for record in records:
            on_device = record.device_us is not None and record.device_blocked_us is not None
            blocked = record.device_blocked_us if on_device else record.blocked_us
            if blocked is not None and 0 <= record.step <= LAST_STEP:
                for phase in PHASES:
                    if (time := blocked.get(phase)) is not None:
                        steps, times = self._seen.setdefault((rank, phase), (array("q"), array("d")))
                        steps.append(record.step)
                        times.append(time)
            yield record

    def matrices(self, ranks: Sequence[int], steps: NDArray[np.int64]) -> dict[Phase, Matrix]:
        """[ranks, steps] per phase that anybody was blocked in, NaN where there is none."""
        found: dict[Phase, Matrix] = {}
        for (rank, phase), (numbers, times) in self._seen.items():
            if rank in ranks:
                at = np.minimum(np.searchsorted(steps, numbers), len(steps) - 1)
                here = steps[at] == np.asarray(numbers)
                matrix = found.setdefault(phase, np.full((len(ranks), len(steps)), np.nan))
                matrix[ranks.index(rank), at[here]] = np.asarray(times)[here]
        return found


@dataclass(frozen=True, slots=True)
class Chain:
    """What an answer from step records was played on."""

    graph: StepGraph
    ranks: list[int]
    """Of the graph's rows."""
    causes: dict[str, Stretches]
    """What each cause took, where the records have a signal for it."""


def whatif_of_run(run: NamedRun, terms: Terms) -> WhatIf:
    """Answer from an attempt of a run; hours count its world size. Raises ``InputError``."""
    return whatif_with_chain(run, terms)[0]


def whatif_with_chain(
    run: NamedRun, terms: Terms, tell: Callable[[int, int], None] = lambda _done, _of: None
) -> tuple[WhatIf, Chain | None]:
    """The same, and what it was played on; ``None`` where that is not step records. ``tell`` hears how many ranks are read."""
    reader = RunReader(run.path)
    attempt = run.chosen(reader.attempts())
    blocked = _Blocked()
    ranks = reader.ranks(attempt)

    def read(done: int, rank: int) -> Iterator[StepRecord]:
        tell(done, len(ranks))
        yield from blocked.noting(rank, reader.steps(attempt, rank))

    table = StepTable.from_records(attempt, {rank: read(done, rank) for done, rank in enumerate(ranks)})
    infos = reader.infos(attempt)
    about = reader.attempt(attempt)
    world_size = max(about.world_size if about else 0, *(info.world_size for info in infos.values()), len(ranks)) or None
    recorded = reader.info
    if terms.price_per_gpu_hour is None and recorded.price_per_gpu_hour is not None:
        terms = replace(terms, price_per_gpu_hour=recorded.price_per_gpu_hour, currency=recorded.currency or terms.currency)
    terms = replace(
        terms, accelerated=any(info.device_kind != "cpu" for info in infos.values()), world_size=world_size or len(ranks) or 1
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
        simulated=recorded.simulated,
        warnings=damage_warnings(reader, table),
    )
    result, chain = _from_steps(source, table, infos, blocked, terms)
    if result.status == "ok":
        return result, chain
    profiled = Profiled(
        reductions={rank: _profiled(reader, attempt, rank) for rank in ranks},
        hosts={rank: info.host for rank, info in infos.items()},
        world_size=world_size,
        evidence="windows",
    )
    by_windows = whatif_of_profiled(profiled, source, terms)
    if by_windows.status == "ok":
        return by_windows, None
    if not any(reduction.breakdowns for reduction in profiled.reductions.values()):
        return result, None
    neither = f"{result.summary} Profiled steps do not help: {by_windows.summary.removeprefix(TOO_LITTLE)}"
    return msgspec.structs.replace(result, summary=neither), None


def _profiled(reader: RunReader, attempt: int, rank: int) -> Reduction:
    """What the profiled steps of a rank left behind, of what can be."""
    return Reduction(
        breakdowns=list(filter(is_possible_breakdown, reader.windows(attempt, rank))),
        collectives=list(filter(is_possible_collective, reader.collectives(attempt, rank))),
    )


def _from_steps(
    source: WhatIfSource, table: StepTable, infos: dict[int, RankInfo], blocked: _Blocked, terms: Terms
) -> tuple[WhatIf, Chain | None]:
    ranks = [int(rank) for rank in table.ranks]
    if len(peer_groups(ranks, infos)) > 1:
        told = "stages of a pipeline wait for each other at every micro-batch, which step records do not tell apart"
        return insufficient(source, told), None
    judged = judge(table, ranks)
    if judged is None:
        return insufficient(source, _missing(source, table)), None
    own = {phase: judged.table.matrix(f"own_{phase}_us")[judged.rows] for phase in PHASES}
    graph = build_step_graph(own, blocked.matrices(judged.ranks, judged.table.steps), judged.table.steps)
    if graph is None:
        told = "no rank ever waited for another, as far as the step records tell, so it is not known where they meet"
        return insufficient(source, told), None
    missing = (source.world_size or 0) - len(judged.ranks)
    steps = len(judged.table.steps)
    source = msgspec.structs.replace(
        source,
        ranks=len(judged.ranks),
        steps=steps,
        steps_left_out=len(table.steps) - steps,
        warnings=source.warnings
        + (
            [f"{missing} of {source.world_size} ranks are not in it: what they did counts as communication"]
            if missing > 0
            else []
        ),
    )
    found = [(row.cause, row.amounts(judged.table, judged.rows, graph)) for row in CAUSES]
    chain = Chain(graph, judged.ranks, {cause: taken for cause, taken in found if taken is not None})
    return answer(_outcome(judged, chain, infos), source, terms), chain


def _missing(source: WhatIfSource, table: StepTable) -> str:
    if source.world_size == 1:
        return "there is one rank, so nobody can make others wait"
    if not source.ranks:
        return "no rank has left step records"
    if source.ranks < 2:
        return f"step records of {source.ranks} rank only, of a world of {source.world_size or 'unknown size'}"
    if not np.isfinite(table.matrix("own_us")).any():
        return "the step records do not tell own time from waiting"
    return f"{len(table.steps)} steps recorded, {MINIMUM_STEPS} steps complete on all ranks after warm-up needed"


def _outcome(judged: Judged, chain: Chain, infos: dict[int, RankInfo]) -> Outcome:
    graph = chain.graph
    order = _worst_first(graph)
    chosen = [int(row) for row in order[: slowest_count(len(order))]]

    def amounts(key: dict[str, Any], taken: NDArray[np.float64]) -> Part:
        return Part(key, *of_amounts(graph, taken))

    return Outcome(
        steps=judged.table.steps,
        measured=judged.table.matrix("wall_us")[judged.rows].mean(axis=0),
        actual=actual_times(graph),
        ideal=ideal_times(graph),
        ranks=[
            Part({"rank": rank, "host": infos[rank].host if rank in infos else None}, *of_rank(graph, row))
            for row, rank in ((int(row), judged.ranks[row]) for row in order[:MAX_RANKS])
        ],
        slowest=[judged.ranks[row] for row in chosen],
        without_slowest=of_ranks(graph, np.array(chosen))[1],
        ops=[amounts({"op": phase}, graph.excess[phase]) for phase in graph.excess],
        causes=[amounts({"cause": cause}, taken) for cause, taken in chain.causes.items()],
        seconds=_SECONDS,
    )


def _worst_first(graph: StepGraph) -> NDArray[np.intp]:
    """Rows of ranks, those with the longest time above the typical first."""
    return np.argsort(-np.maximum(graph.own - graph.typical, 0.0).sum(axis=1), kind="stable")
