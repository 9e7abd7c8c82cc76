"""Choice of the steps that get marks on the device, so that they cost a small part of short steps."""

from __future__ import annotations

import math
from typing import Final

MARK_NS: Final = 15_000
"""Time that a mark costs the training thread: recording, querying and reading an event.

An estimate from the 36 us per mark of an H200 with virtual CPUs, when the thread also queried each mark and evaluated the step
(``benchmarks/results/2026-11-27-gpu.json``); not yet measured since. Ranks do not measure it: a slow host would choose fewer
steps than others, and be compared in few."""
SHARE_OF_BUDGET: Final = 0.3
"""Share of the recorder's budget that marks may cost."""
EVERY_STEPS: Final = 32
"""Number of steps from one decision to the next."""
MAX_STRIDE: Final = 64


class MarkSampling:
    """Steps that get marks: one of each ``stride`` steps, at a place in them that looks random.

    Fixed places would meet what a script does every 50 or 64 steps always or never. ``stride`` is a power of two, and the chosen
    steps of a larger one are among those of a smaller one: ranks that differ have steps in common.
    """

    def __init__(self, budget: float) -> None:
        self.stride = 1
        self._share = SHARE_OF_BUDGET * budget
        self._since: int | None = None
        self._marks = 0

    def chosen(self, number: int, at: int, marks: int) -> bool:
        """Return whether step ``number``, which begins at ``at`` nanoseconds, gets marks.

        ``marks``: number of marks in the step before, 0 if it had none.
        """
        self._marks = max(self._marks, marks)
        if number % EVERY_STEPS == 0:
            if self._since is not None and at > self._since and self._marks:
                needed = EVERY_STEPS * self._marks * MARK_NS / (self._share * (at - self._since))
                self.stride = min(2 ** max(0, math.ceil(math.log2(needed))), MAX_STRIDE)
                self._marks = 0
            self._since = at
        return self.stride == 1 or is_chosen(number, self.stride)


def is_chosen(number: int, stride: int) -> bool:
    """Return whether step ``number`` is the chosen one of its ``stride`` steps: of each pair of halves, a hash takes one."""
    size = 2
    while size <= stride:
        block, half = divmod(number, size)
        if (2 * half >= size) != bool((block * 0x9E3779B1 + size * 0x85EBCA6B) >> 15 & 1):
            return False
        size *= 2
    return True
