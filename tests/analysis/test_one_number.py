"""One number for GPU-hours, slowdown and step time of a run, or a word for the steps that it is of."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.analysis.conftest import SyntheticRun, plan_for
from tests.analysis.inline_communication import Fault, write_job

from rankscope.analysis.engine import analyze
from rankscope.analysis.parallel.workers import LocalEngine
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.stored import losses_of, store_verdict, stored_verdict
from rankscope.analysis.result.text import GREEN, YELLOW
from rankscope.analysis.whatif import whatif_terminal
from rankscope.analysis.whatif.outcome import CostTerms, JobPart, Outcome, answer
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.analysis.whatif.whatif_result import WhatIf, WhatIfSource
from rankscope.runs.records import PhaseTimes

near: Any = pytest.approx

Synthetic = Callable[..., SyntheticRun]
RARE = (60, 120, 180)
PRICE = 2.5
CLOSE = 0.02
"""What is planted is not exactly what is measured."""


def slow_and_rare(rank: int, step: int) -> dict[str, Any] | None:
    """Plan a rank that is a quarter slower, and three checkpoints of 4 s of another one."""
    if rank == 0 and step in RARE:
        return {"phase": "between_steps", "us": 4e6, "tags": ["checkpoint"]}
    return {"us": 25_000, "cpu": True} if rank == 2 else None


@pytest.fixture
def run(synthetic: Synthetic) -> Path:
    return synthetic(ranks=8, steps=200, plan=slow_and_rare, price=PRICE, noise=0.03, gpus=True).write()


@pytest.fixture
def analysis(run: Path) -> Analysis:
    return analyze([run])


@pytest.fixture
def simulated(run: Path) -> WhatIf:
    return whatif([run])


def test_step_time_is_the_typical_one_in_all_results(analysis: Analysis, simulated: WhatIf) -> None:
    assert analysis.waterfall is not None
    assert analysis.throughput is not None
    assert analysis.rare_steps is not None
    typical_s = analysis.waterfall.step_us / 1e6
    assert simulated.measured_step_seconds == near(typical_s)
    assert simulated.step_seconds == near(typical_s, rel=1e-3)
    assert analysis.throughput.step_us == near(analysis.waterfall.step_us)
    assert analysis.rare_steps.typical_us == near(analysis.waterfall.step_us, rel=CLOSE)


def test_slow_rank_costs_the_same_in_analysis_and_whatif(analysis: Analysis, simulated: WhatIf) -> None:
    (of_rank,) = (finding for finding in analysis.findings if finding.rank == 2)
    first = simulated.by_rank[0]
    assert of_rank.slowdown is not None
    assert simulated.measured_step_seconds is not None
    assert (first.rank, simulated.source.trained_steps) == (2, 200)
    assert first.gpu_hours_lost == near(of_rank.gpu_hours_lost)
    assert first.saved_seconds / simulated.measured_step_seconds == near(1 - 1 / of_rank.slowdown)
    assert first.cost is not None
    assert first.cost.amount == near(PRICE * (of_rank.gpu_hours_lost or 0))


def in_turn(host: int) -> Callable[[int, int], dict[str, Any] | None]:
    """Plan that one rank of a host of two is slow at each step, in turn."""
    return lambda rank, step: {"us": 40_000} if rank == 2 * host + step % 2 else None


SLOW_UNITS: dict[str, tuple[Callable[[int, int], dict[str, Any] | None], str | None]] = {
    "rank": (plan_for(5, us=40_000), None),
    "rank at every third step": (lambda rank, step: {"us": 90_000} if rank == 1 and step % 3 == 0 else None, None),
    "rank that becomes slow": (lambda rank, step: {"us": 80_000} if rank == 4 and step > 60 else None, None),
    "host": (lambda rank, _step: {"us": 40_000} if rank in (4, 5) else None, "n2"),
    "host in turn": (in_turn(3), "n3"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("ranks", [8, 17])
@pytest.mark.parametrize("unit", SLOW_UNITS)
def test_slow_rank_or_host_saves_the_same_in_verdict_and_whatif(
    synthetic: Synthetic, unit: str, ranks: int, noise: float
) -> None:
    plan, host = SLOW_UNITS[unit]
    for seed in range(3):
        path = synthetic(ranks=ranks, steps=120, plan=plan, noise=noise, seed=seed, gpus=True).write()
        analysis, simulated = analyze([path]), whatif([path])
        verdict, finding = analysis.verdict, analysis.findings[0]
        assert (verdict.kind, verdict.hosts) == ("straggler", [host] if host else [])
        (row,) = (
            [row for row in simulated.by_host if row.host == host]
            if host
            else [row for row in simulated.by_rank if row.rank == verdict.rank]
        )
        assert finding.slowdown is not None
        assert simulated.measured_step_seconds is not None
        assert simulated.savings_of == "verdict"
        assert row.saved_seconds / simulated.measured_step_seconds == near(1 - 1 / finding.slowdown, rel=1e-3)
        assert row.gpu_hours_lost == near(finding.gpu_hours_lost, rel=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["host", "device"])
@pytest.mark.parametrize("late", [1, 3])
def test_slow_rank_of_traces_saves_the_same_in_verdict_and_whatif(tmp_path: Path, fault: Fault, late: int) -> None:
    traces = write_job(tmp_path, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", fault=fault, late=late)
    finding = analyze([traces]).findings[0]
    (saved_us,) = (fact.value for fact in finding.evidence if fact.name == "saved")
    for engine in (LocalEngine(1), Spread()):
        simulated = whatif([traces], engine=engine)
        assert (finding.rank, simulated.savings_of, simulated.by_rank[0].rank) == (late, "verdict", late)
        assert simulated.by_rank[0].saved_seconds == near(saved_us / 1e6)


class Spread:
    """Engine whose results have gone through another process."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], **_about: Any) -> Iterator[Any]:
        send: Any = pickle.loads(pickle.dumps(function))  # written on the line before
        return (pickle.loads(pickle.dumps(send(item))) for item in items)


def test_summary_names_a_rank_that_costs_more_than_the_graph_loses() -> None:
    # given a rank that alone costs 30 ms of a step of 100 ms, in which the graph shows a loss of 1 ms
    steps = np.full(10, 0.1)
    outcome = Outcome(
        steps=np.arange(10), measured=steps, actual=steps, ideal=steps - 0.001,
        ranks=[JobPart({"rank": 3}, only=steps, without=steps - 0.03)],
        slowest=[3], without_slowest=steps - 0.03, savings_of="verdict",
    )  # fmt: skip
    source = WhatIfSource(
        kind="traces", path="t", name=None, evidence="traces", ranks=4, world_size=4, steps=10, steps_left_out=0
    )
    result = answer(outcome, source, CostTerms(accelerated=True, world_size=4))
    assert (result.by_rank[0].saved_seconds, result.by_rank[0].share, result.m_worker) == (near(0.03), None, None)
    for text in (result.summary, result.source.warnings[0]):
        assert "rank 3" in text
    assert YELLOW in whatif_terminal.render_text(result, color=True)
    # and nothing of that is said of a graph's own savings
    assert not answer(replace(outcome, savings_of="graph"), source, CostTerms(accelerated=True, world_size=4)).source.warnings


def test_whatif_leaves_out_rare_steps_with_the_share_of_the_analysis(analysis: Analysis, simulated: WhatIf) -> None:
    assert analysis.rare_steps is not None
    source = simulated.source
    assert (source.rare_steps, source.rare_share) == (3, near(analysis.rare_steps.share))
    assert (source.steps, source.steps_left_out) == (192, 8)
    share = f"{analysis.rare_steps.share:.0%}"
    for text in (simulated.summary, whatif_terminal.render_text(simulated)):
        assert all(fact in text for fact in ("typical", "3 rare steps", share, "rankscope analyze"))


def test_healthy_typical_steps_beside_rare_ones_are_not_green(synthetic: Synthetic) -> None:
    # given equal ranks, and checkpoints of one of them
    run = synthetic(
        ranks=4, steps=200, noise=0.0, plan=lambda rank, step: slow_and_rare(rank, step) if rank == 0 else None
    ).write()
    answer = whatif([run])
    assert answer.slowdown == near(1.0)
    assert YELLOW in whatif_terminal.render_text(answer, color=True)
    without = msgspec.structs.replace(answer.source, rare_steps=0, rare_share=0.0)
    assert GREEN in whatif_terminal.render_text(msgspec.structs.replace(answer, source=without), color=True)


def test_terminal_names_the_steps_of_its_figures(analysis: Analysis) -> None:
    text = render_text(analysis, detail=True)
    (headline,) = (line for line in text.splitlines() if "GPU-hours lost" in line)
    assert "in rare steps" in headline
    assert "mean of 192 typical steps" in text
    assert any("throughput" in line and "typical steps" in line for line in text.splitlines())


def test_losses_add_up_to_the_findings_and_have_their_steps(analysis: Analysis, run: Path) -> None:
    by_rank = {lost.rank: lost for lost in losses_of(analysis).lost_by}
    hours = {finding.rank: finding.gpu_hours_lost for finding in analysis.findings}
    assert {rank: lost.gpu_hours for rank, lost in by_rank.items()} == hours
    assert {rank: lost.steps for rank, lost in by_rank.items()} == {0: "rare", 2: "typical"}
    assert {rank: lost.cost for rank, lost in by_rank.items()} == near({rank: PRICE * (of or 0) for rank, of in hours.items()})
    store_verdict(run, analysis, as_of_unix_ns=1)
    stored = stored_verdict(run)
    assert stored is not None
    assert stored.losses == losses_of(analysis)
    assert stored.verdict.gpu_hours_lost == hours[0]


def test_trained_hours_include_the_rare_steps(analysis: Analysis) -> None:
    assert analysis.throughput is not None
    whole_s = 195 * analysis.throughput.step_us / 1e6 + 3 * 4.0  # and 5 of warm-up, as long as typical
    hours = losses_of(analysis).host_gpu_hours
    assert hours == near(dict.fromkeys(("n0", "n1", "n2", "n3"), 2 * (whole_s + 5 * 0.129) / 3600), rel=CLOSE)


def test_hours_of_rare_steps_are_complete_if_ranks_meet_every_n_steps(synthetic: Synthetic) -> None:
    # given ranks that meet at every 4th step only, and three checkpoints of 4 s of rank 0
    def meets(_rank: int, step: int) -> dict[str, Any]:
        return {} if step % 4 == 3 else {"blocked_us": None}

    run = synthetic(
        ranks=4,
        steps=400,
        noise=0.02,
        plan=lambda rank, step: (
            {"phase": "between_steps", "us": 4e6, "tags": ["checkpoint"]} if rank == 0 and step in (103, 203, 303) else None
        ),
        fields=meets,
    ).write()
    analysis = analyze([run])
    assert analysis.rare_steps is not None
    assert (analysis.rare_steps.rank, analysis.rare_steps.cause, analysis.rare_steps.count) == (0, "checkpoint", 3)
    assert analysis.rare_steps.lost_us == near(12e6, rel=0.03)
    assert analysis.rare_steps.longest_us == near(4.1e6, rel=0.03)
    assert analysis.rare_steps.of_steps == 4 * 95  # without the five entries of warm-up
    (rare,) = (lost for lost in losses_of(analysis).lost_by if lost.steps == "rare")
    assert rare.gpu_hours == near(12 * 4 / 3600, rel=0.03)


def test_whatif_equals_the_verdict_if_ranks_meet_every_n_steps(synthetic: Synthetic) -> None:
    # given ranks that meet at every 4th step, one of which is 25 ms slower in each: 404 ms become 504
    jitter = np.random.default_rng(0).normal(0.0, 500.0, (4, 400))

    def meets(rank: int, step: int) -> dict[str, Any]:
        own = 100_000 + jitter[:, step] + np.array([0, 0, 25_000, 0])
        so_far = 4 * np.array([100_000, 100_000, 125_000, 100_000]) + jitter[:, step - 3 : step + 1].sum(axis=1)
        blocked = float((so_far.max() - so_far + 4_000)[rank]) if step % 4 == 3 else None
        return {
            "wall_us": float(own[rank]) + (blocked or 0.0),
            "phases_us": PhaseTimes(forward=float(own[rank]) - 50_000, backward=50_000 + (blocked or 0.0)),
            "blocked_us": None if blocked is None else PhaseTimes(backward=blocked),
        }

    run = synthetic(ranks=4, steps=400, fields=meets, gpus=True).write()
    verdict, answer = analyze([run]).verdict, whatif([run])
    first = answer.by_rank[0]
    assert (verdict.rank, first.rank, answer.discrepancy) == (2, 2, near(1.0, abs=0.005))
    assert (answer.step_seconds, first.saved_seconds) == (near(0.126, rel=CLOSE), near(0.025, rel=CLOSE))
    assert first.gpu_hours_lost == near(verdict.gpu_hours_lost, rel=CLOSE)


@pytest.mark.parametrize("share", [0.0, 0.03])
def test_whatif_equals_the_verdict_with_records_missing_at_random(synthetic: Synthetic, share: float) -> None:
    # given 64 ranks, so many that with 3 % of the records missing hardly a step is complete
    run = synthetic(ranks=64, steps=60, noise=0.02, plan=plan_for(5, us=40_000, cpu=True))
    rng = np.random.default_rng(1)
    run.dropped = {rank: set(np.flatnonzero(rng.random(60) < share).tolist()) for rank in range(64)}
    path = run.write()
    verdict, answer = analyze([path]).verdict, whatif([path])
    assert (verdict.rank, answer.status) == (5, "ok")
    assert answer.source.steps == 55
    assert answer.source.estimated_share == near(share, abs=0.01)
    assert (answer.by_rank[0].rank, answer.by_cause[0].cause) == (5, "compute")
    assert answer.by_rank[0].gpu_hours_lost == near(verdict.gpu_hours_lost, rel=0.05)
    assert answer.by_rank[0].saved_seconds == near(0.04, rel=0.1)
    assert answer.discrepancy == near(1.0, abs=0.005)
    assert ("estimated" in whatif_terminal.render_text(answer)) == (share > 0)


@pytest.mark.parametrize("missing", [2, None])
def test_waiting_equals_that_of_the_whatif_with_missing_records(synthetic: Synthetic, missing: int | None) -> None:
    # given a slow rank that lacks a third of its records, or one record in ten of any rank
    run = synthetic(ranks=8, steps=90, noise=0.01, plan=plan_for(2, us=30_000, cpu=True))
    rng = np.random.default_rng(2)
    share = 0.1 if missing is None else 1 / 3
    lacking = range(8) if missing is None else [missing]
    run.dropped = {rank: set(np.flatnonzero(rng.random(90) < share).tolist()) for rank in lacking}
    path = run.write()
    analysis, answer = analyze([path]), whatif([path])
    assert analysis.waterfall is not None
    waits = {part.name: part.us for part in analysis.waterfall.parts}
    assert waits["straggler_wait"] == near(1e6 * (answer.saved_seconds or 0.0), rel=CLOSE)
