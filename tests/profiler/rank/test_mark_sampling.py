"""Steps that get marks on the device, so that short steps do not cost more than the recorder may take."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch

from rankscope.profiler.rank.gpu.mark_sampling import EVERY_STEPS, MarkSampling, is_chosen
from rankscope.runs.reader import RunReader

pytestmark = pytest.mark.usefixtures("require_torch")

BUDGET = 0.01
MARKS = 9
STEPS = 6400


def chosen(step_ns: int, steps: int = STEPS) -> list[int]:
    """Return the numbers of the steps with marks, of steps that last as long."""
    sampling, result, had = MarkSampling(BUDGET), [], True
    for number in range(1, steps):
        had = sampling.chosen(number, number * step_ns, MARKS if had else 0)
        if had:
            result.append(number)
    return result


@pytest.mark.parametrize(("milliseconds", "stride"), [(1000, 1), (60, 1), (40, 2), (20, 4), (2, 32), (1, 64)], ids=str)
def test_marks_cost_at_most_their_share_of_the_step(milliseconds: int, stride: int) -> None:
    late = [number for number in chosen(milliseconds * 1_000_000) if number >= STEPS // 2]
    assert [number // stride for number in late] == list(range(STEPS // 2 // stride, STEPS // stride)), "one in each"


@pytest.mark.parametrize("period", [2, 10, 50, 64, 100, 128])
def test_what_a_script_does_periodically_is_met_about_as_often_as_it_happens(period: int) -> None:
    steps = range(64 * 1000)
    numbers = [number for number in steps if is_chosen(number, 64)]
    met = sum(number % period == 0 for number in numbers)
    assert met == pytest.approx(len(numbers) / period, abs=4 * (len(numbers) / period) ** 0.5)


@pytest.mark.parametrize("stride", [2, 4, 8, 16, 32])
def test_the_steps_of_a_larger_stride_are_among_those_of_a_smaller_one(stride: int) -> None:
    assert all(is_chosen(number, stride) for number in range(STEPS) if is_chosen(number, 2 * stride))


def test_steps_that_become_longer_get_marks_again_and_a_long_one_does_no_lasting_harm() -> None:
    sampling, at = MarkSampling(BUDGET), 0
    strides = []
    for milliseconds in (10, 1000, 10, 10):
        for number in range(EVERY_STEPS):
            sampling.chosen(number, at, MARKS)
            at += milliseconds * 1_000_000
        strides.append(sampling.stride)
    # It is decided at the beginning of a round of steps, by those of the one before.
    assert strides == [1, 8, 1, 8]


SHORT_STEPS = """
import sys, time
import torch
from rankscope.profiler.rank.lifecycle import RecorderLifecycle
from rankscope.profiler.step import StepProfiler

class Clock:
    def usable(self): return True
    def mark(self): return [0.0]
    def again(self, mark): mark[0] = time.perf_counter() * 1e6
    def follow(self): return False
    def leave(self): return False
    def ready(self, mark): return True
    def elapsed_us(self, earlier, later): return later[0] - earlier[0]

RecorderLifecycle.__init__.__kwdefaults__["device"] = lambda optimizer: Clock()
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
    late = [step for step in timed if step >= 3 * EVERY_STEPS]
    # One of 64, unless the machine stood still meanwhile.
    assert 2 <= len(late) <= 224 // 8
    assert all(is_chosen(step, 8) for step in late)
