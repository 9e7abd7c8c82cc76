"""Events that have no time, are far from the rest, or last too long: which are left out or cut, and which are fine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.trace.healthy_kernels import BASE_NS, GEMM, HOUR_US, SECOND_US, START_US, damage, kernels, lengths, pair, work
from tests.analysis.trace_events import Event, annotation, kernel, launch, operator, trace_event, trace_of

from rankscope.analysis.collectives.windows import reduce_file


def beside(name: str) -> list[Event]:
    """Return events without a length between the others."""
    return [event for at in range(5) for event in pair(50 + at, START_US + 50 + 100 * at, 0, name=name)]


FINE: dict[str, list[Event]] = {
    "healthy kernels": work(),
    "times that count from zero": [kernel(GEMM, ts, dur, correlation=ts) for ts, dur in ((0, 0), (10, 5), (20, 5))],
    "a short kernel beside long ones seems to take no time": [*work(dur=20), *beside("fill")],
    "filling nothing takes no time": [*work(), *beside("Memset (Device)")],
    "copying nothing takes no time": [*work(), *beside("Memcpy HtoD (Pageable -> Device)")],
    "a kernel waits a minute for its stream": [
        *pair(1, START_US, 60 * SECOND_US),
        *work(first=2, start=START_US + 60 * SECOND_US),
        *(launch(90, START_US + 1), kernel(GEMM, START_US + 61 * SECOND_US, 9.5, correlation=90)),
    ],
    "other streams and devices overlap": [
        *work(),
        *pair(50, START_US, 700, stream=8),
        *pair(51, START_US, 700, stream=7, device=1),
    ],
    "a short trace ends with a long kernel": [*pair(1, START_US, 2.5), *pair(2, START_US + 5, 50_000)],
    "the host waits for a long last kernel": [
        *work(),
        *pair(50, START_US + 1000, 0.5 * SECOND_US),
        trace_event("cuda_runtime", "cudaDeviceSynchronize", START_US + 1100, 0.5 * SECOND_US, correlation=99),
    ],
    "kernels without ids tell nothing of single launches": [
        *(event for event in work() if event["cat"] != "kernel"),
        *(kernel(GEMM, START_US + 20 + 100 * at, 10.5) for at in range(10)),
    ],
}


@pytest.mark.parametrize("name", FINE)
def test_possible_times_are_no_damage(tmp_path: Path, name: str) -> None:
    assert damage(trace_of(tmp_path, FINE[name]).quality) == (0, 0, 0, 0)


@pytest.mark.parametrize(("base", "ts"), [(BASE_NS, 0), (BASE_NS, -BASE_NS / 1000), (0, 0)])
def test_kernels_at_time_zero_have_no_time(tmp_path: Path, base: int, ts: float) -> None:
    events = work()
    for event in kernels(events)[:3]:
        event |= {"ts": ts, "dur": 0}
    trace = trace_of(tmp_path, events, baseTimeNanoseconds=base)
    assert damage(trace.quality) == (3, 0, 0, 0)
    assert (trace.missing - base).tolist() == [round(event["ts"] * 1000) for event in events[:6:2]]


@pytest.mark.parametrize(("dur", "damaged"), [(2, 0), (20, 3), (10.5, 3)])
def test_zero_duration_is_damage_unless_rounding_explains_it(tmp_path: Path, dur: float, damaged: int) -> None:
    events = work(dur=dur)
    for event in kernels(events)[:3]:
        event["dur"] = 0
    assert damage(trace_of(tmp_path, events).quality) == (damaged, 0, 0, 0)


@pytest.mark.parametrize("name", ["event_wait", "Notify_Wait", "EVENT_RECORD", "CAPTURE_WAIT", "event_wait 104"])
def test_wait_events_are_neither_work_nor_damage(tmp_path: Path, name: str) -> None:
    waits = [kernel(name, START_US + 30 + 100 * at, 0 if at % 2 else 200.5, correlation=500 + at) for at in range(10)]
    result = trace_of(tmp_path, [*work(), *waits])
    assert damage(result.quality) == (0, 0, 0, 0)
    assert reduce_file(result).breakdowns[0].compute_us == 105


@pytest.mark.parametrize("bad", [{"dur": -3}, {"dur": None}, {"ts": 1e300}, {"ts": "soon"}])
@pytest.mark.parametrize("start", [0, START_US])
def test_impossible_times_count_as_damage_for_any_time_base(tmp_path: Path, bad: Event, start: float) -> None:
    events = work(start=start)
    kernels(events)[4].update(bad)
    trace = trace_of(tmp_path, events)
    assert damage(trace.quality) == (1, 0, 0, 0)
    assert trace.missing.tolist() == [round((start + 400) * 1000)]
    assert reduce_file(trace).breakdowns[0].window_us == 910.5


def test_trace_without_any_time_is_damaged(tmp_path: Path) -> None:
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
def test_kernels_far_from_the_rest_are_left_out(tmp_path: Path, by: float, has_calls: bool) -> None:
    events = work()
    kernels(events)[4]["ts"] += by
    trace = trace_of(tmp_path, events if has_calls else kernels(events))
    assert damage(trace.quality) == (0, 1, 0, 0)
    assert reduce_file(trace).breakdowns[0].window_us == 910.5


def test_idle_hour_between_host_work_is_no_damage(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [*work(), *work(first=11, start=START_US + HOUR_US)])
    assert damage(trace.quality) == (0, 0, 0, 0)
    assert reduce_file(trace).breakdowns[0].window_us > HOUR_US


@pytest.mark.parametrize("gap_s", [70, 400, 4000])
@pytest.mark.parametrize("counts", [(10, 1), (1, 10), (1,) * 10, (200, 3, 200), (2,) * 150])
@pytest.mark.parametrize("has_calls", [True, False])
def test_pauses_of_minutes_between_steps_are_no_damage(
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
    trace = trace_of(tmp_path, events)
    assert (trace.damaged, damage(trace.quality)) == (0, (0, 0, 0, 0))


@pytest.mark.parametrize(("odd", "far"), [(2, 2), (4, 0)])
def test_only_small_distant_kernel_groups_without_a_host_are_damage(tmp_path: Path, odd: int, far: int) -> None:
    events = [*kernels(work()), *kernels(work(odd, first=20, start=START_US + HOUR_US))]
    assert damage(trace_of(tmp_path, events).quality) == (0, far, 0, 0)


def test_event_may_span_the_minutes_before_all_others(tmp_path: Path) -> None:
    step = annotation("ProfilerStep#0", START_US - 70 * SECOND_US, 71 * SECOND_US)
    assert trace_of(tmp_path, [step, *work()]).damaged == 0


@pytest.mark.parametrize("end_s", [5, 300])
@pytest.mark.parametrize("is_busy", [True, False])
def test_late_kernel_start_is_damage_unless_the_device_is_busy(tmp_path: Path, end_s: float, *, is_busy: bool) -> None:
    events = work()
    events += pair(50, START_US + 1000, end_s * SECOND_US) if is_busy else []
    events += [launch(51, START_US + 1010), kernel(GEMM, START_US + end_s * SECOND_US + 1100, 9.5, correlation=51)]
    events += [launch(52, START_US + 1020), kernel(GEMM, START_US + end_s * SECOND_US + 1200, 9.5, correlation=52)]
    assert damage(trace_of(tmp_path, events).quality) == (0, 0 if is_busy else 2, 0, 0)


@pytest.mark.parametrize("dur", [1, 5 * SECOND_US])
def test_kernel_whose_launch_returns_late_begins_late(tmp_path: Path, dur: float) -> None:
    late = START_US + 5 * SECOND_US
    events = [*work(), launch(50, START_US + 1000, dur), kernel(GEMM, late, 9.5, correlation=50)]
    assert trace_of(tmp_path, events).quality.far == (1 if dur == 1 else 0)


def test_host_events_without_a_time_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [*work(), operator("aten::mm", 0, 0), operator("aten::mm", START_US + 99 * HOUR_US, 5)]
    trace = trace_of(tmp_path, events)
    assert (trace.damaged, damage(trace.quality)) == (2, (0, 0, 0, 0))


def test_overlong_kernel_is_cut_to_the_median_of_its_kind(tmp_path: Path) -> None:
    events = work()
    kernels(events)[4]["dur"] = 0.5 * SECOND_US
    trace = trace_of(tmp_path, events)
    assert damage(trace.quality) == (0, 0, 1, 0)
    assert lengths(trace) == [10.5] * 10
    assert trace.cut.tolist() == [round((START_US + 400) * 1000)]


def test_overlong_kernel_without_its_kind_is_cut_at_the_next(tmp_path: Path) -> None:
    events = work()
    kernels(events)[4] |= {"dur": 0.5 * SECOND_US, "name": "other"}
    assert lengths(trace_of(tmp_path, events))[4] == 100


def test_rounding_to_microseconds_is_no_overrun(tmp_path: Path) -> None:
    events = [*pair(1, 0, 11), *pair(2, 10, 0), *pair(3, 10, 9), *pair(4, 18, 5)]
    trace = trace_of(tmp_path, events)
    assert (damage(trace.quality), lengths(trace)) == ((0, 0, 0, 0), [11, 0, 9, 5])


@pytest.mark.parametrize(("over", "cut"), [(1.5, 0), (3, 0), (9.5, 0), (20, 9)])
def test_small_relative_overlap_is_no_overrun(tmp_path: Path, over: float, cut: int) -> None:
    assert trace_of(tmp_path, work(every=1000, dur=1000 + over)).quality.overlong == cut


@pytest.mark.parametrize(
    ("call", "dur", "cut"),
    [
        ("cudaLaunchKernelExC", 50, 0),
        ("cuLaunchKernelEx", 50, 0),
        ("cudaLaunchKernel", 50, 1),
        ("cudaLaunchKernelExC", SECOND_US, 1),
    ],
)
def test_kernel_may_be_launched_to_start_before_its_predecessor_ends(tmp_path: Path, call: str, dur: float, cut: int) -> None:
    events = [*work(), *pair(50, START_US + 1000, dur), *pair(51, START_US + 1030, 50, call=call)]
    assert trace_of(tmp_path, events).quality.overlong == cut


def graph(number: int, ts: float) -> list[Event]:
    """Return a graph of two nodes that run side by side."""
    nodes = [kernel(GEMM, ts + 20 + at, 30.5, correlation=number, graph_node_id=at + 1) for at in (0, 5)]
    return [launch(number, ts, name="cudaGraphLaunch"), *nodes]


def test_nodes_of_a_graph_may_overlap(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [event for at in range(9) for event in graph(at + 1, START_US + 100 * at)])
    assert damage(trace.quality) == (0, 0, 0, 0)
    assert trace.quality.launches == 0


def test_node_that_overruns_the_next_graph_is_cut(tmp_path: Path) -> None:
    events = [event for at in range(9) for event in graph(at + 1, START_US + 100 * at)]
    kernels(events)[6]["dur"] = 0.5 * SECOND_US
    trace = trace_of(tmp_path, events)
    assert (damage(trace.quality), lengths(trace)) == ((0, 0, 1, 0), [30.5] * 18)


@pytest.mark.parametrize(("rest", "cut"), [(0.1, 1), (2, 0)])
def test_last_kernel_of_a_stream_is_cut_if_longer_than_all_others(tmp_path: Path, rest: float, cut: int) -> None:
    events = [*work(every=rest * SECOND_US / 10), *pair(50, START_US + rest * SECOND_US, 0.5 * SECOND_US)]
    trace = trace_of(tmp_path, events)
    assert trace.quality.overlong == cut
    assert lengths(trace)[-1] == (10.5 if cut else 0.5 * SECOND_US)
