"""Rules of the recorder and its guard, with events from the test; nothing is trained."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

import torch
from tests.profiler.recorded_words import current_step
from torch import nn

from rankscope.profiler.phases import BACKWARD
from rankscope.profiler.rank import guard, lifecycle
from rankscope.profiler.rank import recorder as recorder_module
from rankscope.profiler.rank.guard import guarded, raised_by_a_signal_handler
from rankscope.profiler.rank.identity import identify, ranks_on_host
from rankscope.profiler.rank.lifecycle import IN_BACKWARD
from rankscope.profiler.rank.recorder import StepRecorder
from rankscope.profiler.rank.wrappers.ddp import PassEnd
from rankscope.profiler.ring import HEAD, STEP_WORDS, EndState, RingWriter
from rankscope.profiler.settings import RecorderSettings, from_environment

SETTINGS = RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1)


class Optimizer:
    """Simulated optimizer."""


def test_only_waits_after_the_last_gradient_are_counted_within_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gradients:
        present, on_host, closed, shared_end = True, True, False, None
        pass_end = PassEnd(None, RingWriter().ready)

        def watch(self, roots: object) -> PassEnd:
            assert roots == "the loss"
            return self.pass_end

        def passed(self, pass_end: PassEnd) -> None:
            assert pass_end is self.pass_end

        def close(self) -> None:
            self.closed = True

    at = 1
    monkeypatch.setattr(guard, "now", lambda: at)
    monkeypatch.setattr(recorder_module, "now", lambda: at)
    recorder = StepRecorder(SETTINGS)
    gradients = Gradients()
    recorder.gradients = gradients  # type: ignore[assignment]
    assert recorder.enter_backward()
    pass_end = recorder.enter_pass("the loss")
    assert pass_end is gradients.pass_end
    # Given a wait from 20 to 30, the last gradient at 40, a wait from 50 to 60
    for started, ended in ((20, 30), (50, 60)):
        at = started
        begun = recorder.enter_wait()
        at = ended
        recorder.leave_wait(begun)
    pass_end.stamps.append(40)
    # When backward returns at 100
    at = 100
    recorder.leave_pass(pass_end)
    recorder.leave_backward()
    # Then the pass_end of 60 and the first wait of 10 are blocked, and nothing is counted twice
    step = current_step(recorder, at)
    assert step.blocked_ns is not None
    assert step.blocked_ns[BACKWARD] == 70
    # And when the recorder is switched off, the models are released
    recorder.disable("the test is over")
    assert gradients.closed


def test_model_counts_inputs_with_gradients_outside_backward_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = StepRecorder(SETTINGS)
    x = torch.ones(4, 3)
    recorder.enter_model((x,), {})
    assert recorder.enter_data(), "a forward pass alone is no sign of training"
    recorder.leave_data()
    recorder.enter_model((x,), {})
    recorder.enter_model(([x, {"y": x}], "text"), {"mask": torch.ones(4)})
    with torch.no_grad():
        recorder.enter_model((x,), {})
    assert recorder.enter_backward()
    recorder.enter_model((x,), {})  # recomputed by a checkpoint
    assert current_step(recorder).work.work == (None, None, 12 + 28)
    # When the recorder itself fails, training goes on and one line says so
    recorder.leave_backward()
    monkeypatch.setattr(recorder_module, "measure", None)
    for _ in range(2):
        recorder.enter_model((x,), {})
    assert recorder.off
    assert capsys.readouterr().err.count("switched itself off (TypeError") == 1


def test_failure_to_claim_a_thread_disables_the_recorder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = StepRecorder(SETTINGS)
    monkeypatch.delattr(threading, "_DummyThread")  # private: other Python versions may lack it
    recorder.claim()
    assert recorder.off
    assert capsys.readouterr().err.count("switched itself off (AttributeError") == 1


def test_disabled_recorder_stays_disabled() -> None:
    recorder = StepRecorder(SETTINGS)
    recorder.disable("the test is over")
    recorder.claim()
    recorder.forked()
    recorder.before_optimizer(object())
    assert (recorder.thread, recorder.listening, recorder._begun) == (0, 0, 0)


def test_recorder_closed_without_a_step_releases_resources() -> None:
    recorder = StepRecorder(SETTINGS, explicit=True)
    callbacks = len(gc.callbacks)
    recorder.begin()
    recorder.close(EndState.EXIT)
    assert (recorder.off, recorder.listening, recorder._begun) == (True, 0, 0)
    assert len(gc.callbacks) == callbacks


def test_training_moves_to_a_thread_that_alone_trains_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1
    monkeypatch.setattr(lifecycle, "now", lambda: at)
    with ThreadPoolExecutor(1) as other:

        def claims(recorder: StepRecorder, count: int) -> bool:
            """End ``count`` steps on another thread; return whether that is the recorded one then."""
            for _ in range(count):
                other.submit(recorder.claim).result()
            return recorder.thread != threading.get_ident()

        def trained() -> StepRecorder:
            recorder = StepRecorder(SETTINGS)
            assert recorder.enter_backward()
            recorder.leave_backward()
            return recorder

        recorder = trained()
        assert not claims(recorder, 100), "the recorded thread may wait for its turn"
        at += 10**9
        assert claims(recorder, 1)
        recorder = trained()
        assert not claims(recorder, 1)
        at += 10**9
        assert not claims(recorder, 1), "the other thread may train something small"
        assert claims(recorder, 100)


def test_model_is_watched_whichever_thread_adopts_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    model: Any = nn.Module()
    model.module = nn.Linear(1, 1)
    recorder = StepRecorder(SETTINGS)

    def train() -> None:
        recorder.adopt(model)
        recorder.claim()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert recorder.thread == thread.ident
    assert recorder.gradients.present
    # And for a model that cannot be watched the recorder switches off, else it would count its waiting as own time.
    recorder.adopt(object())  # type: ignore[arg-type]
    assert recorder.off
    assert capsys.readouterr().err.count("switched itself off (AttributeError") == 1


def test_text_with_invalid_utf_8_does_not_prevent_recording() -> None:
    odd = "caf\udce9"  # a command-line argument that is not UTF-8
    settings = from_environment(
        RecorderSettings(run_dir="/r", run_id=odd, name=odd, launcher=odd, start_unix_ns=1).environment(),
    )
    assert settings is not None
    handover = identify(settings)
    assert msgspec.json.decode(msgspec.json.encode(handover), type=type(handover)) == handover
    assert (handover.run.run_id, handover.run.name, handover.run.launcher) == ("caf?", "caf?", "caf?")


def test_rank_records_the_boot_id_of_the_kernel() -> None:
    handover = identify(SETTINGS)
    assert handover.rank.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}, 4),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "7"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({}, 8),
    ],
)
def test_ranks_per_host_are_read_from_launcher_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], ranks: int
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks_on_host(1024) == ranks


def test_backward_without_a_reported_end_ends_at_the_optimizer_step() -> None:
    recorder = StepRecorder(SETTINGS)
    optimizer = Optimizer()
    # Given a signal handler that raised between the pass and its report, twice
    assert recorder.enter_backward()
    assert recorder.enter_backward()
    # When the optimizer steps
    recorder.before_optimizer(optimizer)
    # Then it is not taken for one that steps inside the pass
    assert not recorder._inside & IN_BACKWARD
    assert not recorder._inner_optimizer
    assert recorder._optimizers.going_on
    recorder.disable("the test is over")


def test_words_of_one_step_are_bounded() -> None:
    recorder = StepRecorder(SETTINGS, explicit=True)
    recorder.begin()
    optimizer = Optimizer()
    # Given a script that never reports the end of its step
    for _ in range(2 * STEP_WORDS):
        recorder.before_optimizer(optimizer)
        recorder.after_optimizer(optimizer)
    assert recorder._ring.spilled
    assert recorder._ring.at - recorder._ring.header[HEAD] <= STEP_WORDS + 6
    recorder.disable("the test is over")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_single_tensor_and_nested_batches_are_measured_by_shape() -> None:
    recorder = StepRecorder(SETTINGS, explicit=True)
    recorder.begin()
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    for batch in ([torch.ones(8, 3)], torch.ones(2, 5), (torch.ones(3, 1), "label"), [nested], None):
        recorder.enter_data()
        recorder.leave_data(batch)
    assert not recorder.off
    assert current_step(recorder).work.work == (8 + 2 + 3 + 2, 24 + 10 + 3 + 18, None)
    recorder.disable("the test is over")


def test_thousands_of_waits_take_few_words_and_keep_their_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1_000
    monkeypatch.setattr(guard, "now", lambda: at)
    monkeypatch.setattr(recorder_module, "now", lambda: at)
    recorder = StepRecorder(SETTINGS)
    assert recorder.enter_backward()
    # Given a step that waits 50,000 times in backward, for 3 ns every 10
    for _ in range(50_000):
        at += 7
        started = recorder.enter_wait()
        at += 3
        recorder.leave_wait(started)
    recorder.leave_backward()
    # Then its waits have become few words, and their time is all there
    step = current_step(recorder, at)
    assert recorder._ring.at < 1_000
    assert step.blocked_ns is not None
    assert sum(step.blocked_ns) == 150_000
    assert step.wall_ns == 500_000
    recorder.disable("the test is over")


class Guarding:
    """Recorder that fails, or that is busy when a signal arrives."""

    def __init__(self) -> None:
        self.thread = self.listening = get_ident()
        self.cost_ns = 0
        self.failures: list[str] = []

    def failed(self, error: Exception) -> None:
        if raised_by_a_signal_handler(error):
            raise error
        self.failures.append(str(error))

    @guarded(default="nothing")
    def fail(self, at: int) -> str:
        raise RuntimeError(f"planted at {bool(at)}")

    @guarded(default="nothing")
    def interrupted(self, at: int) -> str:
        signal.raise_signal(signal.SIGUSR1)
        return f"done, {bool(at)}"


class TooLongError(Exception):
    """Raised by the handler of a signal."""


def too_long(*_: object) -> None:
    raise TooLongError


class Handler:
    """Signal handlers that are methods or objects."""

    def method(self, *_: object) -> None:
        raise TooLongError

    def __call__(self, *_: object) -> None:
        raise TooLongError


@pytest.fixture
def handled_by() -> Iterator[Callable[[Callable[..., None]], object]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield partial(signal.signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_recorder_failure_does_not_reach_training() -> None:
    guarding = Guarding()
    assert guarding.fail() == "nothing"
    assert guarding.failures == ["planted at True"]
    assert guarding.listening == guarding.thread


@pytest.mark.parametrize("handler", [too_long, Handler().method, Handler()])
def test_signal_handler_exception_reaches_training(
    handler: Callable[..., None], handled_by: Callable[[Callable[..., None]], object]
) -> None:
    guarding = Guarding()
    handled_by(handler)
    with pytest.raises(TooLongError):
        guarding.interrupted()
    assert guarding.failures == []
    assert guarding.listening == guarding.thread


def test_returning_signal_handler_changes_nothing(handled_by: Callable[[Callable[..., None]], object]) -> None:
    guarding, seen = Guarding(), []
    handled_by(lambda *_: seen.append("handled"))
    assert guarding.interrupted() == "done, True"
    assert seen == ["handled"]
