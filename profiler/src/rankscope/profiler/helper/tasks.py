"""Tasks of the helper besides writing records; a task that fails does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankscope.profiler.handover import Handover
from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline
from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.records import RankActivity, RankInfo, RunInfo, StepBreakdown, StepRecord


@dataclass(frozen=True, slots=True)
class HelperContext:
    """What a task needs to know of its rank, and where it reports problems.

    ``run`` returns the identity of the run as stored in its folder, ``info`` the current content of ``rank.json``. ``report``
    prints a message to stderr. ``begun`` returns whether this rank has its place in the run directory. ``baseline`` has each step
    before the tasks do.
    """

    handover: Handover
    scratch: Path
    run: Callable[[], RunInfo]
    info: Callable[[], RankInfo]
    begun: Callable[[], bool]
    report: Callable[[str], None]
    baseline: StepTimeBaseline
    activity: Callable[[], RankActivity | None] = lambda: None
    """Returns what the rank is doing while it stands still; ``None``: it goes on, or nothing is known."""


class HelperTask:
    """Base class of tasks. Methods run on the helper's main thread, which also empties the ring, so none may block."""

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval] = ()) -> None:
        """Handle a step of the rank. ``intervals``: its phases on the host, in the order of time."""

    def breakdown(self, breakdown: StepBreakdown) -> None:
        """Handle the breakdown of a profiled step."""

    def tick(self) -> None:
        """Do periodic work; called a few times a second."""

    def end(self, *, vanished: bool) -> None:
        """Handle the end of the rank; ``vanished``: it reported none. Not called if the helper is killed."""


class HelperTasks:
    """All tasks of one helper."""

    def __init__(self, tasks: Iterable[HelperTask], report: Callable[[str], None]) -> None:
        self._tasks = list(tasks)
        self._report = report

    def each(self, call: Callable[[HelperTask], None]) -> None:
        """Call a method of every task; a task that raises is ended and removed. Never raises."""
        for task in tuple(self._tasks):
            try:
                call(task)
            except Exception as error:  # noqa: BLE001  # no error may stop the records
                self._tasks.remove(task)
                with suppress(Exception):
                    # A stale file of the task, such as its metrics, would look as if the rank had stopped.
                    task.end(vanished=False)
                with suppress(Exception):
                    self._report(f"{type(task).__name__} failed ({type(error).__name__}: {error}); recording goes on without it")
