"""Settings of a watcher."""

from __future__ import annotations

from dataclasses import dataclass, field

from rankscope.alerts.watch.conditions.budgets import Budgets
from rankscope.alerts.watch.ledger import FiringPolicy
from rankscope.alerts.watch.liveness.monitor import Patience
from rankscope.alerts.watch.pace import Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherSettings:
    """Settings of a watcher. ``dashboard_url`` and ``runbook_url`` are the bases of the links in alerts."""

    policy: FiringPolicy = field(default_factory=FiringPolicy)
    patience: Patience = field(default_factory=Patience)
    budgets: Budgets = field(default_factory=Budgets)
    interval_s: float = 5.0
    """Pause between two evaluations, at least as long as the last evaluation took."""
    ask_for_dumps: bool = True
    """Request Flight Recorder dumps from the ranks of a stalled run."""
    pace: Pace = field(default_factory=lambda: Pace(0.0, 0.0))
    once: bool = False
    """Evaluate everything there is, also runs that are over, and end no alert because its run is over."""
    dashboard_url: str | None = None
    runbook_url: str | None = None
