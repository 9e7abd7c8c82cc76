"""What a step worked on, and the words for what happened in it."""

from __future__ import annotations

from typing import Final

from rankscope.profiler.sections import short

_MAX_TAGS: Final = 8


class StepWork:
    """Of the current step."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.work: tuple[int | None, int | None] = (None, None)
        """Samples and input elements so far."""

    def add_work(self, samples: int | None, elements: int | None) -> None:
        """The step works on a batch of so many samples and elements, too."""
        before = self.work
        self.work = _sum(before[0], samples), _sum(before[1], elements)

    def tag(self, tag: str) -> None:
        """``tag`` happens in the step."""
        tag = short(tag)
        if tag not in self.tags and len(self.tags) < _MAX_TAGS:
            self.tags.append(tag)


def _sum(total: int | None, more: int | None) -> int | None:
    if more is None:
        return total
    return more if total is None else total + more
