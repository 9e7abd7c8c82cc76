"""Throughput of a run: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

import msgspec


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over the steps of the waterfall. ``None``: not recorded, or not by all ranks that are needed."""

    steps: int
    step_us: float
    """Mean wall time of a step."""
    replicas: int | None
    """Number of different batches per step: ranks that share one (tensor, pipeline, … parallel) count once. ``None``: not all
    ranks of the world are recorded."""
    samples_per_second: float | None
    """Rate of the whole job."""
    tokens_per_second: float | None
    samples_per_second_per_rank: float | None
    """Rate of the job divided by its world size, because every GPU is paid for."""
    tokens_per_second_per_rank: float | None
    flops_per_second_per_rank: float | None
    """Rate from the floating-point operations per step that the script reports; mean over the ranks that report them."""
    gpu_name: str | None
    """GPU model; ``None`` also if the ranks have different ones."""
    peak_dtype: str | None
    """Data type whose peak ``mfu`` refers to: bf16 (dense), or fp16 if the GPU has no bf16."""
    peak_flops: float | None
    """Peak FLOP/s from the table in ``analysis/peak_flops.py``. ``None``: the GPU is not in it, or there are several models."""
    mfu: float | None
    """Model FLOP/s utilisation: ``flops_per_second_per_rank`` / ``peak_flops``."""
    mfu_by_dtype: dict[str, float] = {}
    """MFU against the peak of each data type of the GPU, because the type that the model computes in is not recorded."""
