"""Stacks of real ranks, sampled by the real py-spy: planted stalls, nothing planted, and where it is denied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.needs import skip_or_fail
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import attached_environment
from tests.waiting import wait_until

from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError
from rankscope.profiler.helper.sampling.stacks import DENIED, find_program
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StackSamples

JOB = Path(__file__).parent / "jobs" / "stalling.py"
LOADING = JOB.with_name("loading.py")
SECONDS = 100
"""Longest duration of the jobs, which are ended as soon as there are enough samples."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch", "py_spy")]


@pytest.fixture(scope="module")
def py_spy() -> None:
    """py-spy; without it the test is skipped (fails in CI)."""
    if find_program() is None:
        skip_or_fail("py-spy is not installed: make install")


def planted(kind: str, job: Path = JOB) -> int:
    """Return the number of the line of the stall."""
    return next(number for number, line in enumerate(job.read_text().splitlines(), 1) if line.endswith(f"# stall: {kind}"))


def stacks(run: Path, rank: int) -> list[StackSamples]:
    """Return the samples of a rank so far."""
    try:
        return list(RunReader(run).stacks(0, rank))
    except InputError:
        return []


@contextmanager
def training(command: list[str], run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job and yield its process."""
    environment = attached_environment(run, window_steps=0, stacks_seconds=4.0, budget=0.1) | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as job:
        try:
            yield job
        finally:
            job.terminate()


def record(torch: PreloadedTorch, run: Path, kind: str, series: int, job: Path = JOB) -> None:
    """Train on two ranks, with a stall on rank 1, until each rank has as many series of samples."""

    def sampled() -> bool:
        if any(row.missing == DENIED for row in stacks(run, 0)):
            pytest.skip(f"{DENIED}, as in containers without SYS_PTRACE")
        return min(len(stacks(run, rank)) for rank in (0, 1)) >= series

    with training(torch.command(2, job, kind, "1", str(SECONDS)), run) as process:
        wait_until(sampled, process=process, poll_s=0.1)


def places(run: Path, rank: int) -> Counter[tuple[str, int]]:
    """Return the number of the samples of a rank per line."""
    result = Counter[tuple[str, int]]()
    for row in stacks(run, rank):
        for line in row.lines:
            result[Path(line.file).name, line.line] += line.samples
    return result


def test_sampled_stacks_show_the_line_of_a_stall_on_the_slow_rank(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    record(torch_ranks, run, "forward", 2)
    place = (JOB.name, planted("forward"))
    assert places(run, 1).most_common(1)[0][0] == place
    assert place not in places(run, 0)
    lines = [line for row in stacks(run, 1) for line in row.lines if line.line == place[1]]
    assert {(line.function.rpartition(".")[2], line.call) for line in lines} == {("forward", "time.sleep")}
    assert "forward" in {line.phase for line in lines} <= {"forward", None}
    row = stacks(run, 1)[0]
    assert row.first_step is not None
    assert row.last_step is not None
    assert 3 <= row.first_step < row.last_step


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize(
    ("kind", "call", "phase"),
    [("forward", "time.sleep", "forward"), ("collate", "time.sleep", "data"), ("extension", "zlib.compress", "forward")],
)
def test_verdict_names_the_line_of_a_stall(torch_ranks: PreloadedTorch, tmp_path: Path, kind: str, call: str, phase: str) -> None:
    record(torch_ranks, tmp_path / "run", kind, 3)
    analysis = analyze([tmp_path / "run"])
    verdict, line = analysis.verdict, analysis.verdict.stalls_at
    assert (verdict.kind, verdict.rank) == ("straggler", 1)
    assert line is not None
    assert (Path(line.file).name, line.line, line.call, line.phase) == (JOB.name, planted(kind), call, phase)
    assert line.share > 0.3
    assert line.healthy_share < 0.05
    where = f"{JOB.name}:{line.line}"
    assert where in verdict.summary
    assert where in analysis.findings[0].summary
    assert not any("py-spy" in action for action in verdict.next)


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize(
    ("kind", "explained_by", "runs_in"),
    [
        ("plain", "no_workers", "training_thread"),
        ("workers", None, "worker_process"),
        ("persistent", None, "worker_process"),
        ("spawn", None, "worker_process"),
        ("forkserver", None, "worker_process"),
        ("stream", None, "worker_process"),
        ("thread", "no_workers", "background_thread"),
        ("simple_queue", "no_workers", "background_thread"),
        ("pool", "no_workers", "background_thread"),
        ("event", "no_workers", "background_thread"),
        ("thread_workers", None, "worker_process"),
        ("own_thread", None, "background_thread"),
        ("own_process", None, "worker_process"),
    ],
)
def test_slow_loading_is_an_input_verdict_at_the_line_of_the_dataset(
    torch_ranks: PreloadedTorch, tmp_path: Path, kind: str, explained_by: str | None, runs_in: str
) -> None:
    record(torch_ranks, tmp_path / "run", kind, 3, LOADING)
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.rank, verdict.cause, verdict.explained_by) == ("straggler", 1, "input", explained_by)
    assert verdict.stalls_at is not None
    assert (Path(verdict.stalls_at.file).name, verdict.stalls_at.line) == (LOADING.name, planted("sample", LOADING))
    assert (verdict.stalls_at.call, verdict.stalls_at.runs_in) == ("time.sleep", runs_in)
    facts = " ".join([verdict.summary, *verdict.next])
    assert ("num_workers=0" in facts) is (explained_by == "no_workers")
    assert f"{LOADING.name}:{planted('sample', LOADING)}" in facts


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("kind", ["lock", "log"])
def test_host_stall_beside_a_background_loader_is_not_an_input_verdict(
    torch_ranks: PreloadedTorch, tmp_path: Path, kind: str
) -> None:
    record(torch_ranks, tmp_path / "run", kind, 3, LOADING)
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.rank, verdict.cause) == ("straggler", 1, "host")
    assert verdict.stalls_at is not None
    assert (Path(verdict.stalls_at.file).name, verdict.stalls_at.line) == (LOADING.name, planted(kind, LOADING))


@pytest.mark.full
@pytest.mark.alone
def test_verdict_names_no_line_without_a_stall(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    record(torch_ranks, tmp_path / "run", "none", 3)
    assert analyze([tmp_path / "run"]).verdict.stalls_at is None


HIDDEN = """
import ctypes, time
import torch
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: only a process with the right to trace all others may read this one
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
end = time.time() + {seconds}
while time.time() < end:
    model(torch.ones(4, 8)).mean().backward()
    optimizer.step()
    time.sleep(0.01)
"""


@pytest.mark.full
def test_denied_py_spy_is_recorded_with_the_reason_and_recording_continues(tmp_path: Path) -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        skip_or_fail("setpriv is not installed: apt-get install util-linux")
    run = tmp_path / "run"
    without = [setpriv, "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"] if os.getuid() == 0 else []
    with training([*without, sys.executable, "-c", HIDDEN.format(seconds=SECONDS)], run) as process:
        rows = wait_until(lambda: stacks(run, 0), process=process, poll_s=0.1)
        assert [row.missing for row in rows] == [DENIED]
        # And the recorder goes on
        steps = len(list(RunReader(run).steps(0, 0)))
        wait_until(lambda: len(list(RunReader(run).steps(0, 0))) > steps, process=process, poll_s=0.1)
    assert len(stacks(run, 0)) == 1
