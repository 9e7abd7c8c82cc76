"""Delivery of the ledger's alerts: to Alertmanagers all of them at every interval, to webhooks each change once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final

from rankscope.alerts.deliver.failure_log import FailureLog
from rankscope.alerts.deliver.notifiers import Alertmanager, Webhook
from rankscope.alerts.deliver.post import DeliveryError
from rankscope.alerts.watch.ledger import AlertLedger, LedgerEntry, Status
from rankscope.alerts.watcher_alerts import CRASHED

WAIT_S: Final = 0.5
"""Time that an evaluation waits for the response of an Alertmanager; the next evaluation processes a later one."""
RETRY_S: Final = 5.0
"""Longest pause after a failed post."""
RESOLVED_FOR_S: Final = 900.0
"""Time for which a resolved alert is posted, as Prometheus does: an Alertmanager may have missed the first post."""


class Delivery:
    """Delivery to all destinations. A slow or failing one delays neither the others nor the next evaluation.

    ``alertmanagers`` are sent all alerts every ``interval_s``; ``webhooks`` are sent each change until they accept it.
    ``elapsed``: seconds of a monotonic clock.
    """

    def __init__(
        self,
        *,
        alertmanagers: Sequence[Alertmanager] = (),
        webhooks: Sequence[Webhook] = (),
        interval_s: float,
        report: Callable[[str], None],
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._report = report
        self._elapsed = elapsed
        self.deliver_to(alertmanagers=alertmanagers, webhooks=webhooks)

    def deliver_to(self, *, alertmanagers: Sequence[Alertmanager], webhooks: Sequence[Webhook]) -> None:
        """Replace the destinations."""
        self._posters = [
            _AlertmanagerPoster(manager, self._interval_s, FailureLog(manager.name, self._report), self._elapsed)
            for manager in alertmanagers
        ]
        self._webhooks = [(webhook, FailureLog(webhook.name, self._report)) for webhook in webhooks]

    def deliver(self, ledger: AlertLedger, *, now_unix_ns: int, wait_s: float = WAIT_S) -> None:
        """Send what is due, wait for the responses of Alertmanagers, then drop resolved alerts that need no more delivery."""
        for webhook, failures in self._webhooks:
            _send_changes(webhook, ledger, failures)
        for poster in self._posters:
            poster.begin(ledger, now_unix_ns)
        deadline = time.monotonic() + wait_s
        for poster in self._posters:
            poster.finish(max(0.0, deadline - time.monotonic()))
        ledger.forget(lambda entry: self._is_owed(entry, now_unix_ns))

    def undelivered(self, ledger: AlertLedger) -> list[str]:
        """Names of the destinations that have not accepted the present state of an alert."""
        behind = [poster.name for poster in self._posters if poster.is_behind(ledger)]
        return [*behind, *(webhook.name for webhook, _ in self._webhooks if _changes(webhook, ledger))]

    def _is_owed(self, entry: LedgerEntry, now_unix_ns: int) -> bool:
        """Return whether a resolved alert still has to be sent."""
        if self._posters and now_unix_ns - (entry.ends_at_unix_ns or 0) < RESOLVED_FOR_S * 1e9:
            return True
        return any(_is_change(entry, webhook) for webhook, _ in self._webhooks)


_State = tuple[str, Status, str]


class _AlertmanagerPoster:
    """Posts to one Alertmanager, one at a time from a daemon thread, so that none prevents the process from exiting."""

    def __init__(self, manager: Alertmanager, interval_s: float, failures: FailureLog, elapsed: Callable[[], float]) -> None:
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

    def begin(self, ledger: AlertLedger, now_unix_ns: int) -> None:
        """Post all firing and recently resolved alerts, unless a post is in progress or the next one is not yet due."""
        self.finish(0.0)
        entries = _started_entries(ledger)
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
            self._failures.failed(_reason(error))
            return
        self._accepted = self._sending
        self._failures.delivered()

    def is_behind(self, ledger: AlertLedger) -> bool:
        """Return whether the current state of any alert is not yet accepted."""
        return not self._accepted.issuperset(map(_state, _started_entries(ledger)))

    def _pause_s(self, ledger: AlertLedger) -> float:
        if self._failures.count:
            return min(RETRY_S, self._interval_s)
        return 0.0 if self.is_behind(ledger) else self._interval_s


def _started_entries(ledger: AlertLedger) -> list[LedgerEntry]:
    return [entry for entry in ledger.entries if entry.track.state != "pending"]


def _status(entry: LedgerEntry) -> Status:
    return "firing" if entry.track.state == "firing" else "resolved"


def _state(entry: LedgerEntry) -> _State:
    return entry.fingerprint, _status(entry), entry.revision


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, DeliveryError) else f"{type(error).__name__}: {error}"


def _send_changes(webhook: Webhook, ledger: AlertLedger, failures: FailureLog) -> None:
    changed = _changes(webhook, ledger)
    if not changed:
        return
    try:
        webhook.send([entry.notice() for entry in changed])
    except Exception as error:  # noqa: BLE001 - a fault of one destination must not cost the others
        failures.failed(_reason(error))
        return
    failures.delivered()


def _changes(webhook: Webhook, ledger: AlertLedger) -> list[LedgerEntry]:
    return [entry for entry in ledger.entries if _is_change(entry, webhook)]


def _is_change(entry: LedgerEntry, webhook: Webhook) -> bool:
    """Return whether the state of an alert must be sent to the webhook."""
    # An incident about a crashed run stays open until a person closes it: a timeout repairs nothing.
    only_forgotten = entry.name == CRASHED.alertname and bool(entry.ended_because)
    return entry.track.state != "pending" and not only_forgotten and webhook.owes(entry.notice())
