"""Waterfall, throughput, memory and advice of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.analysis.costs.figures import figures_of_memory, figures_of_pipeline, figures_of_throughput
from rankscope.analysis.costs.memory import memory_of
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.evidence.hardware import device_memory
from rankscope.analysis.evidence.peers import SHARED_DIMENSIONS, STAGE_DIMENSIONS
from rankscope.analysis.inference.run_evidence import RunEvidence
from rankscope.analysis.report.assessment import assessed, figures_of_windows
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.costs import Throughput
from rankscope.runs.records import RankInfo

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
