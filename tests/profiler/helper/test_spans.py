"""What the spans of a step are: the trace on which all ranks agree, its attributes, and the stretches that become children."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rankscope.profiler.helper.publishing.spans import (
    MAX_CHILDREN,
    children_of,
    phase_attributes,
    resource_attributes,
    step_attributes,
    trace_id,
)
from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.records import PHASES, PhaseTimes, RankInfo, RunInfo, StepRecord

START = 1_700_000_000_000_000_123


def test_trace_id_is_unique_per_run_attempt_and_step() -> None:
    ids = {trace_id(run, attempt, step) for run in ("a", "b", "a\0001") for attempt in (0, 1, 10) for step in (0, 1, 10)}
    assert len(ids) == 27
    assert all(0 < identifier < 2**128 for identifier in ids)


def intervals(*stretches: tuple[str, int], blocked_ns: int = 0) -> list[PhaseInterval]:
    """Return the intervals of stretches (phase, nanoseconds) that follow one another."""
    made, at = [], START
    for phase, ns in stretches:
        made.append(PhaseInterval(phase, at, at + ns, blocked_ns))  # type: ignore[arg-type]  # a name of PHASES
        at += ns
    return made


def test_repeated_phase_has_two_child_spans_and_pieces_are_merged() -> None:
    pieces = intervals(("forward", 10), ("forward", 5), ("backward", 7), ("forward", 3), ("backward", 9), blocked_ns=1)
    assert children_of(pieces) == [
        PhaseInterval("forward", START, START + 15, 2),
        PhaseInterval("backward", START + 15, START + 22, 1),
        PhaseInterval("forward", START + 22, START + 25, 1),
        PhaseInterval("backward", START + 25, START + 34, 1),
    ]


def test_intervals_with_a_gap_are_not_merged() -> None:
    first, second = PhaseInterval("data", 0, 5, 0), PhaseInterval("data", 6, 9, 0)
    assert children_of([first, second]) == [first, second]
    assert children_of([]) == []


@given(st.lists(st.tuples(st.sampled_from(PHASES), st.integers(1, 10**9)), min_size=1, max_size=3 * MAX_CHILDREN))
def test_child_spans_are_bounded_and_in_time_order(stretches: list[tuple[str, int]]) -> None:
    children = children_of(intervals(*stretches))
    assert 1 <= len(children) <= MAX_CHILDREN
    assert all(before.end_unix_ns <= after.start_unix_ns for before, after in pairwise(children))
    if len(children) < MAX_CHILDREN:
        assert sum(child.end_unix_ns - child.start_unix_ns for child in children) == sum(ns for _, ns in stretches)


def test_shortest_intervals_are_omitted_above_the_span_limit() -> None:
    long, short = ("forward", 1000), ("h2d", 1)
    children = children_of(intervals(*[long, short] * MAX_CHILDREN))
    assert {child.phase for child in children} == {"forward"}
    assert len(children) == MAX_CHILDREN


def test_unknown_values_have_no_attribute() -> None:
    record = StepRecord(step=7, start_unix_ns=START, wall_us=1.0, phases_us=PhaseTimes(forward=1.0))
    assert step_attributes(record) == {"rankscope.step": 7, "rankscope.profiled": False, "rankscope.phase.forward_us": 1.0}
    assert phase_attributes(PhaseInterval("forward", START, START + 1000, 0), record) == {}


def test_blocked_time_device_times_and_work_are_attributes() -> None:
    record = StepRecord(
        step=0,
        start_unix_ns=START,
        wall_us=5.0,
        phases_us=PhaseTimes(forward=2.0, backward=3.0),
        blocked_us=PhaseTimes(forward=0.0, backward=2.5),
        device_us=PhaseTimes(backward=4.0),
        samples=4,
        flops=1e9,
        tags=["checkpoint"],
        sections_us={"augment": 1.5},
    )
    expected = {
        "blocked_us": 2.5,
        "own_us": 2.5,
        "samples": 4,
        "flops": 1e9,
        "tags": ["checkpoint"],
        "section.augment_us": 1.5,
        "phase.forward_us": 2.0,
        "phase.backward_us": 3.0,
        "blocked.forward_us": 0.0,
        "blocked.backward_us": 2.5,
        "device.backward_us": 4.0,
    }
    attributes = step_attributes(record)
    assert {f"rankscope.{name}": value for name, value in expected.items()}.items() <= attributes.items()
    assert "rankscope.device.forward_us" not in attributes
    assert phase_attributes(PhaseInterval("backward", START, START + 3000, 2500), record) == {"rankscope.blocked_us": 2.5}


def test_resource_attributes_identify_the_rank() -> None:
    rank = RankInfo(
        rank=3, world_size=8, host="h", pid=9, attempt=2, start_unix_ns=1, gpu_uuid="GPU-1", coordinates={"dp": 1, "tp": 0}
    )
    attributes = resource_attributes(RunInfo(run_id="r-1", name="bert", start_unix_ns=1), rank)
    assert attributes == {
        "service.name": "bert",
        "service.instance.id": "r-1/2/3",
        "host.name": "h",
        "process.pid": 9,
        "rankscope.run_id": "r-1",
        "rankscope.attempt": 2,
        "rankscope.rank": 3,
        "rankscope.world_size": 8,
        "rankscope.device_kind": "cpu",
        "rankscope.gpu_uuid": "GPU-1",
        "rankscope.coordinate.dp": 1,
        "rankscope.coordinate.tp": 0,
    }
    simulated = resource_attributes(RunInfo(run_id="r", name="n", start_unix_ns=1, simulated=True), rank)
    assert simulated["rankscope.simulated"] == "true"
