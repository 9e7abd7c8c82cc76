"""Straight to a webhook, without an Alertmanager in between: told once when an alert fires and once when it ends.

What is to be told goes to the outbox; from there the sender brings it, now or when the webhook can be had again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rankscope.alerts.alert import Notice
from rankscope.alerts.message import messages_about
from rankscope.alerts.outbox import Outbox
from rankscope.alerts.outbox_file import OutboxError
from rankscope.alerts.post import DeliveryError
from rankscope.alerts.target import Target


class Webhook:
    """One target; ``external_url`` is the dashboard, if there is one. ``wake`` is called when something was put for it."""

    def __init__(self, target: Target, outbox: Outbox, *, wake: Callable[[], None], external_url: str = "") -> None:
        self.key = target.key
        self.name = target.label
        self.resend_after_s: float | None = None
        self._target = target
        self._outbox = outbox
        self._wake = wake
        self._external_url = external_url

    def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
        """Put what it is to be told into the outbox: then it is on the disk. Raises ``DeliveryError``."""
        del now_unix_ns
        target = self._target
        messages = messages_about(target.name, notices, external_url=self._external_url, most_alerts=target.most_alerts)
        try:
            self._outbox.put(messages)
        except OutboxError as error:
            raise DeliveryError(str(error)) from error
        self._wake()
