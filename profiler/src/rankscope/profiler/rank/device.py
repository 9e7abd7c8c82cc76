"""Device times of the phases: events on the device's stream where the host cuts the step, read when they are long over.

The host runs ahead of a device, so its own clock says when work was launched. Nothing here makes it wait: marks are put on the
stream, asked some steps later whether the device has passed them, and read then. While a CUDA graph is captured nothing is
touched at all.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Protocol

from torch import cuda

from rankscope.profiler.entries import DeviceEntry
from rankscope.profiler.phases import UNSEEN
from rankscope.runs.records import PHASES

MAX_PENDING: Final = 64
"""Steps whose marks are not over yet; with more the oldest are given up."""
MAX_CUTS: Final = 512
"""In one step; a step with more has no device times."""

Mark = Any
"""A place on the time line of the device."""


class DeviceClock(Protocol):
    """What is asked of a device. Nothing here may wait for it."""

    def usable(self) -> bool:
        """Whether it may be touched now."""

    def mark(self) -> Mark:
        """Mark the place that the stream comes to when it has done all that was launched so far."""

    def again(self, mark: Mark) -> None:
        """Move a mark of before to here."""

    def ready(self, mark: Mark) -> bool:
        """Whether the device has come to ``mark``."""

    def elapsed_us(self, earlier: Mark, later: Mark) -> float:
        """Between two marks that are ready."""


class CudaClock:
    """Events on the current stream of the current device."""

    def usable(self) -> bool:
        """Not while a graph is being captured: the marks would be part of it, and asking for one would spoil it."""
        return not cuda.is_current_stream_capturing()

    def mark(self) -> cuda.Event:
        """A new event."""
        event = cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def again(self, mark: cuda.Event) -> None:
        """Record an event again."""
        mark.record()

    def ready(self, mark: cuda.Event) -> bool:
        """Ask the driver."""
        over: bool = mark.query()  # type: ignore[no-untyped-call]
        return over

    def elapsed_us(self, earlier: cuda.Event, later: cuda.Event) -> float:
        """Torch answers in milliseconds."""
        milliseconds: float = earlier.elapsed_time(later)
        return milliseconds * 1000


def find_device(optimizer: object) -> DeviceClock | None:
    """The clock of the device that ``optimizer``'s parameters are on; ``None`` when they are on the host or nobody knows it."""
    if not cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    groups: list[dict[str, Any]] = getattr(optimizer, "param_groups", [])
    first = next((parameter for group in groups for parameter in group["params"]), None)
    return CudaClock() if first is None or first.is_cuda else None


class _Step:
    """The marks of one step."""

    __slots__ = ("marks", "number", "phases", "signalled", "start", "waits")

    def __init__(self, start: Mark) -> None:
        self.number = 0
        self.start = start
        self.marks: list[Mark] = []
        self.phases: list[int] = []
        """What lies before each mark."""
        self.waits: list[tuple[int, Mark, Mark]] = []
        """Between which marks the stream waited for other ranks, and before which cut that was."""
        self.signalled = False
        """Whether all waiting of the step is in ``waits``."""


class DeviceLine:
    """The steps of one thread on the time line of its device; see ``phases.Line``."""

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._step: _Step | None = None
        self._pending: deque[_Step] = deque()
        self._free: list[Mark] = []
        self.here: Mark | None = None
        """The mark of the event that is being worked off: where ``cut`` cuts."""

    def mark(self) -> Mark | None:
        """A mark of this moment, or ``None`` when there is none to be had."""
        if not self._clock.usable():
            self._step = None
            return None
        if not self._free:
            return self._clock.mark()
        mark = self._free.pop()
        self._clock.again(mark)
        return mark

    def begin(self) -> None:
        """A step begins here."""
        mark = self.mark()
        self._step = None if mark is None else _Step(mark)

    def cut(self, phase: int) -> None:
        """What lies between the last cut and here is ``phase``; -1: that turns out later."""
        step = self._step
        if step is None:
            return
        if len(step.marks) >= MAX_CUTS:
            self._step = None
            return
        if self.here is None:
            self._step = None
            return
        if not step.marks or step.marks[-1] is not self.here:
            step.marks.append(self.here)
            step.phases.append(phase)

    def settle(self, phase: int) -> None:
        """What was -1 so far is ``phase``."""
        if self._step is not None and UNSEEN in self._step.phases:
            self._step.phases = [phase if one == UNSEEN else one for one in self._step.phases]

    def place(self) -> int:
        """How many cuts there are."""
        return 0 if self._step is None else len(self._step.phases)

    def forget(self, place: int, phase: int) -> None:
        """All since the cut number ``place``, and until here, is ``phase``."""
        self.cut(phase)
        if self._step is not None:
            self._step.phases[place:] = [phase] * (len(self._step.phases) - place)

    def waited(self, since: Mark | None, until: Mark | None) -> None:
        """The stream waited for other ranks between ``since`` and ``until``, which lie between the last cut and the next."""
        if self._step is not None and since is not None and until is not None:
            self._step.waits.append((len(self._step.marks), since, until))

    def finish(self, number: int, *, signalled: bool) -> bool:
        """Step ``number`` ends at the last cut, and the next one begins there.

        ``signalled``: all its waiting was told. Returns whether there will be an entry of it.
        """
        step, self._step = self._step, None
        if step is None or not step.marks or not self._clock.usable():
            self.begin()
            return False
        step.number, step.signalled = number, signalled
        self._pending.append(step)
        self._step = _Step(step.marks[-1])
        if len(self._pending) > MAX_PENDING:
            self._release(self._pending.popleft())
        return True

    def read(self) -> list[DeviceEntry]:
        """The steps that the device is done with since the last call."""
        entries = []
        while self._pending and self._clock.usable() and self._is_over(self._pending[0]):
            step = self._pending.popleft()
            entries.append(self._entry(step))
            self._release(step)
        return entries

    def _is_over(self, step: _Step) -> bool:
        ready = self._clock.ready
        # The last one first: on one stream nothing else needs to be asked while the device is busy.
        if not ready(step.marks[-1]):
            return False
        waits = [mark for _, since, until in step.waits for mark in (since, until)]
        return all(map(ready, step.marks)) and all(map(ready, waits))

    def _entry(self, step: _Step) -> DeviceEntry:
        times, blocked = [UNSEEN] * len(PHASES), [0] * len(PHASES)
        before = step.start
        for mark, phase in zip(step.marks, step.phases, strict=True):
            times[phase] = max(times[phase], 0) + self._between(before, mark)
            before = mark
        for place, since, until in step.waits:
            if place < len(step.phases):
                blocked[step.phases[place]] += self._between(since, until)
        return DeviceEntry(step.number, times, blocked if step.signalled else None)

    def _between(self, earlier: Mark, later: Mark) -> int:
        return max(round(self._clock.elapsed_us(earlier, later) * 1000), 0)

    def _release(self, step: _Step) -> None:
        # The last mark is the next step's first.
        self._free += [step.start, *step.marks[:-1]]
        self._free += [mark for _, since, until in step.waits for mark in (since, until)]
