"""Names of users, from a directory service, and of pods, from the kubelet's folder of logs; both may be slow or unavailable.

Control groups have the uids of pods, and the kubelet's PodResources service their names; only that folder has both.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import queue
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from rankscope.exporter.jobs.bounded_calls import BoundedCalls
from rankscope.exporter.jobs.environment import word

POD_LOGS: Final = Path("/var/log/pods")

_WAIT_S: Final = 0.3
_RETRY_S: Final = 600.0
_MAX_USERS: Final = 4096
_DEADLINE_S: Final = 0.5
_MAX_FOLDERS: Final = 4096

PodName = tuple[str, str]
"""Namespace and name of a pod."""


class PodNames:
    """Cache of pod names; the folder is listed only while a wanted uid is unknown. Not thread-safe."""

    def __init__(self, folder: Path = POD_LOGS) -> None:
        self._folder = folder
        self._bounded_calls = BoundedCalls(_DEADLINE_S)
        self._names: dict[str, PodName] = {}

    def names(self, uids: Collection[str]) -> dict[str, PodName]:
        """Return the names of those pods whose names are known. Does not fail, and waits at most half a second."""
        if not self._names.keys() >= set(uids):
            with contextlib.suppress(OSError):  # no kubelet runs here, or the disk does not answer
                self._names = self._bounded_calls.call(lambda: _listed(self._folder))
        return {uid: self._names[uid] for uid in uids if uid in self._names}


def _listed(folder: Path) -> dict[str, PodName]:
    """Read the names ``NAMESPACE_NAME_UID`` of the pods' folders; none of a folder that other users can write to."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return {}
        with os.scandir(fd) as entries:
            names = [entry.name.split("_") for entry in itertools.islice(entries, _MAX_FOLDERS)]
    finally:
        os.close(fd)
    return {
        uid: (namespace, name)
        for namespace, name, uid in (parts for parts in names if len(parts) == 3)
        if word(namespace) and word(name)
    }


def _name_of(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name


class UserNames:
    """Cache of user names, filled by a thread of its own.

    A name is looked up once. A user without a name is shown by uid, and looked up again after 10 minutes.
    """

    def __init__(self, look_up: Callable[[int], str] = _name_of, *, wait_s: float = _WAIT_S) -> None:
        self._look_up = look_up
        self._wait_s = wait_s
        self._names: dict[int, tuple[str, float]] = {}
        self._requested_uids: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._pending: set[int] = set()
        self._answered = threading.Condition()
        self._thread: threading.Thread | None = None

    def names(self, uids: Iterable[int]) -> dict[int, str]:
        """Return the names known so far by uid; wait up to ``wait_s`` for new ones, unless earlier look-ups are pending."""
        wanted = set(uids)
        now_s = time.monotonic()
        with self._answered:
            was_pending = bool(self._pending)
            for uid in wanted - self._pending:
                cached = self._names.get(uid)
                if cached is None or cached[1] <= now_s:
                    self._pending.add(uid)
                    self._requested_uids.put(uid)
            if self._pending:
                self._start()
            if not was_pending:
                self._answered.wait_for(lambda: not self._pending, self._wait_s)
            return {uid: self._names[uid][0] for uid in wanted if uid in self._names}

    def _start(self) -> None:
        if self._thread is None:
            # Daemon thread: a hanging directory service must not keep the process from exiting.
            self._thread = threading.Thread(target=self._run, name="jobs-users", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            uid = self._requested_uids.get()
            try:
                # The name becomes a label value: one with unusual characters is replaced by the uid.
                answer = (word(self._look_up(uid)) or str(uid), float("inf"))
            except Exception:  # noqa: BLE001  of a directory service; the names of the other users are still wanted
                answer = (str(uid), time.monotonic() + _RETRY_S)
            with self._answered:
                if len(self._names) >= _MAX_USERS:
                    self._names.clear()
                self._names[uid] = answer
                self._pending.discard(uid)
                self._answered.notify_all()
