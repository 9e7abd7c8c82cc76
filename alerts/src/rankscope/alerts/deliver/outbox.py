"""The outbox: messages to targets, in the store, so that they outlive the process and none is sent under two ids.

``put`` returns once the messages are on disk. One process sends them (``sender``); any process may list and put.
If an alert ends before a target received its firing state, neither state is sent.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rankscope.alerts.deliver.message import AlertState, Message, without
from rankscope.alerts.deliver.outbox_result import Listed, State
from rankscope.alerts.deliver.templates.facts import headline
from rankscope.alerts.payload import Payload
from rankscope.alerts.store.database import Store

_ABOUT: Final = 150
"""Characters of each text in the one-line summary of a message."""


class Outbox:
    """Messages in ``store``. A method that raises ``StoreError`` has changed nothing.

    ``wall`` returns nanoseconds since 1970, for times that users read.
    """

    def __init__(self, store: Store, *, wall: Callable[[], int] = time.time_ns) -> None:
        self.store = store
        self.wall = wall

    def now_ns(self) -> int:
        """Current time of the clock that schedules attempts."""
        return self.store.clock()

    def put(self, messages: Sequence[Message]) -> int:
        """Store messages, all or none, and return once they are on disk. Alert states that were put before are left out.

        Returns the number of alerts to send.
        """
        with self.store.transaction() as database:
            new = sum([self._put(database, message) for message in messages])
            if new:
                self.store.require_room()
            return new

    def backlog(self) -> tuple[int, float]:
        """Return the number of waiting messages, and the age of the oldest one in seconds."""
        [[count, oldest]] = self.store.query("SELECT count(*), min(entered_ns) FROM messages WHERE state = 'waiting'")
        return int(count), 0.0 if oldest is None else max(0.0, (self.now_ns() - oldest) / 1e9)

    def listed(self, *, state: State | None = None, target: str | None = None, most: int | None = None) -> list[Listed]:
        """Return the last ``most`` messages, oldest first."""
        where, parameters = _where(state=state, target=target)
        rows = self.store.query(f"{_LISTED}{where} ORDER BY sequence DESC LIMIT ?", (*parameters, -1 if most is None else most))
        now = self.now_ns()
        return [_listed(row, now) for row in reversed(rows)]

    def counts(self) -> dict[tuple[str, State], int]:
        """Count messages by target and state."""
        return {
            (target, state): count
            for target, state, count in self.store.query("SELECT target, state, count(*) FROM messages GROUP BY target, state")
        }

    def show(self, id_: str) -> tuple[Listed, bytes] | None:
        """Return a message and its payload; ``None`` for an unknown id."""
        rows = self.store.query(f"{_LISTED} WHERE id = ?", (id_,))
        if not rows:
            return None
        [[body]] = self.store.query("SELECT body FROM messages WHERE id = ?", (id_,))
        return _listed(rows[0], self.now_ns()), body

    def replay(self, ids: Sequence[str] | None = None, *, target: str | None = None) -> list[str]:
        """Queue dead letters again, only those with ``ids`` or of ``target`` if given. Returns their ids, which do not change.

        Alerts that have ended since are left out. A disabled target is enabled. The retry period starts again.
        """
        where, parameters = _where(state="dead", target=target)
        with self.store.transaction() as database:
            found = database.execute(f"SELECT id FROM messages{where} ORDER BY sequence", parameters).fetchall()  # noqa: S608
            chosen = [id_ for (id_,) in found if (ids is None or id_ in ids) and _leave_out_ended(database, id_, self.wall())]
            for id_ in chosen:
                database.execute("DELETE FROM disabled WHERE target = (SELECT target FROM messages WHERE id = ?)", (id_,))
                database.execute(
                    "UPDATE messages SET state = 'waiting', attempts = 0, next_attempt_ns = 0, entered_ns = ?,"
                    " finished_unix_ns = NULL WHERE id = ?",
                    (self.now_ns(), id_),
                )
        return chosen

    def drop(self, ids: Sequence[str] | None = None, *, state: State | None = None, target: str | None = None) -> list[str]:
        """Delete messages that meet all given conditions. Returns their ids."""
        where, parameters = _where(state=state, target=target)
        with self.store.transaction() as database:
            found = database.execute(f"SELECT id FROM messages{where} ORDER BY sequence", parameters).fetchall()  # noqa: S608
            chosen = [id_ for (id_,) in found if ids is None or id_ in ids]
            for id_ in chosen:
                # A target that certainly never received the firing state need not receive the end.
                database.execute(
                    "UPDATE told SET message = '' WHERE message = (SELECT id FROM messages"
                    " WHERE id = ? AND state <> 'delivered' AND NOT uncertain)",
                    (id_,),
                )
                database.execute("DELETE FROM messages WHERE id = ?", (id_,))
        return chosen

    def _put(self, database: sqlite3.Connection, message: Message) -> int:
        """Store one message. Returns the number of its alerts to send; 0 if the target needs none of them."""
        fresh = [alert for alert in dict.fromkeys(message.alerts) if not _known(database, message.target, alert)]
        unheard = [
            alert
            for alert in fresh
            if alert.status == "resolved" and drop_beginning(database, message.target, alert, self.wall())
        ]
        sent = [alert for alert in fresh if alert not in unheard]
        if sent:
            others = [alert for alert in message.alerts if alert not in sent]
            body = without(message.body, others) if others else message.body
            database.execute(
                "INSERT INTO messages (id, target, group_key, body, alert_count, state, created_unix_ns, entered_ns)"
                " VALUES (?, ?, ?, ?, ?, 'waiting', ?, ?)",
                (message.id, message.target, message.group, body, len(sent), self.wall(), self.now_ns()),
            )
        [[number]] = database.execute("SELECT coalesce(max(number), 0) + 1 FROM told").fetchall()
        database.executemany(
            "INSERT INTO told VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (*(message.target, alert.fingerprint, alert.starts_at, alert.status, alert.revision), id_, number)
                for alerts, id_ in ((sent, message.id), (unheard, ""))
                for alert in alerts
            ],
        )
        return len(sent)


def drop_beginning(database: sqlite3.Connection, target: str, ended: AlertState, wall_ns: int) -> bool:
    """Cancel the waiting firing state of an alert that has ended.

    Returns ``True`` if the target certainly never received the firing state. Otherwise nothing is changed.
    """
    rows = database.execute(
        "SELECT message, revision, state, attempts, uncertain FROM told LEFT JOIN messages ON messages.id = told.message"
        " WHERE told.target = ? AND fingerprint = ? AND starts_at = ? AND status = 'firing'",
        (target, ended.fingerprint, ended.starts_at),
    ).fetchall()
    # No row: the message was pruned, or another store sent it. Assume that the target received it.
    if not rows or any(state == "delivered" or uncertain or (state is None and id_) for id_, _, state, _, uncertain in rows):
        return False
    for id_, revision, state, *_ in rows:
        if state != "waiting":
            continue
        began = AlertState(fingerprint=ended.fingerprint, starts_at=ended.starts_at, status="firing", revision=revision)
        take_out(database, id_, began, wall_ns)
    return True


def take_out(database: sqlite3.Connection, id_: str, alert: AlertState, wall_ns: int) -> None:
    """Remove an alert from a waiting message. Without a remaining alert the message becomes ``overtaken``."""
    [[body, count]] = database.execute("SELECT body, alert_count FROM messages WHERE id = ?", (id_,)).fetchall()
    if count <= 1:
        database.execute(
            "UPDATE messages SET state = 'overtaken', finished_unix_ns = ? WHERE id = ?",
            (wall_ns, id_),
        )
        return
    database.execute(
        "UPDATE messages SET body = ?, alert_count = alert_count - 1 WHERE id = ?",
        (without(body, [alert]), id_),
    )
    database.execute(
        "UPDATE told SET message = '' WHERE message = ? AND fingerprint = ? AND starts_at = ? AND status = ?",
        (id_, alert.fingerprint, alert.starts_at, alert.status),
    )


def _known(database: sqlite3.Connection, target: str, alert: AlertState) -> bool:
    return (
        database.execute(
            "SELECT 1 FROM told WHERE target = ? AND fingerprint = ? AND starts_at = ? AND status = ? AND revision = ?",
            (target, alert.fingerprint, alert.starts_at, alert.status, alert.revision),
        ).fetchone()
        is not None
    )


def _leave_out_ended(database: sqlite3.Connection, id_: str, wall_ns: int) -> bool:
    """Remove ended alerts from a message. Returns ``False``, and changes nothing, if all of them have ended."""
    rows = database.execute(
        "SELECT fingerprint, starts_at, revision, status = 'firing' AND EXISTS (SELECT 1 FROM told AS ended"
        " WHERE ended.target = began.target AND ended.fingerprint = began.fingerprint AND ended.starts_at = began.starts_at"
        " AND ended.status = 'resolved') FROM told AS began WHERE message = ?",
        (id_,),
    ).fetchall()
    if rows and all(over for *_, over in rows):
        return False
    for fingerprint, starts_at, revision, over in rows:
        if over:
            ended = AlertState(fingerprint=fingerprint, starts_at=starts_at, status="firing", revision=revision)
            take_out(database, id_, ended, wall_ns)
    return True


_LISTED: Final = (
    "SELECT id, target, group_key, state, alert_count, attempts, created_unix_ns, finished_unix_ns, next_attempt_ns, last_error,"
    " body FROM messages"
)


def _where(**columns: str | None) -> tuple[str, tuple[str, ...]]:
    given = {name: value for name, value in columns.items() if value is not None}
    return (" WHERE " + " AND ".join(f"{name} = ?" for name in given) if given else ""), tuple(given.values())


def _listed(row: tuple[str, str, str, State, int, int, int, int | None, int, str, bytes], now_ns: int) -> Listed:
    id_, target, group, state, alerts, attempts, created, finished, next_attempt_ns, error, body = row
    about, labels, starts_at = _summary(body)
    return Listed(
        id=id_,
        target=target,
        group=group,
        state=state,
        alerts=alerts,
        attempts=attempts,
        created_unix_ns=created,
        finished_unix_ns=finished,
        next_attempt_s=max(0.0, (next_attempt_ns - now_ns) / 1e9) if state == "waiting" else None,
        last_error=error,
        about=about,
        labels=labels,
        starts_at=starts_at,
    )


def _summary(body: bytes) -> tuple[str, dict[str, str], str]:
    """Return a one-line summary, the labels common to all alerts, and the start of the first alert."""
    try:
        payload = msgspec.json.decode(body, type=Payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "unreadable", {}, ""
    return headline(payload, _ABOUT), payload.common_labels, min((alert.starts_at for alert in payload.alerts), default="")
