"""The outbox: what targets are still to be told, in a file, so that no end of the process loses or doubles it.

Whoever has something to tell puts it (``put`` returns when it is on the disk); one process sends (``sender.py``); anybody may
look and put. Of an alert that ended before a target heard of it, neither the beginning nor the end is told.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.alerts.deliver.message import AlertState, Message, joined, without
from rankscope.alerts.deliver.outbox_file import OutboxError, OutboxFile
from rankscope.alerts.deliver.templates.facts import headline
from rankscope.alerts.payload import Payload

State = Literal["waiting", "delivered", "dead", "overtaken"]


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A message as people see it."""

    id: str
    target: str
    group: str
    state: State
    alerts: int
    attempts: int
    created_unix_ns: int
    finished_unix_ns: int | None = None
    next_attempt_s: float | None = None
    """Seconds until it is tried again; only while it waits."""
    last_error: str = ""
    about: str = ""
    """State, severity, name and place of its first alert, and how many more there are."""
    labels: dict[str, str] = {}
    """In which all of its alerts agree."""
    starts_at: str = ""
    """When the first of them began, as the payload has it."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one outbox, oldest first, and how many there are in all, by state."""

    path: str
    counts: dict[str, int]
    messages: list[Listed]


class Listings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``list --format json`` prints."""

    schema: Literal["rankscope.outbox-list/1"] = "rankscope.outbox-list/1"
    outboxes: list[Listing]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What ``show --format json`` prints."""

    path: str
    message: Listed
    payload: msgspec.Raw
    """``null``: what is there is no JSON."""


_ABOUT: Final = 150
"""Characters of each text in the line that says what a message is about."""
MAX_WAITING: Final = 50_000
"""Messages for one target; more are not taken, which is the business of whoever has more."""


class Outbox:
    """The outbox in ``path``; with ``None`` in memory, which outlives nothing.

    Any number of threads and processes may use one file. Raises ``InputError`` for a file that is no outbox or a newer one's, and
    ``OutboxError``, here and in every method, for one that cannot be used: then nothing has been changed. ``report`` takes one
    line when a damaged file was set aside, which is not done without ``repair``. ``clock``: steady nanoseconds; ``wall``:
    nanoseconds since 1970, for people.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        report: Callable[[str], None] = lambda _: None,
        clock: Callable[[], int] | None = None,
        wall: Callable[[], int] = time.time_ns,
        repair: bool = True,
    ) -> None:
        self.file = OutboxFile(path, report=report, clock=clock, repair=repair)
        self.wall = wall

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def now_ns(self) -> int:
        """The time that attempts are planned by."""
        return self.file.clock()

    def put(self, messages: Sequence[Message]) -> int:
        """Take messages, all or none; they are on the disk when this returns. What was put before is not put again.

        Returns how many alerts are to be told by it.
        """
        with self.file.transaction() as database:
            [[total]] = database.execute("SELECT count(*) FROM messages WHERE state = 'waiting'").fetchall()
            # To count them by target takes longer; with so few in all no target has too many.
            few = total + len(messages) <= MAX_WAITING
            waiting: Counter[str] = Counter() if few else Counter(dict(database.execute(_WAITING).fetchall()))
            new = 0
            for message in messages:
                if waiting[message.target] >= MAX_WAITING:
                    raise OutboxError(
                        f"{self.file.name}: {waiting[message.target]} messages wait for {message.target} already{self.file.see}"
                    )
                taken = self._put(database, message)
                waiting[message.target] += taken > 0
                new += taken
            if new:
                self.file.require_room()
            return new

    def listed(self, *, state: State | None = None, target: str | None = None, most: int | None = None) -> list[Listed]:
        """Messages, oldest first; the last ``most`` of them."""
        where, parameters = _where(state=state, target=target)
        rows = self.file.query(f"{_LISTED}{where} ORDER BY sequence DESC LIMIT ?", (*parameters, -1 if most is None else most))
        now = self.now_ns()
        return [_listed(row, now) for row in reversed(rows)]

    def counts(self) -> dict[tuple[str, State], int]:
        """How many messages there are by target and state."""
        return {
            (target, state): count
            for target, state, count in self.file.query("SELECT target, state, count(*) FROM messages GROUP BY target, state")
        }

    def show(self, id_: str) -> tuple[Listed, bytes] | None:
        """A message and its payload."""
        rows = self.file.query(f"{_LISTED} WHERE id = ?", (id_,))
        if not rows:
            return None
        [[body]] = self.file.query("SELECT body FROM messages WHERE id = ?", (id_,))
        return _listed(rows[0], self.now_ns()), body

    def replay(self, ids: Sequence[str] | None = None, *, target: str | None = None) -> list[str]:
        """Have dead letters sent again: those named, or all of a target, or all; returns the ids of those that will be.

        What has ended since is left out. A target that was switched off is on again. Ids are the old
        ones; the time in which they have to be accepted begins anew.
        """
        where, parameters = _where(state="dead", target=target)
        with self.file.transaction() as database:
            found = database.execute(f"SELECT id FROM messages{where} ORDER BY sequence", parameters).fetchall()  # noqa: S608
            chosen = [id_ for (id_,) in found if (ids is None or id_ in ids) and _leave_out_ended(database, id_, self.wall())]
            for id_ in chosen:
                database.execute("DELETE FROM targets WHERE name = (SELECT target FROM messages WHERE id = ?)", (id_,))
                database.execute(
                    "UPDATE messages SET state = 'waiting', attempts = 0, next_attempt_ns = 0, entered_ns = ?,"
                    " finished_unix_ns = NULL WHERE id = ?",
                    (self.now_ns(), id_),
                )
        return chosen

    def drop(self, ids: Sequence[str] | None = None, *, state: State | None = None, target: str | None = None) -> list[str]:
        """Forget messages: those named, or all of a state or target; returns their ids."""
        where, parameters = _where(state=state, target=target)
        with self.file.transaction() as database:
            found = database.execute(f"SELECT id FROM messages{where} ORDER BY sequence", parameters).fetchall()  # noqa: S608
            chosen = [id_ for (id_,) in found if ids is None or id_ in ids]
            for id_ in chosen:
                # Who has certainly not heard of a beginning need not hear of the end.
                database.execute(
                    "UPDATE alerts SET message = '' WHERE message = (SELECT id FROM messages"
                    " WHERE id = ? AND state <> 'delivered' AND NOT uncertain)",
                    (id_,),
                )
                database.execute("DELETE FROM messages WHERE id = ?", (id_,))
        return chosen

    def _put(self, database: sqlite3.Connection, message: Message) -> int:
        """Returns how many of its alerts are to be told; 0 when all of them were known, or need not be."""
        fresh = [alert for alert in dict.fromkeys(message.alerts) if not _known(database, message.target, alert)]
        if not fresh:
            return 0
        unheard = [
            alert
            for alert in fresh
            if alert.status == "resolved" and drop_beginning(database, message.target, alert, self.wall())
        ]
        told = [alert for alert in fresh if alert not in unheard]
        body = message.body if len(told) == len(message.alerts) else b""
        if told and not body:
            body = without(message.body, [alert for alert in message.alerts if alert not in told])
        id_ = self._store(database, message, body, len(told)) if told else ""
        [[number]] = database.execute("SELECT coalesce(max(number), 0) + 1 FROM alerts").fetchall()
        database.executemany(
            "INSERT INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    message.target,
                    alert.fingerprint,
                    alert.starts_at,
                    alert.status,
                    alert.revision,
                    id_ if alert in told else "",
                    number,
                )
                for alert in fresh
            ],
        )
        return len(told)

    def _store(self, database: sqlite3.Connection, message: Message, body: bytes, alerts: int) -> str:
        """Store a message, or let it join the last one of its group that waits and was never sent; returns where it is."""
        last = database.execute(
            "SELECT id, body, alert_count, attempts, uncertain FROM messages INDEXED BY waiting_in_groups"
            " WHERE state = 'waiting' AND target = ? AND group_key = ? ORDER BY sequence DESC LIMIT 1",
            (message.target, message.group),
        ).fetchone()
        if last is not None and not last[3] and not last[4] and last[2] + alerts <= message.most_alerts:
            both = joined(last[1], body)
            if both is not None:
                # Nothing in it is out of date, or it would have been taken out: all of it has the time of what came last.
                database.execute(
                    "UPDATE messages SET body = ?, alert_count = alert_count + ?, entered_ns = ? WHERE id = ?",
                    (both, alerts, self.now_ns(), last[0]),
                )
                return str(last[0])
        database.execute(
            "INSERT INTO messages (id, target, group_key, body, alert_count, state, created_unix_ns, entered_ns)"
            " VALUES (?, ?, ?, ?, ?, 'waiting', ?, ?)",
            (message.id, message.target, message.group, body, alerts, self.wall(), self.now_ns()),
        )
        return message.id


def drop_beginning(database: sqlite3.Connection, target: str, ended: AlertState, wall_ns: int) -> bool:
    """Whether a target has certainly not heard that an alert began. Where that still waits to be told, it is told no more."""
    rows = database.execute(
        "SELECT message, revision, state, attempts, uncertain FROM alerts LEFT JOIN messages ON messages.id = alerts.message"
        " WHERE alerts.target = ? AND fingerprint = ? AND starts_at = ? AND status = 'firing'",
        (target, ended.fingerprint, ended.starts_at),
    ).fetchall()
    # Told by an outbox that was pruned since, or before there was one: it has heard.
    if not rows or any(state == "delivered" or uncertain or (state is None and id_) for id_, _, state, _, uncertain in rows):
        return False
    for id_, revision, state, *_ in rows:
        if state != "waiting":
            continue
        began = AlertState(fingerprint=ended.fingerprint, starts_at=ended.starts_at, status="firing", revision=revision)
        take_out(database, id_, began, wall_ns)
    return True


def take_out(database: sqlite3.Connection, id_: str, alert: AlertState, wall_ns: int) -> None:
    """Take an alert out of a message that waits."""
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
        "UPDATE alerts SET message = '' WHERE message = ? AND fingerprint = ? AND starts_at = ? AND status = ?",
        (id_, alert.fingerprint, alert.starts_at, alert.status),
    )


def _known(database: sqlite3.Connection, target: str, alert: AlertState) -> bool:
    return (
        database.execute(
            "SELECT 1 FROM alerts WHERE target = ? AND fingerprint = ? AND starts_at = ? AND status = ? AND revision = ?",
            (target, alert.fingerprint, alert.starts_at, alert.status, alert.revision),
        ).fetchone()
        is not None
    )


def _leave_out_ended(database: sqlite3.Connection, id_: str, wall_ns: int) -> bool:
    """Take out of a message what began and, as far as was put, has ended since; whether anything is left.

    Where nothing would be left the message stays as it is.
    """
    rows = database.execute(
        "SELECT fingerprint, starts_at, revision, status = 'firing' AND EXISTS (SELECT 1 FROM alerts AS ended"
        " WHERE ended.target = began.target AND ended.fingerprint = began.fingerprint AND ended.starts_at = began.starts_at"
        " AND ended.status = 'resolved') FROM alerts AS began WHERE message = ?",
        (id_,),
    ).fetchall()
    if rows and all(over for *_, over in rows):
        return False
    for fingerprint, starts_at, revision, over in rows:
        if over:
            ended = AlertState(fingerprint=fingerprint, starts_at=starts_at, status="firing", revision=revision)
            take_out(database, id_, ended, wall_ns)
    return True


_WAITING: Final = "SELECT target, count(*) FROM messages WHERE state = 'waiting' GROUP BY target"
_LISTED: Final = (
    "SELECT id, target, group_key, state, alert_count, attempts, created_unix_ns, finished_unix_ns, next_attempt_ns, last_error,"
    " body FROM messages"
)


def _where(**columns: str | None) -> tuple[str, tuple[str, ...]]:
    given = {name: value for name, value in columns.items() if value is not None}
    return (" WHERE " + " AND ".join(f"{name} = ?" for name in given) if given else ""), tuple(given.values())


def _listed(row: tuple[str, str, str, State, int, int, int, int | None, int, str, bytes], now_ns: int) -> Listed:
    id_, target, group, state, alerts, attempts, created, finished, next_attempt_ns, error, body = row
    about, labels, starts_at = _said(body)
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


def _said(body: bytes) -> tuple[str, dict[str, str], str]:
    """What a message is about in one line, what its alerts agree in, and since when the first of them fires."""
    try:
        payload = msgspec.json.decode(body, type=Payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "not to be read", {}, ""
    return headline(payload, _ABOUT), payload.common_labels, min((alert.starts_at for alert in payload.alerts), default="")
