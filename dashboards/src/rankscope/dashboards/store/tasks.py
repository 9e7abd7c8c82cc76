"""Tasks that compute derived data, and the process beside the server that runs one of them (``python -m``)."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.compare.data import compare_runs
from rankscope.dashboards.data.progress import OnProgress, Progress
from rankscope.dashboards.store.cache import error_text
from rankscope.dashboards.store.derive import derive
from rankscope.dashboards.store.follow import Update, follow
from rankscope.dashboards.timeline.build_window import derive_window
from rankscope.dashboards.timeline.windows import export_window, find_windows
from rankscope.dashboards.whatif.data import make_answer, make_combinations
from rankscope.runs.run_files import confine

FOLLOW: Final = "follow"
"""Task that does not end by itself; it reports each update of its folder."""

_REPORT_EVERY_S: Final = 0.2
_TRIES: Final = 10

Task = Callable[[Sequence[str], Path, OnProgress], None]
"""(arguments, folder to fill, receiver of progress)"""


class TaskReport(msgspec.Struct, frozen=True):
    """Report of a process. ``failure``: reason why the task failed, one line for the user."""

    progress: Progress = Progress("starting")
    failure: str | None = None
    update: Update | None = None
    """Last update by the task ``FOLLOW``; ``None`` before it has read the run."""


def _compare(arguments: Sequence[str], folder: Path, on_progress: OnProgress) -> None:
    at, *runs = arguments
    compare_runs([Path(run) for run in runs], int(at) if at else None, folder, on_progress)


def _of_run(make: Callable[[Path, Path, OnProgress], object]) -> Task:
    def task(arguments: Sequence[str], folder: Path, on_progress: OnProgress) -> None:
        make(Path(arguments[0]), folder, on_progress)

    return task


def _of_window(make: Callable[[Path, int, range, Path, OnProgress], None]) -> Task:
    def task(arguments: Sequence[str], folder: Path, on_progress: OnProgress) -> None:
        run, attempt, first, past = arguments
        make(Path(run), int(attempt), range(int(first), int(past)), folder, on_progress)

    return task


TASKS: Final[Mapping[str, Task]] = {
    "analyse": _of_run(derive),
    "compare": _compare,
    "whatif": _of_run(make_answer),
    "combinations": _of_run(make_combinations),
    "windows": _of_run(find_windows),
    "window": _of_window(derive_window),
    "perfetto": _of_window(export_window),
}
"""Tasks by name."""


def main(server: Connection, task: str, folder: Path, arguments: Sequence[str]) -> None:
    """Run a task and report to the server, with which this process ends."""
    # The server has checked where these runs are; another user could replace one by a link meanwhile.
    confine([Path(run) for run in arguments if Path(run).is_absolute()])
    threading.Thread(target=_end_with, args=(server, folder), name="end with the server", daemon=True).start()
    with contextlib.suppress(OSError):  # not Linux, or not permitted
        Path("/proc/self/oom_score_adj").write_text("500")  # the kernel ends this process before the server and a training job

    def send(report: TaskReport) -> None:
        try:
            server.send_bytes(msgspec.json.encode(report))
        except OSError:  # the server has ended; the thread may not have noticed yet
            _leave(folder)

    try:
        if task == FOLLOW:
            follow(Path(arguments[0]), folder, lambda update: send(TaskReport(update=update)))
        else:
            TASKS[task](arguments, folder, _Throttle(send))
    except (RankscopeError, OSError, MemoryError) as error:
        send(TaskReport(failure=error_text(error, folder)))
    except Exception as error:
        failure = f"this could not be worked out: an error in rankscope ({type(error).__name__}); its log says more"
        send(TaskReport(failure=failure))
        raise


class _Throttle:
    """Receiver of progress that passes on one report per phase and ``_REPORT_EVERY_S``."""

    def __init__(self, send: Callable[[TaskReport], None]) -> None:
        self._send = send
        self._activity = ""
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.activity != self._activity or now >= self._next:
            self._activity, self._next = progress.activity, now + _REPORT_EVERY_S
            self._send(TaskReport(progress))


def _end_with(server: Connection, folder: Path) -> None:
    with contextlib.suppress(EOFError, OSError):
        server.recv_bytes()  # the server sends nothing
    _leave(folder)


def _leave(folder: Path) -> None:
    """Remove the folder, whose reader has ended, and end this process."""
    for _ in range(_TRIES):  # the task may write one more file while its folder is being removed
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
    os._exit(1)


if __name__ == "__main__":
    _descriptor, _task, _folder, *_arguments = sys.argv[1:]
    main(Connection(int(_descriptor)), _task, Path(_folder), _arguments)
