"""The sender: one thread per target, so that a slow receiver holds up no other, and one process per store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rankscope.alerts.deliver.courier import AppriseCourier, Courier, HttpCourier
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.outbox_queue import OutboxQueue
from rankscope.alerts.deliver.retrying import RETRY_FOR_S
from rankscope.alerts.deliver.target import Target
from rankscope.alerts.deliver.target_sender import TargetSender
from rankscope.alerts.store.database import StoreError
from rankscope.runs.decoders import make_decoders

LOOK_S: Final = 1.0
"""Poll interval for messages of other processes; ``wake`` announces those of this process."""
SHORTEST_S: Final = 0.01
TIDY_S: Final = 60.0


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
        report: Callable[[str], None],
        courier: Callable[[Target], Courier] = courier_for,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._outbox = outbox
        self._queue = OutboxQueue(outbox)
        self._report = report
        self._stopping = threading.Event()
        more = {} if chance is None else {"chance": chance}
        self._senders = {
            target.name: TargetSender(
                target,
                self._queue,
                courier(target),
                clock=outbox.now_ns,
                report=report,
                stopping=self._stopping.is_set,
                **more,
            )
            for target in targets
        }
        self._wakes = {name: threading.Event() for name in self._senders}
        self._threads: list[threading.Thread] = []
        self._locking = threading.Lock()
        self._said: dict[str, str] = {}
        self._tidied_s: float | None = None

    def start(self) -> None:
        """Start one thread per target."""
        make_decoders()
        for name in self._senders:
            thread = threading.Thread(target=self._run, args=(name,), name=f"rankscope-send-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop, waiting up to ``timeout_s`` for attempts in progress. Undelivered messages stay in the outbox."""
        self._stopping.set()
        self.wake()
        patience = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, patience - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._outbox.store.release()

    def wake(self) -> None:
        """Announce that messages were put."""
        for wake in self._wakes.values():
            wake.set()

    def run_due(self) -> int:
        """Send everything that is due by the outbox's clock; returns the number of attempts. Raises ``StoreError``."""
        if not self._is_ours():
            return 0
        total = 0
        for sender in self._senders.values():
            while attempts := sender.run_due():
                total += attempts
        self._tidy()
        return total

    def next_ns(self) -> int | None:
        """Return when the next message is due by the outbox's clock; ``None`` if none waits. Raises ``StoreError``."""
        return min((due for sender in self._senders.values() if (due := sender.next_ns()) is not None), default=None)

    def waiting(self) -> list[str]:
        """Return the labels of targets with waiting messages. Raises ``StoreError``."""
        return [sender.target.label for name, sender in self._senders.items() if sender.busy or self._queue.has_waiting(name)]

    def lost(self) -> list[str]:
        """Return the labels of targets for which messages were given up since the start."""
        return [sender.target.label for sender in self._senders.values() if sender.lost]

    def drain(self, timeout_s: float) -> list[str]:
        """Wait up to ``timeout_s`` until no message waits. Returns the labels of targets with waiting messages."""
        patience = time.monotonic() + timeout_s
        self.wake()
        while True:
            try:
                waiting = self.waiting()
            except StoreError as error:
                self._complain(str(error))
                waiting = [sender.target.label for sender in self._senders.values()]
            if not waiting or time.monotonic() >= patience:
                return waiting
            time.sleep(0.02)

    def _run(self, name: str) -> None:
        sender, wake = self._senders[name], self._wakes[name]
        while not self._stopping.is_set():
            wake.clear()
            pause_s = LOOK_S
            try:
                if self._is_ours():
                    if sender.run_due():
                        pause_s = 0.0
                    else:
                        due = sender.next_ns()
                        if due is not None:
                            pause_s = min(LOOK_S, max(SHORTEST_S, (due - self._outbox.now_ns()) / 1e9))
                    self._tidy()
                    self._said.pop(name, None)
            except StoreError as error:
                self._complain(str(error), name)
            except Exception as error:  # noqa: BLE001 - a thread that ends would leave its target without alerts
                self._complain(f"{sender.target.label}: sending failed: {type(error).__name__}: {error}", name)
            if pause_s:
                wake.wait(pause_s)

    def _is_ours(self) -> bool:
        """Acquire the store for sending, unless another process holds it; returns ``True`` on success."""
        with self._locking:
            if not self._outbox.store.hold():
                self._complain(f"{self._outbox.store.name}: another process sends from it; this one stands by")
                return False
            self._begin_once()
            return True

    def _begin_once(self) -> None:
        if self._tidied_s is None:
            self._queue.enable_all()
            self._tidied_s = 0.0

    def _tidy(self) -> None:
        """Every ``TIDY_S`` seconds: prune, and give up old messages to targets that are no longer configured."""
        now_s = self._outbox.now_ns() / 1e9
        with self._locking:
            if self._tidied_s is not None and 0 < now_s - self._tidied_s < TIDY_S:
                return
            self._tidied_s = now_s
        self._queue.prune()
        before_ns = self._outbox.now_ns() - int(RETRY_FOR_S * 1e9)
        for target, count in self._queue.waiting().items():
            if target not in self._senders:
                self._complain(f"{count} messages wait for {target}, which is not configured{self._queue.see}", target)
                self._queue.expire(target, entered_before_ns=before_ns, reason="no such target is configured")

    def _complain(self, line: str, about: str = "") -> None:
        """Report a line once, until the line for this target changes or the target works again."""
        if self._said.get(about) != line:
            self._said[about] = line
            # Several targets may fail for one reason, such as a full disk.
            if list(self._said.values()).count(line) == 1:
                self._report(line)
