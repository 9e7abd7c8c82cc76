"""Calls that launch kernels and graphs: those whose kernels are lost, and those that only capture a graph."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.trace.healthy_kernels import GEMM, START_US, pair, work
from tests.analysis.trace_events import Event, kernel, launch, trace_event, trace_of


def test_graph_capture_executes_no_kernel(tmp_path: Path) -> None:
    calls = [event for event in work() if event["cat"] == "cuda_runtime"]
    begin = trace_event("cuda_runtime", "cudaStreamBeginCapture", START_US - 5, 1, correlation=90)
    assert trace_of(tmp_path, [begin, *calls]).quality.problem == "captured_graph"


def capture(vendor: str, start: float, count: int, tid: int = 1) -> list[Event]:
    """Return the capture of a graph, with launches on a thread."""
    begin = trace_event("cuda_runtime", f"{vendor}StreamBeginCapture", start, 1, correlation=9000)
    end = trace_event("cuda_runtime", f"{vendor}StreamEndCapture", start + 50, 1, correlation=9999)
    calls = [launch(9001 + at, start + 2 + at * 40 / count, 0.01, name=f"{vendor}LaunchKernel", tid=tid) for at in range(count)]
    return [begin, *calls, end]


@pytest.mark.parametrize("vendor", ["cuda", "hip", "cu"])
@pytest.mark.parametrize("count", [4, 40])
@pytest.mark.parametrize("tid", [1, 2])
def test_launches_into_a_graph_are_not_lost(tmp_path: Path, vendor: str, count: int, tid: int) -> None:
    quality = trace_of(tmp_path, [*work(), *capture(vendor, START_US + 30, count, tid)]).quality
    assert (quality.launches, quality.without_kernel, quality.captured, quality.problem) == (10, 0, count, None)


@pytest.mark.parametrize("bound", [0, -1])
def test_capture_may_begin_or_end_outside_the_trace(tmp_path: Path, bound: int) -> None:
    calls = capture("cuda", START_US + (-60 if bound == 0 else 2000), 40)
    del calls[bound]
    quality = trace_of(tmp_path, [*work(), *calls]).quality
    assert (quality.launches, quality.without_kernel, quality.captured, quality.problem) == (10, 0, 40, None)


def test_launches_around_a_capture_count_as_lost(tmp_path: Path) -> None:
    calls = [launch(50, START_US + 20), *capture("cuda", START_US + 30, 9), launch(51, START_US + 95)]
    trace = trace_of(tmp_path, [*work(), *calls, *capture("cuda", START_US + 130, 0)])
    assert (trace.quality.without_kernel, trace.quality.captured) == (2, 9)
    assert trace.missing.tolist() == [round((START_US + at) * 1000) for at in (20, 95)]


@pytest.mark.parametrize(("events", "problem"), [(0, "captured_graph"), (2, "captured_graph"), (10, None)])
def test_trace_of_mostly_a_capture_shows_no_activity(tmp_path: Path, events: int, problem: str | None) -> None:
    quality = trace_of(tmp_path, [*work(events), *capture("hip", START_US + 30, 60)]).quality
    assert quality.problem == problem
    assert problem is None or f"60 of {60 + events} kernel launches" in (quality.reason or "")


def test_copies_beside_a_capture_are_no_activity(tmp_path: Path) -> None:
    copies = [
        event
        for at in range(30)
        for event in pair(50 + at, START_US + 100 * at, 3.5, name="Memcpy HtoD (Pinned -> Device)", call="hipMemcpyAsync")
    ]
    assert trace_of(tmp_path, [*copies, *capture("hip", START_US + 30, 60)]).quality.problem == "captured_graph"


def test_small_capture_does_not_explain_missing_activity(tmp_path: Path) -> None:
    calls = [event for event in work(50) if event["cat"] == "cuda_runtime"]
    assert trace_of(tmp_path, [*calls, *capture("cuda", START_US + 30, 10)]).quality.problem == "no_activity"


@pytest.mark.parametrize("names", [("cudaLaunchKernel", "cuLaunchKernel"), ("hipLaunchKernel", "hipModuleLaunchKernel")])
@pytest.mark.parametrize("shown", [0, 1])
@pytest.mark.parametrize("is_lost", [True, False])
def test_launch_recorded_as_several_calls_counts_once(
    tmp_path: Path, names: tuple[str, str], shown: int, *, is_lost: bool
) -> None:
    events = [*work(20, first=1000, start=START_US + 5000)]
    for at in range(10):
        start = START_US + 100 * at
        events += [launch(1 + 2 * at, start, 5, name=names[0]), launch(2 + 2 * at, start + 1, 4, name=names[1])]
        # Another thread launches at the same time.
        events += [launch(500 + at, start + 2, 1, tid=2), kernel(GEMM, start + 40, 9.5, correlation=500 + at)]
        if not is_lost:
            events.append(kernel(GEMM, start + 20, 9.5, correlation=1 + 2 * at + shown))
    trace = trace_of(tmp_path, events)
    assert (trace.quality.launches, trace.quality.without_kernel) == (40, 10 if is_lost else 0)
    assert len(trace.missing) == trace.quality.without_kernel


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_graph_launches_without_events_count_as_lost(tmp_path: Path, name: str) -> None:
    launches = [launch(50 + at, START_US + at, name=name) for at in range(9)]
    nodes = [kernel(GEMM, START_US + 5000 + 20 * at, 10.5, correlation=50 + at) for at in range(9)]
    for events, counts in (
        ([*work(), *launches], (19, 9)),
        ([*work(), *launches, *nodes], (10, 0)),
        # the nodes of another profiler have no launch
        ([*work(), *launches, *(event | {"args": {"stream": 7, "device": 0}} for event in nodes)], (10, 0)),
    ):
        quality = trace_of(tmp_path, events).quality
        assert (quality.launches, quality.without_kernel) == counts


def test_graph_trace_without_its_events_shows_no_activity(tmp_path: Path) -> None:
    copy = pair(70, START_US + 500, 3.5, name="Memcpy HtoD (Pinned -> Device)", call="cudaMemcpyAsync")
    launches = [launch(50 + at, START_US + at, name="cudaGraphLaunch") for at in range(9)]
    assert trace_of(tmp_path, [*launches, *copy]).quality.problem == "no_activity"


@pytest.mark.parametrize(
    "name",
    ["hipLaunchKernel", "hipExtModuleLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel", "urEnqueueKernelLaunch"],
)
def test_launches_of_all_vendors_count(tmp_path: Path, name: str) -> None:
    quality = trace_of(tmp_path, [*work(), launch(50, START_US + 1, name=name)]).quality
    assert (quality.launches, quality.without_kernel) == (11, 1)
