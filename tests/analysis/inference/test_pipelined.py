"""A slow rank of a pipeline costs what its schedule lets through: rarely all of it, in an idle stage nearly nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankscope.analysis.engine import analyze
from rankscope.analysis.inference.pipeline_bound import saved_by_schedule_us
from rankscope.analysis.online import OnlineAnalysis
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.run_analysis import read_evidence
from rankscope.runs.records import Pipeline

Synthetic = Callable[..., Any]
IDLE, BUSY = 60_000.0, 100_000.0
"""Time in microseconds that ranks of the first and second of two stages are busy."""
BATCHES = 8


def step_us(busy: list[float], batches: int, *, all_forward_first: bool) -> float:
    """Simulate a step whose stages are ``busy`` this long in total, a third of it in forward; return its duration."""
    stages = len(busy)
    orders = []
    for stage in range(stages):
        warm = batches if all_forward_first else min(stages - stage - 1, batches)
        order = [("f", number) for number in range(warm)]
        for number in range(batches - warm):
            order += [("f", warm + number), ("b", number)]
        orders.append([*order, *(("b", number) for number in range(batches - warm, batches))])
    ended: dict[tuple[str, int, int], float] = {}
    free, at = [0.0] * stages, [0] * stages
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                kind, number = order[at[stage]]
                before = ("f", stage - 1, number) if kind == "f" else ("b", stage + 1, number)
                is_first = stage == 0 if kind == "f" else stage == stages - 1
                if not is_first and before not in ended:
                    break
                start = max(free[stage], 0.0 if is_first else ended[before])
                free[stage] = ended[kind, stage, number] = start + busy[stage] / batches * (1 / 3 if kind == "f" else 2 / 3)
                at[stage] += 1
    return max(free)


@pytest.fixture
def pipeline(synthetic: Synthetic) -> Callable[..., Any]:
    """Return a function that makes a run of two stages on four ranks each, with what some ranks take longer.

    ``longer``: (rank, step) to an extra of the rank.
    """

    def make(longer: Callable[[int, int], dict[str, Any] | None], *, batches: int | None = BATCHES, **options: Any) -> Any:
        def plan(rank: int, step: int) -> dict[str, Any]:
            extra = {"us": 0.0, "cpu": True} | (longer(rank, step) or {})
            return extra | {"us": extra["us"] + (BUSY - IDLE) * (rank // 4)}

        forward = (IDLE - 6_000) / 3
        phases = {"data": 2_000, "forward": forward, "backward": 2 * forward, "optimizer": 2_000, "between_steps": 2_000}
        return synthetic(
            ranks=8,
            plan=plan,
            phases=phases,
            noise=0.01,
            transfer_us=IDLE / BATCHES,
            coordinates={rank: {"pp": rank // 4, "dp": rank % 4} for rank in range(8)},
            pipeline=Pipeline(schedule="Schedule1F1B", microbatches=batches),
            **options,
        )

    return make


def slower(rank: int, us: float, phase: str = "forward", every: int = 1, **extra: Any) -> Callable[..., dict[str, Any] | None]:
    return lambda item, step: {"phase": phase, "us": us, **extra} if item == rank and step % every == 0 else None


def gained(analysis: Analysis) -> float:
    assert analysis.verdict.slowdown is not None
    return analysis.verdict.slowdown - 1


@pytest.mark.parametrize("us", [9_000.0, 20_000.0, 30_000.0])
@pytest.mark.parametrize("schedule", ["Schedule1F1B", "ScheduleGPipe", "ScheduleZBVZeroBubble"])
def test_slow_rank_of_the_idle_stage_costs_nearly_nothing(pipeline: Callable[..., Any], us: float, schedule: str) -> None:
    run = pipeline(slower(1, us))
    run.pipeline = Pipeline(schedule=schedule, microbatches=BATCHES)
    path = run.write()
    verdict = analyze([path]).verdict
    assert verdict.kind not in ("straggler", "insufficient_data"), verdict.summary
    assert "rank 1 takes" in verdict.summary
    assert "less than 5%" in verdict.summary
    online = OnlineAnalysis(path)
    online.update()
    since = online.judge_since(10, at_least=5)
    assert since is not None
    assert since.slow == []


def test_slowness_without_cost_does_not_lower_the_confidence(pipeline: Callable[..., Any]) -> None:
    calm = analyze([pipeline(lambda *_: None, folder="calm").write()]).verdict
    slow = analyze([pipeline(slower(1, 9_000.0)).write()]).verdict
    assert slow.confidence == calm.confidence


def test_slow_rank_of_the_busy_stage_costs_its_whole_delay(pipeline: Callable[..., Any]) -> None:
    analysis = analyze([pipeline(slower(6, 15_000.0)).write()])
    assert (analysis.verdict.ranks, analysis.verdict.stage) == ([6], 1)
    assert gained(analysis) == pytest.approx(15_000 / (BUSY + IDLE / BATCHES), rel=0.1)


@pytest.mark.parametrize("phase", ["data", "optimizer", "between_steps"])
def test_delay_outside_micro_batches_delays_every_micro_batch(pipeline: Callable[..., Any], phase: str) -> None:
    """The first stage passes nothing on before its data are there, however little it has to do."""
    run = pipeline(slower(1, 12_000.0, phase))
    analysis = analyze([run.write()])
    assert (analysis.verdict.ranks, analysis.verdict.phase) == ([1], phase), analysis.verdict.summary


@pytest.mark.parametrize(("cpu", "named"), [(True, []), (False, [1])])
def test_pause_within_micro_batches_costs_more_than_slower_compute(
    pipeline: Callable[..., Any], cpu: bool, named: list[int]
) -> None:
    assert analyze([pipeline(slower(1, 12_000.0, cpu=cpu), device_kind="cpu").write()]).verdict.ranks == named


def test_garbage_collection_counts_as_a_pause(pipeline: Callable[..., Any]) -> None:
    verdict = analyze([pipeline(slower(1, 12_000.0, gc=True)).write()]).verdict
    assert (verdict.ranks, verdict.cause) == ([1], "gc"), verdict.summary


def test_rank_slower_than_the_busy_stage_costs_the_difference(pipeline: Callable[..., Any]) -> None:
    analysis = analyze([pipeline(slower(1, 70_000.0)).write()])
    verdict = analysis.verdict
    assert verdict.ranks == [1], verdict.summary
    saved = next(row.value for row in analysis.findings[0].evidence if row.name == "saved")
    busy = [IDLE + 70_000, BUSY]
    expected = max(busy) + min(busy) / BATCHES - BUSY - IDLE / BATCHES
    assert saved == pytest.approx(expected, rel=0.05)
    assert f"{expected / 1000:.0f}" in verdict.summary.split(" ms")[0]


def test_cost_of_intermittent_slow_steps_is_counted_per_step(pipeline: Callable[..., Any]) -> None:
    """On average the rank is no slower than the busy stage, but every third of its steps is."""
    verdict = analyze([pipeline(slower(1, 90_000.0, every=3), steps=120).write()]).verdict
    assert (verdict.ranks, verdict.pattern) == ([1], "intermittent"), verdict.summary


def test_cost_is_unbounded_without_the_number_of_micro_batches(pipeline: Callable[..., Any]) -> None:
    assert analyze([pipeline(slower(1, 9_000.0), batches=None).write()]).verdict.ranks == [1]


@pytest.mark.parametrize("all_forward_first", [True, False])
def test_cost_bound_equals_the_saving_of_a_simulated_step(synthetic: Synthetic, all_forward_first: bool) -> None:
    rng = np.random.default_rng(3)
    differences = []
    for number in range(20):
        stages, batches = int(rng.choice([2, 4])), int(rng.choice([4, 8, 16]))
        busy = (rng.uniform(0.6, 1.0, stages) * 60_000).tolist()
        late, us = int(rng.integers(stages)), float(rng.uniform(5_000, 20_000))
        run = synthetic(
            folder=f"run-{number}",
            ranks=2 * stages,
            steps=10,
            noise=0.0,
            phases={"forward": 10_000},
            plan=lambda rank, _step, busy=busy, us=us, late=late: {"us": busy[rank // 2] - 10_000 + us * (rank == 2 * late)},
            coordinates={rank: {"pp": rank // 2} for rank in range(2 * stages)},
            pipeline=Pipeline(schedule="Schedule1F1B", microbatches=batches),
        )
        evidence = read_evidence(run.write())
        saved_us = saved_by_schedule_us([2 * late], evidence.compared[0], evidence.infos, evidence.pipeline)
        slow = [item + us * (stage == late) for stage, item in enumerate(busy)]
        before, after = (step_us(item, batches, all_forward_first=all_forward_first) for item in (slow, busy))
        differences.append((saved_us - (before - after)) / before)
    # All forward passes first: exact. 1F1B overlaps the two ways of other stages a little more or less.
    assert np.abs(differences).max() < (1e-4 if all_forward_first else 0.12)
    assert abs(np.mean(differences)) < (1e-4 if all_forward_first else 0.03)
