"""What the helper does besides writing records: each a duty of its own, and a duty that fails costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankscope.profiler.handover import Hello
from rankscope.runs.records import RankInfo, RunInfo, StepBreakdown, StepRecord


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a duty may ask.

    ``run`` is the identity of the run as its folder has it, ``info`` the rank as ``rank.json`` would have it now, ``say`` prints
    a line for people on stderr. ``begun``: whether this rank has its place in the run directory.
    """

    hello: Hello
    scratch: Path
    run: Callable[[], RunInfo]
    info: Callable[[], RankInfo]
    begun: Callable[[], bool]
    say: Callable[[str], None]


class Duty:
    """Called on the helper's main thread, which also empties the ring: nothing here may take long or wait."""

    def step(self, record: StepRecord) -> None:
        """The rank has done a step."""

    def breakdown(self, breakdown: StepBreakdown) -> None:
        """A profiled step has been reduced."""

    def tick(self) -> None:
        """A few times a second."""

    def end(self, *, vanished: bool) -> None:
        """The rank is gone; ``vanished``: without a word. Not called when the helper is killed."""


class Duties:
    """All duties of one helper. Nothing here raises."""

    def __init__(self, duties: Iterable[Duty], say: Callable[[str], None]) -> None:
        self._duties = list(duties)
        self._say = say

    def step(self, record: StepRecord) -> None:
        """See ``Duty.step``."""
        self._each(lambda duty: duty.step(record))

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
            except Exception as error:  # noqa: BLE001  # whatever it is, the records are written
                self._duties.remove(duty)
                with suppress(Exception):
                    # What it keeps for others, a file of metrics say, would look as if the rank had fallen silent.
                    duty.end(vanished=False)
                with suppress(Exception):
                    self._say(f"{type(duty).__name__} failed ({type(error).__name__}: {error}); recording goes on without it")
