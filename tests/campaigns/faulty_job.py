"""Training job with a planted fault, with and without the recorder, and what must hold of both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.processes import children_of
from tests.waiting import wait_until

from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo

SCRIPT = Path(__file__).parent / "jobs" / "faulty_training.py"
STEPS, AT = 200, 100
BUDGET = 0.01
GROWTH_KIB = 5 * 1024
SETTLED = 40
"""Step by which the first window is over and everything is loaded."""


@dataclass
class JobOutcome:
    """Outcome of a job, from its own log."""

    status: int
    losses: dict[int, list[str]]
    walls_us: dict[int, list[int]]
    resident_kib: dict[int, list[int]]
    stderr: str


@dataclass
class FaultyJob:
    """Settings of the job of one test."""

    folder: Path
    steps: int = STEPS
    pause: float = 0.05
    fault: str = "none"
    environment: dict[str, str] | None = None

    def run(
        self,
        *,
        recorded: bool,
        during: Callable[[FaultyJob], None] | None = None,
        run_dir: Path | None = None,
        args: tuple[str, ...] = (),
    ) -> JobOutcome:
        """Run the job to its end; ``during`` is called once both ranks have done half of their steps."""
        log = self.log(recorded=recorded)
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir()
        job = [str(SCRIPT), "--journal", str(log), "--steps", str(self.steps), "--pause", str(self.pause)]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [*job, "--fault", self.fault, "--at", str(AT)]
        if recorded:
            options = ["--run-dir", str(run_dir or self.run_dir), "--no-verdict", "--window-first", "20", *args]
            command = [sys.executable, "-m", "rankscope", "run", *options, "--", *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(self.environment or {})}
        with (self.folder / "stderr").open("w+", encoding="utf-8") as stderr:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
            if during is not None:
                self._at_half(log, process)
                during(self)
            stdout, _ = process.communicate(timeout=900)
            stderr.seek(0)
            output = stderr.read()
        assert "rankscope" not in stdout
        rows = {rank: _rows(log / f"rank-{rank}") for rank in (0, 1)}
        return JobOutcome(
            process.returncode,
            {rank: [row[1] for row in rank_rows] for rank, rank_rows in rows.items()},
            {rank: [int(row[2]) for row in rank_rows] for rank, rank_rows in rows.items()},
            {rank: [int(row[3]) for row in rank_rows] for rank, rank_rows in rows.items()},
            output,
        )

    def _at_half(self, log: Path, process: subprocess.Popen[str]) -> None:
        half = self.steps // 2
        wait_until(lambda: all(len(_rows(log / f"rank-{rank}")) > half for rank in (0, 1)), timeout=300, process=process)

    def log(self, *, recorded: bool) -> Path:
        """Return the folder of the ranks' logs."""
        return self.folder / ("recorded" if recorded else "plain")

    @property
    def run_dir(self) -> Path:
        """Run directory of the recorder."""
        return self.folder / "run"

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks of the recorded job."""
        return [int(_rows(self.log(recorded=True) / f"rank-{rank}")[-1][4]) for rank in (0, 1)]


def _rows(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    return [line.split() for line in path.read_text(encoding="ascii").splitlines() if line.count(" ") == 4]


def helpers_of(ranks: list[int]) -> list[int]:
    """Return the helper processes of ranks."""
    children = {child for rank in ranks for child in children_of(rank)}
    return [pid for pid in children if b"rankscope.profiler.helper" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]


def rank_info(run_dir: Path, rank: int) -> RankInfo:
    """Return the rank.json of a rank of the first attempt."""
    info = RunReader(run_dir).rank(0, rank)
    assert info is not None
    return info


def recorded_steps(run_dir: Path, rank: int) -> list[int]:
    """Return the numbers of a rank's steps in the run."""
    return [record.step for record in RunReader(run_dir).steps(0, rank)]


def nothing_changed(plain: JobOutcome, recorded: JobOutcome) -> None:
    """Check that the recorder made no difference to training."""
    assert recorded.status == plain.status, recorded.stderr
    for rank in (0, 1):
        both = min(len(plain.losses[rank]), len(recorded.losses[rank]))
        assert both
        assert recorded.losses[rank][:both] == plain.losses[rank][:both]
        assert abs(len(plain.losses[rank]) - len(recorded.losses[rank])) <= 1
        growth = [
            sizes[-1] - sizes[SETTLED]
            for sizes in (plain.resident_kib[rank], recorded.resident_kib[rank])
            if len(sizes) > SETTLED
        ]
        assert len(growth) < 2 or growth[1] - growth[0] < GROWTH_KIB


def cost_and_wall(job: FaultyJob, outcome: JobOutcome, rank: int, run_dir: Path | None = None) -> tuple[float, float]:
    """Return the recorder's cost in a rank and the total time of the rank's steps, in microseconds."""
    info = rank_info(run_dir or job.run_dir, rank)
    assert info.recorder_cost_us is not None
    # The first window opens at any cost; a job that ends soon after has not amortized it.
    unpaid = (info.window_cost_us or 0) if info.windows == 1 else 0
    return info.recorder_cost_us - unpaid, sum(outcome.walls_us[rank])


def within_budget(job: FaultyJob, outcome: JobOutcome, run_dir: Path | None = None) -> None:
    """Check that the recorder's cost is within its budget on every rank."""
    for rank in (0, 1):
        cost, wall = cost_and_wall(job, outcome, rank, run_dir)
        assert cost <= BUDGET * wall


def nothing_lost(job: FaultyJob, outcome: JobOutcome, run_dir: Path | None = None) -> None:
    """Check that every step that ended is in the run once, or counted as dropped."""
    for rank in (0, 1):
        numbers = recorded_steps(run_dir or job.run_dir, rank)
        assert len(set(numbers)) == len(numbers)
        dropped = rank_info(run_dir or job.run_dir, rank).dropped_records
        # The log is written after the step's end; the first step may have a number and no record.
        assert len(numbers) + dropped >= len(outcome.losses[rank]) - 1


def said_once(outcome: JobOutcome, rank: int, words: str) -> None:
    """Check that the reason is on stderr once for the rank."""
    lines = [line for line in outcome.stderr.splitlines() if f"rankscope: rank {rank}:" in line and words in line]
    assert len(lines) == 1, outcome.stderr
