"""PagerDuty's Events API v2: one event per alert, which its fingerprint joins to the same incident until it is resolved."""

from __future__ import annotations

from typing import Any, Final

from rankscope.alerts.deliver.templates.alert_texts import AlertTexts, alert_texts, fitted
from rankscope.alerts.payload import Payload
from rankscope.base.text import shortened

_SEVERITY: Final = {
    "critical": "critical",
    "page": "critical",
    "error": "error",
    "warning": "warning",
    "info": "info",
    "none": "info",
}
_MOST_OF_SUMMARY: Final = 1024
_MOST_OF_NAME: Final = 255


def pagerduty(payload: bytes, routing_key: str) -> bytes:
    """Build the event for a payload of one alert."""
    return fitted(lambda part, cap: _event(part, cap, routing_key), payload)


def _event(payload: Payload, cap: int, routing_key: str) -> dict[str, Any]:
    original = payload.alerts[0]
    alert = alert_texts(original, cap)
    place = dict(alert.place)
    fields = {
        "summary": shortened(_summary(alert), _MOST_OF_SUMMARY),
        "source": shortened(place.get("host") or place.get("run") or "rankscope", _MOST_OF_NAME),
        "severity": _SEVERITY.get(alert.severity.lower(), "warning"),
        "timestamp": shortened(original.starts_at, 40),
        "component": shortened(", ".join(f"{name} {place[name]}" for name in ("rank", "GPU") if name in place), _MOST_OF_NAME),
        "group": shortened(alert.run_id or place.get("run", ""), _MOST_OF_NAME),
        "class": shortened(alert.name, _MOST_OF_NAME),
        "custom_details": _details(alert),
    }
    return {
        "routing_key": routing_key,
        "event_action": "resolve" if alert.over else "trigger",
        "dedup_key": shortened(original.fingerprint, _MOST_OF_NAME),
        "payload": {name: value for name, value in fields.items() if value},
        "client": "rankscope",
        "links": [{"href": address, "text": words} for words, address in alert.links],
    }


def _summary(alert: AlertTexts) -> str:
    """Build the summary: name and run first, because they identify an incident. Rank and host have separate fields."""
    run = dict(alert.place).get("run", "")
    lead = alert.heading if alert.state != "firing" or not alert.summary else f"{alert.name}{f', run {run}' if run else ''}"
    simulated = "[simulated] " if alert.simulated and "simulated" not in lead + alert.summary else ""
    return simulated + lead + (f": {alert.summary}" if alert.summary else "")


def _details(alert: AlertTexts) -> dict[str, str]:
    details = {**dict(alert.place), **dict(alert.details), "where": alert.where, "when": alert.when}
    details |= {
        "ended because": alert.why_ended,
        "next": "\n".join(alert.next),
        "description": alert.description,
        "evidence": alert.evidence,
    }
    details["simulated"] = "true" if alert.simulated else ""
    return {name: text for name, text in details.items() if text}
