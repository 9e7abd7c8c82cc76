"""Sums over the records of a rank, as its metrics need them. ``None``, or no entry, until there is a first value."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from rankscope.profiler.spool import label_text
from rankscope.runs.metrics import MAX_SCRIPT_METRICS, MAX_SECTIONS, STEP_BUCKETS_SECONDS, STEP_TAGS
from rankscope.runs.records import PHASES, PhaseTimes, StepBreakdown, StepRecord

_MICRO: Final = 1e-6
_OTHER: Final = "other"


@dataclass(slots=True)
class DurationHistogram:
    """Histogram: ``counts`` has the count of each single bucket; the last bucket is above every bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(STEP_BUCKETS_SECONDS) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration; a bound belongs to the bucket below it."""
        self.counts[bisect_left(STEP_BUCKETS_SECONDS, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True)
class LastWindow:
    """Sums over the steps of the last profiler window."""

    steps: int = 0
    last_step: int = -1
    communication_s: float = 0.0
    overlap_s: float = 0.0
    exposed_s: float = 0.0

    @property
    def overlap_ratio(self) -> float | None:
        """Share of the communication that was hidden; ``None`` without communication."""
        return self.overlap_s / self.communication_s if self.communication_s > 0 else None

    def add(self, breakdown: StepBreakdown) -> None:
        """Add one more step of the window."""
        self.steps += 1
        self.last_step = breakdown.step
        self.communication_s += breakdown.communication_us * _MICRO
        self.overlap_s += breakdown.overlap_us * _MICRO
        self.exposed_s += breakdown.exposed_communication_us * _MICRO


@dataclass(slots=True)
class Totals:
    """All sums, and the last value of each quantity that is not summed (``levels``), by its field name in ``StepRecord``."""

    steps: int = 0
    device_steps: int | None = None
    """Number of steps with times on a device; ``None``: no step had any."""
    last_step: int | None = None
    last_end_s: float | None = None
    durations: DurationHistogram = field(default_factory=DurationHistogram)
    phases_s: dict[str, float] = field(default_factory=dict)
    blocked_s: dict[str, float] = field(default_factory=dict)
    device_s: dict[str, float] = field(default_factory=dict)
    device_blocked_s: dict[str, float] = field(default_factory=dict)
    sections_s: dict[str, float] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    levels: dict[str, float] = field(default_factory=dict)
    script_metrics: dict[str, float] = field(default_factory=dict)
    """Last value of each of the script's own numbers."""
    tags: Counter[str] = field(default_factory=Counter)
    profiled: int = 0
    window_s: dict[str, float] = field(default_factory=dict)
    last_window: LastWindow | None = None

    def add_step(self, step: StepRecord) -> None:
        """Add a step."""
        wall_s = step.wall_us * _MICRO
        self.steps += 1
        self.last_step = step.step
        self.last_end_s = step.start_unix_ns / 1e9 + wall_s
        self.durations.add(step.step_us * _MICRO)
        _add_phases(self.phases_s, step.phases_us)
        _add_known(self.blocked_s, step.blocked_us, step.phases_us)
        if step.device_us is not None:
            self.device_steps = (self.device_steps or 0) + 1
            _add_phases(self.device_s, step.device_us)
            _add_known(self.device_blocked_s, step.device_blocked_us, step.device_us)
        for name, time_us in step.sections_us.items():
            section = label_text(name)
            has_room = section in self.sections_s or len(self.sections_s) < MAX_SECTIONS
            _add(self.sections_s, section if has_room else _OTHER, time_us * _MICRO)
        for name, value in step.metrics.items():
            label = label_text(name)
            if label in self.script_metrics or len(self.script_metrics) < MAX_SCRIPT_METRICS:
                self.script_metrics[label] = value
        for name in _SUMMED:
            if (amount := getattr(step, name)) is not None:
                _add(self.sums, name, amount)
        for name in _LEVELS:
            if (level := getattr(step, name)) is not None:
                self.levels[name] = level
        if step.tags:
            self.tags.update(tag for tag in set(step.tags) if tag in STEP_TAGS)
        self.profiled += step.profiled

    def add_window(self, breakdown: StepBreakdown) -> None:
        """Add the breakdown of a profiled step; consecutive steps belong to one window."""
        _add(self.window_s, "compute", breakdown.compute_us * _MICRO)
        _add(self.window_s, "overlap", breakdown.overlap_us * _MICRO)
        _add(self.window_s, "exposed_communication", breakdown.exposed_communication_us * _MICRO)
        _add(self.window_s, "exposed_memcpy", breakdown.exposed_memcpy_us * _MICRO)
        _add(self.window_s, "idle", breakdown.idle_us * _MICRO)
        if self.last_window is None or breakdown.step != self.last_window.last_step + 1:
            self.last_window = LastWindow()
        self.last_window.add(breakdown)


_SUMMED: Final = ("cpu_us", "run_queue_us", "gc_us", "samples", "tokens", "input_elements", "flops")
_LEVELS: Final = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "allocator_retries", "resident_bytes")


def _add(sums: dict[str, float], name: str, value: float) -> None:
    sums[name] = sums.get(name, 0) + value


def _add_phases(sums: dict[str, float], times: PhaseTimes) -> None:
    for phase, time_us in zip(PHASES, _by_phase(times), strict=True):
        if time_us is not None:
            sums[phase] = sums.get(phase, 0) + time_us * _MICRO


def _by_phase(times: PhaseTimes) -> tuple[float | None, ...]:
    return times.data, times.h2d, times.forward, times.backward, times.optimizer, times.between_steps


def _add_known(sums: dict[str, float], blocked: PhaseTimes | None, phases: PhaseTimes) -> None:
    """Add blocked times. If the step has any, an observed phase without blocked time counts as zero, not as unknown."""
    if blocked is None:
        return
    for phase, time_us, whole_us in zip(PHASES, _by_phase(blocked), _by_phase(phases), strict=True):
        if time_us is not None or whole_us is not None:
            sums[phase] = sums.get(phase, 0) + (time_us or 0.0) * _MICRO
