"""Which optimizer's step is going on, though nobody says when one raises."""

from __future__ import annotations

import weakref


class OptimizerSteps:
    """Told of what happens on one thread.

    Keeps no optimizer alive: one whose step raised may have been thrown away, and its state is large.
    """

    __slots__ = ("_current", "_inner", "backward_since_inner", "data_since", "last", "taken")

    def __init__(self) -> None:
        self._current: weakref.ref[object] | None = None
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
        return self._current is not None

    def begins(self, optimizer: object) -> bool:
        """A step of ``optimizer`` begins. False: inside the step of another, as in an optimizer made of optimizers."""
        if self._current is not None and self._is_inner(self._current(), optimizer):
            return False
        self._current, self._inner = weakref.ref(optimizer), None
        self.data_since = False
        return True

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
        if self._current is None or self._current() is not optimizer:
            return False
        self.last, self._current = self._current, None
        self.taken += 1
        return True

    def forget(self) -> None:
        """Whatever was going on is over."""
        self._current = None
