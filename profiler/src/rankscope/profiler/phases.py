"""Where the time of a step went: a clock that is told when phases begin and end.

Only three phases announce themselves (data, backward, optimizer). The time between them is charged by what lies on either side:
before a backward is the forward pass, from a backward to the optimizer is the optimizer's (clipping, unscaling), the rest is
between steps. So the phases sum to the wall time by construction.
"""

from __future__ import annotations

from typing import Final, Literal

from rankscope.runs.records import PHASES, Phase, PhaseTimes

Timed = Literal["data", "backward", "optimizer"]
_END: Final = "end"


class PhaseClock:
    """Phase and blocked times of the current step, in nanoseconds of a monotonic clock that the caller reads."""

    __slots__ = ("_gap_blocked", "_last", "_mark", "_open", "blocked", "start", "times")

    def __init__(self, now: int) -> None:
        self._open: list[Timed] = []
        self.begin(now)

    def begin(self, now: int) -> None:
        """Start a step at ``now``."""
        self.start = now
        self.times: dict[Phase, int] = {}
        self.blocked: dict[Phase, int] = {}
        self._mark = now
        self._gap_blocked = 0
        self._last: Phase | None = None

    def inside(self, phase: Timed) -> bool:
        """Whether ``phase`` is open."""
        return phase in self._open

    def enter(self, phase: Timed, now: int) -> None:
        """``phase`` begins; the time since the last event is charged to what it turns out to have been."""
        self._charge(phase, now)
        self.times.setdefault(phase, 0)
        self._open.append(phase)

    def leave(self, now: int) -> None:
        """The phase opened last ends."""
        self._charge(_END, now)
        self._last = self._open.pop()

    def abandon(self, phase: Timed) -> None:
        """Forget that ``phase`` is open: an exception went through it."""
        self._open = [other for other in self._open if other != phase]

    def wait(self, nanoseconds: int) -> None:
        """``nanoseconds`` up to now were spent waiting for other ranks."""
        if self._open:
            phase = self._open[-1]
            self.blocked[phase] = self.blocked.get(phase, 0) + nanoseconds
        else:
            self._gap_blocked += nanoseconds

    def finish(self, now: int) -> int:
        """End the step at ``now``; returns its wall time in nanoseconds."""
        self._charge(_END, now)
        return now - self.start

    def _charge(self, following: Timed | Literal["end"], now: int) -> None:
        phase = self._open[-1] if self._open else self._gap(following)
        elapsed = now - self._mark
        if elapsed or self._gap_blocked:
            self.times[phase] = self.times.get(phase, 0) + elapsed
        if self._gap_blocked:
            self.blocked[phase] = self.blocked.get(phase, 0) + self._gap_blocked
            self._gap_blocked = 0
        self._mark = now

    def _gap(self, following: Timed | Literal["end"]) -> Phase:
        if following == "backward":
            return "forward"
        if following == "optimizer":
            return "optimizer" if self._last in ("backward", "optimizer") else "forward"
        return "between_steps"


def in_microseconds(times: dict[Phase, int], phases: dict[Phase, int]) -> PhaseTimes:
    """``times`` (ns) as a record, with zero for the rest of ``phases`` and ``None`` for a phase in neither."""
    return PhaseTimes(**{phase: times.get(phase, 0) / 1000 for phase in PHASES if phase in phases or phase in times})
