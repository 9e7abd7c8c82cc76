"""Figures of costs, verdict, kernels, pipeline, memory and throughput that advice rests on. Unknown figures are missing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankscope.analysis.collectives.figures import Figure, Figures
from rankscope.analysis.costs.waterfall import Costs, waterfall
from rankscope.analysis.result.analysis import RankResult
from rankscope.analysis.result.costs import Memory, PartSource, PipelineResult, Throughput
from rankscope.runs.records import KernelRecord

# Kernel names of cuBLAS, cuDNN, CUTLASS and Tensile; names without a type count for neither precision.
_MATRIX = re.compile(r"gemm|gemv|cutlass|nvjet|Cijk_|matmul|conv.*(fprop|dgrad|wgrad)|winograd", re.IGNORECASE)
_HALF = re.compile(r"f16|fp16|half|h\d*gemm|nvjet_(sm\d+_)?[htq]|e[45]m[23]|fp8|Cijk_\w{4}_\w{4}_[HB][HSB]", re.IGNORECASE)
_FLOAT32 = re.compile(r"sgemm|s1688gemm|tf32|f32f32|<float|nvjet_(sm\d+_)?s(?!m\d)|Cijk_\w{4}_\w{4}_SB?_", re.IGNORECASE)


def figures_of_costs(costs: Costs | None) -> dict[str, Figure]:
    """Return ``share.PART`` for each part of the waterfall, and for the parts of these parts."""
    if costs is None or costs.step_us <= 0:
        return {}
    figures = {
        f"share.{part.name}": Figure(part.share, source=part.source)
        for part in waterfall(costs).parts
        if part.share is not None and part.name != "unexplained"
    }
    for name, amount in costs.inner.items():
        figures[f"share.{name}"] = Figure(min(1.0, amount.us / costs.step_us), source=amount.source)
    return figures


def derived(figures: Figures) -> dict[str, Figure]:
    """Return the figures, with those that are derived from others."""
    figures_found = dict(figures)
    compute = figures.get("share.compute")
    if compute is not None:
        ideal = figures.get("share.ideal", Figure(0.0))
        figures_found["share.all_compute"] = Figure(compute.value + ideal.value, source=compute.source, stage=compute.stage)
    exposed, host = figures.get("share.exposed_communication"), figures.get("share.host")
    if exposed is not None and host is not None:
        figures_found["share.overhead"] = Figure(exposed.value + host.value, source=exposed.source, stage=host.stage)
    if "share.idle" in figures and "share.host" not in figures:
        figures_found["share.idle_unexplained"] = figures["share.idle"]
    return figures_found


def figures_of_stages(costs: Costs | None) -> dict[str, Figure]:
    """Return each share of the pipeline stage that has most of it: a mean over stages is less than what can be saved."""
    if costs is None or costs.step_us <= 0:
        return {}
    return {
        f"share.{name}": Figure(min(1.0, amount.us / costs.step_us), source=amount.source, stage=stage)
        for name, (stage, amount) in costs.largest.items()
    }


def figures_of_ranks(ranks: Sequence[RankResult], source: PartSource) -> dict[str, Figure]:
    """Return the hosts, the shares of communication that compute hides and of compute that is recomputed, and ``accelerated``."""
    hosts = {row.host for row in ranks if row.host is not None}
    figures = {"hosts": Figure(float(len(hosts)), "hosts")} if hosts else {}
    if any(row.device_kind not in (None, "cpu") for row in ranks):
        figures["accelerated"] = Figure(1.0, "boolean")
    for name, part, total in (
        ("overlap_ratio", "overlap_us", "communication_us"),
        ("kernels.recompute_share", "recompute_us", "compute_us"),
    ):
        times = [(getattr(row, part), getattr(row, total)) for row in ranks if not row.truncated]
        pairs = [pair for pair in times if pair[0] is not None and pair[1]]
        if pairs:
            parts, wholes = map(sum, zip(*pairs, strict=True))
            figures[name] = Figure(parts / wholes, source=source)
    return figures


def figures_of_kernels(kernels: Sequence[KernelRecord], source: PartSource) -> dict[str, Figure]:
    """Return the share of 32 bits (TF32, too) in the time of matrix multiplications whose names contain their type."""
    half = single = 0.0
    for row in kernels:
        if row.kind == "compute" and _MATRIX.search(row.name):
            if _HALF.search(row.name):
                half += row.total_us
            elif _FLOAT32.search(row.name):
                single += row.total_us
    return {"kernels.float32_share": Figure(single / (half + single), source=source)} if half + single > 0 else {}


def figures_of_pipeline(pipeline: PipelineResult | None) -> dict[str, Figure]:
    """Return the shares of the step that the schedule and uneven stages cost."""
    if pipeline is None or pipeline.step_us <= 0:
        return {}
    parts = (("pipeline.schedule", pipeline.ideal_us), ("pipeline.imbalance", pipeline.imbalance_us))
    return {name: Figure(us / pipeline.step_us, source="steps") for name, us in parts if us is not None}


def figures_of_memory(memory: Memory | None) -> dict[str, Figure]:
    """Return the memory figures, each of the rank with the largest value."""
    if memory is None:
        return {}
    figures: dict[str, Figure] = {}
    for name, field, unit in (
        ("memory.peak_share", "peak_share", "ratio"),
        ("memory.fragmentation", "fragmentation", "ratio"),
        ("memory.retries", "later_allocator_retries", "retries"),
    ):
        values = [value for row in memory.ranks if (value := getattr(row, field)) is not None]
        if values:
            figures[name] = Figure(float(max(values)), unit, "steps")
    for kind in ("device", "host"):
        leaks = [row.bytes_per_1000_steps for row in memory.growth if row.leaking and row.kind == kind]
        if leaks:
            figures[f"memory.{kind}_leak"] = Figure(max(leaks) / (1 << 20), "MiB per 1,000 steps", "steps")
    return figures


def figures_of_throughput(throughput: Throughput | None) -> dict[str, Figure]:
    """Return ``mfu``, where it is known."""
    return {} if throughput is None or throughput.mfu is None else {"mfu": Figure(throughput.mfu, source="steps")}
