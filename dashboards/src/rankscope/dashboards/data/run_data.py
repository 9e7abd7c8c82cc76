"""Data of one run, read on first access."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.alerts.replay.result import Replay
    from rankscope.analysis.result.analysis import Analysis
    from rankscope.dashboards.alerts.data import AlertsFound
    from rankscope.dashboards.data.events import Events
    from rankscope.dashboards.data.hardware import Hardware
    from rankscope.dashboards.data.source import RunSource, RunSummary, Stale, StepMatrices
    from rankscope.dashboards.data.topology import Topology
    from rankscope.dashboards.data.trend import Trend
    from rankscope.dashboards.stragglers.data import BlameBook
    from rankscope.dashboards.whatif.data import Scenarios


@dataclass(frozen=True)
class RunData:
    """One run of a source; each part is read once.

    Any attribute may raise ``RankscopeError``, and ``NotReadyError`` while its data are being computed.
    """

    source: RunSource
    summary: RunSummary

    @cached_property
    def stale(self) -> Stale | None:
        """Age of the shown data and its reason, if they are older than they should be."""
        return self.source.stale(self.summary.run_id)

    @cached_property
    def analysis(self) -> Analysis:
        """Verdict and its evidence."""
        return self.source.analysis(self.summary.run_id)

    @cached_property
    def blame(self) -> BlameBook:
        """Imposed wait by origin, victim and cause."""
        return self.source.blame(self.summary.run_id)

    @cached_property
    def scenarios(self) -> Scenarios:
        """What-if scenarios."""
        return self.source.scenarios(self.summary.run_id)

    @cached_property
    def replay(self) -> Replay:
        """All alerts replayed over the run."""
        return self.source.replay(self.summary.run_id)

    @cached_property
    def steps(self) -> StepMatrices:
        """Per-step values."""
        return self.source.steps(self.summary.run_id)

    @cached_property
    def topology(self) -> Topology:
        """Host, GPU and parallel coordinates of each rank."""
        return self.source.topology(self.summary.run_id)

    @cached_property
    def hardware(self) -> Hardware:
        """GPUs of the run's hosts and their samples."""
        return self.source.hardware(self.summary.run_id)

    @cached_property
    def events(self) -> Events:
        """Events of these GPUs."""
        return self.source.events(self.summary.run_id)

    @cached_property
    def alerts(self) -> AlertsFound:
        """Alerts during the run; those about other runs are among them."""
        return self.source.alerts(self.summary.run_id)

    @cached_property
    def trend(self) -> Trend:
        """All ranks together, step by step."""
        return self.source.trend(self.summary.run_id)
