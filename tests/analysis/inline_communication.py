"""Traces of ranks whose communication kernels run in line with the compute, on one stream and without metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

STEPS: Final = 8
LATE_US: Final = 3000.0
"""Time by which the late rank delays the others in each step."""
_LAYERS: Final = 3
_GEMM_US: Final = 500.0
_TRANSFER_US: Final = 80.0

Fault = Literal["none", "host", "device"]


def write_job(
    folder: Path,
    kernel: str,
    *,
    fault: Fault = "none",
    late: int = 2,
    ranks: int = 4,
    group: int | None = None,
    stream: int = 7,
    request: str | None = None,
    distributed: bool = True,
) -> Path:
    """Write the trace of each rank; ``kernel`` ends each layer, and no rank of a group leaves it before the last has arrived.

    ``group``: number of ranks that meet; all by default. ``stream``: that of the kernel. ``request``: operator around its launch.
    ``distributed``: the traces state rank and number of ranks.
    """
    size = group or ranks
    events: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
    for first in range(0, ranks, size):
        members = range(first, first + size)
        at = 1000.0 + 137.0 * first
        for step in range(STEPS):
            begin = at
            free = {rank: at + (LATE_US if fault == "host" and rank == late else 0.0) for rank in members}
            for layer in range(_LAYERS):
                for rank in members:
                    took = _GEMM_US + 3.0 * ((7 * rank + 3 * step + layer) % 5)
                    took += LATE_US / _LAYERS if fault == "device" and rank == late else 0.0
                    events[rank] += _launched("gemm_bf16_64x128", free[rank], took, 7, "aten::mm")
                    free[rank] += took + 5.0
                end = max(free.values()) + _TRANSFER_US
                for rank in members:
                    events[rank] += _launched(kernel, free[rank], end - free[rank], stream, request)
                    free[rank] = end + 5.0
            at = max(free.values()) + 20.0
            for rank in members:
                events[rank].append(_event("user_annotation", f"ProfilerStep#{step}", begin, at - begin))
    for rank, item in enumerate(events):
        for number, event in enumerate(event for event in item if event["cat"] in ("kernel", "cuda_runtime")):
            event["args"]["correlation"] = number // 2 + 1
        result = {"distributedInfo": {"rank": rank, "world_size": ranks, "backend": "nccl"}} if distributed else {}
        (folder / f"rank-{rank}.json").write_text(json.dumps({**result, "traceEvents": item}))
    return folder


def _launched(name: str, at: float, took: float, stream: int, operator: str | None) -> list[dict[str, Any]]:
    """Return a kernel, the call that launches it just before it starts, and the operator around that call."""
    around = [_event("cpu_op", operator, at - 4.0, 3.5)] if operator else []
    kernel = _event("kernel", name, at, took, stream)
    return [*around, _event("cuda_runtime", "cudaLaunchKernel", at - 3.0, 2.0), kernel]


def _event(category: str, name: str, at: float, took: float, stream: int | None = None) -> dict[str, Any]:
    args = {} if stream is None else {"stream": stream, "device": 0}
    return {"ph": "X", "cat": category, "name": name, "ts": round(at, 3), "dur": round(took, 3), "pid": 1, "tid": 1, "args": args}
