"""Where the time of a step went: a clock that is told when phases begin and end.

Only some phases announce themselves. The time between them is charged by what lies on either side: before a backward is the
forward pass, also in an optimizer's closure; from a backward to the optimizer is the optimizer's (clipping, unscaling), the rest
is between steps. So the phases sum to the wall time by construction.

Phases are numbers here, places in ``PHASES``, and times lists of as many nanoseconds: this runs at every event of every step.
"""

from __future__ import annotations

from typing import Final, Protocol

from rankscope.runs.records import PHASES

DATA: Final = PHASES.index("data")
H2D: Final = PHASES.index("h2d")
FORWARD: Final = PHASES.index("forward")
BACKWARD: Final = PHASES.index("backward")
OPTIMIZER: Final = PHASES.index("optimizer")
BETWEEN: Final = PHASES.index("between_steps")

UNSEEN: Final = -1
"""The time of a phase that never was: not known, which is not zero."""

_NEVER: Final = [UNSEEN] * len(PHASES)
_NOTHING: Final = [0] * len(PHASES)
_INTERRUPTING: Final = (H2D, BETWEEN)
_END: Final = -1
_GAP: Final = -1


class Line(Protocol):
    """Another time line that is cut where this one is; see ``device``."""

    def cut(self, phase: int) -> None:
        """What lies between the last cut and now is ``phase``; -1: that turns out later."""

    def settle(self, phase: int) -> None:
        """What was -1 so far is ``phase``."""

    def place(self) -> int:
        """How many cuts there are; for ``forget``."""

    def forget(self, place: int, phase: int) -> None:
        """All since the cut number ``place`` is ``phase``."""


class PhaseClock:
    """Phase and blocked times of the current step, in nanoseconds of a monotonic clock that the caller reads."""

    __slots__ = ("_gap", "_gap_blocked", "_last", "_mark", "_open", "blocked", "line", "start", "times")

    def __init__(self, now: int) -> None:
        self.line: Line | None = None
        self._open: list[int] = []
        self.begin(now)

    def begin(self, now: int) -> None:
        """Start a step at ``now``. A phase still open is forgotten: an exception went through it."""
        self.start = self._mark = now
        self.times = _NEVER.copy()
        """Nanoseconds per phase, ``UNSEEN`` where there was no sign of it."""
        self.blocked = _NOTHING.copy()
        """Nanoseconds of waiting for other ranks inside each phase."""
        self._gap = self._gap_blocked = 0
        self._last = BETWEEN
        if self._open:
            self._open.clear()

    def enter(self, phase: int, now: int) -> None:
        """``phase`` begins; the time since the last event is charged to what it turns out to have been.

        ``BETWEEN`` and ``H2D`` interrupt what turns out later without deciding it.
        """
        if self._open:
            inner = self._open[-1]
            if inner == OPTIMIZER and phase == BACKWARD:
                # A closure: before a backward is the forward pass there, too (all of Lightning's automatic optimization).
                inner = FORWARD
            self._add(inner, now)
        elif phase in _INTERRUPTING:
            self._gap += now - self._mark
            self._mark = now
            if self.line is not None:
                self.line.cut(_GAP)
        else:
            self._close_gap(phase, now)
        if self.times[phase] == UNSEEN:
            self.times[phase] = 0
        self._open.append(phase)

    def leave(self, now: int) -> None:
        """The phase opened last ends."""
        if not self._open:
            return  # it began in a step that is over
        phase = self._open.pop()
        self._add(phase, now)
        if phase not in _INTERRUPTING:
            self._last = phase

    def abandon(self, phase: int) -> None:
        """Forget that ``phase`` is open: an exception went through it."""
        self._open = [other for other in self._open if other != phase]

    def wait(self, nanoseconds: int) -> None:
        """``nanoseconds`` up to now were spent waiting for other ranks."""
        if self._open and self._open[-1] != OPTIMIZER:
            self.blocked[self._open[-1]] += nanoseconds
        else:
            self._gap_blocked += nanoseconds

    def finish(self, now: int) -> int:
        """End the step at ``now``; returns its wall time in nanoseconds."""
        if self._open:
            self._add(self._open[-1], now)
        self._close_gap(_END, now)
        return now - self.start

    def remember(self) -> Moment:
        """The state now, for ``interrupt``."""
        if self.line is not None:
            self.line.cut(self._open[-1] if self._open else _GAP)
        return Moment(self)

    def interrupt(self, since: Moment, began: int, ended: int) -> None:
        """All since ``since`` (of this step) was no part of its work: from ``began`` to ``ended`` it was between steps.

        What followed ``ended`` turns out later.
        """
        waited = sum(self.blocked) + self._gap_blocked - sum(since.blocked) - since.gap_blocked
        self.times, self.blocked, self._last = since.times, since.blocked, since.last
        self._mark, self._gap, self._gap_blocked = since.mark, since.gap, since.gap_blocked
        self._open = since.open
        if self.line is not None:
            self.line.forget(since.place, BETWEEN)
        line, self.line = self.line, None
        self.enter(BETWEEN, max(began, self._mark))
        self.wait(waited)
        self.leave(max(ended, self._mark))
        self.line = line

    def _add(self, phase: int, now: int) -> None:
        self.times[phase] = max(self.times[phase], 0) + now - self._mark
        self._mark = now
        if self._gap_blocked and phase not in _INTERRUPTING:
            self.blocked[phase] += self._gap_blocked
            self._gap_blocked = 0
        if self.line is not None:
            self.line.cut(phase)

    def _close_gap(self, following: int, now: int) -> None:
        if following == BACKWARD:
            phase = FORWARD
        elif following == OPTIMIZER:
            phase = OPTIMIZER if self._last in (BACKWARD, OPTIMIZER) else FORWARD
        else:
            phase = BETWEEN
        elapsed = self._gap + now - self._mark
        if elapsed or self._gap_blocked:
            self.times[phase] = max(self.times[phase], 0) + elapsed
            self.blocked[phase] += self._gap_blocked
            self._gap = self._gap_blocked = 0
        self._mark = now
        if self.line is not None:
            self.line.cut(phase)
            self.line.settle(phase)


class Moment:
    """A state of a ``PhaseClock``."""

    __slots__ = ("blocked", "gap", "gap_blocked", "last", "mark", "open", "place", "times")

    def __init__(self, clock: PhaseClock) -> None:
        self.times, self.blocked = clock.times.copy(), clock.blocked.copy()
        self.mark, self.gap, self.gap_blocked = clock._mark, clock._gap, clock._gap_blocked  # noqa: SLF001  # a part of it
        self.last, self.open = clock._last, clock._open.copy()  # noqa: SLF001  # as above
        self.place = 0 if clock.line is None else clock.line.place()
