"""Segments of step records, for tests that write, change and damage them, and tables of records without files."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.lib import format as npy
from numpy.lib import recfunctions
from numpy.typing import NDArray

from rankscope.analysis.evidence.step_table.rank_columns import RankColumns, tags_of, times_of_tags
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.evidence.step_table.table_builder import StepTableBuilder
from rankscope.runs.paths import Stream, rank_dir
from rankscope.runs.records import StepRecord
from rankscope.runs.segment_writer import SEGMENT_BYTES, JsonLinesWriter, RowWriter
from rankscope.runs.step_columns import HEADER_BYTES, ROW_BYTES, checksums, event_of, header, pack_row, row_dtype

Rows = NDArray[Any]
"""Rows of ``row_dtype``."""


class StepWriter:
    """Writer of the step records of a rank, each as a row and, where it has sections or tags, an event."""

    def __init__(self, folder: Path, *, rank: int, attempt: int = 0, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._rows = RowWriter(folder, rank=rank, attempt=attempt, segment_bytes=segment_bytes)
        self._events = JsonLinesWriter(folder, "events", segment_bytes=segment_bytes)

    def append(self, *records: StepRecord) -> None:
        """Append records. Raises ``OSError``."""
        self._events.append(*(event for record in records if (event := event_of(record)) is not None))
        self._rows.append(*records)

    def close(self) -> None:
        """Close the open segments. Raises ``OSError``."""
        self._events.close()
        self._rows.close()


def append(folder: Path, stream: Stream, *records: msgspec.Struct) -> None:
    """Append records to a new segment in the folder of a rank or a host, as the helper does."""
    if stream == "steps":
        steps = StepWriter(folder, rank=int(folder.name), attempt=int(folder.parent.parent.name))
        steps.append(*records)  # type: ignore[arg-type]
        steps.close()
    else:
        writer = JsonLinesWriter(folder, stream)
        writer.append(*records)
        writer.close()


def steps_file(run: Path, rank: int, attempt: int = 0) -> Path:
    """Return the first segment of a rank's step records."""
    return min(rank_dir(run, attempt, rank).glob("steps-*.npy"))


def rows_of(*records: StepRecord) -> Rows:
    """Return the rows of records, writable."""
    return np.frombuffer(b"".join(map(pack_row, records)), row_dtype()).copy()


def load(file: Path) -> Rows:
    """Load all complete rows of a segment, writable; checksums are not checked."""
    data = file.read_bytes()[HEADER_BYTES:]
    return np.frombuffer(data[: len(data) // ROW_BYTES * ROW_BYTES], row_dtype()).copy()


def with_checksums(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows, of any layout that ends with a checksum, with correct checksums."""
    rows = rows.copy()
    rows["checksum"] = checksums(rows.view("<u8").reshape(len(rows), -1))
    return rows


def save(file: Path, rows: Rows) -> None:
    """Replace the rows of a segment, with correct checksums: the file keeps its inode and its rank's header."""
    rank, attempt = int(file.parent.name), int(file.parent.parent.parent.name)
    file.write_bytes(header(rank, attempt, rows=len(rows)) + with_checksums(rows).tobytes())


def change(file: Path, edit: Callable[[Rows], Rows | None]) -> None:
    """Replace the rows of a segment by the return value of ``edit``, or by the rows it has changed in place."""
    rows = load(file)
    changed = edit(rows)
    save(file, rows if changed is None else changed)


def add_rows(file: Path, rows: Rows) -> None:
    """Append rows with correct checksums."""
    with file.open("ab") as end:
        end.write(with_checksums(rows).tobytes())


def damage(file: Path, *rows: int, at: int = 20) -> None:
    """Flip one bit in each of these rows, at the given byte."""
    data = bytearray(file.read_bytes())
    for row in rows:
        data[HEADER_BYTES + row * ROW_BYTES + at] ^= 0x10
    file.write_bytes(data)


def add_damaged(file: Path, count: int = 1) -> None:
    """Append rows whose checksums are wrong."""
    with file.open("ab") as end:
        end.write(b"\xa5" * ROW_BYTES * count)


def tear(file: Path, *, by: int = ROW_BYTES // 2) -> None:
    """Cut the end of a segment off."""
    file.write_bytes(file.read_bytes()[:-by])


def keep_rows(file: Path, count: int) -> None:
    """Cut a segment to its first rows."""
    file.write_bytes(file.read_bytes()[: HEADER_BYTES + count * ROW_BYTES])


def save_foreign(file: Path, rows: Rows, *, without: tuple[str, ...] = (), **added: str) -> None:
    """Replace a segment by one of another layout: without some columns, and with more of these numpy types, set to 7."""
    kept = [name for name in rows.dtype.names or () if name not in {*without, "checksum"}]
    kind = np.dtype([*((name, rows.dtype[name]) for name in kept), *added.items(), ("checksum", "<u8")])
    changed = np.full(len(rows), 7, np.uint8).astype(kind)
    recfunctions.assign_fields_by_name(changed, rows[kept], zero_unassigned=False)
    file.write_bytes(foreign_segment(with_checksums(changed)))


def foreign_segment(rows: NDArray[Any]) -> bytes:
    """Return a segment of rows of any layout, as another version would write it; checksums stay unchanged."""
    description = f"{{'descr': {rows.dtype.descr!r},"
    about = f" # rankscope.steps/1 rank=0 attempt=0 layout={zlib.crc32(description.encode()):08x}\n"
    text = f"{description} 'fortran_order': False, 'shape': ({len(rows)},), }}{about}".encode()
    return npy.magic(1, 0) + len(text).to_bytes(2, "little") + text + rows.tobytes()


class CountedReads:
    """Number of bytes that readers of runs have read from streams so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        for module in ("follow", "step_segments"):
            monkeypatch.setattr(f"rankscope.runs.{module}.open_run_file", self._opened)

    def _opened(self, path: Path) -> Any:
        reads = self

        class Counted(io.FileIO):
            def read(self, size: int | None = -1) -> bytes:
                data: bytes = super().read(-1 if size is None else size)
                reads.bytes += len(data)
                return data

            def readinto(self, buffer: Any) -> int:
                count: int = super().readinto(buffer)
                reads.bytes += count
                return count

        return Counted(path)


def table_of_records(records: Mapping[int, Iterable[StepRecord]]) -> StepTable:
    """Return the table of the records of each rank. Of a step recorded twice by a rank, the last record counts."""
    builder = StepTableBuilder()
    builder.add_ranks(records)
    for rank, of_rank in records.items():
        packed, kept_records = [], []
        for record in of_rank:
            try:
                packed.append(pack_row(record))
                kept_records.append(record)
            except (struct.error, OverflowError):
                builder.damaged[rank] += 1
        rows = np.frombuffer(b"".join(packed), row_dtype())
        events = [event for record in kept_records if (event := event_of(record)) is not None]
        builder.add(rank, RankColumns.of([rows]).tagged(tags_of(events), times_of_tags(events)))
    return StepTable.from_builder(0, builder)
