"""Progress of a long task."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rankscope.base.text import sentence_case


class Progress(msgspec.Struct, frozen=True):
    """Phase of a task, with ``done`` items ``of`` a total; ``of`` is 0 where the total is not known."""

    activity: str
    done: int = 0
    of: int = 0

    @property
    def sentence(self) -> str:
        """Progress as text for the user."""
        counted = f": {self.done:,} of {self.of:,}" if self.of else ""
        return f"{sentence_case(self.activity)}{counted}"


OnProgress = Callable[[Progress], None]
"""Receiver of the progress of a task."""
