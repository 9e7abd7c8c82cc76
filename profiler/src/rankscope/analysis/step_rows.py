"""Step records as columns of numbers, without a Python object for each of them.

Of a record only what the analysis looks at is decoded. The rows are then encoded as MessagePack again, where a number always
takes nine bytes: all rows have the same length and the same places, so that numpy takes a column out in one stroke. That is
several times as fast as asking each row for each of its numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.runs.records import PHASES

_NAN: Final = float("nan")
_ABSENT: Final = float("-inf")
"""In every phase of a row whose phases are not there at all; JSON has no such number."""
_BASE: Final = 2**62
"""Added to integers that may be small, which MessagePack would write in fewer bytes; beyond it they are impossible."""


class PhaseRow(msgspec.Struct, gc=False):
    """``PhaseTimes``, nothing known being NaN."""

    data: float | None = _NAN
    h2d: float | None = _NAN
    forward: float | None = _NAN
    backward: float | None = _NAN
    optimizer: float | None = _NAN
    between_steps: float | None = _NAN


class StepRow(msgspec.Struct, gc=False, kw_only=True):
    """What the analysis looks at of a ``StepRecord``. Counts are floats here: they are exact far beyond any that is possible."""

    step: float
    start_unix_ns: int
    wall_us: float
    phases_us: PhaseRow = msgspec.field(default_factory=PhaseRow)
    blocked_us: PhaseRow | None = None
    device_us: PhaseRow | None = None
    device_blocked_us: PhaseRow | None = None
    cpu_us: float | None = _NAN
    run_queue_us: float | None = _NAN
    gc_us: float | None = _NAN
    samples: float | None = _NAN
    input_elements: float | None = _NAN
    profiled: bool = False
    tags: tuple[str, ...] = ()


NUMBERS: Final = ("step", "wall_us", "cpu_us", "run_queue_us", "gc_us", "samples", "input_elements")
OPTIONAL: Final = ("blocked_us", "device_us", "device_blocked_us")
_TIMES: Final = ("phases_us", *OPTIONAL)


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Rows of one rank as columns, in the order in which they were written."""

    start_unix_ns: NDArray[np.int64]
    profiled: NDArray[np.bool_]
    numbers: dict[str, NDArray[np.float64]]
    """``NUMBERS``; NaN where nothing is known."""
    times: dict[str, NDArray[np.float64]]
    """``phases_us`` and ``OPTIONAL``, [phases, rows]; NaN where nothing is known. Of ``OPTIONAL`` those that some row may have."""
    known: dict[str, NDArray[np.bool_]]
    """Of ``OPTIONAL``, as in ``times``: the rows that have it at all, though none of its phases need be known."""
    tags: dict[str, list[int]] = field(default_factory=dict)
    """Tag to the rows that have it."""


def columns_of(rows: Sequence[StepRow]) -> RowColumns:
    """Columns of at least one row. The rows are used up."""
    tags = _take_tags(rows)
    base = 0
    layout = _layout(*(getattr(rows[0], name) is not None for name in OPTIONAL))
    table = layout.table(rows)
    if table is None:
        for row in rows:
            _fill(row)
        base = _BASE
        layout = _layout(*(True for _ in OPTIONAL))
        table = layout.table(rows)
        assert table is not None, "every number of a filled row takes nine bytes"
    times = {name: layout.times(table, name) for name in layout.times_at}
    known: dict[str, NDArray[np.bool_]] = {}
    for name in times.keys() - {"phases_us"}:
        known[name] = times[name][0] != _ABSENT
        times[name][:, ~known[name]] = _NAN
    start = layout.starts(table) - np.uint64(base)
    return RowColumns(
        start_unix_ns=np.where(start < _BASE, start.astype(np.int64), -1),
        profiled=layout.profiled(table),
        numbers={name: layout.numbers(table, name) for name in NUMBERS},
        times=times,
        known=known,
        tags=tags,
    )


def _take_tags(rows: Sequence[StepRow]) -> dict[str, list[int]]:
    tags: dict[str, list[int]] = {}
    for number in [number for number, row in enumerate(rows) if row.tags]:
        for tag in rows[number].tags:
            tags.setdefault(tag, []).append(number)
        rows[number].tags = ()
    return tags


def _fill(row: StepRow) -> None:
    """Give every field of a row the length that it has in every other."""
    row.start_unix_ns = row.start_unix_ns + _BASE if 0 <= row.start_unix_ns < _BASE else 2 * _BASE
    for name in NUMBERS:
        if getattr(row, name) is None:
            setattr(row, name, _NAN)
    for name in _TIMES:
        times: PhaseRow | None = getattr(row, name)
        if times is None:
            setattr(row, name, PhaseRow(*(_ABSENT for _ in PHASES)))
            continue
        for phase in PHASES:
            if getattr(times, phase) is None:
                setattr(times, phase, _NAN)


_HEADER_BYTES: Final = (1, 3, 5)
"""Of an array, by the number of its rows."""
_TRUE: Final = 0xC3


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the numbers are in a row of MessagePack; the rest, markers and names, is the same in all rows."""

    template: NDArray[np.uint8]
    markers: NDArray[np.intp]
    """Where bytes say what comes next: these are the same in all rows that are laid out so."""
    numbers_at: dict[str, int]
    times_at: dict[str, list[int]]
    start_at: int
    profiled_at: int

    def table(self, rows: Sequence[StepRow]) -> NDArray[np.uint8] | None:
        """The rows as bytes [rows, bytes of a row]; ``None`` when they are not all laid out so."""
        try:
            encoded = _encoder.encode(rows)
        except OverflowError:  # an integer beyond 64 bits
            return None
        header = len(encoded) - len(rows) * len(self.template)
        if header not in _HEADER_BYTES:
            return None
        table = np.frombuffer(encoded, np.uint8)[header:].reshape(len(rows), -1)
        return table if (table[:, self.markers] == self.template[self.markers]).all() else None

    def numbers(self, table: NDArray[np.uint8], name: str) -> NDArray[np.float64]:
        return _column(table, self.numbers_at[name], ">f8").astype(np.float64)

    def times(self, table: NDArray[np.uint8], name: str) -> NDArray[np.float64]:
        return np.array([_column(table, at, ">f8") for at in self.times_at[name]], dtype=np.float64)

    def starts(self, table: NDArray[np.uint8]) -> NDArray[np.uint64]:
        return _column(table, self.start_at, ">u8").astype(np.uint64)

    def profiled(self, table: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return table[:, self.profiled_at] == _TRUE


def _column(table: NDArray[np.uint8], at: int, dtype: str) -> NDArray[Any]:
    column: NDArray[Any] = np.ascontiguousarray(table[:, at : at + 8]).view(dtype)[:, 0]
    return column


@cache
def _layout(*there: bool) -> _Layout:
    """The layout of rows that have or lack what ``OPTIONAL`` names: numbers no other field has are looked for in one of them."""
    probes = iter(range(1, 100))
    row = StepRow(step=next(probes), start_unix_ns=_BASE + 1, wall_us=next(probes), profiled=True)
    for name in NUMBERS:
        setattr(row, name, float(next(probes)) + 0.1)
    for name in ("phases_us", *(name for name, is_there in zip(OPTIONAL, there, strict=True) if is_there)):
        setattr(row, name, PhaseRow(*(next(probes) + 0.1 for _ in PHASES)))
    encoded = _encoder.encode(row)

    def place(value: float) -> int:
        return encoded.index(struct.pack(">d", value))

    numbers_at = {name: place(getattr(row, name)) for name in NUMBERS}
    times_at = {
        name: [place(getattr(times, phase)) for phase in PHASES] for name in _TIMES if (times := getattr(row, name)) is not None
    }
    start_at = encoded.index(struct.pack(">Q", _BASE + 1))
    row.profiled = False
    profiled_at = next(at for at, (one, other) in enumerate(zip(encoded, _encoder.encode(row), strict=True)) if one != other)
    places = [start_at, *numbers_at.values(), *(at for of_times in times_at.values() for at in of_times)]
    markers = np.array([0, *(at - 1 for at in places)], dtype=np.intp)
    return _Layout(np.frombuffer(encoded, np.uint8), markers, numbers_at, times_at, start_at, profiled_at)


_encoder: Final = msgspec.msgpack.Encoder()
