"""The analyses of the runs that are followed: what has been read of them is not read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from rankscope.alerts.watch.past import StepPast, read_past
from rankscope.analysis.hang.result import HangReport
from rankscope.analysis.hung_run import hung_report
from rankscope.analysis.online import OnlineAnalysis
from rankscope.analysis.result import Analysis


class Following:
    """One ``OnlineAnalysis`` per run that goes on, and its past. ``clock``: seconds since 1970."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._runs: dict[Path, tuple[OnlineAnalysis, StepPast]] = {}

    def update(self, run: Path) -> Analysis:
        """The analysis of what there is of a run by now. Raises ``RankscopeError``."""
        followed, _ = self._followed(run)
        try:
            return followed.update()
        except BaseException:
            # What was taken in by then is not known to be whole.
            self._runs.pop(run, None)
            raise

    def past(self, run: Path, *, read: bool = False) -> StepPast | None:
        """How its steps went so far; ``None`` before the first update. ``read``: from its files then. Raises ``InputError``."""
        followed = self._runs.get(run)
        if followed is not None:
            return followed[1]
        return read_past(run) if read else None

    def hang(self, run: Path, fresh: bool) -> HangReport | None:
        """Who hung it, from the dumps in it; ``fresh``: no rank has made a step since they were taken. Raises as ``update``."""
        followed, _ = self._followed(run)
        try:
            return hung_report(followed.read(), fresh=fresh)
        except BaseException:
            self._runs.pop(run, None)
            raise

    def keep(self, runs: Collection[Path]) -> None:
        """Keep nothing of other runs than these."""
        self._runs = {run: followed for run, followed in self._runs.items() if run in runs}

    def _followed(self, run: Path) -> tuple[OnlineAnalysis, StepPast]:
        if run not in self._runs:
            past = StepPast()
            self._runs[run] = (OnlineAnalysis(run, clock=self._clock, rows=past), past)
        return self._runs[run]


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
