"""Real jobs whose helpers are killed, or whose memory or disk has no room: what is missing is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.full_disk import small_disk
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import attached_environment, info_of, recorded_job
from tests.waiting import wait_until

from rankscope.analysis.engine import analyze
from rankscope.cli.verbs.run import _print_verdict
from rankscope.profiler.launch import LaunchResult
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


JOB = Path(__file__).parent / "jobs" / "tiny_ddp.py"
STEPS = 300


def helpers_in(scratch: Path, rank: int) -> list[int]:
    """Return the process ids of the helpers of a rank whose folder is in ``scratch``."""
    collected = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdecimal() else []
            if b"rankscope.profiler.helper" in words and any(os.fsencode(scratch / f"rank{rank}-") in word for word in words):
                collected.append(int(process.name))
    return collected


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.full)])
def test_job_with_a_killed_helper_continues_and_is_recorded(torch_ranks: PreloadedTorch, tmp_path: Path, kills: int) -> None:
    scratch, run_dir = tmp_path / "scratch", tmp_path / "run"
    scratch.mkdir()
    environment = attached_environment(run_dir, scratch_dir=str(scratch), window_steps=0)
    options = ("--steps", str(STEPS), "--fault", "backward:0", "--pause", "0.03")
    killed_ns = []
    # Given two ranks, of which one loses its helper in the middle, again and again
    with subprocess.Popen(torch_ranks.command(2, JOB, *options), env=environment, stderr=subprocess.PIPE, text=True) as job:
        try:
            rank_1 = run_dir / "attempts" / "000" / "ranks" / "00001"
            before: list[int] = []
            for segments in range(1, kills + 1):
                wait_until(lambda count=segments: len(list(rank_1.glob("steps-*.npy"))) == count)
                time.sleep(0.5)
                (helper,) = set(helpers_in(scratch, 1)) - set(before)
                before.append(helper)
                killed_ns.append(time.time_ns())
                os.kill(helper, signal.SIGKILL)
            assert job.poll() is None, "the job ended too early"
            _, reported = job.communicate(timeout=120)
        finally:
            job.kill()
    # Then that is reported once, and the job is not disturbed (the helpers share the captured stderr)
    assert job.returncode == 0
    assert reported.count("\n") == 1
    assert "rank 1: its helper process was killed" in reported
    # And the same attempt has all steps once, but those that a killed helper held
    run = RunReader(run_dir)
    assert run.attempts() == [0]
    assert [step.step for step in run.steps(0, 0)] == list(range(STEPS))
    steps = {step.step: step for step in run.steps(0, 1)}
    assert len(list(run.steps(0, 1))) == len(steps)
    assert max(steps) == STEPS - 1
    lost = set(range(STEPS)) - steps.keys()
    assert len(lost) < 40 * kills
    ends = {number: step.start_unix_ns for number, step in steps.items()}
    for number in lost:
        following = min(end for after, end in ends.items() if after > number)
        assert any(0 <= killed + 500_000_000 - following < 2_500_000_000 for killed in killed_ns)
    info = info_of(run, 1)
    assert (info.end_reason, info.disabled_reason) == ("exit", None)
    assert not any(scratch.iterdir())


def test_job_without_space_in_local_memory_is_recorded_on_disk(
    torch_ranks: PreloadedTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Given ranks that see a full local memory where the launcher saw room
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    for folder in (memory, disk):
        folder.mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        "from pathlib import Path\n"
        "from rankscope.profiler import scratch\n"
        f"disk, made = Path({str(disk)!r}), scratch.tempfile.mkdtemp\n"
        "scratch._free = lambda folder: 10**12 if Path(folder) == disk else 0\n"
        "def noted(**options):\n"
        "    folder = made(**options)\n"
        "    (disk / 'noted').open('a').write(folder + '\\n')\n"
        "    return folder\n"
        "scratch.tempfile.mkdtemp, scratch.tempfile.tempdir = noted, str(disk)\n"
    )
    monkeypatch.setattr("rankscope.profiler.scratch.LOCAL_MEMORY", memory)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = recorded_job(torch_ranks.command(2, JOB, "--steps", "20"), tmp_path / "run")
    # Then all is recorded, as the launcher knows, and nothing stays anywhere
    assert (outcome.status, outcome.ranks) == (0, frozenset({(0, 0), (0, 1)}))
    folders = [Path(line) for line in (disk / "noted").read_text().splitlines()]
    assert [folder.parent for folder in folders] == [disk, disk]
    run = RunReader(tmp_path / "run")
    for rank in (0, 1):
        info = info_of(run, rank)
        assert info.end_reason == "exit"
        assert [step.step for step in run.steps(0, rank)] == list(range(20))
    assert not any(memory.iterdir())
    assert not list(disk.glob("rankscope-*"))
    assert "rankscope" not in capfd.readouterr().err


@pytest.mark.full
def test_script_without_standard_streams_is_recorded(tmp_path: Path) -> None:
    script = (
        "import sys; from rankscope.profiler.step import StepProfiler\n"
        "with StepProfiler(run_dir=sys.argv[1], window_steps=0, exporter_url=None) as prof:\n"
        "    for _ in range(5): prof.step()\n"
    )
    subprocess.run(["sh", "-c", 'exec "$0" -c "$1" "$2" <&- >&- 2>&-', sys.executable, script, tmp_path / "run"], check=True)
    run = RunReader(tmp_path / "run")
    wait_until(lambda: (info := run.rank(0, 0)) is not None and info.end_reason == "exit")
    assert len(list(run.steps(0, 0))) == 5


FULL_DISK_STEPS = 600


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Function that mounts a file system of so many KiB, and returns its folder."""
    with ExitStack() as mounted:

        def mount(kibibytes: int) -> Path:
            folder = mounted.enter_context(small_disk(tmp_path / "disk", kibibytes))
            if not folder.is_mount():
                pytest.skip("cannot mount a small file system here: run as root")
            return folder

        yield mount


@pytest.fixture
def record(torch_ranks: PreloadedTorch) -> Callable[[Path], LaunchResult]:
    """Function that records a job of two ranks."""

    def record_into(run: Path) -> LaunchResult:
        command = torch_ranks.command(2, JOB, "--steps", str(FULL_DISK_STEPS), "--pause", "0.002")
        return recorded_job(command, run)

    return record_into


@pytest.mark.full
def test_unwritten_steps_are_counted_and_the_job_end_is_recorded(
    record: Callable[[Path], LaunchResult], disk: Callable[[int], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = disk(60)
    assert record(folder / "run").status == 0
    reader = RunReader(folder / "run")
    infos = reader.infos(0)
    assert {info.end_reason for info in infos.values()} == {"exit"}
    unwritten = {rank: info.unwritten_steps for rank, info in infos.items()}
    assert all(count > 0 for count in unwritten.values()), unwritten
    assert {rank: reader.step_count(0, rank) + count for rank, count in unwritten.items()} == {
        0: FULL_DISK_STEPS,
        1: FULL_DISK_STEPS,
    }
    source = analyze([folder / "run"]).source
    assert source.coverage is not None
    assert source.coverage < 0.6
    assert any("steps of ranks 0, 1 could not be written" in warning for warning in source.warnings), source.warnings
    assert capfd.readouterr().err.count("steps (No space left on device)") == 2


@pytest.mark.full
def test_full_disk_is_reported_as_the_reason_for_an_empty_record(
    record: Callable[[Path], LaunchResult], disk: Callable[[int], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = disk(4)
    step_record = record(folder / "run")
    assert (step_record.status, step_record.ranks) == (0, frozenset())
    _print_verdict(step_record)
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.endswith(f"nothing was recorded in {folder / 'run'}: cannot write to {folder / 'run'} (No space left on device).")
