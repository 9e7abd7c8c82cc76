"""Verdicts that were once wrong, and siblings of them that differ in sizes, rates and kinds.

Own times go in, the run that the recorder would leave is analysed. Rows about causes, pipelines and traces are tested in
``test_causes_of_runs``, ``inference/test_pipelined``, ``test_trace_evidence`` and ``test_world_size``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.run_analysis import analyze_run

STEP_US = 80_000.0
Floats = NDArray[np.float64]
Analyse = Callable[..., Analysis]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def faults() -> Any:
    return importlib.import_module("benchmarks.fleets.faults")


@pytest.fixture
def noise() -> Any:
    return importlib.import_module("benchmarks.fleets.noise")


@pytest.fixture
def analyse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analyse:
    """Return a function that analyses a fleet, or own times [ranks, steps] with the other fields of a fleet."""
    fleets = importlib.import_module("benchmarks.fleets.fleet")

    def run(fleet: Any, *, per_host: int = 8, **more: Any) -> Analysis:
        monkeypatch.setattr(fleets, "RANKS_PER_HOST", per_host)
        if isinstance(fleet, np.ndarray):
            fleet = fleets.PlantedFleet(fleet, fleets.ExpectedAnswer("none"), **more)
        number = len(list(tmp_path.iterdir()))
        fleets.write_fleet(fleet, tmp_path / f"run{number}")
        return analyze_run(tmp_path / f"run{number}")

    return run


def slowed(own: Floats, ranks: list[int], by_us: float, steps: Any = slice(None)) -> Floats:
    fault = np.zeros_like(own)
    for rank in ranks:
        fault[rank, steps] = by_us
    return fault


def is_named(analysis: Analysis, ranks: list[int], hosts: tuple[str, ...] = ()) -> bool:
    verdict = analysis.verdict
    return (verdict.kind, verdict.ranks, tuple(verdict.hosts)) == ("straggler", sorted(ranks), hosts)


def is_named_as_expected(analysis: Analysis, fleet: Any) -> bool:
    return is_named(analysis, list(fleet.expected.ranks), fleet.expected.hosts)


# Hosts


@pytest.mark.parametrize(("ranks", "length"), [(64, 50), (32, 20)])
def test_host_with_ranks_slow_in_separate_bursts_is_named(
    faults: Any, analyse: Analyse, rng: np.random.Generator, ranks: int, length: int
) -> None:
    fleet = faults.host_in_bursts(rng, ranks, length)
    analysis = analyse(fleet)
    assert is_named_as_expected(analysis, fleet)
    assert analysis.verdict.saves is not None
    low, high = analysis.verdict.saves
    assert low - 0.01 <= fleet.saving <= high + 0.01


def test_ranks_of_several_hosts_slow_in_bursts_are_named(faults: Any, analyse: Analyse, rng: np.random.Generator) -> None:
    for fleet in (
        faults.in_bursts(rng, 16, 4, 50),
        faults.every_second_step(rng, together=True),
        faults.every_second_step(rng, together=False),
    ):
        assert is_named_as_expected(analyse(fleet), fleet)


def test_slow_host_is_in_the_summary_and_a_finding(faults: Any, analyse: Analyse, rng: np.random.Generator) -> None:
    fleet = faults.slow_hosts(rng, 16)
    analysis = analyse(fleet)
    assert is_named_as_expected(analysis, fleet)
    (host,) = fleet.expected.hosts
    assert host in analysis.verdict.summary
    assert [(finding.host, finding.whole_host, finding.ranks) for finding in analysis.findings[:1]] == [
        (host, True, list(fleet.expected.ranks))
    ]


@pytest.mark.parametrize("healthy", [3, None])
def test_host_is_named_if_one_rank_is_healthy_or_all_are_slow_in_turn(
    noise: Any, analyse: Analyse, rng: np.random.Generator, healthy: int | None
) -> None:
    own = noise.noise(rng, 16, 300)
    fault = slowed(own, [0, 1, 2], 40_000.0)
    if healthy is None:
        fault = slowed(own, [0, 1, 2, 3], 40_000.0) * (np.arange(300) // 7 % 4 == np.arange(16)[:, None])
    ranks = [rank for rank in range(4) if rank != healthy]
    assert is_named(analyse(own, fault=fault, per_host=4), ranks, ("node0000",))


def test_pauses_of_all_ranks_at_different_steps_blame_no_host(noise: Any, analyse: Analyse) -> None:
    named = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        own = noise.noise(rng, 16, 300)
        pauses = (np.arange(300) + rng.integers(0, 10, (16, 1))) % 10 == 0
        verdict = analyse(own + pauses * rng.uniform(250_000, 400_000, own.shape)).verdict
        named += verdict.hosts
        assert (verdict.kind, verdict.pattern) == ("straggler", "rotating")
    assert named == []


# Few ranks


@pytest.mark.parametrize(
    ("scatter", "slow", "by"),
    [(0.03, (130, 1000), 0.3), (0.005, (250, 1000), 0.375), (0.03, (850, 1000), 0.6), (0.03, (300, 450), 0.8)],
)
def test_rank_slow_for_part_of_the_run_is_named_in_a_pair(
    noise: Any, analyse: Analyse, scatter: float, slow: tuple[int, int], by: float
) -> None:
    for seed in range(3):
        own = noise.noise(np.random.default_rng(seed), 2, scatter=scatter)
        assert is_named(analyse(own, fault=slowed(own, [1], by * STEP_US, slice(*slow))), [1])


def test_saving_of_one_of_two_noisy_ranks_leaves_the_equal_rank_waits(
    noise: Any, analyse: Analyse, rng: np.random.Generator
) -> None:
    own = noise.noise(rng, 2, 400, scatter=0.2)
    analysis = analyse(own, fault=slowed(own, [0], 40_000.0))
    true = 1 - (own.max(axis=0) + 4_000).sum() / ((own + slowed(own, [0], 40_000.0)).max(axis=0) + 4_000).sum()
    assert is_named(analysis, [0])
    assert analysis.verdict.slowdown is not None
    assert 1 - 1 / analysis.verdict.slowdown == pytest.approx(true, rel=0.1)


# Records that are missing


@pytest.mark.parametrize(("ranks", "share"), [(256, 0.03), (16, 0.3)])
def test_records_missing_at_random_hide_no_rank_and_no_step(
    noise: Any, analyse: Analyse, rng: np.random.Generator, ranks: int, share: float
) -> None:
    own = noise.noise(rng, ranks, 300)
    analysis = analyse(own, fault=slowed(own, [5], 32_000.0), missing=rng.random(own.shape) < share)
    assert is_named(analysis, [5])
    assert analysis.verdict.judged_ranks == ranks
    assert analysis.verdict.judged_steps is not None
    assert analysis.verdict.judged_steps > 280


@pytest.mark.parametrize("by_us", [180_000.0, 24_000.0])
def test_rank_without_records_may_cause_the_waiting(noise: Any, analyse: Analyse, by_us: float) -> None:
    own = noise.noise(np.random.default_rng(1), 4, 300)
    analysis = analyse(own, fault=slowed(own, [2], by_us), absent=(2,))
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("insufficient_data", [])
    assert "3 ranks" in analysis.verdict.summary


def test_late_joining_ranks_without_a_comparison_are_not_balanced(noise: Any, analyse: Analyse, rng: np.random.Generator) -> None:
    own = noise.noise(rng, 8, 400)
    missing = np.zeros(own.shape, bool)
    missing[4:, :240] = True
    assert analyse(own, fault=slowed(own, [6], 30_000.0), missing=missing).verdict.kind == "insufficient_data"


# Waiting that moves


def test_slow_rank_is_named_and_moving_pauses_are_a_finding(faults: Any, analyse: Analyse, rng: np.random.Generator) -> None:
    fleet = faults.beside_pauses(rng, 100_000.0)
    analysis = analyse(fleet)
    assert is_named_as_expected(analysis, fleet)
    assert any(finding.pattern == "rotating" for finding in analysis.findings)


@pytest.mark.parametrize("ranks", [2, 4])
def test_garbage_collections_at_different_steps_are_rotating(noise: Any, analyse: Analyse, ranks: int) -> None:
    verdict = analyse(noise.collections(np.random.default_rng(3), ranks)).verdict
    assert (verdict.kind, verdict.pattern, verdict.rank, verdict.cause) == ("straggler", "rotating", None, "gc")


def test_rotating_waits_are_recognised_although_one_rank_is_ahead(noise: Any, analyse: Analyse) -> None:
    kinds = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        own = noise.noise(rng, 4, 200)
        own += (rng.random(own.shape) < 0.1) * rng.uniform(250_000, 400_000, own.shape)
        kinds.append(analyse(own).verdict.pattern)
    assert kinds.count("rotating") >= 11


def test_noise_widens_the_excluded_cost_and_large_waits_are_not_balanced(noise: Any, analyse: Analyse) -> None:
    bounds = []
    for scatter in (0.01, 0.05, 0.2, 0.6):
        verdict = analyse(noise.noise(np.random.default_rng(2), 8, 500, scatter=scatter)).verdict
        assert (verdict.kind, verdict.rank) == (("balanced" if scatter < 0.1 else "straggler"), None)
        bounds.append(verdict.costs_at_most or 0.0)
    assert bounds == sorted(bounds)
    assert bounds[-1] > 2 * bounds[0]


# Rare steps and steps without a collective


def test_checkpoints_of_a_rank_are_reported_as_rare_steps(faults: Any, analyse: Analyse, rng: np.random.Generator) -> None:
    fleet = faults.checkpoints(rng)
    analysis = analyse(fleet)
    rare = analysis.rare_steps
    assert rare is not None
    assert (rare.rank, rare.cause, analysis.verdict.kind) == (fleet.expected.ranks[0], "checkpoint", "straggler")
    assert rare.share == pytest.approx(fleet.rare_share, rel=0.1)


def test_single_step_of_30_s_is_rare_and_not_typical(faults: Any, analyse: Analyse, rng: np.random.Generator) -> None:
    fleet = faults.stopped_once(rng)
    analysis = analyse(fleet)
    rare = analysis.rare_steps
    assert rare is not None
    assert (rare.rank, rare.count, analysis.verdict.kind) == (fleet.expected.ranks[0], 1, "insufficient_data")
    assert rare.typical_us == pytest.approx(88_000, rel=0.05)


def test_evaluations_of_all_ranks_have_the_cause_evaluation(faults: Any, analyse: Analyse, rng: np.random.Generator) -> None:
    analysis = analyse(faults.evaluations(rng))
    assert analysis.rare_steps is not None
    assert (analysis.rare_steps.rank, analysis.rare_steps.cause) == (None, "evaluation")
    assert (analysis.verdict.kind, analysis.verdict.cause) == ("host_bound", "evaluation")


def test_rare_steps_of_a_single_rank_are_charged_to_no_rank(noise: Any, analyse: Analyse, rng: np.random.Generator) -> None:
    own = noise.noise(rng, 1, 300)
    steps = [99, 199, 299]
    analysis = analyse(
        own, fault=slowed(own, [0], 4e6, steps), fault_phase="between_steps", tags={(0, step): "eval" for step in steps}
    )
    assert analysis.rare_steps is not None
    assert (analysis.rare_steps.rank, analysis.rare_steps.cause) == (None, "evaluation")
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("host_bound", [])


@pytest.mark.parametrize("ranks", [2, 8])
def test_steps_twice_as_long_are_not_split_into_rare_and_typical(noise: Any, analyse: Analyse, ranks: int) -> None:
    for seed in range(3):
        own = noise.noise(np.random.default_rng(seed), ranks, 600)
        analysis = analyse(own, fault=slowed(own, [1], 1.3 * STEP_US, slice(7, None, 21)))
        assert is_named(analysis, [1])
        assert analysis.rare_steps is not None
        assert analysis.rare_steps.count >= 27


def test_rare_pauses_of_either_of_two_ranks_name_neither(noise: Any, analyse: Analyse) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        own = noise.noise(rng, 2, 600)
        own[rng.integers(0, 2, 12), 20 + 45 * np.arange(12)] += rng.uniform(2e6, 5e6, 12)
        verdict = analyse(own).verdict
        assert (verdict.kind, verdict.pattern, verdict.rank) == ("straggler", "rotating", None)


@pytest.mark.parametrize(("every", "waits_known"), [(8, True), (8, False), (25, True), (40, True), (40, False)])
def test_slow_rank_is_named_if_ranks_meet_only_every_n_steps(
    faults: Any, analyse: Analyse, rng: np.random.Generator, every: int, waits_known: bool
) -> None:
    fleet = faults.local_steps(rng, every, waits_known=waits_known)
    analysis = analyse(fleet)
    assert is_named_as_expected(analysis, fleet)
    assert analysis.rare_steps is None
    assert analysis.verdict.slowdown == pytest.approx(1 / (1 - fleet.saving), rel=0.05)
