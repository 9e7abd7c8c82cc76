"""The receiver's worker over a store in memory, for tests of what it forwards."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rankscope.alerts.alert import rfc3339
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.retrying import AttemptResult
from rankscope.alerts.deliver.sender import Sender
from rankscope.alerts.deliver.targets import webhook_target
from rankscope.alerts.receive.config import ActionRule
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.forwarding import Forwarding
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.receive.worker import InboxWorker, WorkerSettings
from rankscope.alerts.store.database import AlertStore

S = 10**9
STRAGGLER = {"alertname": "TrainingStraggler", "severity": "warning", "run_id": "r1", "run": "llama", "rank": "1"}


class WorkerWorld:
    """A worker over a store in memory, with a clock that the test sets."""

    def __init__(self, *rules: ActionRule) -> None:
        store = AlertStore(None)
        self.inbox = Inbox(store)
        self.delivered: list[bytes] = []
        outbox = Outbox(store)
        chat = webhook_target("http://127.0.0.1:1/")
        self.sender = Sender(outbox, [chat], report=pytest.fail, courier=lambda _: self)
        self.now_s = 1_000_000.0
        self.worker = InboxWorker(
            self.inbox,
            settings=WorkerSettings(repeat_after_s=4 * 3600, rules=rules),
            counters=Counters(),
            report=pytest.fail,
            forwarding=Forwarding(outbox, targets={chat.name: 16}, routes=()),
            clock=lambda: int(self.now_s * S),
        )

    def alert(self, status: str = "firing", *, starts: int = 900_000, **labels: str) -> dict[str, Any]:
        return {"status": status, "labels": STRAGGLER | labels, "startsAt": rfc3339(starts * S)}

    def receive(self, *alerts: dict[str, Any], after_s: float = 0) -> list[tuple[str, dict[str, str]]]:
        """Return status and annotations of the alerts that ``chat`` gets after a delivery."""
        self.now_s += after_s
        body = msgspec.json.encode({"version": "4", "status": "firing", "alerts": alerts})
        assert self.inbox.accept(body, key=None, now_unix_ns=int(self.now_s * S))
        return self.wait(0)

    def wait(self, after_s: float) -> list[tuple[str, dict[str, str]]]:
        """Return what ``chat`` gets within ``after_s`` seconds, without another delivery."""
        self.now_s += after_s
        while self.worker.run_due():
            pass
        self.delivered.clear()
        self.sender.run_due()
        payloads = [msgspec.json.decode(body) for body in self.delivered]
        return [(alert["status"], alert["annotations"]) for payload in payloads for alert in payload["alerts"]]

    def attempt(self, message_id: str, payload: bytes) -> AttemptResult:
        """Record the body of a message, as a courier that always delivers."""
        self.delivered.append(payload)
        return AttemptResult(kind="delivered")
