"""The benchmark of fleets: the truth that it plants, the runs that it writes, and how it scores answers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.run_analysis import analyze_run
from rankscope.runs.reader import RunReader

STEPS = 40


def module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.fleets.{name}")


def fleet(fault_us: float = 20_000.0, *, ranks: int = 4, **more: Any) -> Any:
    """Return a fleet without noise whose rank 1 needs longer in every step."""
    fleets = module("fleet")
    fault = np.zeros((ranks, STEPS))
    fault[1] = fault_us
    expected = fleets.ExpectedAnswer("names", (1,))
    return fleets.PlantedFleet(np.full((ranks, STEPS), 80_000.0), **{"expected": expected, "fault": fault, **more})


@pytest.mark.slow
def test_benchmark_reports_two_kinds_with_their_budgets() -> None:
    kinds = ["a slow rank, 8 ranks", "healthy, 35 steps, 8 ranks"]
    command = [sys.executable, "-m", "benchmarks.fleets.fleet_truth", "--seeds", "1", "--jobs", "1", "--only", *kinds]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    report = json.loads(completed.stdout)
    assert {"a slow rank, 8 ranks, without the fault", "all", *kinds} == set(report["figures"])
    figures = report["figures"]["a slow rank, 8 ranks"]
    assert (figures["right"], figures["exactly_named"], figures["false"]) == (1, 1, 0)
    assert figures["true_saving"] == pytest.approx(0.22, abs=0.05)
    assert figures["by_ranks_alone"]["mean + 3 sigma of step time"]["right"] == 0
    assert all(row["ok"] for row in report["budgets"])
    assert {len(row) for row in report["table"]["rows"]} == {len(report["table"]["columns"])}
    assert [row[0] for row in report["table"]["rows"]] == [*sorted(kinds, reverse=True), "those with a fault, without it", "all"]


@pytest.mark.slow
def test_runs_without_an_accusation_have_a_rate_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = module("accusations")
    monkeypatch.setattr(benchmark, "RANKS", (2,))
    rates = benchmark.accusations(1)
    assert rates["up to a tenth"] == {"runs": 16, "named": 0, "too_little": 0, "rate": 0}
    assert {tuple(row) for row in rates.values()} == {("runs", "named", "too_little", "rate")}


def test_a_failed_budget_fails_the_command() -> None:
    fleet_truth, fleet_scores = module("fleet_truth"), module("scores")
    missed = fleet_scores.Score(right=False, exact=False, false=False)
    outcome = fleet_truth.FleetOutcome(
        job=fleet_truth.FleetCase("a slow rank, 8 ranks", 0),
        expected=module("fleet").ExpectedAnswer("names", (1,)),
        steps=1000,
        score=missed,
        names=dict.fromkeys(("rankscope", *fleet_truth.BASELINES), missed),
        saving=0.2,
        cost_error=None,
        interval_holds=None,
        frontier_last=0,
        answer={"kind": "balanced"},
    )
    failed = [row["name"] for row in fleet_truth.budgets_of([outcome]) if not row["ok"]]
    assert any(name.startswith("right, of runs with a fault") for name in failed)
    assert any(name.startswith("exactly named") for name in failed)
    with pytest.raises(SystemExit):
        importlib.import_module("benchmarks.common.result").finish({}, [{"ok": False}], {})


def test_true_saving_equals_that_of_the_job_without_the_fault() -> None:
    assert fleet().saving == pytest.approx(1 - 84 / 104)
    assert fleet(meets_every=8).saving == pytest.approx(1 - (8 * 80 + 4) / (8 * 100 + 4))
    assert fleet().without_fault().saving == 0
    rare = np.arange(STEPS) == 7
    stopped = fleet(fault=fleet(1_000_000.0).fault * rare, rare=rare)
    assert stopped.saving == 0
    assert stopped.rare_share == pytest.approx(1000 / (STEPS * 84 + 1000))


def test_all_ranks_wait_for_the_last_one_at_meetings() -> None:
    blocked = fleet(meets_every=8).blocked
    assert set(np.flatnonzero(blocked[0])) == set(range(7, STEPS, 8))
    assert blocked[0, 7] == pytest.approx(8 * 20_000 + 4_000)
    assert blocked[1, 7] == pytest.approx(4_000)
    assert fleet().waiting == pytest.approx(0.75 * 20 / 104)


def test_written_run_has_the_own_times_without_the_missing_records(tmp_path: Path) -> None:
    missing = np.zeros((4, STEPS), bool)
    missing[2, 5:8] = True
    planted = fleet(missing=missing, absent=(3,), tags={(0, 9): "checkpoint"})
    module("fleet").write_fleet(planted, tmp_path / "run")
    table = StepTable.load(RunReader(tmp_path / "run"))
    assert table.ranks.tolist() == [0, 1, 2]
    assert (~table.has_record).nonzero()[1].tolist() == [5, 6, 7]
    own = table.matrix("own_us")
    assert own[1].tolist() == pytest.approx(planted.own[1].tolist())
    analysis = analyze_run(tmp_path / "run")
    assert (analysis.source.world_size, analysis.source.ranks) == (4, 3)
    assert analysis.verdict.ranks == [1]


def test_fault_of_the_last_attempt_counts(tmp_path: Path) -> None:
    first = fleet(fault=np.roll(fleet().fault, 1, axis=0))
    module("fleet").write_fleet(fleet(earlier=first), tmp_path / "run")
    assert analyze_run(tmp_path / "run").verdict.ranks == [1]
    assert analyze_run(tmp_path / "run", 0).verdict.ranks == [2]


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ({"kind": "straggler", "rank": 1, "ranks": [1]}, (True, True, False, False)),
        ({"kind": "straggler", "rank": 1, "ranks": [1, 2]}, (False, False, True, False)),
        ({"kind": "straggler", "rank": 1, "ranks": [1], "hosts": ["node0000"]}, (False, False, True, False)),
        ({"kind": "straggler", "rank": None, "ranks": [0, 1], "pattern": "rotating"}, (False, False, False, False)),
        ({"kind": "balanced", "rank": None, "ranks": []}, (False, False, False, False)),
        ({"kind": "insufficient_data", "rank": None, "ranks": []}, (False, False, False, True)),
    ],
)
def test_answer_about_a_slow_rank_is_scored(tmp_path: Path, answer: dict[str, Any], score: tuple[bool, bool, bool, bool]) -> None:
    planted = fleet()
    assert tuple(module("scores").score_of(analysis_with(tmp_path, planted, answer), planted)) == score


@pytest.mark.parametrize(
    ("pause_us", "kind", "right"),
    [
        (1_000.0, "balanced", True),
        (1_000.0, "rotating", False),
        (1_000.0, "straggler", False),
        (40_000.0, "balanced", False),
        (40_000.0, "communication_bound", False),
        (40_000.0, "rotating", True),
    ],
)
def test_rotating_answer_for_a_healthy_fleet_needs_real_waits(tmp_path: Path, pause_us: float, kind: str, right: bool) -> None:
    pauses = pause_us * (np.arange(STEPS) % 4 == np.arange(4)[:, None])
    planted = fleet(fault=0.0, pauses=pauses).without_fault()
    named = {"rank": 2, "ranks": [2]} if kind == "straggler" else {"rank": None, "ranks": []}
    answer = {"kind": "straggler", "pattern": "rotating", **named} if kind == "rotating" else {"kind": kind, **named}
    score = module("scores").score_of(analysis_with(tmp_path, planted, answer), planted)
    assert (score.right, score.false) == (right, kind == "straggler")


def analysis_with(folder: Path, planted: Any, answer: dict[str, Any]) -> Any:
    """Return the analysis of a fleet with another verdict."""
    module("fleet").write_fleet(planted, folder / "run")
    analysis = analyze_run(folder / "run")
    verdict = msgspec.structs.replace(analysis.verdict, **{"hosts": [], "pattern": None, **answer})
    return msgspec.structs.replace(analysis, verdict=verdict)


def test_baseline_methods_name_ranks_beyond_their_thresholds() -> None:
    baselines, fleet_truth = module("baselines"), module("fleet_truth")
    planted = fleet(ranks=16)
    walls, own, phases = fleet_truth.recorded_times(planted)
    assert {name: method(walls, own, phases) for name, method in baselines.BASELINES.items()} == {
        "mean + 3 sigma of step time": [],
        "mean + 3 sigma of own time": [1],
        "median + 3 MAD of own time": [1],
        "frontier accounting": [1],
        "frontier accounting from 5 % on": [1],
    }
    led, beyond = baselines.frontier_of(phases)
    # All ranks are at the frontier at the end of data, which is a hundredth of 80 ms: the first of them counts.
    assert led[:2] == pytest.approx([0.8 / 100, 99.2 / 100])
    assert beyond[1] == pytest.approx(20 / 100)
