"""The node of the golden pages, its page with fixed results of the collectors, and ranks in the spool."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from rankscope.exporter.loop import CollectorState
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.source import FleetState, GpuSample, Series
from rankscope.exporter.spool.reading import SpoolSample
from rankscope.exporter.spool.series import RankKey, SpoolFamily

GOLDEN = Path(__file__).parents[1] / "golden"
H100, A100, DIVIDED, HUNG = (f"GPU-{index}0000000-aaaa-bbbb-cccc-000000000000" for index in range(4))


def node() -> FleetState:
    """Return an H100, an A100 with an unreadable clock and a failing collector, an H100 divided by MIG, and a GPU that hangs."""
    return msgspec.json.decode((GOLDEN / "node.json").read_bytes(), type=FleetState)


def sample_of(index: int) -> GpuSample:
    """Return the sample of a GPU of the golden node."""
    sample = node().gpus[index].sample
    assert sample is not None
    return sample


def node_with(index: int = 0, **changes: Any) -> FleetState:
    """Return the golden node with only one of its GPUs, whose sample has these changes."""
    state = node()
    gpu = msgspec.structs.replace(state.gpus[index], sample=msgspec.structs.replace(sample_of(index), **changes))
    return msgspec.structs.replace(state, gpus=(gpu,))


def loop(name: str, last: Any, *, reason: str | None = None, fresh: bool = True) -> Any:
    """Return a collector loop with a fixed last result."""
    snapshot = CollectorState(last, fresh, reason is None, 0.5, 0.002, reason)
    return SimpleNamespace(name=name, latest=lambda: snapshot)


def page_of(state: FleetState | Callable[[], FleetState | None] | None, **options: Any) -> MetricsPage:
    """Return the page of these GPUs, or of no fleet; a function is called for each page."""
    fleet: Any = SimpleNamespace(simulated=False, state=state if callable(state) else lambda: state)
    return MetricsPage("node1", fleet if state is not None else None, **options)


def spooled_histogram(*counts: int, total: float) -> SpoolSample:
    """Return a rank's histogram with the counts of the buckets up to 1 s, up to 10 s, and above."""
    name, rank = "rank_step_duration_seconds", (("rank", "3"), ("run", "r"), ("slot", "0"))
    cumulated = list(zip(("1.0", "10.0", "+Inf"), itertools.accumulate(counts), strict=True))
    series = [Series(f"{name}_bucket", count, (("le", bound), *rank)) for bound, count in cumulated]
    series += [Series(f"{name}_sum", total, rank), Series(f"{name}_count", sum(counts), rank)]
    families = (
        SpoolFamily("rank_info", "gauge", "Who.", (Series("rank_info", 1, (("gpu_uuid", H100), ("run_id", "id-r"), *rank)),)),
        SpoolFamily(name, "histogram", "Steps.", tuple(series)),
    )
    return SpoolSample(families, {RankKey("r", "3", "0"): "running"}, 1, 0, {}, 0)
