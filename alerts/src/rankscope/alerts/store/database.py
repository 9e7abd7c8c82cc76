"""The file of a store: opened, created, locked, checked, repaired; every error of SQLite as one line."""

from __future__ import annotations

import os
import secrets
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from rankscope.alerts.store.folders import STORE_FILE
from rankscope.alerts.store.schema import SCHEMA, TABLES, VERSION
from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.formats import unread_format
from rankscope.base.locks import lock_file
from rankscope.base.process import boot_id
from rankscope.base.regular_files import open_regular

MAX_FILE_BYTES: Final = 512 * 2**20
"""Size of the file above which new messages are rejected."""
_RESERVE_BYTES: Final = 16 * 2**20
"""Room beyond ``MAX_FILE_BYTES`` for recording results, so that a full store can be drained."""
LONGEST_WAIT_NS: Final = 3600 * 10**9
"""Longest wait for an attempt that was planned before a reboot, because the clock may have changed."""
_PAGE_BYTES: Final = 4096
_LARGEST_JOURNAL_BYTES: Final = 4 * 2**20
_BUSY_S: Final = 10.0
_MAGIC: Final = b"SQLite format 3\0"


class StoreError(RankscopeError):
    """The store cannot be read or written, and is unchanged. The message names the file and the reason."""


class AlertStore:
    """Store in ``folder``, or in memory for ``None``. Threads may share the object, and processes may share the file.

    Raises ``InputError`` for a file that is no store or has another version, ``StoreError`` for one that cannot be opened. A
    damaged file is moved to ``….bad`` and reported; without ``repair`` it raises ``InputError``. ``clock`` returns nanoseconds
    that never jump.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        report: Callable[[str], object] = lambda _: None,
        clock: Callable[[], int] | None = None,
        repair: bool = True,
    ) -> None:
        self.folder = folder
        self.path = None if folder is None else folder / STORE_FILE
        self.name = "the store in memory" if self.path is None else str(self.path)
        self.see = "" if folder is None else f", see rankscope alerts outbox list --state {shlex.quote(str(folder.absolute()))}"
        """Suffix of messages with the command that lists the outbox; empty for a store in memory, which no command can read."""
        self._mutex = threading.RLock()
        self._depth = 0
        self._writer: int | None = None
        self._lock_fd: int | None = None
        self._connection = self._open(report, repair=repair)
        # A WAL reader does not wait for writers, so metrics and polls never wait for the disk.
        self._reading = threading.Lock()
        self._reader = self._connection if self.path is None else self._second_connection()
        self.clock = clock or self._agreed_clock()
        self.id = self._kept_id()
        """Random, and kept in the file. It identifies a watcher or receiver also after a change of its address."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release its lock. Committed data is safe without this call."""
        with self._mutex:
            with self._reading, suppress(sqlite3.Error):
                self._reader.close()
            with suppress(sqlite3.Error):
                self._connection.close()
            self.release()

    def hold(self) -> bool:
        """Lock the store for this process; return ``False`` if another process holds it. Repeated calls change nothing.

        Only the holder sends messages and works as watcher or receiver on this store. Raises ``StoreError``.
        """
        with self._mutex:
            if self.path is None or self._lock_fd is not None:
                return True
            path = self.path.with_name(f"{STORE_FILE}.lock")
            try:
                self._lock_fd = lock_file(path)
            except OSError as error:
                raise StoreError(f"{path}: cannot be locked: {error.strerror or error}") from error
            return self._lock_fd is not None

    def release(self) -> None:
        """Unlock the store."""
        with self._mutex:
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all changes to disk, or none on an error; an inner transaction joins the outer one. Raises ``StoreError``."""
        with self._mutex, self._translated():
            if self._depth:
                yield self._connection
                return
            self._depth += 1
            self._writer = threading.get_ident()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have rolled back itself
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1
                self._writer = None

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query, including uncommitted ones of this thread's transaction. Raises ``StoreError``."""
        inside = self._writer == threading.get_ident() or self.path is None
        connection, lock = (self._connection, self._mutex) if inside else (self._reader, self._reading)
        with lock, self._translated():
            return connection.execute(sql, parameters).fetchall()

    def require_room(self) -> None:
        """Raise ``StoreError`` when the file exceeds its limit. Call it within a transaction."""
        [[pages]], [[free]] = self.query("PRAGMA page_count"), self.query("PRAGMA freelist_count")
        if (pages - free) * _PAGE_BYTES > MAX_FILE_BYTES:
            raise StoreError(f"{self.name}: holds {MAX_FILE_BYTES >> 20} MiB already{self.see}")

    def probe(self, room_bytes: int) -> None:
        """Check that the file is writable and that its disk has ``room_bytes`` left. Raises ``StoreError`` if not."""
        if self.folder is not None:
            room = self.folder / "room"
            try:
                with room.open("wb") as file:
                    file.write(bytes(room_bytes))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise StoreError(f"{room}: {error.strerror or error}") from error
            finally:
                with suppress(OSError):
                    room.unlink()
        with self.transaction() as database:
            database.execute(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.name}: cannot be used: {error}") from error

    def _open(self, report: Callable[[str], object], *, repair: bool) -> sqlite3.Connection:
        if self.path is None:
            return _connected(":memory:")
        _create(self.path)
        try:
            return _connected(str(self.path), self.path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise StoreError(f"{self.path}: cannot be opened: {error}") from error
            if not repair:
                raise InputError(self.path, "damaged; the next watcher or receiver that uses it sets it aside") from error
            _set_aside(self.path, report)
        _create(self.path)
        with self._translated():
            return _connected(str(self.path), self.path)

    def _second_connection(self) -> sqlite3.Connection:
        with self._translated():
            connection = sqlite3.connect(str(self.path), timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA query_only = ON")
            return connection

    def _kept_id(self) -> str:
        with self.transaction() as database:
            database.execute("INSERT OR IGNORE INTO meta VALUES ('id', ?)", (secrets.token_hex(8),))
            [kept] = database.execute("SELECT value FROM meta WHERE name = 'id'").fetchone()
        return str(kept)

    def _agreed_clock(self) -> Callable[[], int]:
        """Return a clock in nanoseconds since about 1970 that is not affected when the machine's clock is set.

        It is the wall clock at one moment plus the boot-time clock since then. All processes of one boot share that moment.
        """
        boot = boot_id()
        if not boot:
            return time.time_ns
        with self.transaction() as database:
            stored = dict(database.execute("SELECT name, value FROM meta WHERE name IN ('boot', 'offset_ns')").fetchall())
            if stored.get("boot") == boot:
                offset_ns = int(stored["offset_ns"])
            else:
                offset_ns = time.time_ns() - _since_boot_ns()
                values = [("boot", boot), ("offset_ns", str(offset_ns))]
                database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)
                # Times from before the reboot must not lie in the future of the new clock.
                now = offset_ns + _since_boot_ns()
                database.execute(
                    "UPDATE messages SET queued_ns = min(queued_ns, ?), next_attempt_ns = min(next_attempt_ns, ?)"
                    " WHERE state = 'waiting'",
                    (now, now + LONGEST_WAIT_NS),
                )
        return lambda: offset_ns + _since_boot_ns()


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@contextmanager
def read_only(folder: Path) -> Iterator[sqlite3.Connection | None]:
    """Open the store in ``folder`` for reading; yield ``None`` if there is none. Creates no file and blocks no writer.

    Raises ``InputError`` for a file that is no store, is damaged or cannot be read.
    """
    path = folder / STORE_FILE
    try:
        if not _begins_as_store(path):
            yield None
            return
        # Without a journal no process has the file open: ``immutable`` keeps SQLite from creating one.
        journal = path.with_name(f"{STORE_FILE}-wal").exists()
        uri = f"{path.absolute().as_uri()}?mode=ro{'' if journal else '&immutable=1'}"
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    except sqlite3.Error as error:
        raise InputError(path, str(error)) from error
    try:
        _check_format(connection, path)
        yield connection if _tables(connection) else None
    except sqlite3.Error as error:
        raise InputError(path, str(error)) from error
    finally:
        connection.close()


def _create(path: Path) -> None:
    """Create the file with mode 0600 if it is missing. Raises ``StoreError`` and ``InputError``."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        _begins_as_store(path)
    except FileExistsError as error:
        raise InputError(path.parent, "not a folder; --state names a folder") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened: {error.strerror or error}") from error


def _begins_as_store(path: Path) -> bool:
    """Return whether a file has content. Raises ``InputError`` if that is no database, ``OSError`` if it cannot be read."""
    with open_regular(path) as file:
        beginning = file.read(len(_MAGIC))
    # A crash of the machine may leave zeros at the beginning; any other content may belong to another program.
    if beginning != _MAGIC[: len(beginning)] and beginning.strip(b"\0"):
        raise InputError(path, "not a store of alerts; name another folder with --state")
    return bool(beginning)


def _connected(name: str, path: Path | None = None) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        if path is not None:
            # Before any change: the file may belong to another program.
            _check(connection, path)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_JOURNAL_BYTES}")
        connection.execute(f"PRAGMA max_page_count = {(MAX_FILE_BYTES + _RESERVE_BYTES) // _PAGE_BYTES}")
        connection.execute("BEGIN IMMEDIATE")
        if not _tables(connection):
            for statement in TABLES.split(";"):
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA,))
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise ``InputError`` for another program's file or another version, ``sqlite3.DatabaseError`` for a damaged one."""
    _check_format(connection, path)
    [[verdict]] = connection.execute("PRAGMA quick_check(1)").fetchall()
    if verdict != "ok":
        raise sqlite3.DatabaseError("malformed")


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    tables = _tables(connection)
    if not tables:
        return
    schema = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone() if "meta" in tables else None
    if schema is None or schema[0] != SCHEMA:
        raise InputError(path, "not a store of alerts; name another folder with --state")
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise InputError(path, unread_format(f"{SCHEMA}/{version}", f"{SCHEMA}/{VERSION}"))


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return any(word in str(error) for word in ("malformed", "not a database"))


def _set_aside(path: Path, report: Callable[[str], object]) -> None:
    try:
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).replace(path.with_name(f"{path.name}.bad{suffix}"))
        path.replace(path.with_name(f"{path.name}.bad"))
    except OSError as error:
        raise InputError(path, f"damaged, and cannot be moved away: {error.strerror or error}") from error
    report(f"{path}: damaged, moved to {path.name}.bad; alerts that waited in it may be lost, others may be sent again")
