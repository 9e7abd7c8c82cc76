"""From an analysis to alerts: which findings deserve one, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from rankscope.alerts.alert import Alert, fingerprint
from rankscope.analysis.duration import duration
from rankscope.analysis.result import Analysis, Evidence, Finding, Kind, Verdict
from rankscope.runs.links import overview_url


@dataclass(frozen=True, slots=True)
class FindingRule:
    """The alert that a kind of finding becomes."""

    alertname: str
    severity: Literal["critical", "warning", "info"]


ALERTED: Final[dict[Kind, FindingRule]] = {
    "straggler": FindingRule("TrainingStraggler", "warning"),
}
"""A finding of any other kind describes the job as a whole and wakes nobody."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that deserves an alert, if it lasts."""

    alert: Alert
    fingerprint: str
    finding: Finding


def candidates(analysis: Analysis, *, dashboard_url: str | None = None, runbook_url: str = "runbooks") -> list[Candidate]:
    """The alerts an analysis speaks for, at most one per identity, most costly first.

    ``dashboard_url`` and ``runbook_url`` are the bases of the links.
    """
    found: dict[str, Candidate] = {}
    for finding in analysis.findings:
        rule = ALERTED.get(finding.kind)
        if rule is None:
            continue
        labels = _labels(analysis, finding, rule)
        identity = fingerprint(labels)
        if identity in found:
            continue
        link = ""
        if dashboard_url is not None:
            link = overview_url(dashboard_url, labels["run_id"], rank=finding.rank)
        annotations = _annotations(analysis, finding)
        annotations["runbook_url"] = f"{runbook_url.rstrip('/')}/{rule.alertname}.md"
        if link:
            annotations["dashboard_url"] = link
        alert = Alert(labels=labels, annotations=annotations, generator_url=link)
        found[identity] = Candidate(alert=alert, fingerprint=identity, finding=finding)
    return list(found.values())


def _labels(analysis: Analysis, finding: Finding, rule: FindingRule) -> dict[str, str]:
    source = analysis.source
    labels = {
        "alertname": rule.alertname,
        "severity": rule.severity,
        "run_id": source.run_id or source.path,
        "run": source.name or "",
        "rank": "" if finding.rank is None else str(finding.rank),
        "host": finding.host or "",
    }
    return {name: value for name, value in labels.items() if value}


def _annotations(analysis: Analysis, finding: Finding) -> dict[str, str]:
    simulated = analysis.source.simulated
    verdict = analysis.verdict
    texts = {
        "summary": f"[simulated GPUs] {finding.summary}" if simulated else finding.summary,
        "simulated": "true" if simulated else "",
        "gpu_uuid": next((rank.gpu_uuid or "" for rank in analysis.ranks if rank.rank == finding.rank), ""),
        "cause": finding.cause or "",
        "phase": finding.phase or "",
        "pattern": finding.pattern or "",
        "steps": f"{finding.steps[0]}-{finding.steps[1] - 1}" if finding.steps else "",
        "slowdown": _number(finding.slowdown, "x"),
        "gpu_hours_lost": _number(finding.gpu_hours_lost),
        "confidence": "" if finding.confidence is None else f"{finding.confidence:.0%}",
        "evidence": "; ".join(_evidence(finding)),
        **(_from_verdict(verdict) if (verdict.kind, verdict.rank) == (finding.kind, finding.rank) else {}),
    }
    return {name: text for name, text in texts.items() if text}


def _from_verdict(verdict: Verdict) -> dict[str, str]:
    """What only the verdict knows, for the finding it is about."""
    return {
        "explained_by": verdict.explained_by or "",
        "cost": f"{verdict.cost.amount:.2f} {verdict.cost.currency}" if verdict.cost else "",
        "next": "\n".join(verdict.next),
    }


def reading(item: Evidence) -> tuple[str, str]:
    """Name and value of a piece of evidence for people: ``("imposed wait", "77 ms")``, ``("p =", "0.0005")``."""
    name = item.name.replace("_", " ").replace(".", " ")
    match item.unit:
        case "us":
            sign = "-" if item.value < 0 else ""
            # Less than the clocks can tell: no length to speak of.
            return name, f"{sign}{duration(abs(item.value))}" if abs(item.value) >= 0.5 else "none"
        case "ratio":
            return name, f"{item.value:.1%}" if 0 < abs(item.value) < 0.0995 else f"{item.value:.0%}"
        case "probability":
            return f"{name.removesuffix(' value')} =", f"{item.value:.2g}"
        case "steps":  # the names of counts say what they count
            return name, f"{item.value:,.0f}"
    return name, f"{item.value:,.4g} {item.unit}".rstrip()


def _evidence(finding: Finding) -> list[str]:
    return [" ".join(reading(item)) + (f" ({item.detail})" if item.detail else "") for item in finding.evidence]


def _number(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.3g}{unit}"
