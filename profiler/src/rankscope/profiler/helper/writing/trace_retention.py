"""Retention of raw traces: a thread of its own compresses them into the rank's folder, because the disk may be slow or dead."""

from __future__ import annotations

import errno
import gzip
import queue
import shutil
import stat
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from rankscope.base.atomic_files import replacing
from rankscope.profiler.scratch import remove_trace
from rankscope.runs.small_files import make_folder

CAPTURED: Final = 8
"""Number of requested traces kept per rank; the oldest are removed."""
WRONG: Final = 4
"""Number of traces kept per rank of windows in which something looked wrong; the oldest are removed."""
WRONG_BYTES: Final = 256 * 1024 * 1024
"""Default limit of the total size of the traces in which something looked wrong."""
WRONG_RANKS: Final = 8
"""Number of ranks of a job that keep these: where ranks wait for each other, the same window looks wrong on all of them."""
_ROOM: Final = 10
"""Least free space on the disk for such a trace, in multiples of its size: no user requested it."""
MAX_WAITING: Final = 2
"""Largest number of traces that wait in local memory for the disk; further ones are not kept."""

_Purpose = Literal["last", "requested", "wrong"]


def keeps_wrong(rank: int, world_size: int) -> bool:
    """Return whether this rank keeps traces in which something looked wrong: at most ``WRONG_RANKS`` do, spread over the job."""
    return rank % -(-world_size // WRONG_RANKS) == 0


class TraceRetention:
    """Retention of the last ``keep`` traces, in the folder that ``keep_in`` returns (``None``: there is none now).

    It also keeps the last ``CAPTURED`` requested traces, and the last ``WRONG`` traces in which something looked wrong, of at
    most ``wrong_bytes`` in total (0: none). Every trace is removed from ``scratch``, kept or not.
    """

    def __init__(
        self,
        scratch: Path,
        *,
        keep: int,
        keep_in: Callable[[], Path | None],
        report: Callable[[str], None],
        wrong_bytes: int = WRONG_BYTES,
    ) -> None:
        self._scratch = scratch
        self._keep = keep
        self._keep_in = keep_in
        self._report = report
        self._last = deque[Path]()
        self._captured = deque[Path]()
        self._wrong = deque[tuple[Path, int]]()
        self._wrong_bytes = wrong_bytes
        self._traces: queue.SimpleQueue[tuple[Path, _Purpose] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="trace retention", daemon=True)

    def take(self, trace: Path, *, requested: bool = False, wrong: bool = False) -> None:
        """Take a reduced trace; ``requested``: it was requested, ``wrong``: something looked wrong in it. Never waits."""
        purpose: _Purpose = "requested" if requested else "wrong" if wrong and self._wrong_bytes else "last"
        if purpose == "last" and not self._keep:
            remove_trace(trace, self._scratch)
        elif self._traces.qsize() >= MAX_WAITING:
            self._report(f"the trace {trace.stem} is not kept: the disk is too slow for the {MAX_WAITING} before it")
            remove_trace(trace, self._scratch)
        else:
            if self._thread.ident is None:
                self._thread.start()
            self._traces.put((trace, purpose))

    def finish(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until all traces are kept, after the last one was taken. Return whether they are."""
        if self._thread.ident is not None:
            self._traces.put(None)
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (entry := self._traces.get()) is not None:
            trace, purpose = entry
            self._store(trace, purpose)
            remove_trace(trace, self._scratch)

    def _store(self, trace: Path, purpose: _Purpose) -> None:
        folder = self._keep_in()
        if folder is None:
            return
        stored_trace = folder / "traces" / f"{trace.stem}.json.gz"
        try:
            # Without its parents: a removed run must not be created again.
            make_folder(stored_trace.parent, parents=False)
            if not stat.S_ISDIR(stored_trace.parent.lstat().st_mode):
                raise OSError(errno.ENOTDIR, "the folder of the traces is a link")  # noqa: TRY301  # reported below
            with (
                trace.open("rb") as source,
                replacing(stored_trace, shared=True) as file,
                gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=file) as target,
            ):
                shutil.copyfileobj(source, target)
                target.close()
                size = file.tell()
                if purpose == "wrong":
                    self._make_room(stored_trace.parent, size)
            if purpose == "wrong":
                self._wrong.append((stored_trace, size))
                return
            names, limit = (self._captured, CAPTURED) if purpose == "requested" else (self._last, self._keep)
            names.append(stored_trace)
            while len(names) > limit:
                names.popleft().unlink(missing_ok=True)
        except OSError as error:
            self._report(f"cannot keep the trace {stored_trace.name}: {error.strerror or error}")

    def _make_room(self, folder: Path, size: int) -> None:
        """Make room for one more trace in which something looked wrong. Raises ``OSError``, also if it alone is too large."""
        if shutil.disk_usage(folder).free < _ROOM * size:
            raise OSError(errno.ENOSPC, "the disk is nearly full")
        if size > self._wrong_bytes:
            raise OSError(errno.EFBIG, f"it is larger than all of its kind may be, {self._wrong_bytes} bytes")
        while len(self._wrong) >= WRONG or sum(size for _, size in self._wrong) + size > self._wrong_bytes:
            self._wrong.popleft()[0].unlink(missing_ok=True)
