"""Reading a run directory, finished, live or damaged.

A torn last line, an unknown field or a missing file is normal and counted, not an error; what cannot be read is named and the
rest is read; only a folder that is no run, or one of a newer major format, raises ``InputError``. A run directory may be
anybody's, so nothing in it can hang its reader or make it take more memory than there is on disk.

Records are read from JSON Lines and from Parquet (``compact``) alike, each of them once, also while they move from the one to
the other.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, TypeVar

import msgspec

from rankscope.base.errors import InputError, MissingError
from rankscope.runs.paths import Stream, attempt_dir, host_dir, rank_dir, run_file
from rankscope.runs.records import (
    RECORD_TYPES,
    RUN_SCHEMA,
    AttemptInfo,
    CollectiveRecord,
    HardwareSample,
    KernelRecord,
    PlannedWindow,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)
from rankscope.runs.segments import decode_blocks, list_segments, open_regular, read_blocks

if TYPE_CHECKING:
    from rankscope.runs.parquet import Piece, PieceReader

ATTEMPTS: Final = "attempts"
MAX_INFO_BYTES: Final = 16 * 2**20
"""Of a ``run.json``, ``attempt.json`` or ``rank.json``, which have a few thousand."""
MAX_NUMBER: Final = 2**31
"""Attempts and ranks are fewer: a folder with a larger number is damage."""

_T = TypeVar("_T", bound=msgspec.Struct)
_B = TypeVar("_B")


def is_run(path: Path) -> bool:
    """Whether ``path`` looks like a run directory (it has a ``run.json``)."""
    return run_file(path).is_file()


def is_visible_run(folder: Path) -> bool:
    """Whether ``folder`` is a run and may be looked into: of many, one that may not be is nobody's business."""
    try:
        return is_run(folder)
    except OSError:
        return False


def is_headless_run(path: Path) -> bool:
    """Whether ``path`` looks like a run directory that has lost its ``run.json``: there are attempts in it."""
    return (path / ATTEMPTS).is_dir() and not is_run(path)


@dataclass(frozen=True, slots=True)
class _Parts(Generic[_T, _B]):
    """What to make of a stream's records, many at a time."""

    kind: type[_T]
    of_rows: Callable[[list[_T]], _B]
    of_batch: Callable[[Any], _B]


class RunReader:
    """One run directory.

    ``skipped_lines`` counts lines that could not be used (torn, malformed, too long) since the reader was made;
    ``unusable`` names, once each, the files and folders of which nothing could be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped_lines = 0
        self.unusable: list[Path] = []
        self._opened: dict[Path, tuple[tuple[int, int, int], PieceReader]] = {}
        self.info = self._read_info()

    def _read_info(self) -> RunInfo:
        file = run_file(self.path)
        if not self.path.exists():
            raise InputError(self.path, "no such file or folder")
        if not file.is_file():
            if file.exists():
                raise InputError(file, "not a regular file")
            if is_headless_run(self.path):
                raise InputError(
                    self.path, "looks like a run directory, for there are attempts in it, but its run.json is missing"
                )
            raise InputError(self.path, "not a run directory: there is no run.json in it")
        data = _read_bytes(file)
        try:
            head = msgspec.json.decode(data, type=dict[str, object])
        except msgspec.ValidationError as error:
            raise InputError(file, f"not a rankscope run: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(file, f"not JSON: {error}") from error
        schema = str(head.get("schema"))
        if schema.partition("/")[0] != RUN_SCHEMA.partition("/")[0]:
            raise InputError(file, f"not a rankscope run: schema is {schema!r}")
        if schema != RUN_SCHEMA:
            raise InputError(file, f"written in format {schema!r}; this version reads {RUN_SCHEMA!r}: upgrade rankscope")
        return _decode_file(file, data, RunInfo)

    def attempts(self) -> list[int]:
        """Numbers of the attempts that left a folder, ascending."""
        return self._numbered(self.path / ATTEMPTS, digits=3)

    def attempt(self, attempt: int) -> AttemptInfo | None:
        """``attempt.json``, or ``None`` where it is missing or unreadable (a rank died while starting)."""
        return self._optional(attempt_dir(self.path, attempt) / "attempt.json", AttemptInfo)

    def ranks(self, attempt: int) -> list[int]:
        """Ranks that left a folder in this attempt, ascending."""
        return self._numbered(attempt_dir(self.path, attempt) / "ranks", digits=5)

    def rank(self, attempt: int, rank: int) -> RankInfo | None:
        """``rank.json``, or ``None`` where it is missing or unreadable."""
        return self._optional(rank_dir(self.path, attempt, rank) / "rank.json", RankInfo)

    def infos(self, attempt: int) -> dict[int, RankInfo]:
        """``rank.json`` of every rank that has a readable one, in the order of the ranks."""
        return {rank: info for rank in self.ranks(attempt) if (info := self.rank(attempt, rank)) is not None}

    def steps(self, attempt: int, rank: int) -> Iterator[StepRecord]:
        """Step records of one rank in the order they were written."""
        return self._rank_rows(attempt, rank, "steps", StepRecord)

    def windows(self, attempt: int, rank: int) -> Iterator[StepBreakdown]:
        """Breakdowns of the profiled steps of one rank."""
        return self._rank_rows(attempt, rank, "windows", StepBreakdown)

    def collectives(self, attempt: int, rank: int) -> Iterator[CollectiveRecord]:
        """Collectives of the profiled steps of one rank."""
        return self._rank_rows(attempt, rank, "collectives", CollectiveRecord)

    def kernels(self, attempt: int, rank: int) -> Iterator[KernelRecord]:
        """Costliest kernels of the profiled steps of one rank."""
        return self._rank_rows(attempt, rank, "kernels", KernelRecord)

    def plan(self, attempt: int) -> Iterator[PlannedWindow]:
        """Profiled windows that were announced to the ranks of this attempt."""
        folder = attempt_dir(self.path, attempt)
        return self._rows(folder, folder, None, "plan", PlannedWindow)

    def hosts(self) -> list[str]:
        """Names of the hosts that left hardware samples."""
        folder = self.path / "hosts"
        try:
            return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        except FileNotFoundError:
            return []
        except OSError:
            self._cannot_use(folder)
            return []

    def hardware(self, host: str) -> Iterator[HardwareSample]:
        """Samples of the GPUs of one host, in the order they were taken."""
        folder = host_dir(self.path, host)
        return self._rows(folder, folder, None, "gpu", HardwareSample)

    def step_blocks(
        self, attempt: int, rank: int, kind: type[_T], of_rows: Callable[[list[_T]], _B], of_batch: Callable[[Any], _B]
    ) -> Iterator[_B]:
        """What ``of_rows`` and ``of_batch`` make of a rank's step records, many at a time, in the order they were written.

        ``kind`` has some of the fields of ``StepRecord``, perhaps in other types; ``of_batch`` gets the same fields as Arrow
        columns, those that there are.
        """
        folder, compacted = rank_dir(self.path, attempt, rank), attempt_dir(self.path, attempt)
        return self._blocks(folder, compacted, rank, "steps", _Parts(kind, of_rows, of_batch))

    def take_over(self, skipped_lines: int, unusable: list[Path]) -> None:
        """Count what another reader of this run has met."""
        self.skipped_lines += skipped_lines
        for path in unusable:
            self._cannot_use(path)

    def _rank_rows(self, attempt: int, rank: int, stream: Stream, kind: type[_T]) -> Iterator[_T]:
        return self._rows(rank_dir(self.path, attempt, rank), attempt_dir(self.path, attempt), rank, stream, kind)

    def _rows(self, folder: Path, compacted: Path, rank: int | None, stream: Stream, kind: type[_T]) -> Iterator[_T]:
        """Records of one stream: JSON Lines in ``folder``, and rows of ``rank`` in the Parquet files in ``compacted``."""

        def records(batch: Any) -> list[_T]:
            from rankscope.runs.columns import from_columns

            return list(from_columns(batch, kind))

        parts: _Parts[_T, list[_T]] = _Parts(kind, lambda rows: rows, records)
        blocks: Iterator[list[_T]] = self._blocks(folder, compacted, rank, stream, parts)
        return chain.from_iterable(blocks)

    def _blocks(self, folder: Path, compacted: Path, rank: int | None, stream: Stream, parts: _Parts[_T, _B]) -> Iterator[_B]:
        # First what may be removed, then what takes its place: the other way round both could be missed.
        segments = self._list(folder, stream)
        done: set[Piece] = set()
        yield from self._compacted(compacted, rank, stream, parts, done)
        for path in segments:
            try:
                yield from self._lines(path, parts, done)
            except FileNotFoundError:
                # Retention removed it since, or it has just been compacted.
                yield from self._compacted(compacted, rank, stream, parts, done, segment=path.name)
            except OSError:
                self._cannot_use(path)

    def _list(self, folder: Path, stream: Stream) -> list[Path]:
        try:
            return list_segments(folder, stream)
        except FileNotFoundError:
            if folder.is_symlink():
                self._cannot_use(folder)
        except OSError:
            self._cannot_use(folder)
        return []

    def _lines(self, path: Path, parts: _Parts[_T, _B], done: set[Piece]) -> Iterator[_B]:
        decoder = msgspec.json.Decoder(parts.kind)
        with open_regular(path) as file:
            if pieces := [piece for piece in done if piece.file == path.name]:
                from rankscope.runs.parquet import covered_bytes

                file.seek(covered_bytes(file, pieces))
            for records, damaged in decode_blocks((lines for lines, _ in read_blocks(file)), decoder):
                self.skipped_lines += damaged
                if records:
                    yield parts.of_rows(records)

    def _compacted(
        self,
        folder: Path,
        rank: int | None,
        stream: Stream,
        parts: _Parts[_T, _B],
        done: set[Piece],
        *,
        segment: str | None = None,
    ) -> Iterator[_B]:
        """Rows of the Parquet files in ``folder`` that are not ``done`` yet, or of these what was one ``segment``.

        Raises ``MissingError``.
        """
        try:
            files = list_segments(folder, stream, "parquet")
        except OSError:
            return  # it has been named, if it is one that should be there
        for path in files:
            try:
                reader = self._parquet(path, stream)
                pieces = [
                    piece for piece in reader.pieces if piece.rank == rank and piece not in done and segment in (None, piece.file)
                ]
                # Whatever comes of it, nothing of these is to be read twice.
                done.update(pieces)
                self.skipped_lines += sum(piece.skipped for piece in pieces)
                if pieces:
                    yield from reader.unpacked(pieces, RECORD_TYPES[stream], parts.of_batch, parts.kind.__struct_fields__)
            except (InputError, OSError):
                self._cannot_use(path)

    def _parquet(self, path: Path, stream: Stream) -> PieceReader:
        try:
            from rankscope.runs.parquet import PieceReader
        except ModuleNotFoundError as error:
            if error.name != "pyarrow":
                raise
            raise MissingError(
                f"{path}: reading compacted runs needs the Python package 'pyarrow': pip install 'rankscope[analysis]'"
            ) from error
        status = path.stat()
        identity = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._opened.get(path)
        if known is None or known[0] != identity:
            known = self._opened[path] = (identity, PieceReader(path, stream))
        return known[1]

    def _optional(self, path: Path, kind: type[_T]) -> _T | None:
        try:
            with open_regular(path) as file:
                return msgspec.json.decode(_all_of(file), type=kind)
        except FileNotFoundError:
            return None  # not written yet
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            self._cannot_use(path)
            return None

    def _numbered(self, folder: Path, *, digits: int) -> list[int]:
        numbers: list[int] = []
        try:
            for entry in folder.iterdir():
                if not entry.name.isdecimal():
                    continue
                number = int(entry.name)
                if number < MAX_NUMBER and entry.name == f"{number:0{digits}d}":
                    numbers.append(number)
                else:
                    self._cannot_use(entry)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(folder, error.strerror or str(error)) from error
        return sorted(numbers)

    def _cannot_use(self, path: Path) -> None:
        if path not in self.unusable:
            self.unusable.append(path)


def _read_bytes(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return _all_of(file)
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error


def _all_of(file: BinaryIO) -> bytes:
    """Raises ``OSError`` for more than any such file has: it may be anybody's, and as large as it likes."""
    data = file.read(MAX_INFO_BYTES + 1)
    if len(data) > MAX_INFO_BYTES:
        raise OSError(errno.EFBIG, "damaged: far too large for what it is")
    return data


def _decode_file(path: Path, data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(path, str(error)) from error
