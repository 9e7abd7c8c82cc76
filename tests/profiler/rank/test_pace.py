"""Steps that get marks on the device, so that short steps do not cost more than the recorder may take."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch

from rankscope.profiler.rank.pace import EVERY_STEPS, MarkPace
from rankscope.runs.reader import RunReader

pytestmark = pytest.mark.usefixtures("require_torch")

BUDGET = 0.01
MARKS_NS, REST_NS = 350_000, 50_000


def chosen(step_ns: int, steps: int, *, window: range = range(0)) -> list[int]:
    """Return the numbers of the steps with marks, of steps that last as long; those in ``window`` cost 1 s each."""
    pace, found, cost, has = MarkPace(BUDGET), [], 0, True
    for number in range(1, steps):
        cost += REST_NS + (MARKS_NS if has else 0) + (10**9 if number in window else 0)
        has = pace.due(number, cost, number * step_ns, usual=number not in window, wakes=number + 1 in window)
        if has:
            found.append(number)
    return found


@pytest.mark.parametrize(("milliseconds", "every"), [(1000, 1), (140, 1), (100, 2), (50, 4), (2, 64)], ids=str)
def test_marks_cost_at_most_their_share_of_the_step(milliseconds: int, every: int) -> None:
    steps = 20 * EVERY_STEPS
    late = [number for number in chosen(milliseconds * 1_000_000, steps) if number >= steps // 2]
    assert late == [number for number in range(steps // 2, steps) if number % every == 0]


def test_what_windows_cost_does_not_count() -> None:
    assert chosen(10**9, 4 * EVERY_STEPS, window=range(20, 24)) == list(range(1, 4 * EVERY_STEPS))


def test_steps_that_become_longer_get_marks_again() -> None:
    pace = MarkPace(BUDGET)
    for number in range(1, 10 * EVERY_STEPS):
        pace.due(number, number * 400_000, number * 10_000_000, usual=True, wakes=False)
    assert pace.every == 64
    for number in range(1, 10 * EVERY_STEPS):
        pace.due(number, number * 100_000, number * 1_000_000_000, usual=True, wakes=False)
    assert pace.every == 1


SHORT_STEPS = """
import sys, time
import torch
from rankscope.profiler.rank import recording
from rankscope.profiler.step import StepProfiler

class Clock:
    def usable(self): return True
    def mark(self): return [0.0]
    def again(self, mark): mark[0] = time.perf_counter() * 1e6
    def follow(self): pass
    def leave(self): return False
    def ready(self, mark): return True
    def elapsed_us(self, earlier, later): return later[0] - earlier[0]

recording.Recording.__init__.__kwdefaults__["device"] = lambda optimizer: Clock()
with StepProfiler(run_dir=sys.argv[1], window_steps=0, exporter_url=None) as prof:
    for _ in range(320):
        for batch in prof.data([torch.ones(2)]):
            pass
        prof.step()
"""


@pytest.mark.slow
def test_short_steps_have_all_host_times_and_some_device_times(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = subprocess.run(torch_ranks.command(0, "-c", SHORT_STEPS, run), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    steps = list(RunReader(run).steps(0, 0))
    assert [row.step for row in steps] == list(range(320))
    assert all(row.phases_us.data is not None for row in steps)
    timed = [row.step for row in steps if row.device_us is not None]
    assert set(range(2, EVERY_STEPS)) <= set(timed)
    late = [step for step in timed if step >= 200]
    assert late
    assert len(late) <= 120 // 8
    assert all(step % 8 == 0 for step in late)
