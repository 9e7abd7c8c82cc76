"""Evaluation in the middle of training: its batches and forward passes are no part of a training step.

Nobody announces it, so it is told by its signs: batches that are loaded without gradients, ``model.eval()`` and the
``model.train()`` after it. ``model.eval()`` alone is no proof (parts of a model may be frozen), so what follows it is first
taken for training, and taken back once a proof is there: what comes next is ``model.train()`` and no backward pass, and batches
were loaded in between or gradients were off.
"""

from __future__ import annotations

from rankscope.profiler.phases import Moment, PhaseClock
from rankscope.profiler.work import StepWork


class Evaluation:
    """Whether the thread is evaluating. Times are nanoseconds of a monotonic clock that the caller reads."""

    __slots__ = ("_began", "_ended", "_likely", "_sure", "_work", "suspected")

    def __init__(self) -> None:
        self.suspected: Moment | None = None
        """What was known before the evaluation that seems to go on; ``None``: there is none."""
        self._work: tuple[int | None, int | None] = (None, None)
        self._began = self._ended = 0
        self._sure = self._likely = False

    def model_evaluates(self, clock: PhaseClock, measures: StepWork, now: int, *, gradients: bool) -> None:
        """``model.eval()``."""
        self._suspect(clock, measures, now)
        self._sure |= not gradients

    def batch_without_gradients(self, clock: PhaseClock, measures: StepWork, now: int) -> None:
        """A batch is asked for, or there, and gradients are off."""
        self._suspect(clock, measures, now)
        self._sure = True
        self._ended = now

    def batch(self, now: int) -> None:
        """A batch is there, or there are no more, and gradients are on."""
        self._likely = True
        self._ended = now

    def model_trains(self, clock: PhaseClock, measures: StepWork, now: int, *, gradients: bool) -> None:
        """``model.train()``: if that was an evaluation, it is over."""
        if self._sure or self._likely or not gradients:
            self._take_back(clock, measures, now)
        self.forget()

    def batch_to_train_on(self, clock: PhaseClock, measures: StepWork) -> None:
        """A batch is asked for that training will have: an evaluation ended with its own last batch."""
        if self._sure or self._likely:
            self._take_back(clock, measures, self._ended)
        self.forget()

    def training(self, clock: PhaseClock, measures: StepWork, *, proof: bool) -> None:
        """A batch is asked for with gradients on, or (``proof``) a backward pass or an optimizer steps.

        What was only likely an evaluation was training.
        """
        if self._sure:
            self._take_back(clock, measures, self._ended)
        if self._sure or proof:
            self.forget()

    def forget(self) -> None:
        """Another step begins."""
        self.suspected = None
        self._sure = self._likely = False

    def _suspect(self, clock: PhaseClock, measures: StepWork, now: int) -> None:
        if self.suspected is None:
            self.suspected, self._work = clock.remember(), measures.work
            self._began = self._ended = now

    def _take_back(self, clock: PhaseClock, measures: StepWork, ended: int) -> None:
        assert self.suspected is not None
        clock.interrupt(self.suspected, self._began, ended)
        measures.work = self._work
        measures.tag("eval")
