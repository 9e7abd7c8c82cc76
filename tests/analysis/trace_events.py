"""Events of a trace file, the trace read from them, and its details, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rankscope.analysis.collectives.windows import reduce_file, step_breakdowns
from rankscope.analysis.result.detail import RankDetail, WindowDetail
from rankscope.analysis.trace.columns import Trace, read_trace
from rankscope.analysis.trace.detail_columns import detail_columns
from rankscope.analysis.trace.window_detail import detail_of
from rankscope.analysis.trace.work import work_events

Event = dict[str, Any]


def trace_event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    """Return an event of any category; underscores in the names of arguments stand for spaces."""
    spelled = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": spelled}


def kernel(name: str, ts: float, dur: float, stream: int = 7, correlation: int | None = None, **args: Any) -> Event:
    """Return a kernel, a copy or a fill, by its name."""
    cat = "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
    linked = {} if correlation is None else {"correlation": correlation}
    return trace_event(cat, name, ts, dur, stream=stream, device=args.pop("device", 0), **linked, **args)


def launch(correlation: int, ts: float, dur: float = 1, name: str = "cudaLaunchKernel", tid: int = 1) -> Event:
    return trace_event("cuda_runtime", name, ts, dur, tid=tid, correlation=correlation)


def annotation(name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    return trace_event("user_annotation", name, ts, dur, tid=tid, **args)


def operator(name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    return trace_event("cpu_op", name, ts, dur, tid=tid, **args)


def written(path: Path, events: Iterable[Event], **metadata: Any) -> Path:
    """Write a trace, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(metadata | {"traceEvents": list(events)}))
    return path


def trace_of(folder: Path, events: Iterable[Event], **metadata: Any) -> Trace:
    """Write the trace of rank 0, and read it."""
    return read_trace(written(folder / "rank-0.json", events, **metadata))


def text_of(count: int, **metadata: Any) -> bytes:
    """Return the text of a trace of ``count`` kernels of 5 us, one every 10 us."""
    kernels = [kernel(f"gemm_{at % 50}", 10 * at, 5) for at in range(count)]
    return json.dumps({**metadata, "traceEvents": kernels, "host_name": "n1"}).encode()


def details(path: Path) -> RankDetail:
    trace = read_trace(path)
    events = work_events(trace)
    window, steps = reduce_file(trace, events).breakdowns[0], step_breakdowns(trace, events)
    return detail_of(detail_columns(trace, events, [window, *steps]), window, steps)


def idle(detail: WindowDetail) -> tuple[float, float, float, float]:
    assert detail.launch is not None
    part = detail.launch
    return (part.idle_queued_us, part.idle_launching_us, part.idle_starved_us, part.idle_unknown_us)
