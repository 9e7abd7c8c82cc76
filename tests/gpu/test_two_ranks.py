"""On a machine with an NVIDIA GPU: two ranks over gloo on one GPU, recorded by ``rankscope run``."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepRecord

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("gpu_count", "require_torch")]

JOB = Path(__file__).parent / "jobs" / "one_gpu.py"
STEPS = 40
RANKS = (0, 1)


class TwoRankJob:
    """Recorded job that has ended well."""

    def __init__(self, folder: Path, *options: str, windows: tuple[int, int] = (20, 0)) -> None:
        first, steps = windows
        recorded = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(folder / "run"), "--no-verdict"]
        recorded += ["--window-first", str(first), "--window-every", "0", "--window-steps", str(steps), "--"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)]
        ended = subprocess.run(
            [*recorded, *torchrun, "--steps", str(STEPS), *options], capture_output=True, text=True, check=False, timeout=500
        )
        assert ended.returncode == 0, ended.stderr
        assert "switched itself off" not in ended.stderr
        self.stderr = ended.stderr
        results = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        self.cuda_events = {row["rank"]: row["cuda_events"] for row in results}
        assert self.cuda_events.keys() == set(RANKS)
        self.run = RunReader(folder / "run")

    def steps(self, rank: int) -> list[StepRecord]:
        return list(self.run.steps(0, rank))

    def timed(self, rank: int) -> list[StepRecord]:
        """Return the steps whose device times are known."""
        return [row for row in self.steps(rank) if row.device_us is not None]


@pytest.mark.timeout(600)
def test_late_rank_has_more_own_time(tmp_path: Path) -> None:
    job = TwoRankJob(tmp_path, "--late")
    own = []
    for rank in RANKS:
        own_times = [row.own_us for row in job.timed(rank) if row.device_blocked_us is not None and row.own_us is not None]
        assert len(own_times) >= STEPS / 2, "each step reports its waits"
        own.append(statistics.median(own_times))
        info = job.run.rank(0, rank)
        assert info is not None
        assert (info.device_kind, info.gpu_uuids) == ("cuda", [])
        assert info.gpu_uuid
    assert own[1] - own[0] > 10_000, "of the 20 ms that rank 1 sleeps"


@pytest.mark.timeout(600)
def test_window_has_the_same_steps_and_kernels_on_both_ranks(tmp_path: Path) -> None:
    job = TwoRankJob(tmp_path, windows=(20, 3))
    assert "window was left out" not in job.stderr
    kernels = []
    for rank in RANKS:
        assert [row.step for row in job.steps(rank) if row.profiled] == [19, 20, 21, 22], "the warm-up, and the window"
        windows = list(job.run.windows(0, rank))
        assert [(row.step, row.device_kind, row.truncated) for row in windows] == [(step, "cuda", False) for step in (20, 21, 22)]
        computed = [(row.step, row.name, row.calls) for row in job.run.kernels(0, rank) if row.kind == "compute"]
        # Every step does the same: none has a part of its neighbours, and none lacks a kernel at an end of the window.
        by_step = [{name: count for at, name, count in computed if at == step} for step in (20, 21, 22)]
        # Only the costliest are recorded, which differ where two cost about the same.
        in_all = set.intersection(*map(set, by_step))
        assert in_all
        calls = [{name: count for name, count in counts.items() if name in in_all} for counts in by_step]
        assert calls[0] == calls[1] == calls[2]
        kernels.append(calls[0])
    assert all(kernels[0][name] == kernels[1][name] for name in kernels[0].keys() & kernels[1].keys())


@pytest.mark.timeout(600)
def test_training_on_a_side_stream_has_device_times(tmp_path: Path) -> None:
    job = TwoRankJob(tmp_path, "--side-stream")
    for rank in RANKS:
        assert len(job.timed(rank)) >= STEPS / 2
        assert all((row.device_us.backward or 0) > 0 for row in job.timed(rank) if row.device_us is not None)


@pytest.mark.timeout(600)
def test_thousands_of_waits_in_a_step_create_few_cuda_events(tmp_path: Path) -> None:
    few, many = TwoRankJob(tmp_path / "few"), TwoRankJob(tmp_path / "many", "--waits", "2000")
    for rank in RANKS:
        assert many.cuda_events[rank] <= few.cuda_events[rank] + 2_000
        assert all(row.device_blocked_us is None for row in many.timed(rank)), "unknown rather than a part of it"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("captured", [19, 20, 22], ids=["at its start", "inside", "at its end"])
def test_graph_capture_at_a_profiling_window_works_while_recording(tmp_path: Path, captured: int) -> None:
    job = TwoRankJob(tmp_path, "--capture", str(captured), windows=(20, 3))
    for rank in RANKS:
        assert len(job.steps(rank)) >= STEPS - 2


@pytest.mark.timeout(600)
def test_forked_data_workers_do_not_touch_the_device(tmp_path: Path) -> None:
    job = TwoRankJob(tmp_path, "--workers", "1")
    assert "CUDA error" not in job.stderr
    for rank in RANKS:
        assert job.timed(rank)
