"""A scheduler as a source of allocations, with a deadline, and with its last answer while it restarts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from rankscope.base.problems import ProblemLog
from rankscope.exporter.jobs.deadline import BoundedCalls
from rankscope.exporter.jobs.party import Hold

logger = logging.getLogger(__name__)

KEEP_S: Final = 30.0
"""Retention of the last answer of a failing source: longer than a restart of the kubelet, so that labels do not flap."""

_DEADLINE_S: Final = 2.0


class HoldSource:
    """Scheduler whose allocations ``call`` lists, with a deadline of two seconds per call.

    ``ok``: the last call succeeded. ``is_valid``: the last answer is still valid. Both are None on a node without this scheduler.
    """

    def __init__(self, name: str, call: Callable[[], tuple[Hold, ...] | None]) -> None:
        self.name = name
        self.ok: bool | None = None
        self.is_valid: bool | None = None
        self._call = call
        self._deadline = BoundedCalls(_DEADLINE_S)
        self._last: tuple[Hold, ...] | None = None
        self._last_s = float("-inf")
        self._problems = ProblemLog(
            partial(logger.warning, "jobs: %s: %s", name), partial(logger.info, "jobs: %s works again", name)
        )

    def read(self, now_s: float) -> tuple[Hold, ...] | None:
        """Return all allocations, at most ``KEEP_S`` old; None if unknown. ``now_s`` is monotonic time."""
        recent = self._last is not None and now_s - self._last_s <= KEEP_S
        try:
            holds = self._deadline.ask(self._call)
        except Exception as error:  # noqa: BLE001  a failing source must not affect the others
            self.ok, self.is_valid = False, recent
            self._problems.report(str(error) or type(error).__name__)
            return self._last if recent else None
        if holds is None and recent:  # a restarting kubelet removes its socket
            self.ok, self.is_valid = False, True
            return self._last
        self._problems.report(None)
        self._last, self._last_s = holds, now_s
        self.ok = self.is_valid = None if holds is None else True
        return holds
