"""Dependency graph of step records: ranks work independently and meet where they waited for each other.

Every rank works through the phases of its steps. In some phases ranks wait for others; there they meet: no rank continues before
the last one arrives. Between two meetings the longest own time of any rank decides. Each meeting takes the least time that any
rank was blocked in it, which is the time of the communication itself. So a job is a chain of stretches, and

    time = sum over stretches of (longest own time + least blocked time at the meeting that ends it).

Where ranks meet several times in a phase, delays at its different collectives may cancel out. The result is then a lower bound.

Several copies of the own times of a large run do not fit into memory. So they are processed in blocks of consecutive steps, and
only one number per stretch is kept of all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.compared import fill_missing
from rankscope.analysis.evidence.order import blocks, by_step, of_blocks
from rankscope.analysis.evidence.step_table.rank_columns import BLOCKED_METRICS, GIVEN_WORK
from rankscope.analysis.evidence.step_table.steps import Matrix, StepTable, Stored
from rankscope.analysis.statistics import lower_median
from rankscope.analysis.trace.possible import MAX_US
from rankscope.runs.records import PHASES, Phase

GRAPH_METRICS: Final = ("wall_us", "own_us", *(f"own_{phase}_us" for phase in PHASES), *BLOCKED_METRICS)
"""Metrics that a table needs for a graph, and for choosing the graph's steps and ranks."""

SIGNALS: Final = ("gc_us", "run_queue_us", "cpu_us", *GIVEN_WORK)
"""Metrics that the causes of slowness are taken from."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Meetings of the ranks of a table. Times are microseconds."""

    table: StepTable
    """Table of the steps that are in the graph."""
    rows: NDArray[np.intp]
    """Rows of the table, one per rank of the graph."""
    phases: list[Phase]
    stretch: NDArray[np.intp]
    """Stretch that a phase of a step is in, [steps, phases]. No stretch has a phase twice."""
    ended: NDArray[np.intp]
    """Number of stretches that have ended before each step, and of all, [steps + 1]."""
    transfers: NDArray[np.float64]
    """Time of the meetings themselves, the same in every scenario, [steps]."""
    gaps: Gaps | None = None
    """Steps that a rank lacks; ``None`` without any."""
    middles: dict[tuple[str, int], NDArray[np.float64]] = field(default_factory=dict)
    """Values of the rank in the middle, by their name and the first step of the block: most of the time of a scenario."""

    def times(self, longest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return step times [steps] for the longest own time [stretches] of each stretch."""
        return self.per_step(longest) + self.transfers

    def per_step(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums [steps] of times [stretches]."""
        sums: NDArray[np.float64] = np.add.reduceat(times, self.ended[:-1])
        return sums

    def of_blocks(self, function: Callable[[StretchBlock], _Result]) -> list[_Result]:
        """Return the results of ``function`` for each block of steps, in order; blocks of a large graph run in parallel."""
        return of_blocks((len(self.rows), len(self.transfers)), lambda steps: function(StretchBlock(self, steps)))

    def values(self, metric: str, steps: slice) -> Stored:
        """Return a metric of the table, [steps, ranks], with estimates where a rank lacks a step."""
        return by_step(_rows_of(self.table, self.rows, metric, steps, self.gaps))


class StretchBlock:
    """Stretches that end in some consecutive steps. Arrays are [stretches, ranks] unless stated otherwise."""

    def __init__(self, graph: StepGraph, steps: slice) -> None:
        self.graph = graph
        self.ending = steps
        """Steps in which the stretches end."""
        self.stretches = slice(int(graph.ended[steps.start]), int(graph.ended[steps.stop]))
        # The first stretch may have begun in the step before.
        self.steps = slice(max(0, steps.start - 1), steps.stop)
        """Steps that the block reads."""

    @cached_property
    def _values(self) -> list[Stored]:
        """Own time of each of the graph's phases, [steps, ranks]."""
        return [possible(self.graph.values(f"own_{phase}_us", self.steps)) for phase in self.graph.phases]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of stretches, and of ranks."""
        return self.stretches.stop - self.stretches.start, len(self.graph.rows)

    @cached_property
    def own(self) -> Matrix:
        """Own time of each rank in each stretch."""
        total = np.zeros(self.shape)
        for at, values in enumerate(self._values):
            read_steps, stretches = self._places(at)
            total[stretches] += values[read_steps]
        return total

    def middle(self, name: str, values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return ``middle`` of each row of ``values``, which are always the same for ``name``."""
        key = (name, self.ending.start)
        if (middles := self.graph.middles.get(key)) is None:
            middles = self.graph.middles[key] = lower_median(values, axis=1)
        return middles

    def over_middle(self, name: str, values: Stored) -> Matrix:
        """Return the excess of each value over ``middle`` of its row, or 0; [steps, ranks] in and out."""
        return over(values, self.middle(name, values))

    @cached_property
    def typical(self) -> NDArray[np.float64]:
        """Ideal time: own time of the rank in the middle, [stretches]."""
        return self.middle("own", self.own)

    @cached_property
    def above(self) -> Matrix:
        """Own time above the typical, or 0."""
        return np.maximum(self.own - self.typical[:, None], 0.0)

    @cached_property
    def lost(self) -> list[Matrix]:
        """Own time of each phase above that of the rank in the middle, or 0: [steps, ranks] for each of the graph's phases."""
        return [self.over_middle(phase, values) for phase, values in zip(self.graph.phases, self._values, strict=True)]

    @cached_property
    def _lost_in_all(self) -> Matrix:
        total: Matrix = np.sum(self.lost, axis=0)
        return total

    def lost_in(self, phase: Phase) -> tuple[slice | NDArray[np.intp], Matrix]:
        """Return the stretches of the block that have ``phase``, and ``lost`` in it, [those stretches, ranks]."""
        at = self.graph.phases.index(phase)
        read_steps, stretches = self._places(at)
        return stretches, self.lost[at][read_steps]

    def place(self, times: Matrix) -> Matrix:
        """Assign times [steps, ranks] to stretches, in proportion to what the rank lost in the phases of the step."""
        lost = self._lost_in_all
        share = np.divide(times, lost, out=np.zeros(times.shape), where=lost > 0)
        placed = np.zeros(self.shape)
        for at, of_phase in enumerate(self.lost):
            read_steps, stretches = self._places(at)
            placed[stretches] += share[read_steps] * of_phase[read_steps]
        return placed

    def _places(self, at: int) -> tuple[slice, slice | NDArray[np.intp]]:
        """Return the read steps whose phase ``at`` is in a stretch of the block, and these stretches."""
        stretch = self.graph.stretch[self.steps, at]
        read_steps = slice(*np.searchsorted(stretch, (self.stretches.start, self.stretches.stop)).tolist())
        return read_steps, _as_slice(stretch[read_steps] - self.stretches.start)


def _as_slice(places: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return ascending places as a slice if they are evenly spaced: numpy copies nothing for a slice."""
    if len(places) < 2:
        return slice(int(places[0]), int(places[0]) + 1) if len(places) else slice(0, 0)
    distances = np.diff(places)
    return slice(int(places[0]), int(places[-1]) + 1, int(distances[0])) if (distances == distances[0]).all() else places


def build_step_graph(table: StepTable, rows: NDArray[np.intp]) -> StepGraph | None:
    """Build the graph of own and blocked times of the ranks in ``rows`` of a table; ``None`` if the ranks meet in no phase.

    Ranks meet in the phases in which some rank was blocked in half of the steps or more. They also meet where steps are missing
    from the table. Where a rank lacks a step, its times are estimated (see ``Gaps``).
    """
    gaps = _gaps(table, rows)
    phases = [phase for phase in PHASES if _is_known(table, rows, f"own_{phase}_us")]
    count = len(table.steps)
    transfers = np.zeros(count)
    ends = np.zeros((count, len(phases)), dtype=bool)
    for at, phase in enumerate(phases):
        if table.is_known(f"blocked_{phase}_us"):
            longest, least = _blocked(table, rows, f"blocked_{phase}_us", gaps)
            if (longest > 0).mean() >= _MEETS:
                ends[:, at] = True
                transfers += least
    if not ends.any():
        return None
    ends[:-1, -1] |= np.diff(table.steps) > 1
    ends[-1, -1] = True
    return StepGraph(
        table=table,
        rows=rows,
        phases=phases,
        stretch=(np.cumsum(ends) - ends.ravel()).reshape(ends.shape),
        ended=np.concatenate([[0], np.cumsum(ends.sum(axis=1))]),
        transfers=transfers,
        gaps=gaps,
    )


_MEETS: Final = 0.5
"""Fraction of the steps in which some rank must be blocked in a phase for ranks to meet there."""


def _is_known(table: StepTable, rows: NDArray[np.intp], metric: str) -> bool:
    """Return whether any rank in ``rows`` has a metric in any step."""
    return table.is_known(metric) and any(
        np.isfinite(_rows_of(table, rows, metric, steps)).any() for steps in blocks(len(table.steps))
    )


def _rows_of(table: StepTable, rows: NDArray[np.intp], metric: str, steps: slice, gaps: Gaps | None = None) -> Stored:
    """Return a metric of the ranks in ``rows``, [ranks, steps]; not copied if these are all ranks, and none lacks a step."""
    values = table.some(metric, steps, None if len(rows) == len(table.ranks) else rows)
    return values if gaps is None else gaps.filled(metric, values, steps)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Places, a rank and a step each, at which a rank has no own time, and estimates of its metrics there.

    They are estimated as for the verdict (``evidence.compared.filled``): also blocked times, which are shorter on a slow rank.
    Else the time that the others wait for a slow rank without a record would count as the time of the communication.
    """

    rows: NDArray[np.intp]
    """Position of the rank among those of the graph, [places]."""
    steps: NDArray[np.intp]
    """Step, ascending, [places]."""
    estimates: Mapping[str, Stored]
    """Estimates of each metric, [places]; NaN where unknown."""

    def filled(self, metric: str, values: Stored, steps: slice) -> Stored:
        """Return values of a metric, [ranks, some steps], with the estimates instead of unknown ones at the places."""
        in_range = slice(*np.searchsorted(self.steps, (steps.start, steps.stop)).tolist())
        if in_range.start == in_range.stop or metric not in self.estimates:
            return values
        result = values.copy()
        at = self.rows[in_range], self.steps[in_range] - steps.start
        result[at] = np.where(np.isfinite(result[at]), result[at], self.estimates[metric][in_range])
        return result


def _gaps(table: StepTable, rows: NDArray[np.intp]) -> Gaps | None:
    def lacking(steps: slice) -> NDArray[np.intp]:
        places: NDArray[np.intp] = np.argwhere(np.isnan(_rows_of(table, rows, "own_us", steps).T))
        places[:, 0] += steps.start
        return places

    places = np.concatenate(of_blocks((len(rows), len(table.steps)), lacking))
    if not len(places):
        return None
    step, row = places.T
    every = slice(0, len(table.steps))

    def estimated(metric: str) -> Stored:
        values = _rows_of(table, rows, metric, every).copy()
        if metric in _OF_PHASES:  # a phase that a recorded step does not have took no time
            values = np.nan_to_num(values)
        values[row, step] = np.nan
        estimates: Stored = fill_missing(values)[row, step]
        return estimates

    return Gaps(row, step, {metric: estimated(metric) for metric in (*GRAPH_METRICS, *SIGNALS) if table.is_known(metric)})


_OF_PHASES: Final = frozenset((*(f"own_{phase}_us" for phase in PHASES), *BLOCKED_METRICS))


def _blocked(table: StepTable, rows: NDArray[np.intp], metric: str, gaps: Gaps | None) -> Matrix:
    """Return the longest and the least blocked time of any rank, [2, steps]. Unknown times are 0."""

    def of(steps: slice) -> Matrix:
        times = possible(_rows_of(table, rows, metric, steps, gaps))
        return np.stack([times.max(axis=0), times.min(axis=0)]).astype(np.float64)

    return np.concatenate(of_blocks((len(rows), len(table.steps)), of), axis=1)


def possible(times: Stored) -> Stored:
    """Return a copy with 0 for unknown times, and for those that damage made negative or absurd."""
    possible_times: Stored = np.fmax(times, times.dtype.type(0))
    if possible_times.max(initial=0) >= MAX_US:
        possible_times[possible_times >= MAX_US] = 0
    return possible_times


def over(values: Stored, typical: NDArray[np.float64]) -> Matrix:
    """Return the excess of each value over the ``typical`` of its row, or 0; [steps, ranks] in and out."""
    excess: Matrix = np.subtract(values, typical[:, None], dtype=np.float64)
    return np.maximum(excess, 0.0, out=excess)
