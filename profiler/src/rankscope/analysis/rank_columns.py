"""The always-on step records of one rank, one column per metric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.possible import LAST_STEP, MAX_US
from rankscope.analysis.step_rows import MOST, NUMBERS, RowColumns, no_memory
from rankscope.runs.records import PHASES

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
    memory: NDArray[np.float64] = field(default_factory=no_memory)
    """[samples, entry and ``step_rows.MEMORY``]: of the entries that tell anything of it."""
    damaged: int = 0
    """Records left out because their times or numbers are impossible."""

    @classmethod
    def of(cls, blocks: Iterable[RowColumns]) -> Self:
        """Columns of all ``blocks``."""
        parts = list(blocks)
        return cls._of(RowColumns.joined(parts))[0] if parts else cls()

    @classmethod
    def of_each(cls, rows: RowColumns, counts: Sequence[int]) -> list[Self]:
        """Columns of several ranks whose rows follow each other: ``counts`` of them each, more than none."""
        columns, possible = cls._of(rows)
        firsts = np.cumsum([0, *counts[:-1]])
        parts = columns.cut(np.add.reduceat(possible, firsts, dtype=np.intp))
        return [replace(part, damaged=count - len(part.step)) for part, count in zip(parts, counts, strict=True)]

    @classmethod
    def _of(cls, rows: RowColumns) -> tuple[Self, NDArray[np.bool_]]:
        """All columns, and which rows are in them."""
        possible = _possible(rows)
        # Sums of absurd times overflow, and are then as little known as these.
        with np.errstate(over="ignore", invalid="ignore"):
            metrics = _metrics(rows)
        columns = cls(
            step=np.where(possible, rows.numbers[0], 0).astype(np.int64),
            start=rows.start_unix_ns,
            profiled=rows.profiled,
            values={name: known for name, column in metrics.items() if (known := _known(column, possible)) is not None},
            tags=rows.tags,
            memory=rows.memory,
            damaged=len(possible) - int(possible.sum()),
        )
        return columns.where(possible) if columns.damaged else columns, possible

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
                    tags={tag: entries[(entries >= first) & (entries < last)] - first for tag, entries in self.tags.items()},
                    memory=samples,
                )
            )
        return parts

    def where(self, keep: NDArray[np.bool_]) -> Self:
        """The entries where ``keep`` is true."""
        place = np.cumsum(keep) - 1
        memory = self.memory[keep[self.memory[:, 0].astype(np.intp)]]
        memory[:, 0] = place[memory[:, 0].astype(np.intp)]
        return type(self)(
            step=self.step[keep],
            start=self.start[keep],
            profiled=self.profiled[keep],
            values={name: column[keep] for name, column in self.values.items()},
            tags={tag: place[entries[keep[entries]]] for tag, entries in self.tags.items()},
            memory=memory,
            damaged=self.damaged,
        )


def _known(column: NDArray[np.float64], possible: NDArray[np.bool_]) -> NDArray[np.float32] | None:
    """``None`` for a column in which nothing is known."""
    known = possible & (np.abs(column) < MOST)
    return np.where(known, column, np.nan).astype(np.float32) if known.any() else None


def _possible(rows: RowColumns) -> NDArray[np.bool_]:
    of = dict(zip(NUMBERS, rows.numbers, strict=True))
    step, wall = of["step"], of["wall_us"]
    possible: NDArray[np.bool_] = (step >= 0) & (step <= LAST_STEP) & (step == np.floor(step)) & (wall >= 0) & (wall < MAX_US)
    possible &= rows.start_unix_ns >= 0
    for name in ("input_elements", "samples", "tokens"):
        possible &= np.isnan(of[name]) | ((of[name] >= 0) & (of[name] < _MOST))
    return possible


def _metrics(rows: RowColumns) -> dict[str, NDArray[np.float64]]:
    """Everything that ``StepRecord`` says of itself (``own_us``, ``own_in_us`` …), for all rows at once."""
    of = dict(zip(NUMBERS, rows.numbers, strict=True))
    phases, blocked, device, device_blocked = rows.times
    _, has_blocked, has_device, has_device_blocked = rows.known
    times, whole = phases, of["wall_us"]
    # Where both are known the device's time line is the one to judge by: its host runs ahead and waits somewhere else.
    on_device = has_device & has_device_blocked
    if on_device.any():
        times, blocked = np.where(on_device, device, phases), np.where(on_device, device_blocked, blocked)
        has_blocked = has_blocked | on_device
        whole = np.where(on_device, np.nan_to_num(device).sum(axis=0), whole)
    waited = np.where(has_blocked, np.nan_to_num(blocked), np.nan)
    total = waited.sum(axis=0)
    own = times - waited
    return {
        "wall_us": of["wall_us"],
        "own_us": whole - total,
        "blocked_us": total,
        **{f"{phase}_us": phases[at] for at, phase in enumerate(PHASES)},
        **{f"own_{phase}_us": own[at] for at, phase in enumerate(PHASES)},
        **{name: of[name] for name in ("cpu_us", "run_queue_us", "gc_us", "input_elements", "samples", "tokens", "flops")},
    }
