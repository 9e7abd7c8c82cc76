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
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.runs.records import PHASES

_NAN: Final = float("nan")
_ABSENT: Final = float("-inf")
"""In every phase of a row whose phases are not there at all; JSON has no such number."""
MOST: Final = 1e30
"""Nothing in a step is larger, whatever its unit."""
_BASE: Final = 2**62
"""Added to integers that may be small, which MessagePack would write in fewer bytes; beyond it they are impossible."""


MEMORY: Final = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "allocator_retries", "resident_bytes")
"""What every so-and-so-many-th record says of memory."""


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
    tokens: float | None = _NAN
    flops: float | None = _NAN
    input_elements: float | None = _NAN
    allocated_bytes: float | None = _NAN
    reserved_bytes: float | None = _NAN
    peak_allocated_bytes: float | None = _NAN
    allocator_retries: float | None = _NAN
    resident_bytes: float | None = _NAN
    profiled: bool = False
    tags: tuple[str, ...] = ()


NUMBERS: Final = ("step", "wall_us", "cpu_us", "run_queue_us", "gc_us", "samples", "tokens", "flops", "input_elements")
OPTIONAL: Final = ("blocked_us", "device_us", "device_blocked_us")
TIMES: Final = ("phases_us", *OPTIONAL)


def no_memory() -> NDArray[np.float64]:
    """Not one sample."""
    return np.empty((0, 1 + len(MEMORY)))


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Rows of one rank as columns, in the order in which they were written; NaN where nothing is known."""

    start_unix_ns: NDArray[np.int64]
    """-1 for a time that is none."""
    profiled: NDArray[np.bool_]
    numbers: NDArray[np.float64]
    """[``NUMBERS``, rows]."""
    times: NDArray[np.float64]
    """[``TIMES``, phases, rows]."""
    known: NDArray[np.bool_]
    """[``TIMES``, rows]: whether the row has it at all, though none of its phases need be known."""
    tags: dict[str, NDArray[np.intp]] = field(default_factory=dict)
    """Tag to the rows that have it."""
    memory: NDArray[np.float64] = field(default_factory=no_memory)
    """[samples, row and ``MEMORY``]: of the rows that tell anything of it."""

    @classmethod
    def joined(cls, parts: Sequence[RowColumns]) -> Self:
        """One after the other, of at least one."""
        tags: dict[str, list[NDArray[np.intp]]] = {}
        memory: list[NDArray[np.float64]] = []
        offset = 0
        for part in parts:
            for tag, rows in part.tags.items():
                tags.setdefault(tag, []).append(rows + offset)
            memory.append(part.memory + np.eye(1, 1 + len(MEMORY)) * offset)
            offset += len(part.profiled)
        return cls(
            start_unix_ns=np.concatenate([part.start_unix_ns for part in parts]),
            profiled=np.concatenate([part.profiled for part in parts]),
            numbers=np.concatenate([part.numbers for part in parts], axis=1),
            times=np.concatenate([part.times for part in parts], axis=2),
            known=np.concatenate([part.known for part in parts], axis=1),
            tags={tag: np.concatenate(rows) for tag, rows in tags.items()},
            memory=np.concatenate(memory),
        )


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
    numbers = np.empty((len(NUMBERS), len(rows)))
    for at, name in enumerate(NUMBERS):
        numbers[at] = table[name]
    times = np.full((len(TIMES), len(PHASES), len(rows)), _NAN)
    known = np.zeros((len(TIMES), len(rows)), dtype=bool)
    for at, name in enumerate(TIMES):
        if name in layout.times:
            for place, phase in enumerate(PHASES):
                times[at, place] = table[f"{name}.{phase}"]
            known[at] = times[at, 0] != _ABSENT
            if not known[at].all():
                times[at][:, ~known[at]] = _NAN
    start = table["start_unix_ns"].astype(np.uint64) - np.uint64(base)
    return RowColumns(
        start_unix_ns=np.where(start < _BASE, start.astype(np.int64), -1),
        profiled=table["profiled"] == _TRUE,
        numbers=numbers,
        times=times,
        known=known,
        tags=tags,
        memory=_memory_told([table[name] for name in MEMORY]),
    )


def _take_tags(rows: Sequence[StepRow]) -> dict[str, NDArray[np.intp]]:
    tags: dict[str, list[int]] = {}
    for number in [number for number, row in enumerate(rows) if row.tags]:
        for tag in rows[number].tags:
            tags.setdefault(tag, []).append(number)
        rows[number].tags = ()
    return {tag: np.array(numbers, dtype=np.intp) for tag, numbers in tags.items()}


def _memory_told(columns: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The rows that tell how much memory was in use, of columns as ``MEMORY`` names them; impossible numbers are NaN."""
    values = np.array(columns, dtype=np.float64)
    values[~((values >= 0) & (values < MOST))] = _NAN
    told = np.flatnonzero(np.isfinite(values[_IN_USE]).any(axis=0))
    return np.column_stack([told, values[:, told].T])


_IN_USE: Final = [MEMORY.index("allocated_bytes"), MEMORY.index("resident_bytes")]


def _fill(row: StepRow) -> None:
    """Give every field of a row the length that it has in every other."""
    row.start_unix_ns = row.start_unix_ns + _BASE if 0 <= row.start_unix_ns < _BASE else 2 * _BASE
    for name in (*NUMBERS, *MEMORY):
        if getattr(row, name) is None:
            setattr(row, name, _NAN)
    for name in TIMES:
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
    dtype: np.dtype[Any]
    times: frozenset[str]
    """Those of ``TIMES`` that there are."""

    def table(self, rows: Sequence[StepRow]) -> NDArray[Any] | None:
        """The rows with a field for every number; ``None`` when they are not all laid out so."""
        try:
            encoded = _encoder.encode(rows)
        except OverflowError:  # an integer beyond 64 bits
            return None
        header = len(encoded) - len(rows) * len(self.template)
        if header not in _HEADER_BYTES:
            return None
        table = np.frombuffer(encoded, np.uint8)[header:].reshape(len(rows), -1)
        if not (table[:, self.markers] == self.template[self.markers]).all():
            return None
        return np.frombuffer(encoded, self.dtype, offset=header)


@cache
def _layout(*there: bool) -> _Layout:
    """The layout of rows that have or lack what ``OPTIONAL`` names: numbers no other field has are looked for in one of them."""
    probes = iter(range(1, 100))
    row = StepRow(step=0.0, start_unix_ns=_BASE + 1, wall_us=0.0, profiled=True)
    values: dict[str, float] = {name: next(probes) + 0.1 for name in (*NUMBERS, *MEMORY)}
    for name, value in values.items():
        setattr(row, name, value)
    times = ["phases_us", *(name for name, is_there in zip(OPTIONAL, there, strict=True) if is_there)]
    for name in times:
        of_phase = {phase: next(probes) + 0.1 for phase in PHASES}
        values.update({f"{name}.{phase}": value for phase, value in of_phase.items()})
        setattr(row, name, PhaseRow(**of_phase))
    encoded = _encoder.encode(row)
    offsets = {name: encoded.index(struct.pack(">d", value)) for name, value in values.items()}
    offsets["start_unix_ns"] = encoded.index(struct.pack(">Q", _BASE + 1))
    markers = np.array([0, *(at - 1 for at in offsets.values())], dtype=np.intp)
    row.profiled = False
    pairs = zip(encoded, _encoder.encode(row), strict=True)
    offsets["profiled"] = next(at for at, (one, other) in enumerate(pairs) if one != other)
    formats = {"start_unix_ns": ">u8", "profiled": "u1"}
    dtype = np.dtype(
        {
            "names": list(offsets),
            "formats": [formats.get(name, ">f8") for name in offsets],
            "offsets": list(offsets.values()),
            "itemsize": len(encoded),
        }
    )
    return _Layout(np.frombuffer(encoded, np.uint8), markers, dtype, frozenset(times))


_encoder: Final = msgspec.msgpack.Encoder()


def columns_of_batch(batch: Any) -> RowColumns:
    """Columns of an Arrow batch with fields of ``StepRow``. Raises ``ValueError`` for columns that cannot be these."""
    names, count = batch.schema.names, batch.num_rows

    def floats(array: Any) -> NDArray[np.float64]:
        column: NDArray[np.float64] = array.cast("float64").to_numpy(zero_copy_only=False)
        return column

    missing = {"step", "start_unix_ns", "wall_us"} - set(names)
    if missing or any(batch.column(name).null_count for name in ("step", "start_unix_ns", "wall_us")):
        raise ValueError("steps, starts or walls are missing")
    times = np.full((len(TIMES), len(PHASES), count), _NAN)
    known = np.zeros((len(TIMES), count), dtype=bool)
    for at, name in enumerate(TIMES):
        if name in names:
            column = batch.column(name)
            known[at] = column.is_valid().to_numpy(zero_copy_only=False)
            for field_of, array in zip(column.type, column.flatten(), strict=True):
                if field_of.name in PHASES:
                    times[at, PHASES.index(field_of.name)] = floats(array)
    start = batch.column("start_unix_ns").to_numpy()
    tags: dict[str, list[int]] = {}
    if "tags" in names:
        column = batch.column("tags")
        if not hasattr(column, "value_parent_indices"):
            raise ValueError(f"tags: {column.type} where there should be lists")
        for row, tag in zip(column.value_parent_indices().tolist(), column.flatten().to_pylist(), strict=True):
            tags.setdefault(tag, []).append(row)
    profiled = "profiled" in names and batch.column("profiled").fill_null(False).to_numpy(zero_copy_only=False)
    return RowColumns(
        start_unix_ns=np.where((start >= 0) & (start < _BASE), start, -1).astype(np.int64),
        profiled=np.broadcast_to(profiled, count).astype(bool),
        numbers=np.array([floats(batch.column(name)) if name in names else np.full(count, _NAN) for name in NUMBERS]),
        times=times,
        known=known,
        tags={tag: np.array(rows, dtype=np.intp) for tag, rows in tags.items()},
        memory=_memory_told([floats(batch.column(name)) if name in names else np.full(count, _NAN) for name in MEMORY]),
    )
