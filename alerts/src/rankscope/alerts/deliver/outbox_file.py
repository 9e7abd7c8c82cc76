"""The file of an outbox: opened, created, checked, and every error of SQLite in words. Needs no extra."""

from __future__ import annotations

import os
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.process import boot_id
from rankscope.runs.segments import open_regular


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """Nanoseconds since about 1970: what the machine's clock said once, and the time since then by one that only goes forward.

    All processes that were started by one boot of the machine, and know the same ``offset_ns``, agree on it.
    """

    offset_ns: int
    since_boot: bool

    def __call__(self) -> int:
        """The time by now."""
        return self.offset_ns + (_since_boot_ns() if self.since_boot else time.time_ns())


def steady_clock(offset_ns: int | None = None) -> SteadyClock:
    """A clock with the offset that was agreed on, or a new one."""
    if not boot_id():
        return SteadyClock(0, since_boot=False)
    return SteadyClock(time.time_ns() - _since_boot_ns() if offset_ns is None else offset_ns, since_boot=True)


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


OUTBOX_SCHEMA: Final = "rankscope.outbox/1"
OUTBOX_VERSION: Final = 1
MAX_FILE_BYTES: Final = 256 * 2**20
"""What is put must not make the file larger."""
_RESERVE_BYTES: Final = 16 * 2**20
"""Beyond that, for what is noted of messages that are sent: a full outbox must be able to become empty."""
LONGEST_WAIT_NS: Final = 3600 * 10**9
"""No attempt is put off for longer, whatever a clock said before the machine was started anew."""
_PAGE_BYTES: Final = 4096
_LARGEST_JOURNAL_BYTES: Final = 4 * 2**20
_BUSY_S: Final = 10.0
_MAGIC: Final = b"SQLite format 3\0"
_TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE messages (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  target TEXT NOT NULL,
  group_key TEXT NOT NULL,
  body BLOB NOT NULL,
  alert_count INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('waiting', 'delivered', 'dead', 'overtaken')),
  created_unix_ns INTEGER NOT NULL,
  entered_ns INTEGER NOT NULL,
  next_attempt_ns INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL DEFAULT 0,
  uncertain INTEGER NOT NULL DEFAULT 0,
  finished_unix_ns INTEGER,
  last_error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX waiting_in_order ON messages (target, sequence) WHERE state = 'waiting';
CREATE INDEX waiting_in_groups ON messages (target, group_key, sequence) WHERE state = 'waiting';
CREATE INDEX by_state ON messages (state, sequence);
CREATE TABLE alerts (
  target TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  starts_at TEXT NOT NULL,
  status TEXT NOT NULL,
  revision TEXT NOT NULL,
  message TEXT NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (target, fingerprint, starts_at, status, revision)
) WITHOUT ROWID;
CREATE INDEX alerts_of_message ON alerts (message);
CREATE INDEX alerts_by_age ON alerts (number);
CREATE TABLE targets (name TEXT PRIMARY KEY, disabled TEXT NOT NULL) WITHOUT ROWID;
"""


class OutboxError(RankscopeError):
    """The outbox could not be read or written; what was in it is as it was. The message names the file and the reason."""


class OutboxFile:
    """A connection to the file at ``path``; ``None`` keeps everything in memory, for when there is nowhere to write.

    Threads of a process share it. Raises ``InputError`` for a file that is no outbox or a newer one's, ``OutboxError`` for one
    that cannot be had. One that is damaged is moved to ``….bad`` and reported, and ``recovered`` is true.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        report: Callable[[str], None],
        clock: Callable[[], int] | None = None,
        repair: bool = True,
    ) -> None:
        self.path = path
        self.name = "the outbox in memory" if path is None else str(path)
        self.see = "" if path is None else f", see rankscope alerts outbox list --outbox {shlex.quote(str(path.absolute()))}"
        """End of a line about it: the command that shows what is in it. One in memory nobody else can look into."""
        self.recovered = False
        self._lock = threading.RLock()
        self._connection = self._open(report, repair=repair)
        self.clock = clock or self._agreed_clock()

    def close(self) -> None:
        """Close it; nothing is lost by not doing so."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on the disk when it is over. Raises ``OutboxError``."""
        with self._lock, self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have done so itself
                    self._connection.execute("ROLLBACK")
                raise

    def query(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a question. Raises ``OutboxError``."""
        with self._lock, self._translated():
            return self._connection.execute(sql, parameters).fetchall()

    def require_room(self) -> None:
        """Within a transaction: raises ``OutboxError`` when there is more in the file by now than it may hold."""
        [[pages]], [[free]] = self.query("PRAGMA page_count"), self.query("PRAGMA freelist_count")
        if (pages - free) * _PAGE_BYTES > MAX_FILE_BYTES:
            raise OutboxError(f"{self.name}: holds {MAX_FILE_BYTES >> 20} MiB already{self.see}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise OutboxError(f"{self.name}: the outbox cannot be used: {error}") from error

    def _open(self, report: Callable[[str], None], *, repair: bool) -> sqlite3.Connection:
        if self.path is None:
            return _connected(":memory:")
        _create(self.path)
        try:
            return _connected(str(self.path), self.path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise OutboxError(f"{self.path}: the outbox cannot be opened: {error}") from error
            if not repair:
                raise InputError(self.path, "damaged; the next watcher that uses it moves it away and begins anew") from error
            _set_aside(self.path, report)
            self.recovered = True
        _create(self.path)
        with self._translated():
            return _connected(str(self.path), self.path)

    def _agreed_clock(self) -> SteadyClock:
        boot = boot_id()
        with self.transaction() as database:
            found = dict(database.execute("SELECT name, value FROM meta WHERE name IN ('boot', 'offset_ns')").fetchall())
            if found.get("boot") == boot and boot:
                return steady_clock(int(found["offset_ns"]))
            clock = steady_clock()
            values = [("boot", boot), ("offset_ns", str(clock.offset_ns))]
            database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)
            # The clock that these go by is a new one: nothing may be from the future, or far in it.
            now = clock()
            database.execute(
                "UPDATE messages SET entered_ns = min(entered_ns, ?), next_attempt_ns = min(next_attempt_ns, ?)"
                " WHERE state = 'waiting'",
                (now, now + LONGEST_WAIT_NS),
            )
        return clock


def _create(path: Path) -> None:
    """Make sure that the file is there and nobody else's to read. Raises ``OutboxError``, ``InputError``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with open_regular(path) as file:
            beginning = file.read(len(_MAGIC))
    except OSError as error:
        raise OutboxError(f"{path}: the outbox cannot be opened: {error.strerror or error}") from error
    # A file that lost its beginning in a crash of the machine holds zeros; anything else may be somebody's.
    if beginning != _MAGIC[: len(beginning)] and beginning.strip(b"\0"):
        raise InputError(path, "not an outbox; name another file")


def _connected(name: str, path: Path | None = None) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        if path is not None:
            # Before anything is changed: it may be somebody else's database.
            _check(connection, path)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_JOURNAL_BYTES}")
        connection.execute(f"PRAGMA max_page_count = {(MAX_FILE_BYTES + _RESERVE_BYTES) // _PAGE_BYTES}")
        connection.execute("BEGIN IMMEDIATE")
        if not _tables(connection):
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('schema', ?)", (OUTBOX_SCHEMA,))
            connection.execute(f"PRAGMA user_version = {OUTBOX_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is not ours. Raises ``sqlite3.DatabaseError`` for what is damaged."""
    tables = _tables(connection)
    if not tables:
        return
    schema = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone() if "meta" in tables else None
    if schema is None or not str(schema[0]).startswith("rankscope.outbox/"):
        raise InputError(path, "not an outbox; name another file")
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if schema[0] != OUTBOX_SCHEMA or version != OUTBOX_VERSION:
        raise InputError(path, f"written in format {schema[0]!r}, number {version}; this version reads {OUTBOX_SCHEMA!r}")
    [[verdict]] = connection.execute("PRAGMA quick_check(1)").fetchall()
    if verdict != "ok":
        raise sqlite3.DatabaseError("malformed")


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return any(word in str(error) for word in ("malformed", "not a database"))


def _set_aside(path: Path, report: Callable[[str], None]) -> None:
    try:
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).replace(path.with_name(f"{path.name}.bad{suffix}"))
        path.replace(path.with_name(f"{path.name}.bad"))
    except OSError as error:
        raise InputError(path, f"damaged, and cannot be moved away: {error.strerror or error}") from error
    report(f"{path}: damaged, moved to {path.name}.bad; alerts that waited in it may be lost, others may be sent again")
