"""PagerDuty's Events API v2: one event per alert, which its fingerprint joins to the same incident until it is resolved."""

from __future__ import annotations

from typing import Any, Final

from rankscope.alerts.deliver.message import cut
from rankscope.alerts.deliver.templates.facts import Facts, facts, fitted
from rankscope.alerts.payload import Payload

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
    alert = payload.alerts[0]
    told = facts(alert, cap)
    place = dict(told.place)
    said = {
        "summary": cut(_summary(told), _MOST_OF_SUMMARY),
        "source": cut(place.get("host") or place.get("run") or "rankscope", _MOST_OF_NAME),
        "severity": _SEVERITY.get(told.severity.lower(), "warning"),
        "timestamp": cut(alert.starts_at, 40),
        "component": cut(", ".join(f"{name} {place[name]}" for name in ("rank", "GPU") if name in place), _MOST_OF_NAME),
        "group": cut(told.run_id or place.get("run", ""), _MOST_OF_NAME),
        "class": cut(told.name, _MOST_OF_NAME),
        "custom_details": _details(told),
    }
    return {
        "routing_key": routing_key,
        "event_action": "resolve" if told.over else "trigger",
        "dedup_key": cut(alert.fingerprint, _MOST_OF_NAME),
        "payload": {name: value for name, value in said.items() if value},
        "client": "rankscope",
        "links": [{"href": address, "text": words} for words, address in told.links],
    }


def _summary(told: Facts) -> str:
    """Build the summary: name and run first, because they identify an incident. Rank and host have separate fields."""
    run = dict(told.place).get("run", "")
    said = told.heading if told.state != "firing" or not told.summary else f"{told.name}{f', run {run}' if run else ''}"
    simulated = "[simulated] " if told.simulated and "simulated" not in said + told.summary else ""
    return simulated + said + (f": {told.summary}" if told.summary else "")


def _details(told: Facts) -> dict[str, str]:
    details = {**dict(told.place), **dict(told.details), "where": told.where, "when": told.when, "ended because": told.why_ended}
    details |= {"next": "\n".join(told.next), "description": told.description, "evidence": told.evidence}
    details["simulated"] = "true" if told.simulated else ""
    return {name: text for name, text in details.items() if text}
