"""Start and end of the recording of one process."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter_ns as now
from time import sleep
from typing import Final

from rankscope.profiler.handover import MessageKind
from rankscope.profiler.plan import Schedule
from rankscope.profiler.rank.gpu import flight_dump
from rankscope.profiler.rank.gpu.device import DeviceClock, DeviceMarks, find_device, parameter_devices, used_gpus
from rankscope.profiler.rank.gpu.mark_sampling import MarkSampling
from rankscope.profiler.rank.gpu.windows import WindowController
from rankscope.profiler.rank.guard import never_free, print_line, raised_by_a_signal_handler
from rankscope.profiler.rank.identity import has_other_place, identify, ranks_on_host
from rankscope.profiler.rank.meters import GcMeter, MemoryMeter, ThreadMeter
from rankscope.profiler.rank.session import Session
from rankscope.profiler.rank.wrappers.ddp import PassEndDetector
from rankscope.profiler.rank.wrappers.groups import OtherGroups
from rankscope.profiler.rank.wrappers.optimizers import OptimizerSteps, StepBoundary
from rankscope.profiler.rank.wrappers.process_end import forget_in_child, watch_end
from rankscope.profiler.ring import EVENT_NS, EndState, RingWriter
from rankscope.profiler.settings import RecorderSettings
from rankscope.profiler.words import (
    AS_NOTED,
    IF_NOTED,
    NOT_AT_ALL,
    NOT_KNOWN,
    SHIFT,
    USAGE,
    WAITING,
    detail,
)

# What the thread is inside of.
IN_DATA: Final = 1
IN_BACKWARD: Final = 2
IN_COPY: Final = 4
IN_CHECKPOINT: Final = 8
IN_WAIT: Final = 16
HELPER_ENDED: Final = "its helper process ended"
_MOVED_STEPS: Final = 16
_MOVED_NS: Final = 250_000_000
"""Threads that train at once run in turn, for 5 ms each: one that is merely waiting for its turn must not count as left."""
_SETTLE_SECONDS: Final = 0.1
"""Wait before the interpreter ends: torch aborts the process if a gloo thread still holds the tensors of the last collective
(pytorch/pytorch#190489). On loaded machines it holds them for milliseconds."""
_WITH_CUDA: Final = ("cuda", "rocm")


class RankMeters:
    """Meters of the thread that makes this object."""

    def __init__(self) -> None:
        self.thread = ThreadMeter()
        self.garbage = GcMeter(now)
        self.memory = MemoryMeter()
        self.memory_step = self.memory_ns = 0
        """Step and time at which the memory is read again, whichever comes first."""
        self.due_ns = 0
        """Time from which all others are read again."""

    def close(self) -> None:
        """Stop measuring. Never raises."""
        for meter in (self.thread, self.garbage, self.memory):
            with suppress(Exception):
                meter.close()


class RecorderLifecycle:
    """The part of a ``StepRecorder`` that begins and ends the recording; there is at most one at a time.

    ``explicit``: steps end when ``step`` is called, not at optimizer steps. ``device`` finds the device of an optimizer.
    """

    def __init__(
        self,
        settings: RecorderSettings,
        *,
        explicit: bool = False,
        device: Callable[[object], DeviceClock | None] = find_device,
    ) -> None:
        self.settings = settings
        self.explicit = explicit
        self.off = False
        self._measured_ns = 0
        """Cost of the recorder's work between steps so far."""
        self.thread = self.listening = threading.get_ident()
        self._busy = threading.RLock()
        """Held while a step ends with work, as where the recording begins, and while training moves to another thread.

        Of one thread it may be held twice: a signal handler of the script may train.
        """
        self._ring = RingWriter()
        self.gradients = PassEndDetector(self._ring.ready)
        self.session: Session | None = None
        self.step_number = 0
        self._elsewhere = (0, 0, 0)
        """Number of the recorded thread's step; number of steps that have ended on other threads since; when the first did."""
        self.may_evaluate = False
        """True if there was a sign of evaluation in this step."""
        self.measures_input = True
        """True if the input of the model is to be reported in this step."""
        self._find_device = device
        self._begun = 0
        """Time at which the current step began; 0: there was no sign of training yet."""
        self._inside = 0
        """What the thread is inside of, as the sum of ``IN_…``. What an exception interrupted must not outlast its step."""
        self._flags = 1
        self._due_ns = self._wake = 0
        """Time and step from which the end of a step takes more than storing it."""
        self._meters: RankMeters | None = None
        self._device: DeviceMarks | None = None
        self._marks: DeviceMarks | None = None
        """``_device`` in the steps that get marks."""
        self._on_device = self._alone = False
        """``_on_device``: the rank may wait where the host does not. ``_alone``: this is the only rank."""
        self._has_models = False
        """Whether ``_flags`` says that there are DDP models."""
        self._unseen_wait = self._pass_end_seen = False
        self._sampling = MarkSampling(settings.budget)
        self._windows: WindowController | None = None
        self._helper_seen = 0
        self._replaced = False
        """True if it was said that a helper was replaced."""
        self._boundary = StepBoundary()
        self._optimizers = OptimizerSteps()
        self._inner_optimizer = False
        # The iterator of the last batch, and that of the last batch before a backward pass.
        self._loading: weakref.ref[object] | None = None
        self._trained_on: weakref.ref[object] | None = None
        self._other_profiler = False
        """True from the start of a torch profiler of the script's own until the first step without it."""
        self._others = OtherGroups()
        self._forget_end: Callable[[bool], None] | None = None

    @property
    def cost_ns(self) -> int:
        """Cost of the recorder to the training thread so far, in nanoseconds."""
        return self._measured_ns + EVENT_NS * self._ring.at

    @property
    def has_ended_step(self) -> bool:
        """True if a step has ended."""
        return self.step_number > 0 or self.session is not None

    @property
    def saw_backward(self) -> bool:
        """True if a backward pass has returned."""
        return self._boundary.backward_seen

    def claim(self) -> None:
        """Make this thread the recorded one if training has moved to it: a step ends on it (Ray trains on a side thread).

        Once the recorded thread trains, only if it has ended since, or has ended no step for ``_MOVED_STEPS`` steps and
        ``_MOVED_NS`` of others.
        """
        # Not ``guarded``, which accepts only the recorded thread.
        try:
            thread_id = threading.get_ident()
            foreign = isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001  # torch's own threads
            # While the recorded thread is at work between two steps, training has not moved from there.
            if self.off or thread_id == self.thread or foreign or not self._busy.acquire(blocking=False):
                return
            try:
                if self._has_moved():
                    self._move(thread_id)
            finally:
                self._busy.release()
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    def _move(self, thread_id: int) -> None:
        self.thread = self.listening = thread_id
        self._optimizers.forget()
        # The DDP models stay: they may have been wrapped on the other thread.
        self._forget_step()
        if self._windows is not None:
            self._windows.abandon()
        if self.session is not None:
            self._ring.put(MessageKind.THREAD, thread_id.to_bytes(8, sys.byteorder))

    def _has_moved(self) -> bool:
        """Return whether training may have moved from the recorded thread to this one, which ends a step."""
        untrained = self.session is None and not self.saw_backward
        if not self._begun or untrained or all(thread.ident != self.thread for thread in threading.enumerate()):
            return True
        if self._windows is not None and self._windows.is_profiling:
            return False  # torch's profiler crashes if another thread than the one that started it stops it
        step, steps, since = self._elsewhere
        if step != self.step_number or not steps:
            steps, since = 0, now()
        self._elsewhere = (self.step_number, steps + 1, since)
        return steps >= _MOVED_STEPS and now() - since >= _MOVED_NS

    def _store(self, *words: int) -> None:
        if not self._ring.write(*words):
            self._due_ns = 0

    def _read_device(self, device: DeviceMarks) -> None:
        for message in device.read():
            self._ring.put(MessageKind.DEVICE, message)

    def _store_usage(self, *, begins: bool = False) -> None:
        """Store the counters of the thread. ``begins``: they are not those of the steps before."""
        if self._meters is not None:
            meter = self._meters.thread
            usage = meter.read()
            self._store(1 << SHIFT | USAGE, *map(detail, usage), detail(begins or meter.restarted))
            meter.restarted = False

    def _open(self) -> tuple[Session, WindowController]:
        """Begin the recording."""
        optimizer = None if self._optimizers.last is None else self._optimizers.last()
        parameters = parameter_devices(optimizer)
        handover = identify(self.settings, parameters, optimizer=optimizer)
        session = Session(handover, self.settings.scratch_dir, self._ring)
        self.session = session
        ranks_here = ranks_on_host(handover.rank.world_size)
        schedule = Schedule.of(self.settings, on_device=handover.rank.device_kind != "cpu")
        self._windows = windows = WindowController(schedule, session.scratch, self._ring, ranks_here=ranks_here)
        self._alone = handover.rank.world_size == 1
        self._on_device = handover.rank.device_kind != "cpu"
        self._set_waiting()
        self._forget_end = watch_end(partial(self.close, exiting=True), session.memory)
        if handover.rank.device_kind in _WITH_CUDA and self._meters is not None:
            self._meters.memory.gpu = next(iter(used_gpus(parameters)), None)
        device = self._find_device(optimizer)
        if device is not None:
            self._device = DeviceMarks(device)
        return session, windows

    def _set_waiting(self) -> None:
        """Set what the host knows of the rank's waits, for the flags of each step."""
        self._has_models = self.gradients.present
        if self._alone:
            waiting = NOT_AT_ALL
        elif self._on_device or not self.gradients.on_host:
            # With a device the host runs ahead and waits at other places.
            waiting = NOT_KNOWN
        else:
            waiting = AS_NOTED if self._has_models else IF_NOTED
        self._flags = self._flags & ~(3 << WAITING) | waiting << WAITING

    def failed(self, error: Exception) -> None:
        """Switch off for good after an exception in the recorder.

        Raises ``error`` if it comes from a signal handler of the script, which Python ran meanwhile.
        """
        if raised_by_a_signal_handler(error):
            raise error
        self.disable(f"{type(error).__name__}: {error}")

    def disable(self, reason: str) -> None:
        """Switch off for good, and report it once."""
        if self.off:
            return
        other_thread = threading.get_ident() != self.thread
        self._switch_off()
        if self.session is not None and not self.session.has_files():
            reason = "the script has closed its files"
        with suppress(Exception):
            rank = self.session.handover.rank.rank if self.session else os.environ.get("RANK", "0")
            print_line(f"rank {rank}: the recorder switched itself off ({reason}); training goes on")
        if self._leave_files():
            return
        with suppress(Exception):
            if self._windows is not None:
                self._windows.close(other_thread=other_thread)
        with suppress(Exception):
            if self.session is not None:
                self._ring.set_disabled(reason)
                if self.session.helper_ended():
                    self.session.replace_helper()
        self._release()

    def _leave_files(self) -> bool:
        """Leave everything as it is if the script has closed the recorder's files: its own may have their numbers by now."""
        if self.session is None or self.session.has_files():
            return False
        for holder in (self.session, self._ring, self._meters, self._windows):
            never_free(holder)
        self._windows = self.session = self._meters = None
        return True

    def close(self, end: EndState, *, exiting: bool = False) -> None:
        """End the recording; the helper writes the rest. ``exiting``: this process ends; the helper waits until it has."""
        if self.session is None or self._leave_files():
            # Without a step there is nothing to end, but later events must be ignored.
            self._switch_off()
            self._release()
            return
        with suppress(Exception):
            # Ray kills the children of a worker that ends.
            if not self.off and not self.session.has_helper():
                self.disable(HELPER_ENDED)
            if not self.off:
                self._publish_rest()
        with suppress(Exception):
            self._ring.set_end(end)
            if end is EndState.CRASH:
                flight_dump.dump_crash(self.session.scratch)
        with suppress(Exception):
            self.session.close(exiting=exiting)
        flight_dump.settle()
        if not self._alone:
            sleep(_SETTLE_SECONDS)
        self._windows = self.session = None
        self._release()
        # A script may record many times: a finished recording must leave nothing registered.
        with suppress(Exception):
            if self._forget_end is not None:
                self._forget_end(exiting)

    def _publish_rest(self) -> None:
        is_recorded_thread = threading.get_ident() == self.thread
        self._switch_off()
        if self._windows is not None:
            self._windows.close(other_thread=not is_recorded_thread)
        self._ring.set_cost(self._measured_ns)
        if is_recorded_thread:
            self._store_usage()
        if self._device is not None:
            self._read_device(self._device)
        self._ring.publish()

    def change_place(self) -> None:
        """Begin a new recording if the process group that was just initialised gives this process another place in its job."""
        # Not ``guarded``, because any thread may initialise the group.
        try:
            if not self.off and self.session is not None and has_other_place(self.session.handover):
                self.close(EndState.EXIT)
                RecorderLifecycle.__init__(self, self.settings, explicit=self.explicit, device=self._find_device)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    def _release(self) -> None:
        self._forget_step()
        self._device = self._marks = None
        with suppress(Exception):
            self.gradients.close()

    def _forget_step(self) -> None:
        if self._meters is not None:
            self._meters.close()
            self._meters = None
        self._ring.rewind()
        self._begun = self._inside = 0

    def _switch_off(self) -> None:
        self.off = True
        self.thread = self.listening = 0

    def forked(self) -> None:
        """Release everything in a child forked from a recorded process, such as a data loader's worker.

        Where steps end at optimizer steps, a child that takes one is recorded as a rank of its own.
        """
        self._busy = threading.RLock()  # another thread of the parent may hold it
        if self.session is None:
            if not self.off:
                self.thread = self.listening = threading.get_ident()
            return
        trains = not (self.off or self.explicit)
        self._switch_off()
        with suppress(Exception):
            forget_in_child()
        with suppress(Exception):
            self.session.forget()
        with suppress(Exception):
            # CUDA must not be called in a forked child, not even to destroy an event.
            for holder in (self._device, self._windows, *self.gradients.pass_ends()):
                never_free(holder)
        self._windows = self.session = None
        self._release()
        if trains:
            with suppress(Exception):
                RecorderLifecycle.__init__(self, self.settings, device=self._find_device)
