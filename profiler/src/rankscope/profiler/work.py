"""Amount of work in a step, and its tags."""

from __future__ import annotations

from typing import Final

from rankscope.profiler.sections import short

_MAX_TAGS: Final = 8


class StepWork:
    """Work and tags of the current step."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.work: tuple[int | None, int | None] = (None, None)
        """Samples and input elements of the step so far."""

    def add_work(self, samples: int | None, elements: int | None) -> None:
        """Add a batch of ``samples`` samples and ``elements`` input elements to the step."""
        before = self.work
        self.work = _sum(before[0], samples), _sum(before[1], elements)

    def tag(self, tag: str) -> None:
        """Add ``tag`` to the step, if it is new and fewer than ``_MAX_TAGS`` are set."""
        tag = short(tag)
        if tag not in self.tags and len(self.tags) < _MAX_TAGS:
            self.tags.append(tag)


def _sum(total: int | None, more: int | None) -> int | None:
    if more is None:
        return total
    return more if total is None else total + more
