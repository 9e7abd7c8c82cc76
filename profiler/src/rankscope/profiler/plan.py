"""Choice of the profiled steps: known to every rank from the settings, or chosen by one rank for all of them.

Pure: results depend only on the time and the ranks' reports that callers pass in. ``coordination`` carries reports and windows
between the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final, Self

import msgspec

from rankscope.profiler.settings import RecorderSettings
from rankscope.runs.records import PlannedWindow

MAX_STEPS: Final = 50
"""Largest number of steps in one announced window: a longer trace does not fit in local memory."""
UNKNOWN_SPACING: Final = 1000
"""Steps from one window to the next while no rank has reported the cost of a window."""
_GONE_PERIODS: Final = 10

_Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Windows that every rank knows without an announcement: ``steps`` steps from step ``first``, then every ``every`` steps.

    ``every`` 0: only the first window. ``steps`` 0: no windows.
    """

    first: int
    every: int
    steps: int

    @classmethod
    def of(cls, settings: RecorderSettings) -> Self:
        """Return the schedule of the settings; where the budget decides, only the first window is known in advance."""
        return cls(settings.window_first, settings.window_every or 0, settings.window_steps)

    def starting(self, step: int) -> int:
        """Return the number of steps of the window that starts with ``step``; 0: none starts there."""
        into = step - self.first
        if into < 0 or self.steps <= 0 or (into % self.every if self.every else into):
            return 0
        return self._length

    def after(self, step: int) -> int | None:
        """Return the first step of the first window after ``step``; ``None``: there is none."""
        if self.steps <= 0:
            return None
        if step < self.first:
            return self.first
        return self.first + ((step - self.first) // self.every + 1) * self.every if self.every else None

    @property
    def _length(self) -> int:
        return min(self.steps, self.every) if self.every else self.steps

    def clear(self, first: int, steps: int) -> int | None:
        """Return the earliest start, from ``first`` on, of ``steps`` steps that are a step apart from all scheduled windows.

        ``None``: there is no room between the scheduled windows.
        """
        if self.steps <= 0:
            return first
        near = self._near(first)
        if near is None or near > first + steps:
            return first
        first = near + self._length + 1
        near = self._near(first)
        return first if near is None or near > first + steps else None

    def _near(self, step: int) -> int | None:
        """Return the first step of the first scheduled window that ends at ``step - 1`` or later."""
        behind = step - self._length - self.first
        if behind <= 0:
            return self.first
        return self.first + -(-behind // self.every) * self.every if self.every else None


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of a rank as reported by its helper. Its fields are bounded, because it comes over the network."""

    rank: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    step: _Count
    """Last step that the rank has recorded."""
    step_us: Annotated[float, msgspec.Meta(gt=0, le=1e18)] | None = None
    """Median duration of the rank's recent steps without the profiler; ``None``: there were too few."""
    always_on_us: _Microseconds = 0.0
    """Cost of the recorder to the training thread per step, without windows."""
    window_us: _Microseconds | None = None
    """Cost of the rank's last window; ``None``: it has had none."""
    spent_us: _Microseconds = 0.0
    """Total cost of the recorder to the rank so far."""
    trained_us: _Microseconds = 0.0
    """Total duration of the rank's steps so far."""

    def room_us(self, budget: float) -> float:
        """Return the time per step that ``budget`` leaves for windows; 0 or less: none."""
        return budget * (self.step_us or 0.0) - self.always_on_us


def spacing(report: RankReport, budget: float) -> float:
    """Return the steps between window starts at which this rank's total cost equals the budget; infinite: no spacing does.

    (always_on * spacing + window) / (step * spacing) = budget, solved for the spacing.
    """
    if report.window_us is None:
        return float(UNKNOWN_SPACING)
    room = report.room_us(budget)
    return report.window_us / room if room > 0 else math.inf


def indebted_until(report: RankReport, budget: float) -> float:
    """Return the step at which the budget of this rank's steps so far and until then covers its cost and another window."""
    owed = report.spent_us + (report.window_us or 0.0) - budget * report.trained_us
    if owed <= 0:
        return float(report.step)
    room = report.room_us(budget)
    return report.step + owed / room if room > 0 else math.inf


def exchange_seconds(world_size: int, ahead_seconds: float) -> float:
    """Return the seconds between two reports of a rank.

    One second, or a quarter of ``ahead_seconds`` if that is shorter; longer for many ranks, to limit all to 200 reports a second.
    """
    return max(min(1.0, ahead_seconds / 4), world_size / 200)


@dataclass(slots=True)
class _Heard:
    report: RankReport
    at: float


@dataclass(slots=True)
class Planner:
    """Planner of windows for all ranks. ``now`` is a monotonic time in seconds throughout.

    A window starts at least ``ahead_seconds`` and ``ahead_steps`` after every rank's current step, so that all ranks receive
    the announcement first. ``by_budget``: windows come as often as ``budget`` allows on the rank where they cost most; otherwise
    only requested windows are chosen.
    """

    schedule: Schedule
    world_size: int
    budget: float
    by_budget: bool
    ahead_seconds: float
    ahead_steps: int
    _heard: dict[int, _Heard] = field(default_factory=dict)
    _began: float | None = None
    _last_first: int | None = None
    _last_end: int | None = None
    _passed_at: float | None = None
    _captured_at: float | None = None

    @classmethod
    def of(cls, settings: RecorderSettings, world_size: int) -> Self:
        """Return a planner configured by the settings."""
        return cls(
            schedule=Schedule.of(settings),
            world_size=world_size,
            budget=settings.budget,
            by_budget=settings.window_every is None and settings.window_steps > 0,
            ahead_seconds=settings.plan_ahead_seconds,
            ahead_steps=settings.plan_ahead_steps,
        )

    @property
    def period(self) -> float:
        """Seconds between two reports of a rank."""
        return exchange_seconds(self.world_size, self.ahead_seconds)

    @property
    def capture_seconds(self) -> float:
        """Least number of seconds from one capture to the next: 30 s with the default ``ahead_seconds``."""
        return 3 * self.ahead_seconds

    def report(self, report: RankReport, now: float) -> None:
        """Store the report of a rank."""
        if self._began is None:
            self._began = now
        if report.rank < self.world_size:
            self._heard[report.rank] = _Heard(report, now)

    def due(self, now: float, unix_ns: int) -> PlannedWindow | None:
        """Return the next window that the budget allows, once it is time to announce it; each is returned once."""
        reach = self._reach(now)
        if not self.by_budget or reach is None or not self._may_choose(now):
            return None
        front, ahead = reach
        reports = [heard.report for heard in self._heard.values() if heard.report.step_us is not None]
        costed = [report for report in reports if report.window_us is not None] or reports
        last = self.schedule.first if self._last_first is None else self._last_first
        spaced = last + max(spacing(report, self.budget) for report in costed)
        wanted = max(spaced, *(indebted_until(report, self.budget) for report in reports))
        # Do not announce early: the cost of windows may be known better later.
        if wanted > front + 2 * ahead:
            return None
        return self._choose(max(math.ceil(wanted), front + ahead), self.schedule.steps, unix_ns)

    def capture(
        self, request: str, *, steps: int, ranks: Iterable[int] | None, keep_trace: bool, now: float, unix_ns: int
    ) -> PlannedWindow | str | None:
        """Return the window for a request, the reason for refusing it, or ``None``: too early to decide, retry later."""
        named = None if ranks is None else sorted(set(ranks))
        if (reason := self._refusal(steps, named, now)) is not None:
            return reason
        reach = self._reach(now)
        if reach is None or self._missing(now):
            return None
        first = sum(reach)
        if self._last_end is not None:
            first = max(first, self._last_end + 2)
        clear = self.schedule.clear(first, steps)
        if clear is None:
            return "the schedule of profiler windows leaves no room between two of them for one of this length"
        self._captured_at = now
        return self._choose(clear, steps, unix_ns, request=request, ranks=named, keep_trace=keep_trace)

    def _refusal(self, steps: int, named: list[int] | None, now: float) -> str | None:
        if self.schedule.steps <= 0:
            return "profiler windows are switched off in this job (--window-steps 0); only --flight-recorder works"
        if not 0 < steps <= MAX_STEPS:
            return f"a capture is 1 to {MAX_STEPS} steps, not {steps}"
        if named is not None and (not named or named[0] < 0 or named[-1] >= self.world_size):
            return f"no such rank: this job has ranks 0 to {self.world_size - 1}"
        if self._captured_at is not None and (left := self._captured_at + self.capture_seconds - now) > 0:
            return f"there was another capture a moment ago; ask again in {math.ceil(left)} s"
        return None

    def _choose(
        self,
        first: int,
        steps: int,
        unix_ns: int,
        *,
        request: str | None = None,
        ranks: list[int] | None = None,
        keep_trace: bool = False,
    ) -> PlannedWindow:
        self._last_first, self._last_end, self._passed_at = first, first + steps - 1, None
        return PlannedWindow(
            first=first,
            steps=steps,
            reason="schedule" if request is None else "capture",
            request=request,
            ranks=ranks,
            keep_trace=keep_trace,
            chosen_unix_ns=unix_ns,
        )

    def _reach(self, now: float) -> tuple[int, int] | None:
        """Return (step that the foremost rank may have reached, steps to stay ahead of it).

        ``None`` while no rank has reported a step time.
        """
        self._forget(now)
        paced = [(heard, heard.report.step_us / 1e6) for heard in self._heard.values() if heard.report.step_us is not None]
        if not paced:
            return None
        front = max(heard.report.step + min(now - heard.at, 3 * self.period) / step_s for heard, step_s in paced)
        # A report and its answer may be one period apart, or two if a message is lost.
        seconds = max(self.ahead_seconds, 2.5 * self.period)
        ahead = max(self.ahead_steps, math.ceil(seconds / min(step_s for _, step_s in paced)))
        return math.ceil(front) + 1, ahead

    def _forget(self, now: float) -> None:
        limit = now - max(60.0, _GONE_PERIODS * self.period)
        self._heard = {rank: heard for rank, heard in self._heard.items() if heard.at >= limit}

    def _missing(self, now: float) -> bool:
        """Return whether the first report of some ranks is still to be expected."""
        assert self._began is not None
        return len(self._heard) < self.world_size and now - self._began < 3 * self.ahead_seconds

    def _may_choose(self, now: float) -> bool:
        """Return whether the previous window is over on all ranks and its cost has been reported."""
        if self._missing(now):
            return False
        end = self.schedule.first + self.schedule.steps - 1 if self._last_end is None else self._last_end
        if min(heard.report.step for heard in self._heard.values()) <= end:
            return False
        if self._passed_at is None:
            self._passed_at = now
        return now - self._passed_at >= 2 * self.period
