"""What happened in a step, noted when it happens and understood later.

Between two events training runs through all the caches of the processor, so every line of code and every object that the recorder
touches in a step is slow there. So the training thread only notes; the helper process understands. Steps that also have a time
line on a device, and those with more events than a slot of the ring holds, are understood on the training thread.

An event is one number in a flat list, ``at << SHIFT | kind``: its kind, and when it was (nanoseconds of ``clock.now``). Appending
a number costs a sixth of what adding a tuple does. Kinds from ``DETAILED`` on are followed by an entry with their details.
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
"""Bits of the kind."""
_KIND: Final = (1 << SHIFT) - 1
DETAILED: Final = 16
"""The first of the kinds that have details."""

# An event of the kind of a phase is its beginning.
LEAVE: Final = 10
"""The phase that began last ends."""
RAISED: Final = 11
"""An exception went through the step of an optimizer that began."""
WAITED: Final = 17
"""A wait for other ranks is over. Details: its nanoseconds, and between which marks it was on the device."""
TRAINING_BATCH: Final = 12
"""A batch will be asked for that training will have."""
BATCH_WITHOUT_GRADIENTS: Final = 13
"""A batch is asked for while gradients are off."""
BATCH: Final = DETAILED
"""The data phase ends. Details: samples and elements of the batch, or ``None``."""
SHAPE: Final = 21
"""``BATCH``, where the batch is one tensor. Details: its shape."""
TAIL: Final = 18
"""A backward pass is over that waited for other ranks at its end. Details: since when, nanoseconds."""
MODEL_EVALUATES: Final = 19
"""``model.eval()``. Details: whether gradients are on."""
MODEL_TRAINS: Final = 20
"""``model.train()``. Details: whether gradients are on."""

MAX_NOTED: Final = 1024
"""Entries; a step with more events is understood piece by piece."""

_TRAINING: Final = (DATA, BACKWARD, OPTIMIZER)


_W = TypeVar("_W", bound=StepWork)


class StepEvents(Generic[_W]):
    """The events of the current step, and what they meant to ``clock`` and ``measures`` so far."""

    __slots__ = ("_evaluation", "_marks", "_stale", "clock", "line", "measures", "noted", "start", "understood")

    def __init__(self, clock: PhaseClock, measures: _W) -> None:
        self.clock = clock
        self.measures = measures
        self.start = clock.start
        """When the step began."""
        self.understood = False
        """Whether ``noted`` does not hold all of the step's events any more."""
        self._stale = False
        self.line: DeviceLine | None = None
        self.noted: list[Any] = []
        """Callers that cannot afford ``note`` append to it themselves, where there is no ``line``."""
        self._marks: list[Mark] = []
        self._evaluation = Evaluation()

    def note(self, kind: int, at: int, more: object = None) -> None:
        """It happens now."""
        word = at << SHIFT | kind
        if kind < DETAILED:
            self.noted.append(word)
        else:
            self.noted += (word, more)
        if self.line is not None:
            # The step is not cut by a wait, which has marks of its own.
            self._marks.append(None if kind == WAITED else self.line.mark())
        if len(self.noted) > MAX_NOTED:
            self.understand()

    def understand(self) -> None:
        """Work off what was noted."""
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

    def watch(self, line: DeviceLine) -> None:
        """From the next step on also on the time line of a device."""
        self.line = self.clock.line = line

    def begin(self, now: int) -> None:
        """The next step begins, where the one before ended."""
        # Of a first step without a record, or one that Ctrl-C cut short, there may be something left.
        self.noted.clear()
        if self._marks:
            self._marks.clear()
        self.start = now
        self._stale = True
        self.understood = False

    def finish(self, ended: int) -> int:
        """The step ends now; returns its wall time in nanoseconds."""
        self.understand()
        if self._evaluation.suspected is not None:
            self._evaluation.training(self.clock, self.measures, proof=True)
        if self.line is not None:
            self.line.here = self.line.mark()
        return self.clock.finish(ended)
