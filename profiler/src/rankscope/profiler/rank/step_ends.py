"""Ends of steps: what is stored there, and the work that is due between two steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import perf_counter_ns as now
from typing import Final

from torch.utils.data import get_worker_info

from rankscope.profiler.rank.gpu.device import DeviceMarks
from rankscope.profiler.rank.gpu.kineto import others_on
from rankscope.profiler.rank.gpu.mark_sampling import MARK_NS
from rankscope.profiler.rank.gpu.windows import WindowController
from rankscope.profiler.rank.guard import guarded, print_line
from rankscope.profiler.rank.lifecycle import HELPER_ENDED, RankMeters, RecorderLifecycle
from rankscope.profiler.rank.measures import amount, count
from rankscope.profiler.rank.meters import EVERY_NS, EVERY_STEPS, READ_EVERY_NS
from rankscope.profiler.rank.session import Session
from rankscope.profiler.ring import GENERATION, HEAD, MASK, SEEN, STEP_WORDS
from rankscope.profiler.words import (
    AWAITS_DEVICE,
    COLLECTED,
    END,
    MEMORY,
    NUMBER,
    PROFILED,
    RAISED,
    SHIFT,
    SIGNALLED,
    TAG,
    WHOLE_STEP,
    WORK,
    detail,
    details_of_float,
)
from rankscope.profiler.work import OTHER_PROFILER

_INPUT_EVERY: Final = 15
"""Mask of the numbers of the short steps in which the model's input is measured: one of 16."""
_EARLY_STEPS: Final = 16
"""Number of steps in which everything is measured, however short they are: a job may have few."""
_HELPER_CHECK_NS: Final = 1_000_000_000
_PAUSE_NS: Final = 1_000_000
"""Longest recorder work between two steps that still counts as part of a step; longer work counts to neither step."""
_python_profiler: Callable[[], object] = sys.getprofile
"""Function that returns the profiler of Python functions that is on, such as cProfile; ``None``: none."""
if sys.version_info >= (3, 12):
    _python_profiler = partial(sys.monitoring.get_tool, sys.monitoring.PROFILER_ID)


class StepEnds(RecorderLifecycle):
    """The part of a ``StepRecorder`` that begins and ends steps."""

    @guarded(default=None)
    def begin(self, at: int) -> None:
        """Start the first step here (explicit mode)."""
        if not self._begun:
            self._start(at, is_whole=True)

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
            work = detail(count(samples)), detail(count(tokens)), *details_of_float(amount(flops))
            self._store(at << SHIFT | WORK, *work)
        self._close_step(at)

    def _start(self, at: int, *, is_whole: bool = False) -> None:
        """Start recording at the first sign of training. ``is_whole``: this is the start of a step."""
        self._begun = at
        meters = RankMeters()
        if self.thread != get_ident():
            meters.close()  # training has moved to another thread meanwhile, with meters of its own
            return
        self._meters = meters
        self._flags |= WHOLE_STEP * is_whole
        self._store_usage(begins=True)

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
            # A signal handler of the script may run at any call below: its events must not come between these words.
            self.listening = 0
            try:
                with self._busy:
                    if self.thread == get_ident():  # otherwise training has just moved to another thread
                        self._close_with_work(at)
            finally:
                self.listening = self.thread
            return
        # Most short steps need nothing more than this.
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
        wakes = number >= windows.wake or ring.header[GENERATION] != ring.header[SEEN]
        if wakes or at >= meters.due_ns or number <= _EARLY_STEPS:
            self._read_meters(meters, number, at)
        if not ring.next_step() or at - self._helper_seen >= _HELPER_CHECK_NS:
            # Without a helper the ring would accept thousands more steps that no process writes.
            self._helper_seen = at
            if session.helper_ended() and not self._replace_helper(session):
                self.disable(HELPER_ENDED)
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

    def _replace_helper(self, session: Session) -> bool:
        """Replace a killed helper, and say so once; false: it cannot be replaced."""
        if not session.has_helper():
            return False
        if not self._replaced:
            self._replaced = True
            print_line(f"rank {session.handover.rank.rank}: its helper process was killed; another one goes on")
        return True

    def _end_step(self, at: int, meters: RankMeters, windows: WindowController) -> None:
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
        if windows.is_profiling:
            flags |= PROFILED
        if self._marks is not None:
            signalled = self._is_signalled()
            if self._marks.finish(self.step_number, signalled=signalled):
                flags |= AWAITS_DEVICE | SIGNALLED * signalled
            self._measured_ns += self._marks.mark_count * MARK_NS
        self._store(at << SHIFT | END, self.step_number << NUMBER | flags, self._begun)
        # Before the rest, as above.
        self.step_number += 1
        self._ring.publish()

    def _begin_step(self, at: int, wall_ns: int) -> None:
        """Begin the next step: at ``at``, where the one of ``wall_ns`` ended, or now, if the work since was long."""
        number = self.step_number
        self._flags |= WHOLE_STEP
        self._unseen_wait = self._pass_end_seen = self.may_evaluate = False
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

    def _read_meters(self, meters: RankMeters, number: int, at: int) -> None:
        """Store what the meters show at the end of the step before ``number``."""
        if number > meters.memory_step or at >= meters.memory_ns:
            meters.memory_step, meters.memory_ns = (number - 1) // EVERY_STEPS * EVERY_STEPS + EVERY_STEPS, at + EVERY_NS
            self._store(at << SHIFT | MEMORY, *map(detail, meters.memory.read()))
        self._store_usage()
        meters.due_ns = at + READ_EVERY_NS

    def _choose_marks(self, device: DeviceMarks, number: int, at: int, windows: WindowController) -> None:
        """Let the step ``number``, which begins, have marks on the device, or not."""
        # Steps of windows always have marks: they are compared with the profile.
        chosen = self._sampling.chosen(number, at, device.mark_count) or windows.is_profiling
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
        is_signalled = self.gradients.present and self._pass_end_seen and not self._unseen_wait
        return is_signalled and not self._others.communicate(self.step_number, self.gradients.groups())
