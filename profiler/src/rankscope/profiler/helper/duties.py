"""Duties of the helper besides writing records; a duty that fails does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankscope.profiler.handover import Hello
from rankscope.profiler.intervals import PhaseInterval
from rankscope.runs.records import RankInfo, RunInfo, StepBreakdown, StepRecord


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Context of a duty.

    ``run`` returns the identity of the run as stored in its folder, ``info`` the current content of ``rank.json``. ``say`` prints
    a message to stderr. ``begun`` returns whether this rank has its place in the run directory.
    """

    hello: Hello
    scratch: Path
    run: Callable[[], RunInfo]
    info: Callable[[], RankInfo]
    begun: Callable[[], bool]
    say: Callable[[str], None]


class Duty:
    """Base class of duties. Methods run on the helper's main thread, which also empties the ring, so none may block."""

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval]) -> None:
        """Handle a step of the rank. ``intervals``: its phases on the host, in the order of time."""

    def breakdown(self, breakdown: StepBreakdown) -> None:
        """Handle the breakdown of a profiled step."""

    def tick(self) -> None:
        """Do periodic work; called a few times a second."""

    def end(self, *, vanished: bool) -> None:
        """Handle the end of the rank; ``vanished``: it reported none. Not called if the helper is killed."""


class Duties:
    """All duties of one helper. Nothing here raises."""

    def __init__(self, duties: Iterable[Duty], say: Callable[[str], None]) -> None:
        self._duties = list(duties)
        self._say = say

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval]) -> None:
        """See ``Duty.step``."""
        self._each(lambda duty: duty.step(record, intervals))

    def breakdown(self, breakdown: StepBreakdown) -> None:
        """See ``Duty.breakdown``."""
        self._each(lambda duty: duty.breakdown(breakdown))

    def tick(self) -> None:
        """See ``Duty.tick``."""
        self._each(lambda duty: duty.tick())

    def end(self, *, vanished: bool) -> None:
        """See ``Duty.end``."""
        self._each(lambda duty: duty.end(vanished=vanished))

    def _each(self, call: Callable[[Duty], None]) -> None:
        for duty in tuple(self._duties):
            try:
                call(duty)
            except Exception as error:  # noqa: BLE001  # no error may stop the records
                self._duties.remove(duty)
                with suppress(Exception):
                    # A stale file of the duty, such as its metrics, would look as if the rank had stopped.
                    duty.end(vanished=False)
                with suppress(Exception):
                    self._say(f"{type(duty).__name__} failed ({type(error).__name__}: {error}); recording goes on without it")
