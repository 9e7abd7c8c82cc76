"""Events of training, reported to the recording of its process by the wrappers in ``attach`` and by ``StepProfiler``.

Every public method may be called from training code, so none of them raises: the first error of the recorder switches it off for
good, with one line on stderr, and training goes on.

Methods that run in every step contain their own guard and note events inline: between two events of training all caches are cold,
so every additional function call costs as much as the work it does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns as now
from typing import cast

import torch
from torch import Tensor, is_grad_enabled
from torch.nn.parallel import DistributedDataParallel

from rankscope.profiler.events import (
    BATCH,
    BATCH_WITHOUT_GRADIENTS,
    LEAVE,
    MAX_NOTED,
    MODEL_EVALUATES,
    MODEL_INPUT,
    MODEL_TRAINS,
    RAISED,
    SHAPE,
    SHIFT,
    TAIL,
    TRAINING_BATCH,
    WAITED,
)
from rankscope.profiler.phases import BACKWARD, BETWEEN, DATA, H2D, OPTIMIZER
from rankscope.profiler.rank.ddp import Tail
from rankscope.profiler.rank.guard import UNSEEN_NS, guarded
from rankscope.profiler.rank.measures import measure
from rankscope.profiler.rank.recording import Recording
from rankscope.profiler.work import CHECKPOINT, OTHER_PROFILER, short

_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)  # noqa: SLF001  # not public
"""Return the id of the pass that the autograd engine runs on this thread; -1: none."""


def _work(batch: object) -> tuple[int | None, int | None] | None:
    return None if batch is None else measure(batch)


class Recorder(Recording):
    """Recording that receives the events of training; ``attach`` has the callers."""

    # In every step.

    def enter_data(self, iterator: object = None) -> bool:
        """Note the request for a batch, from the ``iterator`` of a data loader or (``None``) from ``StepProfiler.data``.

        False: do not report its arrival.
        """
        if get_ident() != self.listening or self._in_data:
            return False
        at = now()
        self.listening = 0
        try:
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
            noted = self._noted
            if noted is None or len(noted) > MAX_NOTED:
                events.note(DATA, at)
            else:
                noted.append(at << SHIFT | DATA)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
            return False
        else:
            return True
        finally:
            self.listening = self.thread
            self.cost_ns += now() - at + UNSEEN_NS

    def leave_data(self, batch: object = None) -> None:
        """Note that the batch has arrived, or that there is none."""
        if get_ident() != self.listening:
            return
        at = now()
        self.listening = 0
        try:
            self._in_data = False
            noted = self._noted
            if noted is not None:
                # Fast path for one tensor, alone or from a ``TensorDataset`` of one: others cost several times as much.
                first = batch[0] if type(batch) is list and len(batch) == 1 else batch
                try:
                    noted += (at << SHIFT | SHAPE, first.shape) if type(first) is Tensor else (at << SHIFT | BATCH, _work(batch))
                except RuntimeError:  # nested tensors have no shape
                    noted += (at << SHIFT | BATCH, _work(batch))
            elif self._events is not None:
                self._events.note(BATCH, at, _work(batch))
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
        finally:
            self.listening = self.thread
            self.cost_ns += now() - at + UNSEEN_NS

    def enter_model(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Note the arguments with which the model is called; without gradients that is no training."""
        if get_ident() != self.listening or self._in_backward or not is_grad_enabled() or self._events is None:
            return
        at = now()
        self.listening = 0
        try:
            _, elements = measure(args[0] if len(args) == 1 and not kwargs else (args, kwargs))
            self._events.note(MODEL_INPUT, at, elements)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
        finally:
            self.listening = self.thread
            self.cost_ns += now() - at + UNSEEN_NS

    def enter_backward(self, roots: object = None) -> bool | Tail:
        """Note the start of a backward pass over ``roots``. False: it is part of another, do not report its end.

        Pass any other result to ``leave_backward``.
        """
        if get_ident() != self.listening or (self._in_backward and _graph_task() != -1):
            return False
        at = now()
        self.listening = 0
        try:
            if self._in_backward:
                self._backward_was_left(at)
            self._in_backward = True
            self._inner_optimizer = False
            self._trained_on = self._loading
            if self._waits:
                self._waits.clear()
            noted = self._noted
            if noted is None or len(noted) > MAX_NOTED:
                (self._events or self._start(at)).note(BACKWARD, at)
            else:
                noted.append(at << SHIFT | BACKWARD)
            return (roots is not None and self.gradients.present and self.gradients.watch(roots)) or True
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
            return False
        finally:
            self.listening = self.thread
            self.cost_ns += now() - at + UNSEEN_NS

    def leave_backward(self, passed: bool | Tail = True) -> None:  # positional, as above
        """Note that the backward pass has returned or raised."""
        if get_ident() != self.listening:
            return
        at = now()
        self.listening = 0
        try:
            self._in_backward = False
            noted = self._noted
            if passed is not True and passed:
                if noted is None or self._waits or not passed.stamps:
                    self._leave_pass(at, passed)
                else:
                    noted += (at << SHIFT | TAIL, passed.stamps[0])
                self.gradients.spare = passed
            if noted is not None:
                noted.append(at << SHIFT | LEAVE)
            elif self._events is not None:
                self._events.note(LEAVE, at)
            self._boundary.backward_done()
            self._optimizers.backward_since_inner = True
            if self._inner_optimizer and not self._boundary.knows_optimizers and not self.explicit:
                self._close_step(at)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
        finally:
            self.listening = self.thread
            self.cost_ns += now() - at + UNSEEN_NS

    def before_optimizer(self, optimizer: object) -> None:
        """Note the start of ``optimizer.step``."""
        if get_ident() != self.listening:
            return
        at = now()
        self.listening = 0
        try:
            noted, optimizers = self._noted, self._optimizers
            if noted is None or len(noted) > MAX_NOTED or self._in_backward or self._boundary.stepped or optimizers.current:
                self._before_optimizer(at, optimizer)
            else:
                optimizers.begin(optimizer)
                noted.append(at << SHIFT | OPTIMIZER)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
        finally:
            self.listening = self.thread
            self.cost_ns += now() - at + UNSEEN_NS

    def after_optimizer(self, optimizer: object) -> None:
        """Note that ``optimizer.step`` has returned."""
        if get_ident() != self.listening:
            return
        at = now()
        self.listening = 0
        try:
            if self._optimizers.ends(optimizer):
                noted = self._noted
                if noted is not None:
                    noted.append(at << SHIFT | LEAVE)
                elif self._events is not None:
                    self._events.note(LEAVE, at)
                if self._boundary.after_optimizer(optimizer) and not self.explicit:
                    self._close_step(at)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)
        finally:
            self.listening = self.thread
            self.cost_ns += now() - at + UNSEEN_NS

    # Not in every step.

    @guarded(default=False)
    def enter_copy(self, at: int) -> bool:
        """Note the start of a copy of the batch to the device. False: do not report its end."""
        if self._events is None or self._in_copy or self._in_data or self._in_backward or self._optimizers.going_on:
            return False
        self._in_copy = True
        self._events.note(H2D, at)
        return True

    @guarded(default=None)
    def leave_copy(self, at: int) -> None:
        """Note that the call of the copy has returned."""
        if self._in_copy and self._events is not None:
            self._in_copy = False
            self._events.note(LEAVE, at)

    def _before_optimizer(self, at: int, optimizer: object) -> None:
        raised = self._optimizers.going_on
        if self._in_backward and not raised:
            if _graph_task() != -1:
                self._inner_optimizer = True
                return
            self._backward_was_left(at)
        if not self._optimizers.begins(optimizer):
            return
        events = self._events or self._start(at)
        if raised:
            events.note(RAISED, at)
        if not self.explicit and self._boundary.stepped and self._boundary.before_optimizer(optimizer):
            self._close_step(at)
        noted = self._noted
        if noted is None or len(noted) > MAX_NOTED:
            events.note(OPTIMIZER, at)
        else:
            noted.append(at << SHIFT | OPTIMIZER)

    def _backward_was_left(self, at: int) -> None:
        """End a pass whose end was not reported because of an exception, for example in a signal handler."""
        self._in_backward = False
        if self._events is not None:
            self._events.note(LEAVE, at)

    @guarded(default=cast("Tail | None", None))
    def enter_pass(self, at: int, roots: object) -> Tail | None:
        """Note a pass of the autograd engine over ``roots`` inside another; pass the result to ``leave_pass``."""
        del at
        return self.gradients.watch(roots)

    @guarded(default=None)
    def leave_pass(self, at: int, tail: Tail) -> None:
        """Note that the nested pass has returned or raised."""
        self._leave_pass(at, tail)

    def _leave_pass(self, at: int, tail: Tail) -> None:
        """Note the time from the exhaustion of a pass's graph to its end as waiting."""
        ready = tail.ready_ns
        if ready is None or self._events is None:
            self._tail_unknown = True
            return
        self._tail_seen = True
        # Waits inside the tail are part of it already.
        inside = sum(waited for started, waited in self._waits if started >= ready) if self._waits else 0
        until = None if self._events.line is None else self._events.line.mark_wait()
        self._events.note(WAITED, at, (at - ready - inside, tail.ready_mark, until))

    @guarded(default=-1)
    def before_scaler(self, at: int) -> int:
        """Return the number of optimizer steps before a gradient scaler decides on one; pass it to ``after_scaler``."""
        del at
        return self._optimizers.taken

    def after_scaler(self, optimizer: object, seen: int) -> None:
        """Note the decision of the gradient scaler: a skipped optimizer step still ends a training step."""
        if get_ident() == self.listening and self._optimizers.taken == seen:
            self.tag("optimizer_skipped")
            self.before_optimizer(optimizer)
            self.after_optimizer(optimizer)

    @guarded(default=0)
    def enter_wait(self, at: int) -> int:
        """Begin a wait for other ranks; return its start, or 0 if the thread is waiting already or nothing is recorded."""
        if self._wait_started or self._events is None:
            return 0
        self._wait_started = at
        if self._events.line is not None:
            self._wait_mark = self._events.line.mark_wait()
        return at

    @guarded(default=None)
    def leave_wait(self, at: int, started: int) -> None:
        """End the wait that began at ``started``."""
        self._wait_started = 0
        self._waited = True
        if self._events is None:
            return
        since, self._wait_mark = self._wait_mark, None
        until = None if since is None or self._events.line is None else self._events.line.mark_wait()
        self._events.note(WAITED, at, (at - started, since, until))
        if self._in_backward and self.gradients.present:
            self._waits.append((started, at - started))

    @guarded(default=False)
    def enter_checkpoint(self, at: int) -> bool:
        """Begin a checkpoint. False: it is part of another, or before training; do not report its end."""
        if self._events is None or self._in_checkpoint:
            return False
        self._in_checkpoint = True
        self._events.measures.tag(CHECKPOINT)
        self._events.measures.sections.enter(CHECKPOINT, at)
        self._events.note(BETWEEN, at)
        return True

    @guarded(default=None)
    def leave_checkpoint(self, at: int) -> None:
        """End the checkpoint, written or failed."""
        if self._events is not None:
            # Also where the step ended meanwhile: an open section would go on in the next ones.
            self._events.measures.sections.leave(CHECKPOINT, at)
            if self._in_checkpoint:
                self._in_checkpoint = False
                self._events.note(LEAVE, at)

    @guarded(default=None)
    def model_evaluates(self, at: int) -> None:
        """Note a call of ``model.eval()``."""
        if self._events is not None and not self._in_backward:
            self.may_evaluate = True
            self._events.note(MODEL_EVALUATES, at, is_grad_enabled())

    @guarded(default=None)
    def model_trains(self, at: int) -> None:
        """Note a call of ``model.train()``."""
        self.may_evaluate = False
        if self._events is not None:
            self._events.note(MODEL_TRAINS, at, is_grad_enabled())

    def adopt(self, model: DistributedDataParallel) -> None:
        """Watch a model that was wrapped in DDP, on any thread: its waits are not own time."""
        try:
            if not self.off:
                self.gradients.adopt(model)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    @guarded(default=None)
    def give_way(self, at: int) -> None:
        """Drop the current window, because the script starts a profiler of its own, and tag the steps until it ends."""
        del at
        self._other_profiler = True
        if self._events is not None:
            self._events.measures.tag(OTHER_PROFILER)
        if self._windows is not None:
            self._windows.give_way()

    @guarded(default=None)
    def tag(self, at: int, tag: str) -> None:
        """Add ``tag`` to this step."""
        del at
        if self._events is not None:
            self._events.measures.tag(tag)
            if tag == CHECKPOINT:
                # The script may write most of its checkpoint in other ways than the functions that are timed.
                self._events.measures.sections.discard(CHECKPOINT)

    @guarded(default=None)
    def metric(self, at: int, name: str, value: object) -> None:
        """Set a metric of the script in this step."""
        del at
        if self._events is not None:
            self._events.measures.metric(short(name), value)

    @guarded(default=None)
    def enter_section(self, at: int, name: str) -> None:
        """Begin a section of the script."""
        if self._events is not None:
            self._events.measures.sections.enter(short(name), at)

    @guarded(default=None)
    def leave_section(self, at: int, name: str) -> None:
        """End a section of the script, also after an exception."""
        if self._events is not None:
            self._events.measures.sections.leave(short(name), at)
