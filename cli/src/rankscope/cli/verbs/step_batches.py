"""Step records as Arrow batches, and as lines of CSV or JSON; columns are converted at once, without an object per record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute
from pyarrow import parquet as pq

from rankscope.cli.output_file import Write
from rankscope.runs.step_columns import COLUMNS, PROFILED
from rankscope.runs.step_segments import Rows

Tags = Mapping[int, Sequence[str]]
"""Step to its tags, for the steps that have any."""

_TYPES: Final = {"i8": pa.int64(), "i4": pa.int32(), "f8": pa.float64(), "f4": pa.float32()}
_NAME_OF_FLAGS: Final = "profiled"
_KEYS: Final = ("step", "start_unix_ns")
"""Columns that are known in every record: none of their values means "unknown"."""

FIELDS: Final[dict[str, pa.Field]] = {
    field.name: field
    for field in (
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        *(
            pa.field(_NAME_OF_FLAGS, pa.bool_(), nullable=False)
            if column.name == "flags"
            else pa.field(column.name, _TYPES[column.format], nullable=column.name not in _KEYS)
            for column in COLUMNS[:-1]
        ),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
    )
}
"""All columns that can be exported, in order."""


def batch_of(rows: Rows, names: Sequence[str], *, attempt: int, rank: int, tags: Tags) -> pa.RecordBatch:
    """Return the columns ``names`` of step records of one rank; unknown values are null."""
    arrays = []
    for name in names:
        if name in ("attempt", "rank"):
            arrays.append(pa.array(np.full(len(rows), attempt if name == "attempt" else rank, np.int32)))
        elif name == "tags":
            arrays.append(_tags(rows["step"], tags))
        else:
            arrays.append(_column(rows, name))
    return pa.record_batch(arrays, schema=pa.schema([FIELDS[name] for name in names]))


def _column(rows: Rows, name: str) -> pa.Array:
    if name == _NAME_OF_FLAGS:
        return pa.array((rows["flags"] & PROFILED) != 0)
    values: NDArray[Any] = np.ascontiguousarray(rows[name])
    if name in _KEYS:
        return pa.array(values)
    return pa.array(values, mask=~np.isfinite(values) if values.dtype.kind == "f" else values < 0)


def _tags(steps: NDArray[np.int64], tags: Tags) -> pa.Array:
    places = np.flatnonzero(np.isin(steps, np.fromiter(tags, np.int64, len(tags)))).tolist()
    counts = np.zeros(len(steps) + 1, np.int32)
    values: list[str] = []
    for at in places:
        own = tags[int(steps[at])]
        counts[at + 1] = len(own)
        values += own
    return pa.ListArray.from_arrays(pa.array(np.cumsum(counts, dtype=np.int32)), pa.array(values, pa.string()))


class Sink(Protocol):
    """Destination of batches of one schema."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""


class CsvSink:
    """CSV with a header line; unknown values are empty, and several tags are joined by semicolons in one field."""

    def __init__(self, write: Write, schema: pa.Schema) -> None:
        self._write = write
        write((",".join(schema.names) + "\n").encode())

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        parts: list[Any] = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            text = _each(column, _csv_tags) if name == "tags" else compute.cast(column, pa.string())
            parts += [",", text] if parts else [text]
        self._write(_joined([*parts, "\n"], null=""))


def _csv_tags(tags: list[str]) -> str:
    """Return tags as one field of CSV, quoted if necessary."""
    text = ";".join(tags)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text


class JsonSink:
    """One JSON object per line; unknown values are null."""

    def __init__(self, write: Write, schema: pa.Schema) -> None:
        self._write = write
        self._keys = [f'{"," if at else "{"}"{name}":' for at, name in enumerate(schema.names)]

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        parts: list[Any] = []
        for key, column in zip(self._keys, batch.columns, strict=True):
            text = _each(column, _json_tags) if pa.types.is_list(column.type) else compute.cast(column, pa.string())
            parts += [key, text]
        self._write(_joined([*parts, "}\n"], null="null"))


def _json_tags(tags: list[str]) -> str:
    return msgspec.json.encode(tags).decode()


def _each(column: pa.ListArray, text: Callable[[list[str]], str]) -> pa.Array:
    """Return the text of each list of tags; computed only for lists that are not empty, as most are."""
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    texts = np.full(len(column), text([]), object)
    for at in np.flatnonzero(lengths).tolist():
        texts[at] = text(column[at].as_py())
    return pa.array(texts, pa.string())


def _joined(parts: Sequence[Any], *, null: str) -> memoryview:
    """Return the concatenated text of all rows; a row joins ``parts``, which are arrays or text common to all rows."""
    rows = compute.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement=null)
    ends = np.frombuffer(rows.buffers()[1], np.int32)
    return memoryview(rows.buffers()[2])[: ends[len(rows)]] if len(rows) else memoryview(b"")


class ParquetSink(AbstractContextManager["ParquetSink"]):
    """Parquet file with row groups of about ``GROUP_ROWS`` rows."""

    GROUP_ROWS: Final = 65_536

    def __init__(self, write: Write, schema: pa.Schema) -> None:
        self._schema = schema
        self._out = _AppendingFile(write)
        self._file = pq.ParquetWriter(pa.PythonFile(self._out, "w"), schema)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, or keep it until there are enough for a row group."""
        self._waiting.append(batch)
        self._rows += len(batch)
        if self._rows >= self.GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            self._file.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting, self._rows = [], 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._write_group()
                self._file.close()
        finally:
            # Close also after an error: an open writer would write the file's end when it is garbage-collected.
            self._out.drop()
            self._file.close()


class _AppendingFile:
    """File-like object for Arrow that appends to ``write``."""

    closed = False

    def __init__(self, write: Write) -> None:
        self._write = write
        self._size = 0

    def write(self, data: bytes) -> int:
        self._write(data)
        self._size += len(data)
        return len(data)

    def drop(self) -> None:
        """Discard all further data."""
        self._write = len

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: no data is buffered."""

    def close(self) -> None:
        """Do nothing: the caller closes the file."""
