"""Step as spans: ids on which all ranks agree, and the times of the record."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.profiler.helper.publishing.spans import resource_attributes, step_spans, trace_id
from rankscope.runs.records import PHASES, PhaseTimes, RankInfo, RunInfo, StepRecord

START = 1_700_000_000_000_000_123


def record(**phases: float) -> StepRecord:
    """Return the record of a step with these phases."""
    return StepRecord(step=7, start_unix_ns=START, wall_us=sum(phases.values()), phases_us=PhaseTimes(**phases))


def test_a_step_of_all_ranks_is_one_trace_and_every_span_has_an_id_of_its_own() -> None:
    spans = [step_spans(record(forward=1.0, backward=2.0), "run", 0, rank) for rank in range(8)]
    every = [span for parent, children in spans for span in (parent, *children)]
    assert len({span.trace_id for span in every}) == 1
    assert len({span.span_id for span in every}) == len(every) == 24
    again, _ = step_spans(record(forward=1.0, backward=2.0), "run", 0, 0)
    assert again == spans[0][0], "a step has the same ids whenever it is asked"


def test_runs_attempts_and_steps_are_traces_of_their_own() -> None:
    ids = {trace_id(run, attempt, step) for run in ("a", "b", "a\0001") for attempt in (0, 1, 10) for step in (0, 1, 10)}
    assert len(ids) == 27
    assert all(0 < identifier < 2**128 for identifier in ids)


phase_times = st.dictionaries(st.sampled_from(PHASES), st.floats(0, 1e9).map(lambda us: round(us, 3)), min_size=1)


@given(phase_times)
def test_the_phases_lie_one_after_another_and_fill_the_step(phases: dict[str, float]) -> None:
    parent, children = step_spans(record(**phases), "run", 0, 0)
    assert [child.name for child in children] == [phase for phase in PHASES if phase in phases]
    bounds = [(child.start_unix_ns, child.end_unix_ns) for child in children]
    assert (bounds[0][0], parent.start_unix_ns) == (START, START)
    assert bounds[-1][1] == parent.end_unix_ns
    assert all(end == start for (_, end), (start, _) in pairwise(bounds))
    for child in children:
        assert child.end_unix_ns - child.start_unix_ns == pytest.approx(phases[child.name] * 1000, abs=2)


def test_phases_that_are_not_known_leave_a_gap_at_the_end() -> None:
    step = StepRecord(step=1, start_unix_ns=START, wall_us=10.0, phases_us=PhaseTimes(forward=4.0))
    parent, (forward,) = step_spans(step, "run", 0, 0)
    assert (forward.end_unix_ns - START, parent.end_unix_ns - START) == (4000, 10_000)


def test_what_is_not_known_is_not_said() -> None:
    parent, children = step_spans(record(forward=1.0), "run", 0, 0)
    assert parent.attributes == {"rankscope.step": 7, "rankscope.phase_times": "laid_out", "rankscope.profiled": False}
    assert children[0].attributes == {}


def test_waiting_device_times_and_work_are_attributes() -> None:
    step = StepRecord(
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
    parent, (forward, backward) = step_spans(step, "run", 0, 0)
    assert forward.attributes == {"rankscope.blocked_us": 0.0}
    assert backward.attributes == {"rankscope.blocked_us": 2.5, "rankscope.device_us": 4.0}
    said = {"blocked_us": 2.5, "own_us": 2.5, "samples": 4, "flops": 1e9, "tags": ["checkpoint"], "section.augment_us": 1.5}
    assert {f"rankscope.{name}": value for name, value in said.items()}.items() <= parent.attributes.items()


def test_a_resource_is_the_rank() -> None:
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
