"""The always-on step records of one rank, one column per metric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.step_rows import RowColumns, StepRow, columns_of
from rankscope.runs.records import PHASES

MAX_US: Final = 366 * 86_400 * 1e6
"""Nothing in training takes a year: a longer time is damage."""

LAST_STEP: Final = 2**53
"""A step number beyond it is damage."""

_MOST: Final = 2.0**62
"""No count of anything is larger."""


@dataclass(frozen=True, slots=True)
class RankColumns:
    """One entry per record, in the order in which they were written."""

    step: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    start: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    profiled: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Those metrics of ``steps.METRICS`` of which anything is known; NaN where nothing is. Single precision tells a second to
    a tenth of a microsecond, which is more than clocks do."""
    tags: dict[str, NDArray[np.intp]] = field(default_factory=dict)
    """Tag to the entries that have it."""
    damaged: int = 0
    """Records left out because their times or numbers are impossible."""

    @classmethod
    def of(cls, blocks: Iterable[list[StepRow]]) -> Self:
        """Columns of all ``blocks``, which are used up."""
        parts = [_part(columns_of(rows)) for rows in blocks if rows]
        names = dict.fromkeys(name for part in parts for name in part.values)
        offsets = np.cumsum([0, *(len(part.step) for part in parts)])
        tags: dict[str, list[NDArray[np.intp]]] = {}
        for offset, part in zip(offsets, parts, strict=False):
            for tag, entries in part.tags.items():
                tags.setdefault(tag, []).append(entries + offset)
        if not parts:
            return cls()
        return cls(
            step=np.concatenate([part.step for part in parts]),
            start=np.concatenate([part.start for part in parts]),
            profiled=np.concatenate([part.profiled for part in parts]),
            values={
                name: np.concatenate(
                    [part.values[name] if name in part.values else np.full(len(part.step), np.nan, np.float32) for part in parts]
                )
                for name in names
            },
            tags={tag: np.concatenate(entries) for tag, entries in tags.items()},
            damaged=sum(part.damaged for part in parts),
        )

    def where(self, keep: NDArray[np.bool_]) -> RankColumns:
        """The entries where ``keep`` is true."""
        place = np.cumsum(keep) - 1
        return RankColumns(
            step=self.step[keep],
            start=self.start[keep],
            profiled=self.profiled[keep],
            values={name: column[keep] for name, column in self.values.items()},
            tags={tag: place[entries[keep[entries]]] for tag, entries in self.tags.items()},
            damaged=self.damaged,
        )


def _part(rows: RowColumns) -> RankColumns:
    possible = _possible(rows)
    columns = RankColumns(
        step=np.where(possible, rows.numbers["step"], 0).astype(np.int64),
        start=rows.start_unix_ns,
        profiled=rows.profiled,
        values={name: known for name, column in _metrics(rows).items() if (known := _known(column, possible)) is not None},
        tags={tag: np.array(entries, dtype=np.intp) for tag, entries in rows.tags.items()},
        damaged=len(possible) - int(possible.sum()),
    )
    return columns.where(possible) if columns.damaged else columns


def _known(column: NDArray[np.float64], possible: NDArray[np.bool_]) -> NDArray[np.float32] | None:
    """``None`` for a column in which nothing is known."""
    return np.where(possible, column, np.nan).astype(np.float32) if np.isfinite(column[possible]).any() else None


def _possible(rows: RowColumns) -> NDArray[np.bool_]:
    step, wall = rows.numbers["step"], rows.numbers["wall_us"]
    possible = (step >= 0) & (step <= LAST_STEP) & (step == np.floor(step)) & (wall >= 0) & (wall < MAX_US)
    possible &= rows.start_unix_ns >= 0
    for name in ("input_elements", "samples"):
        amount = rows.numbers[name]
        possible &= np.isnan(amount) | ((amount >= 0) & (amount < _MOST))
    return possible


def _metrics(rows: RowColumns) -> dict[str, NDArray[np.float64]]:
    """Everything that ``StepRecord`` says of itself (``own_us``, ``own_in_us`` …), for all rows at once."""
    wall, times = rows.numbers["wall_us"], rows.times["phases_us"]
    blocked, has_blocked = _optional(rows, "blocked_us")
    whole = wall
    if "device_us" in rows.times and "device_blocked_us" in rows.times:
        # The device's time line is the one to judge by: the host of a device runs ahead and waits somewhere else.
        on_device = rows.known["device_us"] & rows.known["device_blocked_us"]
        blocked = np.where(on_device, rows.times["device_blocked_us"], blocked)
        has_blocked = has_blocked | on_device
        times = np.where(on_device, rows.times["device_us"], times)
        whole = np.where(on_device, np.nan_to_num(rows.times["device_us"]).sum(axis=0), wall)
    waited = np.where(has_blocked, np.nan_to_num(blocked), np.nan)
    total = waited.sum(axis=0)
    own = times - waited
    return {
        "wall_us": wall,
        "own_us": whole - total,
        "blocked_us": total,
        **{f"{phase}_us": rows.times["phases_us"][at] for at, phase in enumerate(PHASES)},
        **{f"own_{phase}_us": own[at] for at, phase in enumerate(PHASES)},
        **{name: rows.numbers[name] for name in ("cpu_us", "run_queue_us", "gc_us", "input_elements", "samples")},
    }


def _optional(rows: RowColumns, name: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if name in rows.times:
        return rows.times[name], rows.known[name]
    return np.full_like(rows.times["phases_us"], np.nan), np.zeros(len(rows.profiled), dtype=bool)
