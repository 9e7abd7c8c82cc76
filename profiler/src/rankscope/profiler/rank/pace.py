"""Choice of the steps that get marks on the device, so that short steps do not cost more than the recorder may take."""

from __future__ import annotations

from typing import Final

EVERY_STEPS: Final = 32
"""Number of steps from one decision to the next."""
SHARE_OF_BUDGET: Final = 0.3
"""Share of the recorder's budget that recording may cost in steps without windows."""
_SLOWEST: Final = 64
"""Largest number of steps from one with marks to the next."""


class MarkPace:
    """Which steps get marks: each ``every``-th by its number.

    ``every`` is a power of two, so ranks that chose different ones have the steps of the slowest in common. Marks cost 0.2 to
    0.4 ms of the training thread on an H200 and a virtual machine's CPU, most of it calls of the driver.
    """

    def __init__(self, budget: float) -> None:
        self.every = 1
        self._share = SHARE_OF_BUDGET * budget
        self._cost_ns = self._wall_ns = 0
        self._before: tuple[int, int] | None = None
        """Cost so far and time, at the end of the last step; ``None`` where the time since then has other work in it."""

    def due(self, number: int, cost_ns: int, ended: int, *, usual: bool, wakes: bool) -> bool:
        """Return whether step ``number``, which begins at ``ended``, gets marks.

        ``cost_ns``: cost of the recorder so far. ``usual``: the step before had no window. ``wakes``: work for windows follows.
        """
        if usual and self._before is not None:
            self._cost_ns += cost_ns - self._before[0]
            self._wall_ns += ended - self._before[1]
        self._before = None if wakes else (cost_ns, ended)
        if number % EVERY_STEPS == 0 and self._wall_ns > 0:
            share, self._cost_ns, self._wall_ns = self._cost_ns / self._wall_ns, 0, 0
            if share > self._share:
                self.every = min(2 * self.every, _SLOWEST)
            elif share < self._share / 4:
                # Twice the marks cost at most twice as much: the limit is not exceeded at once.
                self.every = max(self.every // 2, 1)
        return number % self.every == 0
