"""Which optimizer's step is going on, though nobody says when one raises."""

from __future__ import annotations

import weakref


class OptimizerSteps:
    """Told of what happens on one thread.

    Keeps no optimizer alive: one whose step raised may have been thrown away, and its state is large.
    """

    __slots__ = ("_inner", "backward_since_inner", "current", "data_since", "last", "taken")

    def __init__(self) -> None:
        self.current: weakref.ref[object] | None = None
        """The one whose step began and was not said to have ended."""
        self._inner: int | None = None
        self.data_since = False
        """Whether a batch was asked for since the step that is going on began."""
        self.backward_since_inner = False
        """Whether a backward pass has ended since the first step inside the one that is going on."""
        self.last: weakref.ref[object] | None = None
        """The one that stepped last."""
        self.taken = 0
        """Steps so far, without those inside others."""

    @property
    def going_on(self) -> bool:
        """Whether a step began and was not said to have ended."""
        return self.current is not None

    def begins(self, optimizer: object) -> bool:
        """A step of ``optimizer`` begins. False: inside the step of another, as in an optimizer made of optimizers."""
        if self.current is not None and self._is_inner(self.current(), optimizer):
            return False
        self.begin(optimizer)
        return True

    def begin(self, optimizer: object) -> None:
        """A step of ``optimizer`` begins while none is going on."""
        last = self.last
        # Most often it is the same one, and its reference need not be looked up.
        self.current = last if last is not None and last() is optimizer else weakref.ref(optimizer)
        self._inner = None
        self.data_since = False

    def _is_inner(self, outer: object, optimizer: object) -> bool:
        # The one last heard of may be over: it is gone, data was asked for since, or one that steps inside it steps again after
        # another backward. A backward alone proves nothing: closures have them.
        if outer is None or outer is optimizer or self.data_since:
            return False
        if self._inner == id(optimizer) and self.backward_since_inner:
            return False
        if self._inner is None:
            self._inner, self.backward_since_inner = id(optimizer), False
        return True

    def ends(self, optimizer: object) -> bool:
        """The step of ``optimizer`` has returned. False: it was inside another's."""
        if self.current is None or self.current() is not optimizer:
            return False
        self.last, self.current = self.current, None
        self.taken += 1
        return True

    def forget(self) -> None:
        """Whatever was going on is over."""
        self.current = None
