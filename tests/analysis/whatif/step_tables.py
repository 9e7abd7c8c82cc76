"""Tables of own and blocked times, and the chain of stretches computed step by step, for the tests of what-if."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.compared import StepOwnTimes
from rankscope.analysis.evidence.step_table.steps import Matrices, StepTable
from rankscope.analysis.whatif.cause_parts import Causes
from rankscope.analysis.whatif.healed import HealingSavings
from rankscope.analysis.whatif.step_graph import StepGraph, build_step_graph, possible
from rankscope.analysis.whatif.step_scenarios import StepScenarios, play_steps
from rankscope.runs.records import PHASES, Phase

Floats = NDArray[np.float64]


def table_of(
    own: Mapping[Phase, Floats],
    blocked: Mapping[Phase, Floats],
    steps: NDArray[np.int64] | None = None,
    *,
    others: Mapping[str, Floats] | None = None,
    tags: Mapping[str, NDArray[np.bool_]] | None = None,
) -> StepTable:
    """Return a table of matrices [ranks, steps]: own and blocked time of phases, and ``others`` by their names."""
    shape = next(iter(own.values())).shape
    total = np.nansum(list(own.values()), axis=0)
    stored = {
        "wall_us": total,
        "own_us": total,
        **{f"own_{phase}_us": values for phase, values in own.items()},
        **{f"blocked_{phase}_us": values for phase, values in blocked.items()},
        **(others or {}),
    }
    ranks = 100 + np.arange(shape[0])
    return StepTable(
        attempt=0,
        ranks=ranks,
        steps=np.arange(shape[1]) if steps is None else steps,
        values=Matrices(stored, ranks, np.arange(shape[1])),
        start_unix_ns=np.zeros(shape, np.int64),
        profiled=np.zeros(shape, bool),
        tags=dict(tags or {}),
    )


def graph_of(table: StepTable, rows: NDArray[np.intp] | None = None) -> StepGraph:
    """Return the graph of all ranks, or of those in some rows."""
    graph = build_step_graph(table, np.arange(len(table.ranks)) if rows is None else rows)
    assert graph is not None
    return graph


def scenarios_of(table: StepTable, rows: NDArray[np.intp] | None = None) -> StepScenarios:
    """Return all scenarios of all ranks, or of those in some rows, each on a host of its own."""
    graph = graph_of(table, rows)
    own = possible(table.matrix("own_us")[graph.rows])
    return play_steps(Causes(graph), HealingSavings(StepOwnTimes(table, graph.rows, own, 1.0), {}))


@dataclass
class Stretch:
    """Stretch of the chain. Lists and arrays are [ranks]."""

    own: Floats
    step: int = 0
    """Position of the step in which the stretch ends."""
    lost: dict[str, Floats] = field(default_factory=dict)
    """By phase: time above the rank in the middle. By cause: its part of ``own`` above that of the rank in the middle."""

    @property
    def above(self) -> Floats:
        """Own time above that of the rank in the middle, or 0."""
        return np.maximum(self.own - low(self.own), 0.0)


@dataclass
class PlainChain:
    """Chain of stretches, built cell by cell."""

    stretches: list[Stretch]
    transfers: Floats

    def times(self, longest: list[float]) -> Floats:
        """Return step times [steps] for the longest own time of each stretch."""
        times = self.transfers.copy()
        for stretch, time in zip(self.stretches, longest, strict=True):
            times[stretch.step] += time
        return times

    def of_rows(self, rows: set[int]) -> tuple[Floats, Floats]:
        """Return step times with only these ranks as recorded, and with all but these as recorded."""
        both = []
        for stretch in self.stretches:
            ideal = low(stretch.own)
            own = {row: max(time, ideal) for row, time in enumerate(stretch.own.tolist())}
            both.append([max((own[row] for row in own if (row in rows) == inside), default=ideal) for inside in (True, False)])
        return self.times([only for only, _ in both]), self.times([without for _, without in both])

    def of(self, *names: str) -> tuple[Floats, Floats]:
        """Return step times with only the time of these phases or causes above the ideal, and with all but that."""
        only, without = [], []
        for stretch in self.stretches:
            ideal = low(stretch.own)
            above = stretch.above
            part = np.minimum(sum((stretch.lost.get(name, np.zeros(len(above))) for name in names), np.zeros(len(above))), above)
            only.append(ideal + part.max())
            without.append(ideal + (above - part).max())
        return self.times(only), self.times(without)


def low(values: Floats) -> float:
    """Return the median, of two middle values the lower."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def plain_chain(table: StepTable, rows: list[int]) -> PlainChain:
    """Build the chain by its definition, one cell after the other."""
    steps = table.steps.tolist()
    phases = [phase for phase in PHASES if table.is_known(f"own_{phase}_us")]
    blocked = {phase: table.matrix(f"blocked_{phase}_us")[rows] for phase in phases if table.is_known(f"blocked_{phase}_us")}
    met = [
        phase for phase, times in blocked.items() if 2 * sum((times[:, at] > 0).any() for at in range(len(steps))) >= len(steps)
    ]
    causes = amounts_of(table, rows)
    stretches = [Stretch(np.zeros(len(rows)))]
    for at, step in enumerate(steps):
        cells = {phase: np.nan_to_num(table.matrix(f"own_{phase}_us")[rows, at]) for phase in phases}
        lost = {phase: np.maximum(times - low(times), 0.0) for phase, times in cells.items()}
        everything = sum(lost.values(), np.zeros(len(rows)))
        for phase in phases:
            stretch = stretches[-1]
            stretch.own, stretch.step = stretch.own + cells[phase], at
            stretch.lost[phase] = stretch.lost.get(phase, 0.0) + lost[phase]
            if phase in ("data", "h2d"):
                stretch.lost["input"] = stretch.lost.get("input", 0.0) + lost[phase]
            for cause, amounts in causes.items():
                here = [
                    time * part / phase_total if phase_total > 0 else 0.0
                    for time, part, phase_total in zip(amounts[:, at], lost[phase], everything, strict=True)
                ]
                stretch.lost[cause] = stretch.lost.get(cause, 0.0) + np.array(here)
            missing = phase == phases[-1] and at + 1 < len(steps) and steps[at + 1] > step + 1
            if phase in met or missing:
                stretches.append(Stretch(np.zeros(len(rows)), step=at))
    # What follows the last meeting is a stretch, too.
    stretches = stretches if stretches[-1].own.any() or stretches[-1].lost else stretches[:-1]
    for stretch in stretches:
        above = stretch.above
        for cause in ORDER:
            if cause in stretch.lost:
                stretch.lost[cause] = np.minimum(stretch.lost[cause], above)
                above = above - stretch.lost[cause]
        stretch.lost["host"] = stretch.lost["unknown"] = above
    transfers = sum((np.nan_to_num(blocked[phase]).min(axis=0) for phase in met), np.zeros(len(steps)))
    return PlainChain(stretches, transfers)


ORDER = ("gc", "checkpoint", "evaluation", "input", "imbalance", "cpu_contention", "compute")
"""Order in which causes take their parts of what is left."""


def amounts_of(table: StepTable, rows: list[int]) -> dict[str, Floats]:
    """Return the most that each cause but ``input`` and the rest took, [ranks, steps]."""

    def over(values: Floats) -> Floats:
        return np.array([np.maximum(of_step - low(of_step), 0.0) for of_step in values.T]).T

    values = {name: table.matrix(name)[rows] for name in table.values.recorded}
    by_key: dict[str, Floats] = {}
    if "gc_us" in values:
        by_key["gc"] = over(values["gc_us"])
    for cause, tag in (("checkpoint", "checkpoint"), ("evaluation", "eval")):
        tagged = table.tagged(tag)[rows]
        times = np.zeros(tagged.shape)
        for phase in ("between_steps", "forward") if tag == "eval" else ("between_steps",):
            if (own := values.get(f"own_{phase}_us")) is not None:
                usual = np.nanmedian(np.where(tagged, np.nan, own), axis=1)
                times += np.where(tagged, np.maximum(own - usual[:, None], 0.0), 0.0)
        by_key[cause] = over(times)
    if "run_queue_us" in values:
        by_key["cpu_contention"] = over(values["run_queue_us"])
    if "cpu_us" in values:
        by_key["compute"] = over(values["cpu_us"] - values.get("gc_us", 0.0))
    if "input_elements" in values:
        more = np.array([of_step > 1.1 * low(of_step) for of_step in values["input_elements"].T]).T
        by_key["imbalance"] = np.where(more, by_key["compute"] if "compute" in by_key else over(values["own_us"]), 0.0)
        if "compute" in by_key:
            by_key["compute"] = np.where(more, 0.0, by_key["compute"])
    return by_key
