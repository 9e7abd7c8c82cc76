"""From an analysis to alerts: which findings deserve one, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from rankscope.alerts.watch.conditions.budgets import PARTS, SHARE_WORDING, Budgets
from rankscope.alerts.watch.conditions.candidate import Candidate, ConditionLoss, Subject
from rankscope.alerts.watcher_alerts import ALERT_OF_KIND
from rankscope.analysis.result.analysis import Analysis, Cost, Evidence, Finding, Verdict
from rankscope.analysis.result.text import hours_text, is_about_rare, is_of_equal_ranks, reading
from rankscope.base.text import factor

_HOUR_US: Final = 3.6e9

_NEITHER: Final = "of the step goes neither into the model's compute nor into waiting for data or other ranks"
"""Text for host time of a run without a device that could idle."""


def candidates(
    analysis: Analysis,
    subject: Subject | None = None,
    *,
    budgets: Budgets | None = None,
    price: Cost | None = None,
    rare_share: float = 0.0,
) -> list[Candidate]:
    """Return the alerts that an analysis supports, at most one per fingerprint, most costly first.

    ``subject``: the run, by default as the analysis has it, without links. ``price`` is that of a GPU-hour. ``rare_share`` is the
    share of time in a few very long steps: budgets ignore those, so it is subtracted from the mean share of a part.
    """
    source = analysis.source
    if subject is None:
        subject = Subject(run_id=source.run_id or source.path, name=source.name, simulated=source.simulated)
    by_fingerprint: dict[str, Candidate] = {}
    for finding in (*_of_each_unit(analysis), *_over_budget(analysis, budgets or Budgets(), rare_share)):
        rule = ALERT_OF_KIND.get(finding.kind)
        if rule is None:
            continue
        # The culprit may become known later, which must not change the alert's identity.
        rank, host = (None, None) if finding.kind == "hang" else (finding.rank, finding.host)
        candidate = subject.candidate(
            rule,
            _annotations(analysis, finding),
            rank=rank,
            host=host,
            finding=finding,
            loss=_loss(analysis, finding, price),
        )
        by_fingerprint.setdefault(candidate.fingerprint, candidate)
    return list(by_fingerprint.values())


def _of_each_unit(analysis: Analysis) -> Iterator[Finding]:
    """Yield the findings that need no budget, once per whole host or per rank, because the worst rank may change."""
    hosts = {rank.rank: rank.host for rank in analysis.ranks}
    verdict = analysis.verdict
    with_host = {rank for finding in analysis.findings if finding.whole_host for rank in finding.ranks}
    for finding in analysis.findings:
        if finding.kind in {kind for _, kind in PARTS.values()}:
            continue  # decided by their budgets
        if is_of_equal_ranks(finding):
            continue  # does not merit an alert
        if finding.whole_host:
            yield msgspec.structs.replace(finding, rank=None)
            continue
        ranks = finding.ranks
        if not ranks and finding.rank is not None and (verdict.kind, verdict.rank) == (finding.kind, finding.rank):
            ranks = verdict.ranks
        yield finding
        others = [rank for rank in ranks if rank != finding.rank and rank not in with_host] if finding.rank is not None else []
        yield from (msgspec.structs.replace(finding, rank=rank, host=hosts.get(rank)) for rank in others)


def _over_budget(analysis: Analysis, budgets: Budgets, rare_share: float) -> Iterator[Finding]:
    """Yield a finding for each part of the step over its budget, largest first; the analysis' own finding if there is one."""
    by_kind = {finding.kind: finding for finding in analysis.findings}
    shares: list[tuple[float, str]] = []
    for name, (part, kind) in PARTS.items():
        share = None if analysis.waterfall is None else analysis.waterfall.share(part)  # type: ignore[arg-type]
        if share is None and kind in by_kind:
            # Not a part of the waterfall, such as unexplained idle time of a device.
            share = next((item.value for item in by_kind[kind].evidence if item.name.startswith("share.")), None)
        if share is not None and share - rare_share >= getattr(budgets, name):
            shares.append((share, name))
    for share, name in sorted(shares, reverse=True):
        part, kind = PARTS[name]
        budget: float = getattr(budgets, name)
        evidence = [
            Evidence(name=f"share.{part}", value=share, unit="ratio", detail="of the step"),
            Evidence(name="budget", value=budget, unit="ratio", detail="of the step"),
        ]
        own = by_kind.get(kind)
        if own is not None:
            # Decisive evidence first: long lists are shown truncated.
            decisive = [item for item in own.evidence if item.name == f"share.{part}"]
            other_evidence = [item for item in own.evidence if item not in decisive]
            yield msgspec.structs.replace(own, evidence=[*decisive, evidence[1], *other_evidence])
        else:
            on_cpus = part == "host" and all(rank.device_kind == "cpu" for rank in analysis.ranks)
            summary = f"{share:.0%} {_NEITHER if on_cpus else SHARE_WORDING[part]}, more than {budget:.0%}."
            yield Finding(kind=kind, steps=analysis.verdict.steps, summary=summary, evidence=evidence)


def _annotations(analysis: Analysis, finding: Finding) -> dict[str, str]:
    verdict = analysis.verdict
    # The verdict describes the worst of several ranks or hosts, and applies to the others as well.
    named = finding.host in verdict.hosts if finding.whole_host else finding.rank in (verdict.rank, *verdict.ranks)
    about = verdict.kind == finding.kind and named
    return {
        "summary": finding.summary,
        "ranks": ",".join(map(str, finding.ranks)) if finding.whole_host else "",
        "gpu_uuid": next((rank.gpu_uuid or "" for rank in analysis.ranks if rank.rank == finding.rank), ""),
        **problem_annotations(finding),
        "steps": f"{finding.steps[0]}-{finding.steps[1] - 1}" if finding.steps else "",
        "evidence": "; ".join(_evidence(finding)),
        **(_from_verdict(verdict) if about else {"next": "\n".join(_advice(analysis, finding))}),
    }


def problem_annotations(problem: Verdict | Finding) -> dict[str, str]:
    """Annotations about a problem, as the verdict or a finding describes it; empty where it does not."""
    return {
        "cause": problem.cause or "",
        "explained_by": problem.explained_by or "",
        "phase": problem.phase or "",
        "pattern": problem.pattern or "",
        "slowdown": "" if problem.slowdown is None else factor(problem.slowdown),
        "gpu_hours_lost": "" if problem.gpu_hours_lost is None else hours_text(problem.gpu_hours_lost),
        "confidence": "" if problem.confidence is None else f"{problem.confidence:.0%}",
    }


def _from_verdict(verdict: Verdict) -> dict[str, str]:
    """Annotations that only the verdict provides, for the finding it is about."""
    return {
        "explained_by": verdict.explained_by or "",
        "cost": f"{verdict.cost.amount:.2f} {verdict.cost.currency}" if verdict.cost else "",
        "culprit": ",".join(map(str, verdict.ranks)) if verdict.kind == "hang" else "",
        "group": verdict.group or "",
        "next": "\n".join(verdict.next),
    }


def _advice(analysis: Analysis, finding: Finding) -> list[str]:
    """Actions that the analysis advises for the part of the step that the finding is about."""
    figures = {f"share.{part}" for part, kind in PARTS.values() if kind == finding.kind}
    return [advice.action for advice in analysis.advice if figures & {evidence.name for evidence in advice.evidence}]


def _loss(analysis: Analysis, finding: Finding, price: Cost | None) -> ConditionLoss | None:
    """Loss of a finding; ``None`` when no GPU time is lost or the amount is unknown."""
    world = analysis.source.world_size or analysis.source.ranks
    amount, currency = (None, None) if price is None else (price.amount, price.currency)
    rare = analysis.rare_steps
    # Slowdown and shares are of the typical step, and an hour also has rare ones.
    typical = 1.0 if rare is None or is_about_rare(finding, analysis) else 1 - rare.share
    if finding.slowdown is not None and finding.gpu_hours_lost is not None:
        per_hour = typical * world * (1 - 1 / finding.slowdown) if finding.slowdown > 1 else 0.0
        return ConditionLoss(gpu_hours=finding.gpu_hours_lost, per_hour=per_hour, price=amount, currency=currency)
    part = next((part for part, kind in PARTS.values() if kind == finding.kind), None)
    share = next((item.value for item in finding.evidence if item.name == f"share.{part}"), None)
    accelerated = any(rank.device_kind not in (None, "cpu") for rank in analysis.ranks)
    if share is None or analysis.waterfall is None or not (accelerated or price is not None):
        return None
    # As for the verdict, all trained steps count.
    hours = share * analysis.waterfall.step_us * analysis.source.steps * world / _HOUR_US
    return ConditionLoss(gpu_hours=hours, per_hour=typical * share * world, price=amount, currency=currency)


def _evidence(finding: Finding) -> list[str]:
    return [" ".join(reading(item)) + (f" ({item.detail})" if item.detail else "") for item in finding.evidence]
