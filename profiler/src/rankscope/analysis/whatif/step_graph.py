"""What-if on step records: ranks work by themselves, and meet where they waited for each other.

Every rank works through the phases of its steps. In some phases ranks wait for others; there they meet: no rank goes on before
the last one arrives. Between two meetings every rank has some own time, and the longest decides; to each meeting belongs the
least time that any rank was blocked in it, which is what the communication itself took. So a job is a chain of stretches, and

    time = sum over stretches of (longest own time + least blocked time at the meeting that ends it).

What is slow at one collective of a phase and made up for at another of the same phase is not visible, so this is a lower bound
where ranks meet several times in a phase.

Own times of a large run do not fit into memory several times over, so they are worked on in blocks of consecutive steps; what is
kept of all steps is one number per stretch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.possible import MAX_US
from rankscope.analysis.rank_columns import BLOCKED_METRICS
from rankscope.analysis.step_order import blocks, by_step, of_blocks
from rankscope.analysis.steps import Matrix, StepTable, Stored
from rankscope.runs.records import PHASES, Phase

GRAPH_METRICS: Final = ("wall_us", "own_us", *(f"own_{phase}_us" for phase in PHASES), *BLOCKED_METRICS)
"""Metrics that a table needs for a graph, and for choosing the steps and ranks of it."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Where the ranks of a table meet. Times are microseconds."""

    table: StepTable
    """Only steps that are in the graph."""
    rows: NDArray[np.intp]
    """Rows of the table, one per rank of the graph."""
    phases: list[Phase]
    stretch: NDArray[np.intp]
    """[steps, phases]: the stretch that a phase of a step is in. No stretch has a phase twice."""
    ended: NDArray[np.intp]
    """[steps + 1]: stretches that have ended before each step, and all."""
    transfers: NDArray[np.float64]
    """[steps]: what the meetings themselves took, the same in every scenario."""

    def times(self, longest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Step times [steps], for the longest own time of each of the stretches."""
        own: NDArray[np.float64] = np.add.reduceat(longest, self.ended[:-1])
        return own + self.transfers

    def of_blocks(self, function: Callable[[Block], _Result]) -> list[_Result]:
        """What ``function`` returns for each block of steps, in order; blocks of a large graph are worked on side by side."""
        return of_blocks((len(self.rows), len(self.transfers)), lambda steps: function(Block(self, steps)))

    def values(self, metric: str, steps: slice) -> Stored:
        """A metric of the table, [steps, ranks]."""
        return by_step(_some(self.table, self.rows, metric, steps))


class Block:
    """The stretches that end in some consecutive steps. Arrays are [stretches, ranks], or [steps, ranks] where it is said."""

    def __init__(self, graph: StepGraph, steps: slice) -> None:
        self.graph = graph
        self.ending = steps
        """The steps in which the stretches end."""
        self.stretches = slice(int(graph.ended[steps.start]), int(graph.ended[steps.stop]))
        # The first stretch may have begun in the step before.
        self.steps = slice(max(0, steps.start - 1), steps.stop)
        """The steps that the block reads."""

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
        """Own time."""
        total = np.zeros(self.shape)
        for at, values in enumerate(self._values):
            here, stretches = self._places(at)
            total[stretches] += values[here]
        return total

    @cached_property
    def typical(self) -> NDArray[np.float64]:
        """[stretches]: the ideal, the own time of the rank in the middle."""
        return middle(self.own, axis=1)

    @cached_property
    def above(self) -> Matrix:
        """Own time above the typical, or 0."""
        return np.maximum(self.own - self.typical[:, None], 0.0)

    @cached_property
    def lost(self) -> list[Matrix]:
        """Own time of each phase above that of the rank in the middle, or 0: [steps, ranks] for each of the graph's phases."""
        return [over_middle(values) for values in self._values]

    def lost_in(self, phase: Phase) -> tuple[slice | NDArray[np.intp], Matrix]:
        """The stretches of the block that have a phase, and ``lost`` in it, [those stretches, ranks]."""
        at = self.graph.phases.index(phase)
        here, stretches = self._places(at)
        return stretches, self.lost[at][here]

    def place(self, times: Matrix) -> Matrix:
        """Times [steps, ranks] in stretches: each in that of the phase in which the rank lost most in the step."""
        worst, most = np.zeros(times.shape, np.int8), self.lost[0]
        for at, lost in enumerate(self.lost[1:], start=1):
            worst[lost > most] = at
            most = np.maximum(most, lost)
        placed = np.zeros(self.shape)
        for at in range(len(self.lost)):
            here, stretches = self._places(at)
            placed[stretches] += np.where(worst[here] == at, times[here], 0.0)
        return placed

    def _places(self, at: int) -> tuple[slice, slice | NDArray[np.intp]]:
        """The steps read whose phase ``at`` is in a stretch of the block, and the stretches that it is in."""
        stretch = self.graph.stretch[self.steps, at]
        here = slice(*np.searchsorted(stretch, (self.stretches.start, self.stretches.stop)).tolist())
        return here, _as_slice(stretch[here] - self.stretches.start)


def _as_slice(places: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Ascending places, as a slice where they are evenly spaced: numpy takes no copy of it."""
    if len(places) < 2:
        return slice(int(places[0]), int(places[0]) + 1) if len(places) else slice(0, 0)
    apart = np.diff(places)
    return slice(int(places[0]), int(places[-1]) + 1, int(apart[0])) if (apart == apart[0]).all() else places


def build_step_graph(table: StepTable, rows: NDArray[np.intp]) -> StepGraph | None:
    """Graph of own and blocked times of the ranks in some rows of a table; ``None`` where no rank ever waited.

    Ranks meet in the phases in which some rank was blocked in half of the steps or more. Ranks also meet where steps are missing
    from the table.
    """
    phases = [phase for phase in PHASES if _is_known(table, rows, f"own_{phase}_us")]
    count = len(table.steps)
    transfers = np.zeros(count)
    ends = np.zeros((count, len(phases)), dtype=bool)
    for at, phase in enumerate(phases):
        if table.is_known(f"blocked_{phase}_us"):
            longest, least = _blocked(table, rows, f"blocked_{phase}_us")
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
    )


_MEETS: Final = 0.5
"""Fraction of the steps in which some rank must be blocked in a phase."""


def _is_known(table: StepTable, rows: NDArray[np.intp], metric: str) -> bool:
    """Whether any rank has a metric in any step."""
    return table.is_known(metric) and any(
        np.isfinite(_some(table, rows, metric, steps)).any() for steps in blocks(len(table.steps))
    )


def _some(table: StepTable, rows: NDArray[np.intp], metric: str, steps: slice) -> Stored:
    """A metric of the ranks in some rows, [ranks, steps]; no copy where these are all."""
    return table.some(metric, steps, None if len(rows) == len(table.ranks) else rows)


def _blocked(table: StepTable, rows: NDArray[np.intp], metric: str) -> Matrix:
    """The longest and the least time that a rank was blocked, [2, steps]. Unknown times are 0."""

    def of(steps: slice) -> Matrix:
        times = possible(_some(table, rows, metric, steps))
        return np.stack([times.max(axis=0), times.min(axis=0)]).astype(np.float64)

    return np.concatenate(of_blocks((len(rows), len(table.steps)), of), axis=1)


def possible(times: Stored) -> Stored:
    """A copy in which times that are none are 0: unknown ones, and those that damage made negative or absurd."""
    found: Stored = np.fmax(times, times.dtype.type(0))
    if found.max(initial=0) >= MAX_US:
        found[found >= MAX_US] = 0
    return found


def middle(values: NDArray[np.floating[Any]], axis: int = 0) -> NDArray[np.float64]:
    """The value in the middle along an axis, of two in the middle the lower one: most ranks are at least as slow."""
    place = (values.shape[axis] - 1) // 2
    found: NDArray[np.float64] = np.partition(values, place, axis=axis).take(place, axis=axis).astype(np.float64)
    return found


def over_middle(values: Stored) -> Matrix:
    """How much each value is over the middle one of its row, or 0; [steps, ranks] in and out."""
    over: Matrix = np.subtract(values, middle(values, axis=1)[:, None], dtype=np.float64)
    return np.maximum(over, 0.0, out=over)
