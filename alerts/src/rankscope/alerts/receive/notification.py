"""Webhook payloads of Alertmanager (version "4") and of Grafana's alerting (version "1"), converted to one type."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from rankscope.alerts.alert import fingerprint, is_rfc3339
from rankscope.alerts.payload import NOT_ENDED, PayloadAlert
from rankscope.base.text import shortened

MAX_ALERTS: Final = 2_000
"""Alerts that are processed per delivery. The rest is counted with those that the sender left out."""
_Status = Literal["firing", "resolved"]


class NotUnderstoodError(ValueError):
    """A body is not a supported payload; the message gives the reason in one line."""


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery."""

    source: Literal["alertmanager", "grafana"]
    truncated_alerts: int = 0
    """Alerts that the sender or this receiver left out"""
    alerts: list[PayloadAlert] = []


class _SentAlert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Alert of either sender: Grafana's has all fields of Alertmanager's, and a few more."""

    status: _Status
    labels: dict[str, str]
    annotations: dict[str, str] | None = None
    starts_at: str = ""
    ends_at: str = NOT_ENDED
    generator_url: str | None = msgspec.field(name="generatorURL", default=None)
    value_string: str | None = None
    silence_url: str | None = msgspec.field(name="silenceURL", default=None)
    dashboard_url: str | None = msgspec.field(name="dashboardURL", default=None)
    panel_url: str | None = msgspec.field(name="panelURL", default=None)


class _SentPayload(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    version: Literal["4", "1"]
    status: _Status
    receiver: str = ""
    group_key: str = ""
    external_url: str | None = msgspec.field(name="externalURL", default=None)
    # A number of a thousand digits would be no float, which metrics are.
    truncated_alerts: Annotated[int, msgspec.Meta(le=10**9)] | None = 0
    alerts: list[_SentAlert]


def read_notification(body: bytes) -> Notification:
    """Decode a body. Raises ``NotUnderstoodError``."""
    try:
        # Check all of it for UTF-8: msgspec does not check skipped fields, and the stored body is shown again.
        read = msgspec.json.decode(body.decode(), type=_SentPayload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotUnderstoodError(f"not a webhook payload of Alertmanager (version 4) or Grafana (version 1): {error}") from error
    for number, alert in enumerate(read.alerts[:MAX_ALERTS]):
        for name, moment in (("startsAt", alert.starts_at), ("endsAt", alert.ends_at)):
            if moment and not is_rfc3339(moment):
                raise NotUnderstoodError(
                    f"not a webhook payload: alerts[{number}].{name} is not a time: {shortened(moment, 40)!r}"
                )
    left_out = max(0, len(read.alerts) - MAX_ALERTS)
    return Notification(
        source="alertmanager" if read.version == "4" else "grafana",
        truncated_alerts=max(0, read.truncated_alerts or 0) + left_out,
        alerts=[_received_alert(alert) for alert in read.alerts[:MAX_ALERTS]],
    )


def _received_alert(alert: _SentAlert) -> PayloadAlert:
    """Convert an alert. Its fingerprint is computed here, because that of the sender is not trusted."""
    extra = {
        "values": alert.value_string,
        "silence_url": alert.silence_url,
        "dashboard_url": alert.dashboard_url,
        "panel_url": alert.panel_url,
    }
    return PayloadAlert(
        status=alert.status,
        labels=alert.labels,
        annotations={name: text for name, text in extra.items() if text} | (alert.annotations or {}),
        starts_at=alert.starts_at,
        ends_at=alert.ends_at,
        generator_url=alert.generator_url or "",
        fingerprint=fingerprint(alert.labels),
    )
