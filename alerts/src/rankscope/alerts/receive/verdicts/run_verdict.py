"""The part of a run's analysis that alerts about it include."""

from __future__ import annotations

from typing import Final

import msgspec

from rankscope.alerts.watch.conditions.findings import problem_annotations
from rankscope.alerts.watcher_alerts import ALERT_OF_KIND, HANG, STRAGGLER
from rankscope.analysis.result.analysis import Analysis, Finding, Verdict
from rankscope.base.text import one_line
from rankscope.runs.links import overview_url

MAX_TEXT: Final = 2_000
"""Characters of an annotation."""
_FINDINGS: Final = 64
_ALERTS_OF_KIND: Final[dict[str, tuple[str, ...]]] = {
    **{kind: (rule.alertname,) for kind, rule in ALERT_OF_KIND.items()},
    "hang": (HANG.alertname, "TrainingStalled", "TrainingHangSuspected"),
}
"""Alerts by the kind of finding that they are about."""


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Part of an analysis that alerts include; or the reason why there is none."""

    problem: str = ""
    unknown: bool = False
    """There is no such run here, so no action can be requested either."""
    late: bool = False
    """The verdict was not ready in time, and may follow."""
    run_id: str = ""
    by_name: bool = False
    """The alert gave no run id: the run is the only live one of that name."""
    simulated: bool = False
    coverage: float | None = None
    verdict: Verdict | None = None
    findings: list[Finding] = []
    gpu_uuids: dict[int, str] = {}
    hosts: dict[int, str] = {}


def run_verdict_of(analysis: Analysis) -> RunVerdict:
    """Extract the part of an analysis that is kept."""
    findings = analysis.findings[:_FINDINGS]
    named = {analysis.verdict.rank, *(finding.rank for finding in findings)}
    ranks = [row for row in analysis.ranks if row.rank in named]
    return RunVerdict(
        run_id=analysis.source.run_id or "",
        simulated=analysis.source.simulated,
        coverage=analysis.source.coverage,
        verdict=analysis.verdict,
        findings=findings,
        gpu_uuids={row.rank: row.gpu_uuid for row in ranks if row.gpu_uuid},
        hosts={row.rank: row.host for row in ranks if row.host},
    )


def by_name_only(run_id: str) -> str:
    """Return the prefix of texts about a run that the alert identified only by name."""
    return f"Run {run_id}, the only live one of that name: "


def verdict_annotations(run_verdict: RunVerdict, labels: dict[str, str], *, dashboard_url: str | None) -> dict[str, str]:
    """Return the annotations that a verdict adds to an alert with these labels.

    ``verdict`` is the sentence about the run; ``no_verdict`` is the reason if there is none. Cause, cost, rank and next steps are
    added only if they concern the alert's own problem: why one rank is slow does not explain why another disappeared.
    """
    verdict = run_verdict.verdict
    by_name = {"found_by_name": run_verdict.run_id} if run_verdict.by_name and run_verdict.run_id else {}
    lead = by_name_only(run_verdict.run_id) if by_name else ""
    if verdict is None:
        return bounded_texts({"no_verdict": f"{lead}{run_verdict.problem}", **by_name})
    if run_verdict.simulated:
        lead = f"[simulated GPUs] {lead}"
    texts = {
        **by_name,
        "verdict": f"{lead}{verdict.summary}",
        "simulated": "true" if run_verdict.simulated else "",
        "coverage": "" if run_verdict.coverage is None else f"{run_verdict.coverage:.0%}",
    }
    label = labels.get("rank", "")
    rank = int(label) if label.isascii() and label.isdecimal() and len(label) < 10 else None
    of_host = rank is None and labels.get("alertname") == STRAGGLER.alertname
    about = _about(run_verdict, labels.get("alertname", ""), rank, labels.get("host") if of_host else None)
    if about is not None:
        texts |= problem_annotations(about)
        hosts = about.hosts if isinstance(about, Verdict) else [about.host or ""] if about.whole_host else []
        if hosts:
            texts |= {"verdict_host": ", ".join(hosts), "verdict_ranks": ",".join(map(str, about.ranks))}
            rank = about.rank if rank is None else rank
        elif about.rank is not None:
            texts |= {
                "verdict_rank": str(about.rank),
                "verdict_host": run_verdict.hosts.get(about.rank, ""),
                "gpu_uuid": run_verdict.gpu_uuids.get(about.rank, ""),
            }
            rank = about.rank if rank is None else rank
    if about is verdict:
        texts |= {
            "cost": f"{verdict.cost.amount:.2f} {verdict.cost.currency}" if verdict.cost else "",
            "next": "\n".join(verdict.next),
        }
    if dashboard_url is not None and run_verdict.run_id:
        texts["dashboard_url"] = overview_url(dashboard_url, run_verdict.run_id, rank=rank)
    return bounded_texts(texts)


def _about(run_verdict: RunVerdict, alertname: str, rank: int | None, host: str | None) -> Verdict | Finding | None:
    """Return the verdict, or else the costliest finding, that an alert of this name is about.

    ``rank``: that of the alert; ``host``: that of an alert about a host as a whole.
    """
    verdict = run_verdict.verdict
    kinds = {kind for kind, alerts in _ALERTS_OF_KIND.items() if alertname in alerts}
    if verdict is not None and verdict.kind in kinds and rank in (None, verdict.rank, *verdict.ranks):
        of_rank = None if verdict.rank is None else run_verdict.hosts.get(verdict.rank)
        named = verdict.hosts or ([] if of_rank is None else [of_rank])
        if host is None or host in named:
            return verdict
    return next(
        (
            finding
            for finding in run_verdict.findings
            if finding.kind in kinds and rank in (None, finding.rank, *finding.ranks) and host in (None, finding.host)
        ),
        None,
    )


def bounded_texts(texts: dict[str, str]) -> dict[str, str]:
    """Leave out empty texts, and limit the others: the content of a run is untrusted."""
    return {name: "\n".join(map(one_line, text.split("\n")))[:MAX_TEXT] for name, text in texts.items() if text}
