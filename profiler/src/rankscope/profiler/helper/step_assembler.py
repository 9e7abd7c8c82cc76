"""Join of a step's entry with the data that arrives later, into one record.

Device times arrive some steps later, each for one step. Context switches and the time in the run queue arrive with the last step
of a span of short steps (see ``rank.meters``), for the whole span. They are split in proportion to the time that the thread was
off its processor in each step, which includes waiting in the run queue; the parts add up to the reading.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from rankscope.profiler.entries import DeviceEntry, StepEntry, Usage, to_record, unpack_device, unpack_step
from rankscope.profiler.raw import unpack_raw, unpack_span
from rankscope.runs.records import StepRecord

MAX_HELD: Final = 64
"""Largest number of steps that wait for their device times; beyond it the oldest are written without."""
MAX_SECONDS: Final = 10.0
"""Longest wait of a step for its device times, plus three times its own duration: a hung device must not hide earlier steps."""
MAX_SPAN: Final = 1024
"""Largest number of steps per reading of the thread's usage; steps of longer spans are written without."""
SPAN_SECONDS: Final = 1.0
"""Longest wait of a step for the end of its span, because training may pause."""


class _Held:
    __slots__ = ("awaits", "awaits_usage", "device", "entry", "until", "usage", "usage_until")

    def __init__(self, entry: StepEntry, now: float) -> None:
        self.entry = entry
        self.device: DeviceEntry | None = None
        self.usage: Usage | None = None
        self.awaits = entry.awaits_device
        self.awaits_usage = entry.usage is None
        # The marks of a step are read at the end of one of the next two steps, which take about as long.
        self.until = now + MAX_SECONDS + 3 * entry.wall_ns / 1e9
        self.usage_until = now + SPAN_SECONDS


class StepAssembler:
    """Joiner that takes the rank's entries and returns complete records, in the order of their steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: deque[_Held] = deque()
        self._span: list[_Held] = []
        """Steps since the last reading of the thread's usage."""

    def step(self, payload: bytes) -> list[StepRecord]:
        """Add a step that has ended; return the complete records. Raises ``msgspec.DecodeError``."""
        return self._add(unpack_step(payload))

    def raw(self, payload: bytes) -> list[StepRecord]:
        """Add a raw step that has ended; return the complete records. Raises ``msgspec.DecodeError``."""
        return self._add(unpack_raw(payload))

    def _add(self, entry: StepEntry) -> list[StepRecord]:
        usage = entry.usage
        if usage is not None and usage.since == entry.step and not self._held and not entry.awaits_device:
            self._span.clear()
            return [to_record(entry, usage=usage)]
        held = _Held(entry, self._clock())
        self._held.append(held)
        self._span.append(held)
        if usage is not None:
            self._share(usage)
        elif len(self._span) > MAX_SPAN:
            self._end_span()
        if len(self._held) > MAX_HELD and self._held[0].awaits:
            self._held[0].awaits = False
        return self._complete()

    def span(self, payload: bytes) -> list[StepRecord]:
        """Add the usage of the last steps; return the complete records. Raises ``msgspec.DecodeError``."""
        last, usage = unpack_span(payload)
        if self._span and self._span[-1].entry.step == last:
            self._share(usage)
        return self._complete()

    def _share(self, usage: Usage) -> None:
        """Split ``usage`` over the steps since ``usage.since``."""
        span = [held for held in self._span if held.entry.step >= usage.since]
        # If a step is missing, its share is not known.
        if span and len(span) == span[-1].entry.step - usage.since + 1:
            weights = [max(held.entry.wall_ns - held.entry.cpu_ns, 0) + 1 for held in span]
            queued = None if usage.run_queue_ns is None else _shares(usage.run_queue_ns, weights)
            voluntary = _shares(usage.voluntary_switches, weights)
            involuntary = _shares(usage.involuntary_switches, weights)
            for at, held in enumerate(span):
                held.usage = Usage(held.entry.step, None if queued is None else queued[at], voluntary[at], involuntary[at])
        self._end_span()

    def _end_span(self) -> None:
        for held in self._span:
            held.awaits_usage = False
        self._span.clear()

    @property
    def unshared(self) -> int:
        """Number of last steps that wait for a reading of the thread's usage."""
        count = 0
        for held in reversed(self._held):
            if not held.awaits_usage:
                break
            count += 1
        return count

    def device(self, payload: bytes) -> list[StepRecord]:
        """Add the device times of a step; return the complete records. Raises ``msgspec.DecodeError``."""
        device = unpack_device(payload)
        for held in self._held:
            if held.entry.step == device.step:
                held.device, held.awaits = device, False
                break
        return self._complete()

    def overdue(self) -> list[StepRecord]:
        """Return the records that have waited long enough; to be called periodically."""
        if self._held:
            now = self._clock()
            if now > self._held[0].until:
                self._held[0].awaits = False
            for held in self._held:
                if now > held.usage_until:
                    held.awaits_usage = False
        return self._complete()

    def rest(self) -> list[StepRecord]:
        """Return all remaining records, after the end of the rank."""
        for held in self._held:
            held.awaits = held.awaits_usage = False
        return self._complete()

    def _complete(self) -> list[StepRecord]:
        records = []
        while self._held and not (self._held[0].awaits or self._held[0].awaits_usage):
            held = self._held.popleft()
            records.append(to_record(held.entry, held.device, held.usage))
        return records


def _shares(total: int, weights: list[int]) -> list[int]:
    """Split ``total`` into integers proportional to ``weights``, as far as integers can be, that add up to it."""
    if not total:
        return [0] * len(weights)
    whole, done, before = sum(weights), 0, 0
    shares = []
    for weight in weights:
        done += weight
        up_to = total * done // whole
        shares.append(up_to - before)
        before = up_to
    return shares
