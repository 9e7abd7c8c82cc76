"""Reading segments of step records: rows of ``step_columns`` behind a header as ``numpy.save`` writes it.

Torn or damaged rows are counted and left out, and never affect the other rows. Files are read and not mapped: if another process
truncates a mapped file, its reader is killed.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from rankscope.base.errors import InputError
from rankscope.runs.run_files import open_run_file
from rankscope.runs.segments import Skipped, add_skipped
from rankscope.runs.step_columns import BEGINNING, COLUMNS, HEADER_BYTES, ROW_BYTES, intact, row_dtype, unknown_rows

BLOCK_ROWS: Final = 16_384
"""Rows read at a time: under four megabytes, and enough for all rows of most ranks."""
_MAGIC_BYTES: Final = 10
_MAX_HEADER_BYTES: Final = 10_000
"""Maximum header length: numpy rejects longer ones, as its parser could need very long for them."""
_MAX_ROW_BYTES: Final = 64 * 1024

Rows = NDArray[Any]
"""Rows of ``row_dtype``."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Layout of the rows of a segment."""

    first: int
    """Bytes before the first row."""
    row_bytes: int
    known_columns: np.dtype[Any] | None = None
    """Columns that this version knows, at their offsets in the row; ``None``: all columns, as this version writes them."""
    damaged: bool = False
    """True if the header is damaged and the layout was inferred from the checksums of the rows."""

    def position(self, row: int) -> int:
        """Return the byte at which a row begins."""
        return self.first + row * self.row_bytes

    def rows(self, data: bytes | bytearray | memoryview) -> tuple[Rows, list[int]]:
        """Return the intact rows of ``data``, which holds whole rows, and the numbers of the damaged ones."""
        words = np.frombuffer(data, "<u8").reshape(-1, self.row_bytes // 8)
        good = intact(words)
        if self.known_columns is None:
            rows = np.frombuffer(data, row_dtype())
        else:
            rows = unknown_rows(len(good))
            stored_rows = np.frombuffer(data, self.known_columns)
            for name in stored_rows.dtype.names or ():
                rows[name] = stored_rows[name]
        if good.all():
            return rows, []
        return rows[good], np.flatnonzero(~good).tolist()


def read_layout(file: BinaryIO, path: Path) -> RowLayout | None:
    """Return the layout of a segment from its header; ``None`` while the header is incomplete.

    A damaged header, such as one on a page lost when a node failed, loses no rows: their checksums prove their layout. Raises
    ``InputError`` and ``OSError``.
    """
    start = file.read(HEADER_BYTES)
    if start.startswith(BEGINNING):
        return OWN if len(start) == HEADER_BYTES else None
    try:
        return _foreign(start, file, path)
    except InputError:
        if _has_own_rows(file):
            return DAMAGED_OWN
        raise


OWN: Final = RowLayout(HEADER_BYTES, ROW_BYTES)
DAMAGED_OWN: Final = RowLayout(HEADER_BYTES, ROW_BYTES, damaged=True)


def _has_own_rows(file: BinaryIO) -> bool:
    file.seek(HEADER_BYTES)
    data = file.read(BLOCK_ROWS * ROW_BYTES)
    rows, _ = OWN.rows(data[: len(data) // ROW_BYTES * ROW_BYTES])
    return len(rows) > 0


def _foreign(start: bytes, file: BinaryIO, path: Path) -> RowLayout | None:
    """Return the layout of rows that another version wrote, from the first bytes of the file."""
    if not (npy.MAGIC_PREFIX + b"\x01\x00").startswith(start[:8]):
        raise InputError(path, "not a file of step records: it does not begin as numpy's do")
    length = int.from_bytes(start[8:_MAGIC_BYTES], "little")
    if length > _MAX_HEADER_BYTES:
        raise InputError(path, "damaged: its header is too long")
    text = start[_MAGIC_BYTES:]
    text = text[:length] + file.read(max(0, length - len(text)))
    if len(start) < _MAGIC_BYTES or len(text) < length:
        if len(start) == HEADER_BYTES:
            raise InputError(path, "damaged: its header has no end")
        return None
    _check_description(text, path)
    kind = _dtype(text, path)
    fields: Mapping[str, Any] = kind.fields or {}
    required = {"step", "start_unix_ns", "wall_us", "checksum"} - fields.keys()
    if required:
        raise InputError(path, f"not a file of step records: its rows have no {', '.join(sorted(required))}")
    size = kind.itemsize
    if size % 8 or size > _MAX_ROW_BYTES or fields["checksum"][:2] != (np.dtype("<u8"), size - 8):
        raise InputError(path, "not a file of step records: its rows do not end with a checksum")
    names = [column.name for column in COLUMNS[:-1] if column.name in fields]
    for name in names:
        if fields[name][0] != row_dtype()[name]:
            raise InputError(path, f"not a file of step records: {name} is of type {fields[name][0]}")
    row_type = np.dtype(
        {
            "names": names,
            "formats": [fields[name][0] for name in names],
            "offsets": [fields[name][1] for name in names],
            "itemsize": size,
        }
    )
    return RowLayout(_MAGIC_BYTES + length, size, row_type)


def _check_description(text: bytes, path: Path) -> None:
    """Raise ``InputError`` if the header has no end, or its comment has no checksum of the layout or a wrong one."""
    if not text.endswith(b"\n"):
        raise InputError(path, "damaged: its header has no end")
    _, marker, checksum = text.rpartition(b" layout=")
    description = text[: text.find(b"],") + 2]
    if not marker:
        raise InputError(path, "not a file of step records, or damaged: its header has no checksum")
    if checksum.strip() != f"{zlib.crc32(description):08x}".encode():
        raise InputError(path, "damaged: its header has the wrong checksum")


def _dtype(text: bytes, path: Path) -> np.dtype[Any]:
    """Return the type of a row as the header describes it. Raises ``InputError``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            header = BytesIO(len(text).to_bytes(2, "little") + text)
            return npy.read_array_header_1_0(header, max_header_size=_MAX_HEADER_BYTES)[2]
    except Exception as error:  # the exception of numpy's parser depends on the text
        raise InputError(path, "damaged: its header cannot be read") from error


class ColumnRows:
    """Rows by column: a copy in which the values of a column are adjacent in memory.

    Computing with a column of rows as they are stored takes as long as reading all of each row.
    """

    def __init__(self, blocks: Iterable[Rows]) -> None:
        self._words = [_by_column(group_rows) for group_rows in _in_groups(blocks)]
        """Words of the rows, in parts, [words of a row, rows] each."""

    def __len__(self) -> int:
        return sum(words.shape[1] for words in self._words)

    def column(self, name: str) -> NDArray[Any]:
        """Return one of ``COLUMNS``, [rows]."""
        kind, offset = row_dtype().fields[name][:2]  # type: ignore[index]
        word, byte = divmod(offset, 8)
        parts = [words[word].view(kind)[byte // kind.itemsize :: 8 // kind.itemsize] for words in self._words]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def table(self, names: Sequence[str]) -> NDArray[Any]:
        """Return a copy of several columns of the same type, [columns, rows]."""
        columns = np.empty((len(names), len(self)), row_dtype()[names[0]])
        for at, name in enumerate(names):
            columns[at] = self.column(name)
        return columns

    def where(self, keep: NDArray[np.bool_]) -> ColumnRows:
        """Return the rows for which ``keep`` is true."""
        chosen = ColumnRows([])
        chosen._words = [np.concatenate(self._words, axis=1).compress(keep, axis=1)]
        return chosen


def _in_groups(blocks: Iterable[Rows]) -> Iterator[list[Rows]]:
    """Yield consecutive blocks together that have about ``BLOCK_ROWS`` rows or fewer: each costs as much as a thousand rows."""
    group: list[Rows] = []
    for rows in blocks:
        if len(rows) + sum(map(len, group)) > BLOCK_ROWS and group:
            yield group
            group = []
        group.append(rows)
    if sum(map(len, group)):
        yield group


def _by_column(blocks: Sequence[Rows]) -> NDArray[np.uint64]:
    """Return the rows of some blocks as 64-bit words, [words of a row, rows]."""
    words = np.empty((ROW_BYTES // 8, sum(map(len, blocks))), np.uint64)
    first = 0
    for rows in blocks:
        words[:, first : first + len(rows)] = rows.view("<u8").reshape(len(rows), len(words)).T
        first += len(rows)
    return words


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows, as bytes: numpy's comparison of the row types takes as long as copying a thousand rows."""
    return np.concatenate([part.view(np.uint8) for part in parts]).view(row_dtype())


def read_single_rows(paths: Sequence[Path], steps: NDArray[np.int64]) -> Rows | None:
    """Read the rows of some ``steps``, ascending, from segments that have one row per step from their first step on.

    Return ``None`` if the segments are not like that, or a row is damaged. Raises ``InputError`` and ``OSError``.
    """
    blocks: list[Rows] = []
    for path in paths:
        with open_run_file(path) as file:
            layout = read_layout(file, path)
            if layout is None:
                return None

            row_count = (os.fstat(file.fileno()).st_size - layout.first) // layout.row_bytes
            if row_count <= 0:
                continue

            def read(places: Sequence[int], file: BinaryIO = file, layout: RowLayout = layout) -> Rows:
                parts = [os.pread(file.fileno(), layout.row_bytes, layout.position(place)) for place in places]
                return layout.rows(b"".join(part for part in parts if len(part) == layout.row_bytes))[0]

            first = read([0])
            if not len(first):
                return None
            places = steps - first["step"][0]
            if len(wanted := places[(places >= 0) & (places < row_count)].tolist()):
                blocks.append(read(wanted))
    rows = joined_rows(blocks) if blocks else np.empty(0, row_dtype())
    return rows if len(steps) and np.array_equal(rows["step"], steps) else None


@dataclass(slots=True)
class Segment:
    """One file of step records, read incrementally."""

    path: Path
    rows_read: int = 0
    """Number of rows before the next one to read."""
    damaged: Skipped = field(default_factory=dict)
    """Rows left out so far, and a damaged header."""
    torn_at: int | None = None
    """Position of the row or header within which the file ends, if it does."""
    layout: RowLayout | None = None

    @property
    def skipped(self) -> Skipped:
        """Rows left out so far, a damaged header, and a torn end."""
        if self.torn_at is None:
            return self.damaged
        skipped_rows = dict(self.damaged)
        add_skipped(skipped_rows, self.path, [self.torn_at])
        return skipped_rows

    def skip(self, *, keep: int = 0) -> int:
        """Mark the rows of the file as read but the last ``keep``; return how many of those it lacks.

        Raises ``InputError`` and ``OSError``.
        """
        with open_run_file(self.path) as file:
            row_count = self._rows_in(file)
        self.rows_read = max(self.rows_read, row_count - keep)
        return max(0, keep - row_count)

    def read(self) -> Iterator[Rows]:
        """Yield the unread rows, in blocks. Raises ``InputError`` and ``OSError``."""
        with open_run_file(self.path) as file:
            row_count = self._rows_in(file)
            if (layout := self.layout) is None:
                return
            file.seek(layout.position(self.rows_read))
            while self.rows_read < row_count:
                wanted = min(BLOCK_ROWS, row_count - self.rows_read) * layout.row_bytes
                data = np.empty(wanted, np.uint8).data
                count = file.readinto(data) // layout.row_bytes  # type: ignore[attr-defined]  # it is a BufferedReader
                if not count:
                    return  # the file became shorter
                rows, damaged = layout.rows(data[: count * layout.row_bytes])
                add_skipped(self.damaged, self.path, [layout.position(self.rows_read + row) for row in damaged])
                self.rows_read += count
                yield rows

    def _rows_in(self, file: BinaryIO) -> int:
        """Return the number of whole rows in the file; 0 while its header is incomplete."""
        size = os.fstat(file.fileno()).st_size
        if self.layout is None:
            self.layout = read_layout(file, self.path)
            if self.layout is None:
                self.torn_at = 0 if size else None
                return 0
            add_skipped(self.damaged, self.path, [0] * self.layout.damaged)
        rows, torn_bytes = divmod(max(0, size - self.layout.first), self.layout.row_bytes)
        self.torn_at = self.layout.position(rows) if torn_bytes else None
        return rows
