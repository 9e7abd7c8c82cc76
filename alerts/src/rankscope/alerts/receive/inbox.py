"""The receiver's part of the store: accepted deliveries, the episodes of alerts, and actions. Accepted deliveries are on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from rankscope.alerts.receive.episodes import Episode
from rankscope.alerts.store.database import AlertStore, StoreError

MAX_KEPT: Final = 200
"""Processed deliveries whose bodies are kept for ``GET /deliveries``, as far as they fit ``MAX_KEPT_BYTES``."""
MAX_KEPT_BYTES: Final = 16 * 2**20
KEPT_S: Final = 24 * 3600.0
"""Ids of deliveries are kept for this long, to recognise repeated deliveries."""
MAX_KNOWN: Final = 100_000
"""Maximum number of kept ids."""
EPISODE_KEPT_S: Final = 30 * 24 * 3600.0
"""Episodes are kept this long after they last changed or were forwarded: senders repeat alerts that fire."""
MAX_EPISODES: Final = 100_000
"""Maximum number of kept episodes. Alerts of deleted episodes are forwarded again if they still fire."""
MAX_WAITING: Final = 1_000
MAX_WAITING_BYTES: Final = 128 * 1024 * 1024

ActionState = Literal["wanted", "requested", "recorded", "done"]


class InboxFullError(StoreError):
    """Too many deliveries wait; no further one is accepted."""


class StoredDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted body."""

    number: int
    received_unix_ns: int
    body: bytes


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do because of an alert, at most once per episode."""

    number: int = 0
    kind: Literal["capture", "dump", "verdict"]
    """Request to the run; ``verdict``: no request, the run is analysed."""
    fingerprint: str
    starts_unix_ns: int
    run_id: str
    state: ActionState = "wanted"
    """``requested``: a request id is stored, and the request may be in the run; ``recorded``: ``result`` is stored; ``done``: the
    result was forwarded.
    """
    created_unix_ns: int
    steps: int
    alert: bytes
    """The alert as received, ``PayloadAlert`` as JSON; empty if the action is ``done``."""
    request_id: str | None = None
    result: bytes | None = None


class Inbox:
    """Deliveries, episodes and actions in ``store``. Every method raises ``StoreError``."""

    def __init__(self, store: AlertStore) -> None:
        self.store = store

    def accept(self, body: bytes, *, key: str | None, now_unix_ns: int, also: Callable[[], object] = lambda: None) -> bool:
        """Store a delivery; returns ``False`` if it was stored before. If ``also`` fails, nothing is stored.

        Raises ``InboxFullError``, and the errors of ``also``.
        """
        with self.store.transaction() as db:
            if key is not None and db.execute("SELECT 1 FROM deliveries WHERE key = ?", (key,)).fetchone():
                return False
            waiting, size = db.execute(
                "SELECT count(*), coalesce(sum(length(body)), 0) FROM deliveries WHERE done_unix_ns IS NULL"
            ).fetchone()
            if waiting >= MAX_WAITING or size + len(body) > MAX_WAITING_BYTES:
                raise InboxFullError(f"{waiting} deliveries wait")
            db.execute("INSERT INTO deliveries (key, received_unix_ns, body) VALUES (?, ?, ?)", (key, now_unix_ns, body))
            also()
        return True

    def waiting(self) -> list[tuple[int, int]]:
        """Return number and time of arrival of the unprocessed deliveries, oldest first."""
        rows = self.store.query("SELECT number, received_unix_ns FROM deliveries WHERE done_unix_ns IS NULL ORDER BY number")
        return [(number, received) for number, received in rows]

    def body(self, number: int) -> bytes:
        """Return the body of an unprocessed delivery."""
        [[body]] = self.store.query("SELECT body FROM deliveries WHERE number = ?", (number,))
        assert isinstance(body, bytes)
        return body

    def waiting_count(self) -> tuple[int, int | None]:
        """Return the number of unprocessed deliveries, and when the oldest was accepted."""
        [[count, oldest]] = self.store.query("SELECT count(*), min(received_unix_ns) FROM deliveries WHERE done_unix_ns IS NULL")
        return count, oldest

    def kept_deliveries(self) -> tuple[int, list[StoredDelivery]]:
        """Return the number of all deliveries, and the last ones within the limits for kept bodies, oldest first."""
        [[total]] = self.store.query("SELECT coalesce(max(number), 0) FROM deliveries")
        rows = self.store.query(
            "SELECT number, received_unix_ns, body FROM "
            "(SELECT *, sum(length(body)) OVER (ORDER BY number DESC) AS size FROM deliveries WHERE body IS NOT NULL) "
            "WHERE size <= ? ORDER BY number DESC LIMIT ?",
            (MAX_KEPT_BYTES, MAX_KEPT),
        )
        return total, [StoredDelivery(number=number, received_unix_ns=at, body=body) for number, at, body in reversed(rows)]

    def prune(self, *, now_unix_ns: int) -> None:
        """Delete old bodies, ids, episodes and actions."""
        with self.store.transaction() as db:
            db.execute(
                "UPDATE deliveries SET body = NULL WHERE done_unix_ns IS NOT NULL AND body IS NOT NULL AND number <="
                " coalesce((SELECT max(number) FROM"
                " (SELECT number, sum(length(body)) OVER (ORDER BY number DESC) AS size FROM deliveries WHERE body IS NOT NULL)"
                " WHERE size > ? OR number <= (SELECT max(number) FROM deliveries) - ?), 0)",
                (MAX_KEPT_BYTES, MAX_KEPT),
            )
            db.execute(
                "DELETE FROM deliveries WHERE body IS NULL AND "
                "(done_unix_ns < ? OR number <= (SELECT max(number) FROM deliveries) - ?)",
                (now_unix_ns - int(KEPT_S * 1e9), MAX_KNOWN),
            )
            old = now_unix_ns - int(EPISODE_KEPT_S * 1e9)
            db.execute("DELETE FROM episodes WHERE max(changed_unix_ns, forwarded_unix_ns) < ?", (old,))
            db.execute(
                "DELETE FROM episodes WHERE (SELECT count(*) FROM episodes) > ? AND fingerprint IN "
                "(SELECT fingerprint FROM episodes ORDER BY max(changed_unix_ns, forwarded_unix_ns) DESC LIMIT -1 OFFSET ?)",
                (MAX_EPISODES, MAX_EPISODES),
            )
            db.execute("DELETE FROM actions WHERE state = 'done' AND created_unix_ns < ?", (old,))

    def settle(self, number: int, episodes: list[Episode], actions: list[Action], *, now_unix_ns: int) -> None:
        """Record the results of a delivery."""
        with self.store.transaction() as db:
            for episode in episodes:
                db.execute("INSERT OR REPLACE INTO episodes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(episode))
            for action in actions:
                names = ("kind", "fingerprint", "starts_unix_ns", "run_id", "state", "created_unix_ns", "steps", "alert")
                db.execute(
                    f"INSERT OR IGNORE INTO actions ({', '.join(names)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - our names
                    [getattr(action, name) for name in names],
                )
            db.execute("UPDATE deliveries SET done_unix_ns = ? WHERE number = ?", (now_unix_ns, number))

    # Episodes

    def episode(self, fingerprint: str) -> Episode | None:
        """Return the last episode of an alert."""
        for row in self.store.query("SELECT * FROM episodes WHERE fingerprint = ?", (fingerprint,)):
            return Episode(**dict(zip(Episode.__struct_fields__, row, strict=True)))
        return None

    # Actions

    def actions(self, *states: ActionState) -> list[Action]:
        """Return captures and dumps in one of ``states``, oldest first."""
        marks = ", ".join("?" * len(states))
        return self._actions(f"kind != 'verdict' AND state IN ({marks})", states)

    def owed_verdicts(self) -> list[Action]:
        """Return verdicts that are still to be forwarded, oldest first."""
        return self._actions("kind = 'verdict'", ())

    def owed_verdict_count(self) -> int:
        """Count verdicts that are still to be forwarded."""
        [[count]] = self.store.query("SELECT count(*) FROM actions WHERE kind = 'verdict'")
        return int(count)

    def _actions(self, condition: str, parameters: tuple[object, ...]) -> list[Action]:
        names = ", ".join(Action.__struct_fields__)
        rows = self.store.query(f"SELECT {names} FROM actions WHERE {condition} ORDER BY number", parameters)  # noqa: S608 - our own names
        return [Action(**dict(zip(Action.__struct_fields__, row, strict=True))) for row in rows]

    def has_action(self, kind: str, fingerprint: str, starts_unix_ns: int) -> bool:
        """Check whether this episode has had an action of this kind."""
        rows = self.store.query(
            "SELECT 1 FROM actions WHERE kind = ? AND fingerprint = ? AND starts_unix_ns = ?", (kind, fingerprint, starts_unix_ns)
        )
        return bool(rows)

    def recent_actions(self, kind: str, within_s: float, run_id: str | None = None, *, now_unix_ns: int) -> int:
        """Count actions within ``within_s`` before or after now, of one run or of all.

        The upper bound matters after a clock was ahead: its actions must not block new ones until the time catches up.
        """
        [[count]] = self.store.query(
            "SELECT count(*) FROM actions WHERE kind = ? AND abs(created_unix_ns - ?) <= ? AND (? IS NULL OR run_id = ?)",
            (kind, now_unix_ns, int(within_s * 1e9), run_id, run_id),
        )
        return int(count)

    def move(self, action: Action, state: ActionState, *, request_id: str | None = None, result: bytes | None = None) -> Action:
        """Record the state of an action."""
        moved_action = msgspec.structs.replace(
            action, state=state, request_id=request_id or action.request_id, result=action.result if result is None else result
        )
        if state == "done":  # later queries only check that it exists
            moved_action = msgspec.structs.replace(moved_action, alert=b"", result=None)
        with self.store.transaction() as db:
            db.execute(
                "UPDATE actions SET state = ?, request_id = ?, result = ?, alert = ? WHERE number = ?",
                (moved_action.state, moved_action.request_id, moved_action.result, moved_action.alert, moved_action.number),
            )
        return moved_action

    def forget(self, action: Action) -> None:
        """Delete an action."""
        with self.store.transaction() as db:
            db.execute("DELETE FROM actions WHERE number = ?", (action.number,))
