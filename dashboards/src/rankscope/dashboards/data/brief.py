"""Summary of a run for lists of many: reading the whole analysis of each run would take seconds."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from rankscope.analysis.result.analysis import Analysis, Cause, Finding, Kind, Source, Verdict
from rankscope.analysis.result.costs import Throughput
from rankscope.analysis.result.stored import stored_verdict
from rankscope.dashboards.words.inert import inert_record


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """GPU time lost according to a finding, and the host, GPU and rank it is charged to."""

    host: str | None
    """``None``: no single host."""
    gpu_uuid: str | None
    rank: int | None
    """``None``: no single rank."""
    cause: Cause | None
    gpu_hours: float
    cost: float | None
    """In the ``currency`` of the run."""


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a run that a list shows. ``None``: not known."""

    kind: Kind
    summary: str
    confidence: float | None = None
    slowdown: float | None = None
    gpu_hours_lost: float | None = None
    cost: float | None = None
    currency: str | None = None
    steps: int = 0
    step_us: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    coverage: float | None = None
    warnings: int = 0
    warning: str | None = None
    """First of the warnings."""
    lost_by: list[Lost] = []
    host_gpu_hours: dict[str, float] = {}
    """GPU time of the trained steps, per host."""
    on_gpus: bool = False
    """True if any rank trained on a device other than the CPU; otherwise there is no GPU time to lose."""


def brief_of(analysis: Analysis) -> Brief:
    """Return the summary of an analysed run."""
    return msgspec.structs.replace(
        _brief(analysis.verdict, analysis.source, analysis.throughput),
        lost_by=[_lost(analysis, finding) for finding in analysis.findings if finding.gpu_hours_lost is not None],
        host_gpu_hours=_host_gpu_hours(analysis),
        on_gpus=any(rank.device_kind not in (None, "cpu") for rank in analysis.ranks),
    )


@dataclass(frozen=True, slots=True)
class StoredBrief:
    """Summary by the verdict in the run directory. It does not tell whose GPU time was lost."""

    brief: Brief
    is_current: bool
    """False if another version of rankscope reached the verdict, or if the run was written to since its analysis began."""


def stored_brief(run: Path, last_write_unix_ns: int | None) -> StoredBrief | None:
    """Return the summary that a run directory holds; ``None`` if there is none that can be read."""
    stored = stored_verdict(run)
    if stored is None:
        return None
    shown = inert_record(stored)
    current = stored.version == version("rankscope") and (last_write_unix_ns or 0) <= stored.as_of_unix_ns
    return StoredBrief(_brief(shown.verdict, shown.source, shown.throughput), current)


def _brief(verdict: Verdict, source: Source, rates: Throughput | None) -> Brief:
    return Brief(
        kind=verdict.kind,
        summary=verdict.summary,
        confidence=verdict.confidence,
        slowdown=verdict.slowdown,
        gpu_hours_lost=verdict.gpu_hours_lost,
        cost=None if verdict.cost is None else verdict.cost.amount,
        currency=None if verdict.cost is None else verdict.cost.currency,
        steps=source.steps,
        step_us=None if rates is None else rates.step_us,
        samples_per_second=None if rates is None else rates.samples_per_second,
        tokens_per_second=None if rates is None else rates.tokens_per_second,
        coverage=source.coverage,
        warnings=len(source.warnings),
        warning=source.warnings[0] if source.warnings else None,
    )


def _lost(analysis: Analysis, finding: Finding) -> Lost:
    """Return the loss of a finding. A finding on several ranks has one loss for all, charged to their host if they share one."""
    verdict = analysis.verdict
    said = [finding.rank] if finding.rank is not None else []
    ranks = (verdict.ranks or said) if finding.summary == verdict.summary else said
    blamed = [rank for rank in analysis.ranks if rank.rank in ranks]
    hosts = {rank.host for rank in blamed}
    only = blamed[0] if len(blamed) == 1 else None
    hours = finding.gpu_hours_lost or 0.0
    whole = verdict.gpu_hours_lost
    return Lost(
        host=hosts.pop() if len(hosts) == 1 else None,
        gpu_uuid=None if only is None else only.gpu_uuid,
        rank=None if only is None else only.rank,
        cause=finding.cause,
        gpu_hours=hours,
        cost=verdict.cost.amount * hours / whole if verdict.cost is not None and whole else None,
    )


def _host_gpu_hours(analysis: Analysis) -> dict[str, float]:
    """Return GPU-hours per host: steps times the mean step time, as losses are counted. Skips ranks without host or step time."""
    mean_us = None if analysis.throughput is None else analysis.throughput.step_us
    found: dict[str, float] = {}
    for rank in analysis.ranks:
        step_us = mean_us if mean_us is not None else rank.wall_us
        if rank.host is not None and rank.device_kind not in (None, "cpu") and step_us is not None:
            found[rank.host] = found.get(rank.host, 0.0) + rank.steps * step_us / 3.6e9
    return found
