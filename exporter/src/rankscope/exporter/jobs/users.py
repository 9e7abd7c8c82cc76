"""User names, from a directory service that may be slow or unavailable."""

from __future__ import annotations

import pwd
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from rankscope.exporter.jobs.environment import word

_WAIT_S: Final = 0.3
_ASK_AGAIN_S: Final = 600.0
_MAX_USERS: Final = 4096


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
                answer = (str(uid), time.monotonic() + _ASK_AGAIN_S)
            with self._answered:
                if len(self._names) >= _MAX_USERS:
                    self._names.clear()
                self._names[uid] = answer
                self._pending.discard(uid)
                self._answered.notify_all()
