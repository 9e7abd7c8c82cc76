"""Table of steps under construction: filled rank by rank from files, or step by step while the run continues."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.step_table.rank_columns import RankColumns

_SPARE: Final = 8
"""One part in this many is left free for new steps, so that not every new step moves all others."""


_NOWHERE: Final = (np.empty(0, np.int64), slice(0, 0))


@dataclass(slots=True)
class StepTableBuilder:
    """Table of steps under construction: values are NaN, and records absent, where nothing has been added yet.

    Arrays are [ranks, number of steps or more].
    """

    ranks: list[int] = field(default_factory=list)
    """Ascending."""
    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Ascending."""
    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Values per metric, only for metrics with known values."""
    same: set[str] = field(default_factory=set)
    """Metrics ``own_PHASE_us`` that equal ``PHASE_us`` for all ranks so far; they are not in ``values``."""
    start: NDArray[np.int64] | None = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """``None``: not kept."""
    last_end_unix_ns: float = 0.0
    """Latest end of the steps added so far; 0 without any."""
    profiled: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    tags: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    memory: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """Rank to [samples, step and ``step_columns.MEMORY``]."""
    damaged: Counter[int] = field(default_factory=Counter)
    """Rank to the number of its records that are left out because their times or numbers are impossible."""
    postponed: set[str] = field(default_factory=set)
    """Known metrics that are not in ``values``."""
    _set_rows: int = 0
    """Rows of ``values`` that hold something, if only NaN. The next ones are set when they are needed, shortly before they are
    filled: all at once would take as long as reading a large run."""
    _last_places: tuple[NDArray[np.int64], NDArray[np.intp] | slice] = field(default_factory=lambda: _NOWHERE)
    """Steps that were looked up last, and their places."""

    @classmethod
    def of_steps(cls, steps: NDArray[np.int64], ranks: Iterable[int]) -> Self:
        """Return an empty table of these ``steps`` and ``ranks``, without starts."""
        builder = cls(steps=steps, start=None, profiled=np.zeros((0, len(steps)), np.bool_))
        builder.add_ranks(ranks)
        return builder

    def add_ranks(self, ranks: Iterable[int]) -> None:
        """Make room for ``ranks``; ranks that are present already are kept."""
        all_ranks = sorted({*self.ranks, *ranks})
        if all_ranks != self.ranks:
            source = np.array([self.ranks.index(rank) if rank in self.ranks else -1 for rank in all_ranks], dtype=np.intp)
            self.ranks = all_ranks
            self._rearrange(rows=source)

    def add(self, rank: int, columns: RankColumns) -> None:
        """Add records of a rank; a step that the rank has already is overwritten."""
        if columns.damaged:
            self.damaged[rank] += columns.damaged
        self.postponed |= columns.postponed
        if len(columns.step):
            self.add_alike([rank], columns, len(columns.step))

    def add_alike(self, ranks: Sequence[int], columns: RankColumns, count: int) -> None:
        """Add ``count`` records of each of ``ranks``: one rank after the other, the same steps for each."""
        steps = columns.step[:count]
        rows = _consecutive(np.array([bisect_left(self.ranks, rank) for rank in ranks]))
        at = self._places(steps)
        cells: Any = (rows, at) if isinstance(rows, slice) or isinstance(at, slice) else np.ix_(rows, at)
        shape = (len(ranks), count)
        self.postponed |= columns.postponed
        self._begin(columns)
        self._set(bisect_left(self.ranks, max(ranks)) + 1)
        for name, values in self.values.items():
            source = name.removeprefix("own_") if name in columns.same else name
            values[cells] = columns.values[source].reshape(shape) if source in columns.values else np.nan
        if self.start is not None:
            self.start[cells] = columns.start.reshape(shape)
        self._end(columns)
        self.profiled[cells] = columns.profiled.reshape(shape)
        for tag in columns.tags.keys() - self.tags.keys():
            self.tags[tag] = np.zeros(self.profiled.shape, dtype=bool)
        for tag, matrix in self.tags.items():
            tagged = np.zeros(len(columns.step), dtype=bool)
            tagged[columns.tags.get(tag, [])] = True
            matrix[cells] = tagged.reshape(shape)
        entries = columns.memory[:, 0].astype(np.intp)
        bounds = np.searchsorted(entries, np.arange(len(ranks) + 1) * count)
        for number, rank in enumerate(ranks):
            samples = columns.memory[bounds[number] : bounds[number + 1]].copy()
            if len(samples):
                samples[:, 0] = steps[entries[bounds[number] : bounds[number + 1]] - number * count]
                self._add_memory(rank, samples)

    def _add_memory(self, rank: int, samples: NDArray[np.float64]) -> None:
        before = self.memory.get(rank)
        if before is not None and len(before):
            if before[-1, 0] >= samples[0, 0]:
                before = before[~np.isin(before[:, 0], samples[:, 0])]
            samples = np.concatenate([before, samples])
        self.memory[rank] = samples

    def _end(self, columns: RankColumns) -> None:
        if "wall_us" not in columns.values:
            return
        ends = columns.start + columns.values["wall_us"].astype(np.float64) * 1000
        self.last_end_unix_ns = float(np.fmax.reduce(ends, initial=self.last_end_unix_ns))

    def _begin(self, columns: RankColumns) -> None:
        """Make matrices for metrics that have none. Their earlier values are unknown, or equal to those of another metric."""
        names = {name for name in columns.same if name.removeprefix("own_") in self.values}
        # ``known - self.same``: in earlier records the phase was known, but its own time was not.
        separate = (names - self.same) | {
            name for name in self.same - columns.same if name.removeprefix("own_") in columns.values
        }
        for name in (columns.values.keys() | separate) - self.values.keys():
            if name in self.same:
                self.same.discard(name)
                self.values[name] = self.values[name.removeprefix("own_")].copy()
            else:
                self.values[name] = np.empty(self.profiled.shape, np.float32)
                self.values[name][: self._set_rows] = np.nan
        self.same |= columns.same - self.values.keys()

    def _set(self, rows: int) -> None:
        """Have so many rows of ``values`` set."""
        if rows > self._set_rows:
            for matrix in self.values.values():
                matrix[self._set_rows : rows] = np.nan
            self._set_rows = rows

    @property
    def metrics(self) -> dict[str, NDArray[np.float32]]:
        """All known metrics but the postponed; two may share a matrix."""
        self._set(len(self.ranks))
        return self.values | {name: self.values[name.removeprefix("own_")] for name in self.same}

    def metric(self, name: str) -> NDArray[np.float32] | None:
        """Return one of ``metrics``; ``None`` if it is not known."""
        self._set(len(self.ranks))
        return self.values.get(name.removeprefix("own_") if name in self.same else name)

    def _places(self, steps: NDArray[np.int64]) -> NDArray[np.intp] | slice:
        if np.array_equal(steps, self.steps):
            return slice(0, len(steps))  # usual for every rank but the first
        last_steps, places = self._last_places
        if len(last_steps) and np.array_equal(steps, last_steps):
            return places  # same steps as the previous rank
        new = np.setdiff1d(steps, self.steps)
        if len(new):
            self._widen(new)
        places = _consecutive(np.searchsorted(self.steps, steps))
        self._last_places = (steps, places)
        return places

    def _widen(self, new: NDArray[np.int64]) -> None:
        all_steps = np.union1d(self.steps, new)
        count, room = len(self.steps), self.profiled.shape[1]
        if len(all_steps) <= room and np.array_equal(all_steps[:count], self.steps):
            self.steps = all_steps
            return
        source = np.full(len(all_steps) + len(all_steps) // _SPARE if count else len(all_steps), -1, dtype=np.intp)
        source[np.searchsorted(all_steps, self.steps)] = np.arange(count)
        self.steps = all_steps
        self._rearrange(columns=source)

    def drop_before(self, number: int) -> None:
        """Forget the first ``number`` steps, and leave their room for new ones."""
        first = self.steps[number] if number < len(self.steps) else np.inf
        self.memory = {rank: samples[samples[:, 0] >= first] for rank, samples in self.memory.items()}
        self._last_places = _NOWHERE
        self._set(len(self.profiled))
        count = len(self.steps)
        self.steps = self.steps[number:]
        # In place: new memory costs more than moving what is in it.
        for matrix, blank in self._matrices():
            matrix[:, : count - number] = matrix[:, number:count]
            matrix[:, count - number :] = blank

    def _matrices(self) -> Iterator[tuple[NDArray[Any], float]]:
        """Yield each matrix, and what it holds where nothing was added."""
        yield from ((matrix, np.nan) for matrix in self.values.values())
        yield from ((matrix, False) for matrix in self.tags.values())
        yield self.profiled, False
        if self.start is not None:
            yield self.start, 0

    def _rearrange(self, *, rows: NDArray[np.intp] | None = None, columns: NDArray[np.intp] | None = None) -> None:
        """Move rows or columns from their old indices; -1: blank. One array at a time, because all of them fill memory."""
        self._last_places = _NOWHERE
        self._set(len(self.profiled))
        for name in self.values:
            self.values[name] = _moved(self.values[name], np.nan, rows, columns)
        for tag in self.tags:
            self.tags[tag] = _moved(self.tags[tag], False, rows, columns)
        if self.start is not None:
            self.start = _moved(self.start, 0, rows, columns)
        self.profiled = _moved(self.profiled, False, rows, columns)
        self._set_rows = len(self.profiled) if self.values else 0


def _consecutive(places: NDArray[np.intp]) -> NDArray[np.intp] | slice:
    """Return places as a slice if they are consecutive, as they usually are: it is several times as fast as an array."""
    return slice(int(places[0]), int(places[0]) + len(places)) if (np.diff(places) == 1).all() else places


def _moved(old: NDArray[Any], blank: float, rows: NDArray[np.intp] | None, columns: NDArray[np.intp] | None) -> NDArray[Any]:
    height = len(old) if rows is None else len(rows)
    width = old.shape[1] if columns is None else len(columns)
    new = np.full((height, width), blank, old.dtype)
    if rows is not None:
        new[rows >= 0] = old[rows[rows >= 0]]
    if columns is not None:
        new[:, columns >= 0] = old[:, columns[columns >= 0]]
    return new


@dataclass(slots=True)
class StepRanges:
    """Set of step numbers, as ranges that do not touch."""

    _first: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _end: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, steps: NDArray[np.int64]) -> None:
        """Add steps; steps already in the set are ignored."""
        if not len(steps):
            return
        steps = np.unique(steps)
        breaks = np.flatnonzero(np.diff(steps) != 1)
        first = np.concatenate([self._first, steps[:1], steps[breaks + 1]])
        end = np.concatenate([self._end, steps[breaks] + 1, steps[-1:] + 1])
        order = np.argsort(first, kind="stable")
        first, reach = first[order], np.maximum.accumulate(end[order])
        begins = np.concatenate([[True], first[1:] > reach[:-1]])
        self._first = first[begins]
        self._end = reach[np.concatenate([begins[1:], [True]])]

    @property
    def count(self) -> int:
        """Number of different steps in the set."""
        return int((self._end - self._first).sum())
