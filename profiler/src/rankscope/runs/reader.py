"""Reading a run directory, finished, live or damaged.

A torn last line, an unknown field or a missing file is normal and counted, not an error; only a folder that is no run, or one
of a newer major format, raises ``InputError``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

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

_T = TypeVar("_T", bound=msgspec.Struct)


def is_run(path: Path) -> bool:
    """Whether ``path`` looks like a run directory (it has a ``run.json``)."""
    return run_file(path).is_file()


class RunReader:
    """One run directory.

    ``skipped_lines`` counts lines that could not be used (torn, malformed, too long) since the reader was made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped_lines = 0
        self.info = self._read_info()

    def _read_info(self) -> RunInfo:
        file = run_file(self.path)
        if not self.path.exists():
            raise InputError(self.path, "no such file or folder")
        if not file.is_file():
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
        return _numbered(self.path / "attempts")

    def attempt(self, attempt: int) -> AttemptInfo | None:
        """``attempt.json``, or ``None`` where it is missing or unreadable (a rank died while starting)."""
        return self._optional(attempt_dir(self.path, attempt) / "attempt.json", AttemptInfo)

    def ranks(self, attempt: int) -> list[int]:
        """Ranks that left a folder in this attempt, ascending."""
        return _numbered(attempt_dir(self.path, attempt) / "ranks")

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
                with path.open("rb") as file:
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
            except OSError as error:
                raise InputError(path, error.strerror or str(error)) from error

    def _optional(self, path: Path, kind: type[_T]) -> _T | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None


def _numbered(folder: Path) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(folder, error.strerror or str(error)) from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error


def _decode_file(path: Path, data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(path, str(error)) from error
