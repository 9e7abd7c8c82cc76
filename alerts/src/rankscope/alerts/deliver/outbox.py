"""The outbox: messages to targets, in the store, so that they outlive the process and none is sent under two ids.

``put`` returns once the messages are on disk. One process sends them (``sender``); any process may list and put.
If an alert ends before a target received its firing state, neither state is sent. Every method raises ``StoreError``, and has
then changed nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from rankscope.alerts.deliver.message import AlertState, Message, MessageState, MessageSummary, without
from rankscope.alerts.deliver.templates.alert_texts import headline
from rankscope.alerts.payload import Payload
from rankscope.alerts.store.database import AlertStore

_ABOUT: Final = 150
"""Characters of each text in the one-line summary of a message."""
KEPT_DELIVERED: Final = 1_000
"""Delivered and overtaken messages that are kept for ``outbox list``."""
KEPT_DEAD: Final = 10_000
KEPT_STATES: Final = 100_000
"""Alert states that are kept, so that no target receives one twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedMessage:
    """A message with an attempt under way."""

    id: str
    body: bytes
    attempts: int
    """Including the current attempt."""
    queued_ns: int
    was_uncertain: bool
    """An earlier attempt may have reached the receiver."""


class Outbox:
    """Messages in ``store``. ``wall`` returns nanoseconds since 1970, for times that users read."""

    def __init__(self, store: AlertStore, *, wall: Callable[[], int] = time.time_ns) -> None:
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

    def owes(self, target: str, alert: AlertState) -> bool:
        """Return whether a state has not been put for a target. The end of an alert is owed only if its beginning was put."""
        put = self.store.query(
            "SELECT status, revision FROM alert_states WHERE target = ? AND fingerprint = ? AND starts_at = ?",
            (target, alert.fingerprint, alert.starts_at),
        )
        if alert.status == "firing":
            return ("firing", alert.revision) not in put
        return {status for status, _ in put} == {"firing"}

    def claim(self, target: str, *, probe: bool = False) -> ClaimedMessage | None:
        """Claim the oldest due message of a target, and mark it as possibly received; ``None`` if none is due.

        A message never overtakes an earlier one of its group. ``probe``: claim the one with the fewest attempts.
        """
        # By sequence through the index of states: a large backlog must not be sorted for every message.
        rows = self.store.query(
            f"SELECT id, uncertain FROM messages AS message {'' if probe else 'INDEXED BY messages_by_state'}"  # noqa: S608 - ours
            f" {_FIRST_OF_GROUPS}"
            f" AND next_attempt_ns <= ? ORDER BY {'attempts, ' if probe else ''}sequence LIMIT 1",
            (target, self.now_ns()),
        )
        if not rows:  # usually: a transaction would wait for other writers
            return None
        [[id_, uncertain]] = rows
        with self.store.transaction() as database:
            database.execute(
                "UPDATE messages SET attempts = attempts + 1, uncertain = 1 WHERE id = ? AND state = 'waiting'", (id_,)
            )
            row = database.execute(
                "SELECT body, attempts, queued_ns FROM messages WHERE id = ? AND state = 'waiting'", (id_,)
            ).fetchone()
        if row is None:  # another process has dropped it
            return None
        body, attempts, queued_ns = row
        return ClaimedMessage(id=id_, body=body, attempts=attempts, queued_ns=queued_ns, was_uncertain=bool(uncertain))

    def record(
        self,
        message: ClaimedMessage,
        state: Literal["delivered", "waiting", "dead"],
        *,
        reason: str = "",
        received: bool = False,
        next_attempt_ns: int = 0,
    ) -> None:
        """Record the result of an attempt. ``received``: the receiver may have accepted the message."""
        uncertain = message.was_uncertain or received
        finished = None if state == "waiting" else self.wall()
        with self.store.transaction() as database:
            database.execute(
                "UPDATE messages SET state = ?, uncertain = ?, last_error = ?, next_attempt_ns = ?, finished_unix_ns = ?"
                " WHERE id = ? AND state = 'waiting'",
                (state, uncertain, reason, next_attempt_ns, finished, message.id),
            )
            if state != "delivered" and not uncertain:
                self._drop_ends(database, message.id)

    def expire(self, target: str, *, queued_before_ns: int, reason: str) -> int:
        """Give up messages that have waited since before ``queued_before_ns``; returns their number."""
        with self.store.transaction() as database:
            return database.execute(
                "UPDATE messages SET state = 'dead', finished_unix_ns = ?, last_error = ?"
                " WHERE state = 'waiting' AND target = ? AND queued_ns < ?",
                (self.wall(), reason, target, queued_before_ns),
            ).rowcount

    def next_due_ns(self, target: str) -> int | None:
        """Return when the next message of a target is due; ``None`` if none waits."""
        [[due]] = self.store.query(f"SELECT min(next_attempt_ns) FROM messages AS message {_FIRST_OF_GROUPS}", (target,))  # noqa: S608
        return None if due is None else int(due)

    def disable(self, target: str, reason: str) -> None:
        """Stop sending to a target until a replay or the next start."""
        with self.store.transaction() as database:
            database.execute("INSERT OR REPLACE INTO disabled VALUES (?, ?)", (target, reason))

    def enable_all(self) -> None:
        """Enable all targets; called at the start."""
        if self.store.query("SELECT 1 FROM disabled LIMIT 1"):
            with self.store.transaction() as database:
                database.execute("DELETE FROM disabled")

    def disabled(self, target: str) -> str | None:
        """Return why a target is disabled; ``None`` if it is enabled."""
        rows = self.store.query("SELECT reason FROM disabled WHERE target = ?", (target,))
        return str(rows[0][0]) if rows else None

    def prune(self) -> None:
        """Delete the oldest finished messages and alert states, to limit the size of the file."""
        with self.store.transaction() as database:
            for states, limit in (("'delivered', 'overtaken'", KEPT_DELIVERED), ("'dead'", KEPT_DEAD)):
                database.execute(
                    f"DELETE FROM messages WHERE state IN ({states}) AND sequence <="  # noqa: S608 - constants
                    f" (SELECT sequence FROM messages WHERE state IN ({states}) ORDER BY sequence DESC LIMIT 1 OFFSET ?)",
                    (limit,),
                )
            database.execute(
                "DELETE FROM alert_states WHERE number <= (SELECT number FROM alert_states ORDER BY number DESC LIMIT 1 OFFSET ?)"
                " AND message NOT IN (SELECT id FROM messages WHERE state IN ('waiting', 'dead'))",
                (KEPT_STATES,),
            )
        with self.store.transaction() as database:
            database.execute("PRAGMA incremental_vacuum").fetchall()

    def backlog(self) -> tuple[int, float]:
        """Return the number of waiting messages, and the age of the oldest one in seconds."""
        [[count, oldest]] = self.store.query("SELECT count(*), min(queued_ns) FROM messages WHERE state = 'waiting'")
        return int(count), 0.0 if oldest is None else max(0.0, (self.now_ns() - oldest) / 1e9)

    def list_messages(
        self, *, state: MessageState | None = None, target: str | None = None, most: int | None = None
    ) -> list[MessageSummary]:
        """Return the last ``most`` messages, oldest first."""
        where, parameters = _where(state=state, target=target)
        rows = self.store.query(f"{_LISTED}{where} ORDER BY sequence DESC LIMIT ?", (*parameters, -1 if most is None else most))
        now = self.now_ns()
        return [_listed(row, now) for row in reversed(rows)]

    def counts(self) -> dict[tuple[str, MessageState], int]:
        """Count messages by target and state."""
        return {
            (target, state): count
            for target, state, count in self.store.query("SELECT target, state, count(*) FROM messages GROUP BY target, state")
        }

    def show(self, id_: str) -> tuple[MessageSummary, bytes] | None:
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
            rows = database.execute(f"SELECT id FROM messages{where} ORDER BY sequence", parameters).fetchall()  # noqa: S608
            chosen = [id_ for (id_,) in rows if (ids is None or id_ in ids) and _leave_out_ended(database, id_, self.wall())]
            for id_ in chosen:
                database.execute("DELETE FROM disabled WHERE target = (SELECT target FROM messages WHERE id = ?)", (id_,))
                database.execute(
                    "UPDATE messages SET state = 'waiting', attempts = 0, next_attempt_ns = 0, queued_ns = ?,"
                    " finished_unix_ns = NULL WHERE id = ?",
                    (self.now_ns(), id_),
                )
        return chosen

    def drop(
        self, ids: Sequence[str] | None = None, *, state: MessageState | None = None, target: str | None = None
    ) -> list[str]:
        """Delete messages that meet all given conditions. Returns their ids."""
        where, parameters = _where(state=state, target=target)
        with self.store.transaction() as database:
            rows = database.execute(f"SELECT id FROM messages{where} ORDER BY sequence", parameters).fetchall()  # noqa: S608
            chosen = [id_ for (id_,) in rows if ids is None or id_ in ids]
            for id_ in chosen:
                # A target that certainly never received the firing state need not receive the end.
                database.execute(
                    "UPDATE alert_states SET message = '' WHERE message = (SELECT id FROM messages"
                    " WHERE id = ? AND state <> 'delivered' AND NOT uncertain)",
                    (id_,),
                )
                database.execute("DELETE FROM messages WHERE id = ?", (id_,))
        return chosen

    def _put(self, database: sqlite3.Connection, message: Message) -> int:
        """Store one message. Returns the number of its alerts to send; 0 if the target needs none of them."""
        fresh = [alert for alert in dict.fromkeys(message.alerts) if not _is_known(database, message.target, alert)]
        unsent = [
            alert
            for alert in fresh
            if alert.status == "resolved" and _drop_beginning(database, message.target, alert, self.wall())
        ]
        sent = [alert for alert in fresh if alert not in unsent]
        if sent:
            others = [alert for alert in message.alerts if alert not in sent]
            body = without(message.body, others) if others else message.body
            database.execute(
                "INSERT INTO messages (id, target, group_key, body, alert_count, state, created_unix_ns, queued_ns)"
                " VALUES (?, ?, ?, ?, ?, 'waiting', ?, ?)",
                (message.id, message.target, message.group, body, len(sent), self.wall(), self.now_ns()),
            )
        [[number]] = database.execute("SELECT coalesce(max(number), 0) + 1 FROM alert_states").fetchall()
        database.executemany(
            "INSERT INTO alert_states VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (*(message.target, alert.fingerprint, alert.starts_at, alert.status, alert.revision), id_, number)
                for alerts, id_ in ((sent, message.id), (unsent, ""))
                for alert in alerts
            ],
        )
        return len(sent)

    def _drop_ends(self, database: sqlite3.Connection, id_: str) -> None:
        """Cancel waiting end states of alerts whose firing state the target certainly never received."""
        ends = database.execute(
            "SELECT ended.target, ended.fingerprint, ended.starts_at, ended.revision, ended.message FROM alert_states AS began"
            " JOIN alert_states AS ended ON ended.target = began.target AND ended.fingerprint = began.fingerprint"
            " AND ended.starts_at = began.starts_at AND ended.status = 'resolved'"
            " JOIN messages ON messages.id = ended.message AND messages.state = 'waiting' AND NOT messages.attempts"
            " WHERE began.message = ? AND began.status = 'firing'",
            (id_,),
        ).fetchall()
        for target, fingerprint, starts_at, revision, message in ends:
            ended = AlertState(fingerprint=fingerprint, starts_at=starts_at, status="resolved", revision=revision)
            if _drop_beginning(database, target, ended, self.wall()):
                _take_out(database, message, ended, self.wall())


def _drop_beginning(database: sqlite3.Connection, target: str, ended: AlertState, wall_ns: int) -> bool:
    """Cancel the waiting firing state of an alert that has ended.

    Returns ``True`` if the target certainly never received the firing state. Otherwise nothing is changed.
    """
    rows = database.execute(
        "SELECT message, revision, state, uncertain FROM alert_states AS sent LEFT JOIN messages ON messages.id = message"
        " WHERE sent.target = ? AND fingerprint = ? AND starts_at = ? AND status = 'firing'",
        (target, ended.fingerprint, ended.starts_at),
    ).fetchall()
    # No row: the message was pruned, or another store sent it. Assume that the target received it.
    if not rows or any(state == "delivered" or uncertain or (state is None and id_) for id_, _, state, uncertain in rows):
        return False
    for id_, revision, state, *_ in rows:
        if state != "waiting":
            continue
        began = AlertState(fingerprint=ended.fingerprint, starts_at=ended.starts_at, status="firing", revision=revision)
        _take_out(database, id_, began, wall_ns)
    return True


def _take_out(database: sqlite3.Connection, id_: str, alert: AlertState, wall_ns: int) -> None:
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
        "UPDATE alert_states SET message = '' WHERE message = ? AND fingerprint = ? AND starts_at = ? AND status = ?",
        (id_, alert.fingerprint, alert.starts_at, alert.status),
    )


def _is_known(database: sqlite3.Connection, target: str, alert: AlertState) -> bool:
    return (
        database.execute(
            "SELECT 1 FROM alert_states WHERE target = ? AND fingerprint = ? AND starts_at = ? AND status = ? AND revision = ?",
            (target, alert.fingerprint, alert.starts_at, alert.status, alert.revision),
        ).fetchone()
        is not None
    )


def _leave_out_ended(database: sqlite3.Connection, id_: str, wall_ns: int) -> bool:
    """Remove ended alerts from a message. Returns ``False``, and changes nothing, if all of them have ended."""
    rows = database.execute(
        "SELECT fingerprint, starts_at, revision, status = 'firing' AND EXISTS (SELECT 1 FROM alert_states AS ended"
        " WHERE ended.target = began.target AND ended.fingerprint = began.fingerprint AND ended.starts_at = began.starts_at"
        " AND ended.status = 'resolved') FROM alert_states AS began WHERE message = ?",
        (id_,),
    ).fetchall()
    if rows and all(over for *_, over in rows):
        return False
    for fingerprint, starts_at, revision, over in rows:
        if over:
            ended = AlertState(fingerprint=fingerprint, starts_at=starts_at, status="firing", revision=revision)
            _take_out(database, id_, ended, wall_ns)
    return True


_FIRST_OF_GROUPS: Final = (
    "WHERE state = 'waiting' AND target = ? AND NOT EXISTS (SELECT 1 FROM messages AS earlier"
    " WHERE earlier.state = 'waiting' AND earlier.target = message.target AND earlier.group_key = message.group_key"
    " AND earlier.sequence < message.sequence)"
)
"""The first waiting message of each group of a target."""
_LISTED: Final = (
    "SELECT id, target, group_key, state, alert_count, attempts, created_unix_ns, finished_unix_ns, last_error,"
    " next_attempt_ns, body FROM messages"
)
_FIELDS: Final = ("id", "target", "group", "state", "alerts", "attempts", "created_unix_ns", "finished_unix_ns", "last_error")
"""Fields of ``MessageSummary`` that are columns of ``_LISTED``."""


def _where(**columns: str | None) -> tuple[str, tuple[str, ...]]:
    conditions = {name: value for name, value in columns.items() if value is not None}
    return (" WHERE " + " AND ".join(f"{name} = ?" for name in conditions) if conditions else ""), tuple(conditions.values())


def _listed(row: tuple[Any, ...], now_ns: int) -> MessageSummary:
    *columns, next_attempt_ns, body = row
    fields = dict(zip(_FIELDS, columns, strict=True))
    about, labels, starts_at = _summary(body)
    next_attempt_s = max(0.0, (next_attempt_ns - now_ns) / 1e9) if fields["state"] == "waiting" else None
    return MessageSummary(**fields, next_attempt_s=next_attempt_s, about=about, labels=labels, starts_at=starts_at)


def _summary(body: bytes) -> tuple[str, dict[str, str], str]:
    """Return a one-line summary, the labels common to all alerts, and the start of the first alert."""
    try:
        payload = msgspec.json.decode(body, type=Payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "unreadable", {}, ""
    return headline(payload, _ABOUT), payload.common_labels, min((alert.starts_at for alert in payload.alerts), default="")
