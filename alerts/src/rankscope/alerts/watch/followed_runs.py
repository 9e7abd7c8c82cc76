"""Incremental analyses of active runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from rankscope.alerts.watch.conditions.step_past import StepPast, read_past
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.online import NewSteps, OnlineAnalysis
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.verdict.hung_run import hung_report


class FollowedRuns:
    """One ``OnlineAnalysis`` and one ``StepPast`` per active run. ``clock`` returns seconds since 1970."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._runs: dict[Path, tuple[OnlineAnalysis, StepPast]] = {}

    def update(self, run: Path) -> Analysis:
        """Analyse the current records of a run. Raises ``RankscopeError``."""
        followed, _ = self._followed(run)
        try:
            return followed.update()
        except BaseException:
            # The state may be incomplete after an error.
            self._runs.pop(run, None)
            raise

    def past(self, run: Path, /, *, read: bool = False) -> StepPast | None:
        """Return the past steps of a run; before the first update ``None``, or with ``read`` those in its files.

        Raises ``InputError``.
        """
        followed = self._runs.get(run)
        if followed is not None:
            return followed[1]
        return read_past(run) if read else None

    def judge_since(self, run: Path, step: int, /, *, at_least: int) -> NewSteps | None:
        """Judge the steps of a followed run from ``step`` on; ``None`` for fewer than ``at_least`` steps."""
        followed = self._runs.get(run)
        return None if followed is None else followed[0].judge_since(step, at_least=at_least)

    def hang(self, run: Path, fresh: bool, /) -> HangReport | None:
        """Diagnose a hang from the dumps in a run. ``fresh``: no rank has made a step since they were taken.

        Raises ``RankscopeError``.
        """
        followed, _ = self._followed(run)
        try:
            return hung_report(followed.read(), fresh=fresh)
        except BaseException:
            self._runs.pop(run, None)
            raise

    def keep(self, runs: Collection[Path]) -> None:
        """Forget all other runs."""
        self._runs = {run: followed for run, followed in self._runs.items() if run in runs}

    def _followed(self, run: Path) -> tuple[OnlineAnalysis, StepPast]:
        if run not in self._runs:
            past = StepPast()
            self._runs[run] = (OnlineAnalysis(run, clock=self._clock, rows=past), past)
        return self._runs[run]
