"""The analyses of the runs that are followed: what has been read of them is not read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from rankscope.analysis.online import OnlineAnalysis
from rankscope.analysis.result import Analysis


class Following:
    """One ``OnlineAnalysis`` per run that goes on. ``clock``: seconds since 1970."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._runs: dict[Path, OnlineAnalysis] = {}

    def update(self, run: Path) -> Analysis:
        """The analysis of what there is of a run by now. Raises ``RankscopeError``."""
        followed = self._runs.setdefault(run, OnlineAnalysis(run, clock=self._clock))
        try:
            return followed.update()
        except BaseException:
            # What was taken in by then is not known to be whole.
            self._runs.pop(run, None)
            raise

    def keep(self, runs: Collection[Path]) -> None:
        """Keep nothing of other runs than these."""
        self._runs = {run: followed for run, followed in self._runs.items() if run in runs}
