"""Check of a trace's device events: those without a time, far from the rest or too long, and launches without their kernel."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.trace_events import Event, annotation, kernel, launch, operator, trace_event, trace_of

from rankscope.analysis.collectives.windows import quality_of, reduce_file, step_breakdowns
from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.trace.columns import Trace, read_trace
from rankscope.analysis.trace.work import work_events

GEMM, NCCL = "ampere_sgemm_128x64", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
START_US = 5e12
"""Start of traces whose times do not count from 0."""
BASE_NS = 1_700_000_000_000_000_000
HOUR_US, SECOND_US = 3.6e9, 1e6


def pair(
    number: int, ts: float, dur: float = 10.5, *, name: str = GEMM, call: str = "cudaLaunchKernel", **args: Any
) -> list[Event]:
    """Return a call, and its kernel 20 us later."""
    return [launch(number, ts, name=call), kernel(name, ts + 20, dur, correlation=number, **args)]


def work(count: int = 10, *, first: int = 1, start: float = START_US, every: float = 100, dur: float = 10.5) -> list[Event]:
    """Return healthy kernels and their calls."""
    return [event for at in range(count) for event in pair(first + at, start + every * at, dur)]


def kernels(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event["cat"] == "kernel"]


def lengths(trace: Trace) -> list[float]:
    """Return the lengths of the kernels that count, in the order of their starts, in us."""
    rows = sorted(trace.rows(0), key=lambda row: trace.start[row])
    return [(trace.end[row] - trace.start[row]) / 1000 for row in rows]


def damage(quality: DataQuality) -> tuple[int, int, int, int]:
    return quality.without_time, quality.far, quality.overlong, quality.without_kernel


def test_a_healthy_trace_has_no_damage(tmp_path: Path) -> None:
    loaded_trace = trace_of(tmp_path, work())
    assert damage(loaded_trace.quality) == (0, 0, 0, 0)
    assert (loaded_trace.quality.device_events, loaded_trace.quality.launches, loaded_trace.quality.problem) == (10, 10, None)
    assert len(loaded_trace.missing) == len(loaded_trace.cut) == 0


@pytest.mark.parametrize(("base", "ts"), [(BASE_NS, 0), (BASE_NS, -BASE_NS / 1000), (0, 0)])
def test_kernels_at_zero_have_no_time(tmp_path: Path, base: int, ts: float) -> None:
    events = work()
    for event in kernels(events)[:3]:
        event |= {"ts": ts, "dur": 0}
    loaded_trace = trace_of(tmp_path, events, baseTimeNanoseconds=base)
    assert damage(loaded_trace.quality) == (3, 0, 0, 0)
    assert loaded_trace.quality.without_time_share == 0.3
    assert (loaded_trace.missing - base).tolist() == [round(event["ts"] * 1000) for event in events[:6:2]]


def test_a_trace_may_count_its_times_from_zero(tmp_path: Path) -> None:
    events = [kernel(GEMM, 0, 0, correlation=1), *(kernel(GEMM, ts, 5, correlation=ts) for ts in (10, 20))]
    assert damage(trace_of(tmp_path, events).quality) == (0, 0, 0, 0)


@pytest.mark.parametrize(("dur", "damaged"), [(2, 0), (20, 3), (10.5, 3)])
def test_no_length_is_no_time_unless_rounding_to_microseconds_explains_it(tmp_path: Path, dur: float, damaged: int) -> None:
    events = work(dur=dur)
    for event in kernels(events)[:3]:
        event["dur"] = 0
    assert damage(trace_of(tmp_path, events).quality) == (damaged, 0, 0, 0)


def test_a_short_kernel_beside_long_ones_may_seem_to_take_no_time(tmp_path: Path) -> None:
    events = [*work(dur=20), *(event for at in range(5) for event in pair(50 + at, START_US + 50 + 100 * at, 0, name="fill"))]
    assert damage(trace_of(tmp_path, events).quality) == (0, 0, 0, 0)


@pytest.mark.parametrize("name", ["event_wait", "Notify_Wait", "EVENT_RECORD", "CAPTURE_WAIT", "event_wait 104"])
def test_waiting_for_what_is_over_takes_no_time_and_is_no_work(tmp_path: Path, name: str) -> None:
    waits = [kernel(name, START_US + 30 + 100 * at, 0 if at % 2 else 200.5, correlation=500 + at) for at in range(10)]
    result = trace_of(tmp_path, [*work(), *waits])
    assert damage(result.quality) == (0, 0, 0, 0)
    assert reduce_file(result).breakdowns[0].compute_us == 105


@pytest.mark.parametrize("name", ["Memset (Device)", "Memcpy HtoD (Pageable -> Device)"])
def test_filling_or_copying_nothing_takes_no_time(tmp_path: Path, name: str) -> None:
    events = [*work(), *(event for at in range(5) for event in pair(50 + at, START_US + 50 + 100 * at, 0, name=name))]
    loaded_trace = trace_of(tmp_path, events)
    assert (loaded_trace.quality.device_events, damage(loaded_trace.quality)) == (15, (0, 0, 0, 0))


@pytest.mark.parametrize("bad", [{"dur": -3}, {"dur": None}, {"ts": 1e300}, {"ts": "soon"}])
@pytest.mark.parametrize("start", [0, START_US])
def test_impossible_times_are_none_wherever_times_count_from(tmp_path: Path, bad: Event, start: float) -> None:
    events = work(start=start)
    kernels(events)[4].update(bad)
    loaded_trace = trace_of(tmp_path, events)
    assert damage(loaded_trace.quality) == (1, 0, 0, 0)
    assert loaded_trace.missing.tolist() == [round((start + 400) * 1000)]
    assert reduce_file(loaded_trace).breakdowns[0].window_us == 910.5


def test_a_trace_without_any_time_is_damaged(tmp_path: Path) -> None:
    events = work()
    for event in kernels(events):
        event |= {"ts": 0, "dur": 0}
    quality = trace_of(tmp_path, events, baseTimeNanoseconds=BASE_NS).quality
    assert (quality.problem, quality.without_time) == ("damaged", 10)
    assert "10 device events" in (quality.reason or "")


@pytest.mark.parametrize(
    ("by", "has_calls"),
    [(-5 * SECOND_US, True), *((by, has) for by in (-30 * HOUR_US, 700 * SECOND_US, 30 * HOUR_US) for has in (True, False))],
)
def test_kernels_far_before_or_after_the_rest_are_left_out(tmp_path: Path, by: float, has_calls: bool) -> None:
    events = work()
    kernels(events)[4]["ts"] += by
    loaded_trace = trace_of(tmp_path, events if has_calls else kernels(events))
    assert damage(loaded_trace.quality) == (0, 1, 0, 0)
    assert reduce_file(loaded_trace).breakdowns[0].window_us == 910.5


def test_an_idle_hour_between_work_of_the_host_is_fine(tmp_path: Path) -> None:
    loaded_trace = trace_of(tmp_path, [*work(), *work(first=11, start=START_US + HOUR_US)])
    assert damage(loaded_trace.quality) == (0, 0, 0, 0)
    assert reduce_file(loaded_trace).breakdowns[0].window_us > HOUR_US


@pytest.mark.parametrize("gap_s", [70, 400, 4000])
@pytest.mark.parametrize("counts", [(10, 1), (1, 10), (1,) * 10, (200, 3, 200), (2,) * 150])
@pytest.mark.parametrize("has_calls", [True, False])
def test_pauses_of_minutes_between_steps_are_fine(
    tmp_path: Path, counts: tuple[int, ...], gap_s: float, *, has_calls: bool
) -> None:
    events: list[Event] = []
    for step, count in enumerate(counts):
        start = START_US + step * gap_s * SECOND_US
        of_rank = [
            *work(count, first=1 + 1000 * step, start=start),
            operator("aten::mm", start, 50),
            operator("aten::mm", start, 5),
        ]
        events += of_rank if has_calls else [event for event in of_rank if event["cat"] != "cuda_runtime"]
    loaded_trace = trace_of(tmp_path, events)
    assert (loaded_trace.damaged, damage(loaded_trace.quality)) == (0, (0, 0, 0, 0))


@pytest.mark.parametrize(("odd", "far"), [(2, 2), (4, 0)])
def test_without_a_host_only_large_groups_of_kernels_are_apart(tmp_path: Path, odd: int, far: int) -> None:
    events = [*kernels(work()), *kernels(work(odd, first=20, start=START_US + HOUR_US))]
    assert damage(trace_of(tmp_path, events).quality) == (0, far, 0, 0)


def test_an_event_may_span_the_minutes_before_all_others(tmp_path: Path) -> None:
    step = annotation("ProfilerStep#0", START_US - 70 * SECOND_US, 71 * SECOND_US)
    assert trace_of(tmp_path, [step, *work()]).damaged == 0


@pytest.mark.parametrize("end_s", [5, 300])
@pytest.mark.parametrize("is_busy", [True, False])
def test_launched_kernels_begin_later_only_while_the_device_is_busy(tmp_path: Path, end_s: float, *, is_busy: bool) -> None:
    events = work()
    events += pair(50, START_US + 1000, end_s * SECOND_US) if is_busy else []
    events += [launch(51, START_US + 1010), kernel(GEMM, START_US + end_s * SECOND_US + 1100, 9.5, correlation=51)]
    events += [launch(52, START_US + 1020), kernel(GEMM, START_US + end_s * SECOND_US + 1200, 9.5, correlation=52)]
    assert damage(trace_of(tmp_path, events).quality) == (0, 0 if is_busy else 2, 0, 0)


@pytest.mark.parametrize("dur", [1, 5 * SECOND_US])
def test_a_kernel_whose_launch_returns_late_begins_late(tmp_path: Path, dur: float) -> None:
    late = START_US + 5 * SECOND_US
    events = [*work(), launch(50, START_US + 1000, dur), kernel(GEMM, late, 9.5, correlation=50)]
    assert trace_of(tmp_path, events).quality.far == (1 if dur == 1 else 0)


def test_a_kernel_that_waits_a_minute_for_its_stream_is_fine(tmp_path: Path) -> None:
    events = [*pair(1, START_US, 60 * SECOND_US), *work(first=2, start=START_US + 60 * SECOND_US)]
    events += [launch(90, START_US + 1), kernel(GEMM, START_US + 61 * SECOND_US, 9.5, correlation=90)]
    assert damage(trace_of(tmp_path, events).quality) == (0, 0, 0, 0)


def test_host_events_without_a_time_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [*work(), operator("aten::mm", 0, 0), operator("aten::mm", START_US + 99 * HOUR_US, 5)]
    loaded_trace = trace_of(tmp_path, events)
    assert (loaded_trace.damaged, damage(loaded_trace.quality)) == (2, (0, 0, 0, 0))


def test_a_kernel_that_overruns_the_next_is_cut_to_the_median_of_its_kind(tmp_path: Path) -> None:
    events = work()
    kernels(events)[4]["dur"] = 0.5 * SECOND_US
    loaded_trace = trace_of(tmp_path, events)
    assert damage(loaded_trace.quality) == (0, 0, 1, 0)
    assert lengths(loaded_trace) == [10.5] * 10
    assert loaded_trace.cut.tolist() == [round((START_US + 400) * 1000)]


def test_a_kernel_without_its_like_is_cut_where_the_next_begins(tmp_path: Path) -> None:
    events = work()
    kernels(events)[4] |= {"dur": 0.5 * SECOND_US, "name": "other"}
    assert lengths(trace_of(tmp_path, events))[4] == 100


def test_kernels_of_other_streams_and_devices_may_overlap(tmp_path: Path) -> None:
    events = [*work(), *pair(50, START_US, 700, stream=8), *pair(51, START_US, 700, stream=7, device=1)]
    assert damage(trace_of(tmp_path, events).quality) == (0, 0, 0, 0)


def test_rounding_to_microseconds_is_no_overrun(tmp_path: Path) -> None:
    events = [*pair(1, 0, 11), *pair(2, 10, 0), *pair(3, 10, 9), *pair(4, 18, 5)]
    loaded_trace = trace_of(tmp_path, events)
    assert (damage(loaded_trace.quality), lengths(loaded_trace)) == ((0, 0, 0, 0), [11, 0, 9, 5])


@pytest.mark.parametrize(("over", "cut"), [(1.5, 0), (3, 0), (9.5, 0), (20, 9)])
def test_an_overlap_of_a_hundredth_is_no_overrun(tmp_path: Path, over: float, cut: int) -> None:
    assert trace_of(tmp_path, work(every=1000, dur=1000 + over)).quality.overlong == cut


@pytest.mark.parametrize(("call", "cut"), [("cudaLaunchKernelExC", 0), ("cuLaunchKernelEx", 0), ("cudaLaunchKernel", 1)])
def test_a_kernel_may_be_launched_to_start_before_its_predecessor_ends(tmp_path: Path, call: str, cut: int) -> None:
    events = [*work(), *pair(50, START_US + 1000, 50), *pair(51, START_US + 1030, 50, call=call)]
    assert trace_of(tmp_path, events).quality.overlong == cut


def test_a_predecessor_of_an_early_kernel_ends_before_it(tmp_path: Path) -> None:
    events = [*work(), *pair(50, START_US + 1000, SECOND_US), *pair(51, START_US + 1030, 50, call="cudaLaunchKernelExC")]
    assert trace_of(tmp_path, events).quality.overlong == 1


def graph(number: int, ts: float) -> list[Event]:
    """Return a graph of two nodes that run side by side."""
    nodes = [kernel(GEMM, ts + 20 + at, 30.5, correlation=number, graph_node_id=at + 1) for at in (0, 5)]
    return [launch(number, ts, name="cudaGraphLaunch"), *nodes]


def test_nodes_of_a_graph_may_overlap(tmp_path: Path) -> None:
    loaded_trace = trace_of(tmp_path, [event for at in range(9) for event in graph(at + 1, START_US + 100 * at)])
    assert damage(loaded_trace.quality) == (0, 0, 0, 0)
    assert loaded_trace.quality.launches == 0


def test_a_node_that_overruns_the_next_graph_is_cut(tmp_path: Path) -> None:
    events = [event for at in range(9) for event in graph(at + 1, START_US + 100 * at)]
    kernels(events)[6]["dur"] = 0.5 * SECOND_US
    loaded_trace = trace_of(tmp_path, events)
    assert (damage(loaded_trace.quality), lengths(loaded_trace)) == ((0, 0, 1, 0), [30.5] * 18)


@pytest.mark.parametrize(("rest", "cut"), [(0.1, 1), (2, 0)])
def test_the_last_kernel_of_a_stream_is_not_longer_than_all_the_rest(tmp_path: Path, rest: float, cut: int) -> None:
    events = [*work(every=rest * SECOND_US / 10), *pair(50, START_US + rest * SECOND_US, 0.5 * SECOND_US)]
    loaded_trace = trace_of(tmp_path, events)
    assert loaded_trace.quality.overlong == cut
    assert lengths(loaded_trace)[-1] == (10.5 if cut else 0.5 * SECOND_US)


def test_a_short_trace_may_end_with_a_long_kernel(tmp_path: Path) -> None:
    loaded_trace = trace_of(tmp_path, [*pair(1, START_US, 2.5), *pair(2, START_US + 5, 50_000)])
    assert damage(loaded_trace.quality) == (0, 0, 0, 0)


def test_a_last_kernel_that_the_host_waits_for_is_as_long_as_it_says(tmp_path: Path) -> None:
    wait = trace_event("cuda_runtime", "cudaDeviceSynchronize", START_US + 1100, 0.5 * SECOND_US, correlation=99)
    loaded_trace = trace_of(tmp_path, [*work(), *pair(50, START_US + 1000, 0.5 * SECOND_US), wait])
    assert damage(loaded_trace.quality) == (0, 0, 0, 0)


@pytest.mark.parametrize("by_us", [-2, -900, -30_000, -800_000])
@pytest.mark.parametrize("first", [0, 50, 97])
def test_kernels_before_their_launches_show_contradicting_clocks(tmp_path: Path, by_us: float, first: int) -> None:
    events = work(100, every=1000)
    for event in kernels(events)[first:]:
        event["ts"] += by_us
    quality = trace_of(tmp_path, events).quality
    assert quality.before_launch == (0 if by_us > -1000 else 100 - first)
    assert quality.before_launch_share == quality.before_launch / 100
    assert quality.problem == ("damaged" if by_us < -1000 else None)
    assert by_us > -1000 or f"({100 - first} of 100 events)" in (quality.reason or "")


def test_a_few_kernels_before_their_launches_are_counted_alone(tmp_path: Path) -> None:
    events = work(100, every=1000)
    for event in kernels(events)[:2]:
        event["ts"] -= 5000
    quality = trace_of(tmp_path, events).quality
    assert (quality.before_launch, quality.problem) == (2, None)


@pytest.mark.parametrize("by_us", [-500_000, -3 * SECOND_US, -HOUR_US])
@pytest.mark.parametrize("category", ["kernel", "cuda_runtime"])
@pytest.mark.parametrize("delay_us", [20, 700_000])
def test_a_clock_that_is_set_back_shows(tmp_path: Path, by_us: float, category: str, delay_us: float) -> None:
    events = work(100, every=20_000)
    for event in kernels(events):
        # The device is busy all the time, and so the queue is long.
        event.update(dur=19_990.5, ts=event["ts"] + delay_us)
    for event in events[100:]:
        event["ts"] += by_us if event["cat"] == category else 0
    loaded_trace = trace_of(tmp_path, events)
    assert quality_of(loaded_trace, work_events(loaded_trace)).problem == "damaged"


@pytest.mark.parametrize(("lost", "problem"), [(0, None), (10, None), (60, "no_activity"), (100, "no_activity")])
def test_a_trace_most_of_whose_launches_have_no_kernel_shows_no_activity(tmp_path: Path, lost: int, problem: str | None) -> None:
    events = work(100)
    for event in kernels(events)[:lost]:
        events.remove(event)
    loaded_trace = trace_of(tmp_path, events)
    quality = loaded_trace.quality
    assert (quality.launches, quality.without_kernel, quality.without_kernel_share) == (100, lost, lost / 100)
    assert quality.problem == problem
    assert len(loaded_trace.missing) == lost
    assert problem is None or f"{lost} of 100" in (quality.reason or "")


def test_a_trace_without_most_of_its_kernels_has_no_figures(tmp_path: Path) -> None:
    loaded_trace = trace_of(tmp_path, [event for event in work() if event["cat"] == "cuda_runtime"])
    assert (loaded_trace.has_device_work, loaded_trace.device_kind) == (False, "cuda")
    (window,) = reduce_file(loaded_trace).breakdowns
    assert (window.window_us, window.truncated) == (0, True)


def test_the_capture_of_a_graph_runs_nothing(tmp_path: Path) -> None:
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
def test_a_capture_may_begin_or_end_beyond_the_trace(tmp_path: Path, bound: int) -> None:
    calls = capture("cuda", START_US + (-60 if bound == 0 else 2000), 40)
    del calls[bound]
    quality = trace_of(tmp_path, [*work(), *calls]).quality
    assert (quality.launches, quality.without_kernel, quality.captured, quality.problem) == (10, 0, 40, None)


def test_launches_before_and_after_a_capture_are_lost(tmp_path: Path) -> None:
    calls = [launch(50, START_US + 20), *capture("cuda", START_US + 30, 9), launch(51, START_US + 95)]
    loaded_trace = trace_of(tmp_path, [*work(), *calls, *capture("cuda", START_US + 130, 0)])
    assert (loaded_trace.quality.without_kernel, loaded_trace.quality.captured) == (2, 9)
    assert loaded_trace.missing.tolist() == [round((START_US + at) * 1000) for at in (20, 95)]


@pytest.mark.parametrize(("events", "problem"), [(0, "captured_graph"), (2, "captured_graph"), (10, None)])
def test_a_trace_of_little_but_a_capture_shows_no_activity(tmp_path: Path, events: int, problem: str | None) -> None:
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


def test_a_profiler_without_activity_is_not_explained_by_a_small_capture(tmp_path: Path) -> None:
    calls = [event for event in work(50) if event["cat"] == "cuda_runtime"]
    assert trace_of(tmp_path, [*calls, *capture("cuda", START_US + 30, 10)]).quality.problem == "no_activity"


@pytest.mark.parametrize("names", [("cudaLaunchKernel", "cuLaunchKernel"), ("hipLaunchKernel", "hipModuleLaunchKernel")])
@pytest.mark.parametrize("shown", [0, 1])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_launch_may_show_as_several_calls(tmp_path: Path, names: tuple[str, str], shown: int, *, is_lost: bool) -> None:
    events = [*work(20, first=1000, start=START_US + 5000)]
    for at in range(10):
        start = START_US + 100 * at
        events += [launch(1 + 2 * at, start, 5, name=names[0]), launch(2 + 2 * at, start + 1, 4, name=names[1])]
        # Another thread launches at the same time.
        events += [launch(500 + at, start + 2, 1, tid=2), kernel(GEMM, start + 40, 9.5, correlation=500 + at)]
        if not is_lost:
            events.append(kernel(GEMM, start + 20, 9.5, correlation=1 + 2 * at + shown))
    loaded_trace = trace_of(tmp_path, events)
    assert (loaded_trace.quality.launches, loaded_trace.quality.without_kernel) == (40, 10 if is_lost else 0)
    assert len(loaded_trace.missing) == loaded_trace.quality.without_kernel


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_launches_of_graphs_count_where_their_events_are_lost(tmp_path: Path, name: str) -> None:
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


def test_a_trace_of_graphs_without_their_events_shows_no_activity(tmp_path: Path) -> None:
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


def test_kernels_without_ids_tell_nothing_of_single_launches(tmp_path: Path) -> None:
    events = work()
    for event in kernels(events):
        del event["args"]["correlation"]
    assert damage(trace_of(tmp_path, events).quality) == (0, 0, 0, 0)


def test_a_run_on_the_cpu_stays_one_on_a_machine_with_a_gpu(tmp_path: Path) -> None:
    operators = [operator("aten::mm", START_US + 100 * at, 50) for at in range(5)]
    loaded_trace = trace_of(tmp_path, [*operators, trace_event("cuda_runtime", "cudaGetDeviceCount", START_US, 5, correlation=1)])
    assert (loaded_trace.device_kind, loaded_trace.quality.problem) == ("cpu", None)
    assert reduce_file(loaded_trace).breakdowns[0].compute_us == 250


def test_a_torn_trace_is_not_judged_for_missing_kernels(tmp_path: Path) -> None:
    events = sorted(work(), key=lambda event: event["cat"] == "kernel")
    text = json.dumps({"traceEvents": events})
    path = tmp_path / "rank-0.json"
    path.write_text(text[: text.index('"kernel"') + 300])
    loaded_trace = read_trace(path)
    assert loaded_trace.torn
    assert (loaded_trace.quality.launches, loaded_trace.quality.without_kernel, loaded_trace.quality.problem) == (10, 0, None)


def steps(*damaged: int, share: float = 0.1, count: int = 4) -> list[Event]:
    """Return steps of 50 kernels; the ``damaged`` ones lack a share."""
    events = []
    for step in range(count):
        start = START_US + 10_000 * step
        step_events = work(50, first=1 + 100 * step, start=start)
        lost = kernels(step_events)[: round(share * 50)] if step in damaged else []
        events += [
            annotation(f"ProfilerStep#{step}", start - 10, 9_990),
            *(item for item in step_events if item not in lost),
        ]
    return events


def test_a_step_that_lacks_kernels_counts_for_no_figure(tmp_path: Path) -> None:
    loaded_trace = trace_of(tmp_path, steps(1, 2))
    events = work_events(loaded_trace)
    assert [row.truncated for row in step_breakdowns(loaded_trace, events)] == [False, True, True, False]
    quality = quality_of(loaded_trace, events)
    assert (quality.damaged_steps, quality.problem) == (2, None)


def test_a_trace_all_of_whose_steps_lack_kernels_is_damaged(tmp_path: Path) -> None:
    loaded_trace = trace_of(tmp_path, steps(0, 1, 2, 3))
    assert quality_of(loaded_trace, work_events(loaded_trace)).problem == "damaged"


def test_one_kernel_in_fifty_may_be_missing(tmp_path: Path) -> None:
    loaded_trace = trace_of(tmp_path, steps(0, 1, 2, 3, share=0.02))
    quality = quality_of(loaded_trace, work_events(loaded_trace))
    assert (quality.without_kernel, quality.damaged_steps, quality.problem) == (4, 0, None)


def test_unnumbered_collectives_do_not_count_in_steps_that_lack_kernels(tmp_path: Path) -> None:
    events = steps(1)
    for step in range(4):
        events += pair(90 + 100 * step, START_US + 10_000 * step + 6_000, name=NCCL, stream=20)
    assert [row.step for row in reduce_file(trace_of(tmp_path, events)).collectives] == [0, 2, 3]
    for event in events:
        if event["name"] == NCCL:
            event["args"] |= {"Collective name": "allreduce", "Seq": event["args"]["correlation"]}
    assert [row.step for row in reduce_file(trace_of(tmp_path, events)).collectives] == [0, 1, 2, 3]


@pytest.mark.parametrize("category", ["mtia_ccp_events", "privateuse1_kernel"])
def test_other_devices_events_are_cut_where_they_run_one_after_another(tmp_path: Path, category: str) -> None:
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


def test_events_without_streams_run_one_after_the_other_on_their_thread(tmp_path: Path) -> None:
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
    [
        ("Ascend Hardware", "Communication"),
        ("Ascend Hardware(310)", "HCCL"),
        ("Task Scheduler", "Collective Communication"),
    ],
)
def test_device_events_of_ascend_are_told_by_their_process(tmp_path: Path, hardware: str, communication: str) -> None:
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
    loaded_trace = read_trace(path)
    assert (loaded_trace.device_kind, loaded_trace.quality.device_events, damage(loaded_trace.quality)) == (
        "other",
        3,
        (0, 0, 0, 0),
    )
    (window,) = reduce_file(loaded_trace).breakdowns
    assert (window.compute_us, window.communication_us) == (30.5, 40.5)


def test_copies_of_mtia_are_copies_and_waits_are_no_work(tmp_path: Path) -> None:
    def of_device(name: str, ts: float, number: int) -> Event:
        return trace_event("mtia_ccp_events", name, START_US + ts, 10.5, stream=1, device=0, correlation=number)

    calls = [trace_event("mtia_runtime", "launchKernel", START_US + number, 1, correlation=number) for number in (1, 2, 3)]
    loaded_trace = trace_of(
        tmp_path, [*calls, of_device("gemm", 10, 1), of_device("dma_request", 30, 2), of_device("event_wait", 50, 3)]
    )
    (window,) = reduce_file(loaded_trace).breakdowns
    assert (loaded_trace.device_kind, window.compute_us, window.memcpy_us, window.window_us) == ("other", 10.5, 10.5, 30.5)
    assert damage(loaded_trace.quality) == (0, 0, 0, 0)


@pytest.mark.parametrize("vendor", ["musa", "gcu", "mlu"])
def test_categories_of_other_vendors_are_spelled_as_those_of_cuda(tmp_path: Path, vendor: str) -> None:
    calls = [trace_event(f"{vendor}_runtime", f"{vendor}LaunchKernel", START_US + at, 1, correlation=at) for at in range(1, 4)]
    events = [trace_event(f"{vendor}_kernel", GEMM, START_US + 20 * at, 10.5, stream=1, correlation=at) for at in range(1, 3)]
    copy = trace_event(f"{vendor}_memcpy", "Memcpy HtoD", START_US + 90, 5.5, stream=1, correlation=9)
    loaded_trace = trace_of(tmp_path, [*calls, *events, copy])
    assert (loaded_trace.quality.device_events, loaded_trace.quality.launches, loaded_trace.quality.without_kernel) == (3, 3, 1)
    (window,) = reduce_file(loaded_trace).breakdowns
    assert (window.compute_us, window.memcpy_us) == (21, 5.5)
