"""Jobs: processes beside the server, so that requests never wait for an analysis, whose memory is released when it ends.

Their state is in the memory of the server, with which they end.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import msgspec
from cachetools import TTLCache

from rankscope.analysis.result.text import size
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError, RunSummary
from rankscope.dashboards.store.cache import Store, full_disk, in_words
from rankscope.dashboards.store.memory import memory_left, used_bytes
from rankscope.dashboards.store.tasks import FOLLOW, State

SLOTS: Final = 2
"""Jobs at a time, without followers of live runs that have been read once; at most one of them on large runs."""
LARGE_BYTES: Final = 256 << 20
"""Size of a run's files from which a job on it may take gigabytes of memory and all cores."""
MOST_OF_WHAT_IS_LEFT: Final = 0.9
FAILURE_LASTS_S: Final = 60.0
"""Time after which a failed job may be retried."""
HUNG_AFTER_S: Final = 1800.0
"""Time without any progress after which a job is ended."""
NOBODY_LOOKS_S: Final = 60.0
"""Time without a request after which the follower of a live run is ended."""
CANCELLED: Final = "this was cancelled; it can be asked for again in a minute"

_LOOK_EVERY_S: Final = 0.1


@dataclass(eq=False, slots=True)
class Job:
    """A process beside the server and its last report."""

    task: str
    subject: str
    large: bool
    folder: Path
    """Folder that it fills."""
    state: State = field(default_factory=State)
    cancelled: bool = False
    looked_s: float = field(default_factory=time.monotonic)
    """Time of the last request, by the monotonic clock."""

    @property
    def standing(self) -> str:
        """Subject and progress, for those who wait for its end."""
        now = self.state.progress
        return f"{self.subject}, {100 * now.done // now.of} %" if now.of else f"{self.subject}, {now.what}"


class Jobs:
    """Jobs of one server. ``memory_bytes``: most memory of each of them; ``None``: nearly all that is left when it starts."""

    def __init__(self, store: Store, memory_bytes: int | None = None) -> None:
        self.store = store
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._failures: TTLCache[str, str] = TTLCache(1024, FAILURE_LASTS_S)

    def result(self, key: str, task: str, arguments: Sequence[object], runs: Sequence[RunSummary]) -> Path:
        """Return the folder of ``key``, or start a job that fills it with a task of ``TASKS``.

        Raises ``NotReadyError`` while it is being filled, ``RankscopeError`` if that failed, and ``OSError``.
        """
        with self._lock:
            if (found := self.store.find(key)) is not None:
                return found
            job = self._job(key, task, arguments, runs)
        raise NotReadyError(job.state.progress, key)

    def followed(self, key: str, run: RunSummary) -> tuple[Path, str | None]:
        """Return the folder to which a live run is followed, and why the last update failed. Raises as ``result``."""
        with self._lock:
            job = self._job(key, FOLLOW, [run.path], [run])
            job.looked_s = time.monotonic()
        if not job.state.updated:
            raise NotReadyError(Progress("reading the run for the first time"), key)
        return job.folder, job.state.failure

    def cancel(self, key: str) -> None:
        """End the job that computes ``key``, if there is one."""
        with self._lock:
            if (job := self._jobs.get(key)) is not None:
                job.cancelled = True

    def _job(self, key: str, task: str, arguments: Sequence[object], runs: Sequence[RunSummary]) -> Job:
        """Return the job of ``key``, started if there is none."""
        if (failure := self._failures.get(key)) is not None:
            raise RankscopeError(failure)
        if (job := self._jobs.get(key)) is None:
            large = sum(run.size_bytes for run in runs) >= LARGE_BYTES
            running = [job for job in self._jobs.values() if not job.state.updated]
            ahead = [job for job in running if job.large and large] or (running if len(running) >= SLOTS else [])
            if ahead:
                raise NotReadyError(Progress(f"waiting for another analysis: {ahead[0].standing}"))
            subject = f"{'run' if len(runs) == 1 else 'runs'} {', '.join(run.name for run in runs)}"
            job = Job(task, subject, large, self.store.new_folder())
            try:
                process, connection = start(task, job.folder, arguments)
            except OSError:
                shutil.rmtree(job.folder, ignore_errors=True)
                raise
            self._jobs[key] = job
            threading.Thread(target=self._attend, args=(key, job, process, connection), name=f"job {key}", daemon=True).start()
        return job

    def _attend(self, key: str, job: Job, process: subprocess.Popen[bytes], connection: Connection) -> None:
        """Watch a job until its end, and publish its result."""
        try:
            failure = self._failure(job, process, connection)
            if failure is None and job.task != FOLLOW:
                self.store.publish(key, job.folder)
        except Exception as error:  # noqa: BLE001  without a recorded failure each request would start it again
            failure = in_words(error, job.folder)
        with self._lock:
            del self._jobs[key]
            if failure is not None:
                self._failures[key] = failure
        process.kill()
        connection.close()
        process.wait()
        shutil.rmtree(job.folder, ignore_errors=True)

    def _failure(self, job: Job, process: subprocess.Popen[bytes], connection: Connection) -> str | None:
        """Wait for the end of a job, or for a reason to end it. Return why there is no result, ``None`` if there is one."""
        left = memory_left()
        limit = self._memory_bytes or (None if left is None else int(MOST_OF_WHAT_IS_LEFT * left))
        heard_s = time.monotonic()
        while True:
            now = time.monotonic()
            if connection.poll(_LOOK_EVERY_S):
                try:
                    job.state, heard_s = msgspec.json.decode(connection.recv_bytes(), type=State), now
                except (EOFError, OSError):
                    break
            if job.cancelled:
                return CANCELLED
            if limit is not None and used_bytes(process.pid) > limit:
                return too_large(limit, given=self._memory_bytes is not None)
            if job.task == FOLLOW and now - job.looked_s > NOBODY_LOOKS_S:
                return None
            if job.task != FOLLOW and now - heard_s > HUNG_AFTER_S:
                return f"this made no progress for {HUNG_AFTER_S / 60:.0f} minutes and was ended; is the storage of the run slow?"
        status = process.wait()
        if status == 0 and job.state.failure is None:
            return None
        return job.state.failure or ended_silently(status, job.folder)


def start(task: str, folder: Path, arguments: Sequence[object]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the process of a task; return it with its connection. Raises ``OSError``."""
    ours, theirs = Pipe()
    command = [sys.executable, "-m", "rankscope.dashboards.store.tasks", theirs.fileno(), task, folder, *arguments]
    with theirs:
        # Its own session: Ctrl-C in a terminal ends the server, which takes the process with it.
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
    return process, ours


def too_large(limit: int, *, given: bool) -> str:
    """Return why a job with more memory than ``limit`` was ended. ``given``: the operator has set the limit."""
    why = "as --memory says" if given else "nearly all that was left when it began"
    return (
        f"this was ended because it needs more than {size(limit)} of memory, {why}; start the dashboard where more is free"
        f"{', or with a larger --memory' if given else ''}"
    )


def ended_silently(status: int, folder: Path) -> str:
    """Return why a process that writes into ``folder`` may have ended with ``status`` without a reason of its own."""
    if (full := full_disk(folder)) is not None:
        return full
    if status < 0:
        why = "as processes are when memory is short: see the kernel's log, or try again in a minute"
        return f"this was killed (signal {-status}), {why}"
    return f"this ended without a result (status {status}); the log of the dashboard may say why"
