"""A sender, its outbox and a receiver, with a clock that the test advances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.webhook_receiver import SimulatedClock, WebhookReceiver

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.sender import Sender
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.store.database import AlertStore

SECRET = "s3cr3t-token"


class SenderWorld:
    """An outbox, a sender and a receiver."""

    def __init__(self, receiver: WebhookReceiver, path: Path | None = None, *, chance: Callable[[], float] = lambda: 1.0) -> None:
        self.clock = SimulatedClock()
        self.receiver = receiver
        self.chance = chance
        self.reports: list[str] = []
        self.box = Outbox(AlertStore(path, clock=self.clock))
        self.target = Target(name="hook", label="hook", url=Secret(value=f"{receiver.url}/{SECRET}"), timeout_s=30.0)
        self.sender = self.restarted()

    def restarted(self, **changes: Any) -> Sender:
        self.target = replace(self.target, **changes)
        self.sender = Sender(self.box, [self.target], report=self.reports.append, chance=self.chance)
        return self.sender

    def after(self, seconds: float) -> int:
        """Advance the clock by ``seconds`` and return the number of attempts that were due."""
        self.clock.advance(seconds)
        return self.sender.run_due()

    def states(self) -> dict[str, int]:
        return {state: count for (_, state), count in self.box.counts().items()}
