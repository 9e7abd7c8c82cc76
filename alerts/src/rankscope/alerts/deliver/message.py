"""A message of the outbox: alerts of one group for one target, in a payload that is small enough for every receiver.

The body is always Alertmanager's webhook payload. Templates convert it for Slack, Teams and others at each attempt, so that
no secret of a target is stored.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final, Literal

import msgspec

from rankscope.alerts.payload import MAX_ALERTS, Notice, Payload, PayloadAlert, build_payload, common, group_key
from rankscope.base.text import shortened

MAX_PAYLOAD_BYTES: Final = 18_000
"""Some receivers refuse 20 kB, and a template adds text."""
_CAPS: Final = ((4000, None), (1500, None), (500, None), (150, None), (150, 32), (40, 32), (40, 8))
"""Truncation steps: (characters per text, number of texts). A step with ``None`` truncates annotations only."""
_LONGEST_URL: Final = 1000
_LONGEST_NAME: Final = 200
_CUT: Final = "…"


MessageState = Literal["waiting", "delivered", "dead", "overtaken"]


class AlertState(msgspec.Struct, frozen=True, kw_only=True):
    """One state of one alert, firing or resolved. A target receives each state once."""

    fingerprint: str
    starts_at: str
    """As in the payload; distinguishes one firing of an alert from the next."""
    status: Literal["firing", "resolved"]
    revision: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery to one target."""

    id: str
    """``webhook-id``; the same for every ``put`` and every attempt."""
    target: str
    """Name of the target."""
    group: str
    """Messages of one group are delivered in the order in which they were put."""
    body: bytes
    """A ``Payload`` as JSON."""
    alerts: tuple[AlertState, ...]


class MessageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One message in a listing."""

    id: str
    target: str
    group: str
    state: MessageState
    alerts: int
    attempts: int
    created_unix_ns: int
    finished_unix_ns: int | None = None
    next_attempt_s: float | None = None
    """Seconds until the next attempt; only for a waiting message."""
    last_error: str = ""
    about: str = ""
    """State, severity, name and place of the first alert, and the number of further alerts."""
    labels: dict[str, str] = {}
    """Labels common to all alerts."""
    starts_at: str = ""
    """Start of the earliest alert, as in the payload."""


def messages_about(
    target: str, notices: Sequence[Notice], *, external_url: str = "", most_alerts: int = MAX_ALERTS
) -> list[Message]:
    """Build messages for a target from alerts of any number of groups, none of them too large. No alert is left out."""
    groups: dict[tuple[str, str], list[PayloadAlert]] = defaultdict(list)
    for notice in notices:
        groups[group_key(notice.alert.labels), notice.revision].append(notice.alert)
    return [
        _message(target, part, revision)
        for (key, revision), alerts in groups.items()
        for part in split(build_payload(alerts, key=key, external_url=external_url), most_alerts=most_alerts)
    ]


def split(payload: Payload, *, most_alerts: int = MAX_ALERTS) -> Iterator[Payload]:
    """Split a payload into payloads of at most ``most_alerts`` alerts and ``MAX_PAYLOAD_BYTES`` bytes."""
    payload = _small_head(payload)
    part: list[PayloadAlert] = []
    for alert in payload.alerts:
        if part and (len(part) >= most_alerts or too_large(with_alerts(payload, [*part, alert]))):
            yield with_alerts(payload, part)
            part = []
        part.append(_small_enough(payload, alert) if not part else alert)
    if part:
        yield with_alerts(payload, part)


def with_alerts(payload: Payload, alerts: list[PayloadAlert]) -> Payload:
    """Replace the alerts of a payload by ``alerts``, at least one, and recompute the status and the common labels."""
    return msgspec.structs.replace(
        payload,
        alerts=alerts,
        status="firing" if any(alert.status == "firing" for alert in alerts) else "resolved",
        common_labels=common([alert.labels for alert in alerts]),
        common_annotations=common([alert.annotations for alert in alerts]),
    )


def state_of(notice: Notice) -> AlertState:
    """Return the state of an alert that a notice is about."""
    alert = notice.alert
    return AlertState(fingerprint=alert.fingerprint, starts_at=alert.starts_at, status=alert.status, revision=notice.revision)


def without(body: bytes, states: Collection[AlertState]) -> bytes:
    """Remove alerts from an encoded payload. At least one alert must remain."""
    payload = msgspec.json.decode(body, type=Payload)
    left_out = {(state.fingerprint, state.starts_at, state.status) for state in states}
    alerts = [alert for alert in payload.alerts if (alert.fingerprint, alert.starts_at, alert.status) not in left_out]
    return msgspec.json.encode(with_alerts(payload, alerts))


def too_large(payload: Payload) -> bool:
    """Check whether a payload exceeds ``MAX_PAYLOAD_BYTES``."""
    return len(msgspec.json.encode(payload)) > MAX_PAYLOAD_BYTES


def _message(target: str, payload: Payload, revision: str) -> Message:
    alerts = tuple(state_of(Notice(alert=alert, revision=revision)) for alert in payload.alerts)
    named = sorted(f"{state.fingerprint}\0{state.starts_at}\0{state.status}\0{state.revision}" for state in alerts)
    digest = hashlib.sha256("\1".join([target, *named]).encode(errors="surrogatepass")).hexdigest()
    return Message(
        id=f"msg_{digest[:32]}",
        target=target,
        group=payload.group_key,
        body=msgspec.json.encode(payload),
        alerts=alerts,
    )


def _small_enough(payload: Payload, alert: PayloadAlert) -> PayloadAlert:
    """Truncate an alert's annotations, then its labels and their number, until a payload can hold the alert."""
    for cap, most in _CAPS:
        if not too_large(with_alerts(payload, [alert])):
            break
        labels = alert.labels if most is None else dict(_cut_all(alert.labels, cap)[:most])
        alert = msgspec.structs.replace(
            alert,
            labels=labels,
            annotations=dict(_cut_all(alert.annotations, cap)[:most]),
            generator_url=alert.generator_url if len(alert.generator_url) <= _LONGEST_URL else "",
            fingerprint=shortened(alert.fingerprint, _LONGEST_NAME),
            starts_at=shortened(alert.starts_at, _LONGEST_NAME),
            ends_at=shortened(alert.ends_at, _LONGEST_NAME),
        )
    return alert


def _small_head(payload: Payload) -> Payload:
    """Truncate the fields that belong to no alert. A long group key gets a digest, so that it stays unique."""
    group = payload.group_key
    if len(group) > _LONGEST_URL:
        group = f"{group[:200]}{_CUT}{hashlib.sha256(group.encode(errors='surrogatepass')).hexdigest()}"
    return msgspec.structs.replace(
        payload,
        group_key=group,
        receiver=shortened(payload.receiver, _LONGEST_NAME),
        group_labels=dict(_cut_all(payload.group_labels, _LONGEST_NAME)[:16]),
        external_url=payload.external_url if len(payload.external_url) <= _LONGEST_URL else "",
    )


def _cut_all(texts: dict[str, str], most: int) -> list[tuple[str, str]]:
    return [(shortened(name, most), shortened(text, most)) for name, text in texts.items()]
