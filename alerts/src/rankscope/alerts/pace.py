"""How often a run may be analysed, so that watching costs a small share of one processor, however large the run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

SHARE: Final = 0.025
"""Of the time of one processor, for the analyses of all runs together."""
SHARE_WHILE_PENDING: Final = 0.08
"""While something is about to fire: then waiting costs more than looking."""
LONGEST_PAUSE_S: Final = 300.0


class Pace:
    """``share`` and ``while_pending``; 0: as often as anybody likes."""

    def __init__(self, share: float = SHARE, while_pending: float = SHARE_WHILE_PENDING) -> None:
        self._share = share
        self._while_pending = while_pending
        self._last: dict[Path, tuple[float, float | None]] = {}
        """When a run was analysed last, and the processor time that took; ``None``: it was the first time, which is dearer."""

    def due(self, run: Path, now_s: float, *, runs: int, pending: bool) -> bool:
        """Whether one of so many ``runs`` may be analysed again."""
        last = self._last.get(run)
        share = self._while_pending if pending else self._share
        if last is None or last[1] is None or share <= 0:
            return True
        return now_s - last[0] >= min(LONGEST_PAUSE_S, last[1] * runs / share)

    def analysed(self, run: Path, now_s: float, cost_s: float) -> None:
        """It was, and took so much of a processor."""
        self._last[run] = (now_s, cost_s if run in self._last else None)

    def keep(self, runs: Collection[Path]) -> None:
        """Remember nothing of other runs than these."""
        self._last = {run: last for run, last in self._last.items() if run in runs}
