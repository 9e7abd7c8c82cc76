"""Annotations of a step: sections that the script names, tags, metrics of its own, and the amount of work; all bounded."""

from __future__ import annotations

from typing import Final

MAX_SECTIONS: Final = 10
"""Number of different names in one step; further ones are not recorded."""
MAX_NAME_BYTES: Final = 32
"""Length limit for names of sections and for tags: all of a step must fit a slot of the ring."""
_MAX_TAGS: Final = 8
CHECKPOINT: Final = "checkpoint"
"""Tag of a step with a checkpoint, and section with the time of the checkpoints that the recorder timed."""
EVALUATION: Final = "eval"
"""Tag of a step with an evaluation, and section with the time of the evaluations that the recorder detected."""
OTHER_PROFILER: Final = "profiler"
"""Tag of a step in which the script's own profiler was on."""
MAX_METRICS: Final = 6
"""Number of the script's metrics in one step; further ones are not recorded."""


def short(name: object) -> str:
    """Return ``name`` cut to ``MAX_NAME_BYTES`` and valid as JSON."""
    text = str(name)
    if len(text) <= MAX_NAME_BYTES and text.isascii():
        return text
    return text.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")


class Sections:
    """Times of the sections of the current step in nanoseconds of a monotonic clock that the caller reads.

    Sections of different names may be nested; each includes the time of those inside it. A section inside another of the same
    name adds nothing.
    """

    __slots__ = ("_discarded", "_open", "_times", "used")

    def __init__(self) -> None:
        self.used = False
        """True once a section has been entered or discarded."""
        self._discarded: set[str] = set()
        """Sections that are left out of the current step."""
        self._times: dict[str, int] = {}
        self._open: dict[str, tuple[int, int]] = {}
        """Map of names to (number of open sections of that name, start of the outermost)."""

    def enter(self, name: str, now: int) -> None:
        """Begin a section."""
        self.used = True
        depth, began = self._open.get(name, (0, now))
        if depth or len(self._open) < MAX_SECTIONS:
            self._open[name] = depth + 1, began

    def leave(self, name: str, now: int) -> None:
        """End a section, also after an exception."""
        depth, began = self._open.get(name, (0, now))
        if depth > 1:
            self._open[name] = depth - 1, began
        elif depth:
            del self._open[name]
            self._add(name, now - began)

    def take(self, now: int) -> dict[str, int]:
        """Return the times of the step that ends now. A section across the end is split between the steps."""
        for name, (depth, began) in self._open.items():
            self._add(name, now - began)
            self._open[name] = depth, now
        times, self._times = self._times, {}
        if self._discarded:
            times = {name: ns for name, ns in times.items() if name not in self._discarded}
            self._discarded.clear()
        return times

    def discard(self, name: str) -> None:
        """Leave the section ``name`` out of the current step."""
        self.used = True
        self._discarded.add(name)

    def _add(self, name: str, nanoseconds: int) -> None:
        if name in self._times or len(self._times) < MAX_SECTIONS:
            self._times[name] = self._times.get(name, 0) + nanoseconds


Work = tuple[int | None, int | None, int | None]
"""Samples and elements as loaded, and elements as given to the model."""
NO_WORK: Final[Work] = (None, None, None)


class StepWork:
    """Work and tags of the current step."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.work = NO_WORK
        """Work of the step so far."""
        self.evaluated_ns = 0
        """Time of the evaluations that were detected in the step, in nanoseconds."""

    def add_work(self, samples: int | None, elements: int | None) -> None:
        """Add a batch of ``samples`` samples and ``elements`` elements that was loaded."""
        before = self.work
        self.work = _sum(before[0], samples), _sum(before[1], elements), before[2]

    def add_model_work(self, elements: int | None) -> None:
        """Add ``elements`` elements that were given to the model."""
        before = self.work
        self.work = before[0], before[1], _sum(before[2], elements)

    def tag(self, tag: str) -> None:
        """Add ``tag`` to the step, if it is new and fewer than ``_MAX_TAGS`` are set."""
        tag = short(tag)
        if tag not in self.tags and len(self.tags) < _MAX_TAGS:
            self.tags.append(tag)


def _sum(total: int | None, more: int | None) -> int | None:
    if more is None:
        return total
    return more if total is None else total + more
