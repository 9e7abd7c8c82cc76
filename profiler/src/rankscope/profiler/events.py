"""Events of a step, noted when they happen and evaluated later.

Between two events training evicts the recorder's code and objects from the processor's caches, so each one it touches is slow.
The training thread therefore only notes events, and the helper process evaluates them. Steps with a time line on a device, and
steps with more events than a slot of the ring holds, are evaluated on the training thread.

An event is one number in a flat list, ``at << SHIFT | kind``: its kind and its time (nanoseconds of ``perf_counter_ns``, which
all processes of a Linux machine share). Appending a number costs a sixth of adding a tuple. An event of a kind from ``DETAILED``
on is followed by a list entry with its details.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rankscope.profiler.evaluation import Evaluation
from rankscope.profiler.phases import BACKWARD, BETWEEN, DATA, OPTIMIZER, PhaseClock
from rankscope.profiler.work import StepWork

if TYPE_CHECKING:
    # Not in the helper: it loads torch.
    from rankscope.profiler.rank.device import DeviceLine, Mark

SHIFT: Final = 5
"""Number of bits of the kind."""
_KIND: Final = (1 << SHIFT) - 1
DETAILED: Final = 16
"""First of the kinds that have details."""

# An event whose kind is the number of a phase is the beginning of that phase.
LEAVE: Final = 10
"""The phase that began last ends."""
RAISED: Final = 11
"""The step of an optimizer ended by an exception."""
WAITED: Final = 17
"""A wait for other ranks is over. Details: its nanoseconds, and the two marks around it on the device."""
TRAINING_BATCH: Final = 12
"""A batch to train on is about to be requested."""
BATCH_WITHOUT_GRADIENTS: Final = 13
"""A batch is requested while gradients are off."""
BATCH: Final = DETAILED
"""The data phase ends. Details: samples and elements of the batch, or ``None``."""
SHAPE: Final = 21
"""``BATCH``, where the batch is one tensor. Details: its shape."""
MODEL_INPUT: Final = 22
"""The model is called to train. Details: elements of its arguments, or ``None``."""
TAIL: Final = 18
"""A backward pass that waited for other ranks at its end is over. Details: when the wait began, in nanoseconds."""
MODEL_EVALUATES: Final = 19
"""``model.eval()``. Details: whether gradients are on."""
MODEL_TRAINS: Final = 20
"""``model.train()``. Details: whether gradients are on."""

MAX_NOTED: Final = 1024
"""Largest number of list entries; a step with more events is evaluated piece by piece."""

_TRAINING: Final = (DATA, BACKWARD, OPTIMIZER)
_ON_STREAM: Final = (BACKWARD, OPTIMIZER)
"""Beginnings of phases in which the current stream of a device is that of training."""


_W = TypeVar("_W", bound=StepWork)


class StepEvents(Generic[_W]):
    """Events of the current step, evaluated into ``clock`` and ``measures``."""

    __slots__ = ("_evaluation", "_marks", "_stale", "clock", "line", "measures", "noted", "start", "understood")

    def __init__(self, clock: PhaseClock, measures: _W) -> None:
        self.clock = clock
        self.measures = measures
        self.start = clock.start
        """Start of the step."""
        self.understood = False
        """True if some events of the step have been evaluated and are no longer in ``noted``."""
        self._stale = False
        self.line: DeviceLine | None = None
        self.noted: list[Any] = []
        """Events noted so far. Without a ``line``, callers that cannot afford ``note`` append to it directly."""
        self._marks: list[Mark] = []
        self._evaluation = Evaluation()

    def note(self, kind: int, at: int, more: object = None) -> None:
        """Note an event that happens now."""
        word = at << SHIFT | kind
        if kind < DETAILED:
            self.noted.append(word)
        else:
            self.noted += (word, more)
        if self.line is not None:
            if kind in _ON_STREAM:
                self.line.follow()
            # These two do not cut the step; a wait has marks of its own.
            self._marks.append(None if kind in (WAITED, MODEL_INPUT) else self.line.mark())
        if len(self.noted) > MAX_NOTED:
            self.understand()

    def understand(self) -> None:
        """Evaluate and clear the noted events."""
        self.understood = True
        if self._stale:
            self._stale = False
            self._evaluation.forget()
            self.clock.begin(self.start)
        noted, marks = iter(self.noted), iter(self._marks)
        clock, measures, evaluation, line = self.clock, self.measures, self._evaluation, self.line
        for word in noted:
            kind, at = word & _KIND, word >> SHIFT
            more: Any = next(noted) if kind >= DETAILED else None
            if line is not None:
                line.here = next(marks, None)
            if kind == LEAVE:
                clock.leave(at)
            elif kind <= BETWEEN:
                if evaluation.suspected is not None and kind in _TRAINING:
                    evaluation.training(clock, measures, proof=kind != DATA)
                clock.enter(kind, at)
            elif kind in (BATCH, SHAPE):
                clock.leave(at)
                self._batch(at, more if kind == BATCH else (more[0] if more else None, prod(more)))
            elif kind == WAITED:
                self._waited(*more)
            else:
                self._rare(kind, at, more)
        self.noted.clear()
        if line is not None:
            self._marks.clear()

    def _batch(self, at: int, work: tuple[int | None, int | None] | None) -> None:
        if work is not None:
            self.measures.add_work(*work)
        if self._evaluation.suspected is not None:
            self._evaluation.batch(at)

    def _waited(self, nanoseconds: int, since: Mark, until: Mark) -> None:
        self.clock.wait(nanoseconds)
        if self.line is not None:
            self.line.waited(since, until)

    def _rare(self, kind: int, at: int, more: Any) -> None:
        clock, measures, evaluation = self.clock, self.measures, self._evaluation
        if kind == TAIL:
            clock.wait(at - more)
        elif kind == MODEL_INPUT:
            measures.add_model_work(more)
        elif kind == RAISED:
            clock.abandon(OPTIMIZER)
        elif kind == BATCH_WITHOUT_GRADIENTS:
            evaluation.batch_without_gradients(clock, measures, at)
        elif kind == MODEL_EVALUATES:
            evaluation.model_evaluates(clock, measures, at, gradients=more)
        elif evaluation.suspected is None:
            return
        elif kind == MODEL_TRAINS:
            evaluation.model_trains(clock, measures, at, gradients=more)
        elif kind == TRAINING_BATCH:
            evaluation.batch_to_train_on(clock, measures)

    def watch(self, line: DeviceLine | None) -> None:
        """Also use the time line of a device, from the next step on; ``None``: no longer."""
        self.line = self.clock.line = line

    def begin(self, now: int) -> None:
        """Begin the next step, where the previous one ended."""
        # Events may be left from a first step without a record, or from a step that Ctrl-C interrupted.
        self.noted.clear()
        if self._marks:
            self._marks.clear()
        self.start = now
        self._stale = True
        self.understood = False

    def finish(self, ended: int) -> int:
        """End the step; return its wall time in nanoseconds."""
        self.understand()
        if self._evaluation.suspected is not None:
            self._evaluation.training(self.clock, self.measures, proof=True)
        if self.line is not None:
            self.line.here = self.line.mark()
        return self.clock.finish(ended)
