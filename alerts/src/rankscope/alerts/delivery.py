"""Who still has to be told what: brings the ledger's alerts to every receiver, and remembers what each accepted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rankscope.alerts.alert import Notice
from rankscope.alerts.ledger import Entry, Ledger
from rankscope.alerts.payload import group_key
from rankscope.alerts.post import DeliveryError

LONGEST_PAUSE_S: Final = 120.0
"""A receiver that keeps failing is left alone for at most this long."""


class Receiver(Protocol):
    """Where alerts go."""

    key: str
    """Stable name for the state file."""
    name: str
    """Name for people, free of secrets."""
    resend_after_s: float | None
    """A firing alert is sent again after this long; ``None``: only changes are sent."""

    def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
        """Deliver the notices of one group. Raises ``DeliveryError``."""


class Delivery:
    """Delivers to all receivers; one that fails holds up nobody else and is tried again at a later evaluation.

    A receiver that failed is tried at the next evaluation, then with pauses that start at ``retry_after_s`` and double up to
    two minutes.
    """

    def __init__(self, receivers: Sequence[Receiver], *, retry_after_s: float, report: Callable[[str], None]) -> None:
        self._receivers = receivers
        self._retry_after_s = retry_after_s
        self._report = report
        self._sent_unix_ns: dict[tuple[str, str], int] = {}
        self._failures: dict[str, int] = {}
        self._not_before_unix_ns: dict[str, int] = {}
        self._last_error: dict[str, str] = {}

    def deliver(self, ledger: Ledger, *, now_unix_ns: int) -> None:
        """Send what is due, then drop from the ledger what everybody knows."""
        for receiver in self._receivers:
            if now_unix_ns >= self._not_before_unix_ns.get(receiver.key, 0):
                self._deliver_to(receiver, ledger, now_unix_ns)
        ledger.forget([receiver.key for receiver in self._receivers])
        followed = {entry.fingerprint for entry in ledger.entries}
        self._sent_unix_ns = {sent: when for sent, when in self._sent_unix_ns.items() if sent[1] in followed}

    def undelivered(self, ledger: Ledger) -> list[str]:
        """Names of the receivers that have not accepted something they should know."""
        return [
            receiver.name
            for receiver in self._receivers
            if any(_news(entry, receiver) for entry in ledger.entries if entry.track.state != "pending")
        ]

    def _deliver_to(self, receiver: Receiver, ledger: Ledger, now_unix_ns: int) -> None:
        groups: dict[str, list[Entry]] = defaultdict(list)
        for entry in ledger.entries:
            if entry.track.state == "firing" or (entry.track.state == "resolved" and entry.told.get(receiver.key) == "firing"):
                groups[group_key(entry.alert)].append(entry)
        for entries in groups.values():
            if not any(_news(entry, receiver) or self._stale(entry, receiver, now_unix_ns) for entry in entries):
                continue
            try:
                receiver.send([entry.notice() for entry in entries], now_unix_ns=now_unix_ns)
            except DeliveryError as error:
                self._failed(receiver, str(error), now_unix_ns)
                return
            for entry in entries:
                entry.told[receiver.key] = "firing" if entry.track.state == "firing" else "resolved"
                self._sent_unix_ns[receiver.key, entry.fingerprint] = now_unix_ns
            self._worked(receiver)

    def _stale(self, entry: Entry, receiver: Receiver, now_unix_ns: int) -> bool:
        if receiver.resend_after_s is None or entry.track.state != "firing":
            return False
        # Unknown after a restart: send again, it does no harm.
        sent = self._sent_unix_ns.get((receiver.key, entry.fingerprint), 0)
        return now_unix_ns - sent >= receiver.resend_after_s * 1e9

    def _failed(self, receiver: Receiver, reason: str, now_unix_ns: int) -> None:
        failures = self._failures.get(receiver.key, 0)
        pause_s = min(LONGEST_PAUSE_S, self._retry_after_s * (2 ** min(failures, 16) - 1))
        self._failures[receiver.key] = failures + 1
        self._not_before_unix_ns[receiver.key] = now_unix_ns + int(pause_s * 1e9)
        if self._last_error.get(receiver.key) != reason:
            self._last_error[receiver.key] = reason
            self._report(f"{receiver.name}: not delivered so far: {reason}")

    def _worked(self, receiver: Receiver) -> None:
        if self._last_error.pop(receiver.key, None) is not None:
            self._report(f"{receiver.name}: delivered after {self._failures[receiver.key]} failed evaluations")
        self._failures.pop(receiver.key, None)
        self._not_before_unix_ns.pop(receiver.key, None)


def _news(entry: Entry, receiver: Receiver) -> bool:
    """Whether the receiver does not know the entry's state yet. Of an alert it never heard of, it need not hear the end."""
    told = entry.told.get(receiver.key)
    return told != "firing" if entry.track.state == "firing" else told == "firing"
