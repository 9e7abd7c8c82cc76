"""Time of checkpoints and evaluations in a step: as the recorder measured it, else as the phases of tagged steps show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.causes import CAUSES
from rankscope.analysis.evidence.step_table.rank_columns import tag_metric
from rankscope.analysis.evidence.step_table.steps import Matrix, StepTable
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.statistics import medians
from rankscope.runs.records import Phase

ACTIVITIES: Final[dict[Cause, str]] = {row.cause: row.tag for row in CAUSES if row.tag is not None}
"""Causes that tags of step records show, and the tag of each."""

_SAMPLED: Final = 1000
"""Number of steps, about, from which a rank's usual time is estimated."""


@dataclass(frozen=True, slots=True)
class ActivityTimes:
    """Times of one activity on some ranks of a table.

    Where the recorder did not measure it, an activity takes at most what the time between the steps is longer than in the rank's
    untagged steps. Evaluations that only the script tags may also lie in forward, but forward of a rank that has no untagged step
    shows nothing.
    """

    table: StepTable
    tag: str
    rows: NDArray[np.intp]
    """Rows of the table."""
    phases: dict[Phase, NDArray[np.float64]]
    """Usual time without the tag in the phases in which the activity may lie, [ranks]; infinite where a phase does not count."""
    own: bool = True
    """True: own times count; False: wall times, for tables without own times."""

    @property
    def is_present(self) -> bool:
        """Whether any step of these ranks has the tag."""
        return _is_tagged(self.table, self.tag, self.rows)

    def in_steps(self, steps: slice) -> Matrix:
        """Return the time in some of the steps, [ranks, steps]; 0 without the tag."""
        return sum(self.by_phase(steps).values(), np.zeros((len(self.rows), len(self.table.steps[steps]))))

    def by_phase(self, steps: slice) -> dict[Phase, Matrix]:
        """Return the time in some of the steps by phase, [ranks, steps] each. Measured time counts as time between the steps."""
        tagged = self.table.tagged(self.tag)[self.rows, steps]
        if not tagged.any():  # tags are rare: most blocks of steps have none
            return {phase: np.zeros(tagged.shape) for phase in self.phases}
        return {
            phase: _times(
                tagged,
                self._measured(steps),
                self.table.some(phase_metric(phase, own=self.own), steps, self.rows) - usual[:, None],
                between=phase == "between_steps",
            )
            for phase, usual in self.phases.items()
        }

    def at(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> dict[Phase, NDArray[np.float64]]:
        """Return ``by_phase`` at places, given as a row of the table and a column each: [places]."""
        measured = np.full(len(rows), np.nan)
        if self.table.is_known(tag_metric(self.tag)):
            measured = self.table.at(tag_metric(self.tag), rows, columns).astype(np.float64)
        place = np.searchsorted(self.rows, rows)
        return {
            phase: _times(
                self.table.tagged(self.tag)[rows, columns],
                measured,
                self.table.at(phase_metric(phase, own=self.own), rows, columns) - usual[place],
                between=phase == "between_steps",
            )
            for phase, usual in self.phases.items()
        }

    def is_measured(self, at: int, steps: NDArray[np.bool_]) -> bool:
        """Return whether the recorder measured the activity in any of the ``steps`` [steps] of the rank at place ``at``."""
        return bool(np.isfinite(self._measured(slice(None))[at, steps]).any())

    def _measured(self, steps: slice) -> NDArray[np.floating[Any]]:
        metric = tag_metric(self.tag)
        if self.table.is_known(metric):
            return self.table.some(metric, steps, self.rows)
        return np.full((len(self.rows), len(self.table.steps[steps])), np.nan)


def _times(
    tagged: NDArray[np.bool_], measured: NDArray[np.floating[Any]], longer: NDArray[np.floating[Any]], *, between: bool
) -> NDArray[np.float64]:
    """Return the measured times, which count as ``between`` the steps, else the times that a phase is ``longer`` than usual."""
    inferred = np.nan_to_num(longer, nan=0.0, neginf=0.0).clip(min=0.0)
    times: NDArray[np.float64] = np.where(np.isnan(measured), inferred, measured if between else 0.0)
    return np.where(tagged, times, 0.0)


def _is_tagged(table: StepTable, tag: str, rows: NDArray[np.intp]) -> bool:
    if tag not in table.tags:
        return False
    of_ranks: NDArray[np.bool_] = np.logical_or.reduce(table.tags[tag], axis=1)
    return bool(of_ranks[rows].any())


def phase_metric(phase: Phase, *, own: bool) -> str:
    """Return the metric of the own or the wall time in a phase."""
    return f"{'own_' if own else ''}{phase}_us"


def activity_times(
    table: StepTable, tag: str, rows: NDArray[np.intp], *, own: bool = True, needed: NDArray[np.bool_] | None = None
) -> ActivityTimes:
    """Return the times of an activity on the ranks in ``rows`` of a table; see ``ActivityTimes``.

    ``needed``: ranks whose times are asked for, [ranks]; those of the others need not be read, and are 0.
    """
    if not _is_tagged(table, tag, rows):
        return ActivityTimes(table, tag, rows, {}, own)
    tagged = table.tagged(tag)
    needed = np.ones(len(rows), dtype=bool) if needed is None else needed
    # At random: tags are often periodic, and a stride could meet only tagged steps.
    count = len(table.steps)
    sampled = np.sort(np.random.default_rng(0).choice(count, min(count, _SAMPLED), replace=False))

    def untagged(metric: str, rows: NDArray[np.intp]) -> Matrix:
        times, recorded = (
            np.array([table.of_rank(name, int(row))[sampled] for row in rows], dtype=np.float64).reshape(len(rows), len(sampled))
            for name in (metric, "wall_us")
        )
        times[tagged[np.ix_(rows, sampled)] | ~np.isfinite(recorded)] = np.nan
        return times

    phases: dict[Phase, NDArray[np.float64]] = {}
    candidates: tuple[Phase, ...] = ("between_steps", "forward") if tag == "eval" else ("between_steps",)
    for phase in candidates:
        metric = phase_metric(phase, own=own)
        if not table.is_known(metric):
            continue
        usual = np.full(len(rows), np.nan)
        usual[needed] = medians(untagged(metric, rows[needed]))
        unknown = needed & np.isnan(usual)
        if phase == "forward":
            usual[unknown] = np.inf
        elif unknown.any():
            typical = medians(untagged(metric, rows).reshape(1, -1))[0]
            usual[unknown] = 0.0 if np.isnan(typical) else typical
        phases[phase] = usual
    return ActivityTimes(table, tag, rows, phases, own)
