"""Straight to a webhook, without an Alertmanager in between: told once when an alert fires and once when it ends."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import msgspec

from rankscope.alerts.alert import Notice
from rankscope.alerts.payload import build_payload
from rankscope.alerts.post import post_json, receiver_key
from rankscope.alerts.redacted import redact


class Webhook:
    """One webhook at ``url``; ``external_url`` is the dashboard, if there is one."""

    def __init__(self, url: str, client: httpx.Client, *, external_url: str = "") -> None:
        self.key = receiver_key("webhook", url)
        self.name = f"webhook {redact(url)}"
        self.resend_after_s: float | None = None
        self._client = client
        self._external_url = external_url
        self._url = url

    def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
        """Post the notices of one group as one payload. Raises ``DeliveryError``."""
        del now_unix_ns
        post_json(self._client, self._url, msgspec.json.encode(build_payload(notices, external_url=self._external_url)))
