"""Recording from inside the script: recording ranks, wrapped loaders, and the end of a recording."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from tests.profiler.recorded_words import current_step

torch = pytest.importorskip("torch")

from rankscope.profiler.rank.gpu import flight_dump  # noqa: E402  # torch may be missing
from rankscope.profiler.rank.recorder import StepRecorder  # noqa: E402
from rankscope.profiler.rank.wrappers import attach  # noqa: E402
from rankscope.profiler.rank.wrappers.process_end import end_of  # noqa: E402
from rankscope.profiler.ring import EndState  # noqa: E402
from rankscope.profiler.settings import RecorderSettings  # noqa: E402
from rankscope.profiler.step import StepProfiler  # noqa: E402


@pytest.fixture(autouse=True)
def no_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unattached process whose torch stays unwrapped."""
    monkeypatch.setattr(attach, "_recorder", None)
    monkeypatch.setattr(attach, "_launched", None)
    monkeypatch.setattr(attach, "_patched", True)
    monkeypatch.setattr(flight_dump, "prepare", lambda _: None)
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")


def test_recording_without_a_step_leaves_no_state_for_the_next(tmp_path: Path) -> None:
    with StepProfiler(tmp_path / "a") as first, StepProfiler(tmp_path / "b") as inner:
        assert inner._recorder is None, "another recording goes on"
    _recorder = first._recorder
    assert _recorder is not None
    assert (_recorder.off, _recorder.listening) == (True, 0)
    with StepProfiler(tmp_path / "c") as second:
        assert second._recorder is not None
        assert second._recorder is not _recorder
        assert second._recorder.settings.run_dir == str(tmp_path / "c")


def test_launcher_settings_apply_to_the_first_recording_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = RecorderSettings(run_dir=str(tmp_path / "launched"), run_id="r", name="r", start_unix_ns=1)
    with monkeypatch.context() as patch:
        for name, value in launched.environment().items():
            patch.setenv(name, value)
        attach.install()
    with StepProfiler(tmp_path / "a") as first, StepProfiler(tmp_path / "b") as inner:
        assert first._recorder is attach.current()
        assert first._recorder is not None
        assert first._recorder.settings.run_dir == launched.run_dir
        assert inner._recorder is None
    with StepProfiler(tmp_path / "c") as second:
        assert second._recorder is not None
        assert second._recorder.settings.run_dir == str(tmp_path / "c")


class Batch(list[Any]):
    """Batch that supports weak references."""


class Loader:
    """Loader that restarts every epoch and has a length."""

    def __iter__(self) -> Iterator[Batch]:
        return (Batch([torch.ones(4)]) for _ in range(3))

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("recorded", [True, False])
def test_wrapped_loader_behaves_like_the_original(tmp_path: Path, recorded: bool) -> None:
    profiler = StepProfiler(tmp_path / "run")
    if recorded:
        profiler.__enter__()
    batches = profiler.data(Loader())
    assert [len(list(batches)) for _ in range(2)] == [3, 3], "it has as many epochs as are asked for"
    assert len(batches) == 3  # type: ignore[arg-type]
    assert not hasattr(profiler.data(iter(())), "__len__")
    iterator = iter(batches)
    batch = next(iterator)
    seen = weakref.ref(batch)
    del batch
    assert seen() is None, "nobody else keeps the batch"
    with pytest.raises(ZeroDivisionError):
        next(iter(profiler.data(1 // zero for zero in (0,))))
    profiler.__exit__(None, None, None)
    assert next(iterator), "also after the end"


def test_batches_count_as_data_phase_and_their_contents_as_work() -> None:
    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1), explicit=True)
    profiler = StepProfiler("/r")
    profiler._recorder = recorder
    for _ in profiler.data(Loader()):
        pass
    assert current_step(recorder).work.work == (12, 12, None)
    recorder.close(EndState.EXIT)


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (None, EndState.EXIT),
        (SystemExit(), EndState.EXIT),
        (SystemExit(0), EndState.EXIT),
        (SystemExit(3), EndState.CRASH),
        (SystemExit("no data"), EndState.CRASH),
        (KeyboardInterrupt(), EndState.INTERRUPTED),
        (ValueError(), EndState.CRASH),
    ],
)
def test_exception_type_determines_the_end_state(error: BaseException | None, end: EndState) -> None:
    assert end_of(error) is end


def train(prof: StepProfiler, steps: int) -> None:
    """Do steps of a training without an optimizer, of ten milliseconds."""
    weight = torch.nn.Parameter(torch.ones(2))
    for _ in range(steps):
        sleep(0.01)
        weight.sum().backward()
        prof.step()


@pytest.mark.slow
@pytest.mark.parametrize("moves", ["from thread to thread", "away from the main thread"])
def test_training_moved_to_another_thread_is_still_recorded(tmp_path: Path, moves: str) -> None:
    with StepProfiler(tmp_path / "run", window_steps=0, exporter_url=None, stacks_seconds=None) as prof:
        if moves == "away from the main thread":
            train(prof, 10)
        for _ in range(2):
            epoch = threading.Thread(target=train, args=(prof, 40))
            epoch.start()
            epoch.join()
        assert prof._recorder is not None
        recorded = prof._recorder.step_number
    # a step whose beginning was on another thread has none, and after the first ones it is sure that they are elsewhere
    assert recorded >= (88 - 27 if moves == "away from the main thread" else 78)
