"""The sender: one thread per target, so that a slow receiver delays no other, and one process per store.

A target's messages are sent in order, no faster than its rate, retried after failures, and given up in the end. While a target
fails as a whole, single messages probe it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import msgspec

from rankscope.alerts.deliver.apprise_courier import AppriseCourier
from rankscope.alerts.deliver.failure_log import FailureLog
from rankscope.alerts.deliver.http_courier import HttpCourier
from rankscope.alerts.deliver.outbox import ClaimedMessage, Outbox
from rankscope.alerts.deliver.retrying import RETRY_FOR_S, AttemptResult, pause_s
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.store.database import StoreError
from rankscope.base.problems import ProblemLog
from rankscope.base.text import format_duration
from rankscope.runs.decoders import make_decoders

POLL_S: Final = 1.0
"""Poll interval for messages of other processes; ``wake`` announces those of this process."""
SHORTEST_S: Final = 0.01
TIDY_S: Final = 60.0
STOP_S: Final = 10.0
"""Time for attempts in progress at the end: a message whose answer is not awaited is sent again after the next start."""
REPLACE_S: Final = 90.0
"""The same before another sender of this process takes over: longer than any attempt may take."""
TOLERATED: Final = 3
"""After this many failures in a row, of any messages, the target counts as failing."""


class Courier(Protocol):
    """Transport that delivers messages to one target."""

    def attempt(self, message_id: str, payload: bytes) -> AttemptResult:
        """Attempt delivery once. Failures of the receiver, the network or a secret's file are returned, never raised."""


class TargetSender:
    """Sender of one target's messages. ``report`` takes one line when something changes; ``chance`` is the jitter of pauses."""

    def __init__(
        self, target: Target, outbox: Outbox, courier: Courier, *, report: Callable[[str], object], chance: Callable[[], float]
    ) -> None:
        self.target = target
        self.lost = 0
        """Messages given up since the start."""
        self.busy = False
        self._outbox = outbox
        self._courier = courier
        self._log = FailureLog(target.label, report)
        self._chance = chance
        self._full_ns = 0
        """When the allowance of the target's rate is full again."""
        self._pauses = 0
        self._not_before_ns = 0
        self._reason = ""
        self._unrecorded: Callable[[], None] | None = None
        """Recording of the last attempt's result, with the next claim or by ``flush``; kept while the disk is full."""

    def run_due(self) -> bool:
        """Send one message if one is due; return whether it was attempted. Raises ``StoreError``."""
        self.busy = True
        try:
            return self._run_due()
        finally:
            self.busy = False

    def next_ns(self) -> int | None:
        """Return when there is work again; ``None`` if no message waits. Raises ``StoreError``."""
        due = self._outbox.next_due_ns(self.target.name)
        return None if due is None else max(due, self._not_before_ns, self._allowed_ns())

    def _allowed_ns(self) -> int:
        """Return when the target's rate allows the next message: ``count`` in a burst, then one every ``per_s / count``."""
        rate = self.target.rate
        return 0 if rate is None else self._full_ns - int((rate.per_s - rate.per_s / rate.count) * 1e9)

    def flush(self) -> None:
        """Record the result of the last attempt. Raises ``StoreError``."""
        if self._unrecorded is not None:
            self._unrecorded()
            self._unrecorded = None

    def _run_due(self) -> bool:
        now = self._outbox.now_ns()
        if (reason := self._outbox.disabled(self.target.name)) is not None:
            self.flush()
            self._expire(now + 1, reason)
            return False
        if now < max(self._not_before_ns, self._allowed_ns()):
            self.flush()
            return False
        message = self._next_message()
        if message is not None:
            if (rate := self.target.rate) is not None:
                self._full_ns = max(now, self._full_ns) + int(rate.per_s / rate.count * 1e9)
            self._process(message, self._attempt(message))
        if self._pauses:
            self.flush()
            self._expire(self._outbox.now_ns() - int(self.target.retry_for_s * 1e9), self._too_long())
        return message is not None

    def _next_message(self) -> ClaimedMessage | None:
        """Claim the next message; one write to the disk also records the result of the last one."""
        claim = partial(self._outbox.claim, self.target.name, probe=self._pauses > 0)
        if self._unrecorded is None:
            return claim()
        with self._outbox.store.transaction():
            self._unrecorded()
            message = claim()
        self._unrecorded = None
        return message

    def _attempt(self, message: ClaimedMessage) -> AttemptResult:
        try:
            return self._courier.attempt(message.id, message.body)
        except msgspec.DecodeError:
            return AttemptResult(kind="dead", reason="cannot be sent: the payload is not readable")
        except Exception as error:  # noqa: BLE001 - a bug in one message must not stop the others
            # This machine may be short of a resource for a while.
            return AttemptResult(kind="retry", reason=f"cannot be sent: {type(error).__name__}", received=True)

    def _process(self, message: ClaimedMessage, result: AttemptResult) -> None:
        if result.kind == "retry":
            self._failed(message, result)
            return
        # A target that refuses one message answers, so the others are sent.
        self._pauses, self._not_before_ns = 0, 0
        if result.kind == "delivered":
            self._log.delivered()
            self._unrecorded = partial(self._outbox.record, message, "delivered", received=True)
            return
        self._log.count = 0
        self._give_up(message, result.reason, received=result.received)
        if result.kind == "gone":
            self._outbox.disable(self.target.name, result.reason)

    def _failed(self, message: ClaimedMessage, result: AttemptResult) -> None:
        now = self._outbox.now_ns()
        self._reason = result.reason
        self._log.count += 1
        if result.throttle or self._pauses or self._log.count >= TOLERATED:
            self._pauses += 1
            self._not_before_ns = now + self._wait_ns(self._pauses, result)
        if now - message.queued_ns > self.target.retry_for_s * 1e9:
            self._give_up(message, self._too_long(), received=result.received)
            return
        self._unrecorded = partial(
            self._outbox.record,
            message,
            "waiting",
            reason=result.reason,
            received=result.received,
            next_attempt_ns=now + self._wait_ns(message.attempts, result),
        )
        self._log.report(f"not delivered so far: {result.reason}")

    def _give_up(self, message: ClaimedMessage, reason: str, *, received: bool) -> None:
        self._unrecorded = partial(self._outbox.record, message, "dead", reason=reason, received=received)
        self._count_lost(1, reason)

    def _expire(self, queued_before_ns: int, reason: str) -> None:
        if given_up := self._outbox.expire(self.target.name, queued_before_ns=queued_before_ns, reason=reason):
            self._count_lost(given_up, reason)

    def _count_lost(self, count: int, reason: str) -> None:
        self.lost += count
        see = self._outbox.store.see
        self._log.report(f"not delivered: {reason}" + (f"; kept{see}" if see else ""))

    def _too_long(self) -> str:
        return f"not accepted within {format_duration(self.target.retry_for_s * 1e6)}: {self._reason}"

    def _wait_ns(self, failures: int, result: AttemptResult) -> int:
        return int(max(pause_s(failures, chance=self._chance()), result.wait_s or 0.0) * 1e9)


def courier_for(target: Target) -> Courier:
    """Return the courier for a target."""
    return AppriseCourier(target) if target.template == "apprise" else HttpCourier(target)


class Sender:
    """Sender of an outbox's messages to ``targets``. ``start``/``stop`` use threads; ``run_due`` runs once in the caller's.

    While another process holds the store, this one stands by. ``report`` takes one line when something changes.
    """

    def __init__(
        self,
        outbox: Outbox,
        targets: Sequence[Target],
        *,
        report: Callable[[str], object],
        courier: Callable[[Target], Courier] = courier_for,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._outbox = outbox
        self._stopping = threading.Event()
        self._senders = {
            target.name: TargetSender(target, outbox, courier(target), report=report, chance=chance) for target in targets
        }
        self._wakes = {name: threading.Event() for name in self._senders}
        self._threads: list[threading.Thread] = []
        self._locking = threading.Lock()
        self._problems = ProblemLog(report)
        """By target; that of the store has no name."""
        self._tidied_s: float | None = None

    def start(self) -> None:
        """Start one thread per target."""
        make_decoders()
        for name in self._senders:
            thread = threading.Thread(target=self._run, args=(name,), name=f"rankscope-send-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop, waiting up to ``timeout_s`` for attempts in progress. Undelivered messages stay in the outbox.

        The store stays locked until it is closed.
        """
        self._stopping.set()
        self.wake()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def wake(self) -> None:
        """Announce that messages were put."""
        for wake in self._wakes.values():
            wake.set()

    def run_due(self) -> int:
        """Send everything that is due by the outbox's clock; returns the number of attempts. Raises ``StoreError``."""
        if not self._acquire():
            return 0
        attempts = 0
        for sender in self._senders.values():
            while sender.run_due():
                attempts += 1
        self._tidy()
        return attempts

    def waiting(self) -> list[str]:
        """Return the labels of targets with waiting messages. Raises ``StoreError``."""
        return [
            sender.target.label
            for name, sender in self._senders.items()
            if sender.busy or self._outbox.next_due_ns(name) is not None
        ]

    def lost(self) -> list[str]:
        """Return the labels of targets for which messages were given up since the start."""
        return [sender.target.label for sender in self._senders.values() if sender.lost]

    def drain(self, timeout_s: float) -> list[str]:
        """Wait up to ``timeout_s`` until no message waits. Returns the labels of targets with waiting messages."""
        deadline = time.monotonic() + timeout_s
        self.wake()
        while True:
            try:
                waiting = self.waiting()
            except StoreError as error:
                self._problems.report(str(error))
                waiting = [sender.target.label for sender in self._senders.values()]
            if not waiting or time.monotonic() >= deadline:
                return waiting
            time.sleep(0.02)

    def _run(self, name: str) -> None:
        sender, wake = self._senders[name], self._wakes[name]
        while not self._stopping.is_set():
            wake.clear()
            wait_s = POLL_S
            try:
                if self._acquire():
                    if sender.run_due():
                        wait_s = 0.0
                    elif (due := sender.next_ns()) is not None:
                        wait_s = min(POLL_S, max(SHORTEST_S, (due - self._outbox.now_ns()) / 1e9))
                    self._tidy()
                    self._problems.report(None, name)
            except StoreError as error:
                self._problems.report(str(error), name)
            except Exception as error:  # noqa: BLE001 - a thread that ends would leave its target without alerts
                self._problems.report(f"{sender.target.label}: sending failed: {type(error).__name__}: {error}", name)
            if wait_s:
                wake.wait(wait_s)
        with suppress(StoreError):  # the message stays in the outbox
            sender.flush()

    def _acquire(self) -> bool:
        """Lock the store for sending; return ``False`` while another process holds it."""
        with self._locking:
            if not self._outbox.store.hold():
                self._problems.report(f"{self._outbox.store.name}: another process sends from it; this one stands by")
                return False
            if self._tidied_s is None:
                self._outbox.enable_all()
                self._tidied_s = 0.0
            return True

    def _tidy(self) -> None:
        """Every ``TIDY_S`` seconds: prune, and give up old messages to targets that are no longer configured."""
        now_ns = self._outbox.now_ns()
        with self._locking:
            if self._tidied_s is not None and 0 < now_ns / 1e9 - self._tidied_s < TIDY_S:
                return
            self._tidied_s = now_ns / 1e9
        self._outbox.prune()
        before_ns = now_ns - int(RETRY_FOR_S * 1e9)
        for (target, state), count in self._outbox.counts().items():
            if state == "waiting" and target not in self._senders:
                self._problems.report(
                    f"{count} messages wait for {target}, which is not configured{self._outbox.store.see}", target
                )
                self._outbox.expire(target, queued_before_ns=before_ns, reason="no such target is configured")
