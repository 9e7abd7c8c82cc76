"""What a look at the folder of a rank tells: who it is, how it ended, whether its files grow.

A thousand ranks are looked at every few seconds. What is in a folder changes seldom, which the folder's own time tells; so most
looks ask the system for two things, and read nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo
from rankscope.runs.segments import list_streams

WHOLE_LOOKS: Final = 12
"""So often at the latest the folder is looked through: clocks of file systems are coarse, and some lie."""


@dataclass(frozen=True, slots=True)
class RankSeen:
    """A rank at a moment, as far as names and sizes of its files and ``rank.json`` tell."""

    info: RankInfo | None
    steps: tuple[str, int] | None
    """Name and bytes of the last file with steps; ``None`` before the first."""
    size: int
    """Bytes of all its files, as far as has been looked."""
    readable: bool = True
    """Whether its folder could be looked into, just now: of one that cannot, nothing is known."""


class RankLook:
    """Looks at one rank of an attempt, again and again."""

    __slots__ = ("_attempt", "_changed_ns", "_due", "_folder", "_rank", "_seen", "_steps")

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        self._folder = os.fspath(folder)
        self._attempt = attempt
        self._rank = rank
        self._changed_ns: int | None = None
        self._due = 0
        """Looks until the folder is looked through whatever its time says."""
        self._steps: str | None = None
        self._seen = RankSeen(None, None, 0, readable=False)

    def look(self, reader: RunReader) -> RankSeen:
        """What there is now."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - of a thousand ranks, paths cost more than the calls
            self._due -= 1
            if changed_ns != self._changed_ns:
                self._look_through(reader)
                # Once more next time: what comes within a tick of the file system's clock after this look does not change it.
                self._due, self._changed_ns = 1, changed_ns
            elif self._due <= 0:
                self._look_through(reader)
                self._due = WHOLE_LOOKS + self._rank % WHOLE_LOOKS
            elif self._steps is not None:
                self._grow(os.stat(f"{self._folder}/{self._steps}").st_size)  # noqa: PTH116
        except OSError:
            self._changed_ns = None
            seen = self._seen
            self._seen = RankSeen(reader.rank(self._attempt, self._rank) or seen.info, seen.steps, seen.size, readable=False)
        return self._seen

    def _grow(self, size: int) -> None:
        before = self._seen.steps
        if before is None or before[1] != size:
            more = size - (0 if before is None else before[1])
            self._seen = RankSeen(self._seen.info, (self._steps or "", size), self._seen.size + more)

    def _look_through(self, reader: RunReader) -> None:
        folder = Path(self._folder)
        segments = list_streams(folder, ["steps"])["steps"]
        size, last = 0, 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                try:
                    of_it = entry.stat(follow_symlinks=False).st_size
                except OSError:  # retention removed it meanwhile
                    continue
                size += of_it
                if segments and entry.name == segments[-1]:
                    last = of_it
        self._steps = segments[-1] if segments else None
        steps = None if self._steps is None else (self._steps, last)
        self._seen = RankSeen(reader.rank(self._attempt, self._rank), steps, size)
