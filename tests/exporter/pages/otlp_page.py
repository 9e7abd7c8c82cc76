"""The page of the golden node for OTLP, with or without a rank's histogram."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.exporter.pages.golden_node import H100

from rankscope.exporter.loop import CollectorState
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.source import FleetState
from rankscope.exporter.spool.reading import SpoolSample
from rankscope.exporter.spool.series import RankKey, SpoolFamily, SpoolSeries


def page_of(state: FleetState | Callable[[], FleetState], spooled: SpoolSample | None = None) -> MetricsPage:
    snapshot = CollectorState(spooled, fresh=True, ok=True, age_s=0, duration_s=0, reason=None)
    spool: Any = SimpleNamespace(name="spool", latest=lambda: snapshot) if spooled is not None else None
    fleet: Any = SimpleNamespace(simulated=False, state=state if callable(state) else lambda: state)
    return MetricsPage("node1", fleet, spool=spool)


def spooled_histogram(*counts: int, total: float) -> SpoolSample:
    """Return a rank's histogram with the counts of the buckets up to 1 s, up to 10 s, and above."""
    name, rank = "rank_step_duration_seconds", (("rank", "3"), ("run", "r"), ("slot", "0"))
    cumulated = list(zip(("1.0", "10.0", "+Inf"), itertools.accumulate(counts), strict=True))
    series = [SpoolSeries(f"{name}_bucket", (("le", bound), *rank), count) for bound, count in cumulated]
    series += [SpoolSeries(f"{name}_sum", rank, total), SpoolSeries(f"{name}_count", rank, sum(counts))]
    families = (
        SpoolFamily(
            "rank_info", "gauge", "Who.", (SpoolSeries("rank_info", (("gpu_uuid", H100), ("run_id", "id-r"), *rank), 1),)
        ),
        SpoolFamily(name, "histogram", "Steps.", tuple(series)),
    )
    return SpoolSample(families, {RankKey("r", "3", "0"): "running"}, 1, 0, {}, 0)
