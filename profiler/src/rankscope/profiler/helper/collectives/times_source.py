"""Source of durations of collectives, as the task that records them sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from rankscope.base.atomic_files import replace_file
from rankscope.runs.durations import DurationBlock, DurationSource

_PROGRESS_FILE: Final = "collective_times"
"""File in the scratch folder: what was read, as numbers, for the replacement of a killed helper."""


class NoTimesError(Exception):
    """There are no durations. ``lasting``: there never will be."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


class TimesSource(Protocol):
    """Source of durations. Methods run on a thread of their own."""

    kind: DurationSource

    def look(self, *, last: bool) -> Iterator[DurationBlock]:
        """Yield new durations. Raises ``NoTimesError``, ``OSError`` and ``ValueError``. ``last``: the rank has ended."""

    def wait_seconds(self) -> float:
        """Return the time until the next look."""

    def warning(self) -> str | None:
        """Return what was lost, once."""

    def close(self) -> None:
        """Leave nothing behind, after the last look. Raises ``OSError``."""


def progress_before(scratch: Path) -> list[int]:
    """Return the numbers that a killed predecessor of this helper noted last; empty: there was none."""
    with suppress(OSError, ValueError):
        return [int(number) for number in (scratch / _PROGRESS_FILE).read_text().split()]
    return []


def note_progress(scratch: Path, *numbers: int) -> None:
    """Note what was read, before it is recorded: nothing may be recorded twice. Never raises ``OSError``."""
    with suppress(OSError):
        replace_file(scratch / _PROGRESS_FILE, " ".join(map(str, numbers)).encode(), sync=False)
