"""Times of the phases on the device, by marks on the device's stream at the events of a step.

The host runs ahead of a device, so the host's clock only shows when work was launched. Nothing here makes the host wait: marks
are put on the stream, queried some steps later, and read once the device has passed them. While a CUDA graph is captured,
nothing is touched. Where steps are short, most of them get no marks (see ``mark_sampling``).

All marks of a rank are on the device of its parameters, on the stream there that backward passes and optimizers use, whichever
device and stream are current at the other events. The number of marks in a step is bounded: times beyond the limits are unknown.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol

import torch
from torch import cuda

from rankscope.profiler.rank.gpu import graph_capture
from rankscope.profiler.words import MARKED

MAX_PENDING: Final = 64
"""Largest number of steps whose marks the device has not passed; beyond it the oldest are discarded."""
MAX_MARKS: Final = 512
"""Largest number of marks in one step, besides those of waits; a step with more has no device times."""
MAX_WAITS: Final = 256
"""Largest number of waits with marks in one step. Of a step with more, how long the device waited is unknown: tensor parallel
training waits thousands of times."""
QUIET_STEPS: Final = 25
"""Number of steps after such a step without any marks of waits, because those would be for nothing, most likely."""

Mark = Any
"""Position on the time line of the device."""
_event: Any = getattr(torch._C, "_CudaEventBase", cuda.Event)  # noqa: SLF001  # the public class adds calls of Python to each use
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentStream", None)  # noqa: SLF001  # as above


class DeviceClock(Protocol):
    """Interface to the clock of a device. No method may wait for the device."""

    def usable(self) -> bool:
        """Return whether the device may be used now; called once a step."""

    def mark(self) -> Mark:
        """Mark the position that the stream reaches when it has done all work launched so far."""

    def again(self, mark: Mark) -> None:
        """Move an earlier mark to the current position."""

    def follow(self) -> bool:
        """Place all further marks on the stream that is current now. Return whether that is another one than before."""

    def leave(self) -> bool:
        """Place all further marks on the stream that is then current. Return whether that is another one now."""

    def ready(self, mark: Mark) -> bool:
        """Return whether the device has reached ``mark``."""

    def elapsed_us(self, earlier: Mark, later: Mark) -> float:
        """Return the microseconds between two marks; negative where the device passed ``later`` first.

        Raises ``RuntimeError`` if the device has not reached both.
        """


class CudaClock:
    """Clock of events on a stream of ``device``, which need not be the current device."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._stream: cuda.Stream | None = None
        self._stream_identity: object = None
        """Identity of ``_stream``, as torch's C functions give it."""

    def usable(self) -> bool:
        """Return False while a graph is captured: marks would become part of it, and querying one would invalidate it."""
        return not graph_capture.going_on()

    def mark(self) -> Any:
        """Record and return a new event."""
        event = _event(enable_timing=True, blocking=False, interprocess=False)
        self.again(event)
        return event

    def again(self, mark: Any) -> None:
        """Record an event again."""
        # Without a stream, torch takes that of the current device: an event of another device raises there.
        mark.record(cuda.current_stream(self.device) if self._stream is None else self._stream)

    def follow(self) -> bool:
        """Ask torch for the stream; nothing is asked of the driver."""
        current = _current_stream(self.device) if _current_stream is not None else None
        if current is not None and current == self._stream_identity and self._stream is not None:
            return False
        before, self._stream_identity, self._stream = self._stream, current, cuda.current_stream(self.device)
        return before is not None

    def leave(self) -> bool:
        """Compare the streams."""
        stream, self._stream = self._stream, None
        return stream is not None and stream != cuda.current_stream(self.device)

    def ready(self, mark: Any) -> bool:
        """Query the driver for the event."""
        over: bool = mark.query()
        return over

    def elapsed_us(self, earlier: Any, later: Any) -> float:
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
    indices = sorted({device.index for device in parameters if device.type == "cuda"})
    if cuda.get_allocator_backend() != "native":
        # Others ask the driver, which would make a context on every GPU.
        return indices or [cuda.current_device()]
    return indices + [device for device in range(cuda.device_count()) if device not in indices and _holds_memory(device)]


def _holds_memory(device: int) -> bool:
    # Flat statistics, which ``cuda.memory_reserved`` reads, take several times as long.
    return bool(cuda.memory_stats_as_nested_dict(device).get("reserved_bytes", {}).get("all", {}).get("current"))


class _MarkedStep:
    """Marks of one step."""

    __slots__ = ("is_last", "marks", "number", "start", "streams")

    def __init__(self, start: Mark) -> None:
        self.number = 0
        self.start = start
        self.marks: list[Mark] = []
        """Marks of the marked events, in the order of the events, and last that of the step's end."""
        self.streams = 1
        """Number of streams that marks are on, at least."""
        self.is_last = False
        """True if no step begins at its last mark."""


class DeviceMarks:
    """Marks of the steps of one thread on its device."""

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._step: _MarkedStep | None = None
        self._pending: deque[_MarkedStep] = deque()
        self._free: list[Mark] = []
        self._waits = 0
        """Marks of waits in this step."""
        self.mark_count = 0
        """Number of marks in the step that ended last; 0 if it had none."""
        self.follows = False
        """True if training showed its stream in this step."""
        self._quiet_until = 0
        """Number of the first step that may have marks of waits again."""
        self.marks_waits = True
        """False while how long the device waits is unknown anyway, so that marks of waits would be of no use."""
        self._usable: bool | None = None
        """Whether the device may be used where the step ends; ``None``: not looked at yet."""

    def follow(self) -> None:
        """Place all marks until the next call on the stream that is current now: training uses it."""
        # A capture has a stream of its own, on which its graph does not run later.
        if not graph_capture.noted():
            self.follows = True
            if self._clock.follow() and self._step is not None:
                self._step.streams += 1

    def place(self) -> int:
        """Mark this moment, at an event of the step. Return ``MARKED``, or 0: the step will have no device times."""
        step = self._step
        if step is None:
            return 0
        if len(step.marks) >= MAX_MARKS + 2 * MAX_WAITS or graph_capture.noted():
            self._step = None
            return 0
        step.marks.append(self._mark())
        return MARKED

    def place_wait(self) -> int:
        """Mark one end of a wait for other ranks. Return ``MARKED``, or 0: how long the device waited will not be known."""
        if not self.marks_waits or self._waits >= 2 * MAX_WAITS:
            return 0
        self._waits += 1
        return self.place()

    def ready(self) -> Mark | None:
        """Return a mark of this moment, for ``add``; ``None``: none can be placed."""
        return None if self._step is None or not self.marks_waits or graph_capture.noted() else self._mark()

    def add(self, mark: Mark | None) -> int:
        """Add an earlier mark where an event is written later. Return ``MARKED``, or 0 without a mark."""
        if mark is None or self._step is None:
            return 0
        self._step.marks.append(mark)
        return MARKED

    def _mark(self) -> Mark:
        if not self._free:
            return self._clock.mark()
        mark = self._free.pop()
        self._clock.again(mark)
        return mark

    def begin(self) -> None:
        """Begin a step here."""
        self.pause()
        self._waits = 0
        self._step = _MarkedStep(self._mark()) if self._clock.usable() else None

    def pause(self) -> None:
        """Place no marks until ``begin``: the step that begins gets none."""
        self.mark_count = 0
        step, self._step = self._step, None
        if step is None:
            return
        if self._pending and self._pending[-1].marks[-1] is step.start:
            self._pending[-1].is_last = True
        else:
            self._free.append(step.start)

    def finish(self, number: int, *, signalled: bool) -> bool:
        """End step ``number``, where the next one begins. Return whether its times may follow.

        ``signalled``: all waits of the step were reported.
        """
        usable = self._usable = self._clock.usable()
        if usable:
            self.place()
        step, self._step = self._step, None
        mark_count, waits = 0 if step is None else len(step.marks), self._waits
        if not self.follows and self._clock.leave():
            # As where a graph is replayed from now on: the stream of the steps before may be idle.
            step = None
        self.follows = False
        # Where the waits of this step are unknown, those of the next most likely are: it gets no marks for them.
        if waits >= 2 * MAX_WAITS:
            self._quiet_until = number + QUIET_STEPS
        self.marks_waits = signalled and number >= self._quiet_until
        if step is None or not usable:
            self.begin()
            self.mark_count = mark_count
            return False
        self.mark_count, self._waits = mark_count, 0
        step.number = number
        self._pending.append(step)
        self._step = _MarkedStep(step.marks[-1])
        if len(self._pending) > MAX_PENDING:
            self._release(self._pending.popleft())
        return True

    def read(self) -> list[bytes]:
        """Return the times of the steps that the device has finished since the last call, as messages for the helper."""
        messages: list[bytes] = []
        usable, self._usable = self._usable, None
        if not self._pending or not (self._clock.usable() if usable is None else usable):
            return messages
        while self._pending and self._is_over(self._pending[0]):
            step = self._pending.popleft()
            try:
                times = [round(self._clock.elapsed_us(step.start, mark) * 1000) for mark in step.marks]
            except RuntimeError:
                times = []
            messages.append(struct.pack(f"={len(times) + 1}q", step.number, *times))
            self._release(step)
        return messages

    def _is_over(self, step: _MarkedStep) -> bool:
        # On one stream the last mark suffices.
        ready = self._clock.ready
        return ready(step.marks[-1]) and (step.streams == 1 or all(map(ready, step.marks)))

    def _release(self, step: _MarkedStep) -> None:
        # The last mark stays in use where it is the start of the next step.
        self._free += [step.start, *(step.marks if step.is_last else step.marks[:-1])]
