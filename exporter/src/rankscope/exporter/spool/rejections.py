"""Rejected files of the spool: counted by reason, and named in the log and in ``/-/ready``."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rankscope.base.problems import ProblemLog

logger = logging.getLogger(__name__)

MAX_NAMED: Final = 20
MAX_LINES_PER_HOUR: Final = 20
_HOUR_S: Final = 3600.0


class RejectedFile(NamedTuple):
    """A file that is not relayed: name, owner and one of the reasons that docs/exporter-jobs.md explains."""

    name: str
    uid: int
    reason: str


class Rejections(Counter[str]):
    """Number of rejected files by reason; ``files`` names the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[RejectedFile] = []

    def add(self, file: RejectedFile) -> None:
        """Count a file, and name it."""
        self[file.reason] += 1
        if len(self.files) < MAX_NAMED:
            self.files.append(file)


class RejectionLog:
    """Log of rejected files: each file and reason once, while the file is rejected. Not thread-safe.

    Any user can write files with ever new names, so the number of lines per hour is limited.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._problems = ProblemLog(self._log)
        self._hour_began_s = float("-inf")
        self._lines = 0

    def report(self, files: Sequence[RejectedFile]) -> None:
        """Log those of the rejected files that the last reading did not reject for the same reason."""
        now_s = self._monotonic()
        if now_s - self._hour_began_s >= _HOUR_S:
            self._hour_began_s, self._lines = now_s, 0
        self._problems.replace({file.name: file for file in files})

    def _log(self, file: RejectedFile) -> None:
        self._lines += 1
        if self._lines <= MAX_LINES_PER_HOUR:
            logger.warning("a file in the spool is rejected", extra={"file": file.name, "uid": file.uid, "reason": file.reason})
        elif self._lines == MAX_LINES_PER_HOUR + 1:
            logger.warning("further rejected files are not logged for an hour: /-/ready lists some of them")
