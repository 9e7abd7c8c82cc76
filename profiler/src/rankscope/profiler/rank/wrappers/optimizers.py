"""Detection of the end of a training step, from backward passes and optimizer steps alone.

A step is one cycle of the optimizers. With one optimizer the step ends when it has stepped; with several, when the last one of
the cycle has. The last one is learned from the first cycle. If it does not step (a critic stepped five times for one generator),
the step ends before the first optimizer that steps again after another backward. An optimizer that steps again without another
backward is still in the same step (DeepSpeed's ZeRO-3 steps it once per group of parameters), unless there are no backward passes
at all. Callers must not report optimizers that step inside a backward pass.

No hook reports an optimizer step that raises, so the step in progress is tracked, too.
"""

from __future__ import annotations

import weakref


class StepBoundary:
    """Detector of the end of steps, from the events of one thread."""

    __slots__ = (
        "_last",
        "_newest",
        "_only",
        "_optimizers",
        "backward_seen",
        "backward_since_close",
        "backward_since_step",
        "stepped",
    )

    def __init__(self) -> None:
        self._optimizers: dict[int, weakref.ref[object]] = {}
        self._last: int | None = None
        self._only: weakref.ref[object] | None = None
        """Optimizer that ended the last step, if no other is known."""
        self._newest: int | None = None
        """Optimizer that stepped most recently."""
        self.stepped: set[int] = set()
        """Optimizers that have stepped in the current step; while it is empty, ``before_optimizer`` returns False."""
        self.backward_seen = self.backward_since_close = self.backward_since_step = False
        """True if a backward pass has returned: ever, since the last end of a step, since the last step of an optimizer."""

    @property
    def knows_optimizers(self) -> bool:
        """True if any optimizer has stepped outside of a backward pass."""
        return bool(self._optimizers)

    def before_optimizer(self, optimizer: object) -> bool:
        """Return whether the step was over before ``optimizer``, which is about to step."""
        if id(optimizer) in self.stepped and self.backward_since_step:
            self._close()
            return True
        return False

    def after_optimizer(self, optimizer: object) -> bool:
        """Return whether the step is over now that ``optimizer`` has stepped."""
        only = self._only
        if only is not None and only() is optimizer and self.backward_since_step and not self.stepped:
            # Fast path of the code below, for the usual loop.
            self.backward_since_step = self.backward_since_close = False
            return True
        self._only = None
        key = id(optimizer)
        reference = self._optimizers.get(key)
        is_repeated = key == self._newest and reference is not None and reference() is optimizer
        if is_repeated and self.backward_seen and not self.backward_since_step:
            return False
        self._newest = key
        self.backward_since_step = False
        if reference is None or reference() is not optimizer:
            self._forget_dead()
            first = not self._optimizers
            self._optimizers[key] = weakref.ref(optimizer)
            self._last = key
            if not first:
                # Another optimizer in the first cycle: the step that just ended includes its step.
                return False
        self.stepped.add(key)
        if key == self._last and (self.backward_since_close or len(self._optimizers) == 1):
            self._close()
            if len(self._optimizers) == 1:
                self._only = self._optimizers[key]
            return True
        return False

    def _close(self) -> None:
        self.stepped.clear()
        self.backward_since_close = False

    def _forget_dead(self) -> None:
        for key in [key for key, reference in self._optimizers.items() if reference() is None]:
            del self._optimizers[key]


class OptimizerSteps:
    """Optimizer steps of one thread, from its events.

    Keeps no optimizer alive: one whose step raised may have been discarded, and its state is large.
    """

    __slots__ = ("backward_since_inner", "current", "data_since", "inner", "last", "taken")

    def __init__(self) -> None:
        self.current: weakref.ref[object] | None = None
        """Optimizer whose step began and whose end was not reported."""
        self.inner: int | None = None
        """Optimizer that steps inside the current step."""
        self.data_since = False
        """True if a batch was requested since the current step began."""
        self.backward_since_inner = False
        """True if a backward pass has ended since the first step inside the current one."""
        self.last: weakref.ref[object] | None = None
        """Optimizer that stepped last."""
        self.taken = 0
        """Number of steps so far, without those inside others."""

    @property
    def going_on(self) -> bool:
        """True if a step began and its end was not reported."""
        return self.current is not None

    def begins(self, optimizer: object) -> bool:
        """Begin a step of ``optimizer``. False: it is inside another's step, as in an optimizer made of optimizers."""
        if self.current is not None and self._is_inner(self.current(), optimizer):
            return False
        self.begin(optimizer)
        return True

    def begin(self, optimizer: object) -> None:
        """Begin a step of ``optimizer`` while none is in progress."""
        last = self.last
        # It is usually the same optimizer, whose reference can be reused.
        self.current = last if last is not None and last() is optimizer else weakref.ref(optimizer)
        self.inner = None
        self.data_since = False

    def _is_inner(self, outer: object, optimizer: object) -> bool:
        # The outer step is over if its optimizer is gone, a batch was requested since, or the inner optimizer steps again after
        # another backward. A backward alone proves nothing, because closures run one.
        if outer is None or outer is optimizer or self.data_since:
            return False
        if self.inner == id(optimizer) and self.backward_since_inner:
            return False
        if self.inner is None:
            self.inner, self.backward_since_inner = id(optimizer), False
        return True

    def forget(self) -> None:
        """Discard the step in progress, if there is one."""
        self.current = None
