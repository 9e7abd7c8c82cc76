"""Division of a step's wall time into phases.

Only some phases have events at their beginning and end. The time between them is charged by its neighbours: time before a
backward pass is forward, also in an optimizer's closure; time from a backward pass to the optimizer is the optimizer's (clipping,
unscaling); the rest is between steps. So the phases sum to the wall time by construction.

A phase is a number, its index in ``PHASES``, and times are lists of nanoseconds by that index.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rankscope.runs.records import PHASES, Phase

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


class PhaseInterval(NamedTuple):
    """Uninterrupted stretch of one phase; nanoseconds since 1970."""

    phase: Phase
    start_unix_ns: int
    end_unix_ns: int
    blocked_ns: int
    """Part of it in which the rank waited for others, as far as that is known."""


class PhaseClock:
    """Phase and blocked times of a step that begins at ``now``, in nanoseconds of the clock that the caller's times are of.

    Time does not run backward here: a signal handler may have run between the reading of an event's time and its report.
    """

    __slots__ = ("_gap", "_gap_blocked", "_last", "_mark", "_open", "_undecided", "blocked", "pieces", "start", "times")

    def __init__(self, now: int) -> None:
        self._open: list[int] = []
        self.pieces: list[tuple[int, int]] = []
        """(phase, end) of consecutive pieces of the step, from its start."""
        self._undecided: tuple[int, ...] = ()
        """Places of the pieces whose phase is decided later."""
        self.start = self._mark = now
        self.times = _NEVER.copy()
        """Nanoseconds per phase, ``UNSEEN`` where the phase was not observed."""
        self.blocked = _NOTHING.copy()
        """Nanoseconds of waiting for other ranks inside each phase."""
        self._gap = self._gap_blocked = 0
        self._last = BETWEEN

    @property
    def innermost(self) -> int | None:
        """Phase that is open now; ``None`` between phases."""
        return self._open[-1] if self._open else None

    def enter(self, phase: int, now: int) -> None:
        """Begin ``phase``, and charge the time since the last event to the phase that this decides.

        ``BETWEEN`` and ``H2D`` interrupt undecided time without deciding its phase.
        """
        now = max(now, self._mark)
        if self._open:
            inner = self._open[-1]
            if inner == OPTIMIZER and phase == BACKWARD:
                # In a closure too, time before a backward pass is forward (all of Lightning's automatic optimization).
                inner = FORWARD
            self._add(inner, now)
        elif phase in _INTERRUPTING:
            self._gap += now - self._mark
            self._mark = now
            self._undecided += (len(self.pieces),)
            self.pieces.append((BETWEEN, now))
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
        self._add(phase, max(now, self._mark))
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
        now = max(now, self._mark)
        if self._open:
            self._add(self._open[-1], now)
        self._close_gap(_END, now)
        return now - self.start

    def remember(self) -> PhaseState:
        """Return the current state, for ``interrupt``."""
        return PhaseState(self)

    def interrupt(self, since: PhaseState, began: int, ended: int) -> None:
        """Take back all phases since ``since``, a moment of this step, and count ``began`` to ``ended`` as between steps.

        The phase of the time after ``ended`` is decided later.
        """
        waited = sum(self.blocked) + self._gap_blocked - sum(since.blocked) - since.gap_blocked
        self.times, self.blocked, self._last = since.times, since.blocked, since.last
        self._mark, self._gap, self._gap_blocked = since.mark, since.gap, since.gap_blocked
        self._open = since.open
        self.pieces, self._undecided = since.pieces, since.undecided
        self.enter(BETWEEN, max(began, self._mark))
        self.wait(waited)
        self.leave(max(ended, self._mark))

    def _add(self, phase: int, now: int) -> None:
        self.times[phase] = max(self.times[phase], 0) + now - self._mark
        self._mark = now
        if self._gap_blocked and phase not in _INTERRUPTING:
            self.blocked[phase] += self._gap_blocked
            self._gap_blocked = 0
        self.pieces.append((phase, now))

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
        for place in self._undecided:
            self.pieces[place] = phase, self.pieces[place][1]
        self._undecided = ()
        self.pieces.append((phase, now))


class PhaseState:
    """Saved state of a ``PhaseClock``."""

    __slots__ = ("blocked", "gap", "gap_blocked", "last", "mark", "open", "pieces", "times", "undecided")

    def __init__(self, clock: PhaseClock) -> None:
        self.times, self.blocked = clock.times.copy(), clock.blocked.copy()
        self.mark, self.gap, self.gap_blocked = clock._mark, clock._gap, clock._gap_blocked  # noqa: SLF001  # a part of it
        self.last, self.open = clock._last, clock._open.copy()  # noqa: SLF001  # as above
        self.pieces, self.undecided = clock.pieces.copy(), clock._undecided  # noqa: SLF001  # as above
