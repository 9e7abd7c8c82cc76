"""Quality of a trace: clocks that contradict each other, missing activity, and steps that lack kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.analysis.trace.healthy_kernels import HOUR_US, SECOND_US, START_US, damage, kernels, pair, work
from tests.analysis.trace_events import Event, annotation, trace_of

from rankscope.analysis.collectives.windows import quality_of, reduce_file, step_breakdowns
from rankscope.analysis.trace.columns import read_trace
from rankscope.analysis.trace.work import work_events

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def test_healthy_trace_has_no_damage(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, work())
    assert damage(trace.quality) == (0, 0, 0, 0)
    assert (trace.quality.device_events, trace.quality.launches, trace.quality.problem) == (10, 10, None)
    assert len(trace.missing) == len(trace.cut) == 0


@pytest.mark.parametrize("by_us", [-2, -900, -30_000, -800_000])
@pytest.mark.parametrize("first", [0, 50, 97])
def test_kernels_before_their_launches_show_contradicting_clocks(tmp_path: Path, by_us: float, first: int) -> None:
    events = work(100, every=1000)
    for event in kernels(events)[first:]:
        event["ts"] += by_us
    quality = trace_of(tmp_path, events).quality
    assert quality.before_launch == (0 if by_us > -1000 else 100 - first)
    assert quality.problem == ("damaged" if by_us < -1000 else None)
    assert by_us > -1000 or f"({100 - first} of 100 events)" in (quality.reason or "")


def test_few_kernels_before_their_launches_are_only_counted(tmp_path: Path) -> None:
    events = work(100, every=1000)
    for event in kernels(events)[:2]:
        event["ts"] -= 5000
    quality = trace_of(tmp_path, events).quality
    assert (quality.before_launch, quality.problem) == (2, None)


@pytest.mark.parametrize("by_us", [-500_000, -3 * SECOND_US, -HOUR_US])
@pytest.mark.parametrize("category", ["kernel", "cuda_runtime"])
@pytest.mark.parametrize("delay_us", [20, 700_000])
def test_clock_that_is_set_back_is_damage(tmp_path: Path, by_us: float, category: str, delay_us: float) -> None:
    events = work(100, every=20_000)
    for event in kernels(events):
        # The device is busy all the time, and so the queue is long.
        event.update(dur=19_990.5, ts=event["ts"] + delay_us)
    for event in events[100:]:
        event["ts"] += by_us if event["cat"] == category else 0
    trace = trace_of(tmp_path, events)
    assert quality_of(trace, work_events(trace)).problem == "damaged"


@pytest.mark.parametrize(("lost", "problem"), [(0, None), (10, None), (60, "no_activity"), (100, "no_activity")])
def test_trace_with_most_kernels_missing_shows_no_activity(tmp_path: Path, lost: int, problem: str | None) -> None:
    events = work(100)
    for event in kernels(events)[:lost]:
        events.remove(event)
    trace = trace_of(tmp_path, events)
    quality = trace.quality
    assert (quality.launches, quality.without_kernel) == (100, lost)
    assert quality.problem == problem
    assert len(trace.missing) == lost
    assert problem is None or f"{lost} of 100" in (quality.reason or "")


def test_trace_without_kernels_has_no_figures(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [event for event in work() if event["cat"] == "cuda_runtime"])
    assert (trace.has_device_work, trace.device_kind) == (False, "cuda")
    (window,) = reduce_file(trace).breakdowns
    assert (window.window_us, window.truncated) == (0, True)


def test_torn_trace_is_not_judged_for_missing_kernels(tmp_path: Path) -> None:
    events = sorted(work(), key=lambda event: event["cat"] == "kernel")
    text = json.dumps({"traceEvents": events})
    path = tmp_path / "rank-0.json"
    path.write_text(text[: text.index('"kernel"') + 300])
    trace = read_trace(path)
    assert trace.torn
    assert (trace.quality.launches, trace.quality.without_kernel, trace.quality.problem) == (10, 0, None)


def steps(*damaged: int, share: float = 0.1, count: int = 4) -> list[Event]:
    """Return steps of 50 kernels; the ``damaged`` ones lack a share."""
    events = []
    for step in range(count):
        start = START_US + 10_000 * step
        step_events = work(50, first=1 + 100 * step, start=start)
        lost = kernels(step_events)[: round(share * 50)] if step in damaged else []
        events += [annotation(f"ProfilerStep#{step}", start - 10, 9_990), *(item for item in step_events if item not in lost)]
    return events


def test_step_with_missing_kernels_is_excluded_from_figures(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, steps(1, 2))
    events = work_events(trace)
    assert [row.truncated for row in step_breakdowns(trace, events)] == [False, True, True, False]
    quality = quality_of(trace, events)
    assert (quality.damaged_steps, quality.problem) == (2, None)


def test_trace_with_kernels_missing_in_all_steps_is_damaged(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, steps(0, 1, 2, 3))
    assert quality_of(trace, work_events(trace)).problem == "damaged"


def test_one_kernel_in_fifty_may_be_missing(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, steps(0, 1, 2, 3, share=0.02))
    quality = quality_of(trace, work_events(trace))
    assert (quality.without_kernel, quality.damaged_steps, quality.problem) == (4, 0, None)


def test_unnumbered_collectives_of_damaged_steps_do_not_count(tmp_path: Path) -> None:
    events = steps(1)
    for step in range(4):
        events += pair(90 + 100 * step, START_US + 10_000 * step + 6_000, name=NCCL, stream=20)
    assert [row.step for row in reduce_file(trace_of(tmp_path, events)).collectives] == [0, 2, 3]
    for event in events:
        if event["name"] == NCCL:
            event["args"] |= {"Collective name": "allreduce", "Seq": event["args"]["correlation"]}
    assert [row.step for row in reduce_file(trace_of(tmp_path, events)).collectives] == [0, 1, 2, 3]
