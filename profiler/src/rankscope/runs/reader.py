"""Reading a run directory, finished, live or damaged.

A torn last line, an unknown field or a missing file is normal and counted, not an error; only a folder that is no run, or one
of a newer major format, raises ``InputError``. A run directory may be anybody's, so nothing in it can hang its reader or make
it take more memory than there is on disk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec

from rankscope.runs.errors import InputError
from rankscope.runs.paths import Stream, attempt_dir, rank_dir, run_file
from rankscope.runs.records import (
    RUN_SCHEMA,
    AttemptInfo,
    CollectiveRecord,
    KernelRecord,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""A longer line is damage: no record comes near this."""

MAX_NUMBER: Final = 2**31
"""Attempts and ranks are fewer: a folder with a larger number is damage."""

_T = TypeVar("_T", bound=msgspec.Struct)


def is_run(path: Path) -> bool:
    """Whether ``path`` looks like a run directory (it has a ``run.json``)."""
    return run_file(path).is_file()


def is_headless_run(path: Path) -> bool:
    """Whether ``path`` looks like a run directory that has lost its ``run.json``: there are attempts in it."""
    return (path / "attempts").is_dir() and not is_run(path)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    Raises ``OSError``, also for everything else that has a name: a FIFO without a writer would be waited for for ever, and a
    device need not end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _IrregularFileError(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise (
            IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) if stat.S_ISDIR(mode) else _IrregularFileError(path)
        )
    return os.fdopen(descriptor, "rb")


class _IrregularFileError(OSError):
    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file", os.fspath(path))


class RunReader:
    """One run directory.

    ``skipped_lines`` counts lines that could not be used (torn, malformed, too long) since the reader was made;
    ``unusable`` names, once each, the files and folders of which nothing could be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped_lines = 0
        self.unusable: list[Path] = []
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
        return self._numbered(self.path / "attempts", digits=3)

    def attempt(self, attempt: int) -> AttemptInfo | None:
        """``attempt.json``, or ``None`` where it is missing or unreadable (a rank died while starting)."""
        return self._optional(attempt_dir(self.path, attempt) / "attempt.json", AttemptInfo)

    def ranks(self, attempt: int) -> list[int]:
        """Ranks that left a folder in this attempt, ascending."""
        return self._numbered(attempt_dir(self.path, attempt) / "ranks", digits=5)

    def rank(self, attempt: int, rank: int) -> RankInfo | None:
        """``rank.json``, or ``None`` where it is missing or unreadable."""
        return self._optional(rank_dir(self.path, attempt, rank) / "rank.json", RankInfo)

    def steps(self, attempt: int, rank: int) -> Iterator[StepRecord]:
        """Step records of one rank in the order they were written."""
        return self._rows(attempt, rank, "steps", StepRecord)

    def windows(self, attempt: int, rank: int) -> Iterator[StepBreakdown]:
        """Breakdowns of the profiled steps of one rank."""
        return self._rows(attempt, rank, "windows", StepBreakdown)

    def collectives(self, attempt: int, rank: int) -> Iterator[CollectiveRecord]:
        """Collectives of the profiled steps of one rank."""
        return self._rows(attempt, rank, "collectives", CollectiveRecord)

    def kernels(self, attempt: int, rank: int) -> Iterator[KernelRecord]:
        """Costliest kernels of the profiled steps of one rank."""
        return self._rows(attempt, rank, "kernels", KernelRecord)

    def _rows(self, attempt: int, rank: int, stream: Stream, kind: type[_T]) -> Iterator[_T]:
        decoder = msgspec.json.Decoder(kind)
        for path in sorted(rank_dir(self.path, attempt, rank).glob(f"{stream}-*.jsonl")):
            try:
                with open_regular(path) as file:
                    while line := file.readline(MAX_LINE_BYTES):
                        if not line.endswith(b"\n"):
                            # Torn: the writer is in the middle of it, or died there. Or endless: then nothing of it is used.
                            self.skipped_lines += 1
                            while line and not line.endswith(b"\n"):
                                line = file.readline(MAX_LINE_BYTES)  # the rest of the same line
                            continue
                        try:
                            yield decoder.decode(line)
                        except (msgspec.DecodeError, UnicodeDecodeError):
                            self.skipped_lines += 1
            except FileNotFoundError:
                continue  # retention removed it between listing and opening
            except _IrregularFileError:
                self._cannot_use(path)
            except OSError as error:
                raise InputError(path, error.strerror or str(error)) from error

    def _optional(self, path: Path, kind: type[_T]) -> _T | None:
        try:
            with open_regular(path) as file:
                return msgspec.json.decode(file.read(), type=kind)
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
            return file.read()
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error


def _decode_file(path: Path, data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(path, str(error)) from error
