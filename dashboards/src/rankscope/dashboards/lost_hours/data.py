"""GPU time lost over many runs by host and cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.stored import GpuTimeLoss
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.brief import Brief
from rankscope.dashboards.data.source import BEING_WRITTEN, RunSource, RunSummary

REPEATED: Final = 2
"""Number of runs from which on a blamed host counts as a repeat offender."""

DAY_NS: Final = 86_400_000_000_000


@dataclass(frozen=True, slots=True)
class RunLoss:
    """A run and its summary."""

    run: RunSummary
    brief: Brief | None
    """``None``: not analysed yet, or unreadable. It has ``losses``."""


@dataclass(slots=True)
class HostLoss:
    """Losses charged to one host."""

    host: str | None
    """``None``: losses that are not due to a single host."""
    gpu_hours: float = 0.0
    by_cause: dict[Cause, float] = field(default_factory=dict)
    """GPU-hours."""
    rare_by_cause: dict[Cause, float] = field(default_factory=dict)
    """GPU-hours of ``by_cause`` that were lost in rare steps."""
    cost: dict[str, float] = field(default_factory=dict)
    """Cost by currency, over the runs with a recorded price."""
    unpriced_hours: float = 0.0
    runs: dict[str, str] = field(default_factory=dict)
    """Runs in which the host was blamed: id to name."""
    gpus: set[str] = field(default_factory=set)
    """Blamed GPUs."""
    trained_gpu_hours: float | None = None
    """GPU time trained on the host in all analysed runs, blamed or not; ``None``: not known."""

    @property
    def repeated(self) -> bool:
        """True if the host was blamed in at least ``REPEATED`` runs."""
        return self.host is not None and len(self.runs) >= REPEATED

    @property
    def rate(self) -> float | None:
        """GPU-hours that the jobs lost per GPU-hour trained on the host; above 1 if one host held up many others."""
        return self.gpu_hours / self.trained_gpu_hours if self.trained_gpu_hours else None


@dataclass(frozen=True, slots=True)
class ClusterLosses:
    """Losses by host, and the runs that are not counted."""

    hosts: list[HostLoss]
    """Repeat offenders first, then by GPU-hours."""
    counted: list[RunSummary]
    """Runs whose verdict is in the sum, including those without a loss."""
    not_analysed: list[RunSummary]
    live: list[RunSummary]
    """Live runs that no page shows. They count while one does, and once they have ended."""
    unreadable: list[RunSummary]
    too_little: list[RunSummary]
    """Analysed runs with too little data for a verdict."""
    without_gpus: list[RunSummary]
    undated: list[RunSummary]
    """Runs excluded from a time range because their start time is not known."""

    @property
    def gpu_hours(self) -> float:
        """Lost GPU-hours of all hosts."""
        return sum(host.gpu_hours for host in self.hosts)


def run_losses(source: RunSource) -> list[RunLoss]:
    """Return all runs with their known summaries, as in the list of runs; computes nothing. Raises ``RankscopeError``."""
    return [RunLoss(run, _brief_of_run(source, run)) for run in source.runs()]


def _brief_of_run(source: RunSource, run: RunSummary) -> Brief | None:
    try:
        brief = source.known_brief(run)
    except RankscopeError:
        brief = None  # damaged in the cache: treat as absent
    if brief is None and (stored := source.stored_brief(run)) is not None and stored.is_current:
        brief = stored.brief
    return None if brief is None or brief.losses is None else brief


def cluster_losses(runs: Iterable[RunLoss], *, since_unix_ns: int | None = None) -> ClusterLosses:
    """Sum the losses of runs that started at ``since_unix_ns`` or later; ``None``: of all runs."""
    losses = ClusterLosses([], [], [], [], [], [], [], [])
    hosts: dict[str | None, HostLoss] = {}
    trained: dict[str, float] = {}
    for run_loss in runs:
        start = run_loss.run.start_unix_ns
        if since_unix_ns is not None and start is not None and start < since_unix_ns:
            continue
        place = _place(losses, run_loss, undated=since_unix_ns is not None and start is None)
        place.append(run_loss.run)
        if run_loss.brief is None or run_loss.brief.losses is None or place is not losses.counted:
            continue
        for host, hours in run_loss.brief.losses.host_gpu_hours.items():
            trained[host] = trained.get(host, 0.0) + hours
        for lost in run_loss.brief.losses.lost_by:
            _add(hosts.setdefault(lost.host, HostLoss(lost.host)), lost, run_loss.run, run_loss.brief.currency)
    for loss in hosts.values():
        loss.trained_gpu_hours = None if loss.host is None else trained.get(loss.host)
    losses.hosts.extend(sorted(hosts.values(), key=lambda loss: (not loss.repeated, -loss.gpu_hours, loss.host or "")))
    return losses


def _place(losses: ClusterLosses, loss: RunLoss, *, undated: bool) -> list[RunSummary]:
    """Return the list that a run belongs to."""
    if loss.run.problem is not None:
        return losses.unreadable
    if undated:
        return losses.undated
    if loss.brief is None or loss.brief.losses is None:
        return losses.live if loss.run.status in BEING_WRITTEN else losses.not_analysed
    if loss.brief.kind == "insufficient_data":
        return losses.too_little
    return losses.counted if loss.brief.losses.on_gpus or loss.brief.losses.lost_by else losses.without_gpus


def _add(loss: HostLoss, lost: GpuTimeLoss, run: RunSummary, currency: str | None) -> None:
    cause: Cause = lost.cause or "unknown"
    loss.gpu_hours += lost.gpu_hours
    loss.by_cause[cause] = loss.by_cause.get(cause, 0.0) + lost.gpu_hours
    if lost.steps == "rare":
        loss.rare_by_cause[cause] = loss.rare_by_cause.get(cause, 0.0) + lost.gpu_hours
    if lost.cost is None or currency is None:
        loss.unpriced_hours += lost.gpu_hours
    else:
        loss.cost[currency] = loss.cost.get(currency, 0.0) + lost.cost
    loss.runs[run.run_id] = run.name
    if lost.gpu_uuid is not None:
        loss.gpus.add(lost.gpu_uuid)


def total_cost(hosts: Sequence[HostLoss]) -> dict[str, float]:
    """Return the total cost by currency."""
    costs: dict[str, float] = {}
    for host in hosts:
        for currency, amount in host.cost.items():
            costs[currency] = costs.get(currency, 0.0) + amount
    return costs
