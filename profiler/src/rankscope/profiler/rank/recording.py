"""Recording of one process: its thread, start and end, and its steps, each written into the ring when it ends.

The events in the steps come from ``recorder``.
"""

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
from typing import Any, Final

from torch.utils.data import get_worker_info

from rankscope.profiler.entries import pack, pack_within
from rankscope.profiler.events import RAISED, StepEvents
from rankscope.profiler.handover import EXIT_STATUS_FILE, EntryKind
from rankscope.profiler.phases import PhaseClock
from rankscope.profiler.plan import Schedule
from rankscope.profiler.rank import flight_dump
from rankscope.profiler.rank.ddp import LastGradient
from rankscope.profiler.rank.device import DeviceClock, DeviceLine, Mark, find_device, parameter_devices, used_gpus
from rankscope.profiler.rank.groups import OtherGroups
from rankscope.profiler.rank.guard import guarded, raised_by_a_signal_handler
from rankscope.profiler.rank.identity import has_other_place, identify, ranks_on_host
from rankscope.profiler.rank.kineto import others_on
from rankscope.profiler.rank.mark_sampling import MarkSampling
from rankscope.profiler.rank.measures import StepMeasures
from rankscope.profiler.rank.optimizers import OptimizerSteps, StepBoundary
from rankscope.profiler.rank.process_end import forget_in_child, watch_end
from rankscope.profiler.rank.session import Session
from rankscope.profiler.rank.windows import Windows
from rankscope.profiler.raw import AS_NOTED, NOT_AT_ALL, NOT_KNOWN, RawFields, RawStep, pack_raw, pack_span, to_entry
from rankscope.profiler.ring import COST, NEWS, End
from rankscope.profiler.settings import RecorderSettings
from rankscope.profiler.work import OTHER_PROFILER

_HELPER_CHECK_NS: Final = 1_000_000_000
_HELPER_ENDED: Final = "its helper process ended"
_SETTLE_SECONDS: Final = 0.1
"""Wait before the interpreter ends: torch aborts the process if a gloo thread still holds the tensors of the last collective
(pytorch/pytorch#190489). On loaded machines it holds them for milliseconds."""
_PAUSE_NS: Final = 1_000_000
"""Longest recorder work between two steps that still counts as part of a step; longer work counts to neither step."""
_GENERATION, _SEEN = NEWS
_WITH_CUDA: Final = ("cuda", "rocm")
_python_profiler: Callable[[], object] = sys.getprofile
"""Function that returns the profiler of Python functions that is on, such as cProfile; ``None``: none. Called in every step."""
if sys.version_info >= (3, 12):
    _python_profiler = partial(sys.monitoring.get_tool, sys.monitoring.PROFILER_ID)


class Recording:
    """Recording of one process; there is at most one at a time.

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
        self.cost_ns = 0
        self.thread = self.listening = threading.get_ident()
        self.gradients = LastGradient()
        self.session: Session | None = None
        self.step_number = 0
        self.may_evaluate = False
        """True if there was a sign of evaluation in this step."""
        self._find_device = device
        self._boundary = StepBoundary()
        self._events: StepEvents[StepMeasures] | None = None
        self._noted: list[Any] | None = None
        """List of noted events of ``_events``; ``None`` where marks on a device require calls of ``StepEvents.note``."""
        self._line: DeviceLine | None = None
        """Time line of the device; ``_events`` has it in the steps that get marks."""
        self._mark_wait: Callable[[], Mark | None] | None = None
        self._marked = MarkSampling(settings.budget)
        self._whole = False
        self._windows: Windows | None = None
        self._helper_seen = 0
        self._alone = self._on_host = False
        """``_alone``: this is the only rank. ``_on_host``: the host waits wherever the rank does."""
        self._optimizers = OptimizerSteps()
        self._inner_optimizer = False
        # The iterator of the last batch, and that of the last batch before a backward pass.
        self._loading: weakref.ref[object] | None = None
        self._trained_on: weakref.ref[object] | None = None
        self._in_data = self._in_backward = self._in_copy = self._in_checkpoint = False
        self._other_profiler = False
        """True from the start of a torch profiler of the script's own until the first step without it."""
        self._wait_started = 0
        self._wait_mark: Mark = None
        self._waited = False
        self._waits: list[tuple[int, int]] = []
        self._tail_unknown = self._tail_seen = False
        self._others = OtherGroups()
        self._forget_end: Callable[[], None] | None = None

    @property
    def begun(self) -> bool:
        """True if a step has ended."""
        return self.step_number > 0 or self.session is not None

    @property
    def saw_backward(self) -> bool:
        """True if a backward pass has returned."""
        return self._boundary.saw_backward

    def claim(self) -> None:
        """Make this thread the recorded one before the first step: an optimizer steps on it (Ray trains on a side thread)."""
        # Not ``guarded``, which accepts only the recorded thread.
        try:
            here = threading.get_ident()
            foreign = isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001  # torch's own threads
            if not self.off and self.session is None and here != self.thread and not foreign:
                self.thread = self.listening = here
                self._optimizers.forget()
                self._in_data = self._in_backward = self._in_copy = self._in_checkpoint = False
                self._wait_started = 0
                # The DDP models stay: they may have been wrapped on the other thread.
                self._release_events()
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    @guarded(default=None)
    def begin(self, at: int) -> None:
        """Start the first step here (explicit mode)."""
        if self._events is None:
            self._start(at, whole=True)

    @guarded(default=None)
    def step(self, at: int, samples: object = None, tokens: object = None, flops: object = None) -> None:
        """End the step here (explicit mode)."""
        events = self._events or self._start(at)
        if self._optimizers.going_on:
            events.note(RAISED, at)
            self._optimizers.forget()
        events.measures.told(samples, tokens, flops)
        self._close_step(at)

    def _start(self, at: int, *, whole: bool = False) -> StepEvents[StepMeasures]:
        """Start recording events at the first sign of training. ``whole``: this is the start of a step."""
        self._events = StepEvents(PhaseClock(at), StepMeasures())
        self._noted = self._events.noted
        self._whole = whole
        return self._events

    def _close_step(self, ended: int) -> None:  # noqa: C901, PLR0912, PLR0915  # in every step, and every call costs
        session, windows, events = self.session, self._windows, self._events
        if session is None or windows is None:
            if get_worker_info() is not None:
                self._switch_off()
                return
            session, windows = self._open()
        assert events is not None
        measures = events.measures
        if self._alone:
            waiting = NOT_AT_ALL
        elif not self._on_host or self._tail_unknown or not self.gradients.on_host:
            # With a device the host runs ahead and waits at other places.
            waiting = NOT_KNOWN
        else:
            waiting = AS_NOTED if self._waited or self.gradients.present else NOT_KNOWN
        words = session.ring.words
        wakes = self.step_number + 1 >= windows.wake or words[_GENERATION] != words[_SEEN]
        if wakes:
            # The time of the window work is part of no step, and neither is what the thread uses meanwhile.
            measures.use_due_ns = 0
        if self._other_profiler or _python_profiler() is not None:
            self._note_other_profiler(measures)
        profiled = windows.session is not None or windows.prepared is not None
        fields = measures.take(self.step_number, events, ended, profiled, waiting)
        # Before the write: Ctrl-C between the two leaves a gap, not two steps with the same number.
        self.step_number += 1
        ring = session.ring
        noted = self._noted
        payload = None if noted is None or events.understood else pack_raw(fields)
        if payload is None or len(payload) > ring.room:
            kind, payload = EntryKind.STEP, self._understand(fields, events, ring.room)
        else:
            kind = EntryKind.RAW_STEP
        # A first step whose beginning was not observed has a number but no record.
        if self._whole:
            taken = ring.put(kind, payload)
            # Without a helper the ring would accept thousands more steps that no process writes.
            if not taken or ended - self._helper_seen >= _HELPER_CHECK_NS:
                self._helper_seen = ended
                if session.helper_ended():
                    self.disable(_HELPER_ENDED)
                    return
        else:
            self._whole = True
            measures.restart_span(self.step_number)
        line = self._line
        if line is not None:
            self._read_device(line, session)
        if measures.tags or events.understood:
            measures.forget()
        if wakes:
            windows.boundary(self.step_number)
        if line is not None:
            # Steps of windows always have marks: they are compared with the profile.
            chosen = self._marked.chosen(self.step_number, ended, line.given)
            self._choose_marks(line, events, chosen or windows.session is not None or windows.prepared is not None)
        words[COST] = self.cost_ns
        # State that an exception or Ctrl-C interrupted must not outlast its step.
        self._waited = self._tail_unknown = self._tail_seen = self.may_evaluate = False
        self._in_data = self._in_backward = self._in_copy = self._in_checkpoint = False
        self._wait_started = 0
        self._wait_mark = None
        begun = now()
        if begun - ended > _PAUSE_NS:
            events.begin(begun)
            measures.restart(self.step_number)
            if events.line is not None:
                events.line.begin()
        else:
            events.begin(ended)

    def _note_other_profiler(self, measures: StepMeasures) -> None:
        """Tag the step if a profiler of the script's own is still on; it was on in a part of the step in which it ended."""
        self._other_profiler = others_on() or _python_profiler() is not None
        measures.tag(OTHER_PROFILER)

    def _understand(self, fields: RawFields, events: StepEvents[StepMeasures], room: int) -> bytes:
        """Evaluate a step that the helper cannot: it has a time line on a device, or very many events."""
        raw, line = RawStep(*fields), events.line
        events.finish(raw.ended_ns)
        awaits = line is not None and line.finish(raw.step, signalled=self._is_signalled())
        return pack_within(room, to_entry(raw, events, awaits_device=awaits))

    def _open(self) -> tuple[Session, Windows]:
        optimizer = None if self._optimizers.last is None else self._optimizers.last()
        parameters = parameter_devices(optimizer)
        hello = identify(self.settings, parameters)
        session = Session(hello, self.settings.scratch_dir)
        self.session = session
        ranks_here = ranks_on_host(hello.rank.world_size)
        self._windows = windows = Windows(Schedule.of(self.settings), session.scratch, session.ring, ranks_here=ranks_here)
        self._alone = hello.rank.world_size == 1
        self._on_host = hello.rank.device_kind == "cpu"
        self._forget_end = watch_end(partial(self.close, exiting=True), session.scratch / EXIT_STATUS_FILE)
        if hello.rank.device_kind in _WITH_CUDA and self._events is not None:
            self._events.measures.memory.gpu = next(iter(used_gpus(parameters)), None)
        device = self._find_device(optimizer)
        if device is not None:
            self._line = DeviceLine(device)
            self._mark_wait = self._line.mark_wait
        return session, windows

    def _choose_marks(self, line: DeviceLine, events: StepEvents[StepMeasures], chosen: bool) -> None:
        """Let the step that begins have marks on the device, or not."""
        if chosen is (events.line is not None):
            return
        # First, because Ctrl-C may come between any two lines: without a list, all events pass through ``note``, which is always
        # right.
        self._noted = None
        self.gradients.mark = self._mark_wait if chosen else None
        if chosen:
            events.watch(line)
            line.begin()
        else:
            events.watch(None)
            line.pause()
            self._noted = events.noted

    def _read_device(self, line: DeviceLine, session: Session) -> None:
        for entry in line.read():
            session.ring.put(EntryKind.DEVICE, pack(entry))

    def _put_span(self, session: Session) -> None:
        """Write the usage of the last steps, since the last reading, into the ring."""
        if self._events is not None:
            span = self._events.measures.take_span(self.step_number)
            session.ring.put(EntryKind.SPAN, pack_span(self.step_number - 1, span))

    def _is_signalled(self) -> bool:
        """Return whether all waits of the device for other ranks in this step were reported.

        In a step without a pass that reduces gradients, as in a replayed CUDA graph, nothing tells whether there were waits.
        """
        if self._alone:
            return True
        seen = self.gradients.present and self._tail_seen and not self._tail_unknown
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
                self.session.ring.set_disabled(reason)
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
            if not self.off and not self._has_helper(self.session):
                self.disable(_HELPER_ENDED)
            if not self.off:
                here = threading.get_ident() == self.thread
                self._switch_off()
                if self._windows is not None:
                    self._windows.close()
                self.session.ring.set_cost(self.cost_ns)
                if here:
                    self._put_span(self.session)
                if self._line is not None:
                    self._read_device(self._line, self.session)
        with suppress(Exception):
            self.session.ring.set_end(end)
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

    @staticmethod
    def _has_helper(session: Session) -> bool:
        """Return whether there is a helper to write the end, after replacing a killed one: Ray kills the children of a worker."""
        if session.helper_ended():
            session.replace_helper()
        return not session.helper_ended()

    def change_place(self) -> None:
        """Begin a new recording if the process group that was just initialised gives this process another place in its job."""
        # Not ``guarded``, because any thread may initialise the group.
        try:
            if not self.off and self.session is not None and has_other_place(self.session.hello):
                self.close(End.EXIT)
                Recording.__init__(self, self.settings, explicit=self.explicit, device=self._find_device)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    def _release(self) -> None:
        self._release_events()
        with suppress(Exception):
            self.gradients.close()

    def _release_events(self) -> None:
        if self._events is not None:
            self._events.measures.close()
            self._events = self._noted = self._line = self._mark_wait = None

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
            for holder in (self._events, self._line, self._wait_mark, self._windows, *self.gradients.tails()):
                _never_free(holder)
        self._windows = self.session = None
        self._release()


def _never_free(holder: object) -> None:
    """Keep an object and all that it refers to until the process ends, and beyond the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))
