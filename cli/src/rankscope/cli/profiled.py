"""Which of some steps a rank has profiled, found by reading what it has added since one looked last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from rankscope.cli.live_run import LiveRun
from rankscope.cli.standstill import TAIL_BYTES
from rankscope.runs.paths import Stream, rank_dir
from rankscope.runs.segments import list_segments, open_regular, read_lines


class _Row(msgspec.Struct):
    step: int
    profiled: bool = False
    """Of a step's record."""


class _Added:
    """Rows that have been added to a stream in ``folder``."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        self._folder = folder
        self._stream: Stream = stream
        self._read: dict[Path, int] = {}
        """Segments and how many of their bytes have been read."""
        self._decoder = msgspec.json.Decoder(_Row)

    def skip(self, *, keep: int) -> None:
        """Take all that is there for read but the last ``keep`` bytes. Raises ``OSError``."""
        segments = list_segments(self._folder, self._stream)
        self._read = {path: path.stat().st_size for path in segments}
        if segments:
            self._read[segments[-1]] = max(0, self._read[segments[-1]] - keep)

    def rows(self) -> Iterator[_Row] | None:
        """Those since the last time; ``None``: segments are gone, compacted meanwhile or expired. Both raise ``OSError``."""
        segments = list_segments(self._folder, self._stream)
        if not self._read.keys() <= set(segments):
            return None
        return (row for path in segments for row in self._of(path))

    def _of(self, path: Path) -> Iterator[_Row]:
        with open_regular(path) as file:
            file.seek(self._read.get(path, 0))
            for line in read_lines(file):
                if line is None:
                    continue  # torn as yet: it is read again, unless others follow it
                self._read[path] = file.tell()
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    yield self._decoder.decode(line)


class ProfiledSteps:
    """Those of one rank of the run's present attempt, among ``steps``."""

    def __init__(self, live: LiveRun, rank: int, steps: range) -> None:
        self._live, self._rank, self._steps = live, rank, steps
        folder = rank_dir(live.path, live.attempt, rank)
        self._windows, self._made = _Added(folder, "windows"), _Added(folder, "steps")
        self._profiled: set[int] = set()
        self._passed = False
        with suppress(OSError):
            # The steps asked for are to come, or have just been made.
            self._made.skip(keep=TAIL_BYTES)

    def lacking(self) -> list[int]:
        """The steps that have not been profiled, as far as can be seen."""
        with suppress(OSError):  # not there yet; or it is later
            rows = self._windows.rows()
            if rows is None:
                return self.lacking_in_all()
            for row in rows:
                if row.step in self._steps:
                    self._profiled.add(row.step)
                # Windows are written one after the other, in the order of their steps.
                self._passed |= row.step > self._steps[-1]
        return self._rest()

    def lacking_in_all(self) -> list[int]:
        """The same, of whatever the rank has ever written."""
        self._profiled |= {row.step for row in self._live.reader.windows(self._live.attempt, self._rank)} & set(self._steps)
        return self._rest()

    def left_out(self) -> bool:
        """Whether what is ``lacking`` will not come: the rank made such a step unprofiled, or has profiled later ones."""
        with suppress(OSError):
            for row in self._made.rows() or ():
                self._passed |= row.step in self._steps and not row.profiled
        return self._passed

    def _rest(self) -> list[int]:
        return [step for step in self._steps if step not in self._profiled]
