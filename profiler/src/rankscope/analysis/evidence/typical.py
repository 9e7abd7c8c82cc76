"""Typical and rare steps of a run, and the steps at which ranks meet.

A verdict is about the typical step: one pause of 30 s would dominate every mean. What the few rare steps cost is a figure of its
own (``costs/rare_steps.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.order import by_step, of_blocks
from rankscope.analysis.evidence.step_table.steps import METRICS, Matrices, Matrix, StepTable, Stored
from rankscope.analysis.statistics import SAMPLED_RANKS, lower_medians, sampled
from rankscope.runs.records import RankInfo

WARM_UP: Final = 5
"""Steps at the start that are left out (at most a fifth of all), while caches fill, allocators and buckets settle."""

_RARE: Final = 0.95
"""Quantile of the steps' times that rare steps exceed by the factor ``_LONGER``: at most one in twenty steps is rare."""

_LONGER: Final = 2.0
"""Factor by which a rare step is longer than that quantile."""

_FEWEST: Final = 10
"""Number of steps below which none is called rare."""

_MEETS: Final = 0.9
"""Share of the steps with waiting from which ranks are taken to meet in every step."""

_WAITED: Final = 0.005
"""Share of a step that some rank must be blocked for ranks to have met in it."""


@dataclass(frozen=True, slots=True)
class TypicalSteps:
    """Step records of a run, divided into typical and rare steps."""

    table: StepTable
    """Typical steps. Where ranks meet only every N steps, an entry is the mean over the steps up to a meeting."""
    met: StepTable
    """The same with the rare steps."""
    rare: NDArray[np.bool_]
    """True at the rare steps of ``met``."""
    length_us: NDArray[np.float64]
    """Time of each step of ``met``: the middle over the ranks."""
    per_entry: float
    """Number of steps that an entry stands for, on average."""


def typical_steps(table: StepTable, infos: Mapping[int, RankInfo]) -> TypicalSteps:
    """Divide the step records of a run into typical and rare steps."""
    met = up_to_meetings(table, infos)
    length, rare = rare_steps(met)
    per_entry = (len(table.steps) / max(1, len(met.steps))) if met is not table else 1.0
    return TypicalSteps(met.columns(~rare) if rare.any() else met, met, rare, length, per_entry)


def after_warm_up(steps: int) -> NDArray[np.bool_]:
    """Return a mask of so many steps that leaves out those of the warm-up, [steps]."""
    return np.arange(steps) >= min(WARM_UP, steps // 5)


def rare_steps(table: StepTable) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the time of each step in microseconds, and a mask of the rare ones, both [steps].

    A step is rare if its time, or the longest own time in it, is more than twice that of 19 of 20 steps, or closer to such times
    than to theirs. A delay of one rank may show in the waiting of the others only at their next step, so both count. Profiled
    steps and warm-up are not rare.
    """
    walls = table.some("wall_us", slice(None), sampled(np.arange(len(table.ranks))))
    length = _middle(walls)
    count = len(length)
    usual = after_warm_up(count) & np.isfinite(length) & ~table.profiled.any(axis=0)
    if usual.sum() < _FEWEST:
        return length, np.zeros(count, dtype=bool)
    rare = _far_longer(length, usual)
    if table.is_known("own_us"):
        longest = np.concatenate(
            of_blocks((len(table.ranks), count), lambda steps: np.fmax.reduce(table.some("own_us", steps), axis=0))
        ).astype(np.float64)
        is_known = usual & np.isfinite(longest)
        if is_known.sum() >= _FEWEST:
            rare |= _far_longer(longest, is_known)
    return length, rare


def _far_longer(times: NDArray[np.float64], usual: NDArray[np.bool_]) -> NDArray[np.bool_]:
    most = np.quantile(times[usual], _RARE, method="lower")
    if most <= 0 or not (times[usual] > _LONGER * most).any():
        return np.zeros(len(times), dtype=bool)
    # The limit is moved down to the widest gap: it must not divide steps that are slow for the same reason.
    above = np.sort(times[usual & (times >= most)])
    below = above[:-1][above[:-1] <= _LONGER * most]
    is_far_longer: NDArray[np.bool_] = usual & (times > below[np.argmax(above[1 : len(below) + 1] / below)])
    return is_far_longer


def _middle(values: Stored) -> NDArray[np.float64]:
    """Return the lower median of the known values of each step, [steps]; NaN without any."""
    if not len(values):
        return np.empty(0)
    return lower_medians(by_step(values))


def up_to_meetings(table: StepTable, infos: Mapping[int, RankInfo]) -> StepTable:
    """Return the table itself, or, where ranks meet only every N steps, one with an entry for the steps up to each meeting.

    Between meetings each rank runs on by itself, so single steps say nothing about waiting. An entry is the mean over its steps,
    and has the number of the last. A step without a collective has no waiting, where a rank waited in others: its own time is its
    whole time.
    """
    own = _without_waiting(table, infos)
    if own is None:
        return table
    wall, blocked = np.nan_to_num(table.matrix("wall_us")), table.matrix("blocked_us")
    has_blocked, blocked = np.isfinite(blocked).any(axis=0), np.nan_to_num(blocked)
    # Where ranks take equally long, none has to wait, although they meet.
    longest, least = wall.max(axis=0, initial=0.0), np.where(wall > 0, wall, np.inf).min(axis=0, initial=np.inf)
    meets = (blocked > _WAITED * wall).any(axis=0) | (has_blocked & (longest - least <= _WAITED * longest))
    if not meets.any() or meets.mean() >= _MEETS:
        return table
    firsts = np.concatenate([[0], np.flatnonzero(meets)[:-1] + 1])
    last = np.flatnonzero(meets)
    sizes = last - firsts + 1
    met_steps = slice(0, int(last[-1]) + 1)

    def mean(values: Matrix) -> Matrix:
        means: Matrix = np.add.reduceat(values[:, met_steps], firsts, axis=1) / sizes
        return means

    values = {
        name: mean(table.matrix(name))
        for name in METRICS
        if name not in own and table.is_known(name) and np.isfinite(table.matrix(name)).any()
    }
    values |= {name: mean(matrix) for name, matrix in own.items()}
    starts = np.array([table.starts(row)[firsts] for row in range(len(table.ranks))])
    return StepTable(
        attempt=table.attempt,
        ranks=table.ranks,
        steps=table.steps[last],
        values=Matrices({name: matrix.astype(np.float32) for name, matrix in values.items()}, table.ranks, np.arange(len(last))),
        start_unix_ns=starts,
        profiled=np.logical_or.reduceat(table.profiled[:, met_steps], firsts, axis=1),
        tags={tag: np.logical_or.reduceat(at[:, met_steps], firsts, axis=1) for tag, at in table.tags.items()},
        last_end_unix_ns=table.last_end_unix_ns,
        damaged=table.damaged,
        earlier=table.earlier,
        memory=table.memory,
    )


_UNKNOWN: Final = 0.3
"""Share of a rank's steps without known waiting from which these are taken to be steps without a collective."""


def _is_periodic(steps: NDArray[np.bool_]) -> bool:
    """Return whether the true ``steps`` are every N-th one, exactly: those in which a device has marks are chosen by a hash."""
    distances = np.diff(np.flatnonzero(steps))
    return len(distances) > 1 and int(distances[0]) > 1 and bool((distances == distances[0]).all())


def _without_waiting(table: StepTable, infos: Mapping[int, RankInfo]) -> dict[str, Matrix] | None:
    """Return own and blocked times with no waiting where none was recorded; ``None`` where ranks meet in nearly every step.

    On a device this is done only where steps with waiting are every N-th one: else own times may be known in some steps only.
    Where waiting is known in every step, ranks may still meet only in some.
    """
    if not table.is_known("own_us"):
        return None
    # Nearly every run has waiting in nearly every step of some rank; these need no copies of all matrices.
    sampled_times = table.some("blocked_us", slice(None), np.arange(len(table.ranks))[:SAMPLED_RANKS])
    if (np.nan_to_num(sampled_times) > 0).any(axis=0).mean() >= _MEETS:
        return None
    wall, blocked = table.matrix("wall_us"), table.matrix("blocked_us")
    recorded = np.isfinite(wall)
    is_known = np.isfinite(blocked)
    unknown = recorded & ~is_known
    somewhere: NDArray[np.bool_] = np.logical_or.reduce(is_known, axis=0)
    on_device = any(info.device_kind != "cpu" for info in infos.values())
    if on_device and not _is_periodic(somewhere):
        # Own times may be known in some steps only. Where ranks meet, even the last one waits for the transfer.
        without_transfer = (blocked == 0) & (np.nan_to_num(blocked) > 0).any(axis=0)
        if without_transfer.any() or unknown.any(axis=0).mean() > 1 - _MEETS:
            return None
    fill = unknown & (is_known.any(axis=1) & (unknown.sum(axis=1) >= _UNKNOWN * recorded.sum(axis=1)))[:, None]
    result = {"blocked_us": np.where(fill, 0.0, blocked)}
    for name in METRICS:
        if name.startswith("own_") and table.is_known(name):
            total = table.matrix("wall_us" if name == "own_us" else name.removeprefix("own_"))
            result[name] = np.where(fill, total, table.matrix(name))
    return result
