"""Runs with more records than are read: their last steps, and totals of the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.step_files import StepWriter, keep_rows, steps_file

from rankscope.analysis.run_analysis import analysis_of, read_evidence
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RunInfo, StepRecord
from rankscope.runs.small_files import create_run

RANKS, STEPS, LAST = 4, 400, 100


@pytest.fixture
def run(synthetic: Callable[..., Any]) -> Any:
    """A run whose rank 1 is slow in its first half, and rank 3 at its end."""

    def plan(rank: int, step: int) -> dict[str, int] | None:
        return {"us": 60_000} if rank == (1 if step < STEPS // 2 else 3) else None

    return synthetic(ranks=RANKS, steps=STEPS, plan=plan).write()


def test_the_last_steps_are_judged_and_the_others_are_counted(run: Any) -> None:
    whole = read_evidence(run)
    evidence = read_evidence(run, most_records=RANKS * LAST)
    assert evidence.table.steps.tolist() == list(range(STEPS - LAST, STEPS))
    assert evidence.earlier.records == dict.fromkeys(range(RANKS), STEPS - LAST)
    analysis = analysis_of(evidence)
    assert (analysis.verdict.rank, analysis.source.steps, analysis.source.coverage) == (3, STEPS, 1.0)
    assert f"judged by the last {LAST} of {STEPS} steps" in analysis.source.warnings
    before = whole.table.columns(whole.table.steps < STEPS - LAST)
    for row, rank in enumerate(evidence.ranks):
        assert evidence.earlier.wall_us[rank] == pytest.approx(before.of_rank("wall_us", row).sum(), rel=0.01)


def test_the_last_steps_are_those_of_the_job_not_of_a_rank_that_ended_early(synthetic: Callable[..., Any]) -> None:
    job = synthetic(ranks=RANKS, steps=STEPS).write()
    keep_rows(steps_file(job, 2), STEPS // 2)
    evidence = read_evidence(job, most_records=RANKS * LAST)
    assert evidence.table.steps.tolist() == list(range(STEPS - LAST, STEPS))


def test_ranks_that_cannot_be_read_cost_only_themselves(run: Any) -> None:
    lost, damaged = rank_dir(run, 0, 0), rank_dir(run, 0, 2)
    shutil.rmtree(lost)
    lost.symlink_to(lost.name)
    for file in damaged.glob("steps-*.npy"):
        file.write_bytes(b"no steps")
    evidence = read_evidence(run, most_records=2 * LAST)
    assert evidence.table.steps.tolist() == list(range(STEPS - LAST // 2, STEPS))
    assert analysis_of(evidence).verdict.rank == 3


def test_a_run_that_fits_is_read_whole(run: Any) -> None:
    evidence = read_evidence(run, most_records=RANKS * STEPS)
    assert len(evidence.table.steps) == STEPS
    assert evidence.earlier.steps == 0


@pytest.mark.parametrize("last", [0, 1, 7, 80, 200, 2_000])
def test_the_last_records_of_a_rank_may_be_in_several_segments(tmp_path: Path, last: int) -> None:
    create_run(tmp_path / "run", RunInfo(run_id="run", name="run", start_unix_ns=1))
    folder = rank_dir(tmp_path / "run", 0, 2)
    writer = StepWriter(folder, rank=2, segment_bytes=4_096)
    for step in range(200):
        writer.append(StepRecord(step=step, start_unix_ns=1 + step, wall_us=1.0))
    writer.close()
    assert len(list(folder.glob("steps-*.npy"))) > 5
    steps = [int(step) for rows in RunReader(tmp_path / "run").step_rows(0, 2, last=last) for step in rows["step"]]
    assert steps == list(range(max(0, 200 - last), 200))
