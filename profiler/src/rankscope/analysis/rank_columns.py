"""The always-on step records of one rank, one column per metric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.possible import LAST_STEP, LATEST_NS, MAX_US
from rankscope.runs.records import PHASES, StepEvent
from rankscope.runs.step_columns import COUNTS, MEMORY, METERS, PROFILED, grouped_dtype
from rankscope.runs.step_segments import Rows

_MOST: Final = 2**62
"""No count of anything is larger."""
_MOST_US: Final = 1e30
"""Nothing in a step is larger, whatever its unit."""
_IN_USE: Final = [MEMORY.index("allocated_bytes"), MEMORY.index("resident_bytes")]

TIME_METRICS: Final = (
    "wall_us",
    "own_us",
    "blocked_us",
    *(f"{phase}_us" for phase in PHASES),
    *(f"own_{phase}_us" for phase in PHASES),
)
"""Metrics that every analysis looks at."""
METER_METRICS: Final = (*METERS, *COUNTS, "flops")
"""Metrics that are looked at for few ranks, or seldom."""

Tags = dict[str, NDArray[np.int64]]
"""Tag to the steps that have it."""


def no_memory() -> NDArray[np.float64]:
    """Not one sample."""
    return np.empty((0, 1 + len(MEMORY)))


@dataclass(frozen=True, slots=True)
class RankColumns:
    """One entry per record, in the order in which they were written. Tags are added at the end: see ``tagged``."""

    step: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    start: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    profiled: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Those metrics of ``steps.METRICS`` of which anything is known; NaN where nothing is. Single precision tells a second to
    a tenth of a microsecond, which is more than clocks do."""
    tags: dict[str, NDArray[np.intp]] = field(default_factory=dict)
    """Tag to the entries that have it."""
    memory: NDArray[np.float64] = field(default_factory=no_memory)
    """[samples, entry and ``MEMORY``]: of the entries that have anything of it."""
    damaged: int = 0
    """Records left out because their times or numbers are impossible."""

    @classmethod
    def of(cls, blocks: Iterable[Rows]) -> Self:
        """Columns of all ``blocks`` of rows."""
        return cls.joined([cls._of(rows)[0] for rows in blocks if len(rows)])

    @classmethod
    def of_each(cls, rows: Rows, counts: Sequence[int]) -> list[Self]:
        """Columns of several ranks whose rows follow each other: ``counts`` of them each, more than none."""
        columns, possible = cls._of(rows)
        firsts = np.cumsum([0, *counts[:-1]])
        parts = columns.cut(np.add.reduceat(possible, firsts, dtype=np.intp))
        return [replace(part, damaged=count - len(part.step)) for part, count in zip(parts, counts, strict=True)]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls()
        offsets = np.cumsum([0, *(len(part.step) for part in parts[:-1])])
        names = {name: None for part in parts for name in part.values}
        return cls(
            step=np.concatenate([part.step for part in parts]),
            start=np.concatenate([part.start for part in parts]),
            profiled=np.concatenate([part.profiled for part in parts]),
            values={name: np.concatenate([part.value(name) for part in parts]) for name in names},
            memory=np.concatenate(
                [part.memory + np.eye(1, 1 + len(MEMORY)) * offset for part, offset in zip(parts, offsets, strict=True)]
            ),
            damaged=sum(part.damaged for part in parts),
        )

    def value(self, name: str) -> NDArray[np.float32]:
        """One metric; NaN where nothing of it is known."""
        found = self.values.get(name)
        return np.full(len(self.step), np.nan, np.float32) if found is None else found

    @classmethod
    def _of(cls, rows: Rows) -> tuple[Self, NDArray[np.bool_]]:
        """Columns of the possible rows, and which rows these are."""
        groups = rows.view(grouped_dtype())
        possible = _possible(groups)
        if not possible.all():
            groups = groups[possible]
        # Sums of absurd times overflow, and are then as little known as these.
        with np.errstate(over="ignore", invalid="ignore"):
            values = {name: known for name, column in _metrics(groups) if (known := _known(column)) is not None}
        columns = cls(
            step=groups["step"].copy(),
            start=groups["start_unix_ns"].copy(),
            profiled=(groups["flags"] & PROFILED) != 0,
            values=values,
            memory=_memory(groups["memory"]),
            damaged=len(possible) - len(groups),
        )
        return columns, possible

    def cut(self, counts: NDArray[np.intp]) -> list[Self]:
        """So many entries each, one after the other."""
        parts = []
        for first, last in pairwise([0, *np.cumsum(counts).tolist()]):
            samples = self.memory[slice(*np.searchsorted(self.memory[:, 0], (first, last)))].copy()
            samples[:, 0] -= first
            parts.append(
                replace(
                    self,
                    step=self.step[first:last],
                    start=self.start[first:last],
                    profiled=self.profiled[first:last],
                    values={name: column[first:last] for name, column in self.values.items()},
                    memory=samples,
                )
            )
        return parts

    def tagged(self, tags: Tags) -> Self:
        """The same entries with these tags."""
        found = {tag: np.flatnonzero(np.isin(self.step, steps)) for tag, steps in tags.items()}
        return replace(self, tags={tag: entries for tag, entries in found.items() if len(entries)})

    def where(self, keep: NDArray[np.bool_]) -> Self:
        """The entries where ``keep`` is true."""
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


def tags_of(events: Iterable[StepEvent]) -> Tags:
    """Tags of some steps."""
    steps: dict[str, list[int]] = {}
    for event in events:
        if 0 <= event.step <= LAST_STEP:
            for tag in event.tags:
                steps.setdefault(tag, []).append(event.step)
    return {tag: np.array(numbers, dtype=np.int64) for tag, numbers in steps.items()}


def meter_columns(rows: Rows) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float32]]]:
    """The steps of the possible rows, and those ``METER_METRICS`` of which anything is known."""
    groups = rows.view(grouped_dtype())
    possible = _possible(groups)
    if not possible.all():
        groups = groups[possible]
    values = {name: known for name, column in _meters(groups) if (known := _known(column)) is not None}
    return groups["step"].copy(), values


def _known(column: NDArray[np.floating[Any]]) -> NDArray[np.float32] | None:
    """``None`` for a column in which nothing is known."""
    known = np.abs(column) < _MOST_US
    if known.all():
        return column.astype(np.float32, copy=False)
    return np.where(known, column, np.nan).astype(np.float32, copy=False) if known.any() else None


def _possible(groups: Rows) -> NDArray[np.bool_]:
    step, wall, counts = groups["step"], groups["wall_us"], groups["counts"]
    possible: NDArray[np.bool_] = (step >= 0) & (step <= LAST_STEP) & (wall >= 0) & (wall < MAX_US)
    possible &= (groups["start_unix_ns"] >= 0) & (groups["start_unix_ns"] < LATEST_NS) & (counts < _MOST).all(axis=1)
    return possible


def _metrics(groups: Rows) -> Iterable[tuple[str, NDArray[np.floating[Any]]]]:
    """All that the rows say of a step's time and work; see ``StepRecord`` for ``own_us`` and its like."""
    # [TIMES, phases, rows], one after the other in memory.
    times = np.ascontiguousarray(groups["times"].transpose(1, 2, 0))
    phases, blocked, device, device_blocked = times
    wall: NDArray[np.float64] = groups["wall_us"].copy()
    whole: Any = wall
    clock = phases
    has_blocked, has_device, has_device_blocked = (_is_known(one) for one in (blocked, device, device_blocked))
    # Where both are known the device's time line is the one to judge by: its host runs ahead and waits somewhere else.
    on_device = has_device & has_device_blocked
    if on_device.all():
        clock, blocked, has_blocked, whole = device, device_blocked, on_device, np.nansum(device, axis=0, dtype=np.float64)
    elif on_device.any():
        clock, blocked = np.where(on_device, device, phases), np.where(on_device, device_blocked, blocked)
        has_blocked = has_blocked | on_device
        whole = np.where(on_device, np.nansum(device, axis=0, dtype=np.float64), whole)
    waited = np.where(np.isnan(blocked), np.where(has_blocked, np.float32(0), np.float32(np.nan)), blocked)
    total = waited.sum(axis=0, dtype=np.float64)
    own = clock - waited
    yield "wall_us", wall
    yield "own_us", whole - total
    yield "blocked_us", total
    for at, phase in enumerate(PHASES):
        yield f"{phase}_us", phases[at]
        yield f"own_{phase}_us", own[at]
    yield from _meters(groups)


def _meters(groups: Rows) -> Iterable[tuple[str, NDArray[np.floating[Any]]]]:
    """``METER_METRICS`` of the rows."""
    for at, name in enumerate(METERS):
        yield name, groups["meters"][:, at]
    for at, name in enumerate(COUNTS):
        counts = groups["counts"][:, at]
        yield name, np.where(counts >= 0, counts, np.nan)
    yield "flops", groups["flops"]


def _is_known(times: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether any phase is known, [rows]."""
    found: NDArray[np.bool_] = np.logical_not(np.isnan(times).all(axis=0))
    return found


def _memory(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """The rows [rows, MEMORY] that say how much memory was in use; impossible numbers are NaN."""
    sampled = np.flatnonzero((values[:, _IN_USE] >= 0).any(axis=1))
    samples = values[sampled].astype(np.float64)
    samples[samples < 0] = np.nan
    return np.column_stack([sampled, samples])
