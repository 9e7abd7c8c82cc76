"""Log of the failures of a destination."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rankscope.base.problems import ProblemLog

logger = logging.getLogger(__name__)


class FailureLog:
    """Log of a destination's failures: the first one, each with a new reason, and the recovery. ``report`` takes one line."""

    def __init__(self, name: str, report: Callable[[str], object]) -> None:
        self._name = name
        self._problems = ProblemLog(report)
        self.count = 0
        """Failures in a row."""

    def failed(self, reason: str) -> None:
        """Count a failed attempt."""
        self.count += 1
        self.report(f"not delivered so far: {reason}")

    def report(self, text: str) -> None:
        """Report a line once, until the line changes or something is delivered."""
        self._problems.report(f"{self._name}: {text}")

    def delivered(self) -> None:
        """Start anew after a delivery."""
        if self.count and self._problems:
            logger.info("%s: delivered after %d failed attempts", self._name, self.count)
        self.count = 0
        self._problems.report(None)
