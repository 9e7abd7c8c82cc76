"""Real jobs over gloo that become slower at a step, recorded with ``rankscope run``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.analysis.compare.compare_result import Comparison
from rankscope.analysis.compare.compare_runs import compare

SCRIPT = Path(__file__).with_name("slowing_training.py")
STEPS, SLOW_FROM, PAUSE_S = 240, 120, 0.06


def recorded(run: Path, rank: int, phase: str) -> Path:
    """Record a run of two ranks that becomes slower."""
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    what = [str(STEPS), str(SLOW_FROM), str(rank), phase, str(PAUSE_S)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    completed = subprocess.run(
        [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), "--", *job, *what],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return run


def largest_part(comparison: Comparison) -> str:
    parts = [quantity for quantity in comparison.quantities if quantity.role == "part"]
    return max(parts, key=lambda quantity: quantity.difference or 0.0).name


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_slowdown_of_all_ranks_is_found_with_its_phase(tmp_path: Path) -> None:
    comparison = compare([recorded(tmp_path / "run", -1, "forward")], at=SLOW_FROM)
    value = comparison.comparisons[0]
    assert (value.outcome, value.basis) == ("worse", "own")
    assert largest_part(value) == "own_forward_us"
    step = value.quantities[0].typical
    assert step is not None
    # On a busy machine other processes cost time as well, but a pause is never shorter than requested.
    assert step.high > 0.95 * PAUSE_S * 1e6
    # and all steps are there, except the profiled and the warm-up ones
    assert sum(side.used_steps + sum(side.left_out.values()) for side in comparison.sides) == STEPS


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_rank_that_became_slower_is_found_with_its_phase(tmp_path: Path) -> None:
    comparison = compare([recorded(tmp_path / "run", 1, "between_steps")], at=SLOW_FROM).comparisons[0]
    assert comparison.outcome == "worse"
    # half of the pause goes into the mean of both ranks, the other half into waiting
    changed = {quantity.name: quantity.difference or 0.0 for quantity in comparison.quantities if quantity.role == "part"}
    assert min(changed["own_between_steps_us"], changed["waiting_us"]) > 0.35 * PAUSE_S * 1e6
    rank = comparison.ranks[1]
    assert (rank.outcome, rank.phase) == ("worse", "between_steps")
    assert "Rank 1 on " in comparison.summary
