"""Source of durations of collectives, as the task that records them sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rankscope.runs.durations import DurationBlock, DurationSource


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
