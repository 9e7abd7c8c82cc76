"""How much a run gets done: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

import msgspec


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over the steps of the waterfall. ``None``: not recorded, or not by all ranks that would have to."""

    steps: int
    step_us: float
    """Mean wall time of a step."""
    replicas: int | None
    """Ranks with a batch of their own; of the ranks that share one (tensor, pipeline, … parallel) one counts. ``None``: not all
    ranks of the world are recorded."""
    samples_per_second: float | None
    """Of the whole job."""
    tokens_per_second: float | None
    samples_per_second_per_rank: float | None
    """Of the job over its world size, as GPUs are paid for."""
    tokens_per_second_per_rank: float | None
    flops_per_second_per_rank: float | None
    """As the script told the floating-point operations of its steps; mean over the ranks that told them."""
    gpu_name: str | None
    """``None`` also where ranks have different ones."""
    peak_dtype: str | None
    """What ``mfu`` is against: bf16 (dense), or fp16 where the GPU has no bf16."""
    peak_flops: float | None
    """Per second; from the table in ``analysis/peak_flops.py``. ``None``: the GPU is not in it, or there are several models."""
    mfu: float | None
    """Model FLOP/s utilisation: ``flops_per_second_per_rank`` / ``peak_flops``."""
    mfu_by_dtype: dict[str, float] = {}
    """The same against the peak of each data type that the GPU has, for which type the model computes in is not recorded."""
