"""Categories, streams and processes of the traces of other vendors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.trace.healthy_kernels import GEMM, START_US, damage, kernels, lengths, work
from tests.analysis.trace_events import Event, operator, trace_event, trace_of

from rankscope.analysis.collectives.windows import reduce_file
from rankscope.analysis.trace.columns import read_trace


def test_cpu_run_on_a_machine_with_a_gpu_stays_a_cpu_run(tmp_path: Path) -> None:
    operators = [operator("aten::mm", START_US + 100 * at, 50) for at in range(5)]
    trace = trace_of(tmp_path, [*operators, trace_event("cuda_runtime", "cudaGetDeviceCount", START_US, 5, correlation=1)])
    assert (trace.device_kind, trace.quality.problem) == ("cpu", None)
    assert reduce_file(trace).breakdowns[0].compute_us == 250


@pytest.mark.parametrize("category", ["mtia_ccp_events", "privateuse1_kernel"])
def test_overlong_events_of_other_devices_are_cut_on_serial_queues(tmp_path: Path, category: str) -> None:
    def of_device(events: list[Event]) -> list[Event]:
        return [event | {"cat": category if event["cat"] == "kernel" else "mtia_runtime"} for event in events]

    events = of_device(work(40))
    events[1]["dur"] = 5e6
    result = trace_of(tmp_path, events)
    assert (result.device_kind, damage(result.quality)) == ("other", (0, 0, 1, 0))
    assert lengths(result) == [10.5] * 40
    # and where many overlap, nothing is known of any
    events = of_device(work(40, dur=150.5))
    events[1]["dur"] = 5e6
    assert damage(trace_of(tmp_path, events).quality) == (0, 0, 0, 0)


def test_events_without_streams_are_serial_on_their_thread(tmp_path: Path) -> None:
    # given a trace of XPU, whose profiler writes the queue as thread only
    events = work(40)
    for event in events:
        event["cat"] = "kernel" if event["cat"] == "kernel" else "xpu_runtime"
    for event in kernels(events):
        event |= {"pid": 0, "tid": 3}
        del event["args"]["stream"]
    kernels(events)[0]["dur"] = 350.5
    result = trace_of(tmp_path, events)
    assert (result.device_kind, damage(result.quality)) == ("xpu", (0, 0, 1, 0))
    # and streams count where most events have one
    for event in kernels(events)[1:]:
        event["args"]["stream"] = 7
    assert damage(trace_of(tmp_path, events).quality) == (0, 0, 0, 0)


def plain(name: str, ts: float, dur: float, process: int, **args: Any) -> Event:
    """Return an event without a category, as torch_npu writes them."""
    return {"ph": "X", "name": name, "pid": process, "tid": 3, "ts": ts, "dur": dur, "args": args}


@pytest.mark.parametrize(
    ("hardware", "communication"),
    [("Ascend Hardware", "Communication"), ("Ascend Hardware(310)", "HCCL"), ("Task Scheduler", "Collective Communication")],
)
def test_ascend_device_events_are_recognised_by_their_process(tmp_path: Path, hardware: str, communication: str) -> None:
    processes = {1: "Python", 2: "CANN", 3: hardware, 4: communication, 5: "Overlap Analysis"}
    labels = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in processes.items()]
    events = [
        operator("aten::mm", START_US, 10),
        plain("AscendCL@aclopExecute", START_US + 1, 5, 2),
        plain("MatMulV2", START_US + 20, 30.5, 3),
        plain("hcom_allReduce__123_0_1", START_US + 60, 40.5, 4),
        plain("Memcpy", START_US + 61, 9.5, 4),
        plain("Notify_Wait", START_US + 61, 0, 4),
        plain("Notify_Wait", START_US + 61, 0, 3),
        plain("Computing", START_US, 500, 5),
        plain("Free", START_US + 500, 500, 5),
    ]
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps([*labels, *events]))
    trace = read_trace(path)
    assert (trace.device_kind, trace.quality.device_events, damage(trace.quality)) == (
        "other",
        3,
        (0, 0, 0, 0),
    )
    (window,) = reduce_file(trace).breakdowns
    assert (window.compute_us, window.communication_us) == (30.5, 40.5)


def test_mtia_copies_are_copies_and_waits_are_no_work(tmp_path: Path) -> None:
    def of_device(name: str, ts: float, number: int) -> Event:
        return trace_event("mtia_ccp_events", name, START_US + ts, 10.5, stream=1, device=0, correlation=number)

    calls = [trace_event("mtia_runtime", "launchKernel", START_US + number, 1, correlation=number) for number in (1, 2, 3)]
    trace = trace_of(
        tmp_path, [*calls, of_device("gemm", 10, 1), of_device("dma_request", 30, 2), of_device("event_wait", 50, 3)]
    )
    (window,) = reduce_file(trace).breakdowns
    assert (trace.device_kind, window.compute_us, window.memcpy_us, window.window_us) == ("other", 10.5, 10.5, 30.5)
    assert damage(trace.quality) == (0, 0, 0, 0)


@pytest.mark.parametrize("vendor", ["musa", "gcu", "mlu"])
def test_categories_of_other_vendors_are_spelled_like_those_of_cuda(tmp_path: Path, vendor: str) -> None:
    calls = [trace_event(f"{vendor}_runtime", f"{vendor}LaunchKernel", START_US + at, 1, correlation=at) for at in range(1, 4)]
    events = [trace_event(f"{vendor}_kernel", GEMM, START_US + 20 * at, 10.5, stream=1, correlation=at) for at in range(1, 3)]
    copy = trace_event(f"{vendor}_memcpy", "Memcpy HtoD", START_US + 90, 5.5, stream=1, correlation=9)
    trace = trace_of(tmp_path, [*calls, *events, copy])
    assert (trace.quality.device_events, trace.quality.launches, trace.quality.without_kernel) == (3, 3, 1)
    (window,) = reduce_file(trace).breakdowns
    assert (window.compute_us, window.memcpy_us) == (21, 5.5)
