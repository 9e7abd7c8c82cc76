"""Waterfall, throughput, memory and advice of an analysis or a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from rankscope.analysis.collectives.figures import Figure, Figures
from rankscope.analysis.collectives.matched import Matched
from rankscope.analysis.costs.figures import (
    figures_of_costs,
    figures_of_kernels,
    figures_of_memory,
    figures_of_overlap,
    figures_of_pipeline,
    figures_of_stages,
    figures_of_throughput,
    figures_of_verdict,
)
from rankscope.analysis.costs.memory import memory_of
from rankscope.analysis.costs.waterfall import Costs, waterfall
from rankscope.analysis.evidence.hardware import device_memory
from rankscope.analysis.evidence.peers import SHARED_DIMENSIONS, STAGE_DIMENSIONS
from rankscope.analysis.inference.run_evidence import RunEvidence
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.costs import Throughput
from rankscope.analysis.result.text import first_of
from rankscope.analysis.verdict.recommendations import recommend
from rankscope.runs.records import KernelRecord, RankInfo

_SHOWN: Final = 4


def assessed(analysis: Analysis, costs: Costs | None, figures: Figures) -> Analysis:
    """Return the analysis with its waterfall, and the advice that the waterfall and ``figures`` support."""
    found = None if costs is None else waterfall(costs)
    figures = {
        **figures,
        **figures_of_costs(costs),
        **figures_of_stages(costs),
        **figures_of_verdict(analysis.verdict, costs),
        **_machines(analysis),
    }
    advice = recommend(
        figures,
        step_us=None if found is None else found.step_us,
        run=analysis.source.path if analysis.source.kind == "run" else None,
        who=_who(analysis),
    )
    return msgspec.structs.replace(analysis, waterfall=found, advice=advice)


def assessed_windows(analysis: Analysis, costs: Costs | None, matched: Matched, kernels: Sequence[KernelRecord] = ()) -> Analysis:
    """Return the analysis with the waterfall and advice of profiled windows alone."""
    return assessed(analysis, costs, figures_of_windows(analysis, matched, kernels))


def figures_of_windows(analysis: Analysis, matched: Matched, kernels: Sequence[KernelRecord]) -> Figures:
    """Return the figures of collectives and kernels in profiled windows."""
    source = matched.source
    return {**figures_of_overlap(analysis.ranks, source), **matched.figures, **figures_of_kernels(kernels, source)}


def _machines(analysis: Analysis) -> Figures:
    hosts = {row.host for row in analysis.ranks if row.host is not None}
    found = {"hosts": Figure(float(len(hosts)), "hosts")} if hosts else {}
    if any(row.device_kind not in (None, "cpu") for row in analysis.ranks):
        found["accelerated"] = Figure(1.0, "boolean")
    return found


def _who(analysis: Analysis) -> str:
    """Return the ranks that the verdict names, as text for people."""
    ranks = analysis.verdict.ranks
    hosts = {row.rank: row.host for row in analysis.ranks}
    if len(ranks) == 1:
        host = hosts.get(ranks[0])
        return f"rank {ranks[0]}" + ("" if host is None else f" on host {host}")
    return f"ranks {first_of(ranks, _SHOWN)}"


_KERNEL_RANKS: Final = 4
"""Number of ranks whose costliest kernels are read; a few suffice, as all ranks compute in the same data types."""


_OF_GRADIENTS: Final = frozenset(("collectives.all_reduce_share", "collectives.sharding_share"))
"""Figures that distinguish data from sharded parallelism by its operations.

They are not used where ranks share a batch, because such ranks run the same operations on activations.
"""


def assessed_run(analysis: Analysis, run: RunEvidence, costs: Costs | None, throughput: Throughput | None) -> Analysis:
    """Return the analysis with waterfall, throughput, memory and advice of the run."""
    memory = memory_of(run.table, device_memory(run.reader, run.infos))
    kernels = [row for rank in run.ranks[:_KERNEL_RANKS] for row in run.reader.kernels(run.table.attempt, rank)]
    windows = figures_of_windows(analysis, run.matched, kernels)
    if _share_batches(run.infos):
        windows = {name: figure for name, figure in windows.items() if name not in _OF_GRADIENTS}
    figures = {
        **windows,
        **figures_of_pipeline(run.pipeline),
        **figures_of_memory(memory),
        **figures_of_throughput(throughput),
    }
    analysis = msgspec.structs.replace(analysis, throughput=throughput, memory=memory)
    return assessed(analysis, costs, figures)


def _share_batches(infos: Mapping[int, RankInfo]) -> bool:
    """Return whether ranks of one stage work on the same batch, as in tensor and context parallelism."""
    places: dict[str, set[int]] = {}
    for info in infos.values():
        for name, at in info.coordinates.items():
            if name in SHARED_DIMENSIONS and name not in STAGE_DIMENSIONS:
                places.setdefault(name, set()).add(at)
    return any(len(found) > 1 for found in places.values())
