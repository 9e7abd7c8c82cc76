"""Waterfall, throughput, memory and advice of a run."""

from __future__ import annotations

from typing import Final

import msgspec

from rankscope.analysis.costs.figures import figures_of_memory, figures_of_pipeline, figures_of_throughput
from rankscope.analysis.costs.memory import memory_of
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.evidence.hardware import device_memory
from rankscope.analysis.inference.run_evidence import RunEvidence
from rankscope.analysis.report.assessment import assessed, figures_of_windows
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.costs import Throughput

_KERNEL_RANKS: Final = 4
"""Number of ranks whose costliest kernels are read; a few suffice, as all ranks compute in the same data types."""


def assessed_run(analysis: Analysis, run: RunEvidence, costs: Costs | None, throughput: Throughput | None) -> Analysis:
    """Return the analysis with waterfall, throughput, memory and advice of the run."""
    memory = memory_of(run.table, device_memory(run.reader, run.infos))
    kernels = [row for rank in run.ranks[:_KERNEL_RANKS] for row in run.reader.kernels(run.table.attempt, rank)]
    figures = {
        **figures_of_windows(analysis, run.matched, kernels),
        **figures_of_pipeline(run.pipeline),
        **figures_of_memory(memory),
        **figures_of_throughput(throughput),
    }
    analysis = msgspec.structs.replace(analysis, throughput=throughput, memory=memory)
    return assessed(analysis, costs, figures)
