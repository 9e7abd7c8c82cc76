"""What-if on step records: ranks work by themselves, and meet where they waited for each other.

Every rank works through the phases of its steps. In some phases ranks wait for others; there they meet: nobody goes on before
the last has come. Between two meetings everybody has some own time, and the longest decides; to each meeting belongs the least
time that anybody was blocked in it, which is what the communication itself took. So a job is a chain of stretches, and

    time = sum over stretches of (longest own time + least blocked time at the meeting that ends it).

What is slow at one collective of a phase and made up for at another of the same phase is not seen, so that this is a lower
bound where ranks meet several times in a phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.possible import MAX_US
from rankscope.analysis.steps import Matrix
from rankscope.runs.records import PHASES, Phase

Stretches = NDArray[np.float64]
"""[ranks, stretches]"""


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Own times between meetings. Microseconds."""

    own: Stretches
    typical: NDArray[np.float64]
    """[stretches]: the ideal, the own time of the rank in the middle; of two in the middle the faster one's."""
    last: NDArray[np.intp]
    """[stretches]: row of the rank with the longest own time."""
    second: NDArray[np.float64]
    """[stretches]: the longest own time of the others, 0 where there are none."""
    step_of: NDArray[np.intp]
    """[stretches]: position of the step in which it ends."""
    transfers: NDArray[np.float64]
    """[steps]: what the meetings themselves took, the same in every scenario."""
    excess: dict[Phase, Stretches]
    """Own time of each phase above that of the rank in the middle."""
    stretch_in: dict[Phase, NDArray[np.intp]]
    """Phase to [steps]: the stretch that it is in."""

    def times(self, longest: NDArray[np.float64]) -> NDArray[np.float64]:
        """[steps], for the longest own time of each of the stretches."""
        own = np.bincount(self.step_of, weights=longest, minlength=len(self.transfers))
        return own + self.transfers


def middle(values: Matrix) -> NDArray[np.float64]:
    """Per column, the value in the middle, of two in the middle the lower one: most ranks are at least as slow."""
    place = (len(values) - 1) // 2
    found: NDArray[np.float64] = np.partition(values, place, axis=0)[place]
    return found


def build_step_graph(own: Mapping[Phase, Matrix], blocked: Mapping[Phase, Matrix], steps: NDArray[np.int64]) -> StepGraph | None:
    """Graph of own and blocked times [ranks, steps] per phase, NaN where there is none; ``None`` where nobody ever waited.

    Ranks meet in the phases in which some rank was blocked in half of the steps or more. Where steps are missing from ``steps``
    they are taken to meet, too.
    """
    phases = [phase for phase in PHASES if phase in own and np.isfinite(own[phase]).any()]
    met = {phase: bool((np.nan_to_num(blocked[phase]).max(axis=0) > 0).mean() >= 0.5) for phase in phases if phase in blocked}
    if not any(met.values()):
        return None
    ends = np.zeros((len(steps), len(phases)), dtype=bool)
    for at, phase in enumerate(phases):
        ends[:, at] = met.get(phase, False)
    ends[:-1, -1] |= np.diff(steps) > 1
    ends[-1, -1] = True
    stretch = (np.cumsum(ends) - ends.ravel()).reshape(ends.shape)
    count = int(stretch[-1, -1]) + 1
    ranks = len(own[phases[0]])
    total = np.zeros((ranks, count))
    excess: dict[Phase, Stretches] = {}
    for at, phase in enumerate(phases):
        values = _possible(own[phase])
        # Steps follow each other with a meeting between, so no stretch has a phase twice.
        total[:, stretch[:, at]] += values
        over = np.zeros((ranks, count))
        over[:, stretch[:, at]] = np.maximum(values - middle(values), 0.0)
        excess[phase] = over
    transfers = np.zeros(len(steps))
    for phase, meets in met.items():
        if meets:
            transfers += _possible(blocked[phase]).min(axis=0)
    return StepGraph(
        own=total,
        typical=middle(total),
        last=total.argmax(axis=0),
        second=np.partition(total, -2, axis=0)[-2] if ranks > 1 else np.zeros(count),
        step_of=np.repeat(np.arange(len(steps)), ends.sum(axis=1)),
        transfers=transfers,
        excess=excess,
        stretch_in={phase: stretch[:, at] for at, phase in enumerate(phases)},
    )


def _possible(times: Matrix) -> Matrix:
    """Times that are none count as nothing: unknown ones, and those that damage made negative or absurd."""
    found: Matrix = np.where((times > 0) & (times < MAX_US), times, 0.0)
    return found


def actual_times(graph: StepGraph) -> NDArray[np.float64]:
    """[steps], with all own times as they were."""
    return graph.times(graph.own.max(axis=0))


def ideal_times(graph: StepGraph) -> NDArray[np.float64]:
    """[steps], with every rank as fast as the one in the middle."""
    return graph.times(graph.typical)


def of_rank(graph: StepGraph, row: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """As ``of_ranks`` for one rank, without looking at all the others again."""
    only = np.maximum(graph.own[row], graph.typical)
    others = np.where(graph.last == row, graph.second, graph.own[graph.last, np.arange(len(graph.last))])
    return graph.times(only), graph.times(np.maximum(others, graph.typical))


def of_ranks(graph: StepGraph, rows: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Step times with only these ranks as they were, and with all but these as they were."""
    others = np.delete(graph.own, rows, axis=0)
    only = np.maximum(graph.own[rows].max(axis=0), graph.typical)
    without = np.maximum(others.max(axis=0, initial=0.0), graph.typical)
    return graph.times(only), graph.times(without)


def of_amounts(graph: StepGraph, amounts: Stretches) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Step times with only these ``amounts`` of own time above the typical, and with all but these.

    An amount is no more than the rank's own time in the stretch is above the typical.
    """
    above = np.maximum(graph.own - graph.typical, 0.0)
    part = np.minimum(amounts, above)
    only = graph.typical + part.max(axis=0)
    without = graph.typical + (above - part).max(axis=0)
    return graph.times(only), graph.times(without)
