"""Question to NCCL RAS when a rank's Flight Recorder is dumped: RAS answers while the job hangs, and not after it has ended."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

from rankscope.base.errors import InputError
from rankscope.profiler.helper.tasks import HelperContext
from rankscope.runs.paths import attempt_dir
from rankscope.runs.ras import ask, default_address, keep_answer

APART_SECONDS: Final = 5.0
"""Time between the two questions, which show whether the ranks go on."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of an answer, 27,000 ranks in communicators: the helper shares the memory of the node with training."""


class RasQuestion:
    """Asks the job of this rank twice, on a thread of its own, and keeps the answers in the run."""

    def __init__(self, context: HelperContext) -> None:
        self._run = Path(context.handover.settings.run_dir)
        self._may_ask = "nccl" in (context.handover.attempt.backend or "") and os.environ.get("NCCL_RAS_ENABLE") != "0"
        self._thread: threading.Thread | None = None

    def ask(self, attempt: int) -> None:
        """Start to ask, unless that goes on already. Returns at once."""
        if self._may_ask and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._twice, args=(attempt,), name="nccl-ras", daemon=True)
            self._thread.start()

    def _twice(self, attempt: int) -> None:
        try:
            self._once(attempt)
            time.sleep(APART_SECONDS)
            self._once(attempt)
        except (InputError, OSError):
            pass  # no NCCL RAS here, or the disk takes nothing; `rankscope hang` reports what it lacks

    def _once(self, attempt: int) -> None:
        answer = ask(default_address(), most_bytes=MAX_BYTES)
        if attempt_dir(self._run, attempt).is_dir():
            keep_answer(self._run, attempt, answer)
