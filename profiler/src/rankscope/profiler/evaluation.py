"""Detection of evaluation in the middle of training: its batches and forward passes are not part of a training step.

Nothing announces an evaluation, so it is inferred: from batches that are loaded without gradients, and from ``model.eval()``
and the ``model.train()`` after it. ``model.eval()`` alone is no proof, because parts of a model may be frozen. The time after it
is first counted as training, and taken back once there is proof: ``model.train()`` follows without a backward pass, and batches
were loaded in between or gradients were off.
"""

from __future__ import annotations

from rankscope.profiler.phases import PhaseClock, PhaseState
from rankscope.profiler.work import EVALUATION, NO_WORK, StepWork


class EvaluationDetector:
    """Detector of evaluation in one step. Times are nanoseconds of one clock."""

    __slots__ = ("_began", "_ended", "_is_evaluation", "_may_be_evaluation", "_work", "suspected")

    def __init__(self) -> None:
        self.suspected: PhaseState | None = None
        """State of the phase clock before the suspected evaluation; ``None``: no evaluation is suspected."""
        self._work = NO_WORK
        self._began = self._ended = 0
        self._is_evaluation = self._may_be_evaluation = False

    def model_evaluates(self, clock: PhaseClock, step_work: StepWork, now: int, *, gradients: bool) -> None:
        """Handle a call of ``model.eval()``."""
        self._suspect(clock, step_work, now)
        self._is_evaluation |= not gradients

    def batch_without_gradients(self, clock: PhaseClock, step_work: StepWork, now: int) -> None:
        """Handle a batch that is requested, or has arrived, while gradients are off."""
        self._suspect(clock, step_work, now)
        self._is_evaluation = True
        self._ended = now

    def batch(self, now: int) -> None:
        """Handle a batch that has arrived, or the end of the batches, while gradients are on."""
        self._may_be_evaluation = True
        self._ended = now

    def model_trains(self, clock: PhaseClock, step_work: StepWork, now: int, *, gradients: bool) -> None:
        """Handle a call of ``model.train()``, which ends an evaluation, if there was one."""
        if self._is_evaluation or self._may_be_evaluation or not gradients:
            self._take_back(clock, step_work, now)
        self.forget()

    def batch_to_train_on(self, clock: PhaseClock, step_work: StepWork) -> None:
        """Handle the request for a batch to train on: an evaluation before it ended with its own last batch."""
        if self._is_evaluation or self._may_be_evaluation:
            self._take_back(clock, step_work, self._ended)
        self.forget()

    def training(self, clock: PhaseClock, step_work: StepWork, *, proof: bool) -> None:
        """Handle a batch requested with gradients on or (``proof``) a backward pass or optimizer step.

        ``proof`` shows that a merely likely evaluation was training.
        """
        if self._is_evaluation:
            self._take_back(clock, step_work, self._ended)
        if self._is_evaluation or proof:
            self.forget()

    def forget(self) -> None:
        """Discard all suspicions, because another step begins."""
        self.suspected = None
        self._is_evaluation = self._may_be_evaluation = False

    def _suspect(self, clock: PhaseClock, step_work: StepWork, now: int) -> None:
        if self.suspected is None:
            self.suspected, self._work = clock.remember(), step_work.work
            self._began = self._ended = now

    def _take_back(self, clock: PhaseClock, step_work: StepWork, ended: int) -> None:
        assert self.suspected is not None
        clock.interrupt(self.suspected, self._began, ended)
        step_work.work = self._work
        step_work.tag(EVALUATION)
        step_work.evaluated_ns += max(0, ended - self._began)
