"""Layout of a step record: one row of fixed width, which the helper writes and the analysis reads by column.

All numbers are little-endian. An unknown float is NaN and an unknown integer is -1, never zero. The last column is a checksum
over the rest of the row, read as 64-bit words: a constant plus each word times its own odd weight, modulo 2**64. Every change
within one word changes the checksum, a row of zeros does not match it, and numpy verifies many rows at once.

Layouts may grow: a reader selects columns by name, ignores unknown ones, and fills missing ones with "unknown".
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from operator import mul
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rankscope.runs.records import PHASES, PhaseTimes, StepEvent, StepRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STEPS_SCHEMA: Final = "rankscope.steps/1"


class StepColumn(NamedTuple):
    """One column of a step record."""

    name: str
    """Name, with the unit where there is one."""
    format: str
    """Type in numpy's notation, without the byte order: ``i8``, ``f4`` …"""


TIMES: Final = ("phases_us", "blocked_us", "device_us", "device_blocked_us")
"""Fields of ``StepRecord`` that hold a time per phase, in the order of their columns."""
_PREFIXES: Final = ("", "blocked_", "device_", "device_blocked_")
TIME_COLUMNS: Final = tuple(f"{prefix}{phase}_us" for prefix in _PREFIXES for phase in PHASES)
"""``TIMES`` by phase: ``data_us`` … ``blocked_data_us`` … ``device_data_us`` … ``device_blocked_between_steps_us``."""
METERS: Final = ("cpu_us", "run_queue_us", "gc_us")
SWITCHES: Final = ("voluntary_switches", "involuntary_switches")
COUNTS: Final = ("samples", "tokens", "input_elements", "model_elements")
MEMORY: Final = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "allocator_retries", "resident_bytes")
"""Memory columns, known in every Nth record only."""

COLUMNS: Final = (
    StepColumn("step", "i8"),
    StepColumn("start_unix_ns", "i8"),
    StepColumn("wall_us", "f8"),
    *(StepColumn(name, "f4") for name in (*TIME_COLUMNS, *METERS)),
    *(StepColumn(name, "i4") for name in SWITCHES),
    StepColumn("flags", "u4"),
    *(StepColumn(name, "i8") for name in COUNTS),
    StepColumn("flops", "f8"),
    *(StepColumn(name, "i8") for name in MEMORY),
    StepColumn("checksum", "u8"),
)
"""All columns, in byte order; the offset of each is a multiple of its size."""

PROFILED: Final = 1
"""Bit of ``flags``: the profiler was on."""
HAS_BLOCKED: Final = 2
HAS_DEVICE: Final = 4
HAS_DEVICE_BLOCKED: Final = 8
"""Bits of ``flags``: the record has ``blocked_us``, ``device_us``, ``device_blocked_us``. Without a bit its columns are NaN."""

_CODES: Final = {"i8": "q", "f8": "d", "f4": "f", "i4": "i", "u4": "I"}
_VALUES: Final = struct.Struct("<" + "".join(_CODES[column.format] for column in COLUMNS[:-1]))
"""Struct of a row without its checksum."""
_WORDS: Final = struct.Struct(f"<{_VALUES.size // 8}Q")
_CHECKSUM: Final = struct.Struct("<Q")
ROW_BYTES: Final = _VALUES.size + _CHECKSUM.size

_MASK: Final = 2**64 - 1
_SEED: Final = 0x9E3779B97F4A7C15
"""Golden ratio in 64 bits: its odd multiples are spread evenly."""


def weights(words: int) -> list[int]:
    """Return the weight of each word of a row that has ``words`` words before its checksum."""
    return [_SEED * (2 * at + 3) & _MASK for at in range(words)]


_WEIGHTS: Final = weights(_VALUES.size // 8)
_NAN: Final = math.nan
_NO_TIMES: Final = (_NAN,) * len(PHASES)
_LARGEST: Final = 2**31 - 1


def pack_row(record: StepRecord) -> bytes:
    """Encode a record as a row, without its sections and tags, which go into an event.

    Raises ``struct.error`` or ``OverflowError`` for numbers too large for their columns.
    """
    meters = (record.cpu_us, record.run_queue_us, record.gc_us)
    values = _VALUES.pack(
        record.step,
        record.start_unix_ns,
        record.wall_us,
        *_of_phases(record.phases_us),
        *_of_phases(record.blocked_us),
        *_of_phases(record.device_us),
        *_of_phases(record.device_blocked_us),
        *[_NAN if value is None else value for value in meters],
        -1 if record.voluntary_switches is None else min(record.voluntary_switches, _LARGEST),
        -1 if record.involuntary_switches is None else min(record.involuntary_switches, _LARGEST),
        PROFILED * record.profiled
        + HAS_BLOCKED * (record.blocked_us is not None)
        + HAS_DEVICE * (record.device_us is not None)
        + HAS_DEVICE_BLOCKED * (record.device_blocked_us is not None),
        -1 if record.samples is None else record.samples,
        -1 if record.tokens is None else record.tokens,
        -1 if record.input_elements is None else record.input_elements,
        -1 if record.model_elements is None else record.model_elements,
        _NAN if record.flops is None else record.flops,
        -1 if record.allocated_bytes is None else record.allocated_bytes,
        -1 if record.reserved_bytes is None else record.reserved_bytes,
        -1 if record.peak_allocated_bytes is None else record.peak_allocated_bytes,
        -1 if record.allocator_retries is None else record.allocator_retries,
        -1 if record.resident_bytes is None else record.resident_bytes,
    )
    return values + _CHECKSUM.pack(sum(map(mul, _WORDS.unpack(values), _WEIGHTS), _SEED) & _MASK)


def _of_phases(times: PhaseTimes | None) -> Iterable[float]:
    if times is None:
        return _NO_TIMES
    values = (times.data, times.h2d, times.forward, times.backward, times.optimizer, times.between_steps)
    return [_NAN if value is None else value for value in values] if None in values else values  # type: ignore[return-value]


def event_of(record: StepRecord) -> StepEvent | None:
    """Return the event with a record's tags, sections and metrics; ``None`` if it has none of them."""
    if not record.tags and not record.sections_us and not record.metrics:
        return None
    return StepEvent(
        step=record.step,
        end_unix_ns=record.start_unix_ns + round(record.wall_us * 1000),
        tags=record.tags,
        sections_us=record.sections_us,
        metrics=record.metrics,
    )


@cache
def row_dtype() -> np.dtype[Any]:
    """Return the numpy type of a row, with a field for each column."""
    import numpy as np  # the helper writes rows without numpy

    return np.dtype([(column.name, f"<{column.format}") for column in COLUMNS])


def checksums(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the right checksums [rows] of rows; ``words`` [rows, words] has the checksum last."""
    sums: NDArray[np.uint64] = words[:, :-1] @ _weights(words.shape[1] - 1) + _seed()
    return sums


def intact(words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask [rows] of the rows with the right checksum; ``words`` as in ``checksums``."""
    matches: NDArray[np.bool_] = checksums(words) == words[:, -1]
    return matches


def unknown_rows(count: int) -> NDArray[Any]:
    """Return ``count`` rows in which every column is unknown, without a checksum."""
    import numpy as np

    rows = np.zeros(count, row_dtype())
    for column in COLUMNS:
        if column.format[0] != "u":
            rows[column.name] = np.nan if column.format[0] == "f" else -1
    return rows


@cache
def _weights(words: int) -> NDArray[np.uint64]:
    import numpy as np

    return np.array(weights(words), np.uint64)


@cache
def _seed() -> np.uint64:
    import numpy as np

    return np.uint64(_SEED)


def records_of(rows: NDArray[Any], events: dict[int, StepEvent]) -> Iterator[StepRecord]:
    """Yield the records of rows of ``row_dtype``, with the tags and sections of ``events`` (step to event)."""
    for row in rows.tolist():
        step, start, wall, *fields = row
        of_phases = [_phase_times(fields[at : at + len(PHASES)]) for at in range(0, len(TIME_COLUMNS), len(PHASES))]
        cpu, queue, gc, voluntary, involuntary, flags, *fields = fields[len(TIME_COLUMNS) :]
        samples, tokens, elements, model_elements, flops, *memory, _ = fields
        event = events.get(step)
        yield StepRecord(
            step=step,
            start_unix_ns=start,
            wall_us=wall,
            phases_us=of_phases[0],
            blocked_us=of_phases[1] if flags & HAS_BLOCKED else None,
            device_us=of_phases[2] if flags & HAS_DEVICE else None,
            device_blocked_us=of_phases[3] if flags & HAS_DEVICE_BLOCKED else None,
            cpu_us=_float(cpu),
            run_queue_us=_float(queue),
            gc_us=_float(gc),
            voluntary_switches=_count(voluntary),
            involuntary_switches=_count(involuntary),
            samples=_count(samples),
            tokens=_count(tokens),
            input_elements=_count(elements),
            model_elements=_count(model_elements),
            flops=_float(flops),
            profiled=bool(flags & PROFILED),
            sections_us={} if event is None else event.sections_us,
            tags=[] if event is None else event.tags,
            metrics={} if event is None else event.metrics,
            **{name: _count(value) for name, value in zip(MEMORY, memory, strict=True)},
        )


def _phase_times(values: list[float]) -> PhaseTimes:
    return PhaseTimes(**{phase: value for phase, value in zip(PHASES, values, strict=True) if not math.isnan(value)})


def _float(value: float) -> float | None:
    return None if math.isnan(value) else value


def _count(value: int) -> int | None:
    return None if value < 0 else value


def header(rank: int, attempt: int, *, rows: int = 0) -> bytes:
    """Return the header of a segment, as ``numpy.save`` writes it; it has the number of rows once the segment is closed.

    A comment behind the ``.npy`` header has the schema, the rank, the attempt, and the CRC-32 of the text that describes the
    layout.
    """
    text = f"{DESCRIPTION} 'fortran_order': False, 'shape': ({rows},), }}"
    about = f" # {STEPS_SCHEMA} rank={rank} attempt={attempt} layout={zlib.crc32(DESCRIPTION.encode()):08x}"
    text += " " * (_HEADER_TEXT - len(text) - len(about)) + about + "\n"
    return _BEFORE_TEXT + text.encode()


DESCRIPTION: Final = "{'descr': [" + ", ".join(f"('{column.name}', '<{column.format}')" for column in COLUMNS) + "],"
"""Beginning of the header's text for this version's layout."""
HEADER_BYTES: Final = 2048
"""Size of every header: a multiple of 64, with room for any number of rows."""
_NPY_1_0: Final = b"\x93NUMPY\x01\x00"
_BEFORE_TEXT: Final = _NPY_1_0 + struct.pack("<H", HEADER_BYTES - len(_NPY_1_0) - 2)
_HEADER_TEXT: Final = HEADER_BYTES - len(_BEFORE_TEXT) - 1
BEGINNING: Final = _BEFORE_TEXT + DESCRIPTION.encode()
"""First bytes of every segment in this version's layout."""
