"""Detection of the end of a training step, from backward passes and optimizer steps alone.

A step is one cycle of the optimizers. With one optimizer the step ends when it has stepped; with several, when the last one of
the cycle has. The last one is learned from the first cycle. If it does not step (a critic stepped five times for one generator),
the step ends before the first optimizer that steps again after another backward. An optimizer that steps again without another
backward is still in the same step (DeepSpeed's ZeRO-3 steps it once per group of parameters), unless there are no backward passes
at all. Callers must not report optimizers that step inside a backward pass.
"""

from __future__ import annotations

import weakref


class StepBoundary:
    """Detector of the end of steps, from the events of one thread."""

    __slots__ = (
        "_backward_seen",
        "_backward_since_close",
        "_backward_since_step",
        "_known",
        "_last",
        "_newest",
        "_only",
        "stepped",
    )

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[object]] = {}
        self._last: int | None = None
        self._only: weakref.ref[object] | None = None
        """Optimizer that ended the last step, if no other is known."""
        self._newest: int | None = None
        """Optimizer that stepped most recently."""
        self.stepped: set[int] = set()
        """Optimizers that have stepped in the current step; while it is empty, ``before_optimizer`` returns False."""
        self._backward_seen = False
        self._backward_since_close = False
        self._backward_since_step = False

    @property
    def knows_optimizers(self) -> bool:
        """True if any optimizer has stepped outside of a backward pass."""
        return bool(self._known)

    def backward_done(self) -> None:
        """Note that a backward pass has returned."""
        self._backward_seen = self._backward_since_close = self._backward_since_step = True

    def before_optimizer(self, optimizer: object) -> bool:
        """Return whether the step was over before ``optimizer``, which is about to step."""
        if id(optimizer) in self.stepped and self._backward_since_step:
            self._close()
            return True
        return False

    def after_optimizer(self, optimizer: object) -> bool:
        """Return whether the step is over now that ``optimizer`` has stepped."""
        only = self._only
        if only is not None and only() is optimizer and self._backward_since_step and not self.stepped:
            # Fast path of the code below, for the usual loop.
            self._backward_since_step = self._backward_since_close = False
            return True
        self._only = None
        key = id(optimizer)
        known = self._known.get(key)
        again = key == self._newest and known is not None and known() is optimizer
        if again and self._backward_seen and not self._backward_since_step:
            return False
        self._newest = key
        self._backward_since_step = False
        if known is None or known() is not optimizer:
            self._forget_dead()
            first = not self._known
            self._known[key] = weakref.ref(optimizer)
            self._last = key
            if not first:
                # Another optimizer in the first cycle: the step that just ended includes its step.
                return False
        self.stepped.add(key)
        if key == self._last and (self._backward_since_close or len(self._known) == 1):
            self._close()
            if len(self._known) == 1:
                self._only = self._known[key]
            return True
        return False

    def _close(self) -> None:
        self.stepped.clear()
        self._backward_since_close = False

    def _forget_dead(self) -> None:
        for key in [key for key, reference in self._known.items() if reference() is None]:
            del self._known[key]
