"""The recorder of one process: told what training does, it writes one record per step into the ring.

Every public method may be called from training code, so none of them raises: the first fault of the recorder's own switches it
off for good, with one line on stderr, and training goes on.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import get_worker_info

from rankscope.profiler.boundary import StepBoundary
from rankscope.profiler.clock import now
from rankscope.profiler.crashes import note_crashes
from rankscope.profiler.ddp import LastGradient
from rankscope.profiler.guard import guarded
from rankscope.profiler.handover import EntryKind
from rankscope.profiler.identity import identify
from rankscope.profiler.measures import StepMeasures
from rankscope.profiler.phases import PhaseClock, Timed, in_microseconds
from rankscope.profiler.ring import End
from rankscope.profiler.session import Session
from rankscope.profiler.settings import RecorderSettings
from rankscope.profiler.windows import Schedule, Windows
from rankscope.runs.records import PhaseTimes, StepRecord

_HELPER_CHECK_NS: Final = 1_000_000_000
_HELPER_ENDED: Final = "its helper process ended"


class Recorder:
    """One per process; see ``attach`` for who calls it.

    ``explicit``: steps end when ``step`` is called, not where optimizers say.
    """

    def __init__(self, settings: RecorderSettings, *, explicit: bool = False) -> None:
        self.settings = settings
        self.explicit = explicit
        self.off = False
        self.cost_ns = 0
        self.thread = threading.get_ident()
        self.gradients = LastGradient()
        self.session: Session | None = None
        self.step_number = 0
        self._boundary = StepBoundary()
        self._clock: PhaseClock | None = None
        self._whole = False
        self._windows: Windows | None = None
        self._measures: StepMeasures | None = None
        self._helper_seen = 0
        # Weak: an optimizer whose step raised may have been thrown away, and its state is large.
        self._optimizer: weakref.ref[object] | None = None
        self._data_since_optimizer = False
        self._inner: int | None = None
        self._backward_since_inner = False
        self._optimizers_seen = 0
        self._inner_optimizer = False
        self._wait_started = 0
        self._waited = False
        self._waits: list[tuple[int, int]] = []
        self._tail_unknown = False
        self._forget_crashes: Callable[[], None] | None = None

    def claim(self) -> None:
        """Before the first step: an optimizer steps on this thread, so this thread trains (Ray's is not the main one)."""
        # Not ``guarded``, which is for the thread that trains.
        try:
            here = threading.get_ident()
            foreign = isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001  # torch's own threads
            if self.session is None and here != self.thread and not foreign:
                self.thread = here
                self._clock = self._optimizer = None
                # The models stay: they may have been wrapped on the other thread.
                self._release_measures()
        except Exception as error:  # noqa: BLE001  # whatever it is, training goes on
            self.disable(f"{type(error).__name__}: {error}")

    # What training does, as told by the wrappers in ``attach`` and by ``StepProfiler``.

    @guarded(default=False)
    def enter_data(self) -> bool:
        """A batch is being asked for. False: do not report its arrival."""
        if self._inside("data") or not (self.explicit or torch.is_grad_enabled()):
            return False
        self._data_since_optimizer = True
        self._running(whole=True).enter("data", now())
        return True

    @guarded(default=None)
    def leave_data(self, batch: object = None) -> None:
        """The batch is there, or there is none."""
        self._running().leave(now())
        if self._measures is not None:
            self._measures.add_batch(batch)

    @guarded(default=False)
    def enter_backward(self) -> bool:
        """A backward pass starts. False: it is part of another, do not report its end."""
        if self._inside("backward"):
            return False
        self._running().enter("backward", now())
        self.gradients.begin()
        self._waits.clear()
        self._inner_optimizer = False
        return True

    @guarded(default=None)
    def leave_backward(self) -> None:
        """The backward pass has returned or raised."""
        clock, ended = self._running(), now()
        if self.gradients.present and self.gradients.synchronises():
            ready = self.gradients.ready_ns
            if ready is None:
                self._tail_unknown = True
            else:
                # Waits inside the tail are part of it already.
                inside = sum(waited for started, waited in self._waits if started >= ready)
                clock.wait(ended - ready - inside)
            self.gradients.end()
        clock.leave(ended)
        self._boundary.backward_done()
        self._backward_since_inner = True
        if self._inner_optimizer and not self._boundary.knows_optimizers and not self.explicit:
            self._close_step(now())

    @guarded(default=None)
    def before_optimizer(self, optimizer: object) -> None:
        """``optimizer.step`` begins."""
        if self._inside("backward") and not self._inside("optimizer"):
            self._inner_optimizer = True
            return
        if self._is_inner(optimizer):
            return
        clock = self._running()
        if self._optimizer is not None:
            clock.abandon("optimizer")  # that step raised
        if not self.explicit and self._boundary.before_optimizer(optimizer):
            self._close_step(now())
        self._optimizer, self._inner = weakref.ref(optimizer), None
        self._data_since_optimizer = False
        clock.enter("optimizer", now())

    def _is_inner(self, optimizer: object) -> bool:
        """Whether ``optimizer`` steps inside the step of another, as in an optimizer made of optimizers.

        Nobody says when a step raises, so the one last heard of may be over: it is gone, data was asked for since, or one that
        steps inside it steps again after another backward. A backward alone proves nothing: closures have them.
        """
        outer = None if self._optimizer is None else self._optimizer()
        if outer is None or outer is optimizer or self._data_since_optimizer:
            return False
        if self._inner == id(optimizer) and self._backward_since_inner:
            return False
        if self._inner is None:
            self._inner, self._backward_since_inner = id(optimizer), False
        return True

    @guarded(default=None)
    def after_optimizer(self, optimizer: object) -> None:
        """``optimizer.step`` has returned."""
        if self._optimizer is None or self._optimizer() is not optimizer:
            return
        self._optimizer = None
        self._optimizers_seen += 1
        ended = now()
        self._running().leave(ended)
        if self._boundary.after_optimizer(optimizer) and not self.explicit:
            self._close_step(ended)

    @guarded(default=-1)
    def before_scaler(self) -> int:
        """A gradient scaler decides whether the optimizer steps; hand the answer to ``after_scaler``."""
        return self._optimizers_seen

    @guarded(default=None)
    def after_scaler(self, optimizer: object, seen: int) -> None:
        """The scaler has decided: a skipped step is a step of training all the same."""
        if self._optimizers_seen == seen:
            self._note("optimizer_skipped")
            self.before_optimizer(optimizer)
            self.after_optimizer(optimizer)

    @guarded(default=0)
    def enter_wait(self) -> int:
        """The thread is about to wait for other ranks; returns when. 0: it is waiting already."""
        if self._wait_started or self._clock is None:
            return 0
        self._wait_started = now()
        return self._wait_started

    @guarded(default=None)
    def leave_wait(self, started: int) -> None:
        """The wait that began at ``started`` is over."""
        self._wait_started = 0
        self._waited = True
        waited = now() - started
        clock = self._running()
        clock.wait(waited)
        if clock.inside("backward") and self.gradients.present:
            self._waits.append((started, waited))

    @guarded(default=None)
    def adopt(self, model: DistributedDataParallel) -> None:
        """A model was wrapped for distributed data parallelism."""
        self.gradients.adopt(model)

    @guarded(default=None)
    def give_way(self) -> None:
        """The script starts a profiler of its own."""
        if self._windows is not None:
            self._windows.give_way()

    @guarded(default=None)
    def tag(self, tag: str) -> None:
        """Something worth knowing happens in this step."""
        self._note(tag)

    def _note(self, tag: str) -> None:
        if self._measures is not None:
            self._measures.tag(tag)

    @guarded(default=None)
    def begin(self) -> None:
        """Explicit mode: the first step starts here."""
        self._running(whole=True)

    @guarded(default=None)
    def step(self, samples: int | None = None, tokens: int | None = None) -> None:
        """Explicit mode: the step ends here."""
        if samples is not None and self._measures is not None:
            self._measures.samples = samples
        if self._optimizer is not None:
            self._running().abandon("optimizer")  # its step raised
            self._optimizer = None
        self._close_step(now(), tokens)

    # The machinery.

    def _inside(self, phase: Timed) -> bool:
        return self._clock is not None and self._clock.inside(phase)

    def _running(self, *, whole: bool = False) -> PhaseClock:
        """The clock of the current step, started by the first sign of training. ``whole``: that sign is the start of a step."""
        if self._clock is None:
            self._measures = StepMeasures()
            self._clock = PhaseClock(now())
            self._whole = whole
            self._begin_step()
        return self._clock

    def _begin_step(self) -> None:
        assert self._clock is not None
        assert self._measures is not None
        self._waited = self._tail_unknown = False
        self._measures.begin()
        self._clock.begin(now())

    def _close_step(self, ended: int, tokens: int | None = None) -> None:
        clock = self._running()
        if self.session is None:
            if get_worker_info() is not None:
                self.off = True
                return
            self._open()
        assert self.session is not None
        assert self._windows is not None
        # A first step whose beginning nobody saw has a number but no record.
        if self._whole:
            taken = self.session.ring.put(EntryKind.STEP, msgspec.json.encode(self._record(clock, ended, tokens)))
            # The ring takes thousands of steps more, and nobody would write them.
            if not taken or ended - self._helper_seen >= _HELPER_CHECK_NS:
                self._helper_seen = ended
                if self.session.helper_ended():
                    self.disable(_HELPER_ENDED)
                    return
        self._whole = True
        self.step_number += 1
        self._windows.boundary(self.step_number)
        self.session.ring.set_cost(self.cost_ns)
        self._begin_step()

    def _open(self) -> None:
        hello = identify(self.settings)
        session = Session(hello, self.settings.scratch_dir)
        self.session = session
        schedule = Schedule(
            self.settings.window_first,
            1000 if self.settings.window_every is None else self.settings.window_every,
            self.settings.window_steps,
        )
        self._windows = Windows(schedule, session.scratch, session.ring.put)
        atexit.register(self.close, End.EXIT)
        self._forget_crashes = note_crashes(self.close)

    def _record(self, clock: PhaseClock, ended: int, tokens: int | None) -> StepRecord:
        assert self._windows is not None
        assert self._measures is not None
        return StepRecord(
            step=self.step_number,
            wall_us=clock.finish(ended) / 1000,
            phases_us=in_microseconds(clock.times, clock.times),
            blocked_us=self._blocked(clock),
            tokens=tokens,
            profiled=self._windows.active,
            **self._measures.take(),
        )

    def _blocked(self, clock: PhaseClock) -> PhaseTimes | None:
        assert self.session is not None
        hello = self.session.hello
        if hello.rank.world_size == 1:
            return in_microseconds({}, clock.times)
        # On a device the host runs ahead and waits somewhere else: its waiting is not the rank's.
        if not self.gradients.on_host or hello.rank.device_kind != "cpu" or self._tail_unknown:
            return None
        if not self.gradients.present and not self._waited:
            return None
        return in_microseconds(clock.blocked, clock.times)

    def disable(self, reason: str) -> None:
        """Switch off for good, and say so once."""
        if self.off:
            return
        self.off = True
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

    def close(self, end: End) -> None:
        """The script ends, well or not; the helper does the rest."""
        if self.session is None:
            return
        with suppress(Exception):
            if not self.off and self.session.helper_ended():
                self.disable(_HELPER_ENDED)
            if not self.off:
                self.off = True
                if self._windows is not None:
                    self._windows.close()
                self.session.ring.set_cost(self.cost_ns)
            self.session.ring.set_end(end)
        with suppress(Exception):
            self.session.close()
        self._windows = self.session = None
        self._release()
        # A script may record many times: nothing of a finished recording may stay.
        with suppress(Exception):
            atexit.unregister(self.close)
            if self._forget_crashes is not None:
                self._forget_crashes()

    def _release(self) -> None:
        self._release_measures()
        with suppress(Exception):
            self.gradients.close()

    def _release_measures(self) -> None:
        if self._measures is not None:
            self._measures.close()
            self._measures = None

    def forked(self) -> None:
        """In a child forked from a recorded process (a data loader's worker): be silent, and let go."""
        if self.session is None:
            self.thread = threading.get_ident()
            return
        self.off = True
        with suppress(Exception):
            self.session.forget()
        self._windows = self.session = None
        self._release()
