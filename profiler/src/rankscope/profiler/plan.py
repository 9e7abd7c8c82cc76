"""Choice of the profiled steps: known to every rank from the settings, or chosen by one rank for all of them.

Pure: results depend only on the times and the ranks' reports that callers pass in. ``coordination`` exchanges reports and
windows between the ranks, as files.
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
FIRST_DEVICE_WINDOW_US: Final = 1e6
"""Assumed cost of the first window on a device, which also loads the profiling library of the device."""
DEVICE_GAP_STEPS: Final = 12
"""Steps between a window on a device and a capture: where the profiling library is detached after each, that takes some."""
CACHE_SECONDS: Final = 60.0
"""Longest time for which a client of NFS sees an old version of a file that was replaced."""
_REPORT_SECONDS: Final = 30.0
REPORTS_PER_SECOND: Final = 20.0
"""Largest number of reports that all ranks together write, and that rank 0 reads, per second."""

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
    def of(cls, settings: RecorderSettings, *, on_device: bool) -> Self:
        """Return the schedule of the settings.

        Where the budget decides, only the first window is known in advance; on a device not even that one, because it costs more
        than the budget of the first steps.
        """
        announced = on_device and settings.window_every is None
        return cls(settings.window_first, settings.window_every or 0, 0 if announced else settings.window_steps)

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
        nearest_window = self._near(first)
        if nearest_window is None or nearest_window > first + steps:
            return first
        first = nearest_window + self._length + 1
        nearest_window = self._near(first)
        return first if nearest_window is None or nearest_window > first + steps else None

    def _near(self, step: int) -> int | None:
        """Return the first step of the first scheduled window that ends at ``step - 1`` or later."""
        behind = step - self._length - self.first
        if behind <= 0:
            return self.first
        return self.first + -(-behind // self.every) * self.every if self.every else None


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of a rank as its helper reports it. Its fields are bounded, because other users may be able to write the file."""

    rank: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    unix_ns: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """Time of the report."""
    clock: Annotated[str, msgspec.Meta(max_length=256)]
    """Name that all ranks on one kernel share."""
    step: _Count
    """Last step that the rank has recorded."""
    step_us: Annotated[float, msgspec.Meta(gt=0, le=1e18)] | None = None
    """Median duration of the rank's recent steps without the profiler; ``None``: there were too few."""
    pace_us: Annotated[float, msgspec.Meta(gt=0, le=1e18)] | None = None
    """Mean time from one of these steps to the next, long ones included; ``None``: as above."""
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


def affordable_from(report: RankReport, budget: float, window_us: float) -> float:
    """Return the step at which ``budget`` of this rank's time covers its cost so far and a window that costs ``window_us``."""
    owed = report.spent_us + window_us - budget * report.trained_us
    if owed <= 0:
        return float(report.step)
    room = report.room_us(budget)
    return report.step + owed / room if room > 0 else math.inf


def poll_seconds(world_size: int, ahead_seconds: float) -> float:
    """Return the seconds between two readings of a coordinator file by a rank.

    One second, or a quarter of ``ahead_seconds`` if that is shorter; longer for many ranks, to limit all to 200 readings a
    second.
    """
    return max(min(1.0, ahead_seconds / 4), world_size / 200)


def report_seconds(world_size: int) -> float:
    """Return the seconds between two reports of a rank; longer for many ranks, to limit what all write together."""
    return max(_REPORT_SECONDS, world_size / REPORTS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class _ReceivedReport:
    report: RankReport
    made_at: float
    """Monotonic time of the report, from the clocks of both hosts."""
    received_at: float


@dataclass(slots=True)
class Planner:
    """Planner of windows for all ranks. ``now`` is a monotonic time in seconds throughout.

    A window starts at least ``ahead_seconds`` and ``ahead_steps`` after every rank's current step, so that all ranks receive
    the announcement first; on a single host a third of ``ahead_seconds`` suffices. Between two reports of a rank, its step is
    extrapolated. ``by_budget``: windows come as often as ``budget`` allows on the rank where they cost most; otherwise only
    requested windows are chosen. ``on_device``: the first window is expected to cost ``FIRST_DEVICE_WINDOW_US``.
    """

    schedule: Schedule
    window_steps: int
    world_size: int
    budget: float
    by_budget: bool
    on_device: bool
    ahead_seconds: float
    ahead_steps: int
    _received: dict[int, _ReceivedReport] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _began: float | None = None
    _last_first: int | None = None
    _last_end: int | None = None
    _captured_at: float | None = None

    @classmethod
    def of(cls, settings: RecorderSettings, world_size: int, *, on_device: bool) -> Self:
        """Return a planner configured by the settings."""
        return cls(
            schedule=Schedule.of(settings, on_device=on_device),
            window_steps=settings.window_steps,
            world_size=world_size,
            budget=settings.budget,
            by_budget=settings.window_every is None and settings.window_steps > 0,
            on_device=on_device,
            ahead_seconds=settings.plan_ahead_seconds,
            ahead_steps=settings.plan_ahead_steps,
        )

    @property
    def period(self) -> float:
        """Seconds between two readings of an announcement by a rank."""
        return poll_seconds(self.world_size, self.ahead_seconds)

    @property
    def capture_seconds(self) -> float:
        """Least number of seconds from one capture to the next: 30 s with the default ``ahead_seconds``."""
        return 3 * self.ahead_seconds

    def report(self, report: RankReport, now: float, unix_ns: int) -> None:
        """Store the report of a rank, which was made at or before ``unix_ns``; the same report may be passed again."""
        if self._began is None:
            self._began = now
        last = self._received.get(report.rank)
        if report.rank >= self.world_size or (last is not None and last.report == report):
            return
        # Clocks of hosts may differ: no report is older than its interval and the caches of a file system make it.
        age = (unix_ns - report.unix_ns) / 1e9
        age = min(max(0.0, age), report_seconds(self.world_size) + CACHE_SECONDS)
        self._received[report.rank] = _ReceivedReport(report, now - age, now)
        self._ended.discard(report.rank)

    def end(self, rank: int) -> None:
        """Stop waiting for reports of a rank that has ended or is no longer recorded."""
        self._received.pop(rank, None)
        self._ended.add(rank)

    def resume(self, first: int, steps: int) -> None:
        """Continue after a window that an earlier planner of the same attempt chose."""
        if self._last_first is None or first > self._last_first:
            self._last_first, self._last_end = first, first + steps - 1

    def due(self, now: float, unix_ns: int) -> PlannedWindow | None:
        """Return the next window that the budget allows, once it is time to announce it; each is returned once."""
        reach = self._reach(now)
        if not self.by_budget or reach is None or not self._may_choose(now):
            return None
        front, ahead = reach
        reports = [report for report in self._reports(now) if report.step_us is not None]
        wanted = max(self._spaced(reports), *(self._affordable(report) for report in reports))
        # Do not announce early: the cost of windows may be known better later.
        if wanted > front + 2 * ahead:
            return None
        return self._choose(max(math.ceil(wanted), front + ahead), self.window_steps, unix_ns)

    def _spaced(self, reports: list[RankReport]) -> float:
        """Return the earliest start of the next window by the one before it."""
        costed = [report for report in reports if report.window_us is not None] or reports
        last = self._last_first
        if last is None:
            if not self.schedule.steps:
                return self.schedule.first
            last = self.schedule.first
        return last + max(spacing(report, self.budget) for report in costed)

    def _affordable(self, report: RankReport) -> float:
        unknown_us = FIRST_DEVICE_WINDOW_US if self.on_device else 0.0
        return affordable_from(report, self.budget, unknown_us if report.window_us is None else report.window_us)

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
            first = max(first, self._last_end + (DEVICE_GAP_STEPS if self.on_device else 1) + 1)
        clear = self.schedule.clear(first, steps)
        if clear is None:
            return "the schedule of profiler windows leaves no room between two of them for one of this length"
        self._captured_at = now
        return self._choose(clear, steps, unix_ns, request=request, ranks=named, keep_trace=keep_trace)

    def _refusal(self, steps: int, named: list[int] | None, now: float) -> str | None:
        if self.window_steps <= 0:
            return "profiler windows are switched off in this job (--window-steps 0); only --flight-recorder works"
        if not 0 < steps <= MAX_STEPS:
            return f"a capture is 1 to {MAX_STEPS} steps, not {steps}"
        if named is not None and (not named or named[0] < 0 or named[-1] >= self.world_size):
            return f"no such rank: this job has ranks 0 to {self.world_size - 1}"
        if self._captured_at is not None and (pause_s := self._captured_at + self.capture_seconds - now) > 0:
            return f"there was another capture a moment ago; ask again in {math.ceil(pause_s)} s"
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
        self._last_first, self._last_end = first, first + steps - 1
        return PlannedWindow(
            first=first,
            steps=steps,
            reason="schedule" if request is None else "capture",
            request=request,
            ranks=ranks,
            keep_trace=keep_trace,
            chosen_unix_ns=unix_ns,
        )

    def _reports(self, now: float) -> list[RankReport]:
        """Return the last report of each rank that still reports."""
        return [received.report for received in self._live(now)]

    def _live(self, now: float) -> list[_ReceivedReport]:
        # A killed rank leaves its last report behind.
        limit = now - 3 * report_seconds(self.world_size) - CACHE_SECONDS
        return [received for received in self._received.values() if received.received_at >= limit]

    def _reach(self, now: float) -> tuple[int, int] | None:
        """Return (step that the foremost rank may have reached, steps to stay ahead of it).

        ``None`` while no rank has reported a step time.
        """
        paced = [(received, received.report.step_us / 1e6) for received in self._live(now) if received.report.step_us is not None]
        if not paced:
            return None
        # By the median step time, a rank with rare long steps would seem to be far ahead of its last report.
        front = max(
            received.report.step + (now - received.made_at) / max(step_s, (received.report.pace_us or 0.0) / 1e6)
            for received, step_s in paced
        )
        ahead_seconds = self.ahead_seconds / 3 if self._on_one_host else self.ahead_seconds
        # An announcement is read within one period, or two if a reading fails.
        seconds = max(ahead_seconds, 2.5 * self.period)
        ahead = max(self.ahead_steps, math.ceil(seconds / min(step_s for _, step_s in paced)))
        return math.ceil(front) + 1, ahead

    @property
    def _on_one_host(self) -> bool:
        """True if no file system is known to lie between the ranks: all have reported from the same kernel."""
        clocks = {received.report.clock for received in self._received.values()}
        return len(clocks) == 1 and len(self._received) + len(self._ended) >= self.world_size

    def _missing(self, now: float) -> bool:
        """Return whether the first report of some ranks is still to be expected."""
        assert self._began is not None
        patience = 3 * self.ahead_seconds + self.world_size / REPORTS_PER_SECOND
        return len(self._received) + len(self._ended) < self.world_size and now - self._began < patience

    def _may_choose(self, now: float) -> bool:
        """Return whether the previous window is over on all ranks and its cost has been reported."""
        if self._missing(now):
            return False
        end = self.schedule.first + self.schedule.steps - 1 if self._last_end is None else self._last_end
        if self._last_end is None and not self.schedule.steps:
            return True
        # The training thread publishes the cost of a window a step after its end.
        return min(report.step for report in self._reports(now)) > end + 1
