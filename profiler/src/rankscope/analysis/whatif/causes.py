"""Causes that step records tell: how much of each rank's own time they took above what is usual. One row to add one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.steps import Matrix, StepTable
from rankscope.analysis.whatif.step_graph import StepGraph, Stretches, middle

Amounts = Callable[[StepTable, NDArray[np.intp], StepGraph], Stretches | None]
"""What a cause took [ranks, stretches], microseconds; ``None`` where the records have no signal for it."""


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause, named as the verdict's causes and explanations are."""

    cause: str
    amounts: Amounts


def _placed(graph: StepGraph, above: Matrix) -> Stretches:
    """Time per step [ranks, steps] into stretches: into that of the phase in which the rank lost most in the step."""
    phases = list(graph.excess)
    stretch = np.stack([graph.stretch_in[phase] for phase in phases])
    lost = np.stack([graph.excess[phase][:, graph.stretch_in[phase]] for phase in phases])
    where = np.take_along_axis(np.broadcast_to(stretch[:, None], lost.shape), lost.argmax(axis=0)[None], axis=0)[0]
    amounts = np.zeros_like(graph.own)
    rows = np.broadcast_to(np.arange(len(above))[:, None], above.shape)
    np.add.at(amounts, (rows, where), above)
    return amounts


def _metric(name: str) -> Amounts:
    def amounts(table: StepTable, rows: NDArray[np.intp], graph: StepGraph) -> Stretches | None:
        values = table.matrix(name)[rows]
        if not np.isfinite(values).any(axis=1).all():
            return None
        # Of the last steps before a rank was killed, say, a meter may be unknown: they say nothing for or against the cause.
        return _placed(graph, np.nan_to_num(np.maximum(values - middle(values), 0.0)))

    return amounts


def _input(table: StepTable, rows: NDArray[np.intp], graph: StepGraph) -> Stretches | None:
    del table, rows
    found = [graph.excess[phase] for phase in ("data", "h2d") if phase in graph.excess]
    return sum(found[1:], start=found[0]) if found else None


def _checkpoint(table: StepTable, rows: NDArray[np.intp], graph: StepGraph) -> Stretches | None:
    tagged = table.tagged("checkpoint")[rows]
    if not tagged.any():
        return None
    own = table.matrix("own_us")[rows]
    return _placed(graph, np.where(tagged, np.maximum(own - middle(own), 0.0), 0.0))


CAUSES: Final[tuple[CauseRow, ...]] = (
    CauseRow("input", _input),
    CauseRow("gc", _metric("gc_us")),
    CauseRow("checkpoint", _checkpoint),
    CauseRow("cpu_contention", _metric("run_queue_us")),
)
