"""Log of NCCL Inspector in the rank's process, read while the plugin writes it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rankscope.profiler.helper.collectives.times_source import NoTimesError, note_progress, progress_before
from rankscope.profiler.helper.tasks import HelperContext
from rankscope.runs.durations import DurationBlock, DurationSource
from rankscope.runs.paths import inspector_dir

if TYPE_CHECKING:
    from rankscope.profiler.helper.collectives.log_follower import LogFollower

LOOK_SECONDS: Final = 1.0
NOTHING_SECONDS: Final = 60.0
"""Time without a log after which that is reported."""
_RECORD_BYTES: Final = 1000
"""Size of a record, to tell how many were skipped."""


class InspectorLog:
    """Source of durations: the log that the plugin writes in the rank's process."""

    kind: DurationSource = "nccl_inspector"

    def __init__(self, context: HelperContext, folder: Path) -> None:
        self._context = context
        self._folder = folder
        self._is_own = folder.absolute() == inspector_dir(Path(context.handover.settings.run_dir)).absolute()
        self._since: float | None = None
        self._log: LogFollower | None = None
        self._progress = progress_before(context.scratch)
        self._lost_records = self._damaged = 0
        """Numbers that blocks have."""
        self._has_more = False

    @classmethod
    def of_environment(cls, context: HelperContext) -> InspectorLog | None:
        """Return the log that the environment of the rank asks for, which the helper shares; ``None`` if it asks for none."""
        environment = os.environ
        folder = environment.get("NCCL_INSPECTOR_DUMP_DIR")
        is_on = (
            environment.get("NCCL_PROFILER_PLUGIN")
            and environment.get("NCCL_INSPECTOR_ENABLE") == "1"
            and environment.get("NCCL_INSPECTOR_PROM_DUMP") != "1"
        )
        return cls(context, Path(folder)) if is_on and folder else None

    def look(self, *, last: bool) -> Iterator[DurationBlock]:
        """Yield new durations. Raises ``NoTimesError``, ``OSError`` and ``ValueError``."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if self._log is None:
            self._log = self._find()
        if self._log is None:
            if last or now - self._since > NOTHING_SECONDS:
                raise NoTimesError(
                    f"no log of NCCL Inspector appeared in {self._folder}; does NCCL load the plugin (NCCL_DEBUG=INFO)?"
                )
            return
        from rankscope.analysis.durations.blocks import blocks_of

        while True:
            try:
                self._has_more = self._log.read()
            except FileNotFoundError:
                self._log, self._since = None, now
                return
            note_progress(self._context.scratch, *self._log.progress)
            for block in blocks_of(self.kind, self._log.take()):
                yield self._counted(block)
            # A log that does not shrink costs disk space, which the user sees, but no durations.
            with suppress(OSError):
                self._log.release()
            if not (last and self._has_more):
                return

    def _find(self) -> LogFollower | None:
        rank = self._context.handover.rank
        for host in dict.fromkeys((rank.host, rank.host.partition(".")[0])):
            path = self._folder / f"{host}-pid{rank.pid}.log"
            if path.exists():
                from rankscope.profiler.helper.collectives.log_follower import LogFollower

                progress, self._progress = self._progress, []
                return LogFollower(path, pid=rank.pid, is_own=self._is_own, progress=progress)
        return None

    def _counted(self, block: DurationBlock) -> DurationBlock:
        assert self._log is not None
        lost = self._log.log.dropped + self._log.skipped_bytes // _RECORD_BYTES
        damaged = self._log.log.damaged
        block = msgspec.structs.replace(block, lost=lost - self._lost_records, damaged=damaged - self._damaged)
        self._lost_records, self._damaged = lost, damaged
        return block

    def wait_seconds(self) -> float:
        """Return the time until the next look."""
        return 0.0 if self._has_more else LOOK_SECONDS

    def warning(self) -> str | None:
        """Return what was lost."""
        if not self._lost_records:
            return None
        return f"{self._lost_records} durations of collectives are lost: NCCL Inspector dropped them, or its log grows too fast"

    def close(self) -> None:
        """Remove the log, if the run made its folder: all that matters is recorded. Raises ``OSError``."""
        if self._log is not None:
            self._log.remove()
