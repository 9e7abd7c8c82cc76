"""Pipeline bubbles: the schedule's bubble, imbalance between stages, and the residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.step_files import table_of_records

from rankscope.analysis.costs.pipeline import ideal_bubble, pipeline_of, schedule_us
from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.report.terminal import render_text
from rankscope.runs.records import PhaseTimes, Pipeline, RankInfo, StepRecord

Synthetic = Callable[..., Any]

busy_times = st.lists(st.floats(1.0, 1000.0), min_size=2, max_size=6)
SCHEDULE = Pipeline(schedule="Schedule1F1B", microbatches=4)


def one_forward_one_backward(busy: list[float], microbatches: int) -> float:
    """Simulate 1F1B and return the duration of a step whose stages are ``busy`` this long in total, a third of it in forward."""
    stages = len(busy)
    forward, backward = ([share * item / microbatches for item in busy] for share in (1 / 3, 2 / 3))
    orders = []
    for stage in range(stages):
        warm = min(stages - stage - 1, microbatches)
        order = [("f", number) for number in range(warm)]
        for number in range(microbatches - warm):
            order += [("f", warm + number), ("b", number)]
        order += [("b", number) for number in range(microbatches - warm, microbatches)]
        orders.append(order)
    ended: dict[tuple[str, int, int], float] = {}
    free, at = [0.0] * stages, [0] * stages
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        for stage in range(stages):
            while at[stage] < len(orders[stage]):
                kind, number = orders[stage][at[stage]]
                before = ("f", stage - 1, number) if kind == "f" else ("b", stage + 1, number)
                first = stage == 0 if kind == "f" else stage == stages - 1
                if not first and before not in ended:
                    break
                start = max(free[stage], 0.0 if first else ended[before])
                free[stage] = start + (forward if kind == "f" else backward)[stage]
                ended[(kind, stage, number)] = free[stage]
                at[stage] += 1
    return max(free)


def table(busy: dict[int, float], step_us: float, *, steps: int = 12, noise: float = 0.0) -> StepTable:
    rng = np.random.default_rng(0)

    def record(step: int, own: float) -> StepRecord:
        own *= 1 + noise * float(rng.standard_normal())
        return StepRecord(
            step=step,
            start_unix_ns=10**18 + step,
            wall_us=step_us,
            phases_us=PhaseTimes(forward=step_us),
            blocked_us=PhaseTimes(forward=step_us - own),
        )

    return table_of_records({rank: [record(step, own) for step in range(steps)] for rank, own in busy.items()})


def infos(stages: dict[int, int]) -> dict[int, RankInfo]:
    return {
        rank: RankInfo(rank=rank, world_size=len(stages), host="n", pid=1, start_unix_ns=1, coordinates={"pp": stage})
        for rank, stage in stages.items()
    }


@given(stages=st.integers(2, 8), microbatches=st.integers(1, 16), busy=st.floats(1.0, 1e6))
def test_schedule_time_of_equal_stages_equals_a_simulation(stages: int, microbatches: int, busy: float) -> None:
    takes = schedule_us(np.full(stages, busy), microbatches)
    assert takes == pytest.approx(one_forward_one_backward([busy] * stages, microbatches))
    assert 1 - busy / takes == pytest.approx(ideal_bubble(stages, microbatches))


@given(busy=busy_times, microbatches=st.integers(1, 12))
def test_schedule_time_is_bounded_by_simulation_and_slowest_stage(busy: list[float], microbatches: int) -> None:
    takes = schedule_us(np.array(busy), microbatches)
    assert takes <= one_forward_one_backward(busy, microbatches) * (1 + 1e-9)
    assert takes >= max(busy)


@pytest.mark.parametrize(("microbatches", "chunks"), [(0, 1), (4, 0), (-4, 2), (-4, -1), (None, 1)])
def test_impossible_schedule_numbers_give_no_ideal_bubble(microbatches: int | None, chunks: int) -> None:
    result = Pipeline(schedule="Schedule1F1B", microbatches=microbatches, chunks=chunks)
    pipeline = pipeline_of(table({0: 10.0, 1: 20.0}, 40.0), infos({0: 0, 1: 1}), result)
    assert pipeline is not None
    assert (pipeline.ideal_bubble, pipeline.ideal_us, pipeline.imbalance_us, pipeline.rest_us) == (None, None, None, None)


@given(busy=busy_times, microbatches=st.integers(1, 12), more=st.floats(0.0, 500.0))
def test_bubble_parts_add_up_to_the_bubble(busy: list[float], microbatches: int, more: float) -> None:
    step = schedule_us(np.array(busy), microbatches) + more
    stages = dict(enumerate(range(len(busy))))
    result = Pipeline(schedule="ScheduleGPipe", microbatches=microbatches)
    pipeline = pipeline_of(table(dict(enumerate(busy)), step), infos(stages), result)
    assert pipeline is not None
    assert pipeline.ideal_us is not None
    assert pipeline.imbalance_us is not None
    assert pipeline.rest_us == pytest.approx(more, abs=1e-6 * step)
    assert pipeline.rest_us is not None
    assert pipeline.ideal_us + pipeline.imbalance_us + pipeline.rest_us == pytest.approx(
        pipeline.bubble * step, rel=1e-6, abs=1e-6
    )
    assert [stage.busy_us for stage in pipeline.stages] == pytest.approx(busy, abs=1e-6 * step)  # times have single precision


def test_significantly_slow_stage_is_named() -> None:
    pipeline = pipeline_of(table({0: 50.0, 1: 50.0, 2: 70.0, 3: 50.0}, 120.0, noise=0.05), infos({0: 0, 1: 1, 2: 2, 3: 3}), None)
    assert pipeline is not None
    assert pipeline.slowest_stage == 2
    assert pipeline.slowest_excess == pytest.approx(0.4, abs=0.05)
    # Without the schedule its cost is unknown
    assert (pipeline.ideal_bubble, pipeline.ideal_us, pipeline.imbalance_us, pipeline.rest_us) == (None, None, None, None)
    assert pipeline.bubble == pytest.approx(1 - 55 / 120, abs=0.02)


def test_stages_that_differ_by_noise_are_not_named() -> None:
    pipeline = pipeline_of(
        table(dict.fromkeys(range(4), 50.0), 100.0, noise=0.2), infos({rank: rank for rank in range(4)}), SCHEDULE
    )
    assert pipeline is not None
    assert (pipeline.slowest_stage, pipeline.slowest_excess) == (None, None)


def test_ranks_of_one_stage_count_once() -> None:
    pipeline = pipeline_of(table({0: 40.0, 1: 60.0, 2: 80.0, 3: 100.0}, 200.0), infos({0: 0, 1: 0, 2: 1, 3: 1}), SCHEDULE)
    assert pipeline is not None
    assert [(stage.stage, stage.ranks, stage.busy_us) for stage in pipeline.stages] == [(0, [0, 1], 50.0), (1, [2, 3], 90.0)]


def test_slow_replica_does_not_make_its_stage_slow() -> None:
    pipeline = pipeline_of(
        table({0: 50.0, 1: 50.0, 2: 50.0, 3: 110.0}, 200.0, noise=0.05), infos({0: 0, 1: 0, 2: 1, 3: 1}), SCHEDULE
    )
    assert pipeline is not None
    assert (pipeline.slowest_stage, pipeline.slowest_excess) == (None, None)
    assert pipeline.imbalance_us == pytest.approx(0, abs=3)
    assert [stage.busy_us for stage in pipeline.stages] == pytest.approx([50, 80], abs=3), (
        "busy is still the mean of the replicas"
    )
    assert pipeline.rest_us is not None
    assert pipeline.rest_us > 0.6 * pipeline.bubble * 200, "most of the waiting is for the slow replica"


@pytest.mark.parametrize("stages", [{0: 0, 1: 0}, {}, {0: 0}])
def test_ranks_without_stages_have_no_bubble(stages: dict[int, int]) -> None:
    assert pipeline_of(table({0: 50.0, 1: 50.0}, 100.0), infos(stages), None) is None


def test_records_without_own_time_show_no_bubble() -> None:
    rows = {
        rank: [
            StepRecord(step=step, start_unix_ns=step, wall_us=1.0, phases_us=PhaseTimes(), blocked_us=None) for step in range(20)
        ]
        for rank in (0, 1)
    }
    assert pipeline_of(table_of_records(rows), infos({0: 0, 1: 1}), SCHEDULE) is None


def test_zero_bubble_schedule_has_no_ideal_bubble() -> None:
    result = Pipeline(schedule="ScheduleZBVZeroBubble", microbatches=4, chunks=2)
    pipeline = pipeline_of(table({0: 50.0, 1: 50.0}, 60.0), infos({0: 0, 1: 1}), result)
    assert pipeline is not None
    assert (pipeline.ideal_bubble, pipeline.rest_us, pipeline.microbatches) == (None, None, 4)


def test_bubble_that_dominates_the_step_is_the_verdict(synthetic: Synthetic) -> None:
    # Given four stages on a rank each, the second of which takes longer
    run = synthetic(
        steps=30,
        transfer_us=80_000,
        plan=lambda rank, _step: {"phase": "forward", "us": 30_000 * (rank == 1)},
        coordinates={rank: {"pp": rank} for rank in range(4)},
        pipeline=SCHEDULE,
    )
    analysis = analyze([run.write()])
    # Then no rank is named, and the bubble is explained
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.stage) == ("pipeline_bubble", None, 1)
    assert verdict.explained_by == "schedule"
    assert "Every pipeline stage is on one rank" in verdict.summary
    assert "Stage 1 is busy" in verdict.summary
    assert any("micro-batches" in action for action in verdict.next)
    pipeline = analysis.pipeline
    assert pipeline is not None
    assert pipeline.ideal_bubble == pytest.approx(3 / 7)
    assert {row.name for row in analysis.findings[0].evidence} >= {"share.pipeline_bubble", "bubble.ideal_share", "stage_busy.3"}
    text = render_text(analysis)
    assert "pipeline Schedule1F1B, 4 micro-batches" in text
    assert "42.9% with equal stages" in text
