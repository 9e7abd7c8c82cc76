"""Causes visible in step records: the own time above the typical that each cost each rank. To add a cause, add a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankscope.analysis.evidence.steps import Matrix
from rankscope.analysis.whatif.step_graph import Block, StepGraph, over_middle
from rankscope.runs.records import Phase

Amounts = Callable[[Block], Matrix | None]
"""Function that returns the time a cause took [stretches, ranks], microseconds; ``None`` where it took none."""


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause, with the same name as in the verdict's causes and explanations."""

    cause: str
    is_known: Callable[[StepGraph], bool]
    """Function that returns whether the records have a signal for the cause."""
    amounts: Amounts


def causes_of(graph: StepGraph) -> list[CauseRow]:
    """Return the causes that the records have a signal for."""
    return [row for row in CAUSES if row.is_known(graph)]


def _metric(cause: str, name: str) -> CauseRow:
    def is_known(graph: StepGraph) -> bool:
        if not graph.table.is_known(name):
            return False
        known = graph.of_blocks(lambda block: np.isfinite(graph.values(name, block.steps)).any(axis=0))
        return bool(np.logical_or.reduce(known).all())

    def amounts(block: Block) -> Matrix | None:
        # A meter may be unknown, such as in the last steps before a rank was killed: those count as 0.
        over = np.nan_to_num(over_middle(block.graph.values(name, block.steps)))
        return block.place(over) if over.any() else None

    return CauseRow(cause, is_known, amounts)


_INPUT: Final[tuple[Phase, ...]] = ("data", "h2d")


def _has_input(graph: StepGraph) -> bool:
    return any(phase in graph.phases for phase in _INPUT)


def _input(block: Block) -> Matrix | None:
    taken = np.zeros(block.shape)
    for phase in _INPUT:
        if phase in block.graph.phases:
            stretches, lost = block.lost_in(phase)
            taken[stretches] += lost
    return taken


def _has_checkpoints(graph: StepGraph) -> bool:
    return bool(graph.table.tagged("checkpoint")[graph.rows].any())


def _checkpoint(block: Block) -> Matrix | None:
    graph = block.graph
    tagged = graph.table.tagged("checkpoint")[graph.rows, block.steps].T
    if not tagged.any():
        return None
    return block.place(np.where(tagged, over_middle(graph.values("own_us", block.steps)), 0.0))


CAUSES: Final[tuple[CauseRow, ...]] = (
    CauseRow("input", _has_input, _input),
    _metric("gc", "gc_us"),
    CauseRow("checkpoint", _has_checkpoints, _checkpoint),
    _metric("cpu_contention", "run_queue_us"),
)
CAUSE_METRICS: Final = ("gc_us", "run_queue_us", "own_us")
"""Metrics that a table needs for the causes, in addition to those of the graph."""
