"""What happened in a step, noted when it happens and understood later.

Between two events training runs through all the caches of the processor, so every line of code and every object that the recorder
touches in a step is slow there. So the training thread only notes; the helper process understands. Steps that also have a time
line on a device, and those with more events than a slot of the ring holds, are understood on the training thread. An event is
three entries of one flat list: its kind, when it was (nanoseconds of ``clock.now``), and what goes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rankscope.profiler.evaluation import Evaluation
from rankscope.profiler.phases import BACKWARD, BETWEEN, DATA, OPTIMIZER, PhaseClock
from rankscope.profiler.work import StepWork

if TYPE_CHECKING:
    # Not in the helper: it loads torch.
    from rankscope.profiler.rank.device import DeviceLine, Mark

# An event of the kind of a phase is its beginning.
LEAVE: Final = 10
"""The phase that began last ends."""
BATCH: Final = 11
"""The data phase ends. With it: samples and elements of the batch, or ``None``."""
RAISED: Final = 12
"""An exception went through the step of an optimizer that began."""
WAITED: Final = 13
"""A wait for other ranks is over. With it: its nanoseconds, and between which marks it was on the device."""
TRAINING_BATCH: Final = 14
"""A batch will be asked for that training will have."""
BATCH_WITHOUT_GRADIENTS: Final = 15
"""A batch is asked for while gradients are off."""
MODEL_EVALUATES: Final = 16
"""``model.eval()``. With it: whether gradients are on."""
MODEL_TRAINS: Final = 17
"""``model.train()``. With it: whether gradients are on."""

MAX_NOTED: Final = 3 * 512
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
        """Whoever cannot afford ``note`` adds three entries itself, where there is no ``line``."""
        self._marks: list[Mark] = []
        self._evaluation = Evaluation()

    def note(self, kind: int, at: int, more: object = None) -> None:
        """It happens now."""
        self.noted += (kind, at, more)
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
        for kind, at, more in zip(noted, noted, noted, strict=True):
            if line is not None:
                line.here = next(marks, None)
            if kind == LEAVE:
                clock.leave(at)
            elif kind <= BETWEEN:
                if evaluation.suspected is not None and kind in _TRAINING:
                    evaluation.training(clock, measures, proof=kind != DATA)
                clock.enter(kind, at)
            elif kind == BATCH:
                clock.leave(at)
                self._batch(at, more)
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

    def _rare(self, kind: int, at: int, gradients: bool) -> None:
        clock, measures, evaluation = self.clock, self.measures, self._evaluation
        if kind == RAISED:
            clock.abandon(OPTIMIZER)
        elif kind == BATCH_WITHOUT_GRADIENTS:
            evaluation.batch_without_gradients(clock, measures, at)
        elif kind == MODEL_EVALUATES:
            evaluation.model_evaluates(clock, measures, at, gradients=gradients)
        elif evaluation.suspected is None:
            return
        elif kind == MODEL_TRAINS:
            evaluation.model_trains(clock, measures, at, gradients=gradients)
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
