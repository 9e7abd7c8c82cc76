"""One scheduler's word, kept a while when it cannot be had anew."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from rankscope.exporter.jobs.deadline import Deadline
from rankscope.exporter.jobs.party import Hold

logger = logging.getLogger(__name__)

KEEP_S: Final = 30.0
"""A kubelet restarts within this time. Labels that came and went would be new series each time."""

_DEADLINE_S: Final = 2.0


class HoldSource:
    """Asks ``call`` and waits two seconds at most.

    ``ok``: it answered; None where there is nothing to ask. ``known``: what it said last may still be believed.
    """

    def __init__(self, name: str, call: Callable[[], tuple[Hold, ...] | None]) -> None:
        self.name = name
        self.ok: bool | None = None
        self.known: bool | None = None
        self._call = call
        self._deadline = Deadline(_DEADLINE_S)
        self._last: tuple[Hold, ...] | None = None
        self._last_s = float("-inf")
        self._logged: str | None = None

    def read(self, now_s: float) -> tuple[Hold, ...] | None:
        """All that hold something, at most ``KEEP_S`` old; None where that is not known. ``now_s`` is monotonic."""
        recent = self._last is not None and now_s - self._last_s <= KEEP_S
        try:
            holds = self._deadline.ask(self._call)
        except Exception as error:  # noqa: BLE001  whatever goes wrong with one source costs that source only
            self.ok, self.known = False, recent
            self._log(str(error) or type(error).__name__)
            return self._last if recent else None
        if holds is None and recent:  # as a kubelet that restarts takes its socket away
            self.ok, self.known = False, True
            return self._last
        self._log(None)
        self._last, self._last_s = holds, now_s
        self.ok = self.known = None if holds is None else True
        return holds

    def _log(self, problem: str | None) -> None:
        if problem == self._logged:
            return
        if problem is None:
            logger.info("jobs: %s works again", self.name)
        else:
            logger.warning("jobs: %s: %s", self.name, problem)
        self._logged = problem
