"""Local copies of runs on another filesystem (``s3://…``, ``gs://…``), kept for as long as a server shows them.

A process beside the server polls the original. Record files only grow, so only their new bytes are fetched. Any other file is
fetched again when it changes, and deleted files are deleted here. Raw traces and capture requests are not copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import msgspec

from rankscope.analysis.trace.locations import asked, filesystem_of
from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.process import end_with_parent
from rankscope.dashboards.data.source import Stale
from rankscope.dashboards.data.whole import replace_file
from rankscope.dashboards.store.cache import ELSEWHERE, cache_folder
from rankscope.dashboards.store.footprint import NOT_SHOWN, STREAMS

LOOK_EVERY_S: Final = 5.0
_PAUSE_FACTOR: Final = 4.0
"""Pause after a poll, in multiples of its duration: a listing of many files costs money and time."""
_LATE_AFTER_S: Final = 120.0
_PART_BYTES: Final = 8 << 20
_SAME_TIME_S: Final = 1e-3
_LOCK: Final = ".lock"
_STATE: Final = ".mirror.json"
_TIMES: Final = ("mtime", "LastModified", "last_modified", "updated", "created")
"""Names that filesystems use for the modification time."""


class State(msgspec.Struct, frozen=True):
    """State of a copy."""

    looked_unix_ns: int
    """Time at which the copy last matched the original."""
    due_unix_ns: int
    """Time by which its process has looked again, if it is still there."""
    failure: str | None = None
    """Reason why it may no longer match."""


class Mirror:
    """A copy of the folder ``url`` in ``folder``. Only the holder of its lock may update it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self._known: dict[str, tuple[int, str]] = {}
        """Per local file: size and modification time of the original."""

    def bring(self, tell: Callable[[str], None] = lambda _what: None) -> None:
        """Update the copy to the original's present state. Raises ``RankscopeError``, ``OSError``; files fetched before stay."""
        filesystem, inside = filesystem_of(self.url)
        filesystem.invalidate_cache()
        listed: Mapping[str, Mapping[str, Any]] = asked(self.url, lambda: filesystem.find(inside, detail=True))
        there = {_relative(name, inside): (name, about) for name, about in listed.items()}
        wanted = {path: found for path, found in there.items() if path is not None and _is_wanted(path)}
        if not wanted:
            raise InputError(self.url, "no such folder, or nothing in it")
        for number, (path, (name, about)) in enumerate(sorted(wanted.items())):
            tell(f"Copying {self.url}: {number:,} of {len(wanted):,} files")
            size, changed = int(about.get("size") or 0), next((about[key] for key in _TIMES if about.get(key)), None)
            stamp, seconds = (size, str(changed or about.get("ETag"))), _seconds(changed)
            place = self.folder / path
            if self._known.get(path) != stamp and not _is_here(place, size, seconds):
                self._fetch(filesystem, name, place, size)
                if seconds is not None:  # the run's liveness is judged by it
                    os.utime(place, (seconds, seconds))
            self._known[path] = stamp
        self._remove_others(set(wanted), partial(_is_gone, filesystem, inside.rstrip("/")))

    def _fetch(self, filesystem: Any, name: str, place: Path, size: int) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        have = place.stat().st_size if place.is_file() else 0
        if place.name.endswith(STREAMS) and 0 < have < size:
            with place.open("ab") as file:  # a follower continues at its offset
                self._copy(filesystem, name, file, have, size)
            return
        whole = place.with_name(f".{place.name}")
        with whole.open("wb") as file:
            self._copy(filesystem, name, file, 0, size)
        whole.replace(place)

    def _copy(self, filesystem: Any, name: str, file: BinaryIO, begin: int, end: int) -> None:
        for at in range(begin, end, _PART_BYTES):
            past = min(at + _PART_BYTES, end)
            file.write(asked(self.url, partial(filesystem.cat_file, name, start=at, end=past)))

    def _remove_others(self, wanted: set[str], is_gone: Callable[[str], bool]) -> None:
        """Delete what is no longer there. A listing alone does not tell: it may be partial, as without permission."""
        for here, _folders, files in os.walk(self.folder, topdown=False):
            others = [path for name in files if (path := Path(here, name)).name not in {_LOCK, _STATE}]
            missing = {path: path.relative_to(self.folder).as_posix() for path in others}
            missing = {path: relative for path, relative in missing.items() if relative not in wanted}
            # One question answers for a whole folder, such as that of a deleted run.
            all_gone = bool(missing) and is_gone(Path(here).relative_to(self.folder).as_posix())
            for path, relative in missing.items():
                if all_gone or is_gone(relative):
                    path.unlink(missing_ok=True)
                    self._known.pop(relative, None)
            if Path(here) != self.folder and not os.listdir(here):  # noqa: PTH208  pathlib makes an object of every file
                Path(here).rmdir()

    def follow(self) -> None:
        """Update the copy forever. A failure is available from ``not_renewed`` and printed once."""
        said = None
        looked = time.time_ns()
        while True:
            began, failure = time.monotonic(), None
            try:
                self.bring()
                looked = time.time_ns()
            except (RankscopeError, OSError) as error:
                failure = str(error)
            pause_s = max(LOOK_EVERY_S, _PAUSE_FACTOR * (time.monotonic() - began))
            due = time.time_ns() + int(1e9 * (2 * pause_s + _LATE_AFTER_S))
            with contextlib.suppress(OSError):  # a full disk: the failure is printed below
                replace_file(self.folder / _STATE, msgspec.json.encode(State(looked, due, failure)))
            if failure is not None and failure != said:
                print(f"rankscope dashboard: {failure}", file=sys.stderr, flush=True)
            said = failure
            time.sleep(pause_s)


def copied(url: str, tell: Callable[[str], None]) -> Path:
    """Return the folder of an updated copy of ``url``, or of one that another server maintains. Raises ``RankscopeError``."""
    # Unlike derived data, a copy stays valid for the next version.
    folder = cache_folder().with_name("copies") / hashlib.blake2b(url.encode(), digest_size=16).hexdigest()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / _LOCK).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return folder  # another server's process updates it
            Mirror(url, folder).bring(tell)
    except OSError as error:
        raise InputError(error.filename or folder, f"{error.strerror or error}; {ELSEWHERE}") from error
    return folder


def keep_copied(url: str, folder: Path) -> None:
    """Start a process that keeps the copy up to date and ends with this one."""
    subprocess.Popen([sys.executable, "-m", __name__, url, str(folder)], stdin=subprocess.DEVNULL)


def not_renewed(folder: Path) -> Stale | None:
    """Return since when and why a copy in ``folder`` cannot be updated; ``None`` if it can, or if it is no copy."""
    try:
        state = msgspec.json.decode((folder / _STATE).read_bytes(), type=State)
    except (OSError, ValueError):
        return None
    ended = "the process that copies it has ended: start the dashboard again" if time.time_ns() > state.due_unix_ns else None
    return None if (why := state.failure or ended) is None else Stale(state.looked_unix_ns, why)


def _is_gone(filesystem: Any, inside: str, relative: str) -> bool:
    """Return whether the filesystem says that a file or folder is not there; any other answer leaves that open."""
    try:
        filesystem.info(f"{inside}/{relative}".removesuffix("/."))
    except FileNotFoundError:
        return True
    except Exception:  # noqa: BLE001  every filesystem has its own errors
        return False
    return False


def _relative(name: str, inside: str) -> str | None:
    """Return the path of a listed file below the folder; ``None`` for other folders' files, folder markers and escaping names."""
    folder = f"{inside.rstrip('/')}/"
    path = PurePosixPath(name.removeprefix(folder))
    leads_out = ".." in path.parts or path.is_absolute() or "\0" in name
    return None if leads_out or not name.startswith(folder) or name.endswith("/") else path.as_posix()


def _is_wanted(path: str) -> bool:
    return not any(part.startswith(".") or part in NOT_SHOWN for part in path.split("/"))


def _seconds(changed: object) -> float | None:
    """Return a filesystem's time, in any of its formats, as seconds since 1970."""
    if isinstance(changed, str):
        with contextlib.suppress(ValueError):
            changed = datetime.fromisoformat(changed)
    seconds = changed.timestamp() if isinstance(changed, datetime) else changed
    return float(seconds) if isinstance(seconds, int | float) else None


def _is_here(place: Path, size: int, seconds: float | None) -> bool:
    """Return whether an earlier process has fetched the file in its present state."""
    try:
        status = place.stat()
    except OSError:
        return False
    return seconds is not None and status.st_size == size and abs(status.st_mtime - seconds) < _SAME_TIME_S


if __name__ == "__main__":
    end_with_parent()
    with (Path(sys.argv[2]) / _LOCK).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # waits for the lock
        with contextlib.suppress(KeyboardInterrupt):
            Mirror(sys.argv[1], Path(sys.argv[2])).follow()
