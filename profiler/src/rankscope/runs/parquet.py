"""Compacted records: one Parquet file per stream, with an index of which part of which JSON Lines each row came from.

The index makes a run readable at every moment of its compaction: what a file here holds is not read again from the JSON Lines
that are still there. It lies in the file's own metadata, so that a file is whole or is not there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import parquet as pq

from rankscope.base.errors import InputError
from rankscope.runs.columns import ColumnError, arrow_schema, float_columns, from_columns, to_columns
from rankscope.runs.segments import open_regular

PARQUET_SCHEMA: Final = "rankscope.parquet/1"
ROWS_PER_GROUP: Final = 65_536
_BATCH_ROWS: Final = 8_192
_KEY: Final = "rankscope"
_END_BYTES: Final = 65_536

# A run directory may be anybody's: a file that claims more than this is damage, and nothing of it is unpacked.
_MAX_FOOTER_BYTES: Final = 256 * 2**20
_MAX_CHUNK_BYTES: Final = 512 * 2**20
_MAX_CHUNK_VALUES: Final = 64 * 2**20

_T = TypeVar("_T", bound=msgspec.Struct)
_B = TypeVar("_B")


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """``bytes`` from ``offset`` on of one segment of JSON Lines, which have become the next ``rows`` rows of the file."""

    rank: int | None
    """``None`` where the stream is not a rank's own."""
    file: str
    """Name of the segment in its folder."""
    offset: int
    bytes: int
    digest: str
    """Of their beginning and their end: a new segment may come to have the name of one that is gone."""
    rows: int
    skipped: int
    """Lines that could not be used."""


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds, in the order of its rows."""

    schema: str = PARQUET_SCHEMA
    stream: str
    pieces: list[Piece]


def digest_of(file: BinaryIO, offset: int, size: int) -> str:
    """Digest of the beginning and the end of ``size`` bytes from ``offset`` on."""
    digest = hashlib.blake2b(f"{size}\0".encode(), digest_size=16)
    for start in (offset, max(offset, offset + size - _END_BYTES)):
        file.seek(start)
        digest.update(file.read(min(_END_BYTES, offset + size - start)))
    return digest.hexdigest()


def covered_bytes(file: BinaryIO, pieces: list[Piece]) -> int:
    """How much of the beginning of a segment ``pieces`` (those of its name) hold. Raises ``OSError``."""
    size = os.fstat(file.fileno()).st_size
    position = 0
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        same = piece.offset == position and position + piece.bytes <= size
        if same and digest_of(file, position, piece.bytes) == piece.digest:
            position += piece.bytes
    return position


class PieceWriter:
    """Writes one file. Records are buffered up to a row group; a row group never holds records of two ranks."""

    def __init__(self, file: BinaryIO, stream: str, kind: type[msgspec.Struct]) -> None:
        self._kind = kind
        self._stream = stream
        own = arrow_schema(kind)
        # For other programs; here the index says whose rows they are.
        self._schema = own if "rank" in own.names else pa.schema([pa.field("rank", pa.int32()), *own])
        floats = float_columns(kind)
        clocks = [name for name in self._schema.names if name.endswith("_unix_ns")]
        apart = {*floats, *clocks}
        leaves = [path for path in _leaf_paths(self._schema) if path not in apart]
        self._writer = pq.ParquetWriter(
            file,
            self._schema,
            compression="zstd",
            compression_level=6,
            # Measured times hardly repeat: their bytes compress best column by column.
            use_dictionary=leaves,
            use_byte_stream_split=floats,
            column_encoding=dict.fromkeys(clocks, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )
        self._buffer: list[msgspec.Struct] = []
        self._pieces: list[Piece] = []
        self._rank: int | None = None

    def add(self, rank: int | None, record: msgspec.Struct) -> None:
        """Take a record. Raises ``OSError``, or ``ColumnError`` for one that no column can hold."""
        if rank != self._rank or len(self._buffer) >= ROWS_PER_GROUP:
            self._write_group()
            self._rank = rank
        self._buffer.append(record)

    def end_piece(self, piece: Piece) -> None:
        """The records since the last piece were those of ``piece``."""
        self._pieces.append(piece)

    def _write_group(self) -> None:
        if self._buffer:
            ranks = pa.array([self._rank] * len(self._buffer), pa.int32())
            columns = {"rank": ranks} | to_columns(self._buffer, self._kind)
            self._writer.write_table(pa.table(columns, schema=self._schema))
            self._buffer.clear()

    def close(self) -> None:
        """Write what is buffered and the index. Raises ``OSError`` or ``ColumnError``."""
        self._write_group()
        index = Index(stream=self._stream, pieces=self._pieces)
        self._writer.add_key_value_metadata({_KEY: msgspec.json.encode(index)})
        self._writer.close()

    def abandon(self) -> None:
        """Let go of a file that is not to be finished."""
        # It tries to finish the file; whatever was wrong with that has been said.
        with suppress(Exception):
            self._writer.close()


def _leaf_paths(schema: pa.Schema) -> list[str]:
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    written = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [written.column(number).path for number in range(len(written))]


class PieceReader:
    """One file. The footer is read once; raises ``InputError`` for what is no such file."""

    def __init__(self, path: Path, stream: str) -> None:
        self.path = path
        with self._translated(), open_regular(path) as file:
            _check_footer(file)
            self._metadata: Any = pq.ParquetFile(file, **_BOUNDS).metadata
            self._group_rows = self._check_groups()
            self.pieces = self._read_index(stream)

    def _read_index(self, stream: str) -> list[Piece]:
        text = (self._metadata.metadata or {}).get(_KEY.encode())
        if text is None:
            raise InputError(self.path, "not a compacted stream: there is no index in it")
        head = msgspec.json.decode(text, type=dict[str, Any])
        if head.get("schema") != PARQUET_SCHEMA:
            reason = f"written in format {head.get('schema')!r}; this version reads {PARQUET_SCHEMA!r}: upgrade rankscope"
            raise InputError(self.path, reason)
        index = msgspec.json.decode(text, type=Index)
        sane = all(min(piece.offset, piece.bytes, piece.rows, piece.skipped) >= 0 for piece in index.pieces)
        if index.stream != stream or not sane or sum(piece.rows for piece in index.pieces) != self._metadata.num_rows:
            raise InputError(self.path, "its index does not fit its rows")
        return index.pieces

    def _check_groups(self) -> list[int]:
        rows: list[int] = []
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            chunks = [group.column(at) for at in range(group.num_columns)]
            if not 0 <= group.num_rows <= ROWS_PER_GROUP or any(
                not 0 <= chunk.num_values <= _MAX_CHUNK_VALUES or not 0 <= chunk.total_uncompressed_size <= _MAX_CHUNK_BYTES
                for chunk in chunks
            ):
                raise InputError(self.path, f"row group {number} is impossibly large")
            rows.append(group.num_rows)
        return rows

    def records(self, pieces: list[Piece], kind: type[_T]) -> Iterator[_T]:
        """Records of some of its pieces, in the order of the file. Raises ``InputError``."""
        return chain.from_iterable(self.unpacked(pieces, kind, lambda batch: list(from_columns(batch, kind))))

    def unpacked(
        self, pieces: list[Piece], kind: type[msgspec.Struct], unpack: Callable[[Any], _B], columns: Sequence[str] | None = None
    ) -> Iterator[_B]:
        """What ``unpack`` makes of the record batches of some of its pieces, in the order of the file; of all columns, or of
        those of ``columns`` that there are. Raises ``InputError``.
        """
        wanted = _ranges(self.pieces, pieces)
        there = self._metadata.schema.to_arrow_schema().names
        named = None if columns is None else [name for name in columns if name in there]
        with self._translated(), open_regular(self.path) as file:
            words = [field.name for field in arrow_schema(kind) if field.type == pa.string()]
            parquet = pq.ParquetFile(
                file, metadata=self._metadata, read_dictionary=words, page_checksum_verification=True, **_BOUNDS
            )
            start = 0
            for number, rows in enumerate(self._group_rows):
                end = start + rows
                inside = [(max(a, start), min(b, end)) for a, b in wanted if a < end and b > start]
                if inside:
                    for batch in _batches_of(parquet, number, [(a - start, b - start) for a, b in inside], named):
                        yield unpack(batch)
                start = end

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise InputError(self.path, error.strerror or _first_line(error)) from error
        except (pa.ArrowException, ColumnError, msgspec.DecodeError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise InputError(self.path, f"damaged: {_first_line(error)}") from error
        except MemoryError as error:
            raise InputError(self.path, "damaged: it claims more memory than there is") from error


_BOUNDS: Final[dict[str, Any]] = {
    "thrift_string_size_limit": _MAX_FOOTER_BYTES,
    "thrift_container_size_limit": 16 * 2**20,
    "pre_buffer": False,
}


def _check_footer(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read(8)
    file.seek(0)
    if size < 12 or end[4:] != b"PAR1" or file.read(4) != b"PAR1":
        raise ValueError("it is no Parquet file, or not all of one")
    if int.from_bytes(end[:4], "little") > min(size, _MAX_FOOTER_BYTES):
        raise ValueError("its footer is impossibly large")
    file.seek(0)


def _ranges(all_pieces: list[Piece], wanted: list[Piece]) -> list[tuple[int, int]]:
    """Rows of the ``wanted`` pieces, neighbours joined."""
    chosen, ranges, row = set(wanted), list[tuple[int, int]](), 0
    for piece in all_pieces:
        if piece in chosen and piece.rows:
            if ranges and ranges[-1][1] == row:
                ranges[-1] = (ranges[-1][0], row + piece.rows)
            else:
                ranges.append((row, row + piece.rows))
        row += piece.rows
    return ranges


def _batches_of(parquet: Any, group: int, ranges: list[tuple[int, int]], columns: list[str] | None) -> Iterator[Any]:
    start = 0
    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
        end = start + batch.num_rows
        for first, last in ranges:
            if first < end and last > start:
                lo = max(first, start) - start
                yield batch.slice(lo, min(last, end) - start - lo)
        start = end
    if start < max(last for _, last in ranges):
        raise ValueError(f"row group {group} has fewer rows than it should")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
