"""Random small traces in which everything happens at once: two devices, streams, graphs, copies, calls that are missing."""

from __future__ import annotations

import itertools
import random
from typing import Any, Final

from tests.example_traces.jobs import Document, Event

SEEDS: Final = range(12)
KERNELS: Final = (
    "void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16_s161616gemm>(...)",
    "void at::native::vectorized_elementwise_kernel<4, ...>(...)",
    "void at::native::reduce_kernel<512, 1>(...)",
    "triton_per_fused_native_layer_norm_0",
)
TALKS: Final = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)",
    "ncclDevKernel_SendRecv(...)",
    "multimem_all_reduce_kernel<...>",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)",
)
COPIES: Final = (
    ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)"),
    ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)"),
    ("gpu_memcpy", "Memcpy DtoD (Device -> Device)"),
    ("gpu_memset", "Memset (Device)"),
    ("kernel", "__amd_rocclr_copyBuffer"),
)
DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
HOST: Final[dict[str, Any]] = {"pid": 5000, "tid": 1}


LENGTHS: Final = ((0, 1, 1, 2, 8, 8, 30), (0.001, 1, 2.5, 8, 8, 30))
"""Lengths of device events. A length of 0 has been measured only where times are whole microseconds."""


def trace(seed: int) -> Document:
    """Return a random trace; times are whole nanoseconds, and many coincide. Events of a stream run one after the other."""
    rng = random.Random(seed)
    events: list[Event] = []
    device = _Device(rng)
    at = 1_000.0
    for number in range(1, rng.choice((12, 40, 120))):
        at += rng.choice((0, 0, 0.001, 1, 2.5, 10, 40))
        events += device.launch(number, at)
    last = at + 60
    steps = rng.choice((0, 1, 3))
    bounds = [*sorted(rng.uniform(1_000, last) for _ in range(steps)), last]
    first = rng.choice((0, 7))
    for place, (begin, end) in enumerate(itertools.pairwise(bounds)):
        # A pause of the profiler leaves a number out.
        number = first + place + (place > 1 and rng.random() < 0.5)
        events.append(_event("user_annotation", f"ProfilerStep#{number}", begin, end - begin, **HOST))
    rng.shuffle(events)
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": number, "name": "NVIDIA A100-SXM4-40GB"} for number in range(2)],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "host_name": "node0",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }


def damaged(seed: int) -> Document:
    """Return a random trace some of whose device events have no time, one far away, or too long a time, or are missing."""
    rng = random.Random(seed)
    document = trace(seed)
    events: list[Event] = document["traceEvents"]
    share = rng.choice((0.02, 0.1, 0.5, 1.0))
    ways = rng.sample((_untimed, _far, _overlong), k=rng.choice((1, 1, 2, 3)))
    for item in [event for event in events if event["cat"] in DEVICE and rng.random() < share]:
        if rng.random() < 0.2:
            events.remove(item)
        else:
            rng.choice(ways)(rng, item)
    for item in events:
        if item["name"] == "cudaLaunchKernel" and rng.random() < 0.2:
            item["name"] = rng.choice(("cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaGetDevice", "cudaStreamBeginCapture"))
    return document


def _untimed(rng: random.Random, event: Event) -> None:
    event |= rng.choice(({"ts": 0, "dur": 0}, {"dur": 0}, {"dur": -1}, {"ts": None}, {"ts": -1.8e15, "dur": 0}))


def _far(rng: random.Random, event: Event) -> None:
    event["ts"] += rng.choice((-1, 1)) * rng.choice((5e3, 2e6, 7e8, 1e13))


def _overlong(rng: random.Random, event: Event) -> None:
    event["dur"] = rng.choice((5, 50, 500, 5e5, 7e7))


class _Device:
    """Streams of the devices, and what the trace lacks of them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._free: dict[tuple[int, int], float] = {}
        """Time from which a stream is free, by device and stream."""
        self._lengths = rng.choice(LENGTHS)
        self._lost = rng.choice((0.0, 0.0, 0.08))
        """Share of calls whose work is missing."""

    def launch(self, number: int, at: float) -> list[Event]:
        """Return a call, and what it starts on a device; one of both may be missing."""
        rng = self._rng
        call: dict[str, Any] = {"correlation": number}
        category, name = "kernel", rng.choice(KERNELS)
        kind = rng.random()
        if kind < 0.2:
            name = rng.choice(TALKS)
        elif kind < 0.45:
            category, name = rng.choice(COPIES)
            if rng.random() < 0.3:
                call["bytes"] = rng.randrange(1 << 22)
        place = {"device": rng.choice((0, 0, 0, 1)), "stream": rng.choice((7, 7, 20, 23))}
        stream = (place["device"], place["stream"])
        begin = max(at + rng.choice((-2, 0, 0.5, 3, 3, 25)), self._free.get(stream, 0.0))
        length = rng.choice(self._lengths)
        pid = {"pid": place["device"], "tid": place["stream"]}
        args: dict[str, Any] = place | {"correlation": number if rng.random() >= self._lost else number - 1}
        if category == "gpu_memcpy" and rng.random() < 0.6:
            args["bytes"] = rng.randrange(1 << 24)
        if rng.random() < 0.05:
            args["graph node id"] = number
        runs = [_event(category, name, begin, length, **pid, args=args)]
        call_name = "cudaLaunchKernel" if category == "kernel" else "cudaMemcpyAsync"
        if rng.random() < 0.06:
            # The nodes of a graph may run side by side.
            call_name = "cudaGraphLaunch"
            runs += [_event("kernel", rng.choice(KERNELS), begin + later, 2, **pid, args=args) for later in (3, 5, 5.5)]
        is_called, is_run = rng.random() >= 0.12, rng.random() >= self._lost
        if is_run or not is_called:
            self._free[stream] = max(run["ts"] + run["dur"] for run in runs)
        if not is_called:
            return runs
        calls = [_event("cuda_runtime", call_name, at, rng.choice((0, 0.5, 1, 4)), **HOST, args=call)]
        return calls + runs if is_run else calls


def _event(category: str, name: str, ts: float, dur: float, *, pid: int, tid: int, args: dict[str, Any] | None = None) -> Event:
    times = {"ts": round(ts, 3), "dur": round(dur, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args or {}}
