"""The analyses of the runs that are followed: what has been read of them is not read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from rankscope.alerts.past import StepPast, read_past
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
