"""Jobs that communicate in more than one group, outside torch.distributed, or in other steps on each rank."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import recorded_job
from tests.slurm_node import started

from rankscope.analysis.engine import analyze
from rankscope.analysis.online import OnlineAnalysis
from rankscope.runs.paths import run_file
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


TWO_GROUPS_JOB = Path(__file__).parent / "jobs" / "two_groups.py"
WINDOW = range(8, 11)


def expect_both_groups(run: RunReader) -> None:
    """Check the records of ranks 0 and 1 of ``TWO_GROUPS_JOB``: 0 waits for 1 between the steps, in the second group."""
    for rank in (0, 1):
        records = [record for record in run.steps(0, rank) if record.step > 2]
        # Without a loader all time between the optimizer and backward is forward.
        waits = [record.blocked_us.get("forward") or 0.0 for record in records if record.blocked_us is not None]
        assert len(waits) == len(records) >= 20, "waits of every step are known"
        own = statistics.median(record.own_us or 0.0 for record in records)
        # 30 ms, plus or minus the noise of a busy machine
        assert (statistics.median(waits) > 15_000) == (rank == 0), waits
        assert (own > 15_000) == (rank == 1)
        for step in WINDOW:
            rows = [row for row in run.collectives(0, rank) if row.step == step]
            # Training's gradients, and the other group's in the order of its calls; gloo does not name the group.
            assert [row.op for row in rows].count("all_reduce") == 2
            assert [row.op for row in rows].count("barrier") == 1
            assert [row.index for row in rows] == list(range(len(rows)))
            assert {row.group for row in rows} == {"cpu"}


def test_waits_and_collectives_of_a_second_group_are_recorded(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    windows = {"window_first": WINDOW.start, "window_every": 0, "window_steps": len(WINDOW)}
    assert recorded_job(torch_ranks.command(2, TWO_GROUPS_JOB, tmp_path / "store"), tmp_path / "run", **windows).status == 0
    expect_both_groups(RunReader(tmp_path / "run"))
    # and the ranks' collectives are matched over both groups
    analysis = analyze([tmp_path / "run"])
    assert analysis.collectives.matched >= 3 * len(WINDOW)
    assert analysis.collectives.unmatched == 0
    assert (analysis.imposed_wait[0].rank, analysis.imposed_wait_source) == (1, "windows")


@pytest.mark.full
@pytest.mark.skipif(os.getuid() != 0, reason="slurmd runs as root")
def test_ranks_started_by_srun_are_recorded_with_slurm_rank_numbers(
    tmp_path: Path, require_program: Callable[[str], str], free_port: Callable[[], int]
) -> None:
    (tmp_path / "slurm").mkdir()
    run = tmp_path / "run"
    with started(tmp_path / "slurm", require_program, free_port) as slurm:
        collected = ["--window-first", str(WINDOW.start), "--window-every", "0", "--window-steps", str(len(WINDOW))]
        command = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), *collected, "--no-hardware", "--"]
        srun = ["srun", "--ntasks=2", "--overcommit", sys.executable, str(TWO_GROUPS_JOB), str(tmp_path / "store")]
        completed = subprocess.run(
            [*command, *srun],
            env={**slurm.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        # and after them two processes that learn of each other from Slurm alone
        alone = (
            "from rankscope.profiler.rank.identity import identify, RecorderSettings as S\n"
            "said = identify(S(run_dir='/', run_id='r', name='n', start_unix_ns=1))\n"
            "print(said.rank.rank, said.rank.local_rank, said.rank.world_size, said.attempt.world_size)"
        )
        counted = slurm.run("srun", "--ntasks=2", "--overcommit", sys.executable, "-c", alone)
    assert completed.returncode == 0, completed.stderr
    assert run_file(run).exists()
    reader = RunReader(run)
    infos = [reader.rank(0, rank) for rank in (0, 1)]
    assert [(info.rank, info.local_rank, info.world_size, info.end_reason) for info in infos if info is not None] == [
        (0, 0, 2, "exit"),
        (1, 1, 2, "exit"),
    ]
    expect_both_groups(reader)
    assert sorted(counted.splitlines()) == ["0 0 2 2", "1 1 2 2"]


UNEVEN_JOB = Path(__file__).parent / "jobs" / "uneven.py"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("case", "more"), [("extra", 4), ("join", 12), ("even", 0), ("pause", 0)])
def test_steps_of_the_same_time_are_compared_between_ranks(
    case: str, more: int, torch_ranks: PreloadedTorch, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    windows = {"window_first": 60, "window_every": 0, "window_steps": 3}
    assert recorded_job(torch_ranks.command(2, UNEVEN_JOB, case), run, **windows).status == 0
    counts = [RunReader(run).step_count(0, rank) for rank in (0, 1)]
    assert counts[1] - counts[0] == more
    analysis = analyze([run])
    assert (analysis.verdict.kind, analysis.verdict.rank) == ("straggler", 1)
    about = [warning for warning in analysis.source.warnings if "number of steps" in warning or "cannot be compared" in warning]
    assert len(about) == (more > 0)
    assert analysis.source.steps <= counts[0] + (case == "join") * more
    # Two of the three profiled steps at most are of the same time, and collectives of other times are no instance.
    assert (analysis.collectives.unmatched == 0) == (more == 0)
    assert OnlineAnalysis(run).update() == analysis


@pytest.mark.full
def test_ranks_without_torch_distributed_have_insufficient_data(tmp_path: Path) -> None:
    variables = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_RANK=$rank"
    command = f"for rank in 0 1; do {variables} {sys.executable} {UNEVEN_JOB} alone & done; wait"
    verdict = analyze([record(tmp_path / "run", ["bash", "-c", command])]).verdict
    infos = RunReader(tmp_path / "run").infos(0)
    assert [(info.world_size, info.process_group) for info in infos.values()] == [(2, False), (2, False)]
    assert verdict.kind == "insufficient_data"
    assert "torch.distributed" in verdict.summary
    assert any("init_process_group" in action for action in verdict.next)


@pytest.mark.full
def test_processes_that_share_a_model_have_insufficient_data(tmp_path: Path) -> None:
    verdict = analyze([record(tmp_path / "run", [sys.executable, str(UNEVEN_JOB), "hogwild"])]).verdict
    info = RunReader(tmp_path / "run").infos(0)[0]
    assert (info.world_size, info.process_group, info.shared_parameters) == (1, False, True)
    assert verdict.kind == "insufficient_data"
    assert "shares its model" in verdict.summary


@pytest.mark.full
def test_single_process_is_reported_as_one_rank(tmp_path: Path) -> None:
    run = record(tmp_path / "run", [sys.executable, str(UNEVEN_JOB), "alone"])
    assert RunReader(run).infos(0)[0].shared_parameters is False
    assert "one rank" in analyze([run]).verdict.summary


def record(run: Path, command: list[str]) -> Path:
    launcher = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), "--no-hardware", "--", *command]
    completed = subprocess.run(
        launcher, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return run
