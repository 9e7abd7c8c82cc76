"""Always-on step records of one attempt as matrices [ranks, steps]."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.order import ALL, of_blocks
from rankscope.analysis.evidence.step_table.rank_columns import ALL_METRICS, LOADED_METRICS, METER_METRICS, no_memory
from rankscope.analysis.evidence.step_table.rank_files import PostponedMetrics, ReportProgress, ignore_progress, load_ranks
from rankscope.analysis.evidence.step_table.recent import MOST_RECORDS, EarlierTotals, earlier_totals, recent_steps_of
from rankscope.analysis.evidence.step_table.sampled_starts import SampledStarts, sample
from rankscope.analysis.evidence.step_table.step_numbers import ALL_ALIKE, Places, StepNumbers, first_of_each, moved
from rankscope.analysis.evidence.step_table.table_builder import StepTableBuilder
from rankscope.base.errors import InputError
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, Phase

Matrix = NDArray[np.float64]
Stored = NDArray[np.floating[Any]]
"""Matrix in single precision if it was read from files. Comparisons and sorting are exact; sums need double precision."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Description of one matrix of a ``StepTable``: its label for people, and its unit (``us``, ``elements``, ``samples``)."""

    label: str
    unit: str


_PHASE_LABELS: Final[dict[Phase, str]] = {
    "data": "data loading",
    "h2d": "copy to device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "between_steps": "between steps",
}

METRICS: Final[dict[str, Metric]] = {
    "wall_us": Metric("step time", "us"),
    "own_us": Metric("own time", "us"),
    "blocked_us": Metric("waiting for other ranks", "us"),
    **{f"{phase}_us": Metric(_PHASE_LABELS[phase], "us") for phase in PHASES},
    **{f"own_{phase}_us": Metric(f"own time in {_PHASE_LABELS[phase]}", "us") for phase in PHASES},
    "cpu_us": Metric("CPU time", "us"),
    "run_queue_us": Metric("waiting for a CPU", "us"),
    "gc_us": Metric("garbage collection", "us"),
    "input_elements": Metric("input elements", "elements"),
    "model_elements": Metric("elements given to the model", "elements"),
    "samples": Metric("samples", "samples"),
    "tokens": Metric("tokens", "tokens"),
    "flops": Metric("floating-point operations", "FLOP"),
}
"""Metrics that ``StepTable.matrix`` accepts, by name."""


class Matrices:
    """Matrices of all ``METRICS`` by name, for the steps ``kept``.

    Only known metrics are stored, in single precision where they were read from files: all matrices of a large run in double
    precision would not fit into memory. ``postponed`` reads the metrics that are not ``stored``, if there are such.
    """

    def __init__(
        self,
        stored: Mapping[str, Stored],
        ranks: NDArray[np.int64],
        kept_columns: NDArray[np.intp],
        postponed: PostponedMetrics | None = None,
        rows: NDArray[np.intp] | slice = ALL,
    ) -> None:
        self._stored = stored
        self._ranks = ranks
        self._rows = rows
        """Rows of ``stored`` that are those of ``ranks``: all, or an array of places."""
        self._kept_columns = kept_columns
        self._postponed = postponed
        self._last_selection: tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64], NDArray[np.intp]] | None = None

    def some(self, metric: str, steps: slice, rows: NDArray[np.intp] | None = None) -> Stored:
        """Return a matrix as it is stored, for some of the steps, and only for the ranks in ``rows`` if given.

        It is read-only by convention, and a copy only if the selected steps are not contiguous.
        """
        columns = self._columns(steps)
        if metric in self._stored:
            values = self._stored[metric][:, columns][self._rows]
            return values if rows is None else values[rows]
        if metric not in METRICS:
            raise KeyError(metric)
        ranks = self._ranks if rows is None else self._ranks[rows]
        if self._postponed is not None and metric in self._postponed.known_metrics and len(ranks):
            return self._postponed.matrix(metric, ranks.tolist(), columns)
        unknown: NDArray[np.float32] = np.broadcast_to(np.float32(np.nan), (len(ranks), len(self._kept_columns[steps])))
        return unknown

    def is_same(self, metric: str, other: str) -> bool:
        """Return whether two metrics share one stored matrix."""
        return metric in self._stored and self._stored[metric] is self._stored.get(other)

    @property
    def recorded(self) -> Collection[str]:
        """Metrics with any known value."""
        return self._stored.keys() | set(() if self._postponed is None else self._postponed.known_metrics)

    def _columns(self, steps: slice) -> NDArray[np.intp] | slice:
        """Return the stored columns of some of the steps, as a slice if possible, which needs no copy."""
        columns = self._kept_columns[steps]
        count = len(columns)
        first = int(columns[0]) if count else 0
        return slice(first, first + count) if not count or columns[-1] == first + count - 1 else columns

    def columns(self, keep: NDArray[np.bool_]) -> Matrices:
        """Return the matrices of the steps where ``keep`` is true."""
        return Matrices(self._stored, self._ranks, self._kept_columns[keep], self._postponed, self._rows)

    def rows(self, keep: NDArray[np.intp], metrics: Collection[str]) -> Matrices:
        """Return the matrices of the ranks in the rows ``keep``; what they read on request, they keep for themselves."""
        postponed = None if self._postponed is None else self._postponed.unread(metrics)
        rows = keep if isinstance(self._rows, slice) else self._rows[keep]
        return Matrices(self._stored, self._ranks[keep], self._kept_columns, postponed, rows)

    def moved(self, places: Mapping[int, Places], steps: NDArray[np.int64], numbers: StepNumbers) -> Matrices:
        """Return the matrices with the values of some rows at other columns, for all ``steps``; see ``StepTable.renumbered``."""
        stored = {name: moved(matrix, places, np.nan) for name, matrix in self._stored.items()}
        postponed = None if self._postponed is None else self._postponed.renumbered(numbers)
        return Matrices(stored, self._ranks, np.arange(len(steps)), postponed, self._rows)

    def without(self, metrics: Collection[str]) -> Matrices:
        """Return the same without what is stored of ``metrics``; all of it where no file has them, to be read again."""
        if self._postponed is None:
            return self
        stored = {name: matrix for name, matrix in self._stored.items() if name not in metrics}
        return Matrices(stored, self._ranks, self._kept_columns, self._postponed, self._rows)

    def at(self, metric: str, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Stored:
        """Return a metric at places, given as a row and a column each: [places]."""
        if metric in self._stored or self._postponed is None or metric not in self._postponed.known_metrics:
            return self.some(metric, ALL)[rows, columns]
        if self._last_selection is None or self._last_selection[0] is not rows or self._last_selection[1] is not columns:
            self._last_selection = (rows, columns, self._ranks[rows], self._kept_columns[columns])
        return self._postponed.at(metric, *self._last_selection[2:])

    def starts(self, row: int) -> NDArray[np.int64]:
        """Return the start times of the steps of the rank in ``row``, in Unix nanoseconds; 0 where there is no record."""
        assert self._postponed is not None
        return self._postponed.starts(int(self._ranks[row]), self._columns(ALL))

    def of_rank(self, metric: str, row: int) -> Stored:
        """Return one row of a matrix."""
        if metric in self._stored:
            place = row if isinstance(self._rows, slice) else self._rows[row]
            values: Stored = self._stored[metric][place, self._columns(ALL)]
        else:
            values = self.some(metric, ALL, np.array([row]))[0]
        return values


@dataclass(frozen=True, slots=True)
class StepTable:
    """Step records of one attempt. Matrices are float64 [ranks, steps], NaN where a rank has no record or no signal."""

    attempt: int
    ranks: NDArray[np.int64]
    """Ranks with a folder in the run directory, ascending; also those without any record."""
    steps: NDArray[np.int64]
    """Step numbers seen on any rank, ascending."""
    values: Matrices
    start_unix_ns: NDArray[np.int64] | None
    """Start times as in ``starts``, [ranks, steps]; ``None`` if ``values`` reads them on request."""
    profiled: NDArray[np.bool_]
    """True where the profiler was on, so that times include its cost, [ranks, steps]."""
    tags: dict[str, NDArray[np.bool_]]
    """True where a tag was set, [ranks, steps] per tag."""
    last_end_unix_ns: float = 0.0
    """End of the last step of any rank, in Unix nanoseconds; 0 without a record."""
    damaged: Mapping[int, int] = field(default_factory=dict)
    """Rank to the number of its records that are left out because their times or numbers are impossible."""
    earlier: EarlierTotals = field(default_factory=EarlierTotals)
    """Totals of the steps before ``steps``, where only the last ones were read."""
    samples: SampledStarts | None = None
    """Starts of some steps as recorded, where ``values`` reads the starts on request."""
    numbers: StepNumbers = ALL_ALIKE
    """Ranks whose steps have other numbers than they gave, or cannot be compared."""
    memory: dict[int, Matrix] = field(default_factory=dict)
    """Memory samples per rank, [samples, 1 + len(MEMORY)]: the step, and the values that ``MEMORY`` names; every N steps only.

    They are those of the whole attempt, also where the table has only some of its steps or ranks."""

    @classmethod
    def load(
        cls,
        reader: RunReader,
        attempt: int | None = None,
        *,
        report: ReportProgress = ignore_progress,
        metrics: Collection[str] = LOADED_METRICS,
        most_records: int = MOST_RECORDS,
    ) -> Self:
        """Read one attempt, the last by default. Raises ``InputError`` when there is no such attempt.

        ``report`` is called with the number of ranks read so far, and of all. ``wall_us`` and ``metrics`` are read at once, see
        ``RankColumns.of``. Of the others, ``POSTPONED_METRICS`` are read on request; the rest are unknown. Of more than
        ``most_records`` only the last steps are read.
        """
        attempts = reader.attempts()
        if attempt is None:
            # A run that has just been created has no attempt yet: its table is empty.
            attempt = attempts[-1] if attempts else 0
        elif attempt not in attempts:
            raise InputError(reader.path, f"no attempt {attempt} in it")
        # Starts are read with the meters, now or later.
        builder = StepTableBuilder() if set(METER_METRICS) <= set(metrics) else StepTableBuilder(start=None)
        ranks = reader.ranks(attempt)
        builder.add_ranks(ranks)
        recent = recent_steps_of(reader, attempt, ranks, most_records)
        records_read: dict[int, tuple[int, int]] = {}
        samples = []
        for rank, columns in load_ranks(reader, attempt, ranks, report, metrics={"wall_us", *metrics}, recent=recent):
            builder.add(rank, columns)
            records_read[rank] = (len(columns.step), int(columns.start[0]) if len(columns.start) else 0)
            samples.append(sample(columns.step, columns.start))
        postponed = PostponedMetrics(reader, attempt, builder.steps, builder.postponed)
        table = replace(cls.from_builder(attempt, builder, postponed), samples=SampledStarts.of_ranks(samples))
        return table if recent is None else replace(table, earlier=earlier_totals(reader, attempt, records_read))

    @classmethod
    def from_builder(cls, attempt: int, builder: StepTableBuilder, postponed: PostponedMetrics | None = None) -> Self:
        """Return a table of the data in ``builder``, without a copy. ``postponed`` reads the postponed metrics."""
        count = len(builder.steps)
        ranks = np.array(builder.ranks, dtype=np.int64)
        return cls(
            attempt=attempt,
            ranks=ranks,
            steps=builder.steps,
            values=Matrices(builder.metrics, ranks, np.arange(count), postponed),
            start_unix_ns=None if builder.start is None else builder.start[:, :count],
            last_end_unix_ns=builder.last_end_unix_ns,
            profiled=builder.profiled[:, :count],
            tags={tag: matrix[:, :count] for tag, matrix in builder.tags.items()},
            damaged=builder.damaged,
            memory={rank: samples for rank in builder.ranks if len(samples := builder.memory.get(rank, no_memory()))},
        )

    def matrix(self, metric: str) -> Matrix:
        """Return one metric of ``METRICS``, [ranks, steps]. Raises ``KeyError`` for another name."""
        return self.stored(metric).astype(np.float64)

    def stored(self, metric: str) -> Stored:
        """Return one metric as it is stored, [ranks, steps]; callers must not write to it."""
        return self.values.some(metric, ALL)

    def is_known(self, metric: str) -> bool:
        """Return whether a metric may have known values."""
        return metric in self.values.recorded

    def is_same(self, metric: str, other: str) -> bool:
        """Return whether two metrics share one matrix: own time in a phase in which no rank ever waited."""
        return self.values.is_same(metric, other)

    def some(self, metric: str, steps: slice, rows: NDArray[np.intp] | None = None) -> Stored:
        """Return ``stored`` for some of the steps, and only for the ranks in ``rows`` if given.

        Matrices of a large run are processed in parts.
        """
        return self.values.some(metric, steps, rows)

    def at(self, metric: str, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Stored:
        """Return one metric at places, given as a row and a column each: [places]."""
        return self.values.at(metric, rows, columns)

    def of_rank(self, metric: str, row: int) -> Stored:
        """Return one metric of the rank in ``row`` as it is stored, [steps]."""
        return self.values.of_rank(metric, row)

    def starts(self, row: int) -> NDArray[np.int64]:
        """Return the start times of the rank in ``row`` in Unix nanoseconds, [steps]; 0 where there is no record."""
        if self.start_unix_ns is not None:
            row_starts: NDArray[np.int64] = self.start_unix_ns[row]
            return row_starts
        return self.values.starts(row)

    def renumbered(self, numbers: StepNumbers) -> StepTable:
        """Return the table with these step ``numbers``; several of a rank may be one together, and some left out."""
        if not numbers.changed:
            return replace(self, numbers=numbers)
        places = numbers.places(self.ranks, self.steps)
        table = replace(
            self,
            values=self.values.moved(places, self.steps, numbers),
            start_unix_ns=None if self.start_unix_ns is None else moved(self.start_unix_ns, places, 0, first_of_each),
            numbers=numbers,
            profiled=moved(self.profiled, places, False, np.logical_or.reduceat),
            tags={tag: moved(matrix, places, False, np.logical_or.reduceat) for tag, matrix in self.tags.items()},
            memory={rank: numbers.memory(rank, samples) for rank, samples in self.memory.items()},
        )
        return table.columns(np.logical_or.reduce(table.has_record))

    def tagged(self, tag: str) -> NDArray[np.bool_]:
        """Return the mask of records that have a tag, [ranks, steps]."""
        is_tagged = self.tags.get(tag)
        return np.zeros((len(self.ranks), len(self.steps)), dtype=bool) if is_tagged is None else is_tagged

    def columns(self, keep: NDArray[np.bool_]) -> StepTable:
        """Return the table of the steps where ``keep`` [steps] is true."""
        return replace(
            self,
            steps=self.steps[keep],
            values=self.values.columns(keep),
            start_unix_ns=None if self.start_unix_ns is None else self.start_unix_ns[:, keep],
            profiled=self.profiled[:, keep],
            tags={name: matrix[:, keep] for name, matrix in self.tags.items()},
        )

    def parts(self, ranks: int) -> Iterator[StepTable]:
        """Yield tables of so many ranks each: what is read on request for one of them is dropped with it."""
        every = np.arange(len(self.ranks))
        for first in range(0, len(every), ranks):
            yield self.rows(every[first : first + ranks])

    def rows(self, keep: NDArray[np.intp], metrics: Collection[str] = ALL_METRICS) -> StepTable:
        """Return the table of the ranks in the rows ``keep``, and of what is read on request the ``metrics``."""
        return replace(
            self,
            ranks=self.ranks[keep],
            values=self.values.rows(keep, metrics),
            start_unix_ns=None if self.start_unix_ns is None else self.start_unix_ns[keep],
            profiled=self.profiled[keep],
            tags={name: matrix[keep] for name, matrix in self.tags.items()},
        )

    def without(self, metrics: Collection[str]) -> StepTable:
        """Return the table without the matrices of ``metrics``, of which some may be read on request."""
        return replace(self, values=self.values.without(metrics))

    @property
    def has_record(self) -> NDArray[np.bool_]:
        """True where there is a record, [ranks, steps]."""
        return self.known_mask("wall_us")

    def known_mask(self, metric: str) -> NDArray[np.bool_]:
        """Return the mask of the known values of a metric, [ranks, steps]; in blocks, for the selected steps may need a copy."""
        is_known = np.empty((len(self.ranks), len(self.steps)), dtype=bool)

        def enter(steps: slice) -> None:
            np.isfinite(self.some(metric, steps), out=is_known[:, steps])

        of_blocks(is_known.shape, enter)
        return is_known
