"""The recorder of one process: told what training does, it writes one entry per step into the ring.

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
from time import sleep
from typing import Final, cast

from torch import is_grad_enabled
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import get_worker_info

from rankscope.profiler import flight_dump
from rankscope.profiler.batch import measure
from rankscope.profiler.boundary import StepBoundary
from rankscope.profiler.clock import now
from rankscope.profiler.crashes import note_crashes
from rankscope.profiler.ddp import LastGradient, Tail
from rankscope.profiler.device import DeviceClock, DeviceLine, Mark, find_device
from rankscope.profiler.entries import pack
from rankscope.profiler.events import (
    BATCH,
    BATCH_WITHOUT_GRADIENTS,
    LEAVE,
    MODEL_EVALUATES,
    MODEL_TRAINS,
    RAISED,
    TRAINING_BATCH,
    WAITED,
    StepEvents,
)
from rankscope.profiler.guard import guarded
from rankscope.profiler.handover import EntryKind
from rankscope.profiler.identity import identify
from rankscope.profiler.measures import StepMeasures
from rankscope.profiler.optimizers import OptimizerSteps
from rankscope.profiler.phases import BACKWARD, BETWEEN, DATA, H2D, OPTIMIZER, PhaseClock
from rankscope.profiler.plan import Schedule
from rankscope.profiler.ring import End
from rankscope.profiler.sections import short
from rankscope.profiler.session import Session
from rankscope.profiler.settings import RecorderSettings
from rankscope.profiler.windows import Windows
from rankscope.runs.records import PHASES

_HELPER_CHECK_NS: Final = 1_000_000_000
_HELPER_ENDED: Final = "its helper process ended"
_SETTLE_SECONDS: Final = 0.1
_PAUSE_NS: Final = 1_000_000
"""What the recorder needs longer than this for, between two steps, is part of neither."""


class Recorder:
    """One per process; see ``attach`` for who calls it.

    ``explicit``: steps end when ``step`` is called, not where optimizers say. ``device`` finds the device of an optimizer.
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
        """Whether there was a sign of evaluation in this step."""
        self._find_device = device
        self._boundary = StepBoundary()
        self._events: StepEvents | None = None
        self._whole = False
        self._windows: Windows | None = None
        self._helper_seen = 0
        self._optimizers = OptimizerSteps()
        self._inner_optimizer = False
        # The iterators that the last batch came from, and that the last batch before a backward pass did.
        self._loading: weakref.ref[object] | None = None
        self._trained_on: weakref.ref[object] | None = None
        self._in_data = self._in_backward = self._in_copy = self._in_checkpoint = False
        self._wait_started = 0
        self._wait_mark: Mark = None
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
            if not self.off and self.session is None and here != self.thread and not foreign:
                self.thread = self.listening = here
                self._optimizers.forget()
                # The models stay: they may have been wrapped on the other thread.
                self._release_events()
        except Exception as error:  # noqa: BLE001  # whatever it is, training goes on
            self.disable(f"{type(error).__name__}: {error}")

    # What training does, as told by the wrappers in ``attach`` and by ``StepProfiler``.

    @guarded(default=False)
    def enter_data(self, at: int, iterator: object = None) -> bool:
        """A batch is being asked for, from the ``iterator`` of a data loader, or (``None``) one that the script trains on.

        False: do not report its arrival.
        """
        if self._in_data:
            return False
        if iterator is not None:
            if not is_grad_enabled():
                if self._events is not None:
                    self.may_evaluate = True
                    self._events.note(BATCH_WITHOUT_GRADIENTS, at)
                return False
            if self._loading is None or self._loading() is not iterator:
                self._loading = weakref.ref(iterator)
        events = self._events or self._start(at, whole=True)
        if self.may_evaluate and (iterator is None or (self._trained_on is not None and self._trained_on() is iterator)):
            events.note(TRAINING_BATCH, at)
        self._in_data = self._optimizers.data_since = True
        events.note(DATA, at)
        return True

    @guarded(default=None)
    def leave_data(self, at: int, batch: object = None) -> None:
        """The batch is there, or there is none."""
        self._in_data = False
        if self._events is not None:
            self._events.note(BATCH, at, None if batch is None else measure(batch))

    @guarded(default=False)
    def enter_copy(self, at: int) -> bool:
        """A batch is being copied to the device. False: do not report its end."""
        if self._events is None or self._in_copy or self._in_data or self._in_backward or self._optimizers.going_on:
            return False
        self._in_copy = True
        self._events.note(H2D, at)
        return True

    @guarded(default=None)
    def leave_copy(self, at: int) -> None:
        """It is on its way."""
        self._leave_copy(at)

    def _leave_copy(self, at: int) -> None:
        if self._in_copy and self._events is not None:
            self._in_copy = False
            self._events.note(LEAVE, at)

    @guarded(default=False)
    def enter_backward(self, at: int) -> bool:
        """A backward pass starts. False: it is part of another, do not report its end."""
        if self._in_backward:
            return False
        self._in_backward = True
        self._inner_optimizer = False
        self._trained_on = self._loading
        if self._waits:
            self._waits.clear()
        (self._events or self._start(at)).note(BACKWARD, at)
        return True

    @guarded(default=cast("Tail | None", None))
    def enter_pass(self, at: int, roots: object) -> Tail | None:
        """A pass of the autograd engine over ``roots`` starts, maybe inside another; hand the answer to ``leave_pass``."""
        del at
        return self.gradients.watch(roots)

    @guarded(default=None)
    def leave_pass(self, at: int, tail: Tail) -> None:
        """It has returned or raised; what it did after its graph was exhausted was waiting."""
        ready = tail.ready_ns
        tail.close()
        if ready is None or self._events is None:
            self._tail_unknown = True
            return
        # Waits inside the tail are part of it already.
        inside = sum(waited for started, waited in self._waits if started >= ready)
        until = None if self._events.line is None else self._events.line.mark()
        self._events.note(WAITED, at, (at - ready - inside, tail.ready_mark, until))

    @guarded(default=None)
    def leave_backward(self, at: int) -> None:
        """The backward pass has returned or raised."""
        self._in_backward = False
        if self._events is not None:
            self._events.note(LEAVE, at)
        self._boundary.backward_done()
        self._optimizers.backward_since_inner = True
        if self._inner_optimizer and not self._boundary.knows_optimizers and not self.explicit:
            self._close_step(at)

    def _before_optimizer(self, at: int, optimizer: object) -> None:
        """``optimizer.step`` begins."""
        raised = self._optimizers.going_on
        if self._in_backward and not raised:
            self._inner_optimizer = True
            return
        if not self._optimizers.begins(optimizer):
            return
        events = self._events or self._start(at)
        if raised:
            events.note(RAISED, at)
        if not self.explicit and self._boundary.before_optimizer(optimizer):
            self._close_step(at)
        events.note(OPTIMIZER, at)

    def _after_optimizer(self, at: int, optimizer: object) -> None:
        """``optimizer.step`` has returned."""
        if not self._optimizers.ends(optimizer):
            return
        if self._events is not None:
            self._events.note(LEAVE, at)
        if self._boundary.after_optimizer(optimizer) and not self.explicit:
            self._close_step(at)

    # Also happens inside what is guarded already, see ``after_scaler``.
    before_optimizer = guarded(default=None)(_before_optimizer)
    after_optimizer = guarded(default=None)(_after_optimizer)

    @guarded(default=-1)
    def before_scaler(self, at: int) -> int:
        """A gradient scaler decides whether the optimizer steps; hand the answer to ``after_scaler``."""
        del at
        return self._optimizers.taken

    @guarded(default=None)
    def after_scaler(self, at: int, optimizer: object, seen: int) -> None:
        """The scaler has decided: a skipped step is a step of training all the same."""
        if self._optimizers.taken == seen:
            (self._events or self._start(at)).measures.tag("optimizer_skipped")
            self._before_optimizer(at, optimizer)
            self._after_optimizer(at, optimizer)

    @guarded(default=0)
    def enter_wait(self, at: int) -> int:
        """The thread is about to wait for other ranks; returns when. 0: it is waiting already."""
        if self._wait_started or self._events is None:
            return 0
        self._wait_started = at
        if self._events.line is not None:
            self._wait_mark = self._events.line.mark()
        return at

    @guarded(default=None)
    def leave_wait(self, at: int, started: int) -> None:
        """The wait that began at ``started`` is over."""
        self._wait_started = 0
        self._waited = True
        if self._events is None:
            return
        since, self._wait_mark = self._wait_mark, None
        until = None if self._events.line is None else self._events.line.mark()
        self._events.note(WAITED, at, (at - started, since, until))
        if self._in_backward and self.gradients.present:
            self._waits.append((started, at - started))

    @guarded(default=False)
    def enter_checkpoint(self, at: int) -> bool:
        """A checkpoint is being written. False: as part of another, or before training; do not report its end."""
        if self._events is None or self._in_checkpoint:
            return False
        self._in_checkpoint = True
        self._events.measures.tag("checkpoint")
        self._events.note(BETWEEN, at)
        return True

    @guarded(default=None)
    def leave_checkpoint(self, at: int) -> None:
        """It is written, or could not be."""
        if self._in_checkpoint and self._events is not None:
            self._in_checkpoint = False
            self._events.note(LEAVE, at)

    @guarded(default=None)
    def model_evaluates(self, at: int) -> None:
        """``model.eval()``."""
        if self._events is not None and not self._in_backward:
            self.may_evaluate = True
            self._events.note(MODEL_EVALUATES, at, is_grad_enabled())

    @guarded(default=None)
    def model_trains(self, at: int) -> None:
        """``model.train()``."""
        self.may_evaluate = False
        if self._events is not None:
            self._events.note(MODEL_TRAINS, at, is_grad_enabled())

    def adopt(self, model: DistributedDataParallel) -> None:
        """A model was wrapped for distributed data parallelism, on whatever thread: its waiting is not own time."""
        try:
            if not self.off:
                self.gradients.adopt(model)
        except Exception as error:  # noqa: BLE001  # whatever it is, training goes on
            self.disable(f"{type(error).__name__}: {error}")

    @guarded(default=None)
    def give_way(self, at: int) -> None:
        """The script starts a profiler of its own."""
        del at
        if self._windows is not None:
            self._windows.give_way()

    @guarded(default=None)
    def tag(self, at: int, tag: str) -> None:
        """Something worth knowing happens in this step."""
        del at
        if self._events is not None:
            self._events.measures.tag(tag)

    @guarded(default=None)
    def enter_section(self, at: int, name: str) -> None:
        """A section of the script's own begins."""
        if self._events is not None:
            self._events.measures.sections.enter(short(name), at)

    @guarded(default=None)
    def leave_section(self, at: int, name: str) -> None:
        """It ends, well or not."""
        if self._events is not None:
            self._events.measures.sections.leave(short(name), at)

    @guarded(default=None)
    def begin(self, at: int) -> None:
        """Explicit mode: the first step starts here."""
        if self._events is None:
            self._start(at, whole=True)

    @guarded(default=None)
    def step(self, at: int, samples: object = None, tokens: object = None, flops: object = None) -> None:
        """Explicit mode: the step ends here."""
        events = self._events or self._start(at)
        if self._optimizers.going_on:
            events.note(RAISED, at)
            self._optimizers.forget()
        events.measures.told(samples, tokens, flops)
        self._close_step(at)

    # The machinery.

    def _start(self, at: int, *, whole: bool = False) -> StepEvents:
        """The first sign of training. ``whole``: it is the start of a step."""
        self._events = StepEvents(PhaseClock(at), StepMeasures())
        self._whole = whole
        return self._events

    def _close_step(self, ended: int) -> None:
        if self.session is None:
            if get_worker_info() is not None:
                self._switch_off()
                return
            self._open()
        events, session, windows = self._events, self.session, self._windows
        assert events is not None
        assert session is not None
        assert windows is not None
        wall, line = events.finish(ended), events.line
        entry = events.measures.take(
            ended,
            step=self.step_number,
            wall_ns=wall,
            phases_ns=events.clock.times,
            blocked_ns=self._blocked(events.clock),
            profiled=windows.active,
            awaits_device=line is not None and line.finish(self.step_number, signalled=self._is_signalled()),
        )
        # A first step whose beginning nobody saw has a number but no record.
        if self._whole:
            taken = session.ring.put(EntryKind.STEP, pack(entry))
            # The ring takes thousands of steps more, and nobody would write them.
            if not taken or ended - self._helper_seen >= _HELPER_CHECK_NS:
                self._helper_seen = ended
                if session.helper_ended():
                    self.disable(_HELPER_ENDED)
                    return
        if line is not None:
            self._read_device(line, session)
        self._whole = True
        self.step_number += 1
        windows.boundary(self.step_number)
        session.ring.set_cost(self.cost_ns)
        # After an exception or Ctrl-C in the middle of something, nothing of it may last longer than its step.
        self._waited = self._tail_unknown = self.may_evaluate = False
        self._in_data = self._in_backward = self._in_copy = self._in_checkpoint = False
        self._wait_started = 0
        begun = now()
        if begun - ended > _PAUSE_NS:
            events.restart(begun)
        else:
            events.begin(ended)

    def _open(self) -> None:
        hello = identify(self.settings)
        session = Session(hello, self.settings.scratch_dir)
        self.session = session
        self._windows = Windows(Schedule.of(self.settings), session.scratch, session.ring)
        atexit.register(self.close, End.EXIT)
        self._forget_crashes = note_crashes(self.close)
        device = self._find_device(None if self._optimizers.last is None else self._optimizers.last())
        if device is not None and self._events is not None:
            line = DeviceLine(device)
            self._events.watch(line)
            self.gradients.mark = line.mark

    def _read_device(self, line: DeviceLine, session: Session) -> None:
        for entry in line.read():
            session.ring.put(EntryKind.DEVICE, pack(entry))

    def _blocked(self, clock: PhaseClock) -> list[int] | None:
        """Waiting per phase on the host, or ``None`` where the host's waiting is not the rank's."""
        assert self.session is not None
        rank = self.session.hello.rank
        if rank.world_size == 1:
            return [0] * len(PHASES)
        # On a device the host runs ahead and waits somewhere else.
        if not self.gradients.on_host or rank.device_kind != "cpu" or self._tail_unknown:
            return None
        return clock.blocked if self.gradients.present or self._waited else None

    def _is_signalled(self) -> bool:
        """Whether all that the device waited for other ranks in this step was told."""
        assert self.session is not None
        if self.session.hello.rank.world_size == 1:
            return True
        return self.gradients.present and not self._tail_unknown

    def disable(self, reason: str) -> None:
        """Switch off for good, and say so once."""
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

    def close(self, end: End) -> None:
        """The script ends, well or not; the helper does the rest."""
        if self.session is None:
            # Without a step there is nothing to end, but neither may it hear of what comes.
            self._switch_off()
            self._release()
            return
        with suppress(Exception):
            if not self.off and self.session.helper_ended():
                self.disable(_HELPER_ENDED)
            if not self.off:
                self._switch_off()
                if self._windows is not None:
                    self._windows.close()
                self.session.ring.set_cost(self.cost_ns)
                if self._events is not None and self._events.line is not None:
                    self._read_device(self._events.line, self.session)
        with suppress(Exception):
            self.session.ring.set_end(end)
            if end is End.CRASH:
                flight_dump.dump_crash(self.session.scratch)
        with suppress(Exception):
            self.session.close()
        flight_dump.settle()
        if self.session is not None and self.session.hello.rank.world_size > 1:
            # A thread of gloo's that lets go of a finished pass while the interpreter ends would abort the process.
            with suppress(Exception):
                sleep(_SETTLE_SECONDS)
        self._windows = self.session = None
        self._release()
        # A script may record many times: nothing of a finished recording may stay.
        with suppress(Exception):
            atexit.unregister(self.close)
            if self._forget_crashes is not None:
                self._forget_crashes()

    def _release(self) -> None:
        self._release_events()
        with suppress(Exception):
            self.gradients.close()

    def _release_events(self) -> None:
        if self._events is not None:
            self._events.measures.close()
            self._events = None

    def _switch_off(self) -> None:
        self.off = True
        self.thread = self.listening = 0

    def forked(self) -> None:
        """In a child forked from a recorded process (a data loader's worker): be silent, and let go."""
        if self.session is None:
            if not self.off:
                self.thread = self.listening = threading.get_ident()
            return
        self._switch_off()
        with suppress(Exception):
            self.session.forget()
        self._windows = self.session = None
        self._release()
