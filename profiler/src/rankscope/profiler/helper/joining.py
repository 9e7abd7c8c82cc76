"""The helper's side of steps and their device times: the two come apart, and are written as one record."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from rankscope.profiler.entries import DeviceEntry, StepEntry, to_record, unpack_device, unpack_step
from rankscope.profiler.raw import unpack_raw
from rankscope.runs.records import StepRecord

MAX_HELD: Final = 64
"""Steps that wait for their device times; with more the oldest are written without."""
MAX_SECONDS: Final = 10.0
"""So long a step waits, and as long again as it took itself: a device that hangs must not hide the steps before."""


class _Held:
    __slots__ = ("awaits", "device", "entry", "until")

    def __init__(self, entry: StepEntry, now: float) -> None:
        self.entry = entry
        self.device: DeviceEntry | None = None
        self.awaits = entry.awaits_device
        # The marks of a step are read at the end of the next one or two, which take as long.
        self.until = now + MAX_SECONDS + 3 * entry.wall_ns / 1e9


class Joining:
    """Takes entries as the rank wrote them and answers the records that are complete, in the order of their steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: deque[_Held] = deque()

    def step(self, payload: bytes) -> list[StepRecord]:
        """A step has ended. Raises ``msgspec.DecodeError``."""
        return self._add(unpack_step(payload))

    def raw(self, payload: bytes) -> list[StepRecord]:
        """A step has ended, of which there are only the events. Raises ``msgspec.DecodeError``."""
        return self._add(unpack_raw(payload))

    def _add(self, entry: StepEntry) -> list[StepRecord]:
        if not self._held and not entry.awaits_device:
            return [to_record(entry)]
        self._held.append(_Held(entry, self._clock()))
        if len(self._held) > MAX_HELD:
            self._held[0].awaits = False
        return self._complete()

    def device(self, payload: bytes) -> list[StepRecord]:
        """The device times of a step are known. Raises ``msgspec.DecodeError``."""
        device = unpack_device(payload)
        for held in self._held:
            if held.entry.step == device.step:
                held.device, held.awaits = device, False
                break
        return self._complete()

    def overdue(self) -> list[StepRecord]:
        """To be called now and then: what has waited for long enough."""
        if self._held and self._clock() > self._held[0].until:
            self._held[0].awaits = False
        return self._complete()

    def rest(self) -> list[StepRecord]:
        """The rank is gone: all that is left."""
        for held in self._held:
            held.awaits = False
        return self._complete()

    def _complete(self) -> list[StepRecord]:
        records = []
        while self._held and not self._held[0].awaits:
            held = self._held.popleft()
            records.append(to_record(held.entry, held.device))
        return records
