"""Step matrices on disk, cut into tiles that several processes map into memory, so that only the viewed part is read.

A metric is a file of consecutive blocks, each [ranks, ``BLOCK_STEPS``] in single precision, so that a live run only writes at the
end. Coarser files have one column per so many steps (``LEVELS``), the worst of them (``metrics``). Overviews of long runs are
drawn from them.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.base.atomic_files import replace_file
from rankscope.base.errors import InputError
from rankscope.dashboards.data.metrics import worst_of
from rankscope.dashboards.data.source import StepPart

BLOCK_STEPS: Final = 256
LEVELS: Final = (1, 16, BLOCK_STEPS)
"""Steps per column of the files of a metric: powers of two, up to ``BLOCK_STEPS``."""

_META: Final = "tiles.json"

Values = NDArray[np.float32]


class TilesMeta(msgspec.Struct, frozen=True):
    """Content of the files; replaced atomically after they are written."""

    ranks: list[int]
    """Ranks of the rows, ascending."""
    columns: int
    """Number of written steps; the last block may have room for more."""
    metrics: list[str]
    generation: int = 0
    same: dict[str, str] = {}
    """Metrics without files of their own, and the metric that has their values."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Position and number of columns of a part."""

    first: int
    columns: int
    steps_per_column: int


class Tiles:
    """Reader of the matrices that a ``TileWriter`` has written into ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.meta = msgspec.json.decode((folder / _META).read_bytes(), type=TilesMeta)
            self.steps: NDArray[np.int64] = np.fromfile(folder / f"steps.{self.meta.generation}.i64", np.int64, self.meta.columns)
            is_complete = len(self.steps) == self.meta.columns and all(map(self._is_whole, self.meta.metrics))
        except (OSError, ValueError) as error:
            raise InputError(folder, f"cached matrices cannot be read: {error}") from error
        if not is_complete:
            raise InputError(folder, "cached matrices cannot be read: they are cut off")
        self.ranks: NDArray[np.int64] = np.array(self.meta.ranks, dtype=np.int64)

    def part(self, metric: str, first: int = 0, last: int | None = None, *, most_columns: int = 4096) -> StepPart:
        """Return columns ``first`` to ``last`` (exclusive): one per step if they are at most ``most_columns``, else coarser ones
        that overlap them.
        """
        frame = self.frame(first, last, most_columns=most_columns)
        every, width = frame.steps_per_column, frame.columns
        if metric not in self.meta.metrics or not width:
            return StepPart(np.full((len(self.ranks), width), np.nan, np.float32), frame.first, every)
        level = min(every, LEVELS[-1])
        blocks = self._blocks(metric, level)
        per_block = BLOCK_STEPS // level
        begin, count = frame.first // level, width * (every // level)
        low, high = begin // per_block, min(-(-(begin + count) // per_block), len(blocks))
        joined = blocks[low:high].transpose(1, 0, 2).reshape(len(self.ranks), -1)[:, begin - low * per_block :][:, :count]
        if every > level:
            joined = worst_of(metric).reduceat(joined, np.arange(0, joined.shape[1], every // level), axis=1)
        return StepPart(joined, frame.first, every)

    def frame(self, first: int = 0, last: int | None = None, *, most_columns: int = 4096) -> Frame:
        """Return the position of the columns that ``part`` would return."""
        last = self.meta.columns if last is None else min(last, self.meta.columns)
        first = max(0, min(first, last))
        fewest = max(1, -(-(last - first) // max(1, most_columns)))
        every = next((level for level in LEVELS if level >= fewest), -(-fewest // LEVELS[-1]) * LEVELS[-1])
        first = first // every * every
        return Frame(first, -(-(last - first) // every), every)

    @property
    def metrics(self) -> Sequence[str]:
        """Metrics that have any value."""
        return self.meta.metrics

    def _is_whole(self, metric: str) -> bool:
        values = _blocks_of(self.meta.columns) * len(self.meta.ranks) * BLOCK_STEPS
        files = ((every, self._path(metric, every)) for every in LEVELS)
        return all(file.stat().st_size >= values // every * np.dtype(np.float32).itemsize for every, file in files)

    def _path(self, metric: str, every: int) -> Path:
        return self._folder / _file(self.meta.same.get(metric, metric), every, self.meta.generation)

    def _blocks(self, metric: str, every: int) -> Values:
        shape = (_blocks_of(self.meta.columns), len(self.ranks), BLOCK_STEPS // every)
        try:
            return np.memmap(self._path(metric, every), np.float32, "r", shape=shape)
        except (OSError, ValueError) as error:
            raise InputError(self._folder, f"cached matrices cannot be read: {error}") from error


class TileWriter:
    """Writer of the matrices that ``Tiles`` reads from ``folder``, row by row; unwritten values are NaN.

    ``publish`` makes new values visible to readers; readers with open files keep the old extent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ranks: list[int] = []
        self._steps: NDArray[np.int64] = np.empty(0, np.int64)
        self._metrics: set[str] = set()
        self._same: dict[str, str] = {}
        self._generation = _generation(folder) + 1
        """Part of the files' names, so that files that readers have open are never moved."""
        self._open: dict[tuple[str, int], Values] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def fill(
        self,
        ranks: Sequence[int],
        steps: NDArray[np.int64],
        matrices: Iterable[tuple[str, NDArray[np.floating[Any]]]],
        same: Mapping[str, str] | None = None,
    ) -> None:
        """Write whole metrics, [ranks, steps]; the writer must not have written anything before.

        ``same``: further metrics with the values of one of these, which are not written and never change.
        """
        self._ranks, self._steps, self._same = list(ranks), np.asarray(steps, np.int64), dict(same or {})
        cores = len(os.sched_getaffinity(0))
        # Threads suffice: numpy's loops and file writes release the GIL.
        with ThreadPoolExecutor(cores, thread_name_prefix="tiles") as pool:
            writing: deque[Future[None]] = deque()
            for metric, matrix in matrices:
                self._metrics.add(metric)
                writing.append(pool.submit(self._fill, metric, matrix))
                if len(writing) == cores:  # bounds the matrices in memory
                    writing.popleft().result()
            for future in writing:
                future.result()

    def _fill(self, metric: str, matrix: NDArray[np.floating[Any]]) -> None:
        with contextlib.ExitStack() as files:
            names = {every: self.folder / _file(metric, every, self._generation) for every in LEVELS}
            levels = {every: files.enter_context(name.open("wb")) for every, name in names.items()}
            for first in range(0, len(self._steps), BLOCK_STEPS):
                part = matrix[:, first : first + BLOCK_STEPS]
                block = np.empty((len(self._ranks), BLOCK_STEPS), np.float32)
                block[:, : part.shape[1]], block[:, part.shape[1] :] = part, np.nan
                for every, values in {1: block, **_coarser(metric, block)}.items():
                    levels[every].write(values.data)

    def add_ranks(self, ranks: Iterable[int]) -> None:
        """Add rows for the ranks that are not there yet."""
        all_ranks = sorted({*self._ranks, *ranks})
        if all_ranks != self._ranks:
            self._move(all_ranks, self._steps)

    def add_steps(self, steps: NDArray[np.int64]) -> None:
        """Add columns for the steps that are not there yet."""
        new = np.setdiff1d(steps, self._steps)
        if len(new) and len(self._steps) and new[0] < self._steps[-1]:
            self._move(self._ranks, np.union1d(self._steps, new))
        elif len(new):
            self._steps = np.concatenate([self._steps, new])
            for metric in self._metrics:
                self._lengthen(metric)

    def add(self, rank: int, steps: NDArray[np.int64], values: Mapping[str, Values]) -> None:
        """Write metrics of one rank in ``steps``; for a repeated step the last value counts."""
        if not len(steps):
            return
        self.add_steps(steps)
        row, at = self._ranks.index(rank), np.searchsorted(self._steps, steps)
        for metric, metric_values in values.items():
            if metric not in self._metrics:
                self._metrics.add(metric)
                self._lengthen(metric)
            self._write(metric, row, at, metric_values)

    def put(self, metric: str, steps: NDArray[np.int64], values: Values) -> None:
        """Write the known values of a metric, [ranks, steps], for all ranks at once; NaN leaves a value unchanged."""
        if not len(steps):
            return
        self.add_steps(steps)
        if metric not in self._metrics:
            self._metrics.add(metric)
            self._lengthen(metric)
        fine = self._map(metric, 1)
        block, column = np.divmod(np.searchsorted(self._steps, steps), BLOCK_STEPS)
        for number in np.unique(block):
            in_block = block == number
            row_values = fine[number]
            row_values[:, column[in_block]] = np.where(
                np.isnan(values[:, in_block]), row_values[:, column[in_block]], values[:, in_block]
            )
            for every, coarse in _coarser(metric, row_values).items():
                self._map(metric, every)[number] = coarse

    @property
    def ranks(self) -> Sequence[int]:
        """Ranks of the rows, ascending."""
        return self._ranks

    def publish(self) -> None:
        """Make the written values visible to readers, and delete files of older generations."""
        steps = f"steps.{self._generation}.i64"
        # Replaced, not overwritten: a reader between the two would find it cut off.
        replace_file(self.folder / steps, self._steps.tobytes(), sync=False)
        metrics = sorted({*self._metrics, *self._same})
        meta = TilesMeta(self._ranks, len(self._steps), metrics, self._generation, self._same)
        replace_file(self.folder / _META, msgspec.json.encode(meta), sync=False)
        for file in self.folder.glob("*.*.*"):
            if f".{self._generation}." not in file.name and file.suffix in (".f32", ".i64"):
                file.unlink(missing_ok=True)

    def _write(self, metric: str, row: int, at: NDArray[np.intp], metric_values: Values) -> None:
        """Write the columns ``at`` of a row, and update the coarse columns of their blocks."""
        fine = self._map(metric, 1)
        block, column = np.divmod(at, BLOCK_STEPS)
        fine[block, row, column] = metric_values
        first, last = int(block.min()), int(block.max()) + 1
        for every, coarse in _coarser(metric, fine[first:last, row]).items():
            self._map(metric, every)[first:last, row] = coarse

    def _map(self, metric: str, every: int) -> Values:
        shape = (_blocks_of(len(self._steps)), len(self._ranks), BLOCK_STEPS // every)
        tile_map = self._open.get((metric, every))
        if tile_map is None or tile_map.shape != shape:
            tile_map = np.memmap(self.folder / _file(metric, every, self._generation), np.float32, "r+", shape=shape)
            self._open[metric, every] = tile_map
        return tile_map

    def _lengthen(self, metric: str) -> None:
        """Append empty blocks until all steps have room."""
        for every in LEVELS:
            block = np.full(len(self._ranks) * BLOCK_STEPS // every, np.nan, np.float32)
            with (self.folder / _file(metric, every, self._generation)).open("ab") as file:
                for _ in range(_blocks_of(len(self._steps)) - file.tell() // block.nbytes):
                    file.write(block.data)

    def _move(self, ranks: list[int], steps: NDArray[np.int64]) -> None:
        """Change rows or columns: write everything to new files, since readers may have the old ones open."""
        old, before = self._generation, (self._ranks, self._steps)
        self._open.clear()
        self._ranks, self._steps, self._generation = ranks, steps, old + 1
        at = np.searchsorted(steps, before[1])
        for metric in self._metrics:
            self._lengthen(metric)
            shape = (_blocks_of(len(before[1])), len(before[0]), BLOCK_STEPS)
            old_tiles = np.memmap(self.folder / _file(metric, 1, old), np.float32, "r", shape=shape)
            for row, rank in enumerate(before[0]):
                self._write(metric, ranks.index(rank), at, old_tiles[:, row].reshape(-1)[: len(at)])


def _generation(folder: Path) -> int:
    """Return the generation that another writer has left in the folder, else 0."""
    try:
        return msgspec.json.decode((folder / _META).read_bytes(), type=TilesMeta).generation
    except (OSError, ValueError):
        return 0


def _coarser(metric: str, values: Values) -> dict[int, Values]:
    """Return ``values`` [rows, ``BLOCK_STEPS``] with one column per so many steps, for each of ``LEVELS`` but the first."""
    coarser: dict[int, Values] = {}
    for finer, every in pairwise(LEVELS):
        for _ in range((every // finer).bit_length() - 1):  # halves: numpy is slow where it reduces short rows
            values = worst_of(metric)(values[:, ::2], values[:, 1::2])
        coarser[every] = values
    return coarser


def _blocks_of(columns: int) -> int:
    return -(-columns // BLOCK_STEPS)


def _file(metric: str, every: int, generation: int) -> str:
    return f"{metric}.{every}.{generation}.f32"
