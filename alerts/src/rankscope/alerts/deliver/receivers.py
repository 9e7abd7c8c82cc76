"""Alertmanager's API v2: alerts are re-sent while they fire, and end by themselves when nobody re-sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import httpx
import msgspec

from rankscope.alerts.alert import Notice, rfc3339
from rankscope.alerts.deliver.message import messages_about
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.post import DeliveryError, post_json, receiver_key, redact
from rankscope.alerts.deliver.target import Target
from rankscope.alerts.store.database import StoreError

MOST_ALERTS: Final = 256
"""In one request."""


class Alertmanager:
    """One Alertmanager at ``url`` (``http://host:9093``; the API's path is added).

    ``valid_s``: how long a firing alert stays valid without being sent again; ``None`` leaves it to the server's
    ``resolve_timeout``.
    """

    def __init__(self, url: str, client: httpx.Client, *, resend_after_s: float, valid_s: float | None) -> None:
        self.key = receiver_key("alertmanager", url)
        self.name = f"Alertmanager {redact(url)}"
        self.resend_after_s: float | None = resend_after_s
        self._valid_s = valid_s
        self._client = client
        self._url = url.rstrip("/") + "/api/v2/alerts"

    def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
        """Post the notices; when some are refused, all may be sent again. Raises ``DeliveryError``."""
        for begin in range(0, len(notices), MOST_ALERTS):
            alerts = [self._post_alert(notice, now_unix_ns) for notice in notices[begin : begin + MOST_ALERTS]]
            post_json(self._client, self._url, msgspec.json.encode(alerts))

    def _post_alert(self, notice: Notice, now_unix_ns: int) -> dict[str, object]:
        posted: dict[str, object] = {
            "labels": notice.alert.labels,
            "annotations": notice.alert.annotations,
            "startsAt": rfc3339(notice.starts_at_unix_ns),
        }
        if notice.alert.generator_url:
            posted["generatorURL"] = notice.alert.generator_url
        if notice.ends_at_unix_ns is not None:
            posted["endsAt"] = rfc3339(notice.ends_at_unix_ns)
        elif self._valid_s is not None:
            posted["endsAt"] = rfc3339(now_unix_ns + int(self._valid_s * 1e9))
        return posted


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
        except StoreError as error:
            raise DeliveryError(str(error)) from error
        self._wake()
