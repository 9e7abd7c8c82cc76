"""Jobs: processes beside the server, so that requests never wait for an analysis, whose memory is released when it ends.

Their state is in the memory of the server, with which they end. A request only asks: it starts a job or reads how far it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import msgspec
from cachetools import TTLCache

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError, RunSummary
from rankscope.dashboards.data.viewer import VIEWER
from rankscope.dashboards.store.cache import CACHE_HINT, Store, error_text
from rankscope.dashboards.store.endings import CANCELLED, NO_PROGRESS, Ending, ended_silently, too_large
from rankscope.dashboards.store.memory import memory_left, used_bytes
from rankscope.dashboards.store.tasks import FOLLOW, TaskReport

SLOTS: Final = 2
"""Jobs at a time, without followers of live runs that have been read once; at most one of them on large runs."""
LARGE_BYTES: Final = 256 << 20
"""Size of a run's files from which a job on it may take gigabytes of memory and all cores."""
MAX_FOLLOWERS: Final = 12
"""Followers of live runs at a time."""
SHARE_OF_MEMORY: Final = 0.9
"""Part of the memory that is left which all jobs together may take."""
FAILURE_LASTS_S: Final = 60.0
"""Time after which a failed job may be retried."""
HUNG_AFTER_S: Final = 1800.0
"""Time without any progress after which a job is ended."""
FOLLOWER_IDLE_TIMEOUT_S: Final = 300.0
"""Time without a request after which a follower ends. Browsers let hidden tabs poll once a minute."""
WATCHED_S: Final = 15.0
"""Time after a request of a page for which its follower gives no room to another one: some intervals of a visible page."""
WAITS_S: Final = 150.0
"""Time after a request for which its viewer counts as waiting: two intervals of a hidden tab, and some."""

_LOOK_EVERY_S: Final = 0.1
_MAX_CANCELLED: Final = 1024
_MAX_VIEWERS: Final = 256


@dataclass(eq=False, slots=True)
class AnalysisProcess:
    """A process beside the server and its last report. Times are of the clock of its ``Jobs``."""

    task: str
    subject: str
    large: bool
    arguments: Sequence[object]
    asked_s: float
    """Time of the last request."""
    heard_s: float
    """Time of the last report."""
    watched_s: float = float("-inf")
    """Time of the last request of a page, in contrast to the list of runs."""
    report: TaskReport = field(default_factory=TaskReport)
    folder: Path | None = None
    """Folder that it fills; ``None`` before its process starts."""
    used_bytes: int = 0
    ending: Ending | None = None
    """Reason why it is being ended; ``None``: it runs."""
    viewers: dict[str, float] = field(default_factory=dict)
    """Viewers that wait for it, and the times of their last requests."""

    @property
    def progress_text(self) -> str:
        """Subject and progress, for those who wait for its end."""
        now = self.report.progress
        return f"{self.subject}, {100 * now.done // now.of} %" if now.of else f"{self.subject}, {now.activity}"


class Jobs:
    """Jobs of one server.

    ``memory_bytes``: most memory of all of them together; ``None``: nearly all that is left when one starts.
    """

    def __init__(self, store: Store, memory_bytes: int | None = None, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._memory_bytes = memory_bytes
        self._limit_bytes = memory_bytes
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._jobs: dict[str, AnalysisProcess] = {}
        self._failures: TTLCache[str, str] = TTLCache(1024, FAILURE_LASTS_S, timer=clock_s)
        self._cancelled: TTLCache[tuple[str, str], bool] = TTLCache(_MAX_CANCELLED, FAILURE_LASTS_S, timer=clock_s)
        """Keys of jobs and viewers who do not want to wait for them."""

    def result(self, key: str, task: str, arguments: Sequence[object], runs: Sequence[RunSummary]) -> Path:
        """Return the folder of ``key``, or start a job that fills it with a task of ``TASKS``.

        Raises ``NotReadyError`` while it is being filled, and ``RankscopeError`` if that failed.
        """
        if (folder := self.store.find(key)) is not None:
            return folder
        with self._lock:
            job = self._job(key, task, arguments, runs)
        raise NotReadyError(job.report.progress, key)

    def followed(self, key: str, run: RunSummary, *, watched: bool = True) -> AnalysisProcess:
        """Return the follower of a live run, which has read it. Raises as ``result``. ``watched``: a page shows the run."""
        with self._lock:
            job = self._job(key, FOLLOW, [run.path], [run], watched=watched)
        if job.report.update is None or job.ending is not None:
            raise NotReadyError(Progress("reading the run for the first time"), key)
        return job

    def follower(self, key: str, *, used: bool = True) -> AnalysisProcess | None:
        """Return the follower of a run, which has read it; ``None`` if there is none. ``used``: it is not idle then."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None or job.report.update is None or (job.ending is not None and job.ending.publish_as is None):
                return None
            if used:
                job.asked_s = self._clock_s()
        return job

    def end(self, key: str, *, publish_as: str | None = None) -> None:
        """End a follower; what it has written becomes the folder of the key ``publish_as``."""
        with self._lock:
            if (job := self._jobs.get(key)) is not None and job.ending is None:
                job.ending = Ending(publish_as=publish_as)

    def cancel(self, key: str) -> bool:
        """Stop waiting of this viewer for the job of ``key``. Return whether it ends, as no other viewer waits for it."""
        viewer = VIEWER.get()
        with self._lock:
            self._cancelled[key, viewer] = True
            if (job := self._jobs.get(key)) is None:
                return True
            job.viewers.pop(viewer, None)
            now = self._clock_s()
            if any(now - asked_s <= WAITS_S for asked_s in job.viewers.values()):
                return False
            job.ending = job.ending or Ending()
            return True

    def _job(
        self, key: str, task: str, arguments: Sequence[object], runs: Sequence[RunSummary], *, watched: bool = True
    ) -> AnalysisProcess:
        """Return the job of ``key``, started if there is none."""
        if (failure := self._failures.get(key)) is not None:
            raise RankscopeError(failure)
        viewer, now = VIEWER.get(), self._clock_s()
        if (key, viewer) in self._cancelled:
            raise RankscopeError(CANCELLED)
        if (job := self._jobs.get(key)) is None:
            self._make_room(task, sum(run.size_bytes for run in runs) >= LARGE_BYTES, now, watched=watched)
            subject = f"{'run' if len(runs) == 1 else 'runs'} {', '.join(run.name for run in runs)}"
            large = sum(run.size_bytes for run in runs) >= LARGE_BYTES
            job = self._jobs[key] = AnalysisProcess(task, subject, large, arguments, asked_s=now, heard_s=now)
            threading.Thread(target=self._attend, args=(key, job), name=f"job {key}", daemon=True).start()
        if len(job.viewers) >= _MAX_VIEWERS:  # a client may make them up
            job.viewers = {name: asked_s for name, asked_s in job.viewers.items() if now - asked_s <= WATCHED_S}
        job.asked_s = job.viewers[viewer] = now
        if watched:
            job.watched_s = now
        return job

    def _make_room(self, task: str, large: bool, now: float, *, watched: bool) -> None:
        """Check that one more job may start; a follower that pages need less may end for it. Raises ``NotReadyError``."""
        working = [job for job in self._jobs.values() if job.report.update is None]
        if ahead := [job for job in working if job.large and large] or (working if len(working) >= SLOTS else []):
            raise NotReadyError(Progress(f"waiting for another analysis: {ahead[0].progress_text}"))
        followers = [job for job in self._jobs.values() if job.task == FOLLOW and job.ending is None]
        if task != FOLLOW or len(followers) < MAX_FOLLOWERS:
            return
        # The list of runs asks for many: it ends no follower that had a request lately.
        idle = [job for job in followers if now - (job.watched_s if watched else job.asked_s) > WATCHED_S]
        if not idle:
            raise NotReadyError(Progress(f"waiting for its turn: {len(followers)} live runs are being followed"))
        min(idle, key=lambda job: job.asked_s).ending = Ending()

    def _attend(self, key: str, job: AnalysisProcess) -> None:
        """Run a job until its end, and publish its result."""
        failure: str | None = None
        try:
            job.folder = self.store.new_folder()
            process, connection = start(job.task, job.folder, job.arguments)
        except OSError as error:
            failure = f"{self.store.root}: the cache cannot be used: {error.strerror or error}; {CACHE_HINT}"
        else:
            try:
                ending = self._watch(job, process, connection)
                failure = ending.failure
                if (publish_as := key if ending.complete else ending.publish_as) is not None:
                    self.store.publish(publish_as, job.folder)
            except Exception as error:  # noqa: BLE001  without a recorded failure each request would start it again
                failure = error_text(error, job.folder)
            finally:
                process.kill()
                connection.close()
                process.wait()
        with self._lock:
            del self._jobs[key]
            if failure is not None:
                self._failures[key] = failure
        if job.folder is not None:
            shutil.rmtree(job.folder, ignore_errors=True)

    def _watch(self, job: AnalysisProcess, process: subprocess.Popen[bytes], connection: Connection) -> Ending:
        """Wait for the end of a job, or for a reason to end it."""
        if self._memory_bytes is None:
            free_bytes = memory_left()
            with self._lock:
                used = sum(job.used_bytes for job in self._jobs.values())
                self._limit_bytes = None if free_bytes is None else int(SHARE_OF_MEMORY * (free_bytes + used))
        while True:
            if connection.poll(_LOOK_EVERY_S):
                try:
                    job.report, job.heard_s = msgspec.json.decode(connection.recv_bytes(), type=TaskReport), self._clock_s()
                except (EOFError, OSError):
                    break
            job.used_bytes = used_bytes(process.pid)
            if (ending := self._ending(job)) is not None:
                return ending
        status = process.wait()
        if status == 0 and job.report.failure is None:
            return Ending(complete=True)
        assert job.folder is not None
        return Ending(job.report.failure or ended_silently(status, job.folder))

    def _ending(self, job: AnalysisProcess) -> Ending | None:
        """Return why a job must end now; ``None``: it may go on."""
        with self._lock:
            self._keep_to_memory()
        now = self._clock_s()
        if job.ending is not None:
            return job.ending
        if job.task == FOLLOW:
            return Ending() if now - job.asked_s > FOLLOWER_IDLE_TIMEOUT_S else None
        return Ending(NO_PROGRESS.format(HUNG_AFTER_S / 60)) if now - job.heard_s > HUNG_AFTER_S else None

    def _keep_to_memory(self) -> None:
        """Choose what ends if the jobs need too much memory together.

        First comes a job that needs too much by itself, then the follower that was not asked for the longest, then the largest.
        """
        running, limit = [job for job in self._jobs.values() if job.ending is None], self._limit_bytes
        if limit is None or sum(job.used_bytes for job in running) <= limit:
            return
        alone = [job for job in running if job.used_bytes > limit]
        followers = sorted((job for job in running if job.task == FOLLOW), key=lambda job: (job.watched_s, job.asked_s))
        job = (alone or followers or sorted(running, key=lambda job: -job.used_bytes))[0]
        # A page that is shown would start its follower again at once, and in vain.
        needed = bool(alone) or job.task != FOLLOW or self._clock_s() - job.asked_s <= WATCHED_S
        job.ending = Ending(
            too_large(limit, set_by_operator=self._memory_bytes is not None, alone=bool(alone)) if needed else None
        )


def start(task: str, folder: Path, arguments: Sequence[object]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the process of a task; return it with its connection. Raises ``OSError``."""
    server_end, job_end = Pipe()
    command = [sys.executable, "-m", "rankscope.dashboards.store.tasks", job_end.fileno(), task, folder, *arguments]
    with job_end:
        # Its own session: Ctrl-C in a terminal ends the server, which takes the process with it.
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, pass_fds=[job_end.fileno()], start_new_session=True
        )
    return process, server_end
