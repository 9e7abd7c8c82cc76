"""Real jobs whose run folder is on a disk without room: what is missing is said, and the end of the ranks is recorded."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch

from rankscope.analysis.engine import analyze
from rankscope.cli.verbs.run import _print_verdict
from rankscope.profiler.launch import LaunchOptions, LaunchResult, launch
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

JOB = Path(__file__).parent / "jobs" / "tiny_ddp.py"
STEPS = 600


@contextmanager
def disk(folder: Path, kibibytes: int) -> Iterator[Path]:
    """A file system of this size."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here: run as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def record(torch_ranks: PreloadedTorch) -> Callable[[Path], LaunchResult]:
    """Function that records a job of two ranks."""

    def record_into(run: Path) -> LaunchResult:
        command = torch_ranks.command(2, JOB, "--steps", str(STEPS), "--pause", "0.002")
        return launch(command, LaunchOptions(run_dir=run, name="full", window_steps=0, exporter_url=None))

    return record_into


@pytest.mark.full
def test_steps_that_do_not_fit_are_counted_and_the_job_has_ended(
    record: Callable[[Path], LaunchResult], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with disk(tmp_path / "disk", 60) as folder:
        assert record(folder / "run").status == 0
        reader = RunReader(folder / "run")
        infos = reader.infos(0)
        assert {info.end_reason for info in infos.values()} == {"exit"}
        unwritten = {rank: info.unwritten_steps for rank, info in infos.items()}
        assert all(count > 0 for count in unwritten.values()), unwritten
        assert {rank: reader.step_count(0, rank) + count for rank, count in unwritten.items()} == {0: STEPS, 1: STEPS}
        source = analyze([folder / "run"]).source
        assert source.coverage is not None
        assert source.coverage < 0.6
        assert any("steps of ranks 0, 1 could not be written" in warning for warning in source.warnings), source.warnings
    assert capfd.readouterr().err.count("steps (No space left on device)") == 2


@pytest.mark.full
def test_where_nothing_fits_the_disk_is_the_reason(
    record: Callable[[Path], LaunchResult], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with disk(tmp_path / "disk", 4) as folder:
        result = record(folder / "run")
        assert (result.status, result.ranks) == (0, frozenset())
        _print_verdict(result)
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.endswith(f"nothing was recorded in {folder / 'run'}: cannot write to {folder / 'run'} (No space left on device).")
