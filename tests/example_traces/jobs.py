"""Simulated jobs of the usual parallel layouts, with what a profiler records besides kernels and their launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.nccl.faults import FAULTS
from tests.nccl.layouts import Layout, LayoutJob
from tests.nccl.traces import clocks, document

Document = dict[str, Any]
Event = dict[str, Any]

STEPS: Final = 3
JOBS: Final = {
    "ddp": (Layout("ddp", 4), "late input"),
    "fsdp": (Layout("fsdp", 4), "slow device"),
    "hsdp": (Layout("hsdp", 2, inner=2), "pause of the host"),
    "tensor-and-data": (Layout("tp x dp", 2, inner=2), "slow host"),
    "tensor-on-one-stream": (Layout("tp on the current stream", 2, inner=2), "none"),
    "context": (Layout("cp", 2, inner=2), "more tokens"),
    "recompute": (Layout("recompute", 2, inner=2), "none"),
    "experts": (Layout("moe", 2, inner=2), "none"),
    "experts-uneven": (Layout("moe", 2, inner=2), "more tokens"),
    "pipeline": (Layout("pp", 2, stages=2), "slow device"),
    "pipeline-alone": (Layout("pp", 1, stages=2), "none"),
    "pipeline-interleaved": (Layout("pp interleaved", 1, stages=4), "slow device"),
    "graph": (Layout("ddp in a CUDA graph", 4), "slow device"),
}
"""Job to its layout and the fault of its last rank."""

_COPIED: Final = 4_194_304
"""Bytes of a batch."""


def job(name: str, *, steps: int = STEPS) -> list[Document]:
    """Return the traces of a job, one per rank."""
    layout, fault = JOBS[name]
    played = LayoutJob(layout, FAULTS[fault], late=layout.world - 1, steps=steps)
    graphed = "CUDA graph" in layout.name
    pairs = zip(played.ranks, clocks(played.world), strict=True)
    return [document(rank, clock, graphed=graphed) for rank, clock in pairs]


def recorded(name: str, *, steps: int = 2) -> list[Document]:
    """Return the traces of a job with copies, flows, marks and the other events that the profiler records."""
    documents = job(name, steps=steps)
    for trace in documents:
        events: list[Event] = trace["traceEvents"]
        trace["traceEvents"] = [
            *_marks(events),
            *events,
            *_copies(events),
            *_mirrored(events),
            *_flows(events),
            *_noise(events),
        ]
    return documents


def event(category: str, name: str, ts: float, dur: float, like: Event, **args: Any) -> Event:
    """Return an event in the process and thread of another one."""
    place = {"pid": like["pid"], "tid": like["tid"]}
    spelled = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": category, "name": name, **place, "ts": round(ts, 3), "dur": round(dur, 3), "args": spelled}


def _of(events: list[Event], category: str) -> list[Event]:
    return [event for event in events if event["cat"] == category]


def _copies(events: list[Event]) -> Iterator[Event]:
    """Yield copies of the batch to the device, a fill, and a copy of the loss to the host, in each step."""
    kernel = _of(events, "kernel")[0]
    for number, note in enumerate(annotation for annotation in events if annotation["name"].startswith("ProfilerStep#")):
        call = 900_000 + 10 * number
        begin, end = note["ts"] + 350, note["ts"] + note["dur"]
        place = {"stream": 9, "device": kernel["args"]["device"]}
        yield event("cuda_runtime", "cudaMemcpyAsync", begin, 12, note, correlation=call, bytes=_COPIED)
        yield event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin + 15, 180, kernel, correlation=call, **place)
        yield event("cuda_runtime", "cudaMemsetAsync", begin + 14, 4, note, correlation=call + 1)
        fill = {"correlation": call + 1, "bytes": 65_536} | place
        yield event("gpu_memset", "Memset (Device)", begin + 200, 5.125, kernel, **fill)
        yield event("cuda_runtime", "cudaMemcpyAsync", end - 20, 15, note, correlation=call + 2)
        # The optimizer's kernel, the last of the step on this stream, ends with the annotation.
        loss = {"correlation": call + 2, "bytes": 4, "stream": 7, "device": place["device"]}
        yield event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", end + 1, 1.5, kernel, **loss)


def _mirrored(events: list[Event]) -> Iterator[Event]:
    """Yield the device's copies of the annotations, which are no work: half a millisecond later, as the device is."""
    kernel = _of(events, "kernel")[0]
    for note in _of(events, "user_annotation"):
        yield event("gpu_user_annotation", note["name"], note["ts"] + 500, note["dur"], kernel)


def _flows(events: list[Event]) -> Iterator[Event]:
    """Yield the arrows from calls to kernels, which have no duration."""
    for event in events:
        if event["cat"] in ("cuda_runtime", "kernel"):
            mark = {"cat": "ac2g", "name": "ac2g", "id": event["args"]["correlation"], "bp": "e"}
            place = {key: event[key] for key in ("pid", "tid", "ts")}
            yield {"ph": "s" if event["cat"] == "cuda_runtime" else "f", **mark, **place}


def _marks(events: list[Event]) -> Iterator[Event]:
    """Yield the names of processes and threads."""
    host = _of(events, "cuda_runtime")[0]
    for name, args in (("process_name", {"name": "python"}), ("process_labels", {"labels": "CPU"})):
        yield {"ph": "M", "name": name, "ts": host["ts"], "pid": host["pid"], "tid": 0, "args": args}


def _noise(events: list[Event]) -> Iterator[Event]:
    """Yield events of categories that are no work, long enough to be seen in every figure if they were taken for it."""
    host, kernel = _of(events, "cuda_runtime")[0], _of(events, "kernel")[0]
    begin, end = min(item["ts"] for item in events) - 5000, max(item["ts"] + item["dur"] for item in events) + 5000
    yield event("Trace", "PyTorch Profiler (0)", begin, end - begin, host, Op_count=0)
    yield event("python_function", "train.py(12): main", begin, end - begin, host)
    yield event("overhead", "Buffer Flush", begin, 900, host)
    yield event("cuda_sync", "Stream Sync", begin, end - begin, kernel, stream=7, device=kernel["args"]["device"])
    yield event("cuda_runtime", "cudaDeviceSynchronize", end - 900, 800, host, correlation=999_999)
    yield {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": end}
