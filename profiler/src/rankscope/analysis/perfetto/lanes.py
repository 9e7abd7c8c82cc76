"""Slices side by side: Perfetto drops a slice that begins inside another one of its track and ends after it."""

from __future__ import annotations

from typing import Final

MAX_LANES: Final = 64
"""More things than that at once on one track is damage."""


class Lanes:
    """The lanes of one track. ``nest``: a slice may lie inside another one of its lane, else only after it."""

    def __init__(self, *, nest: bool) -> None:
        self._nest = nest
        self._open: list[list[int]] = [[]]

    def place(self, start_ns: int, end_ns: int) -> int | None:
        """The first lane with room; ``None`` where there are too many.

        Slices come ordered by start and, where these are the same, with the longest first.
        """
        for lane, ends in enumerate(self._open):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or (self._nest and end_ns <= ends[-1]):
                ends.append(end_ns)
                return lane
        if len(self._open) == MAX_LANES:
            return None
        self._open.append([end_ns])
        return len(self._open) - 1
