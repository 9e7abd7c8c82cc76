"""Delivery of the ledger's alerts: to Alertmanagers all of them at every interval, to webhooks each change once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final, Protocol

from rankscope.alerts.alert import Notice
from rankscope.alerts.deliver.post import DeliveryError
from rankscope.alerts.owners import CRASHED
from rankscope.alerts.watch.ledger import Entry, Ledger, Status
from rankscope.base.problems import ProblemLog

logger = logging.getLogger(__name__)

WAIT_S: Final = 0.5
"""Time that an evaluation waits for the response of an Alertmanager; the next evaluation processes a later one."""
RETRY_S: Final = 5.0
"""Longest pause after a failed post."""
RESOLVED_FOR_S: Final = 900.0
"""Time for which a resolved alert is posted, as Prometheus does: an Alertmanager may have missed the first post."""


class Manager(Protocol):
    """An Alertmanager."""

    name: str
    """Name for messages, without secrets."""

    def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
        """Post alerts that fire or have ended, from any thread. Raises ``DeliveryError``."""


class Receiver(Protocol):
    """A receiver that is sent each change once."""

    key: str
    """Stable name for the state file."""
    name: str
    """Name for messages, without secrets."""

    def send(self, notices: Sequence[Notice]) -> None:
        """Accept notices of any groups for delivery. Raises ``DeliveryError``."""


class Delivery:
    """Delivery to all receivers. A slow or failing receiver delays neither the others nor the next evaluation.

    ``managers`` are sent all alerts every ``interval_s``; ``receivers`` are sent each change until they accept it.
    ``elapsed``: seconds of a monotonic clock.
    """

    def __init__(
        self,
        *,
        managers: Sequence[Manager] = (),
        receivers: Sequence[Receiver] = (),
        interval_s: float,
        report: Callable[[str], None],
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._report = report
        self._elapsed = elapsed
        self.deliver_to(managers=managers, receivers=receivers)

    def deliver_to(self, *, managers: Sequence[Manager], receivers: Sequence[Receiver]) -> None:
        """Replace the receivers."""
        self._posts = [
            _Posts(manager, self._interval_s, _Failures(manager.name, self._report), self._elapsed) for manager in managers
        ]
        self._receivers = [(receiver, _Failures(receiver.name, self._report)) for receiver in receivers]

    def deliver(self, ledger: Ledger, *, now_unix_ns: int, wait_s: float = WAIT_S) -> None:
        """Send what is due, wait for the responses of Alertmanagers, then drop resolved alerts that need no more delivery."""
        for receiver, failures in self._receivers:
            _send_changes(receiver, ledger, failures)
        for posts in self._posts:
            posts.begin(ledger, now_unix_ns)
        deadline = time.monotonic() + wait_s
        for posts in self._posts:
            posts.finish(max(0.0, deadline - time.monotonic()))
        ledger.forget(lambda entry: self._is_owed(entry, now_unix_ns))

    def undelivered(self, ledger: Ledger) -> list[str]:
        """Names of the receivers that have not accepted the present state of an alert."""
        behind = [posts.name for posts in self._posts if posts.is_behind(ledger)]
        return [*behind, *(receiver.name for receiver, _ in self._receivers if _changes(receiver, ledger))]

    def _is_owed(self, entry: Entry, now_unix_ns: int) -> bool:
        """Return whether a resolved alert still has to be sent."""
        if self._posts and now_unix_ns - (entry.ends_at_unix_ns or 0) < RESOLVED_FOR_S * 1e9:
            return True
        return any(_is_change(entry, receiver) for receiver, _ in self._receivers)


class _Failures:
    """Reporter of a receiver's failures: the first one, each with a new reason, and the recovery."""

    def __init__(self, name: str, report: Callable[[str], None]) -> None:
        self._name = name
        self._problems = ProblemLog(report)
        self.count = 0

    def add(self, error: Exception) -> None:
        """Count a failed delivery."""
        reason = str(error) if isinstance(error, DeliveryError) else f"{type(error).__name__}: {error}"
        self.count += 1
        self._problems.report(f"{self._name}: not delivered so far: {reason}")

    def end(self) -> None:
        """Reset after a successful delivery."""
        if self.count:
            logger.info("%s: delivered after %d failed attempts", self._name, self.count)
        self.count = 0
        self._problems.report(None)


_State = tuple[str, Status, str]


class _Posts:
    """Posts to one Alertmanager, one at a time from a daemon thread, so that none prevents the process from exiting."""

    def __init__(self, manager: Manager, interval_s: float, failures: _Failures, elapsed: Callable[[], float]) -> None:
        self.name = manager.name
        self._manager = manager
        self._interval_s = interval_s
        self._failures = failures
        self._elapsed = elapsed
        self._running: Future[None] | None = None
        self._sending: frozenset[_State] = frozenset()
        self._accepted: frozenset[_State] = frozenset()
        """Alert states in the last accepted post; empty after a restart, so that everything is posted again."""
        self._began_s = float("-inf")

    def begin(self, ledger: Ledger, now_unix_ns: int) -> None:
        """Post all firing and recently resolved alerts, unless a post is in progress or the next one is not yet due."""
        self.finish(0.0)
        entries = _past_pending(ledger)
        now_s = self._elapsed()
        if not entries or self._running is not None or now_s - self._began_s < self._pause_s(ledger):
            return
        # Built here: the thread must not read entries that an evaluation changes.
        notices = [entry.notice() for entry in entries]
        self._sending, self._began_s = frozenset(map(_state, entries)), now_s
        self._running = future = Future[None]()

        def post() -> None:
            try:
                self._manager.send(notices, now_unix_ns=now_unix_ns)
            except Exception as error:  # noqa: BLE001 - reported by the thread that evaluates
                future.set_exception(error)
            else:
                future.set_result(None)

        threading.Thread(target=post, name="rankscope-alertmanager", daemon=True).start()

    def finish(self, timeout_s: float) -> None:
        """Process the result of the post in progress, if it arrives within the time."""
        if self._running is None:
            return
        try:
            error = self._running.exception(timeout_s)
        except FutureTimeoutError:
            return
        self._running = None
        if isinstance(error, Exception):
            self._failures.add(error)
            return
        self._accepted = self._sending
        self._failures.end()

    def is_behind(self, ledger: Ledger) -> bool:
        """Return whether the current state of any alert is not yet accepted."""
        return not self._accepted.issuperset(map(_state, _past_pending(ledger)))

    def _pause_s(self, ledger: Ledger) -> float:
        if self._failures.count:
            return min(RETRY_S, self._interval_s)
        return 0.0 if self.is_behind(ledger) else self._interval_s


def _past_pending(ledger: Ledger) -> list[Entry]:
    return [entry for entry in ledger.entries if entry.track.state != "pending"]


def _status(entry: Entry) -> Status:
    return "firing" if entry.track.state == "firing" else "resolved"


def _state(entry: Entry) -> _State:
    return entry.fingerprint, _status(entry), entry.revision


def _send_changes(receiver: Receiver, ledger: Ledger, failures: _Failures) -> None:
    changed = _changes(receiver, ledger)
    if not changed:
        return
    try:
        receiver.send([entry.notice() for entry in changed])
    except Exception as error:  # noqa: BLE001 - a fault of one receiver must not cost the others
        failures.add(error)
        return
    for entry in changed:
        entry.accepted[receiver.key] = _status(entry)
        entry.accepted_revision[receiver.key] = entry.revision
    failures.end()


def _changes(receiver: Receiver, ledger: Ledger) -> list[Entry]:
    return [entry for entry in ledger.entries if _is_change(entry, receiver)]


def _is_change(entry: Entry, receiver: Receiver) -> bool:
    """Return whether the state of an alert must be sent to the receiver. The end of an alert is sent only after its beginning."""
    accepted = entry.accepted.get(receiver.key)
    if entry.track.state == "firing":
        return accepted != "firing" or entry.accepted_revision.get(receiver.key, "") != entry.revision
    # An incident about a crashed run stays open until a person closes it: a timeout repairs nothing.
    only_forgotten = entry.name == CRASHED.alertname and bool(entry.ended_because)
    return entry.track.state == "resolved" and accepted == "firing" and not only_forgotten
