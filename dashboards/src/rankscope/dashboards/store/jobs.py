"""Jobs: processes beside the server, so that requests never wait for an analysis, whose memory is released when it ends.

A job computes the derived data of one or several runs and puts it into the store. Jobs exclude each other by locks in the store's
folder, also across workers and servers. The kernel releases a lock however its process ends.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.errors import RankscopeError
from rankscope.base.locks import try_lock
from rankscope.dashboards.alerts.replay import make_replay
from rankscope.dashboards.compare.data import compare_runs
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.data.whole import replace_file
from rankscope.dashboards.store.cache import ELSEWHERE, Store, cache_folder
from rankscope.dashboards.store.derive import derive
from rankscope.dashboards.timeline.laying import derive_window
from rankscope.dashboards.timeline.windows import export_window, find_windows
from rankscope.dashboards.whatif.data import make_scenarios
from rankscope.dashboards.words.inert import MAX_TEXT, shown

SLOTS: Final = 2
"""Jobs at a time; a job on a large run uses all cores."""

FAILURE_LASTS_S: Final = 60.0
"""Time after which a failed job may be retried."""

MOST_BEGUN: Final = 2
"""Starts after which a job that exits unexpectedly each time counts as failed and is not restarted at once."""

OUT_OF_MEMORY: Final = "this needs more memory than this machine has left; start the dashboard where there is more"

_TELL_EVERY_S: Final = 0.2
_LITTLE_BYTES: Final = 32 << 20
_MAKE_ROOM: Final = f"make room there, or {ELSEWHERE}"


class State(msgspec.Struct, frozen=True):
    """State of a job whose result is not in the store."""

    progress: Progress | None = None
    failure: str | None = None
    """Reason why the job failed: one line for the user."""
    begun: int = 0
    """Number of starts that ended without a recorded result."""


STARTING: Final = State(Progress("starting"))
WAITING: Final = State(Progress("waiting for other analyses"))


Task = Callable[[Sequence[str], Path, Tell], None]
"""(arguments, folder to fill, receiver of progress)"""


def _compare(arguments: Sequence[str], folder: Path, tell: Tell) -> None:
    at, *runs = arguments
    compare_runs([Path(run) for run in runs], int(at) if at else None, folder, tell)


def _of_run(make: Callable[[Path, Path, Tell], None]) -> Task:
    return lambda arguments, folder, tell: make(Path(arguments[0]), folder, tell)


def _of_window(make: Callable[[Path, int, range, Path, Tell], None]) -> Task:
    def task(arguments: Sequence[str], folder: Path, tell: Tell) -> None:
        run, attempt, first, past = arguments
        make(Path(run), int(attempt), range(int(first), int(past)), folder, tell)

    return task


TASKS: Final[Mapping[str, Task]] = {
    "analyse": _of_run(derive),
    "compare": _compare,
    "whatif": _of_run(make_scenarios),
    "windows": _of_run(find_windows),
    "window": _of_window(derive_window),
    "perfetto": _of_window(export_window),
    "replay": _of_run(make_replay),
}
"""Tasks of jobs by name."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Starts jobs and reports their progress."""

    store: Store

    def want(self, key: str, task: str, arguments: Sequence[object]) -> State:
        """Start a job for the missing ``key`` with a task of ``TASKS`` unless one runs; return its state. Raises ``OSError``."""
        self.store.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = _state_file(self.store, key)
        state = _read(file)
        if state is not None and state.failure is not None:
            return state
        with contextlib.ExitStack() as held:
            lock_file = _lock_file(self.store, key)
            lock = take(lock_file, held)
            if lock is None:
                return state or STARTING
            slot = next((slot for path in _slots(self.store) if (slot := take(path, held)) is not None), None)
            if slot is None:
                lock_file.unlink(missing_ok=True)  # any address may ask: without a job it leaves nothing
                return WAITING
            left = _read(file) or State()  # from the previous holder of the lock
            if left.failure is not None or self.store.find(key) is not None:
                return left
            if left.begun >= MOST_BEGUN:
                return _write(file, State(failure=ended_silently("what worked this out", self.store.root)))
            _write(file, State(STARTING.progress, begun=left.begun + 1))
            start(__name__, [self.store.root, self.store.most_bytes, key, task, *arguments], locks=[lock, slot])
        return STARTING

    def work(self, key: str, task: str, arguments: Sequence[str]) -> None:
        """Run a task in the process of a job, and record its failure."""
        told = _Told(_state_file(self.store, key))
        try:
            if self.store.find(key) is None:
                self.store.put(key, lambda folder: TASKS[task](arguments, folder, told))
        except (RankscopeError, OSError, MemoryError) as error:
            told.fail(in_words(error))
        except KeyboardInterrupt:
            told.done()  # the next request starts it again
        except Exception as error:
            # Without a recorded failure each request would start it again.
            told.fail(f"this could not be worked out: an error in rankscope ({type(error).__name__}); its log says more")
            raise
        else:
            told.done()
        finally:
            _lock_file(self.store, key).unlink(missing_ok=True)  # deleting a held lock is safe: see ``Store``


def in_words(error: Exception) -> str:
    """Return the error as one line for the user; a path in it may contain undecodable bytes."""
    said = OUT_OF_MEMORY if isinstance(error, MemoryError) else str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        where = error.filename or (cache_folder() if full else None)
        said = error.strerror if where is None else f"{where}: {error.strerror}"
        if full:
            said += f"; {_MAKE_ROOM}"
    return shown(said, MAX_TEXT)


def ended_silently(what: str, folder: Path) -> str:
    """Return why a process that writes into ``folder`` may have exited unexpectedly; on a full disk it cannot record a reason."""
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_BYTES:
        return f"{what} could not go on: the disk of {folder} is full ({free / 2**20:.0f} MiB are left); {_MAKE_ROOM}"
    return f"{what} ended without a word, as processes do that are killed for want of memory; the kernel's log tells of that"


def take(path: Path, held: contextlib.ExitStack) -> int | None:
    """Take a lock; return its descriptor, which ``held`` closes, or ``None`` if another process holds it. Raises ``OSError``."""
    file = held.enter_context(path.open("ab"))
    return file.fileno() if try_lock(file.fileno()) else None


def start(module: str, arguments: Sequence[object], *, locks: Sequence[int]) -> None:
    """Start a process that holds ``locks`` from its start until it ends in any way. Raises ``OSError``."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=locks)
    threading.Thread(target=process.wait, name="no zombie", daemon=True).start()


def _lock_file(store: Store, key: str) -> Path:
    return store.root / f".lock-{key}"


def _state_file(store: Store, key: str) -> Path:
    return store.root / f".state-{key}"


class _Told:
    """Writer of a job's progress into a file that is replaced atomically, at most every ``_TELL_EVERY_S`` per phase."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = (_read(path) or State()).begun
        self._what = ""
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.what != self._what or now >= self._next:
            self._what, self._next = progress.what, now + _TELL_EVERY_S
            _write(self._path, State(progress, begun=self._begun))

    def fail(self, reason: str) -> None:
        with contextlib.suppress(OSError):  # a full disk: the next request cannot start the job either and gets the error
            _write(self._path, State(failure=reason))

    def done(self) -> None:
        self._path.unlink(missing_ok=True)


def _write(path: Path, state: State) -> State:
    replace_file(path, msgspec.json.encode(state))
    return state


def _read(path: Path) -> State | None:
    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
        age_s = time.time() - path.stat().st_mtime
    except (OSError, ValueError):
        return None
    return None if state.failure is not None and not 0 <= age_s < FAILURE_LASTS_S else state


def _slots(store: Store) -> list[Path]:
    return [store.root / f".slot-{number}" for number in range(SLOTS)]


def bound_memory(available_bytes: int | None = None) -> None:
    """Let this process and each of its workers allocate at most what the machine has left, and be killed before other processes.

    A training job and the server run beside it. ``available_bytes``: as the kernel estimates it by default.
    """
    with contextlib.suppress(OSError, ValueError):  # not Linux, or not permitted: as it was before
        Path("/proc/self/oom_score_adj").write_text("500")
        if available_bytes is None:
            lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
            available_bytes = next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (available_bytes, hard))


if __name__ == "__main__":
    bound_memory()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _root, _most_bytes, _key, _task, *_arguments = sys.argv[1:]
    Jobs(Store(Path(_root), int(_most_bytes))).work(_key, _task, _arguments)
