"""Verdict that is kept in the run directory, so that lists of runs show it without an analysis."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.analysis.result.analysis import Analysis, Finding, Source, Verdict
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.costs import Throughput
from rankscope.analysis.result.text import is_about_rare
from rankscope.runs.paths import verdict_file
from rankscope.runs.run_files import open_run_file
from rankscope.runs.segments import UNDECODABLE
from rankscope.runs.small_files import write_record

VERDICT_SCHEMA: Final = "rankscope.verdict/1"
MOST_BYTES: Final = 1 << 20
"""Largest file that is read."""


StepKind = Literal["typical", "rare"]


class GpuTimeLoss(msgspec.Struct, frozen=True, kw_only=True):
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
    steps: StepKind = "typical"
    """Steps in which the time was lost: the typical ones, or a few rare ones beyond that."""


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """GPU time that a run lost and trained."""

    lost_by: list[GpuTimeLoss] = []
    host_gpu_hours: dict[str, float] = {}
    """GPU time of the trained steps, the rare ones included, per host."""
    on_gpus: bool = False
    """True if any rank trained on a device other than the CPU; otherwise there is no GPU time to lose."""


class StoredVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on a run, by the version of rankscope that reached it."""

    schema: str = VERDICT_SCHEMA
    version: str
    as_of_unix_ns: int
    """Start of the analysis: what the run got later is not in the verdict."""
    verdict: Verdict
    source: Source
    throughput: Throughput | None = None
    losses: Losses | None = None


def store_verdict(run: Path, analysis: Analysis, *, as_of_unix_ns: int) -> None:
    """Replace the stored verdict of a run. Raises ``OSError``."""
    record = StoredVerdict(
        version=version("rankscope"),
        as_of_unix_ns=as_of_unix_ns,
        verdict=analysis.verdict,
        source=analysis.source,
        throughput=analysis.throughput,
        losses=losses_of(analysis),
    )
    write_record(verdict_file(run), record)


def stored_verdict(run: Path) -> StoredVerdict | None:
    """Return the stored verdict of a run; ``None`` if there is none that can be read."""
    try:
        with open_run_file(verdict_file(run)) as file:
            data = file.read(MOST_BYTES + 1)
        verdict = msgspec.json.decode(data, type=StoredVerdict) if len(data) <= MOST_BYTES else None
    except (OSError, *UNDECODABLE):
        return None
    return verdict if verdict is not None and verdict.schema == VERDICT_SCHEMA else None


def losses_of(analysis: Analysis) -> Losses:
    """Return the GPU time that an analysed run lost and trained."""
    return Losses(
        lost_by=[_lost(analysis, finding) for finding in analysis.findings if finding.gpu_hours_lost is not None],
        host_gpu_hours=_host_gpu_hours(analysis),
        on_gpus=any(rank.device_kind not in (None, "cpu") for rank in analysis.ranks),
    )


def _lost(analysis: Analysis, finding: Finding) -> GpuTimeLoss:
    """Return the loss of a finding. A finding on several ranks has one loss for all, charged to their host if they share one."""
    verdict = analysis.verdict
    ranks_of_finding = finding.ranks or ([finding.rank] if finding.rank is not None else [])
    ranks = (
        (verdict.ranks or ranks_of_finding) if finding.summary == verdict.summary and not finding.whole_host else ranks_of_finding
    )
    blamed = [rank for rank in analysis.ranks if rank.rank in ranks]
    hosts = {rank.host for rank in blamed}
    only = blamed[0] if len(blamed) == 1 else None
    hours = finding.gpu_hours_lost or 0.0
    price = analysis.source.gpu_hour
    return GpuTimeLoss(
        host=finding.host if finding.whole_host else hosts.pop() if len(hosts) == 1 else None,
        gpu_uuid=None if only is None else only.gpu_uuid,
        rank=None if only is None else only.rank,
        cause=finding.cause,
        gpu_hours=hours,
        cost=None if price is None else price.amount * hours,
        steps="rare" if is_about_rare(finding, analysis) else "typical",
    )


def _host_gpu_hours(analysis: Analysis) -> dict[str, float]:
    """Return GPU-hours per host: typical steps, as losses are counted, and what rare ones took beyond that.

    Ranks without host or step time are skipped.
    """
    rare_us = 0.0 if analysis.rare_steps is None else analysis.rare_steps.lost_us
    mean_us = None if analysis.throughput is None else analysis.throughput.step_us
    hours: dict[str, float] = {}
    for rank in analysis.ranks:
        step_us = mean_us if mean_us is not None else rank.wall_us
        if rank.host is not None and rank.device_kind not in (None, "cpu") and step_us is not None:
            hours[rank.host] = hours.get(rank.host, 0.0) + (rank.steps * step_us + rare_us) / 3.6e9
    return hours
