"""Real torchrun jobs, recorded from outside through the environment alone, with the results that they have without."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import info_of, recorded_job
from tests.waiting import wait_until

from rankscope.profiler.launch import LaunchResult
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, Phase, StepRecord

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


STEPS = 16
PAUSE_US = 50_000


JOB = Path(__file__).parent / "jobs" / "tiny_ddp.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)]


def record(command: list[str], run_dir: Path, *args: str, windows: int = 0, spool: Path | None = None) -> LaunchResult:
    """Record ``JOB`` on two ranks."""
    options = {"window_first": 6, "window_every": 0, "window_steps": windows, "spool_dir": spool and str(spool)}
    return recorded_job([*command, "--steps", str(STEPS), "--pause", str(PAUSE_US / 1e6), *args], run_dir, **options)


def steps(run: RunReader, rank: int, attempt: int = 0) -> list[StepRecord]:
    """Return all records of a rank."""
    return list(run.steps(attempt, rank))


def typical(records: list[StepRecord], phase: Phase, *, own: bool = False) -> float:
    """Return the median time of a phase in microseconds; own time only if ``own``."""
    times = [
        (record.phases_us.get(phase) or 0.0) - (record.blocked_us.get(phase) or 0.0 if own and record.blocked_us else 0.0)
        for record in records[2:]
    ]
    return statistics.median(times)


@pytest.fixture(scope="module")
def slow_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[LaunchResult, RunReader, Path]:
    """A job whose rank 1 waits for its data, with a profiler window."""
    folder = tmp_path_factory.mktemp("slow-data")
    (folder / "spool").mkdir()
    step_record = record(TORCHRUN, folder / "run", "--fault", "data:1", windows=2, spool=folder / "spool")
    return step_record, RunReader(folder / "run"), folder


def test_every_step_of_every_rank_is_recorded(slow_data: tuple[LaunchResult, RunReader, Path]) -> None:
    result, run, _ = slow_data
    assert (result.status, result.attempt, result.ranks) == (0, 0, frozenset({(0, 0), (0, 1)}))
    assert run.attempts() == [0]
    assert run.ranks(0) == [0, 1]
    for rank in (0, 1):
        records = steps(run, rank)
        assert [record.step for record in records] == list(range(STEPS))
        assert {record.samples for record in records} == {4}
        assert {record.input_elements for record in records} == {64}
        assert all(record.cpu_us for record in records)
    assert run.skipped_lines == 0


def test_phases_of_a_step_sum_to_the_wall_time(slow_data: tuple[LaunchResult, RunReader, Path]) -> None:
    _, run, _ = slow_data
    for rank in (0, 1):
        for record in steps(run, rank):
            assert sum(record.phases_us.get(phase) or 0 for phase in PHASES) == pytest.approx(record.wall_us, rel=1e-6)
            blocked = record.blocked_us
            assert blocked is not None
            assert all((blocked.get(phase) or 0) <= (record.phases_us.get(phase) or 0) for phase in PHASES)


def test_slow_loader_is_data_phase_on_its_rank_and_blocked_time_on_others(
    slow_data: tuple[LaunchResult, RunReader, Path],
) -> None:
    _, run, _ = slow_data
    fast, slow = steps(run, 0), steps(run, 1)
    assert typical(slow, "data") > PAUSE_US
    assert typical(fast, "data") < PAUSE_US / 2
    waited = [statistics.median(record.blocked_total_us or 0 for record in records[2:]) for records in (fast, slow)]
    assert waited[0] > waited[1] + PAUSE_US / 2
    # The collectives make the wall times equal: only own time distinguishes the two.
    assert statistics.median(record.own_us or 0 for record in slow[2:]) > 2 * statistics.median(
        record.own_us or 0 for record in fast[2:]
    )


def test_windows_and_collectives_cover_the_same_steps_on_all_ranks(slow_data: tuple[LaunchResult, RunReader, Path]) -> None:
    _, run, _ = slow_data
    for rank in (0, 1):
        assert [window.step for window in run.windows(0, rank)] == [6, 7]
        assert {row.step for row in run.collectives(0, rank)} == {6, 7}
        assert {row.step for row in run.kernels(0, rank)} == {6, 7}
        assert [record.step for record in steps(run, rank) if record.profiled] == [6, 7]
    ops = [[(row.step, row.group, row.index, row.op) for row in run.collectives(0, rank)] for rank in (0, 1)]
    assert ops[0] == ops[1]


def test_run_records_its_launcher_versions_and_end(slow_data: tuple[LaunchResult, RunReader, Path]) -> None:
    _, run, folder = slow_data
    assert "tiny_ddp.py" in (run.info.launcher or "")
    attempt = run.attempt(0)
    assert attempt is not None
    assert (attempt.world_size, attempt.backend) == (2, "gloo")
    assert "torch" in attempt.versions
    for rank in (0, 1):
        info = info_of(run, rank)
        assert (info.end_reason, info.local_rank, info.dropped_records, info.disabled_reason) == ("exit", rank, 0, None)
        assert info.recorder_cost_us
        assert (info.end_unix_ns or 0) > info.start_unix_ns
    assert not any((folder / "spool").iterdir()), "the text files of ranks that said goodbye are gone"
    assert {path.name for path in (folder / "run").iterdir()} == {"run.json", "attempts", "control"}


def test_late_stall_in_backward_is_own_backward_time_of_the_slow_rank(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    assert record(torch_ranks.command(2, JOB), tmp_path / "run", "--fault", "backward:1").status == 0
    run = RunReader(tmp_path / "run")
    fast, slow = steps(run, 0), steps(run, 1)
    # Both show a long backward …
    assert min(typical(fast, "backward"), typical(slow, "backward")) > PAUSE_US / 2
    # … but only one of them needed it.
    assert typical(slow, "backward", own=True) > PAUSE_US
    assert typical(fast, "backward", own=True) < PAUSE_US / 2
    assert not list(run.windows(0, 0)), "no windows were asked for"


def test_run_with_a_killed_rank_stays_readable_and_accepts_another_attempt(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    # Given a job whose rank 1 is killed in the middle
    (tmp_path / "spool").mkdir()
    command = torch_ranks.command(2, JOB)
    step_record = record(command, tmp_path / "run", "--fault", "kill:1", spool=tmp_path / "spool")
    assert step_record.status != 0
    assert not any((tmp_path / "spool").iterdir()), "the job is over: nobody is to be called for its ranks"
    run = RunReader(tmp_path / "run")
    info = info_of(run, 1)
    assert info.end_reason == "killed"
    assert info.end_unix_ns is not None
    assert [record.step for record in steps(run, 1)] == list(range(STEPS // 2 + 1))
    # When it is started again into the same run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_RUN_ID", run.info.run_id)  # it is the same run, though the command differs
        again = record(command, tmp_path / "run")
    # Then both are there
    assert (again.status, again.attempt) == (0, 1)
    run = RunReader(tmp_path / "run")
    assert run.attempts() == [0, 1]
    assert len(steps(run, 1, attempt=1)) == STEPS


VANISHES = """
import os
from rankscope.profiler.step import StepProfiler
with StepProfiler(run_dir="not here", window_steps=0) as prof:
    for _ in range(5):
        prof.step()
    os.kill(os.getpid(), 9)
"""


def test_metrics_of_a_vanished_rank_are_kept_until_the_job_ends(tmp_path: Path) -> None:
    # Given a job that continues after a rank of it was killed (with torch imported by us), and another job's metrics
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "0-another-0.prom").touch()
    job = ["sh", "-c", '"$0" -c "$1"; exec sleep 1000', sys.executable, VANISHES]
    script = (
        "import sys; from pathlib import Path; from rankscope.profiler.launch import *\n"
        "run, spool, *job = sys.argv[1:]\n"
        "sys.exit(launch(job, LaunchOptions(run_dir=Path(run), spool_dir=spool, name='x')).status)"
    )
    with subprocess.Popen([sys.executable, "-c", script, tmp_path / "run", spool, *job]) as launcher:
        try:
            ended = tmp_path / "run" / "attempts" / "000" / "ranks" / "00000" / "rank.json"
            wait_until(lambda: ended.exists() and b'"killed"' in ended.read_bytes(), process=launcher)
            wait_until(lambda: len(list(spool.iterdir())) >= 2, process=launcher)
            # When the job is cancelled
            launcher.send_signal(signal.SIGTERM)
            assert launcher.wait(60) == 128 + signal.SIGTERM
        finally:
            launcher.terminate()
    # Then no alert fires for its ranks
    assert [entry.name for entry in spool.iterdir()] == ["0-another-0.prom"]


DIGESTS_JOB = Path(__file__).parent / "jobs" / "digests.py"
BATCHES = 80


@pytest.mark.parametrize("accumulated", [pytest.param(1, marks=pytest.mark.full), 4])
def test_recorded_training_computes_identical_bits(
    torch_ranks: PreloadedTorch, tmp_path: Path, capfd: pytest.CaptureFixture[str], accumulated: int
) -> None:
    command = torch_ranks.command(2, DIGESTS_JOB, str(accumulated))
    assert recorded_job(command, tmp_path / "run", window_first=5, window_steps=3).status == 0
    recorded = capfd.readouterr()
    assert "switched itself off" not in recorded.err
    run = RunReader(tmp_path / "run")
    assert [len(list(run.steps(0, rank))) for rank in (0, 1)] == [BATCHES // accumulated] * 2
    unrecorded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert sorted(recorded.out.splitlines()) == sorted(unrecorded.splitlines())
    assert len(unrecorded.splitlines()) == 2
