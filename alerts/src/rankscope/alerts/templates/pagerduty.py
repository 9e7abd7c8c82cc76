"""PagerDuty's Events API v2: one event per alert, which its fingerprint joins to the same incident until it is resolved."""

from __future__ import annotations

from typing import Any, Final

from rankscope.alerts.message import cut
from rankscope.alerts.payload import Payload
from rankscope.alerts.templates.facts import facts, fitted

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
    """The event for a payload of one alert."""
    return fitted(lambda part, cap: _event(part, cap, routing_key), payload)


def _event(payload: Payload, cap: int, routing_key: str) -> dict[str, Any]:
    alert = payload.alerts[0]
    told = facts(alert, cap)
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if told.status == "resolved" else "trigger",
        "dedup_key": cut(alert.fingerprint, _MOST_OF_NAME),
    }
    if told.status == "resolved":
        return event
    place = dict(told.place)
    simulated = "[simulated] " if told.simulated and "simulated" not in told.summary else ""
    details = {**place, **dict(told.details), "next": "\n".join(told.next), "description": told.description}
    details |= {"evidence": told.evidence, "simulated": "true" if told.simulated else ""}
    event["payload"] = {
        "summary": cut(f"{simulated}{told.summary or told.heading}", _MOST_OF_SUMMARY),
        "source": cut(place.get("host") or place.get("run") or "rankscope", _MOST_OF_NAME),
        "severity": _SEVERITY.get(told.severity.lower(), "warning"),
        "timestamp": cut(alert.starts_at, 40),
        "component": cut(place.get("GPU") or f"rank {place.get('rank', 'unknown')}", _MOST_OF_NAME),
        "group": cut(place.get("run", ""), _MOST_OF_NAME),
        "class": cut(told.name, _MOST_OF_NAME),
        "custom_details": {name: text for name, text in details.items() if text},
    }
    event["client"] = "rankscope"
    event["links"] = [{"href": address, "text": words} for words, address in told.links]
    return event
