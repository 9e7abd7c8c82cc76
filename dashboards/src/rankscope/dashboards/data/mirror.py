"""Runs that lie on another filesystem (``s3://…``, ``gs://…``), copied here for as long as somebody serves pages about them.

A process beside the server looks again and again. Of records, which only grow, what is new is fetched; any other file is fetched
again when it has changed; what is gone there goes here. Raw traces and requests for captures stay where they are.
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

from rankscope.analysis.locations import asked, filesystem_of
from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.process import end_with_parent
from rankscope.dashboards.data.footprint import NOT_SHOWN, STREAMS
from rankscope.dashboards.data.source import Stale
from rankscope.dashboards.data.store import ELSEWHERE, cache_folder
from rankscope.dashboards.data.whole import replace_file

LOOK_EVERY_S: Final = 5.0
_PAUSE_FACTOR: Final = 4.0
"""After a look it pauses for so many times as long as that took: a listing of many files costs money and time."""
_PART_BYTES: Final = 8 << 20
_SAME_TIME_S: Final = 1e-3
_LOCK: Final = ".lock"
_STATE: Final = ".mirror.json"
_TIMES: Final = ("mtime", "LastModified", "last_modified", "updated", "created")
"""What filesystems call the time of the last change."""


class State(msgspec.Struct, frozen=True):
    """How far a copy is."""

    looked_unix_ns: int
    """When it was last as the original."""
    failure: str | None = None
    """Why it may not be any more."""


class Mirror:
    """A copy of the folder ``url`` in ``folder``. Only who holds its lock may bring it up to date."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self._known: dict[str, tuple[int, str]] = {}
        """Of each file that is here, its size and time there."""

    def bring(self, tell: Callable[[str], None] = lambda _what: None) -> None:
        """Make the copy as the original is now. Raises ``RankscopeError``, ``OSError``; what has been fetched by then stays."""
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
                if seconds is not None:  # tells whether a run still goes on
                    os.utime(place, (seconds, seconds))
            self._known[path] = stamp
        self._remove_others(set(wanted))

    def _fetch(self, filesystem: Any, name: str, place: Path, size: int) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        have = place.stat().st_size if place.is_file() else 0
        if place.name.endswith(STREAMS) and 0 < have < size:
            with place.open("ab") as file:  # who follows it reads on where it was
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

    def _remove_others(self, wanted: set[str]) -> None:
        for here, _folders, files in os.walk(self.folder, topdown=False):
            for name in files:
                path = Path(here, name)
                relative = path.relative_to(self.folder).as_posix()
                if relative not in wanted and relative not in {_LOCK, _STATE}:
                    path.unlink(missing_ok=True)
                    self._known.pop(relative, None)
            if Path(here) != self.folder and not os.listdir(here):  # noqa: PTH208  pathlib makes an object of every file
                Path(here).rmdir()

    def follow(self) -> None:
        """Bring it up to date again and again; why that fails is told by ``not_renewed``, and said once."""
        said = None
        looked = time.time_ns()
        while True:
            began, failure = time.monotonic(), None
            try:
                self.bring()
                looked = time.time_ns()
            except (RankscopeError, OSError) as error:
                failure = str(error)
            with contextlib.suppress(OSError):  # a full disk: the failure is said below
                replace_file(self.folder / _STATE, msgspec.json.encode(State(looked, failure)))
            if failure is not None and failure != said:
                print(f"rankscope dashboard: {failure}", file=sys.stderr, flush=True)
            said = failure
            time.sleep(max(LOOK_EVERY_S, _PAUSE_FACTOR * (time.monotonic() - began)))


def copied(url: str, tell: Callable[[str], None]) -> Path:
    """The folder of a copy of ``url``, as it is now or as another server keeps it. Raises ``RankscopeError``."""
    # Unlike what is worked out, a copy is as good for the next version.
    folder = cache_folder().with_name("copies") / hashlib.blake2b(url.encode(), digest_size=16).hexdigest()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / _LOCK).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return folder  # another server's process is at it
            Mirror(url, folder).bring(tell)
    except OSError as error:
        raise InputError(error.filename or folder, f"{error.strerror or error}; {ELSEWHERE}") from error
    return folder


def keep_copied(url: str, folder: Path) -> None:
    """Have a process of its own keep the copy up to date; it ends with this one."""
    subprocess.Popen([sys.executable, "-m", __name__, url, str(folder)], stdin=subprocess.DEVNULL)


def not_renewed(folder: Path) -> Stale | None:
    """If ``folder`` is a copy that cannot be brought up to date: since when, and why."""
    try:
        state = msgspec.json.decode((folder / _STATE).read_bytes(), type=State)
    except (OSError, ValueError):
        return None
    return None if state.failure is None else Stale(state.looked_unix_ns, state.failure)


def _relative(name: str, inside: str) -> str | None:
    """Path of a listed file below the folder; ``None`` for what is none: another's, a mark of a folder, a name that leads out."""
    folder = f"{inside.rstrip('/')}/"
    path = PurePosixPath(name.removeprefix(folder))
    leads_out = ".." in path.parts or path.is_absolute() or "\0" in name
    return None if leads_out or not name.startswith(folder) or name.endswith("/") else path.as_posix()


def _is_wanted(path: str) -> bool:
    return not any(part.startswith(".") or part in NOT_SHOWN for part in path.split("/"))


def _seconds(changed: object) -> float | None:
    """A time as some filesystem tells it, in seconds since 1970."""
    if isinstance(changed, str):
        with contextlib.suppress(ValueError):
            changed = datetime.fromisoformat(changed)
    seconds = changed.timestamp() if isinstance(changed, datetime) else changed
    return float(seconds) if isinstance(seconds, int | float) else None


def _is_here(place: Path, size: int, seconds: float | None) -> bool:
    """Whether an earlier process has fetched it as it is."""
    try:
        status = place.stat()
    except OSError:
        return False
    return seconds is not None and status.st_size == size and abs(status.st_mtime - seconds) < _SAME_TIME_S


if __name__ == "__main__":
    end_with_parent()
    with (Path(sys.argv[2]) / _LOCK).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # until it is ours
        with contextlib.suppress(KeyboardInterrupt):
            Mirror(sys.argv[1], Path(sys.argv[2])).follow()
