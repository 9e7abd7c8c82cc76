"""Start, steps and end of the recording of one process; the events in the steps come from ``recorder``."""

from __future__ import annotations

import ctypes
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

from torch.utils.data import get_worker_info

from rankscope.profiler.events import (
    AS_NOTED,
    AWAITS_DEVICE,
    COLLECTED,
    END,
    IF_NOTED,
    MEMORY,
    NOT_AT_ALL,
    NOT_KNOWN,
    NUMBER,
    PROFILED,
    RAISED,
    SHIFT,
    SIGNALLED,
    TAG,
    USAGE,
    WAITING,
    WHOLE,
    WORK,
    detail,
    details_of_float,
)
from rankscope.profiler.handover import EXIT_STATUS_FILE, MessageKind
from rankscope.profiler.plan import Schedule
from rankscope.profiler.rank import flight_dump
from rankscope.profiler.rank.ddp import LastGradient
from rankscope.profiler.rank.device import DeviceClock, DeviceMarks, find_device, parameter_devices, used_gpus
from rankscope.profiler.rank.groups import OtherGroups
from rankscope.profiler.rank.guard import guarded, raised_by_a_signal_handler
from rankscope.profiler.rank.identity import identify, ranks_on_host
from rankscope.profiler.rank.kineto import others_on
from rankscope.profiler.rank.mark_sampling import MARK_NS, MarkSampling
from rankscope.profiler.rank.measures import amount, count
from rankscope.profiler.rank.meters import EVERY_NS, EVERY_STEPS, READ_EVERY_NS, GcMeter, MemoryMeter, ThreadMeter
from rankscope.profiler.rank.optimizers import OptimizerSteps, StepBoundary
from rankscope.profiler.rank.process_end import forget_in_child, watch_end
from rankscope.profiler.rank.session import Session
from rankscope.profiler.rank.windows import Windows
from rankscope.profiler.ring import ANNOUNCED, EVENT_NS, HEAD, MASK, STEP_WORDS, End, RingWriter
from rankscope.profiler.settings import RecorderSettings
from rankscope.profiler.work import OTHER_PROFILER

IN_DATA: Final = 1
IN_BACKWARD: Final = 2
IN_COPY: Final = 4
IN_CHECKPOINT: Final = 8
IN_WAIT: Final = 16
_INPUT_EVERY: Final = 15
"""Mask of the numbers of the short steps in which the model's input is measured: one of 16."""
_EARLY_STEPS: Final = 16
"""Number of steps in which everything is measured, however short they are: a job may have few."""
_HELPER_CHECK_NS: Final = 1_000_000_000
_HELPER_ENDED: Final = "its helper process ended"
_SETTLE_SECONDS: Final = 0.1
"""Wait before the interpreter ends: torch aborts the process if a gloo thread still holds the tensors of the last collective
(pytorch/pytorch#190489). On loaded machines it holds them for milliseconds."""
_PAUSE_NS: Final = 1_000_000
"""Longest recorder work between two steps that still counts as part of a step; longer work counts to neither step."""
_GENERATION, _SEEN = ANNOUNCED
_WITH_CUDA: Final = ("cuda", "rocm")
_python_profiler: Callable[[], object] = sys.getprofile
"""Function that returns the profiler of Python functions that is on, such as cProfile; ``None``: none."""
if sys.version_info >= (3, 12):
    _python_profiler = partial(sys.monitoring.get_tool, sys.monitoring.PROFILER_ID)


class _Meters:
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
    """The part of a ``StepRecorder`` that opens and closes steps and the recording; there is at most one at a time.

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
        self.gradients = LastGradient()
        self.session: Session | None = None
        self.step_number = 0
        self.may_evaluate = False
        """True if there was a sign of evaluation in this step."""
        self.measures_input = True
        """True if the input of the model is to be reported in this step."""
        self._find_device = device
        self._ring = RingWriter()
        self._begun = 0
        """Time at which the current step began; 0: there was no sign of training yet."""
        self._inside = 0
        """What the thread is inside of, as the sum of ``IN_…``. What an exception interrupted must not outlast its step."""
        self._flags = 1
        self._due_ns = self._wake = 0
        """Time and step from which the end of a step takes more than storing it."""
        self._meters: _Meters | None = None
        self._device: DeviceMarks | None = None
        self._marks: DeviceMarks | None = None
        """``_device`` in the steps that get marks."""
        self._on_device = self._alone = False
        """``_on_device``: the rank may wait where the host does not. ``_alone``: this is the only rank."""
        self._has_models = False
        """Whether ``_flags`` says that there are DDP models."""
        self._unseen_wait = self._tail_seen = False
        self._sampling = MarkSampling(settings.budget)
        self._windows: Windows | None = None
        self._helper_seen = 0
        self._boundary = StepBoundary()
        self._optimizers = OptimizerSteps()
        self._inner_optimizer = False
        # The iterator of the last batch, and that of the last batch before a backward pass.
        self._loading: weakref.ref[object] | None = None
        self._trained_on: weakref.ref[object] | None = None
        self._other_profiler = False
        """True from the start of a torch profiler of the script's own until the first step without it."""
        self._others = OtherGroups()
        self._forget_end: Callable[[], None] | None = None

    @property
    def cost_ns(self) -> int:
        """Cost of the recorder to the training thread so far, in nanoseconds."""
        return self._measured_ns + EVENT_NS * self._ring.at

    def claim(self) -> None:
        """Make this thread the recorded one before the first step: an optimizer steps on it (Ray trains on a side thread)."""
        # Not ``guarded``, which accepts only the recorded thread.
        try:
            here = threading.get_ident()
            foreign = isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001  # torch's own threads
            if not self.off and self.session is None and here != self.thread and not foreign:
                self.thread = self.listening = here
                self._optimizers.forget()
                # The DDP models stay: they may have been wrapped on the other thread.
                self._forget_step()
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    @guarded(default=None)
    def begin(self, at: int) -> None:
        """Start the first step here (explicit mode)."""
        if not self._begun:
            self._start(at, whole=True)

    @guarded(default=None)
    def step(self, at: int, samples: object = None, tokens: object = None, flops: object = None) -> None:
        """End the step here (explicit mode).

        ``samples``, ``tokens``, ``flops``: work of the step; what is not a number counts as unknown: reading a tensor on a device
        would wait for the device.
        """
        if not self._begun:
            self._start(at)
        if self._optimizers.going_on:
            self._note(RAISED, at)
            self._optimizers.forget()
        if samples is not None or tokens is not None or flops is not None:
            told = detail(count(samples)), detail(count(tokens)), *details_of_float(amount(flops))
            self._store(at << SHIFT | WORK, *told)
        self._close_step(at)

    def _start(self, at: int, *, whole: bool = False) -> None:
        """Start recording at the first sign of training. ``whole``: this is the start of a step."""
        self._meters = _Meters()
        self._begun = at
        self._flags |= WHOLE * whole
        self._store_usage(begins=True)

    def _store(self, *words: int) -> None:
        if not self._ring.write(*words):
            self._due_ns = 0

    def _note(self, kind: int, at: int, *details: int) -> None:
        """Store an event, with a mark on the device in steps that have them."""
        mark = 0 if self._marks is None else self._marks.place()
        self._store(at << SHIFT | mark | kind, *details)

    def _name(self, kind: int, at: int, name: str) -> None:
        """Store an event that has a name."""
        number = self._ring.name(name) if self._begun else None
        if number is not None:
            self._store(at << SHIFT | kind, detail(number))

    def _overflow(self) -> None:
        self._ring.overflow()
        self._due_ns = 0

    def _close_step(self, at: int) -> None:
        """End the step at ``at``, where the next one begins."""
        number, meters = self.step_number, self._meters
        if (
            at >= self._due_ns
            or self._marks is not None
            or meters is None
            or meters.garbage.stamps
            or _python_profiler() is not None
        ):
            # A step may have no other thread's events, nor those of a signal handler, until this is done.
            self.listening = 0
            try:
                self._close_with_work(at)
            finally:
                self.listening = self.thread
            return
        # In most of short steps, this is all.
        ring = self._ring
        i, words = ring.at, ring.words
        words[i & MASK] = at << SHIFT | END
        words[i + 1 & MASK] = number << NUMBER | self._flags
        words[i + 2 & MASK] = self._begun
        ring.at = ring.header[HEAD] = i = i + 3
        ring.limit = i + STEP_WORDS
        # Before the rest: Ctrl-C between the two leaves a gap, not two steps with the same number.
        self.step_number = number = number + 1
        self._begun = at
        self._inside = 0
        self.may_evaluate = False
        self.measures_input = not number & _INPUT_EVERY
        if number >= self._wake:
            self._due_ns = 0

    def _close_with_work(self, at: int) -> None:
        """End the step, and do what is due between two steps."""
        session, windows, meters = self.session, self._windows, self._meters
        if session is None or windows is None:
            if get_worker_info() is not None:
                self._switch_off()
                return
            session, windows = self._open()
        assert meters is not None
        wall_ns = at - self._begun
        self._end_step(at, meters, windows)
        ring, number = self._ring, self.step_number
        wakes = number >= windows.wake or ring.header[_GENERATION] != ring.header[_SEEN]
        if wakes or at >= meters.due_ns or number <= _EARLY_STEPS:
            self._read_meters(meters, number, at)
        if not ring.next_step() or at - self._helper_seen >= _HELPER_CHECK_NS:
            # Without a helper the ring would accept thousands more steps that no process writes.
            self._helper_seen = at
            if session.helper_ended():
                self.disable(_HELPER_ENDED)
                return
        if self._device is not None:
            self._read_device(self._device)
        if wakes:
            windows.boundary(number)
        if self._device is not None:
            self._choose_marks(self._device, number, at, windows)
        ring.publish()
        self._wake = windows.wake - 1
        self._begin_step(at, wall_ns)

    def _end_step(self, at: int, meters: _Meters, windows: Windows) -> None:
        """Store the end of the step and what is known only now."""
        if meters.garbage.stamps:
            collected_ns, full = meters.garbage.read()
            self._store(at << SHIFT | COLLECTED, detail(collected_ns), detail(full))
        if self.gradients.present is not self._has_models:
            self._set_waiting()
        if self._other_profiler or _python_profiler() is not None:
            # One that was on in a part of the step in which it ended counts, too.
            self._other_profiler = others_on() or _python_profiler() is not None
            self._name(TAG, at, OTHER_PROFILER)
        flags = self._flags
        if windows.session is not None or windows.prepared is not None:
            flags |= PROFILED
        if self._marks is not None:
            signalled = self._is_signalled()
            if self._marks.finish(self.step_number, signalled=signalled):
                flags |= AWAITS_DEVICE | SIGNALLED * signalled
            self._measured_ns += self._marks.given * MARK_NS
        self._store(at << SHIFT | END, self.step_number << NUMBER | flags, self._begun)
        # Before the rest, as above.
        self.step_number += 1
        self._ring.publish()

    def _begin_step(self, at: int, wall_ns: int) -> None:
        """Begin the next step: at ``at``, where the one of ``wall_ns`` ended, or now, if the work since was long."""
        number = self.step_number
        self._flags |= WHOLE
        self._unseen_wait = self._tail_seen = self.may_evaluate = False
        self._inside = 0
        self.measures_input = wall_ns >= READ_EVERY_NS or not number & _INPUT_EVERY or number <= _EARLY_STEPS
        begun = now()
        self._measured_ns += begun - at
        self._ring.set_cost(self._measured_ns)
        self._begun = at
        if begun - at > _PAUSE_NS:
            self._begun = begun
            self._store_usage(begins=True)
            if self._marks is not None:
                self._marks.begin()
        assert self._meters is not None
        busy = self._ring.spilled or self._other_profiler or self._device is not None
        self._due_ns = 0 if busy or number >= self._wake or number <= _EARLY_STEPS else self._meters.due_ns

    def _read_device(self, device: DeviceMarks) -> None:
        for message in device.read():
            self._ring.put(MessageKind.DEVICE, message)

    def _read_meters(self, meters: _Meters, number: int, at: int) -> None:
        """Store what the meters show at the end of the step before ``number``."""
        if number > meters.memory_step or at >= meters.memory_ns:
            meters.memory_step, meters.memory_ns = (number - 1) // EVERY_STEPS * EVERY_STEPS + EVERY_STEPS, at + EVERY_NS
            self._store(at << SHIFT | MEMORY, *map(detail, meters.memory.read()))
        self._store_usage()
        meters.due_ns = at + READ_EVERY_NS

    def _store_usage(self, *, begins: bool = False) -> None:
        """Store the counters of the thread. ``begins``: they are not those of the steps before."""
        if self._meters is not None:
            self._store(1 << SHIFT | USAGE, *map(detail, self._meters.thread.read()), detail(begins))

    def _open(self) -> tuple[Session, Windows]:
        optimizer = None if self._optimizers.last is None else self._optimizers.last()
        parameters = parameter_devices(optimizer)
        hello = identify(self.settings, parameters)
        session = Session(hello, self.settings.scratch_dir, self._ring)
        self.session = session
        ranks_here = ranks_on_host(hello.rank.world_size)
        schedule = Schedule.of(self.settings, on_device=hello.rank.device_kind != "cpu")
        self._windows = windows = Windows(schedule, session.scratch, self._ring, ranks_here=ranks_here)
        self._alone = hello.rank.world_size == 1
        self._on_device = hello.rank.device_kind != "cpu"
        self._set_waiting()
        self._forget_end = watch_end(partial(self.close, exiting=True), session.scratch / EXIT_STATUS_FILE)
        if hello.rank.device_kind in _WITH_CUDA and self._meters is not None:
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

    def _choose_marks(self, device: DeviceMarks, number: int, at: int, windows: Windows) -> None:
        """Let the step ``number``, which begins, have marks on the device, or not."""
        # Steps of windows always have marks: they are compared with the profile.
        chosen = self._sampling.chosen(number, at, device.given) or windows.session is not None or windows.prepared is not None
        if chosen is (self._marks is not None):
            return
        self._marks = device if chosen else None
        self.gradients.mark = device.ready if chosen else None
        if chosen:
            device.begin()
        else:
            device.pause()

    def _is_signalled(self) -> bool:
        """Return whether all waits of the device for other ranks in this step were reported.

        In a step without a pass that reduces gradients, as in a replayed CUDA graph, nothing tells whether there were waits.
        """
        if self._alone:
            return True
        seen = self.gradients.present and self._tail_seen and not self._unseen_wait
        return seen and not self._others.communicate(self.step_number, self.gradients.groups())

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
        self._switch_off()
        with suppress(Exception):
            rank = self.session.hello.rank.rank if self.session else os.environ.get("RANK", "0")
            sys.stderr.write(f"rankscope: rank {rank}: the recorder switched itself off ({reason}); training goes on\n")
        with suppress(Exception):
            if self._windows is not None:
                self._windows.close()
        with suppress(Exception):
            if self.session is not None:
                self._ring.set_disabled(reason)
                if self.session.helper_ended():
                    self.session.replace_helper()
        self._release()

    def close(self, end: End, *, exiting: bool = False) -> None:
        """End the recording; the helper writes the rest. ``exiting``: this process ends; the helper waits until it has."""
        if self.session is None:
            # Without a step there is nothing to end, but later events must be ignored.
            self._switch_off()
            self._release()
            return
        with suppress(Exception):
            if not self.off and self.session.helper_ended():
                self.disable(_HELPER_ENDED)
            if not self.off:
                here = threading.get_ident() == self.thread
                self._switch_off()
                if self._windows is not None:
                    self._windows.close()
                self._ring.set_cost(self._measured_ns)
                if here:
                    self._store_usage()
                if self._device is not None:
                    self._read_device(self._device)
                self._ring.publish()
        with suppress(Exception):
            self._ring.set_end(end)
            if end is End.CRASH:
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
                self._forget_end()

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
        """Switch off and release everything in a child forked from a recorded process (a data loader's worker)."""
        if self.session is None:
            if not self.off:
                self.thread = self.listening = threading.get_ident()
            return
        self._switch_off()
        with suppress(Exception):
            forget_in_child()
        with suppress(Exception):
            self.session.forget()
        with suppress(Exception):
            # CUDA must not be called in a forked child, not even to destroy an event.
            for holder in (self._device, self._windows, *self.gradients.tails()):
                _never_free(holder)
        self._windows = self.session = None
        self._release()


def _never_free(holder: object) -> None:
    """Keep an object and all that it refers to until the process ends, and beyond the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))
