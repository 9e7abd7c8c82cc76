"""Alerts as the pages show them, from any source: watchers and Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankscope.dashboards.words.inert import is_web_address

AlertState = Literal["firing", "pending", "lost", "resolved"]
"""``lost``: the alert fired, but its end was not recorded although its run is over or its source no longer reports it."""
AlertSource = Literal["watcher", "prometheus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRecord:
    """One alert from its beginning to its end. Its texts are untrusted."""

    name: str
    severity: str | None
    state: AlertState
    started_unix_ns: int
    """Time at which the alert fired; if pending, at which it was first seen."""
    ended_unix_ns: int | None
    labels: dict[str, str]
    summary: str
    description: str
    run_id: str | None
    rank: int | None
    runbook_url: str | None
    """``http`` or ``https``; ``None``: not served anywhere. Source of the page: ``rankscope.alerts.rules.rule_file.runbooks``."""
    source: AlertSource
    evidence: str | None = None
    """Address of the dashboard page that shows the alert; ``None``: the alert is about none of the dashboard's runs."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Key of the alert, the same in every source. For an alert about a run: name, run and rank."""
        if self.run_id is not None:
            return (self.name, self.run_id, str(self.rank))
        return (self.name, *(f"{name}={value}" for name, value in sorted(self.labels.items()) if name != "severity"))


@dataclass(frozen=True, slots=True)
class CollectedAlerts:
    """All alerts by state, firing ones first, then newest first; ``problems``: sources that cannot be read, and why."""

    alerts: list[AlertRecord]
    problems: list[str]


def alert_record(
    labels: dict[str, str],
    annotations: dict[str, str],
    *,
    state: AlertState,
    started_unix_ns: int,
    source: AlertSource,
    ended_unix_ns: int | None = None,
) -> AlertRecord:
    """Build the record from the labels and annotations of rankscope's rules and watcher."""
    rank, runbook = labels.get("rank", ""), annotations.get("runbook_url", "")
    return AlertRecord(
        name=labels.get("alertname", ""),
        severity=labels.get("severity"),
        state=state,
        started_unix_ns=started_unix_ns,
        ended_unix_ns=ended_unix_ns,
        labels=labels,
        summary=annotations.get("summary", ""),
        description=annotations.get("description") or annotations.get("evidence", ""),
        run_id=labels.get("run_id"),
        rank=int(rank) if rank.isascii() and rank.isdecimal() and len(rank) <= 7 else None,
        runbook_url=runbook if is_web_address(runbook) else None,
        source=source,
    )
