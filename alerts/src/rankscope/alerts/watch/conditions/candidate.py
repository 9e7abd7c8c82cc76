"""Candidates: conditions that raise an alert if they last, with identity (labels), details (annotations) and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from rankscope.alerts.alert import Alert, fingerprint
from rankscope.alerts.watcher_alerts import WatcherAlert
from rankscope.analysis.result.analysis import Finding
from rankscope.analysis.result.text import hours_text
from rankscope.runs.links import overview_url


class ConditionLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a condition while it lasts."""

    gpu_hours: float
    """GPU-hours lost until the condition was last seen."""
    per_hour: float
    """GPU-hours lost per hour."""
    price: float | None = None
    """Price of a GPU-hour."""
    currency: str | None = None

    def annotations(self, gpu_hours: float) -> dict[str, str]:
        """Format annotations for a loss of ``gpu_hours`` so far."""
        texts = {
            "gpu_hours_lost": hours_text(gpu_hours),
            "gpu_hours_lost_per_hour": hours_text(self.per_hour) if self.per_hour > 0 else "",
        }
        if self.price is not None:
            money = f"{{:.2f}} {self.currency or 'USD'}"
            texts["cost"] = money.format(gpu_hours * self.price)
            texts["cost_per_hour"] = money.format(self.per_hour * self.price) if self.per_hour > 0 else ""
        return {name: text for name, text in texts.items() if text}


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that raises an alert if it lasts."""

    alert: Alert
    fingerprint: str
    finding: Finding | None = None
    """Finding of the analysis; ``None`` when the alert rests on files and endings of ranks, or on the history of steps."""
    loss: ConditionLoss | None = None
    """``None`` when the loss is unknown or costs no GPU time."""

    @property
    def name(self) -> str:
        """Name of the alert."""
        return self.alert.labels["alertname"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The run that alerts are about, with the bases of their links."""

    run_id: str
    name: str | None = None
    simulated: bool = False
    dashboard_url: str | None = None
    runbook_url: str | None = None

    @property
    def title(self) -> str:
        """Name of the run, or else its id."""
        return self.name or self.run_id

    def candidate(
        self,
        rule: WatcherAlert,
        annotations: Mapping[str, str],
        *,
        rank: int | None = None,
        host: str | None = None,
        finding: Finding | None = None,
        loss: ConditionLoss | None = None,
    ) -> Candidate:
        """Build an alert about this run or one of its ranks; empty annotations are left out."""
        labels = {
            "alertname": rule.alertname,
            "severity": rule.severity,
            "run_id": self.run_id,
            "run": self.name or "",
            "rank": "" if rank is None else str(rank),
            "host": host or "",
        }
        labels = {name: value for name, value in labels.items() if value}
        texts = {**annotations, **({} if loss is None else loss.annotations(loss.gpu_hours))}
        if self.simulated:
            texts["summary"] = f"[simulated GPUs] {texts['summary']}"
            texts["simulated"] = "true"
        if self.runbook_url is not None:
            texts["runbook_url"] = f"{self.runbook_url.rstrip('/')}/{rule.alertname}.md"
        else:
            # Without a runbook server, the command prints the runbook.
            texts["next"] = "\n".join(filter(None, (texts.get("next"), f"rankscope alerts explain {rule.alertname}")))
        link = "" if self.dashboard_url is None else overview_url(self.dashboard_url, self.run_id, rank=rank)
        texts["dashboard_url"] = link
        alert = Alert(labels=labels, annotations={name: text for name, text in texts.items() if text}, generator_url=link)
        return Candidate(alert=alert, fingerprint=fingerprint(labels), finding=finding, loss=loss)
