"""Training on several threads of a process at the same time: one of them is recorded, and none is disturbed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankscope.profiler.launch import LaunchOptions, launch
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

TRAIN = """
import threading, time
import torch

torch.set_num_threads(1)

def train(steps, hold=-1):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    for number in range(steps):
        model(torch.rand(2, 4)).sum().backward()
        if number == hold:
            held.set()
            others_done.wait()
        optimizer.step()

held, others_done = threading.Event(), threading.Event()
"""


def test_two_threads_that_begin_together_are_one_recording(tmp_path: Path) -> None:
    script = (
        f"{TRAIN}\ntorch.optim.SGD([torch.zeros(1)])\n"  # imports what an optimizer needs
        "threads = [threading.Thread(target=train, args=(300,)) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    run_dir = tmp_path / "run"
    options = LaunchOptions(run_dir=run_dir, name="threads", window_steps=0, exporter_url=None)
    assert launch([sys.executable, "-c", script], options).status == 0
    run = RunReader(run_dir)
    assert run.attempts() == [0]
    info = run.rank(0, 0)
    assert info is not None
    assert (info.end_reason, info.disabled_reason) == ("exit", None)


def test_training_on_another_thread_leaves_a_profiled_step_alone(tmp_path: Path) -> None:
    # Given a thread that stands still in a profiled step while another one trains
    script = (
        f"{TRAIN}\nfirst = threading.Thread(target=train, args=(20, 6))\n"
        "first.start()\nheld.wait()\n"
        "second = threading.Thread(target=train, args=(60,))\n"
        "second.start()\nsecond.join()\nothers_done.set()\nfirst.join()\n"
    )
    run_dir = tmp_path / "run"
    options = LaunchOptions(run_dir=run_dir, name="threads", window_first=5, window_every=0, window_steps=3, exporter_url=None)
    # Then the window is that of the first thread, and so are all steps
    assert launch([sys.executable, "-c", script], options).status == 0
    run = RunReader(run_dir)
    info = run.rank(0, 0)
    assert info is not None
    assert (info.end_reason, info.windows, info.missed_windows) == ("exit", 1, 0)
    assert [step.step for step in run.steps(0, 0)] == list(range(1, 20))


def test_a_thread_may_end_in_a_profiled_step(tmp_path: Path) -> None:
    # Given a thread that ends in a window, and another one that goes on
    script = (
        f"{TRAIN}\nfor steps in (7, 20):\n"
        "    thread = threading.Thread(target=train, args=(steps,))\n"
        "    thread.start()\n"
        "    thread.join()\n"
    )
    run_dir = tmp_path / "run"
    options = LaunchOptions(run_dir=run_dir, name="threads", window_first=5, window_every=15, window_steps=3, exporter_url=None)
    # Then that window is lost, and the next one is recorded
    assert launch([sys.executable, "-c", script], options).status == 0
    info = RunReader(run_dir).rank(0, 0)
    assert info is not None
    assert (info.end_reason, info.windows, info.missed_windows) == ("exit", 1, 1)
