"""Device times of the phases, from events on the device's stream where the host cuts the step.

The host runs ahead of a device, so the host's clock only shows when work was launched. Nothing here makes the host wait: marks
are put on the stream, queried some steps later, and read once the device has passed them. While a CUDA graph is captured,
nothing is touched. Where steps are short, most of them get no marks (see ``mark_sampling``).

All marks of a rank are on the device of its parameters, on the stream there that backward passes and optimizers use, whichever
device and stream are current at the other events. The number of marks in a step is bounded: times beyond the limits are unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol

import torch
from torch import cuda

from rankscope.profiler.entries import DeviceEntry
from rankscope.profiler.phases import UNSEEN
from rankscope.profiler.rank import captures
from rankscope.runs.records import PHASES

MAX_PENDING: Final = 64
"""Largest number of steps whose marks the device has not passed; beyond it the oldest are discarded."""
MAX_CUTS: Final = 512
"""Largest number of cuts, and of marks for them, in one step; a step with more has no device times."""
MAX_WAITS: Final = 256
"""Largest number of waits with marks in one step. Of a step with more, how long the device waited is unknown: tensor parallel
training waits thousands of times."""
QUIET_STEPS: Final = 25
"""Number of steps after such a step without any marks of waits, because those would be for nothing, most likely."""

Mark = Any
"""Position on the time line of the device."""


class DeviceClock(Protocol):
    """Interface to the clock of a device. No method may wait for the device."""

    def usable(self) -> bool:
        """Return whether the device may be used now."""

    def mark(self) -> Mark:
        """Mark the position that the stream reaches when it has done all work launched so far."""

    def again(self, mark: Mark) -> None:
        """Move an earlier mark to the current position."""

    def follow(self) -> None:
        """Place all further marks on the stream that is current now."""

    def leave(self) -> bool:
        """Place all further marks on the stream that is then current. Return whether that is another one now."""

    def ready(self, mark: Mark) -> bool:
        """Return whether the device has reached ``mark``."""

    def elapsed_us(self, earlier: Mark, later: Mark) -> float:
        """Return the microseconds between two marks that are ready; negative where the device passed ``later`` first."""


class CudaClock:
    """Clock of events on a stream of ``device``, which need not be the current device."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._stream: cuda.Stream | None = None

    def usable(self) -> bool:
        """Return False while a graph is captured: marks would become part of it, and querying one would invalidate it."""
        return not captures.going_on()

    def mark(self) -> cuda.Event:
        """Record and return a new event."""
        event = cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.again(event)
        return event

    def again(self, mark: cuda.Event) -> None:
        """Record an event again."""
        # Without a stream, torch takes that of the current device: an event of another device raises there.
        mark.record(cuda.current_stream(self.device) if self._stream is None else self._stream)

    def follow(self) -> None:
        """Ask torch for the stream; nothing is asked of the driver."""
        self._stream = cuda.current_stream(self.device)

    def leave(self) -> bool:
        """Compare the streams."""
        stream, self._stream = self._stream, None
        return stream is not None and stream != cuda.current_stream(self.device)

    def ready(self, mark: cuda.Event) -> bool:
        """Query the driver for the event."""
        over: bool = mark.query()  # type: ignore[no-untyped-call]
        return over

    def elapsed_us(self, earlier: cuda.Event, later: cuda.Event) -> float:
        """Return the elapsed microseconds; torch returns milliseconds."""
        milliseconds: float = earlier.elapsed_time(later)
        return milliseconds * 1000


def find_device(optimizer: object) -> DeviceClock | None:
    """Return the clock of the device that holds ``optimizer``'s parameters.

    ``None`` without CUDA, if the parameters are on the host, or on several devices: no time between two devices is known.
    """
    if not cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    devices = parameter_devices(optimizer)
    on_cuda = {device.index for device in devices if device.type == "cuda"} if devices else set(used_gpus())
    return CudaClock(on_cuda.pop()) if len(on_cuda) == 1 else None


def parameter_devices(optimizer: object) -> set[torch.device]:
    """Return the devices of ``optimizer``'s parameters; empty for ``None``."""
    groups: list[dict[str, Any]] = getattr(optimizer, "param_groups", [])
    return {parameter.device for group in groups for parameter in group["params"]}


def used_gpus(parameters: Iterable[torch.device] = ()) -> list[int]:
    """Return the CUDA devices of this process: those of its ``parameters`` first, then all others on which it holds memory.

    CUDA must be initialised.
    """
    found = sorted({device.index for device in parameters if device.type == "cuda"})
    if cuda.get_allocator_backend() != "native":
        # Others ask the driver, which would make a context on every GPU.
        return found or [cuda.current_device()]
    return found + [device for device in range(cuda.device_count()) if device not in found and _holds_memory(device)]


def _holds_memory(device: int) -> bool:
    # Flat statistics, which ``cuda.memory_reserved`` reads, take several times as long.
    return bool(cuda.memory_stats_as_nested_dict(device).get("reserved_bytes", {}).get("all", {}).get("current"))


class _Step:
    """Marks of one step."""

    __slots__ = ("is_last", "marks", "number", "phases", "signalled", "start", "unmarked", "waits")

    def __init__(self, start: Mark) -> None:
        self.number = 0
        self.start = start
        self.marks: list[Mark] = []
        self.phases: list[int] = []
        """Phase of the time before each mark."""
        self.waits: list[tuple[int, Mark, Mark]] = []
        """Waits of the stream for other ranks: (index of the following cut, mark at the start, mark at the end)."""
        self.unmarked = False
        """True if a wait is not in ``waits``, because it has no marks."""
        self.signalled = False
        """True if all waits of the step are in ``waits``."""
        self.is_last = False
        """True if no step begins at its last mark."""


class DeviceLine:
    """Time line of the steps of one thread on its device; see ``phases.Line``."""

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._step: _Step | None = None
        self._pending: deque[_Step] = deque()
        self._free: list[Mark] = []
        self._given = self._waits_given = self._given_before = 0
        """Marks given out in this step for cuts, and for waits, and all of the step before."""
        self._follows = False
        """True if training showed its stream in this step."""
        self._quiet_until = 0
        """Number of the first step that may have marks of waits again."""
        self._marks_waits = True
        """False while how long the device waits is unknown anyway, so that marks of waits would be of no use."""
        self.here: Mark | None = None
        """Mark of the event that is being evaluated: the position of the next ``cut``."""

    def follow(self) -> None:
        """Place all marks until the next call on the stream that is current now: training uses it."""
        # A capture has a stream of its own, on which its graph does not run later.
        if self._clock.usable():
            self._follows = True
            self._clock.follow()

    def mark(self) -> Mark | None:
        """Return a mark of this moment for a cut. ``None``: the device cannot be used now, or the step has too many."""
        if self._given >= MAX_CUTS:
            return None
        self._given += 1
        return self._mark()

    def mark_wait(self) -> Mark | None:
        """Return a mark of this moment for one end of a wait; ``None`` as for ``mark``, or if it would be of no use."""
        if not self._marks_waits or self._waits_given >= 2 * MAX_WAITS:
            return None
        self._waits_given += 1
        return self._mark()

    def _mark(self) -> Mark | None:
        if not self._clock.usable():
            self._step = None
            return None
        if not self._free:
            return self._clock.mark()
        mark = self._free.pop()
        self._clock.again(mark)
        return mark

    @property
    def given(self) -> int:
        """Number of marks given out in the step that ended last; 0 if it had none."""
        return self._given_before

    def begin(self) -> None:
        """Begin a step here."""
        self.pause()
        self._given = self._waits_given = 0
        mark = self._mark()
        self._step = None if mark is None else _Step(mark)

    def pause(self) -> None:
        """Place no marks until ``begin``: the step that begins gets none."""
        self._given_before = 0
        step, self._step = self._step, None
        if step is None:
            return
        if self._pending and self._pending[-1].marks[-1] is step.start:
            self._pending[-1].is_last = True
        else:
            self._free.append(step.start)

    def cut(self, phase: int) -> None:
        """Assign the time between the last cut and ``here`` to ``phase``; -1: the phase is decided later."""
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
        """Assign the undecided (-1) time so far to ``phase``."""
        if self._step is not None and UNSEEN in self._step.phases:
            self._step.phases = [phase if one == UNSEEN else one for one in self._step.phases]

    def place(self) -> int:
        """Return the number of cuts."""
        return 0 if self._step is None else len(self._step.phases)

    def forget(self, place: int, phase: int) -> None:
        """Assign all time since cut number ``place``, up to ``here``, to ``phase``."""
        self.cut(phase)
        if self._step is not None:
            self._step.phases[place:] = [phase] * (len(self._step.phases) - place)

    def waited(self, since: Mark | None, until: Mark | None) -> None:
        """Note a wait of the stream for other ranks from ``since`` to ``until``, both between the last cut and the next.

        ``None``: there was no mark.
        """
        if self._step is None:
            return
        if since is None or until is None:
            self._step.unmarked = True
        else:
            self._step.waits.append((len(self._step.marks), since, until))

    def finish(self, number: int, *, signalled: bool) -> bool:
        """End step ``number`` at the last cut, where the next one begins.

        ``signalled``: all waits of the step were reported. Returns whether an entry of the step will follow.
        """
        step, self._step = self._step, None
        self._given_before = self._given + self._waits_given
        if not self._follows and self._clock.leave():
            # As where a graph is replayed from now on: the stream of the steps before may be idle.
            step = None
        self._follows = False
        # Where the waits of this step are unknown, those of the next most likely are: it gets no marks for them.
        if self._waits_given >= 2 * MAX_WAITS:
            self._quiet_until = number + QUIET_STEPS
        self._marks_waits = signalled and number >= self._quiet_until
        if step is None or not step.marks or not self._clock.usable():
            self.begin()
            return False
        self._given = self._waits_given = 0
        step.number, step.signalled = number, signalled and not step.unmarked
        self._pending.append(step)
        self._step = _Step(step.marks[-1])
        if len(self._pending) > MAX_PENDING:
            self._release(self._pending.popleft())
        return True

    def read(self) -> list[DeviceEntry]:
        """Return the entries of the steps that the device has finished since the last call."""
        entries = []
        while self._pending and self._clock.usable() and self._is_over(self._pending[0]):
            step = self._pending.popleft()
            entries.append(self._entry(step))
            self._release(step)
        return entries

    def _is_over(self, step: _Step) -> bool:
        ready = self._clock.ready
        # The last mark first: on one stream this one query suffices while the device is busy.
        if not ready(step.marks[-1]):
            return False
        waits = [mark for _, since, until in step.waits for mark in (since, until)]
        return all(map(ready, step.marks)) and all(map(ready, waits))

    def _entry(self, step: _Step) -> DeviceEntry:
        """Return the times of a step. Marks of different streams may be out of order; times between those are not known."""
        times, blocked = [UNSEEN] * len(PHASES), [0] * len(PHASES)
        signalled, before = step.signalled, step.start
        for mark, phase in zip(step.marks, step.phases, strict=True):
            passed = self._between(before, mark)
            if passed < 0:
                return DeviceEntry(step.number, None, None)
            times[phase] = max(times[phase], 0) + passed
            before = mark
        for place, since, until in step.waits:
            if place < len(step.phases):
                passed = self._between(since, until)
                signalled = signalled and passed >= 0
                blocked[step.phases[place]] += passed
        return DeviceEntry(step.number, times, blocked if signalled else None)

    def _between(self, earlier: Mark, later: Mark) -> int:
        return round(self._clock.elapsed_us(earlier, later) * 1000)

    def _release(self, step: _Step) -> None:
        # The last mark stays in use where it is the start of the next step.
        self._free += [step.start, *(step.marks if step.is_last else step.marks[:-1])]
        self._free += [mark for _, since, until in step.waits for mark in (since, until)]
