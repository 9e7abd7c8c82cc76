"""Lanes for overlapping slices: Perfetto drops a slice that begins inside another one of its track and ends after it."""

from __future__ import annotations

from typing import Final

MAX_LANES: Final = 64
"""Maximum slices open at once on one track: more is damage."""


class Lanes:
    """Lanes of one track. With ``nest`` a slice may lie inside another one of its lane, else only after it."""

    def __init__(self, *, nest: bool) -> None:
        self._nest = nest
        self._open: list[list[int]] = [[]]

    def place(self, start_ns: int, end_ns: int) -> int | None:
        """Place a slice and return the first lane with room; ``None`` if there are too many lanes.

        Slices must come ordered by start; of those with the same start the longest comes first.
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
