"""Causes of slowness in step records: what each took of the own time that a rank needed above the typical rank.

The names are those of the verdict's causes (``CAUSES`` in ``rankscope.analysis.causes``), with its explanation ``cpu_contention``
apart from other ``compute``. The causes come in the order of that table, and each takes what those before it left. The last takes
all that is left, so the parts of a rank add up to its own time above the typical.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.causes import CAUSES, CauseRow
from rankscope.analysis.evidence.activities import ACTIVITIES, ActivityTimes, activity_times
from rankscope.analysis.evidence.step_table.rank_columns import GIVEN_WORK
from rankscope.analysis.evidence.step_table.steps import Matrix, Stored
from rankscope.analysis.result.cause import MORE_WORK, Cause
from rankscope.analysis.whatif.step_graph import SIGNALS, StepGraph, StretchBlock
from rankscope.runs.records import Phase

CAUSE_METRICS: Final = tuple(dict.fromkeys((*SIGNALS, *(row.meter for row in CAUSES if row.meter is not None), "own_us")))
"""Metrics that a table needs for the causes, in addition to those of the graph."""


class Causes:
    """Causes that the records of a graph have a signal for."""

    def __init__(self, graph: StepGraph, busy_us: NDArray[np.float64] | None = None) -> None:
        """``busy_us``: device time per step above that of the rank in the middle, or 0, [ranks]; ``None``: unknown."""
        self.graph = graph
        self.busy_us = busy_us
        self.rows = [row for row in CAUSE_PARTS if row.is_known(self)]

    @property
    def names(self) -> list[str]:
        """Names of the causes, in the order of ``parts``."""
        return [row.cause for row in self.rows]

    def parts(self, block: StretchBlock) -> list[Matrix | None]:
        """Return the part of each cause, [stretches, ranks], ``None`` where it took nothing. They add up to ``block.above``."""
        remaining = block.above.copy()
        parts: list[Matrix | None] = []
        for row in self.rows:
            part = row.amounts(self, block)
            if part is not None:
                np.minimum(part, remaining, out=part)
                remaining -= part
            parts.append(part)
        return parts

    @cached_property
    def recorded_metrics(self) -> frozenset[str]:
        """Metrics that every rank has recorded at some step; at a single unknown step a rank is as the rank in the middle."""
        return frozenset(metric for metric in CAUSE_METRICS if self._is_known(metric))

    def _is_known(self, metric: str) -> bool:
        if not self.graph.table.is_known(metric):
            return False
        recorded = self.graph.of_blocks(lambda block: np.isfinite(self.graph.values(metric, block.steps)).any(axis=0))
        return bool(np.logical_or.reduce(recorded).all())

    @property
    def work(self) -> str | None:
        """Metric of the work that a rank is given, the one that the verdict uses."""
        return next((metric for metric in GIVEN_WORK if metric in self.recorded_metrics), None)

    @cached_property
    def activities(self) -> dict[str, ActivityTimes]:
        """Times of each tag of ``ACTIVITIES`` in the run."""
        times = (activity_times(self.graph.table, tag, self.graph.rows) for tag in ACTIVITIES.values())
        return {activity.tag: activity for activity in times if activity.is_present}


@dataclass(frozen=True, slots=True)
class CausePart:
    """Row of the table: a cause, and the part of the excess own time that it took."""

    cause: str
    is_known: Callable[[Causes], bool]
    """Function that returns whether the records have a signal for the cause."""
    amounts: Callable[[Causes, StretchBlock], Matrix | None]
    """Function that returns a new array of the most that the cause took, [stretches, ranks]; ``None`` where it took nothing."""


def _over(block: StretchBlock, name: str, values: Stored | None = None) -> Matrix:
    """Return the excess over the rank in the middle, [steps, ranks]; 0 where unknown, as in the last steps of a killed rank.

    ``values``: always the same ones for ``name``; ``None``: those of the metric ``name``.
    """
    if values is None:
        values = block.graph.values(name, block.steps)
    excess = block.over_middle(name, values)
    excess[~np.isfinite(excess)] = 0.0
    return excess


def _placed(block: StretchBlock, excess: Matrix) -> Matrix | None:
    return block.place(excess) if excess.any() else None


def _part(row: CauseRow) -> CausePart | None:
    """Return the part of a cause that takes the time of a meter, of tagged steps, or of phases; ``None``: it needs more."""
    name, meter, tag, phases = row.explained_by or row.cause, row.meter, row.tag, row.phases
    if meter is not None:
        return CausePart(
            name, lambda causes: meter in causes.recorded_metrics, lambda _, block: _placed(block, _over(block, meter))
        )
    if tag is not None:
        return CausePart(name, lambda causes: tag in causes.activities, lambda causes, block: _activity(causes, block, tag))
    if phases:
        return CausePart(
            name,
            lambda causes: any(phase in causes.graph.phases for phase in phases),
            lambda _, block: _in_phases(block, phases),
        )
    return _OTHER_PARTS.get(row.cause) if row.explained_by is None else None


def _activity(causes: Causes, block: StretchBlock, tag: str) -> Matrix | None:
    if not block.graph.table.tagged(tag)[block.graph.rows, block.steps].any():
        return None
    return _placed(block, _over(block, f"time of {tag}", causes.activities[tag].in_steps(block.steps).T))


def _in_phases(block: StretchBlock, phases: Sequence[Phase]) -> Matrix:
    phase_lost = np.zeros(block.shape)
    for phase in phases:
        if phase in block.graph.phases:
            stretches, lost = block.lost_in(phase)
            phase_lost[stretches] += lost
    return phase_lost


def _computed(causes: Causes, block: StretchBlock) -> Matrix:
    """Return the compute above the rank in the middle, [steps, ranks]: on the device or on the CPU, of which one may wait for the
    other.
    """
    graph, steps = block.graph, block.steps
    computed = np.zeros((steps.stop - steps.start, len(graph.rows)))
    if "cpu_us" in causes.recorded_metrics:
        cpu = graph.values("cpu_us", steps).astype(np.float64)
        if "gc_us" in causes.recorded_metrics:
            cpu -= np.nan_to_num(graph.values("gc_us", steps))
        computed = _over(block, "cpu_us without gc_us", cpu)
    return computed if causes.busy_us is None else np.maximum(computed, causes.busy_us)


def _knows_compute(causes: Causes) -> bool:
    return "cpu_us" in causes.recorded_metrics or causes.busy_us is not None


def _more_work(causes: Causes, block: StretchBlock) -> NDArray[np.bool_] | None:
    """Return where a rank has clearly more work than the rank in the middle, [steps, ranks]; ``None`` where no rank has."""
    if causes.work is None:
        return None
    work = block.graph.values(causes.work, block.steps)
    more: NDArray[np.bool_] = work > (1 + MORE_WORK) * block.middle(causes.work, work)[:, None]
    return more if more.any() else None


def _imbalance(causes: Causes, block: StretchBlock) -> Matrix | None:
    more = _more_work(causes, block)
    if more is None:
        return None
    excess = _computed(causes, block) if _knows_compute(causes) else _over(block, "own_us")
    return _placed(block, np.where(more, excess, 0.0))


def _compute(causes: Causes, block: StretchBlock) -> Matrix | None:
    more, excess = _more_work(causes, block), _computed(causes, block)
    return _placed(block, excess if more is None else np.where(more, 0.0, excess))


def _knows_host(causes: Causes) -> bool:
    return {"cpu_us", "run_queue_us"} <= causes.recorded_metrics or causes.busy_us is not None


def _remainder(_: Causes, block: StretchBlock) -> Matrix:
    return block.above.copy()


_OTHER_PARTS: Final[dict[Cause, CausePart]] = {
    "imbalance": CausePart("imbalance", lambda causes: causes.work is not None, _imbalance),
    "compute": CausePart("compute", _knows_compute, _compute),
    "host": CausePart("host", _knows_host, _remainder),
    "unknown": CausePart("unknown", lambda causes: not _knows_host(causes), _remainder),
}
"""Parts that no single signal shows."""

CAUSE_PARTS: Final[Sequence[CausePart]] = tuple({part.cause: part for row in CAUSES if (part := _part(row)) is not None}.values())
"""Parts in the order in which the causes take them."""
