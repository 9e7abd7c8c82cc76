"""Events that do not come in every step: copies, checkpoints, evaluations, and what the script says itself."""

from __future__ import annotations

from torch import is_grad_enabled
from torch.nn.parallel import DistributedDataParallel

from rankscope.profiler.phases import H2D
from rankscope.profiler.rank.guard import guarded
from rankscope.profiler.rank.lifecycle import IN_BACKWARD, IN_CHECKPOINT, IN_COPY, IN_DATA
from rankscope.profiler.rank.measures import finite
from rankscope.profiler.rank.step_ends import StepEnds
from rankscope.profiler.words import (
    CHECKPOINT_BEGINS,
    CHECKPOINT_ENDS,
    LEAVE,
    METRIC,
    MODEL_EVALUATES,
    MODEL_TRAINS,
    SECTION,
    SECTION_ENDS,
    SHIFT,
    TAG,
    detail,
    details_of_float,
)
from rankscope.profiler.work import OTHER_PROFILER, short


class OccasionalEvents(StepEnds):
    """The part of a ``StepRecorder`` that takes the events that do not come in every step."""

    @guarded(default=False)
    def enter_copy(self, at: int) -> bool:
        """Note the start of a copy of the batch to the device. False: do not report its end."""
        if not self._begun or self._inside & (IN_COPY | IN_DATA | IN_BACKWARD) or self._optimizers.going_on:
            return False
        self._inside |= IN_COPY
        self._note(H2D, at)
        return True

    @guarded(default=None)
    def leave_copy(self, at: int) -> None:
        """Note that the call of the copy has returned."""
        if self._inside & IN_COPY:
            self._inside &= ~IN_COPY
            self._note(LEAVE, at)

    @guarded(default=-1)
    def before_scaler(self, at: int) -> int:
        """Return the number of optimizer steps before a gradient scaler decides on one; pass it to ``after_scaler``."""
        del at
        return self._optimizers.taken

    @guarded(default=False)
    def enter_checkpoint(self, at: int) -> bool:
        """Begin a checkpoint. False: it is part of another, or before training; do not report its end."""
        if not self._begun or self._inside & IN_CHECKPOINT:
            return False
        self._inside |= IN_CHECKPOINT
        self._note(CHECKPOINT_BEGINS, at)
        return True

    @guarded(default=None)
    def leave_checkpoint(self, at: int) -> None:
        """End the checkpoint, written or failed."""
        # Also where the step ended meanwhile: an open section would go on in the next ones.
        self._inside &= ~IN_CHECKPOINT
        self._note(CHECKPOINT_ENDS, at)

    @guarded(default=None)
    def model_evaluates(self, at: int) -> None:
        """Note a call of ``model.eval()``."""
        if self._begun and not self._inside & IN_BACKWARD:
            self.may_evaluate = True
            self._note(MODEL_EVALUATES, at, detail(is_grad_enabled()))

    @guarded(default=None)
    def model_trains(self, at: int) -> None:
        """Note a call of ``model.train()``."""
        self.may_evaluate = False
        if self._begun:
            self._note(MODEL_TRAINS, at, detail(is_grad_enabled()))

    def adopt(self, model: DistributedDataParallel) -> None:
        """Watch a model that was wrapped in DDP, on any thread: its waits are not own time."""
        try:
            if not self.off:
                self.gradients.adopt(model)
                self._set_waiting()
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self.failed(error)

    @guarded(default=None)
    def yield_to_script(self, at: int) -> None:
        """Drop the current window, because the script starts a profiler of its own, and tag the steps until it ends."""
        del at
        self._other_profiler = True
        self._due_ns = 0
        self._tag(OTHER_PROFILER)
        if self._windows is not None:
            self._windows.yield_to_script()

    @guarded(default=None)
    def tag(self, at: int, tag: str) -> None:
        """Add ``tag`` to this step."""
        del at
        self._tag(short(tag))

    @guarded(default=None)
    def metric(self, at: int, name: str, value: object) -> None:
        """Set a metric of the script in this step. A value that is no finite number is left out."""
        number, named = finite(value), self._ring.name(short(name))
        if self._begun and number is not None and named is not None:
            self._store(at << SHIFT | METRIC, detail(named), *details_of_float(number))

    @guarded(default=None)
    def enter_section(self, at: int, name: str) -> None:
        """Begin a section of the script."""
        self._name(SECTION, at, short(name))

    @guarded(default=None)
    def leave_section(self, at: int, name: str) -> None:
        """End a section of the script, also after an exception."""
        self._name(SECTION_ENDS, at, short(name))

    def _tag(self, tag: str) -> None:
        self._name(TAG, 1, tag)
