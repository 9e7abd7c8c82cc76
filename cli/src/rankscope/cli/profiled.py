"""Which of some steps a rank has profiled, found by reading what it has added since one looked last."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankscope.cli.live_run import LiveRun
from rankscope.runs.paths import rank_dir
from rankscope.runs.segments import list_segments, open_regular, read_lines


class _Row(msgspec.Struct):
    step: int


class ProfiledSteps:
    """Those of one rank of the run's present attempt, among ``steps``."""

    def __init__(self, live: LiveRun, rank: int, steps: range) -> None:
        self._live, self._rank, self._steps = live, rank, steps
        self._folder = rank_dir(live.path, live.attempt, rank)
        self._read: dict[Path, int] = {}
        """Segments and how many of their bytes have been read."""
        self._profiled: set[int] = set()
        self._decoder = msgspec.json.Decoder(_Row)

    def lacking(self) -> list[int]:
        """The steps that have not been profiled, as far as can be seen."""
        try:
            segments = list_segments(self._folder, "windows")
            if not self._read.keys() <= set(segments):
                return self.lacking_in_all()  # compacted meanwhile, or expired
            for path in segments:
                self._read[path] = self._read_on(path, self._read.get(path, 0))
        except OSError:
            pass  # not there yet; or it is later
        return self._rest()

    def lacking_in_all(self) -> list[int]:
        """The same, of whatever the rank has ever written."""
        self._profiled |= {row.step for row in self._live.reader.windows(self._live.attempt, self._rank)} & set(self._steps)
        return self._rest()

    def _rest(self) -> list[int]:
        return [step for step in self._steps if step not in self._profiled]

    def _read_on(self, path: Path, start: int) -> int:
        with open_regular(path) as file:
            file.seek(start)
            for line in read_lines(file):
                if line is None:
                    continue  # torn as yet: it is read again, unless others follow it
                start = file.tell()
                try:
                    step = self._decoder.decode(line).step
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                if step in self._steps:
                    self._profiled.add(step)
        return start
