"""What was accepted and what became of it, in one SQLite file: accepted means that it is on the disk.

One connection, used under a lock: writers would wait for each other anyway. Every change is a transaction that a crash of the
machine neither loses nor halves (WAL, ``synchronous=FULL``).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec

from rankscope.alerts.receive.episodes import Episode
from rankscope.base.errors import InputError
from rankscope.base.locks import lock_file

SCHEMA: Final = 1
"""``user_version`` of the file."""
MAX_KEPT: Final = 200
"""Deliveries whose bodies are kept after they were dealt with, for whoever looks on."""
MAX_LISTED_BYTES: Final = 16 * 1024 * 1024
KEPT_S: Final = 24 * 3600.0
"""As long are their ids, so that a delivery that comes again is known."""
MAX_KNOWN: Final = 100_000
"""Of at most so many."""
EPISODE_KEPT_S: Final = 30 * 24 * 3600.0
"""As long after anybody was told of it, what is known of an alert: of one that fires, senders remind us."""
MAX_EPISODES: Final = 100_000
"""Of at most so many: those that nobody was told of for longest are forgotten, and told anew where they still fire."""
MAX_WAITING: Final = 1_000
MAX_WAITING_BYTES: Final = 128 * 1024 * 1024

_TABLES: Final = """
CREATE TABLE delivery (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE,
    received_unix_ns INTEGER NOT NULL,
    body BLOB,
    done_unix_ns INTEGER
);
CREATE INDEX delivery_waiting ON delivery (number) WHERE done_unix_ns IS NULL;
CREATE TABLE episode (
    fingerprint TEXT PRIMARY KEY,
    starts_unix_ns INTEGER NOT NULL,
    status TEXT NOT NULL,
    changed_unix_ns INTEGER NOT NULL,
    told_unix_ns INTEGER NOT NULL,
    told INTEGER NOT NULL,
    again INTEGER NOT NULL,
    updated_unix_ns INTEGER NOT NULL
);
CREATE TABLE action (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    starts_unix_ns INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    state TEXT NOT NULL,
    created_unix_ns INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    alert BLOB NOT NULL,
    request_id TEXT,
    result BLOB,
    UNIQUE (kind, fingerprint, starts_unix_ns)
);
"""

ActionState = Literal["wanted", "asked", "recorded", "done"]


class InboxError(Exception):
    """Something could not be kept; the message says why in one line."""


class BusyError(InboxError):
    """So much is waiting that nothing more is taken."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted body."""

    number: int
    received_unix_ns: int
    body: bytes


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do because of an alert, at most once in each of its episodes."""

    number: int = 0
    kind: Literal["capture", "dump", "verdict"]
    """What is asked of the run; ``verdict``: nothing, it is looked at."""
    fingerprint: str
    starts_unix_ns: int
    run_id: str
    state: ActionState = "wanted"
    """``wanted``; ``asked``: a request id is settled, and may be in the run; ``recorded``: it is over, and ``result`` says how;
    ``done``: that was passed on.
    """
    created_unix_ns: int
    steps: int
    alert: bytes
    """The alert as it arrived, ``Arrived`` as JSON; empty when it is ``done``."""
    request_id: str | None = None
    result: bytes | None = None


class Inbox:
    """The inbox in ``folder``, or one that ends with the process (``None``). Use it as a context manager.

    Raises ``InputError`` where it cannot be had: no such place, another receiver's, one of a newer version.
    """

    def __init__(self, folder: Path | None, *, report: Callable[[str], object]) -> None:
        self._lock = threading.RLock()
        self._held: int | None = None
        self._folder = folder
        if folder is None:
            self._db = _prepared(":memory:")
            return
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = _lock(folder)
            path = folder / "inbox.sqlite"
            os.close(_create(path))
            self._db = _opened(path, report)
        except (OSError, sqlite3.Error) as error:
            self._unlock()
            where, why = getattr(error, "filename", None) or folder, getattr(error, "strerror", None) or error
            raise InputError(where, f"{why}; choose another folder with --state") from error
        except InputError:
            self._unlock()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()
            self._unlock()

    def _unlock(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it is on the disk afterwards, or nothing is. Raises ``InboxError``."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise InboxError(f"the inbox cannot be written: {error}") from error

    def _query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise InboxError(f"the inbox cannot be read: {error}") from error

    # Deliveries: all of these raise ``InboxError``

    def accept(self, body: bytes, *, key: str | None, now_unix_ns: int, also: Callable[[], object] = lambda: None) -> bool:
        """Keep a delivery; ``False``: it was here before. ``also`` is done with what is kept; where it fails, nothing is.

        Raises ``BusyError``, ``InboxError`` where it cannot be kept, and whatever ``also`` raises.
        """
        with self.transaction() as db:
            if key is not None and db.execute("SELECT 1 FROM delivery WHERE key = ?", (key,)).fetchone():
                return False
            waiting, size = db.execute(
                "SELECT count(*), coalesce(sum(length(body)), 0) FROM delivery WHERE done_unix_ns IS NULL"
            ).fetchone()
            if waiting >= MAX_WAITING or size + len(body) > MAX_WAITING_BYTES:
                raise BusyError(f"{waiting} deliveries wait")
            db.execute("INSERT INTO delivery (key, received_unix_ns, body) VALUES (?, ?, ?)", (key, now_unix_ns, body))
            also()
        return True

    def waiting(self, most: int, *, after: int = 0) -> list[Delivery]:
        """The oldest deliveries that have not been dealt with, ``after`` one of that number."""
        rows = self._query(
            "SELECT number, received_unix_ns, body FROM delivery WHERE done_unix_ns IS NULL AND number > ? "
            "ORDER BY number LIMIT ?",
            (after, most),
        )
        return [Delivery(number=number, received_unix_ns=received, body=body) for number, received, body in rows]

    def waiting_count(self) -> tuple[int, int | None]:
        """How many there are, and when the oldest came."""
        [[count, oldest]] = self._query("SELECT count(*), min(received_unix_ns) FROM delivery WHERE done_unix_ns IS NULL")
        return count, oldest

    def kept(self) -> tuple[int, list[Delivery]]:
        """How many deliveries there were in all, and the last of them, oldest first, as far as they fit ``MAX_LISTED_BYTES``."""
        [[total]] = self._query("SELECT coalesce(max(number), 0) FROM delivery")
        rows = self._query(
            "SELECT number, received_unix_ns, body FROM "
            "(SELECT *, sum(length(body)) OVER (ORDER BY number DESC) AS size FROM delivery WHERE body IS NOT NULL) "
            "WHERE size <= ? ORDER BY number DESC LIMIT ?",
            (MAX_LISTED_BYTES, MAX_KEPT),
        )
        return total, [Delivery(number=number, received_unix_ns=at, body=body) for number, at, body in reversed(rows)]

    def prune(self, *, now_unix_ns: int) -> None:
        """Forget what nobody will ask for again. Raises ``InboxError``."""
        with self.transaction() as db:
            db.execute(
                "UPDATE delivery SET body = NULL WHERE done_unix_ns IS NOT NULL AND body IS NOT NULL "
                "AND number <= (SELECT max(number) FROM delivery) - ?",
                (MAX_KEPT,),
            )
            db.execute(
                "DELETE FROM delivery WHERE body IS NULL AND "
                "(done_unix_ns < ? OR number <= (SELECT max(number) FROM delivery) - ?)",
                (now_unix_ns - int(KEPT_S * 1e9), MAX_KNOWN),
            )
            old = now_unix_ns - int(EPISODE_KEPT_S * 1e9)
            db.execute("DELETE FROM episode WHERE max(changed_unix_ns, told_unix_ns) < ?", (old,))
            db.execute(
                "DELETE FROM episode WHERE (SELECT count(*) FROM episode) > ? AND fingerprint IN "
                "(SELECT fingerprint FROM episode ORDER BY max(changed_unix_ns, told_unix_ns) DESC LIMIT -1 OFFSET ?)",
                (MAX_EPISODES, MAX_EPISODES),
            )
            db.execute("DELETE FROM action WHERE state = 'done' AND created_unix_ns < ?", (old,))

    def check(self, *, room_bytes: int = 0) -> None:
        """Whether it can be written now, and there is room for so much. Raises ``InboxError``."""
        if room_bytes and self._folder is not None:
            room = self._folder / "room"
            try:
                with room.open("wb") as file:
                    file.write(bytes(room_bytes))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise InboxError(f"the inbox has no room: {error.strerror or error}") from error
            finally:
                with suppress(OSError):
                    room.unlink()
        with self.transaction() as db:
            db.execute(f"PRAGMA user_version = {SCHEMA}")

    # Episodes

    def episode(self, fingerprint: str) -> Episode | None:
        """What is known of an alert."""
        for row in self._query("SELECT * FROM episode WHERE fingerprint = ?", (fingerprint,)):
            return Episode(**dict(zip(Episode.__struct_fields__, row, strict=True)))
        return None

    # Actions

    def actions(self, *states: ActionState) -> list[Action]:
        """What is asked of runs and is in one of ``states``, oldest first."""
        marks = ", ".join("?" * len(states))
        return self._actions(f"kind != 'verdict' AND state IN ({marks})", states)

    def verdicts_owed(self) -> list[Action]:
        """Verdicts that are still to be told, oldest first."""
        return self._actions("kind = 'verdict'", ())

    def verdicts_owed_count(self) -> int:
        """How many there are."""
        [[count]] = self._query("SELECT count(*) FROM action WHERE kind = 'verdict'")
        return int(count)

    def _actions(self, which: str, parameters: tuple[object, ...]) -> list[Action]:
        names = ", ".join(Action.__struct_fields__)
        rows = self._query(f"SELECT {names} FROM action WHERE {which} ORDER BY number", parameters)  # noqa: S608 - our own names
        return [Action(**dict(zip(Action.__struct_fields__, row, strict=True))) for row in rows]

    def acted(self, kind: str, fingerprint: str, starts_unix_ns: int) -> bool:
        """Whether it was wanted in this episode before."""
        found = self._query(
            "SELECT 1 FROM action WHERE kind = ? AND fingerprint = ? AND starts_unix_ns = ?", (kind, fingerprint, starts_unix_ns)
        )
        return bool(found)

    def acted_lately(self, kind: str, within_s: float, run_id: str | None = None, *, now_unix_ns: int) -> int:
        """How often it was wanted within so long, of one run or of all.

        On either side of now: a clock that was ahead for a moment must not forbid everything until then.
        """
        [[count]] = self._query(
            "SELECT count(*) FROM action WHERE kind = ? AND abs(created_unix_ns - ?) <= ? AND (? IS NULL OR run_id = ?)",
            (kind, now_unix_ns, int(within_s * 1e9), run_id, run_id),
        )
        return int(count)

    def move(self, action: Action, state: ActionState, *, request_id: str | None = None, result: bytes | None = None) -> Action:
        """Remember how far an action has come. Raises ``InboxError``."""
        moved = msgspec.structs.replace(
            action, state=state, request_id=request_id or action.request_id, result=action.result if result is None else result
        )
        if state == "done":  # only that it was is asked for later
            moved = msgspec.structs.replace(moved, alert=b"", result=None)
        with self.transaction() as db:
            db.execute(
                "UPDATE action SET state = ?, request_id = ?, result = ?, alert = ? WHERE number = ?",
                (moved.state, moved.request_id, moved.result, moved.alert, moved.number),
            )
        return moved

    def forget(self, action: Action) -> None:
        """As if it had never been wanted. Raises ``InboxError``."""
        with self.transaction() as db:
            db.execute("DELETE FROM action WHERE number = ?", (action.number,))


def settle(db: sqlite3.Connection, number: int, episodes: list[Episode], actions: list[Action], *, now_unix_ns: int) -> None:
    """Within a transaction: what became of a delivery."""
    for episode in episodes:
        db.execute("INSERT OR REPLACE INTO episode VALUES (?, ?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(episode))
    for action in actions:
        db.execute(
            "INSERT OR IGNORE INTO action (kind, fingerprint, starts_unix_ns, run_id, state, created_unix_ns, steps, alert) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(action.kind, action.fingerprint, action.starts_unix_ns, action.run_id),
                *(action.state, action.created_unix_ns, action.steps, action.alert),
            ),
        )
    db.execute("UPDATE delivery SET done_unix_ns = ? WHERE number = ?", (now_unix_ns, number))


def _opened(path: Path, report: Callable[[str], object]) -> sqlite3.Connection:
    try:
        return _prepared(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise  # the disk's affair: what is in the file may be sound
        aside = path.with_name(f"{path.name}.bad")
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            with suppress(FileNotFoundError):
                path.with_name(name).replace(aside.with_name(name.replace(path.name, aside.name)))
        report(f"{path}: damaged ({error}): moved to {aside.name}; the receiver starts without it")
        os.close(_create(path))
        return _prepared(path)


def _lock(folder: Path) -> int:
    held = lock_file(folder / "lock")
    if held is None:
        raise InputError(folder, "another receiver keeps its deliveries here; choose another folder with --state")
    return held


def _create(path: Path) -> int:
    """Open a file that only we may read, made if it is not there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _prepared(path: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5.0)
    try:
        _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path | str) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise InputError(path, f"written by a newer version ({version}; this one reads {SCHEMA}): upgrade rankscope")
    if version == 0:
        db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
    elif (answer := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(answer)
