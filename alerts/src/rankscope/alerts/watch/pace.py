"""The rate at which the analyses of active runs are repeated."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

SHARE: Final = 0.0075
"""Share of one CPU for the analyses of all runs together."""
SHARE_WHILE_PENDING: Final = 0.03
"""The same for a run with a pending alert, where a delay costs more than CPU time."""
LONGEST_PAUSE_S: Final = 300.0


class Pace:
    """Rate limit of analyses, as a share of one CPU: ``share``, or ``while_pending`` with a pending alert; 0: no limit."""

    def __init__(self, share: float = SHARE, while_pending: float = SHARE_WHILE_PENDING) -> None:
        self._share = share
        self._while_pending = while_pending
        self._last: dict[Path, tuple[float, float | None]] = {}
        """Time of the last analysis, and its CPU seconds; ``None`` for the first analysis, which costs more than later ones."""

    def due(self, run: Path, now_s: float, *, runs: int, pending: bool) -> bool:
        """Return whether a run, one of ``runs`` active ones, may be analysed again."""
        last = self._last.get(run)
        share = self._while_pending if pending else self._share
        if last is None or last[1] is None or share <= 0:
            return True
        return now_s - last[0] >= min(LONGEST_PAUSE_S, last[1] * runs / share)

    def analysed(self, run: Path, now_s: float, cost_s: float) -> None:
        """Record an analysis that took ``cost_s`` of CPU time."""
        self._last[run] = (now_s, cost_s if run in self._last else None)

    def keep(self, runs: Collection[Path]) -> None:
        """Forget all other runs."""
        self._last = {run: last for run, last in self._last.items() if run in runs}
