"""Events of training, reported to the recorder of its process by the wrappers in ``attach`` and by ``StepProfiler``.

Every public method may be called from training code, so none of them raises: the first error of the recorder switches it off for
good, with one line on stderr, and training goes on.

Methods that run in every step store their words inline: between two events of training all caches are cold, so every additional
function call costs as much as the work it does. A signal handler of the script may run at any call and train or save there, so
between reading the position in the ring and storing it there is no call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns as now
from typing import Final, cast

import torch
from torch import Size, Tensor, is_grad_enabled

from rankscope.profiler.phases import BACKWARD, DATA, OPTIMIZER
from rankscope.profiler.rank.guard import guarded
from rankscope.profiler.rank.lifecycle import IN_BACKWARD, IN_DATA, IN_WAIT
from rankscope.profiler.rank.measures import measure
from rankscope.profiler.rank.occasional_events import OccasionalEvents
from rankscope.profiler.rank.wrappers.ddp import PassEnd
from rankscope.profiler.ring import MASK, STEP_WORDS
from rankscope.profiler.words import (
    BATCH,
    BATCH_WITHOUT_GRADIENTS,
    KIND,
    LEAVE,
    MODEL_INPUT,
    NO_BATCH,
    NOTHING,
    RAISED,
    READY,
    RETURNED,
    SHIFT,
    TRAINING_BATCH,
    UNSEEN_WAIT,
    WAIT,
    WAITED,
    detail,
)

_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)  # noqa: SLF001  # not public
"""Return the id of the pass that the autograd engine runs on this thread; -1: none."""
_elements: Callable[[Size], int] = Size.numel
_MERGING: Final = STEP_WORDS - 512
"""Number of words left to a step below which consecutive waits become one, with their total time: some training waits thousands
of times."""


class StepRecorder(OccasionalEvents):
    """Recorder of the steps of this process; ``attach`` has the callers of its methods."""

    # In every step.

    def enter_data(self, iterator: object = None) -> bool:
        """Note the request for a batch, from the ``iterator`` of a data loader or (``None``) from ``StepProfiler.data``.

        False: do not report its arrival.
        """
        if get_ident() != self.listening or self._inside & IN_DATA:
            return False
        at = now()
        try:
            if iterator is not None:
                if not is_grad_enabled():
                    if self._begun:
                        self.may_evaluate = True
                        self._note(BATCH_WITHOUT_GRADIENTS, at)
                    return False
                if self._loading is None or self._loading() is not iterator:
                    self._loading = weakref.ref(iterator)
            if not self._begun:
                self._start(at, is_whole=True)
            if self.may_evaluate and (iterator is None or (self._trained_on is not None and self._trained_on() is iterator)):
                self._note(TRAINING_BATCH, at)
            self._inside |= IN_DATA
            self._optimizers.data_since = True
            mark = 0 if self._marks is None else self._marks.place()
            ring = self._ring
            if ring.at >= ring.limit:
                self._overflow()
            i = ring.at
            ring.words[i & MASK] = at << SHIFT | mark | DATA
            ring.at = i + 1
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
            return False
        return True

    def leave_data(self, batch: object = None) -> None:
        """Note that the batch has arrived, or that there is none."""
        if get_ident() != self.listening:
            return
        at = now()
        try:
            self._inside &= ~IN_DATA
            if not self._begun:
                return
            mark = 0 if self._marks is None else self._marks.place()
            if batch is None:
                self._store(at << SHIFT | mark | NO_BATCH)
                return
            # Fast path for one tensor, alone or from a ``TensorDataset`` of one: others cost several times as much.
            first = batch[0] if type(batch) is list and len(batch) == 1 else batch
            if type(first) is Tensor and not first.is_nested:
                shape = first.shape
                elements = _elements(shape) + 1 << 1 | 1
                samples = shape[0] + 1 << 1 | 1 if shape else NOTHING
            else:
                samples, elements = map(detail, measure(batch))
            ring = self._ring
            i, words = ring.at, ring.words
            words[i & MASK] = at << SHIFT | mark | BATCH
            words[i + 1 & MASK] = samples
            words[i + 2 & MASK] = elements
            ring.at = i + 3
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    def enter_model(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Note the arguments with which the model is called; without gradients that is no training."""
        if get_ident() != self.listening or self._inside & IN_BACKWARD or not is_grad_enabled() or not self._begun:
            return
        at = now()
        try:
            _, elements = measure(args[0] if len(args) == 1 and not kwargs else (args, kwargs))
            self._store(at << SHIFT | MODEL_INPUT, detail(elements))
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    def enter_backward(self, roots: object = None) -> bool | PassEnd:
        """Note the start of a backward pass over ``roots``. False: it is part of another, do not report its end.

        Pass any other result to ``leave_backward``.
        """
        if get_ident() != self.listening or (self._inside & IN_BACKWARD and _graph_task() != -1):
            return False
        at = now()
        try:
            if self._inside & IN_BACKWARD:
                self._backward_was_left(at)
            if not self._begun:
                self._start(at)
            self._inside |= IN_BACKWARD
            self._inner_optimizer = False
            self._trained_on = self._loading
            marks, mark = self._marks, 0
            if marks is not None:
                marks.follow()
                mark = marks.place()
            ring = self._ring
            if ring.at >= ring.limit:
                self._overflow()
            i = ring.at
            ring.words[i & MASK] = at << SHIFT | mark | BACKWARD
            ring.at = i + 1
            return (self.gradients.present and roots is not None and self.gradients.watch_pass(roots)) or True
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
            return False

    def leave_backward(self, passed: bool | PassEnd = True) -> None:  # positional, as above
        """Note that the backward pass has returned or raised."""
        if get_ident() != self.listening:
            return
        at = now()
        try:
            self._inside &= ~IN_BACKWARD
            gradients = self.gradients
            if (
                type(passed) is PassEnd
                and passed is gradients.shared_end
                and self._begun
                and passed.stamps
                and self._marks is None
            ):
                # Fast path of the code below, for the usual loop.
                ready, ring = passed.stamps[0], self._ring
                i = ring.at
                ring.words[i & MASK] = ready << SHIFT | READY
                ring.at = i + 1
            elif passed is not True and passed:
                self._note_pass_end(passed)
            mark = 0 if self._marks is None else self._marks.place()
            if self._begun:
                ring = self._ring
                i = ring.at
                ring.words[i & MASK] = at << SHIFT | mark | LEAVE
                ring.at = i + 1
            boundary = self._boundary
            boundary.backward_seen = boundary.backward_since_close = boundary.backward_since_step = True
            self._optimizers.backward_since_inner = True
            if self._inner_optimizer and not self._boundary.knows_optimizers and not self.explicit:
                self._close_step(at)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    def before_optimizer(self, optimizer: object) -> None:
        """Note the start of ``optimizer.step``."""
        if get_ident() != self.listening:
            return
        at = now()
        try:
            optimizers = self._optimizers
            last = optimizers.last
            if (
                self._marks is None
                and self._begun
                and not self._inside
                and not self._boundary.stepped
                and optimizers.current is None
                and last is not None
                and last() is optimizer
            ):
                # Fast path of the code below, for the usual loop.
                optimizers.current, optimizers.inner, optimizers.data_since = last, None, False
                ring = self._ring
                i = ring.at
                ring.words[i & MASK] = at << SHIFT | OPTIMIZER
                ring.at = i + 1
            else:
                self._before_optimizer(at, optimizer)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    def after_optimizer(self, optimizer: object) -> None:
        """Note that ``optimizer.step`` has returned."""
        if get_ident() != self.listening:
            return
        at = now()
        try:
            optimizers = self._optimizers
            current = optimizers.current
            if current is None or current() is not optimizer:
                return
            optimizers.last, optimizers.current = current, None
            optimizers.taken += 1
            if self._begun and self._boundary.after_optimizer(optimizer) and not self.explicit:
                self._close_step(at)
            else:
                self._note(LEAVE, at)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    def enter_wait(self) -> int:
        """Begin a wait for other ranks; return its start, or 0 if the thread is waiting already or nothing is recorded."""
        if get_ident() != self.listening or self._inside & IN_WAIT or not self._begun:
            return 0
        at = now()
        try:
            marks, mark = self._marks, 0
            # With a device, the host does not wait where the rank does, so only marks tell how long.
            if self._on_device and (marks is None or not (mark := marks.place_wait())):
                self._unseen_wait = True
                return 0
            self._inside |= IN_WAIT
            ring = self._ring
            if ring.at >= ring.limit:
                self._overflow()
            i = ring.at
            ring.words[i & MASK] = at << SHIFT | mark | WAIT
            ring.at = i + 1
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
            return 0
        return at

    def leave_wait(self, started: int) -> None:
        """End the wait that began at ``started``."""
        if get_ident() != self.listening:
            return
        at = now()
        try:
            self._inside &= ~IN_WAIT
            mark = 0 if self._marks is None else self._marks.place_wait()
            ring = self._ring
            i, words = ring.at, ring.words
            if ring.limit - i < _MERGING and not mark and words[i - 2 & MASK] & KIND == WAITED:
                # The wait before ends later instead.
                words[i - 2 & MASK] += at - started << SHIFT
                words[i - 1 & MASK] = 0
                ring.at = i - 1
            else:
                words[i & MASK] = at << SHIFT | mark | WAITED
                ring.at = i + 1
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    # Not in every step.

    def _before_optimizer(self, at: int, optimizer: object) -> None:
        raised = self._optimizers.going_on
        if self._inside & IN_BACKWARD and not raised:
            if _graph_task() != -1:
                self._inner_optimizer = True
                return
            self._backward_was_left(at)
        if not self._optimizers.begins(optimizer):
            return
        if not self._begun:
            self._start(at)
        if raised:
            self._note(RAISED, at)
        if not self.explicit and self._boundary.stepped and self._boundary.before_optimizer(optimizer):
            self._close_step(at)
        marks, mark, ring = self._marks, 0, self._ring
        if marks is not None:
            if not marks.follows:
                marks.follow()
            # The optimizer's time begins where the pass before ended, which has a mark.
            if ring.words[ring.at - 1 & MASK] & KIND != LEAVE:
                mark = marks.place()
        self._store(at << SHIFT | mark | OPTIMIZER)

    def _backward_was_left(self, at: int) -> None:
        """End a pass whose end was not reported because of an exception, for example in a signal handler."""
        self._inside &= ~IN_BACKWARD
        if self._begun:
            self._note(LEAVE, at)

    @guarded(default=cast("PassEnd | None", None))
    def enter_pass(self, at: int, roots: object) -> PassEnd | None:
        """Note a pass of the autograd engine over ``roots`` inside another; pass the result to ``leave_pass``."""
        del at
        return self.gradients.watch(roots)

    @guarded(default=None)
    def leave_pass(self, at: int, pass_end: PassEnd) -> None:
        """Note that the nested pass has returned or raised."""
        self._note_pass_end(pass_end)
        self._note(RETURNED, at)

    def _note_pass_end(self, pass_end: PassEnd) -> None:
        """Note since when a pass has only waited for others; its end is to be noted next."""
        if not self._begun:
            return
        stamps = pass_end.stamps
        if stamps:
            mark = 0 if self._marks is None else self._marks.add(pass_end.ready_mark)
            ready, ring = stamps[0], self._ring
            i = ring.at
            ring.words[i & MASK] = ready << SHIFT | mark | READY
            ring.at = i + 1
            self._pass_end_seen = True
        else:
            self._store(UNSEEN_WAIT | 1 << SHIFT)
            self._unseen_wait = True
        self.gradients.passed(pass_end)

    def after_scaler(self, optimizer: object, steps_before: int) -> None:
        """Note the decision of the gradient scaler: a skipped optimizer step still ends a training step."""
        if get_ident() == self.listening and self._optimizers.taken == steps_before:
            self.tag("optimizer_skipped")
            self.before_optimizer(optimizer)
            self.after_optimizer(optimizer)
