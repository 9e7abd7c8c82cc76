"""How the process of a rank ends, and what is recorded of it, in real processes."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import pytest

from rankscope.profiler.launch import LaunchOptions, launch
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

TRAIN = """
import os, signal, sys, threading, time
import torch

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

ENDS = {
    "returns": lambda: None, "raises": fail, "exits": lambda: sys.exit(0), "exits 3": lambda: exit_with(3), "swallows": swallow,
    "os._exit": lambda: os._exit(0), "os._exit 2": lambda: os._exit(2), "Ctrl-C": lambda: exit_with_ctrl_c(),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "a caught exit": lambda: caught_exit(),
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
    "swallows": "crash",
    "os._exit": "exit",
    "os._exit 2": "crash",
    "Ctrl-C": "interrupted",
    "killed": "killed",
    "a caught exit": "exit",
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
    launch(command, LaunchOptions(run_dir=run_dir, name="ends", window_steps=0, exporter_url=None))
    info = RunReader(run_dir).rank(0, 0)
    assert info is not None
    assert len(list(RunReader(run_dir).steps(0, 0))) == 3
    return info.end_reason


def some(cases: Iterable[Any], every_day: Container[Any]) -> list[Any]:
    """Return the cases, those that are not tested every day marked as ``full``."""
    return [
        case if case in every_day else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
        for case in cases
    ]


@pytest.mark.parametrize("end", some(ENDINGS, ("swallows",)))
def test_the_end_of_a_script_is_told_by_its_exit_status(tmp_path: Path, end: str) -> None:
    assert end_reason([sys.executable, "-c", f"{TRAIN}\ntrain(ENDS[{end!r}])"], tmp_path / "run") == ENDINGS[end]


METHODS = [
    (method, end) for method in ("fork", "forkserver", "spawn") for end in ("returns", "raises", "exits 3", "os._exit", "killed")
]


@pytest.mark.parametrize(("method", "end"), some(METHODS, [("fork", "raises")]))
def test_the_end_of_a_child_of_multiprocessing_is_told(tmp_path: Path, method: str, end: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(TRAIN + BY_NAME + CHILD)
    assert end_reason([sys.executable, str(script), method, end], tmp_path / "run") == ENDINGS[end]


def test_the_end_of_a_forked_child_is_not_that_of_the_rank(tmp_path: Path) -> None:
    script = (
        f"{TRAIN}\ndef end():\n"
        "    child = os.fork()\n"
        "    if not child: sys.exit(3)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3\n"
        "train(end)"
    )
    assert end_reason([sys.executable, "-c", script], tmp_path / "run") == "exit"
