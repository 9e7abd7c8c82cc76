"""The sender's side of the outbox: messages that are due, the results of attempts, and pruning."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from rankscope.alerts.deliver.message import AlertState
from rankscope.alerts.deliver.outbox import Outbox, drop_beginning, take_out

KEPT_DELIVERED: Final = 1_000
"""Delivered and overtaken messages that are kept for ``outbox list``."""
KEPT_DEAD: Final = 10_000
KEPT_ALERTS: Final = 100_000
"""Alert states that are remembered, so that no target receives one twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A message with an attempt under way."""

    id: str
    group: str
    body: bytes
    attempts: int
    """Including the current attempt."""
    entered_ns: int
    was_uncertain: bool
    """An earlier attempt may have reached the receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a claimed message; ``unsent``: no attempt was made."""

    message: Claimed
    state: Literal["delivered", "waiting", "dead", "unsent"]
    reason: str = ""
    heard: bool = False
    next_attempt_ns: int = 0


class OutboxQueue:
    """The outbox as used by the sending process. A method that raises ``StoreError`` has changed nothing."""

    def __init__(self, outbox: Outbox) -> None:
        self._store = outbox.store
        self.see = outbox.store.see
        self._wall = outbox.wall

    def claim(self, target: str, *, now_ns: int, most: int, probe: bool) -> list[Claimed]:
        """Claim due messages of a target, oldest first, and mark each as possibly received.

        A message never overtakes an earlier one of its group. ``probe``: claim only the one with the fewest attempts.
        """
        order, most = ("attempts, sequence", 1) if probe else ("sequence", most)
        earlier = "AND earlier.next_attempt_ns > ?" if not probe else ""
        sql = (
            "SELECT id, group_key, body, attempts, entered_ns, uncertain FROM messages AS message"  # noqa: S608 - no input in it
            " WHERE state = 'waiting' AND target = ? AND next_attempt_ns <= ? AND NOT EXISTS (SELECT 1 FROM messages AS earlier"
            " WHERE earlier.state = 'waiting' AND earlier.target = message.target AND earlier.group_key = message.group_key"
            f" AND earlier.sequence < message.sequence {earlier}) ORDER BY {order} LIMIT ?"
        )
        # Query first: usually no message is due, and a transaction would write.
        parameters = (target, now_ns, *(() if probe else (now_ns,)), most)
        if not self._store.query(sql, parameters):
            return []
        with self._store.transaction() as database:
            rows = database.execute(sql, parameters).fetchall()
            database.executemany(
                "UPDATE messages SET attempts = attempts + 1, uncertain = 1 WHERE id = ?", [(row[0],) for row in rows]
            )
        return [
            Claimed(id=id_, group=group, body=body, attempts=attempts + 1, entered_ns=entered, was_uncertain=bool(uncertain))
            for id_, group, body, attempts, entered, uncertain in rows
        ]

    def record(self, outcomes: Iterable[Outcome]) -> None:
        """Record the results of claimed messages."""
        with self._store.transaction() as database:
            for outcome in outcomes:
                self._record(database, outcome)

    def expire(self, target: str, *, entered_before_ns: int, reason: str) -> int:
        """Give up messages that have waited since before ``entered_before_ns``; returns their number."""
        with self._store.transaction() as database:
            return database.execute(
                "UPDATE messages SET state = 'dead', finished_unix_ns = ?, last_error = ?"
                " WHERE state = 'waiting' AND target = ? AND entered_ns < ?",
                (self._wall(), reason, target, entered_before_ns),
            ).rowcount

    def waiting(self) -> dict[str, int]:
        """Count waiting messages by target."""
        rows = self._store.query("SELECT target, count(*) FROM messages WHERE state = 'waiting' GROUP BY target")
        return {str(target): int(count) for target, count in rows}

    def has_waiting(self, target: str) -> bool:
        """Check whether a message waits for a target."""
        return bool(self._store.query("SELECT 1 FROM messages WHERE state = 'waiting' AND target = ? LIMIT 1", (target,)))

    def next_due_ns(self, target: str) -> int | None:
        """Return when the next message of a target is due; ``None`` if none waits."""
        [[due]] = self._store.query(
            "SELECT min(next_attempt_ns) FROM messages AS message WHERE state = 'waiting' AND target = ? AND NOT EXISTS"
            " (SELECT 1 FROM messages AS earlier WHERE earlier.state = 'waiting' AND earlier.target = message.target"
            " AND earlier.group_key = message.group_key AND earlier.sequence < message.sequence)",
            (target,),
        )
        return None if due is None else int(due)

    def disable(self, target: str, reason: str) -> None:
        """Stop sending to a target until a replay or the next start."""
        with self._store.transaction() as database:
            database.execute("INSERT OR REPLACE INTO disabled VALUES (?, ?)", (target, reason))

    def enable_all(self) -> None:
        """Enable all targets; called at the start."""
        if self._store.query("SELECT 1 FROM disabled LIMIT 1"):
            with self._store.transaction() as database:
                database.execute("DELETE FROM disabled")

    def disabled(self, target: str) -> str | None:
        """Return why a target is disabled; ``None`` if it is enabled."""
        rows = self._store.query("SELECT reason FROM disabled WHERE target = ?", (target,))
        return str(rows[0][0]) if rows else None

    def prune(self) -> None:
        """Delete the oldest finished messages and alert states, to limit the size of the file."""
        with self._store.transaction() as database:
            for states, kept in (("'delivered', 'overtaken'", KEPT_DELIVERED), ("'dead'", KEPT_DEAD)):
                database.execute(
                    f"DELETE FROM messages WHERE state IN ({states}) AND sequence <="  # noqa: S608 - constants
                    f" (SELECT sequence FROM messages WHERE state IN ({states}) ORDER BY sequence DESC LIMIT 1 OFFSET ?)",
                    (kept,),
                )
            database.execute(
                "DELETE FROM told WHERE number <= (SELECT number FROM told ORDER BY number DESC LIMIT 1 OFFSET ?)"
                " AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.id = told.message AND state IN ('waiting', 'dead'))",
                (KEPT_ALERTS,),
            )
        with self._store.transaction() as database:
            database.execute("PRAGMA incremental_vacuum").fetchall()

    def _record(self, database: sqlite3.Connection, outcome: Outcome) -> None:
        message = outcome.message
        uncertain = message.was_uncertain or outcome.heard
        if outcome.state == "unsent":
            database.execute(
                "UPDATE messages SET attempts = attempts - 1, uncertain = ? WHERE id = ? AND state = 'waiting'",
                (uncertain, message.id),
            )
            return
        finished = None if outcome.state == "waiting" else self._wall()
        database.execute(
            "UPDATE messages SET state = ?, uncertain = ?, last_error = ?, next_attempt_ns = ?, finished_unix_ns = ?"
            " WHERE id = ? AND state = 'waiting'",
            (outcome.state, uncertain, outcome.reason, outcome.next_attempt_ns, finished, message.id),
        )
        if outcome.state != "delivered" and not uncertain:
            self._drop_ends(database, message.id)

    def _drop_ends(self, database: sqlite3.Connection, id_: str) -> None:
        """Cancel waiting end states of alerts whose firing state the target certainly never received."""
        ends = database.execute(
            "SELECT ended.target, ended.fingerprint, ended.starts_at, ended.revision, ended.message FROM told AS began"
            " JOIN told AS ended ON ended.target = began.target AND ended.fingerprint = began.fingerprint"
            " AND ended.starts_at = began.starts_at AND ended.status = 'resolved'"
            " JOIN messages ON messages.id = ended.message AND messages.state = 'waiting' AND NOT messages.attempts"
            " WHERE began.message = ? AND began.status = 'firing'",
            (id_,),
        ).fetchall()
        for target, fingerprint, starts_at, revision, message in ends:
            ended = AlertState(fingerprint=fingerprint, starts_at=starts_at, status="resolved", revision=revision)
            if drop_beginning(database, target, ended, self._wall()):
                take_out(database, message, ended, self._wall())
