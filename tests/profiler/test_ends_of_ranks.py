"""How the process of a rank ends, and what is recorded of it, in real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.profiler.recorded_runs import info_of, recorded_job

from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

TRAIN = """
import atexit, os, signal, sys, threading, time
from pathlib import Path
import torch

last = []
atexit.register(lambda: last and last[0]())  # runs after what the recorder registers

def train(end, steps=4):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(steps):
        model(torch.rand(2, 4)).sum().backward()
        optimizer.step()
    end()

def fail():
    raise RuntimeError("planted")

def swallow():
    try:
        fail()
    except RuntimeError:
        sys.exit(1)

def exit_with(status):
    raise SystemExit(status)

def exit_in_pool():
    from concurrent.futures import ThreadPoolExecutor
    ThreadPoolExecutor(1).submit(exit_with, 4).result()

def exec_nothing():
    try:
        os.execv("/no/such/program", ["x"])
    except OSError:
        os.kill(os.getpid(), signal.SIGKILL)

def close_files():
    os.closerange(3, 256)
    while not any("end_reason" in file.read_text() for file in Path(os.environ["RANKSCOPE_RUN_DIR"]).rglob("rank.json")):
        time.sleep(0.05)

ENDS = {
    "returns": lambda: None, "raises": fail, "exits": lambda: sys.exit(0), "exits 3": lambda: exit_with(3),
    "exits 256": lambda: exit_with(256), "exits with a text": lambda: exit_with("no data"),
    "exits in a pool": lambda: exit_in_pool(), "swallows": swallow,
    "os._exit": lambda: os._exit(0), "os._exit 2": lambda: os._exit(2), "Ctrl-C": lambda: exit_with_ctrl_c(),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "a caught exit": lambda: caught_exit(),
    "killed at exit": lambda: last.append(lambda: os.kill(os.getpid(), signal.SIGABRT)),
    "os._exit 2 at exit": lambda: last.append(lambda: os._exit(2)),
    "becomes a program": lambda: os.execvp("true", ["true"]), "killed after no exec": exec_nothing,
    "closes all files": close_files,
}

def exit_with_ctrl_c():
    raise KeyboardInterrupt

def caught_exit():
    try:
        sys.exit(1)
    except SystemExit:
        pass
"""

ENDINGS = {
    "returns": "exit",
    "raises": "crash",
    "exits": "exit",
    "exits 3": "crash",
    "exits 256": "exit",
    "exits with a text": "crash",
    "exits in a pool": "crash",
    "swallows": "crash",
    "os._exit": "exit",
    "os._exit 2": "crash",
    "Ctrl-C": "interrupted",
    "killed": "killed",
    "a caught exit": "exit",
    "killed at exit": "killed",
    "os._exit 2 at exit": "crash",
    "becomes a program": "exit",
    "killed after no exec": "killed",
    "closes all files": "disabled",
}

CHILD = """
if __name__ == "__main__":
    import multiprocessing
    context = multiprocessing.get_context(sys.argv[1])
    child = context.Process(target=train, args=(ENDS[sys.argv[2]],)) if sys.argv[1] == "fork" else context.Process(
        target=train_as, args=(sys.argv[2],)
    )
    child.start()
    child.join()
"""
BY_NAME = """
def train_as(end):
    train(ENDS[end])
"""


def end_reason(command: list[str], run_dir: Path) -> str | None:
    recorded_job(command, run_dir)
    info = info_of(run_dir)
    assert len(list(RunReader(run_dir).steps(0, 0))) == 3
    return info.end_reason


@pytest.mark.parametrize(
    "end", [end if end in ("swallows", "killed at exit") else pytest.param(end, marks=pytest.mark.full) for end in ENDINGS]
)
def test_end_reason_of_a_script_follows_the_exit_status(tmp_path: Path, end: str) -> None:
    assert end_reason([sys.executable, "-c", f"{TRAIN}\ntrain(ENDS[{end!r}])"], tmp_path / "run") == ENDINGS[end]


METHODS = [
    (method, end) for method in ("fork", "forkserver", "spawn") for end in ("returns", "raises", "exits 3", "os._exit", "killed")
]


@pytest.mark.full
@pytest.mark.parametrize(("method", "end"), METHODS)
def test_end_reason_of_a_multiprocessing_child_is_recorded(tmp_path: Path, method: str, end: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(TRAIN + BY_NAME + CHILD)
    assert end_reason([sys.executable, str(script), method, end], tmp_path / "run") == ENDINGS[end]


@pytest.mark.full
def test_exit_of_a_forked_child_does_not_end_the_rank(tmp_path: Path) -> None:
    script = (
        f"{TRAIN}\ndef end():\n"
        "    child = os.fork()\n"
        "    if not child: sys.exit(3)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3\n"
        "train(end)"
    )
    assert end_reason([sys.executable, "-c", script], tmp_path / "run") == "exit"


KILLED_WITH_CHILDREN = f"""{TRAIN}
def end():
    print("trained", flush=True)
    time.sleep(600)

if len(sys.argv) > 2:
    train(end, 40)

import subprocess
from pathlib import Path
from rankscope.profiler.scratch import recorded_ranks
from rankscope.profiler.settings import from_environment
worker = subprocess.Popen([sys.executable, sys.argv[0], *sys.argv[1:], "worker"], stdout=subprocess.PIPE)
worker.stdout.readline()
settings = from_environment()
while not (recorded_ranks(Path(settings.scratch_dir)) and list(Path(settings.run_dir).glob("attempts/*/ranks/*/steps-*"))):
    time.sleep(0.05)
for child in Path(f"/proc/{{worker.pid}}/task/{{worker.pid}}/children").read_text().split():
    os.kill(int(child), signal.SIGKILL)
worker.kill()
worker.wait()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.full
@pytest.mark.parametrize(("status", "reason"), [(0, "exit"), (3, "killed")])
def test_rank_killed_with_its_helper_gets_the_end_reason_of_the_job(tmp_path: Path, status: int, reason: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(KILLED_WITH_CHILDREN)
    command = [sys.executable, str(script), str(status)]
    recorded_job(command, tmp_path / "run")
    info = info_of(tmp_path / "run")
    assert info.end_reason == reason
    assert info.end_unix_ns is not None
    assert info.end_unix_ns >= info.start_unix_ns


RESTARTED_IN_PROCESS = """
import os, subprocess, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train(start, steps=4):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/{start}", rank=rank, world_size=world_size)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(steps):
        model(torch.rand(2, 4)).sum().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # gloo's threads release the last gradients

if "RANK" not in os.environ:
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "3"})
        for rank in range(3)
    ]
    sys.exit(ranks[0].wait() + ranks[2].wait())

train(0)
dist.destroy_process_group()
rank = int(os.environ["RANK"])
if rank == 1:
    os._exit(1)
os.environ.update(RANK=str(rank // 2), WORLD_SIZE="2")
train(1)
os._exit(0)
"""


@pytest.mark.full
def test_new_process_group_in_a_process_starts_another_attempt(tmp_path: Path) -> None:
    script, run_dir = tmp_path / "job.py", tmp_path / "run"
    script.write_text(RESTARTED_IN_PROCESS)
    command = [sys.executable, str(script), str(tmp_path)]
    outcome = recorded_job(command, run_dir)
    assert outcome.status == 0
    reader = RunReader(run_dir)
    assert {attempt: sorted(reader.ranks(attempt)) for attempt in reader.attempts()} == {0: [0, 1, 2], 1: [0, 1]}
    before, after = ({rank: reader.rank(attempt, rank) for rank in reader.ranks(attempt)} for attempt in (0, 1))
    assert {rank: info.end_reason for rank, info in before.items() if info} == {0: "exit", 1: "crash", 2: "exit"}
    assert {rank: info.end_reason for rank, info in after.items() if info} == {0: "exit", 1: "exit"}
    assert before[2] is not None
    assert after[1] is not None
    assert before[2].pid == after[1].pid
    starts = [attempt.start_id for number in (0, 1) if (attempt := reader.attempt(number)) is not None]
    assert len(set(starts)) == 2


FORKED_RANKS = """
import multiprocessing, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from rankscope.runs.paths import attempt_file

def train(steps):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(steps):
        model(torch.rand(2, 4)).sum().backward()
        optimizer.step()

def rank(number):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=number, world_size=2)
    train(6)
    dist.destroy_process_group()

torch.set_num_threads(1)
train(4)
deadline = time.monotonic() + 60
while not attempt_file(Path(sys.argv[2]), 0).exists() and time.monotonic() < deadline:
    time.sleep(0.02)  # its helper notes the attempt; else those of the children may come first
ranks = [multiprocessing.get_context("fork").Process(target=rank, args=(number,)) for number in range(2)]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
"""


def test_ranks_forked_from_a_training_process_log_why_none_is_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, run_dir = tmp_path / "job.py", tmp_path / "run"
    script.write_text(FORKED_RANKS)
    command = [sys.executable, str(script), str(tmp_path / "group"), str(run_dir)]
    assert recorded_job(command, run_dir).status == 0
    reader = RunReader(run_dir)
    assert {attempt: reader.step_count(attempt, 0) for attempt in reader.attempts()} == {0: 3}
    errors = capfd.readouterr().err
    for rank in (0, 1):
        assert f"rankscope: rank {rank}: attempt 0 of {run_dir} is that of another job" in errors
