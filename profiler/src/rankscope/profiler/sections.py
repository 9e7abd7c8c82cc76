"""The script's own sections of a step: names to times, within bounds."""

from __future__ import annotations

from typing import Final

MAX_SECTIONS: Final = 10
"""Different names in one step; further ones are not recorded."""
MAX_NAME_BYTES: Final = 32
"""Of names of sections and of tags: all of a step must fit a slot of the ring."""


def short(name: object) -> str:
    """``name`` within its bounds, and such that it can be written as JSON."""
    text = str(name)
    if len(text) <= MAX_NAME_BYTES and text.isascii():
        return text
    return text.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")


class Sections:
    """Times of the sections of the current step in nanoseconds of a monotonic clock that the caller reads.

    Those of different names may lie inside each other, and each has all of its time. One inside another of the same name adds
    nothing.
    """

    __slots__ = ("_open", "_times", "used")

    def __init__(self) -> None:
        self.used = False
        """Whether there ever was one."""
        self._times: dict[str, int] = {}
        self._open: dict[str, tuple[int, int]] = {}
        """Name to (how many of that name are open, when the outermost began)."""

    def enter(self, name: str, now: int) -> None:
        """A section begins."""
        self.used = True
        depth, began = self._open.get(name, (0, now))
        if depth or len(self._open) < MAX_SECTIONS:
            self._open[name] = depth + 1, began

    def leave(self, name: str, now: int) -> None:
        """A section ends, well or not."""
        depth, began = self._open.get(name, (0, now))
        if depth > 1:
            self._open[name] = depth - 1, began
        elif depth:
            del self._open[name]
            self._add(name, now - began)

    def take(self, now: int) -> dict[str, int]:
        """The times of the step that ends now. What goes on across its end is shared out."""
        for name, (depth, began) in self._open.items():
            self._add(name, now - began)
            self._open[name] = depth, now
        times, self._times = self._times, {}
        return times

    def _add(self, name: str, nanoseconds: int) -> None:
        if name in self._times or len(self._times) < MAX_SECTIONS:
            self._times[name] = self._times.get(name, 0) + nanoseconds
