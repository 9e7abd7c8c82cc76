"""The always-on step records of one attempt as matrices [ranks, steps]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from rankscope.runs.errors import InputError
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, Phase, StepRecord

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Metric:
    """One matrix of a ``StepTable``: what people call it, and its unit (``us``, ``elements``, ``samples``)."""

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
    "samples": Metric("samples", "samples"),
    "tokens": Metric("tokens", "tokens"),
}
"""Names that ``StepTable.matrix`` knows."""

MAX_US: Final = 366 * 86_400 * 1e6
"""Nothing in training takes a year: a longer time is damage."""

LAST_STEP: Final = 2**53
"""A step number beyond it is damage."""

MEMORY: Final = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "allocator_retries", "resident_bytes")
"""Columns of ``StepTable.memory`` after the first, which is the step."""

_TOLD: Final = ("tokens", "flops")
_MOST: Final = 1e30
"""Nothing in a step is larger, whatever its unit."""

_Getter = Callable[[StepRecord], float | int | None]


def _own_in(phase: Phase) -> _Getter:
    return lambda record: record.own_in_us(phase)


def _wall_in(phase: Phase) -> _Getter:
    return lambda record: record.phases_us.get(phase)


_GETTERS: Final[dict[str, _Getter]] = {
    "wall_us": lambda record: record.wall_us,
    "own_us": lambda record: record.own_us,
    "blocked_us": lambda record: record.blocked_total_us,
    **{f"{phase}_us": _wall_in(phase) for phase in PHASES},
    **{f"own_{phase}_us": _own_in(phase) for phase in PHASES},
    "cpu_us": lambda record: record.cpu_us,
    "run_queue_us": lambda record: record.run_queue_us,
    "gc_us": lambda record: record.gc_us,
    "input_elements": lambda record: record.input_elements,
    "samples": lambda record: record.samples,
    "tokens": lambda record: record.tokens,
}


def _is_possible(record: StepRecord) -> bool:
    return (
        0 <= record.step <= LAST_STEP
        and 0 <= record.start_unix_ns < 2**62
        and 0 <= record.wall_us < MAX_US
        and all(amount is None or 0 <= amount < 2**62 for amount in (record.input_elements, record.samples, record.tokens))
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """One rank's records, one entry per record in the order in which they were written."""

    step: NDArray[np.int64]
    start: NDArray[np.int64]
    profiled: NDArray[np.bool_]
    values: dict[str, NDArray[np.float64]]
    tags: dict[str, list[int]]
    told: dict[str, NDArray[np.float64]]
    memory: Matrix
    damaged: int

    @classmethod
    def of(cls, records: Iterable[StepRecord]) -> Self:
        everything = list(records)
        rows = [row for row in everything if _is_possible(row)]
        tags: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            for tag in row.tags:
                tags.setdefault(tag, []).append(number)
        return cls(
            step=np.array([row.step for row in rows], dtype=np.int64),
            start=np.array([row.start_unix_ns for row in rows], dtype=np.int64),
            profiled=np.array([row.profiled for row in rows], dtype=bool),
            values={name: _possible([get(row) for row in rows]) for name, get in _GETTERS.items()},
            tags=tags,
            told={name: np.array([_count(getattr(row, name)) for row in rows], dtype=np.float64) for name in _TOLD},
            memory=np.array(
                [
                    (row.step, *(_count(getattr(row, name)) for name in MEMORY))
                    for row in rows
                    if row.resident_bytes is not None or row.allocated_bytes is not None
                ],
                dtype=np.float64,
            ).reshape(-1, 1 + len(MEMORY)),
            damaged=len(everything) - len(rows),
        )


def _possible(values: list[float | int | None]) -> NDArray[np.float64]:
    """``None``, and what is so large that sums of it overflow, become NaN."""
    column = np.array(values, dtype=np.float64)
    return np.where(np.abs(column) < _MOST, column, np.nan)


def _count(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < _MOST else None


@dataclass(frozen=True, slots=True)
class StepTable:
    """Step records of one attempt. Matrices are float64 [ranks, steps], NaN where a rank has no record or no signal."""

    attempt: int
    ranks: NDArray[np.int64]
    """Ranks that left a folder, ascending; also those without a single record."""
    steps: NDArray[np.int64]
    """Step numbers seen on any rank, ascending."""
    values: dict[str, Matrix]
    start_unix_ns: NDArray[np.int64]
    """Start of the step, [ranks, steps]; 0 where there is no record."""
    profiled: NDArray[np.bool_]
    """[ranks, steps]: the profiler was on, so the times include its cost."""
    tags: dict[str, NDArray[np.bool_]]
    """Tag to [ranks, steps]: where it was set."""
    damaged: int = 0
    """Records left out because their times or numbers are impossible."""
    told: dict[str, Matrix] = field(default_factory=dict)
    """``tokens`` and ``flops``, [ranks, steps]; only those that some rank has, for most runs have neither."""
    memory: dict[int, Matrix] = field(default_factory=dict)
    """Rank to [samples, 1 + len(MEMORY)]: the step, and what ``MEMORY`` names; of every so-and-so-many-th step only."""

    @classmethod
    def load(cls, reader: RunReader, attempt: int | None = None) -> Self:
        """Read one attempt, the last by default. Raises ``InputError`` when there is no such attempt."""
        attempts = reader.attempts()
        if attempt is None:
            # No attempt yet is an empty table: a run that has just been created.
            attempt = attempts[-1] if attempts else 0
        elif attempt not in attempts:
            raise InputError(reader.path, f"no attempt {attempt} in it")
        ranks = reader.ranks(attempt)
        return cls.from_records(attempt, {rank: reader.steps(attempt, rank) for rank in ranks})

    @classmethod
    def from_records(cls, attempt: int, records: Mapping[int, Iterable[StepRecord]]) -> Self:
        """Table of the records of each rank. A step recorded twice by a rank counts as last written."""
        ranks = sorted(records)
        # Columns per rank first: a thousand ranks' records as objects would fill memory, their numbers do not.
        columns = [_Columns.of(records[rank]) for rank in ranks]
        steps = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(one.step for one in columns)]))
        shape = (len(ranks), len(steps))
        values = {name: np.full(shape, np.nan) for name in METRICS}
        start = np.zeros(shape, dtype=np.int64)
        profiled = np.zeros(shape, dtype=bool)
        tags: dict[str, NDArray[np.bool_]] = {}
        for row, one in enumerate(columns):
            at = np.searchsorted(steps, one.step)
            for name, column in one.values.items():
                values[name][row, at] = column
            start[row, at] = one.start
            profiled[row, at] = one.profiled
            for tag, where in one.tags.items():
                tags.setdefault(tag, np.zeros(shape, dtype=bool))[row, at[where]] = True
        told = {name: np.full(shape, np.nan) for name in _TOLD if any(np.isfinite(one.told[name]).any() for one in columns)}
        for row, one in enumerate(columns):
            for name, matrix in told.items():
                matrix[row, np.searchsorted(steps, one.step)] = one.told[name]
        return cls(
            attempt=attempt,
            ranks=np.array(ranks, dtype=np.int64),
            steps=steps,
            values=values,
            start_unix_ns=start,
            profiled=profiled,
            tags=tags,
            damaged=sum(one.damaged for one in columns),
            told=told,
            memory={rank: one.memory for rank, one in zip(ranks, columns, strict=True) if len(one.memory)},
        )

    def matrix(self, metric: str) -> Matrix:
        """One metric of ``METRICS``, [ranks, steps]. Raises ``KeyError`` for a name that is none."""
        return self.values[metric]

    def tagged(self, tag: str) -> NDArray[np.bool_]:
        """Where a tag was set, [ranks, steps]."""
        found = self.tags.get(tag)
        return np.zeros((len(self.ranks), len(self.steps)), dtype=bool) if found is None else found

    def columns(self, keep: NDArray[np.bool_]) -> StepTable:
        """The steps where ``keep`` [steps] is true."""
        return StepTable(
            attempt=self.attempt,
            ranks=self.ranks,
            steps=self.steps[keep],
            values={name: matrix[:, keep] for name, matrix in self.values.items()},
            start_unix_ns=self.start_unix_ns[:, keep],
            profiled=self.profiled[:, keep],
            tags={name: matrix[:, keep] for name, matrix in self.tags.items()},
            damaged=self.damaged,
            told={name: matrix[:, keep] for name, matrix in self.told.items()},
            memory={rank: rows[np.isin(rows[:, 0], self.steps[keep])] for rank, rows in self.memory.items()},
        )

    def rows(self, keep: NDArray[np.intp]) -> StepTable:
        """The ranks in the rows ``keep``."""
        return replace(
            self,
            ranks=self.ranks[keep],
            values={name: matrix[keep] for name, matrix in self.values.items()},
            start_unix_ns=self.start_unix_ns[keep],
            profiled=self.profiled[keep],
            tags={name: matrix[keep] for name, matrix in self.tags.items()},
            told={name: matrix[keep] for name, matrix in self.told.items()},
            memory={rank: rows for rank, rows in self.memory.items() if rank in self.ranks[keep]},
        )

    @property
    def has_record(self) -> NDArray[np.bool_]:
        """[ranks, steps]: where there is a record."""
        return np.isfinite(self.values["wall_us"])
