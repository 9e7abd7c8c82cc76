"""Device times and the steps that get marks, on a simulated device that runs behind the host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_words import RECORDED, numbered, records

from rankscope.profiler.handover import MessageKind
from rankscope.profiler.phases import BACKWARD, DATA, OPTIMIZER
from rankscope.profiler.rank.gpu.device import MAX_MARKS, MAX_PENDING, MAX_WAITS, QUIET_STEPS, DeviceMarks
from rankscope.profiler.rank.gpu.mark_sampling import EVERY_STEPS, MarkSampling, is_chosen
from rankscope.profiler.words import (
    AWAITS_DEVICE,
    BATCH,
    BATCH_WITHOUT_GRADIENTS,
    END,
    LEAVE,
    MODEL_TRAINS,
    NOTHING,
    SHIFT,
    SIGNALLED,
    WAIT,
    WAITED,
    detail,
    words_of_message,
)
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, StepRecord


class Stream:
    """Simulated ``DeviceClock``: launches take no time, and work runs in order."""

    def __init__(self) -> None:
        self.now = 0.0
        """Time on the host's clock."""
        self.done_at = 0.0
        """Time at which all launched work is done."""
        self.capturing = False
        self.marks: list[list[float]] = []

    def launch(self, microseconds: float) -> None:
        self.done_at = max(self.done_at, self.now) + microseconds

    def usable(self) -> bool:
        return not self.capturing

    def mark(self) -> list[float]:
        mark = [max(self.done_at, self.now)]
        self.marks.append(mark)
        return mark

    def again(self, mark: list[float]) -> None:
        mark[0] = max(self.done_at, self.now)

    def follow(self) -> bool:
        return False

    def leave(self) -> bool:
        return False

    def ready(self, mark: list[float]) -> bool:
        assert not self.capturing, "asking would spoil the capture"
        return self.now >= mark[0]

    def elapsed_us(self, earlier: list[float], later: list[float]) -> float:
        assert self.ready(earlier)
        assert self.ready(later), "nobody waits for the device"
        return later[0] - earlier[0]


class Training:
    """Words of a recorder on that device; each host operation takes a microsecond."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.marks = DeviceMarks(self.stream)
        self.marks.begin()
        self.words: list[int] = []
        self.at = self.begun = 1000

    def _store(self, kind: int, mark: int, *details: int) -> None:
        self.at += 1000
        self.stream.now += 1
        self.words += [self.at << SHIFT | mark | kind, *details]

    def note(self, kind: int, *details: int) -> None:
        self._store(kind, self.marks.place(), *details)

    def wait(self, microseconds: float = 0) -> None:
        """Wait as long for other ranks, on the device."""
        self._store(WAIT, self.marks.place_wait())
        self.stream.launch(microseconds)
        self._store(WAITED, self.marks.place_wait())

    def step(self, number: int, *, waited_us: float = 0, waits: int = 0, signalled: bool = True) -> bool:
        """Run a step: data 10, forward 100 with short waits, backward 200 whose end is a wait, optimizer 50 on the device."""
        self.note(DATA)
        self.stream.launch(10)
        self.note(BATCH, NOTHING, NOTHING)
        self.stream.launch(100)
        for _ in range(waits):
            self.wait()
        self.marks.follow()
        self.note(BACKWARD)
        self.stream.launch(200 - waited_us)
        self.wait(waited_us)
        self.note(LEAVE)
        self.note(OPTIMIZER)
        self.stream.launch(50)
        return self.finish(number, signalled=signalled)

    def finish(self, number: int, *, signalled: bool) -> bool:
        """End the step."""
        taken = self.marks.finish(number, signalled=signalled)
        flags = RECORDED | taken * (AWAITS_DEVICE | SIGNALLED * signalled)
        self.words += [self.at << SHIFT | END, numbered(number, flags), self.begun]
        self.begun = self.at
        return taken

    def read(self) -> list[int]:
        """Read the times of all steps that the device has finished; return the numbers of the steps."""
        messages = self.marks.read()
        for message in messages:
            self.words += words_of_message(MessageKind.DEVICE, message)
        return [int.from_bytes(message[:8], "little") for message in messages]

    def complete(self) -> list[StepRecord]:
        """Let the device finish, and return all steps."""
        self.stream.now = max(self.stream.now, self.stream.done_at)
        self.read()
        return records(self.words)


def in_us(step: StepRecord) -> dict[str, float]:
    assert step.device_us is not None
    return {phase: time for phase in PHASES if (time := step.device_us.get(phase)) is not None}


def blocked(step: StepRecord) -> float | None:
    """Return how long the device waited for others in the step."""
    return None if step.device_blocked_us is None else sum(step.device_blocked_us.get(phase) or 0 for phase in PHASES)


def test_device_times_are_measured_and_read_only_when_the_device_is_done() -> None:
    training = Training()
    for number in range(3):
        assert training.step(number, waited_us=80)
        assert training.read() == [], "the device is still at it"
    steps = training.complete()
    assert [step.step for step in steps] == [0, 1, 2]
    for step in steps[1:]:
        times = in_us(step)
        assert (times["data"], times["forward"], times["backward"], times["optimizer"]) == (10, 100, 200, 50)
        assert sum(times.values()) == 360
        assert step.device_blocked_us is not None
        assert step.device_blocked_us.backward == 80
        assert blocked(step) == 80


def test_marks_are_reused_only_after_they_were_read() -> None:
    training = Training()
    for number in range(50):
        training.step(number)
        training.stream.now = training.stream.done_at
        assert training.read() == [number]
        if number == 5:
            made = len(training.stream.marks)
    assert all(in_us(step)["backward"] == 200 for step in training.complete())
    assert len(training.stream.marks) <= 2 * made


def test_stalled_device_uses_a_bounded_number_of_marks() -> None:
    training = Training()
    for number in range(3 * MAX_PENDING):
        training.step(number)
    made = len(training.stream.marks)
    training.step(1000)
    training.stream.now = training.stream.done_at
    steps = training.read()
    assert made <= 12 * (MAX_PENDING + 2)
    assert len(steps) == MAX_PENDING
    assert steps[-1] == 1000


def test_step_with_a_graph_capture_has_no_device_times() -> None:
    training = Training()
    training.step(0)
    training.stream.capturing = True
    assert not training.step(1)
    assert training.read() == []
    training.stream.capturing = False
    # Work that begins in a capture is unknown, later work is known.
    training.step(2)
    training.step(3)
    assert [step.step for step in training.complete() if step.device_us is not None] == [0, 3]


def test_evaluation_within_a_step_is_between_steps_on_the_device() -> None:
    training = Training()
    training.step(0)
    training.note(DATA)
    training.note(BATCH, NOTHING, NOTHING)
    training.stream.launch(30)  # forward
    training.note(BATCH_WITHOUT_GRADIENTS)
    training.stream.launch(500)
    training.note(MODEL_TRAINS, detail(True))  # gradients are enabled
    training.stream.launch(70)  # forward
    training.note(BACKWARD)
    training.note(LEAVE)
    training.finish(1, signalled=False)
    step = training.complete()[1]
    times = in_us(step)
    assert (times["forward"], times["between_steps"]) == (100, 500)
    assert step.tags == ["eval"]


@pytest.mark.parametrize("out_of_order", ["event", "wait"])
def test_times_between_out_of_order_marks_are_unknown(out_of_order: str) -> None:
    training = Training()
    training.step(0, waited_us=80)
    training.step(1, waited_us=80)
    training.stream.now = training.stream.done_at
    # Given a step in which the device passed the end of the wait in the backward pass, or the pass itself, before its beginning
    marks = training.marks._pending[1].marks
    if out_of_order == "wait":
        marks[3][0], marks[4][0] = marks[4][0], marks[3][0]
    else:
        marks[2][0] = marks[1][0] - 1
    result, unknown = training.complete()
    # Then what lies between them is unknown rather than zero
    assert result.device_blocked_us is not None
    assert unknown.device_blocked_us is None
    assert (unknown.device_us is None) == (out_of_order == "event")


def test_step_with_thousands_of_waits_has_few_marks_and_no_blocked_time() -> None:
    training = Training()
    for number in range(QUIET_STEPS + 3):
        training.step(number, waited_us=80, waits=5000 if number < 3 else 10)
    steps = training.complete()
    # Only the first step pays for that.
    assert len(training.stream.marks) <= 2 * MAX_WAITS + 20 * len(steps) + 2 * 2 * 11
    # And what is not known of the waits is not taken for zero, while the phases are known
    assert [in_us(step)["backward"] for step in steps] == pytest.approx([200] * (QUIET_STEPS + 3), abs=1), "the host was slow"
    assert [step.device_blocked_us is None for step in steps] == [True] * (QUIET_STEPS + 1) + [False] * 2


def test_step_with_too_many_events_has_bounded_marks_and_no_device_times() -> None:
    training = Training()
    training.step(0)
    for _ in range(5000):
        training.note(DATA)
        training.note(LEAVE)
    assert not training.finish(1, signalled=True)
    training.step(2)
    training.step(3)
    steps = training.complete()
    assert len(training.stream.marks) <= MAX_MARKS + 2 * MAX_WAITS + 60
    assert [step.step for step in steps if step.device_us is not None] == [0, 2, 3]


def test_waits_have_marks_only_when_all_waits_are_signalled() -> None:
    training = Training()
    training.step(0, signalled=False)
    made = len(training.stream.marks)
    for number in range(1, 4):
        training.step(number, waits=100, signalled=number == 3)
    # The last step is known to report all waits, but they had no marks.
    training.step(4, waited_us=80, waits=100)
    steps = training.complete()
    assert len(training.stream.marks) <= made + 4 * 20 + 2 * 101
    assert [blocked(step) for step in steps] == [None, None, None, None, 80]


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
def test_one_step_of_each_stride_is_chosen_for_marks(milliseconds: int, stride: int) -> None:
    late = [number for number in chosen(milliseconds * 1_000_000) if number >= STEPS // 2]
    assert [number // stride for number in late] == list(range(STEPS // 2 // stride, STEPS // stride)), "one in each"


@pytest.mark.parametrize("period", [2, 10, 50, 64, 100, 128])
def test_periodic_script_work_is_sampled_in_proportion(period: int) -> None:
    steps = range(64 * 1000)
    numbers = [number for number in steps if is_chosen(number, 64)]
    met = sum(number % period == 0 for number in numbers)
    assert met == pytest.approx(len(numbers) / period, abs=4 * (len(numbers) / period) ** 0.5)


@pytest.mark.parametrize("stride", [2, 4, 8, 16, 32])
def test_steps_chosen_at_a_larger_stride_are_also_chosen_at_a_smaller(stride: int) -> None:
    assert all(is_chosen(number, stride) for number in range(STEPS) if is_chosen(number, 2 * stride))


def test_mark_stride_follows_the_step_time_of_the_previous_round() -> None:
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
