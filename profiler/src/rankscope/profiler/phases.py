"""Division of a step's wall time into phases.

Only some phases have events at their beginning and end. The time between them is charged by its neighbours: time before a
backward pass is forward, also in an optimizer's closure; time from a backward pass to the optimizer is the optimizer's (clipping,
unscaling); the rest is between steps. So the phases sum to the wall time by construction.

A phase is a number, its index in ``PHASES``, and times are lists of nanoseconds by that index, because this runs at every event
of every step.
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
"""Time of a phase that was not observed: unknown, which is not zero."""

_NEVER: Final = [UNSEEN] * len(PHASES)
_NOTHING: Final = [0] * len(PHASES)
_INTERRUPTING: Final = (H2D, BETWEEN)
_END: Final = -1
_GAP: Final = -1


class Line(Protocol):
    """Another time line that is cut at the same events as this one; see ``device``."""

    def cut(self, phase: int) -> None:
        """Assign the time between the last cut and now to ``phase``; -1: the phase is decided later."""

    def settle(self, phase: int) -> None:
        """Assign the undecided (-1) time so far to ``phase``."""

    def place(self) -> int:
        """Return the number of cuts; for ``forget``."""

    def forget(self, place: int, phase: int) -> None:
        """Assign all time since cut number ``place`` to ``phase``."""


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
        """Nanoseconds per phase, ``UNSEEN`` where the phase was not observed."""
        self.blocked = _NOTHING.copy()
        """Nanoseconds of waiting for other ranks inside each phase."""
        self._gap = self._gap_blocked = 0
        self._last = BETWEEN
        if self._open:
            self._open.clear()

    @property
    def mark(self) -> int:
        """Time of the last event that ended or decided a phase."""
        return self._mark

    def enter(self, phase: int, now: int) -> None:
        """Begin ``phase``, and charge the time since the last event to the phase that this decides.

        ``BETWEEN`` and ``H2D`` interrupt undecided time without deciding its phase.
        """
        if self._open:
            inner = self._open[-1]
            if inner == OPTIMIZER and phase == BACKWARD:
                # In a closure too, time before a backward pass is forward (all of Lightning's automatic optimization).
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
        """End the phase opened last."""
        if not self._open:
            return  # it began in a step that is over
        phase = self._open.pop()
        self._add(phase, now)
        if phase not in _INTERRUPTING:
            self._last = phase

    def abandon(self, phase: int) -> None:
        """Mark ``phase`` as not open, because an exception went through it."""
        self._open = [other for other in self._open if other != phase]

    def wait(self, nanoseconds: int) -> None:
        """Count the last ``nanoseconds`` as waiting for other ranks."""
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
        """Return the current state, for ``interrupt``."""
        if self.line is not None:
            self.line.cut(self._open[-1] if self._open else _GAP)
        return Moment(self)

    def interrupt(self, since: Moment, began: int, ended: int) -> None:
        """Take back all phases since ``since``, a moment of this step, and count ``began`` to ``ended`` as between steps.

        The phase of the time after ``ended`` is decided later.
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
    """Saved state of a ``PhaseClock``."""

    __slots__ = ("blocked", "gap", "gap_blocked", "last", "mark", "open", "place", "times")

    def __init__(self, clock: PhaseClock) -> None:
        self.times, self.blocked = clock.times.copy(), clock.blocked.copy()
        self.mark, self.gap, self.gap_blocked = clock._mark, clock._gap, clock._gap_blocked  # noqa: SLF001  # a part of it
        self.last, self.open = clock._last, clock._open.copy()  # noqa: SLF001  # as above
        self.place = 0 if clock.line is None else clock.line.place()
