"""Verdicts about runs: one run after the other is analysed in a child process, and no caller waits for it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from rankscope.alerts.receive.bounded_child import BoundedChild
from rankscope.alerts.receive.verdicts.known_runs import KnownRun, KnownRuns, RunName, UnmatchedRunError
from rankscope.alerts.receive.verdicts.run_verdict import RunVerdict, run_verdict_of
from rankscope.analysis.result.analysis import Analysis

FRESH_S: Final = 30.0
"""Lifetime of a verdict: the alerts of one problem arrive together. If alerts wait longer, that time counts: one delivery may be
about many runs, and the first verdict must stay valid until the last one is ready.
"""
LIMIT_S: Final = 60.0
"""Time limit for one run: others wait meanwhile. A verdict after the alerts' wait is delivered late."""
MAX_QUEUED: Final = 64
_MOST_CACHED: Final = 64


class Analyst:
    """Analyser of runs. Alerts wait ``waits_s`` seconds for its verdicts.

    ``ready`` is called after each analysis, from the analyst's thread.
    """

    def __init__(self, runs: KnownRuns, *, waits_s: float, ready: Callable[[], object]) -> None:
        self._runs = runs
        self._limit_s = max(LIMIT_S, waits_s)
        self._fresh_s = max(FRESH_S, waits_s)
        self._ready = ready
        self._changed = threading.Condition()
        self._queue: dict[RunName, None] = {}
        self._cached_verdicts: OrderedDict[RunName, tuple[float, RunVerdict]] = OrderedDict()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="analyst", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further analysis. A running one ends with the process."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def verdict(self, named: RunName) -> RunVerdict | None:
        """Return the verdict about a run; ``None`` while its analysis is pending: call again."""
        with self._changed:
            cached = self._cached_verdicts.get(named)
            if cached is not None and time.monotonic() - cached[0] < self._fresh_s:
                return cached[1]
            if named not in self._queue:
                if len(self._queue) >= MAX_QUEUED:
                    return RunVerdict(problem="alerts about too many runs arrived at once to analyse them all", late=True)
                self._queue[named] = None
                self._changed.notify()
        return None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                named = next(iter(self._queue))
            try:
                run_verdict = self._analyse(named)
            except Exception as error:  # noqa: BLE001 - a damaged run must not stop the analysis of the next one
                run_verdict = RunVerdict(problem=f"the run cannot be analysed: {type(error).__name__}")
            with self._changed:
                del self._queue[named]
                self._cached_verdicts.pop(named, None)
                self._cached_verdicts[named] = (time.monotonic(), run_verdict)
                while len(self._cached_verdicts) > _MOST_CACHED:
                    self._cached_verdicts.popitem(last=False)
            self._ready()

    def _analyse(self, named: RunName) -> RunVerdict:
        try:
            run = self._runs.find(named)
        except UnmatchedRunError as error:
            return RunVerdict(problem=str(error), unknown=True)
        return msgspec.structs.replace(self._analysed(run), by_name=not named.run_id)

    def _analysed(self, run: KnownRun) -> RunVerdict:
        ended = BoundedChild(["analyze", str(run.path), "--format", "json"], limit_s=self._limit_s).wait()
        if ended.status is None:
            return RunVerdict(problem=f"the run could not be analysed within {self._limit_s:g} s", run_id=run.run_id)
        if ended.status != 0:
            return RunVerdict(problem=f"the run cannot be analysed: {ended.error or f'status {ended.status}'}", run_id=run.run_id)
        run_verdict = run_verdict_of(msgspec.json.decode(ended.output, type=Analysis))
        if run_verdict.run_id and run_verdict.run_id != run.run_id:
            return RunVerdict(problem="the run was replaced by another while it was analysed")
        return run_verdict
