"""Summary of a run for lists of many: reading the whole analysis of each run would take seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from rankscope.analysis.result.analysis import Analysis, Kind, Source, Verdict
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.costs import Throughput
from rankscope.analysis.result.stored import Losses, losses_of, stored_verdict
from rankscope.base.text import ranges_text
from rankscope.base.version import VERSION
from rankscope.dashboards.words.inert import inert_record


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a run that a list shows. ``None``: not known."""

    kind: Kind
    summary: str
    at_fault: str | None = None
    """Rank, ranks or hosts that the verdict names, as text."""
    cause: Cause | None = None
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
    losses: Losses | None = None
    """``None``: an older version stored the verdict without them."""


def brief_of(analysis: Analysis) -> Brief:
    """Return the summary of an analysed run."""
    return msgspec.structs.replace(_brief(analysis.verdict, analysis.source, analysis.throughput), losses=losses_of(analysis))


@dataclass(frozen=True, slots=True)
class StoredBrief:
    """Summary by the verdict in the run directory."""

    brief: Brief
    is_current: bool
    """False if another version of rankscope reached the verdict, or if the run was written to since its analysis began."""


def stored_brief(run: Path, last_write_unix_ns: int | None) -> StoredBrief | None:
    """Return the summary that a run directory holds; ``None`` if there is none that can be read."""
    stored = stored_verdict(run)
    if stored is None:
        return None
    shown = inert_record(stored)
    current = stored.version == VERSION and (last_write_unix_ns or 0) <= stored.as_of_unix_ns
    brief = _brief(shown.verdict, shown.source, shown.throughput)
    return StoredBrief(msgspec.structs.replace(brief, losses=shown.losses), current)


def _at_fault(verdict: Verdict) -> str | None:
    """Return the hosts at fault as a whole, else the worst rank, else the ranks."""
    if verdict.hosts:
        more = f" + {len(verdict.hosts) - 1:,}" if len(verdict.hosts) > 1 else ""
        return f"host {verdict.hosts[0]}{more}"
    if verdict.rank is not None:
        return f"rank {verdict.rank}"
    return f"rank{'s' if len(verdict.ranks) > 1 else ''} {ranges_text(verdict.ranks)}" if verdict.ranks else None


def _brief(verdict: Verdict, source: Source, rates: Throughput | None) -> Brief:
    return Brief(
        kind=verdict.kind,
        summary=verdict.summary,
        at_fault=_at_fault(verdict),
        cause=verdict.cause,
        confidence=verdict.confidence,
        slowdown=verdict.slowdown,
        gpu_hours_lost=verdict.gpu_hours_lost,
        cost=None if verdict.cost is None else verdict.cost.amount,
        currency=next((price.currency for price in (verdict.cost, source.gpu_hour) if price is not None), None),
        steps=source.steps,
        step_us=None if rates is None else rates.step_us,
        samples_per_second=None if rates is None else rates.samples_per_second,
        tokens_per_second=None if rates is None else rates.tokens_per_second,
        coverage=source.coverage,
        warnings=len(source.warnings),
        warning=source.warnings[0] if source.warnings else None,
    )
