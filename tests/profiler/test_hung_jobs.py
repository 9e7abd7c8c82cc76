"""Real jobs that stand still: what their helpers tell, and whom ``rankscope hang`` names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Cli
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import info_of
from tests.waiting import wait_until

from rankscope.runs.paths import activity_file, rank_file
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankActivity

JOB = Path(__file__).parent / "jobs" / "standing.py"
Start = Callable[[str], "subprocess.Popen[str]"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


@pytest.fixture
def start(torch_ranks: PreloadedTorch, tmp_path: Path) -> Iterator[Start]:
    """Factory of recorded jobs of three ranks, which are ended after the test."""
    jobs: list[subprocess.Popen[str]] = []

    def begin(fault: str) -> subprocess.Popen[str]:
        command = ["run", "--run-dir", str(tmp_path / "run"), "--window-steps", "0", "--no-verdict", "--"]
        command += torch_ranks.command(3, JOB, fault)
        job = subprocess.Popen([sys.executable, "-m", "rankscope", *command], stderr=subprocess.PIPE, text=True)
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        for info in RunReader(tmp_path / "run").infos(0).values():
            if info.end_unix_ns is None:
                os.kill(info.pid, signal.SIGCONT)
        job.terminate()
        job.communicate(timeout=60)


def standing(run: Path, job: subprocess.Popen[str]) -> dict[int, RankActivity]:
    """Wait until all ranks stand still, and return what they do."""
    wait_until(lambda: all(activity_file(run, 0, rank).exists() for rank in range(3)), process=job)
    by_key = {rank: RunReader(run).activity(0, rank) for rank in range(3)}
    return {rank: row for rank, row in by_key.items() if row is not None}


def hang(cli: Cli, run: Path) -> dict[str, Any]:
    completed = cli("hang", run, "--format", "json")
    assert completed.returncode == 0, completed.stderr
    report: dict[str, Any] = json.loads(completed.stdout)
    return report


@pytest.mark.parametrize(
    ("fault", "late", "others"),
    [
        pytest.param("data", ("data", None, None), "backward", marks=pytest.mark.full),
        pytest.param("forward", ("forward", None, None), "backward", marks=pytest.mark.full),
        pytest.param("checkpoint", ("between_steps", "checkpoint", None), "backward", marks=pytest.mark.full),
        ("stopped", ("forward", None, "stopped"), "backward"),
        pytest.param("gather", ("forward", None, None), "forward", marks=pytest.mark.full),
    ],
)
def test_rank_that_does_not_wait_is_the_hang_culprit(
    cli: Cli, start: Start, tmp_path: Path, *, fault: str, late: tuple[str, str | None, str | None], others: str
) -> None:
    run = tmp_path / "run"
    activities = standing(run, start(fault))
    row = activities[1]
    assert (row.phase, row.section, row.process) == late
    assert row.waiting is False
    assert {(activities[rank].phase, activities[rank].waiting) for rank in (0, 2)} == {(others, True)}
    assert len({row.step for row in activities.values()}) == 1
    report = hang(cli, run)
    assert (report["kind"], report["cause"], report["culprits"]) == ("hang", "not_arrived", [1])
    assert [row["certain"] for row in report["evidence"]] == [False]


@pytest.mark.full
def test_hang_in_which_all_ranks_wait_has_no_culprit(cli: Cli, start: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    activities = standing(run, start("all"))
    assert {row.waiting for row in activities.values()} == {True}
    report = hang(cli, run)
    assert (report["kind"], report["cause"], report["culprits"]) == ("hang", "stuck", [])


@pytest.mark.full
def test_resumed_or_ended_rank_leaves_no_activity_file(start: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = start("stopped")
    standing(run, job)
    rank = info_of(run, 1)
    os.kill(rank.pid, signal.SIGCONT)
    wait_until(lambda: not any(activity_file(run, 0, number).exists() for number in range(3)))
    job.terminate()
    job.wait(60)
    assert not list(rank_file(run, 0, 0).parents[1].rglob("activity.json"))
