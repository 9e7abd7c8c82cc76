"""A scheduler as a source of allocations, with a deadline, and with its last answer while it restarts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from rankscope.base.problems import ProblemLog
from rankscope.exporter.jobs.bounded_calls import BoundedCalls
from rankscope.exporter.jobs.party import Allocation

logger = logging.getLogger(__name__)

KEEP_S: Final = 30.0
"""Retention of the last answer of a failing source: longer than a restart of the kubelet, so that labels do not flap."""

_DEADLINE_S: Final = 2.0


class AllocationSource:
    """Scheduler whose allocations ``call`` lists, with a deadline of two seconds per call.

    ``ok``: the last call succeeded. ``is_valid``: the last answer is still valid. Both are None on a node without this scheduler.
    """

    def __init__(self, name: str, call: Callable[[], tuple[Allocation, ...] | None]) -> None:
        self.name = name
        self.ok: bool | None = None
        self.is_valid: bool | None = None
        self._call = call
        self._bounded_calls = BoundedCalls(_DEADLINE_S)
        self._last: tuple[Allocation, ...] | None = None
        self._last_s = float("-inf")
        self._problems = ProblemLog(
            partial(logger.warning, "jobs: %s: %s", name), partial(logger.info, "jobs: %s works again", name)
        )

    def read(self, now_s: float) -> tuple[Allocation, ...] | None:
        """Return all allocations, at most ``KEEP_S`` old; None if unknown. ``now_s`` is monotonic time."""
        recent = self._last is not None and now_s - self._last_s <= KEEP_S
        try:
            allocations = self._bounded_calls.call(self._call)
        except Exception as error:  # noqa: BLE001  a failing source must not affect the others
            self.ok, self.is_valid = False, recent
            self._problems.report(str(error) or type(error).__name__)
            return self._last if recent else None
        if allocations is None and recent:  # a restarting kubelet removes its socket
            self.ok, self.is_valid = False, True
            return self._last
        self._problems.report(None)
        self._last, self._last_s = allocations, now_s
        self.ok = self.is_valid = None if allocations is None else True
        return allocations
