"""Jobs with a process group for control messages beside the one for training; one is started by a real Slurm."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.slurm_node import started

from rankscope.analysis.engine import analyze
from rankscope.profiler.launch import LaunchOptions, launch
from rankscope.runs.paths import run_file
from rankscope.runs.reader import RunReader

JOB = Path(__file__).parent / "jobs" / "two_groups.py"
WINDOW = range(8, 11)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


def expect_both_groups(run: RunReader) -> None:
    """Check the records of ranks 0 and 1 of ``JOB``: rank 0 waits for rank 1 between the steps, in the second group."""
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
    options = LaunchOptions(
        run_dir=tmp_path / "run",
        name="two",
        window_first=WINDOW.start,
        window_every=0,
        window_steps=len(WINDOW),
        exporter_url=None,
    )
    assert launch(torch_ranks.command(2, JOB, tmp_path / "store"), options).status == 0
    expect_both_groups(RunReader(tmp_path / "run"))
    # and the ranks' collectives are matched over both groups
    result = analyze([tmp_path / "run"])
    assert result.collectives.matched >= 3 * len(WINDOW)
    assert result.collectives.unmatched == 0
    assert (result.imposed_wait[0].rank, result.imposed_wait_source) == (1, "windows")


@pytest.mark.full
@pytest.mark.skipif(os.getuid() != 0, reason="slurmd runs as root")
def test_ranks_that_srun_starts_are_recorded_as_slurm_counts_them(
    tmp_path: Path, require_program: Callable[[str], str], free_port: Callable[[], int]
) -> None:
    (tmp_path / "slurm").mkdir()
    run = tmp_path / "run"
    with started(tmp_path / "slurm", require_program, free_port) as slurm:
        collected = ["--window-first", str(WINDOW.start), "--window-every", "0", "--window-steps", str(len(WINDOW))]
        command = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), *collected, "--no-hardware", "--"]
        srun = ["srun", "--ntasks=2", "--overcommit", sys.executable, str(JOB), str(tmp_path / "store")]
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
