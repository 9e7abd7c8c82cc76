"""Always-on step records of one rank, one column per metric."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.possible import LAST_STEP, MAX_US, are_possible_steps
from rankscope.runs.records import PHASES, StepEvent
from rankscope.runs.step_columns import COUNTS, HAS_BLOCKED, HAS_DEVICE, HAS_DEVICE_BLOCKED, MEMORY, METERS, PROFILED
from rankscope.runs.step_segments import ColumnRows, Rows

_MOST: Final = 2**62
"""Limit of counts; a larger one is damage."""
_MOST_OTHER: Final = 1e30
"""Limit of all other values than times, whatever their unit; a larger one is damage."""
_IN_USE: Final = ("allocated_bytes", "resident_bytes")

STEP_METRICS: Final = ("wall_us", "own_us", "blocked_us")
"""Times of whole steps, which every analysis uses of all ranks."""
PHASE_METRICS: Final = (*(f"{phase}_us" for phase in PHASES), *(f"own_{phase}_us" for phase in PHASES))
"""Times of phases, which are used for few ranks or few steps."""
TIME_METRICS: Final = (*STEP_METRICS, *PHASE_METRICS)
WORK_METRICS: Final = ("samples", "tokens", "flops")
_ELEMENTS: Final = ("input_elements", "model_elements")
GIVEN_WORK: Final = ("model_elements", "input_elements", "samples")
"""Metrics of the work that a rank is given, the best first."""
METER_METRICS: Final = (*METERS, *_ELEMENTS)
"""Metrics that are used for few ranks only."""
POSTPONED_METRICS: Final = (*PHASE_METRICS, *METER_METRICS)
"""Metrics that a table reads on request."""
BLOCKED_METRICS: Final = tuple(f"blocked_{phase}_us" for phase in PHASES)
"""Blocked time per phase, on the same clock as ``own_PHASE_us``; read on request. NaN also where a rank was never blocked."""
LOADED_METRICS: Final = (*STEP_METRICS, *WORK_METRICS, *MEMORY)
ALL_METRICS: Final = (*LOADED_METRICS, *POSTPONED_METRICS)

TIMED_TAGS: Final = ("checkpoint", "eval")
"""Tags whose time in the step the recorder measures where it can, as a section of the same name."""

Tags = dict[str, NDArray[np.int64]]
"""Steps by tag."""
TagTimes = dict[str, dict[int, float]]
"""Step to the time of a tag in it, in microseconds, by tag; without the steps in which that was not measured."""


def tag_metric(tag: str) -> str:
    """Return the metric of the time of one of ``TIMED_TAGS``; NaN where it was not measured."""
    return f"tag_{tag}_us"


def no_memory() -> NDArray[np.float64]:
    """Return an array of memory samples without any sample."""
    return np.empty((0, 1 + len(MEMORY)))


@dataclass(frozen=True, slots=True)
class RankColumns:
    """Columns of step records: one entry per record, in the order of writing. Tags are added last, see ``tagged``."""

    step: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    start: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    profiled: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Metrics of ``steps.METRICS`` with any known value; unknown values are NaN. Single precision resolves a second to a tenth of
    a microsecond, which is finer than clocks do."""
    tags: dict[str, NDArray[np.intp]] = field(default_factory=dict)
    """Positions of entries by tag."""
    memory: NDArray[np.float64] = field(default_factory=no_memory)
    """Memory samples, [samples, entry and ``MEMORY``], of the entries with memory usage."""
    damaged: int = 0
    """Number of records left out because their times or numbers are impossible."""
    postponed: frozenset[str] = frozenset()
    """``POSTPONED_METRICS`` that may have known values and were not requested, see ``of``."""
    same: frozenset[str] = frozenset()
    """Metrics ``own_PHASE_us`` that are not in ``values`` because they equal ``PHASE_us``: the rank never waited in the phase."""

    @property
    def metrics(self) -> dict[str, NDArray[np.float32]]:
        """All known metrics except the postponed ones; two may share a column."""
        return self.values | {name: self.values[name.removeprefix("own_")] for name in self.same}

    @classmethod
    def of(cls, blocks: Iterable[Rows], metrics: Collection[str] = ALL_METRICS) -> Self:
        """Return the columns of all ``blocks`` of rows; see ``of_columns``."""
        return cls.of_columns(ColumnRows(blocks), metrics)

    @classmethod
    def of_columns(cls, rows: ColumnRows, metrics: Collection[str] = ALL_METRICS) -> Self:
        """Return the columns of ``rows``, with those of ``ALL_METRICS`` and ``BLOCKED_METRICS`` in ``metrics``.

        Memory samples are included if ``metrics`` has any name in ``MEMORY``.
        """
        if not len(rows):
            return cls()
        possible = _possible(rows)
        damaged = len(rows) - int(np.count_nonzero(possible))
        rows = rows.where(possible) if damaged else rows
        flags, counts = rows.column("flags"), rows.table(COUNTS)
        # Sums of absurd times may overflow; they are then unknown like these times.
        with np.errstate(over="ignore", invalid="ignore"):
            values, equal = _values(rows, flags, counts, _computed(metrics))
        named = _valid_metrics(_computed(metrics), values, metrics)
        # Only where ``PHASE_us`` is requested, too.
        same = frozenset(name for name in equal & named.keys() if name.removeprefix("own_") in metrics)
        meters = _valid_metrics(METER_METRICS, _meters(rows, counts), metrics) if _some(METER_METRICS, metrics) else {}
        return cls(
            step=rows.column("step").copy(),  # a view would keep all columns in memory
            start=rows.column("start_unix_ns").copy(),
            profiled=flags & PROFILED != 0,
            values={name: column for name, column in named.items() if name not in same} | meters,
            same=same,
            memory=_memory(rows) if _some(MEMORY, metrics) else no_memory(),
            damaged=damaged,
            postponed=_known_metrics(rows, flags, counts, [name for name in POSTPONED_METRICS if name not in metrics]),
        )

    @classmethod
    def of_each(cls, rows: Rows, counts: Sequence[int]) -> list[Self]:
        """Return the columns of each of several ranks from their consecutive ``rows``; ``counts`` per rank, none of them 0."""
        joined = ColumnRows([rows])
        firsts = np.cumsum([0, *counts[:-1]])
        parts = cls.of_columns(joined).cut(np.add.reduceat(_possible(joined), firsts, dtype=np.intp))
        return [replace(part, damaged=count - len(part.step)) for part, count in zip(parts, counts, strict=True)]

    def cut(self, counts: NDArray[np.intp]) -> list[Self]:
        """Split the entries into consecutive parts of ``counts`` entries."""
        return [self.part(first, last) for first, last in pairwise([0, *np.cumsum(counts).tolist()])]

    def part(self, first: int, last: int) -> Self:
        """Return the entries from ``first`` (inclusive) to ``last`` (exclusive)."""
        samples = self.memory[slice(*np.searchsorted(self.memory[:, 0], (first, last)))].copy()
        samples[:, 0] -= first
        return replace(
            self,
            step=self.step[first:last],
            start=self.start[first:last],
            profiled=self.profiled[first:last],
            values={name: column[first:last] for name, column in self.values.items()},
            tags={tag: entries[(entries >= first) & (entries < last)] - first for tag, entries in self.tags.items()},
            memory=samples,
        )

    def tagged(self, tags: Tags, times: TagTimes | None = None) -> Self:
        """Return the same entries with ``tags``, and with the ``times`` of those that were measured."""
        entries, columns = tag_columns(tags, times or {}, self.step)
        return replace(self, tags=entries, values=self.values | columns)

    def joined(self, numbers: NDArray[np.int64]) -> Self:
        """Return the entries with other step numbers: those of equal numbers, which follow each other, as one. -1: left out."""
        entries = self.where(numbers >= 0)
        numbers = numbers[numbers >= 0]
        if not len(numbers):
            return entries
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        place = np.cumsum(np.diff(numbers, prepend=-1) != 0) - 1
        memory = entries.memory.copy()
        memory[:, 0] = place[memory[:, 0].astype(np.intp)]
        return replace(
            entries,
            step=numbers[firsts],
            start=entries.start[firsts],
            profiled=np.logical_or.reduceat(entries.profiled, firsts),
            values={name: np.add.reduceat(column, firsts) for name, column in entries.values.items()},
            tags={tag: np.unique(place[at]) for tag, at in entries.tags.items()},
            memory=memory,
        )

    def where(self, keep: NDArray[np.bool_]) -> Self:
        """Return the entries for which ``keep`` is true."""
        place = np.cumsum(keep) - 1
        memory = self.memory[keep[self.memory[:, 0].astype(np.intp)]]
        memory[:, 0] = place[memory[:, 0].astype(np.intp)]
        return replace(
            self,
            step=self.step[keep],
            start=self.start[keep],
            profiled=self.profiled[keep],
            values={name: column[keep] for name, column in self.values.items()},
            tags={tag: place[entries[keep[entries]]] for tag, entries in self.tags.items()},
            memory=memory,
        )


def _possible(rows: ColumnRows) -> NDArray[np.bool_]:
    """Return which rows have possible times and numbers, [rows]."""
    possible = are_possible_steps({name: rows.column(name) for name in ("step", "start_unix_ns", "wall_us")})
    for name in COUNTS:
        possible &= rows.column(name) < _MOST
    return possible


def _some(names: Sequence[str], metrics: Collection[str]) -> bool:
    """Return whether any of ``names`` is in ``metrics``."""
    return any(name in metrics for name in names)


def tag_columns(
    tags: Tags, times: TagTimes, steps: NDArray[np.int64]
) -> tuple[dict[str, NDArray[np.intp]], dict[str, NDArray[np.float32]]]:
    """Return the positions in ``steps`` that have each tag, and a column [steps] of the metric of each tag that was measured."""
    entries = entries_of(tags, steps)
    columns: dict[str, NDArray[np.float32]] = {}
    for tag, by_step in times.items():
        if tag in entries:
            column = columns[tag_metric(tag)] = np.full(len(steps), np.nan, np.float32)
            column[entries[tag]] = [by_step.get(step, np.nan) for step in steps[entries[tag]].tolist()]
    return entries, columns


def entries_of(tags: Tags, steps: NDArray[np.int64]) -> dict[str, NDArray[np.intp]]:
    """Return the positions in ``steps`` that have each tag."""
    if (steps[1:] > steps[:-1]).all():  # as usual; several times as fast
        entries_by_tag = {tag: _places_in(steps, np.unique(tagged)) for tag, tagged in tags.items()}
    else:
        entries_by_tag = {tag: np.flatnonzero(np.isin(steps, tagged)) for tag, tagged in tags.items()}
    return {tag: entries for tag, entries in entries_by_tag.items() if len(entries)}


def _places_in(ascending: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the positions in ``ascending`` of the ``values`` that it has."""
    places = np.searchsorted(ascending, values)
    places, values = places[places < len(ascending)], values[places < len(ascending)]
    matching_places: NDArray[np.intp] = places[ascending[places] == values]
    return matching_places


def tags_of(events: Iterable[StepEvent]) -> Tags:
    """Return the steps by tag of some events."""
    steps: dict[str, list[int]] = {}
    for event in events:
        if 0 <= event.step <= LAST_STEP:
            for tag in event.tags:
                steps.setdefault(tag, []).append(event.step)
    return {tag: np.array(numbers, dtype=np.int64) for tag, numbers in steps.items()}


def times_of_tags(events: Iterable[StepEvent]) -> TagTimes:
    """Return the measured times of ``TIMED_TAGS`` in some events; impossible ones are left out."""
    times: TagTimes = {}
    for event in events:
        for tag in TIMED_TAGS:
            if tag in event.tags and 0 <= event.step <= LAST_STEP and 0 <= (us := event.sections_us.get(tag, -1.0)) < MAX_US:
                times.setdefault(tag, {})[event.step] = us
    return times


def _computed(metrics: Collection[str]) -> tuple[str, ...]:
    """Return the metrics, except meters, that are computed where ``metrics`` are requested: step times and work at least."""
    times = TIME_METRICS if _some(PHASE_METRICS, metrics) else STEP_METRICS
    return (*WORK_METRICS, *times, *(BLOCKED_METRICS if _some(BLOCKED_METRICS, metrics) else ()))


def _values(
    rows: ColumnRows, flags: NDArray[np.uint32], counts: NDArray[np.int64], names: Sequence[str]
) -> tuple[NDArray[np.float32], frozenset[str]]:
    """Return the metrics of ``_computed`` [metrics, rows], and those that equal another, see ``RankColumns.same``.

    ``StepRecord`` defines ``own_us`` and similar metrics.
    """
    columns = np.empty((len(names), len(rows)), np.float32)
    for at, name in enumerate(("samples", "tokens")):
        columns[at] = _count(counts, name)
    columns[2] = rows.column("flops")
    return columns, _times(rows, flags, *np.split(columns, [3, 6, 6 + len(PHASE_METRICS)])[1:])


def _count(counts: NDArray[np.int64], name: str) -> NDArray[np.floating[Any]]:
    values = counts[COUNTS.index(name)]
    return np.where(values >= 0, values, np.nan)


def _times(
    rows: ColumnRows,
    flags: NDArray[np.uint32],
    times: NDArray[np.float32],
    of_phases: NDArray[np.float32],
    of_blocked: NDArray[np.float32],
) -> frozenset[str]:
    """Fill in ``STEP_METRICS``, and, unless empty, ``PHASE_METRICS`` and ``BLOCKED_METRICS``; return those that equal another."""
    wall: NDArray[np.float64] = rows.column("wall_us")
    has_blocked = flags & HAS_BLOCKED != 0
    # The host runs ahead of its device, and waits for it at some steps only. So the step's time is the device's where it is
    # known, and own and blocked time are the device's where its blocked time is known, too.
    has_device = flags & HAS_DEVICE != 0
    on_device = has_device & (flags & HAS_DEVICE_BLOCKED != 0)
    blocked = _of_phases(rows, "blocked_")
    clock = phases = _of_phases(rows) if len(of_phases) else None
    accounted_wall, step = wall, wall
    if has_device.any():
        device = _of_phases(rows, "device_")
        is_on_device = has_device & np.isfinite(device).any(axis=0)
        step = np.where(is_on_device, np.nansum(device, axis=0, dtype=np.float64), wall)
    if on_device.any():
        blocked = np.where(on_device, _of_phases(rows, "device_blocked_"), blocked)
        clock = None if phases is None else np.where(on_device, device, phases)
        accounted_wall = np.where(on_device, step, wall)
        has_blocked |= on_device
    # Where blocked time was recorded at all, a phase without a value had none.
    np.copyto(blocked, 0.0, where=np.isnan(blocked))
    if not has_blocked.all():
        blocked[:, ~has_blocked] = np.nan
    total = blocked.sum(axis=0)
    times[0], times[1], times[2] = step, accounted_wall - total, total
    if phases is None and not len(of_blocked):
        return frozenset()
    waited: NDArray[np.bool_] = blocked.any(axis=1)  # type: ignore[assignment]  # NaN counts as something
    if len(of_blocked):
        of_blocked[:] = np.where(waited[:, None], blocked, np.nan)
    if phases is None or clock is None:
        return frozenset()
    of_phases[: len(PHASES)] = phases
    np.subtract(clock, blocked, out=of_phases[len(PHASES) :])
    if clock is not phases:
        return frozenset()
    return frozenset(f"own_{phase}_us" for phase, has_waits in zip(PHASES, waited.tolist(), strict=True) if not has_waits)


def _of_phases(rows: ColumnRows, prefix: str = "") -> NDArray[np.float32]:
    """Return a copy of the times of all phases, [phases, rows]: ``blocked_``, ``device_`` … ones by the ``prefix``."""
    return rows.table([f"{prefix}{phase}_us" for phase in PHASES])


def _meters(rows: ColumnRows, counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return ``METER_METRICS``, [metrics, rows]."""
    return np.concatenate([rows.table(METERS), np.array([_count(counts, name) for name in _ELEMENTS], np.float32)])


def _known_metrics(
    rows: ColumnRows, flags: NDArray[np.uint32], counts: NDArray[np.int64], names: Sequence[str]
) -> frozenset[str]:
    """Return those of the ``POSTPONED_METRICS`` in ``names`` that may have known values."""
    on_device = (flags & (HAS_DEVICE | HAS_DEVICE_BLOCKED)) == HAS_DEVICE | HAS_DEVICE_BLOCKED
    on_host = (flags & HAS_BLOCKED != 0) & ~on_device
    has_device, all_on_host = bool(on_device.any()), bool(on_host.all())
    metrics = set()
    for name in names:
        if name in _ELEMENTS:
            has_values = bool((counts[COUNTS.index(name)] >= 0).any())
        elif name.startswith("own_"):
            phase = name.removeprefix("own_")
            column = rows.column(phase)
            has_values = _any_known(column if all_on_host else column[on_host])
            has_values = has_values or (has_device and _any_known(rows.column(f"device_{phase}")[on_device]))
        else:
            has_values = _any_known(rows.column(name))
        if has_values:
            metrics.add(name)
    return frozenset(metrics)


def _any_known(column: NDArray[np.float32]) -> bool:
    return len(column) > 0 and (not np.isnan(column[0]) or not bool(np.isnan(column).all()))


def _valid_metrics(names: Sequence[str], values: NDArray[np.float32], metrics: Collection[str]) -> dict[str, NDArray[np.float32]]:
    """Return those ``metrics`` among ``names`` that have any known value; absurd values count as unknown.

    ``values``: the columns of all ``names``, [names, rows].
    """
    chosen = [at for at, name in enumerate(names) if name in metrics]
    if len(chosen) < len(names):
        values, names = values[chosen], [names[at] for at in chosen]
    most = np.array([MAX_US if name.endswith("_us") else _MOST_OTHER for name in names], np.float32)
    largest, least = (extreme.reduce(values, axis=1, initial=np.nan) for extreme in (np.fmax, np.fmin))  # NaN where all are
    if (largest >= most).any() or (least <= -most).any():
        values[np.abs(values) >= most[:, None]] = np.nan
        largest = np.fmax.reduce(values, axis=1)
    return {name: row for name, row, is_unknown in zip(names, values, np.isnan(largest), strict=True) if not is_unknown}


def _memory(rows: ColumnRows) -> NDArray[np.float64]:
    """Return the samples [samples, row and ``MEMORY``] of the rows that have memory usage; negative numbers become NaN."""
    sampled = np.flatnonzero(np.logical_or.reduce([rows.column(name) >= 0 for name in _IN_USE]))
    samples = np.array([rows.column(name)[sampled] for name in MEMORY], np.float64)
    samples[samples < 0] = np.nan
    return np.column_stack([sampled, *samples])
