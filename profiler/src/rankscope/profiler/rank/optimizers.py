"""Tracking of the optimizer step in progress, although no hook reports a step that raises."""

from __future__ import annotations

import weakref


class OptimizerSteps:
    """Optimizer steps of one thread, from its events.

    Keeps no optimizer alive: one whose step raised may have been discarded, and its state is large.
    """

    __slots__ = ("_inner", "backward_since_inner", "current", "data_since", "last", "taken")

    def __init__(self) -> None:
        self.current: weakref.ref[object] | None = None
        """Optimizer whose step began and whose end was not reported."""
        self._inner: int | None = None
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
        self._inner = None
        self.data_since = False

    def _is_inner(self, outer: object, optimizer: object) -> bool:
        # The outer step is over if its optimizer is gone, a batch was requested since, or the inner optimizer steps again after
        # another backward. A backward alone proves nothing, because closures run one.
        if outer is None or outer is optimizer or self.data_since:
            return False
        if self._inner == id(optimizer) and self.backward_since_inner:
            return False
        if self._inner is None:
            self._inner, self.backward_since_inner = id(optimizer), False
        return True

    def ends(self, optimizer: object) -> bool:
        """End the step of ``optimizer``. False: it was inside another's step."""
        if self.current is None or self.current() is not optimizer:
            return False
        self.last, self.current = self.current, None
        self.taken += 1
        return True

    def forget(self) -> None:
        """Discard the step in progress, if there is one."""
        self.current = None
