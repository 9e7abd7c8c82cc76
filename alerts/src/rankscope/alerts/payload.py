"""The webhook payload as Alertmanager sends it (version "4"): written by the delivery, read by the receiver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from rankscope.alerts.alert import Alert, fingerprint, rfc3339

PAYLOAD_VERSION: Final = "4"
GROUP_LABELS: Final = ("alertname", "run_id")
"""Alerts with equal values of these labels are sent in one payload."""
MAX_ALERTS: Final = 16
"""Most alerts in one payload, small enough for most receivers."""
NOT_ENDED: Final = "0001-01-01T00:00:00Z"

_Status = Literal["firing", "resolved"]


class PayloadAlert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One alert of a payload: an alert at a moment, firing or resolved."""

    status: _Status
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    starts_at: str
    ends_at: str = NOT_ENDED
    generator_url: str = msgspec.field(name="generatorURL", default="")
    fingerprint: str = ""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """An alert to deliver."""

    alert: PayloadAlert
    revision: str = ""
    """Not empty for a further message about a state that was already delivered, such as a reminder."""


class Payload(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One notification. Fields of newer Alertmanagers are ignored."""

    version: Literal["4"]
    group_key: str
    truncated_alerts: int = 0
    status: _Status
    receiver: str
    group_labels: dict[str, str] = {}
    common_labels: dict[str, str] = {}
    common_annotations: dict[str, str] = {}
    external_url: str = msgspec.field(name="externalURL", default="")
    alerts: list[PayloadAlert]


def group_key(labels: dict[str, str]) -> str:
    """Key of an alert's group, which never changes: ``{}:{alertname="…", run_id="…"}``."""
    pairs = ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in sorted(_group_labels(labels).items()))
    return f"{{}}:{{{pairs}}}"


def build_payload(alerts: list[PayloadAlert], *, key: str, external_url: str = "") -> Payload:
    """Build one payload from the alerts of one group, firing alerts first. ``alerts`` must not be empty."""
    alerts = sorted(alerts, key=lambda alert: alert.status)
    return Payload(
        version=PAYLOAD_VERSION,
        group_key=key,
        status=alerts[0].status,
        receiver="rankscope",
        group_labels=_group_labels(alerts[0].labels),
        common_labels=common([alert.labels for alert in alerts]),
        common_annotations=common([alert.annotations for alert in alerts]),
        external_url=external_url,
        alerts=alerts,
    )


def payload_alert(alert: Alert, *, starts_at_unix_ns: int, ends_at_unix_ns: int | None = None) -> PayloadAlert:
    """Convert an alert, which fires while ``ends_at_unix_ns`` is ``None``."""
    return PayloadAlert(
        status="firing" if ends_at_unix_ns is None else "resolved",
        labels=alert.labels,
        annotations=alert.annotations,
        starts_at=rfc3339(starts_at_unix_ns),
        ends_at=NOT_ENDED if ends_at_unix_ns is None else rfc3339(ends_at_unix_ns),
        generator_url=alert.generator_url,
        fingerprint=fingerprint(alert.labels),
    )


def _group_labels(labels: dict[str, str]) -> dict[str, str]:
    return {name: labels[name] for name in GROUP_LABELS if name in labels}


def common(mappings: Sequence[dict[str, str]]) -> dict[str, str]:
    """Entries that all mappings have in common. ``mappings`` must not be empty."""
    first, *others = mappings
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
