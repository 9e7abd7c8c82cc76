"""A finished run's JSON Lines become Parquet, and nothing that was readable is ever not.

Per stream: write beside, fsync, read back and compare every record, give it its name, and only then remove the JSON Lines. Killed
anywhere, what is there is complete: the index of a Parquet file says which bytes it stands for, and readers skip those.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Final, Union, get_args, get_origin

import msgspec

from rankscope.base.errors import InputError
from rankscope.runs.columns import ColumnError
from rankscope.runs.parquet import Piece, PieceReader, PieceWriter, covered_bytes, digest_of
from rankscope.runs.paths import RANK_STREAMS, Stream, attempt_dir, host_dir, parquet_file, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RECORD_TYPES
from rankscope.runs.segments import MAX_LINE_BYTES, list_segments, number_of, open_regular, read_lines

COMPACT_SCHEMA: Final = "rankscope.compact/1"
QUIET_SECONDS: Final = 300.0
"""A rank that has not said how it ended may be alive if one of its files is younger than this."""

Progress = Callable[[int], None]
"""Told how many more bytes of JSON Lines have been read; each is read twice."""


class Compaction(msgspec.Struct, kw_only=True):
    """What ``compact_run`` has done."""

    schema: str = COMPACT_SCHEMA
    path: str
    records: dict[str, int] = {}
    """Stream to the number of records that became rows, this time."""
    damaged_lines: int = 0
    """Lines that no reader could use, this time; their number stays known."""
    bytes_before: int = 0
    """Size of the JSON Lines that became rows."""
    bytes_after: int = 0
    """Size of the Parquet files they became."""
    removed_files: int = 0
    removed_bytes: int = 0
    left_out: list[str] = []
    """What lies in the place of records and is no file."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One stream of one attempt or host: the folder of its Parquet files, and those of its JSON Lines by rank."""

    folder: Path
    stream: Stream
    sources: tuple[tuple[int | None, Path], ...]
    open: frozenset[int | None]
    """Of these (``None``: a stream without ranks) the last file stays, though its records are elsewhere: it may be written on."""


@dataclass(frozen=True, slots=True)
class _Segment:
    rank: int | None
    path: Path
    covered: int
    """How many of its bytes Parquet files hold already."""
    size: int
    stays: bool


def compact_run(run: Path, *, force: bool = False, keep_jsonl: bool = False, progress: Progress = lambda _: None) -> Compaction:
    """Compact ``run``; ``force``: also one that looks alive. Doing it again does what is left to do.

    Raises ``InputError`` when the run is alive, cannot be read or written, holds what Parquet would not, or was not read back as
    it was written; everything is readable then as before.
    """
    reader = RunReader(run)
    if not force:
        _check_is_over(reader)
    result = Compaction(path=os.fspath(run))
    for place in _places(reader):
        try:
            _compact(place, result, keep_jsonl=keep_jsonl, progress=progress)
        except FileNotFoundError as error:
            raise InputError(error.filename or place.folder, "it was removed while it was compacted; try again") from error
        except OSError as error:
            reason = f"cannot compact: {error.strerror or error}; no record is lost"
            raise InputError(error.filename or place.folder, reason) from error
    return result


def jsonl_bytes(run: Path) -> int:
    """Size of all JSON Lines that ``compact_run`` would read. Raises ``InputError``."""
    total = 0
    for place in _places(RunReader(run)):
        for _, folder in place.sources:
            with suppress(OSError):
                total += sum(path.stat().st_size for path in list_segments(folder, place.stream))
    return total


def _check_is_over(reader: RunReader) -> None:
    now = time.time()
    for attempt in reader.attempts():
        for rank in reader.ranks(attempt):
            if _has_ended(reader, attempt, rank):
                continue
            age = now - _newest(rank_dir(reader.path, attempt, rank))
            if age < QUIET_SECONDS:
                raise InputError(
                    reader.path,
                    f"rank {rank} has not ended and wrote {max(0, round(age))} s ago, so the run may be alive; "
                    "if it crashed, --force compacts it all the same",
                )


def _newest(folder: Path) -> float:
    """Time of the youngest file in ``folder``, in unix seconds; 0 without any."""
    newest = 0.0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                newest = max(newest, entry.stat().st_mtime)
    return newest


def _places(reader: RunReader) -> Iterator[_Place]:
    all_ended = True
    for attempt in reader.attempts():
        folder = attempt_dir(reader.path, attempt)
        ranks = reader.ranks(attempt)
        unended = [rank for rank in ranks if not _has_ended(reader, attempt, rank)]
        for stream in RANK_STREAMS:
            sources = tuple((rank, rank_dir(reader.path, attempt, rank)) for rank in ranks)
            yield _Place(folder, stream, sources, frozenset(unended))
        anybody = frozenset[int | None]({None} if unended else ())
        yield _Place(folder, "plan", ((None, folder),), anybody)
        all_ended = all_ended and not unended
    for host in reader.hosts():
        folder = host_dir(reader.path, host)
        yield _Place(folder, "gpu", ((None, folder),), frozenset(() if all_ended else {None}))


def _has_ended(reader: RunReader, attempt: int, rank: int) -> bool:
    info = reader.rank(attempt, rank)
    return info is not None and info.end_reason is not None


def _compact(place: _Place, result: Compaction, *, keep_jsonl: bool, progress: Progress) -> None:
    _remove_litter(place)
    # The number comes first: whoever else compacts this run then finds it taken.
    there = list_segments(place.folder, place.stream, "parquet")
    number = number_of(there[-1]) + 1 if there else 0
    readers = [PieceReader(path, place.stream) for path in there]
    held = [piece for reader in readers for piece in reader.pieces]
    segments = list(_segments(place, held, result))
    new = [segment for segment in segments if segment.covered < segment.size]
    old = [segment for segment in segments if segment.covered == segment.size and not segment.stays]
    if old and not keep_jsonl:
        _check_removable(old)
        for segment in old:
            # From an earlier time, which did not come to its end: what is about to go is compared here, too.
            for reader in readers:
                mine = [piece for piece in reader.pieces if (piece.rank, piece.file) == (segment.rank, segment.path.name)]
                _verify(reader, mine, {segment.rank: segment.path.parent}, place, progress)
            _remove(segment.path, segment.size, result)
    if not new:
        return
    if not keep_jsonl:
        _check_removable(new)
    pieces = _write(place, number, new, result, progress)
    if not keep_jsonl:
        for segment, piece in zip(new, pieces, strict=True):
            if not segment.stays:
                _remove(segment.path, piece.offset + piece.bytes, result)


def _segments(place: _Place, held: list[Piece], result: Compaction) -> Iterator[_Segment]:
    for rank, folder in place.sources:
        try:
            paths = list_segments(folder, place.stream)
        except (FileNotFoundError, NotADirectoryError):
            continue  # readers name it
        for path in paths:
            try:
                with open_regular(path) as file:
                    mine = [piece for piece in held if (piece.rank, piece.file) == (rank, path.name)]
                    covered, size = covered_bytes(file, mine), os.fstat(file.fileno()).st_size
                    stays = rank in place.open and path == paths[-1]
                    yield _Segment(rank, path, covered, max(covered, _whole_lines(file, size)) if stays else size, stays)
            except OSError as error:
                if stat.S_ISREG(path.lstat().st_mode):
                    raise
                # Not a file, so there is no record in it: it stays, and readers name it as before.
                result.left_out.append(f"{path}: {error.strerror}")


def _whole_lines(file: BinaryIO, size: int) -> int:
    """Where the last whole line ends: who writes on may be in the middle of the next, or take it back."""
    start = max(0, size - MAX_LINE_BYTES)
    file.seek(start)
    tail = file.read(size - start)
    return start + tail.rfind(b"\n") + 1 if b"\n" in tail else 0


def _check_removable(segments: list[_Segment]) -> None:
    """So that a run one may not change is left as it is, rather than in two halves."""
    for folder in {segment.path.parent for segment in segments}:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(folder, "cannot compact: nothing may be removed here; --keep-jsonl leaves it in place")


def _write(place: _Place, number: int, segments: list[_Segment], result: Compaction, progress: Progress) -> list[Piece]:
    """Write and verify the Parquet file of ``segments``; the pieces are theirs, in order."""
    final = parquet_file(place.folder, place.stream, number)
    temporary = place.folder / f".{final.name}.{os.getpid()}-{secrets.token_hex(6)}"
    with temporary.open("xb") as file:
        try:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # says that this is no litter
            with suppress(OSError):
                os.fchmod(file.fileno(), segments[0].path.stat().st_mode & 0o644)
            pieces = _fill(file, place, segments, progress)
            file.flush()
            os.fsync(file.fileno())
            reader = PieceReader(temporary, place.stream)
            _verify(reader, reader.pieces, dict(place.sources), place, progress)
            _name(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)
    _sync_folder(place.folder)
    result.records[place.stream] = result.records.get(place.stream, 0) + sum(piece.rows for piece in pieces)
    result.damaged_lines += sum(piece.skipped for piece in pieces)
    result.bytes_before += sum(piece.bytes for piece in pieces)
    result.bytes_after += final.stat().st_size
    return pieces


def _fill(file: BinaryIO, place: _Place, segments: list[_Segment], progress: Progress) -> list[Piece]:
    kind = RECORD_TYPES[place.stream]
    writer = PieceWriter(file, place.stream, kind)
    known, strict = msgspec.json.Decoder(kind), msgspec.json.Decoder(_strict(kind))
    pieces: list[Piece] = []
    current = place.folder
    try:
        for segment in segments:
            current = segment.path
            with open_regular(segment.path) as source:
                rows = skipped = 0
                for place_in_file, line in enumerate(_lines(source, segment.covered, segment.size), start=1):
                    try:
                        writer.add(segment.rank, strict.decode(line or b""))
                        rows += 1
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        if line is not None and _decodes(known, line):
                            raise InputError(
                                segment.path,
                                f"it has what this version does not know and would lose ({error}): "
                                "compact it with the version of rankscope that wrote it",
                                place=f"line {place_in_file}" if not segment.covered else None,
                            ) from error
                        skipped += 1
                size = source.tell() - segment.covered
                piece = Piece(
                    rank=segment.rank,
                    file=segment.path.name,
                    offset=segment.covered,
                    bytes=size,
                    digest=digest_of(source, segment.covered, size),
                    rows=rows,
                    skipped=skipped,
                )
            progress(size)
            writer.end_piece(piece)
            pieces.append(piece)
        writer.close()
    except ColumnError as error:
        writer.abandon()
        raise InputError(current, f"cannot compact: a record here or before it does not fit into columns: {error}") from error
    except BaseException:
        writer.abandon()
        raise
    return pieces


def _lines(file: BinaryIO, start: int, end: int) -> Iterator[bytes | None]:
    """Lines from byte ``start`` to ``end``; what a writer has appended since is left."""
    file.seek(start)
    if start < end:
        for line in read_lines(file):
            yield line
            if file.tell() >= end:
                return


def _decodes(decoder: msgspec.json.Decoder[Any], line: bytes) -> bool:
    try:
        decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _strict(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The same record, for a decoder that refuses fields it does not know; records within it, too."""
    fields = [
        (one.name, _strict_annotation(one.type), _default(one)) if not one.required else (one.name, _strict_annotation(one.type))
        for one in msgspec.structs.fields(kind)
    ]
    return msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default


def _strict_annotation(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _strict(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return reduce(or_, map(_strict_annotation, get_args(annotation)))
    return annotation


def _verify(reader: PieceReader, pieces: list[Piece], folders: dict[int | None, Path], place: _Place, progress: Progress) -> None:
    """Compare every record with the JSON Lines it was made of. Raises ``InputError`` for the first that differs."""
    kind = RECORD_TYPES[place.stream]
    decoder = msgspec.json.Decoder(kind)
    for piece in pieces:
        path = folders[piece.rank] / piece.file
        with open_regular(path) as file:
            lines = _lines(file, piece.offset, piece.offset + piece.bytes)
            written = (record for record in (_decoded(decoder, line) for line in lines) if record is not None)
            for ours, theirs in zip_longest(reader.records([piece], kind), written):
                if ours != theirs:
                    raise InputError(path, f"{reader.path.name} does not read back as it was written; nothing was removed")
        progress(piece.bytes)


def _decoded(decoder: msgspec.json.Decoder[Any], line: bytes | None) -> Any:
    try:
        return None if line is None else decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _name(temporary: Path, final: Path) -> None:
    """Give a finished file its name, which nobody else may have taken meanwhile."""
    try:
        try:
            final.hardlink_to(temporary)
        except FileExistsError:
            raise
        except OSError:  # no hard links on this filesystem
            if final.exists():
                raise FileExistsError from None
            temporary.rename(final)
    except FileExistsError as error:
        raise InputError(final, "somebody else is compacting this run") from error


def _remove(path: Path, covered: int, result: Compaction) -> None:
    if path.stat().st_size == covered:  # unless it has grown: readers go on where the Parquet file ends
        path.unlink()
        result.removed_files += 1
        result.removed_bytes += covered


def _remove_litter(place: _Place) -> None:
    """What a compaction that was killed left beside; one that lives holds a lock on it."""
    for path in place.folder.glob(f".{place.stream}-*.parquet.*"):
        with suppress(OSError), path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every filesystem can
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
