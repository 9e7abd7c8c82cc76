"""How far something has got that takes long."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """What is being done, and how much of it is; ``of`` is 0 where that is not known."""

    what: str
    done: int = 0
    of: int = 0

    @property
    def sentence(self) -> str:
        """For people."""
        counted = f": {self.done:,} of {self.of:,}" if self.of else ""
        return f"{self.what[:1].upper()}{self.what[1:]}{counted}"


Tell = Callable[[Progress], None]
"""How whoever does it says so."""
