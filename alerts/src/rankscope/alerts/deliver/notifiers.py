"""The two kinds of receivers: Alertmanager's API v2, and webhooks by way of the outbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rankscope.alerts.alert import rfc3339
from rankscope.alerts.deliver.endpoint import Endpoint, connected
from rankscope.alerts.deliver.message import messages_about, state_of
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.post import JSON, DeliveryError, post_json, redact
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.payload import Notice, PayloadAlert
from rankscope.alerts.store.database import StoreError

MOST_ALERTS: Final = 256
"""Maximum number of alerts in one request."""


class Alertmanager:
    """One Alertmanager at the address of ``endpoint`` (``http://host:9093``; the API's path is added).

    A firing alert that is not posted again ends after ``valid_s``; ``None`` leaves it to Alertmanager's ``resolve_timeout``.
    """

    def __init__(self, endpoint: Endpoint, *, valid_s: float | None) -> None:
        url = endpoint.url
        self.name = f"Alertmanager {url.where if url.value is None else redact(url.value)}"
        self._valid_s = valid_s
        self._endpoint = endpoint

    def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
        """Post firing and resolved alerts. Repeated posts are safe. Raises ``DeliveryError``."""
        with connected(self._endpoint) as connection:
            url = connection.url.rstrip("/") + "/api/v2/alerts"
            headers = {**JSON, **connection.headers}
            for begin in range(0, len(notices), MOST_ALERTS):
                alerts = [self._post_alert(notice.alert, now_unix_ns) for notice in notices[begin : begin + MOST_ALERTS]]
                body = msgspec.json.encode(alerts)
                post_json(connection.client, url, body, headers=headers, attempt_s=self._endpoint.timeout_s)

    def _post_alert(self, alert: PayloadAlert, now_unix_ns: int) -> dict[str, object]:
        posted: dict[str, object] = {"labels": alert.labels, "annotations": alert.annotations, "startsAt": alert.starts_at}
        if alert.generator_url:
            posted["generatorURL"] = alert.generator_url
        if alert.status == "resolved":
            posted["endsAt"] = alert.ends_at
        elif self._valid_s is not None:
            posted["endsAt"] = rfc3339(now_unix_ns + int(self._valid_s * 1e9))
        return posted


class Webhook:
    """One webhook target. ``external_url``: the dashboard, if any. ``wake`` is called after messages were put."""

    def __init__(self, target: Target, outbox: Outbox, *, wake: Callable[[], None], external_url: str = "") -> None:
        self.name = target.label
        self._target = target
        self._outbox = outbox
        self._wake = wake
        self._external_url = external_url

    def owes(self, notice: Notice) -> bool:
        """Return whether a notice has still to be put into the outbox."""
        try:
            return self._outbox.owes(self._target.name, state_of(notice))
        except StoreError:
            return True  # ``send`` reports why

    def send(self, notices: Sequence[Notice]) -> None:
        """Put messages for the target into the outbox; the sender delivers them. Raises ``DeliveryError``."""
        target = self._target
        messages = messages_about(target.name, notices, external_url=self._external_url, most_alerts=target.most_alerts)
        try:
            self._outbox.put(messages)
        except StoreError as error:
            raise DeliveryError(str(error)) from error
        self._wake()
