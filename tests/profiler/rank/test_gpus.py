"""GPUs that a rank records and marks, and snapshots of their memory; torch's interface to CUDA is replaced."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from rankscope.profiler.phases import BACKWARD, DATA, OPTIMIZER
from rankscope.profiler.rank import meters
from rankscope.profiler.rank.gpu import device, graph_capture, memory_snapshot
from rankscope.profiler.rank.gpu.device import CudaClock, DeviceMarks, find_device, parameter_devices, used_gpus
from rankscope.profiler.rank.gpu.memory_snapshot import record_memory
from rankscope.profiler.rank.identity import identify
from rankscope.profiler.rank.meters import MemoryMeter
from rankscope.profiler.rank.wrappers.attach import _capture_begins, _noting_end
from rankscope.profiler.settings import RecorderSettings
from rankscope.profiler.words import LEAVE


class Gpus:
    """Replacement for ``torch.cuda`` with two devices. An event belongs to the device that it was recorded on first."""

    def __init__(self) -> None:
        self.current = 0
        self.streams = ["first of 0", "first of 1"]
        self.reserved = [0, 0]
        self.backend = "native"
        self.recorded: list[str] = []
        gpus = self

        class Event:
            def __init__(self, *, enable_timing: bool, blocking: bool, interprocess: bool) -> None:
                assert (enable_timing, blocking, interprocess) == (True, False, False)
                self.device: int | None = None

            def record(self, stream: str | None = None) -> None:
                stream = gpus.current_stream() if stream is None else stream
                device = int(stream[-1])
                if self.device not in (None, device):
                    raise RuntimeError(f"Event device {self.device} does not match recording stream's device {device}")
                self.device = device
                gpus.recorded.append(stream)

        self.Event = Event

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_stream(self, device: int | None = None) -> str:
        return self.streams[self.current if device is None else device]

    def device_count(self) -> int:
        return 2

    def get_allocator_backend(self) -> str:
        return self.backend

    def current_device(self) -> int:
        return self.current

    def is_available(self) -> bool:
        return True

    def get_device_properties(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=f"uuid-{device}", name=f"GPU {device}")

    def memory_stats_as_nested_dict(self, device: int | None = None) -> dict[str, dict[str, dict[str, int]]]:
        assert self.backend == "native", "this makes a context"
        device = self.current if device is None else device
        return {"reserved_bytes": {"all": {"current": self.reserved[device]}}}


class Parameters:
    """Optimizer of parameters on these devices."""

    def __init__(self, *devices: str) -> None:
        self.param_groups = [{"params": [type("Parameter", (), {"device": torch.device(device)}) for device in devices]}]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    gpus = Gpus()
    monkeypatch.setattr(device, "cuda", gpus)
    monkeypatch.setattr(device, "_event", gpus.Event)
    monkeypatch.setattr(device, "_current_stream", gpus.current_stream)
    monkeypatch.setattr(graph_capture, "cuda", gpus)
    monkeypatch.setattr(meters, "cuda", gpus)
    monkeypatch.setattr(torch, "cuda", gpus)
    return gpus


class OnGpu:
    """Events of a recorder, with parameters on the second GPU, while the first is the current one."""

    def __init__(self) -> None:
        clock = find_device(Parameters("cuda:1", "cuda:1"))
        assert clock is not None
        self.marks = DeviceMarks(clock)
        self.marks.begin()

    def note(self, *kinds: int) -> None:
        for kind in kinds:
            if kind in (BACKWARD, OPTIMIZER):
                self.marks.follow()
            self.marks.place()

    def finish(self, number: int) -> bool:
        return self.marks.finish(number, signalled=True)


def test_marks_are_recorded_on_the_parameter_device(gpus: Gpus) -> None:
    training = OnGpu()
    # When the current GPU changes, and marks are used again
    training.marks._free = [training.marks.ready()]
    gpus.current = 1
    training.marks.place()
    gpus.current = 0
    training.marks.place_wait()
    # Then every mark is on its GPU
    assert gpus.recorded == ["first of 1"] * 4


def test_marks_are_recorded_on_the_training_stream(gpus: Gpus) -> None:
    training = OnGpu()
    # Given a loop that loads data on the default stream and trains on another
    for number in range(2):
        gpus.recorded.clear()
        training.note(DATA, LEAVE)
        gpus.streams[1] = "side stream of 1"
        training.note(BACKWARD, LEAVE, OPTIMIZER, LEAVE)
        gpus.streams[1] = "first of 1"
        assert training.finish(number)
    # Then the default stream, which is idle, has no marks once that is known
    assert gpus.recorded == ["side stream of 1"] * 7
    # And where there is no sign of that stream any more, as when a graph is replayed, a step is unknown before it is left
    gpus.recorded.clear()
    training.note(DATA, LEAVE)
    assert not training.finish(2)
    training.note(DATA, LEAVE)
    assert training.finish(3)
    assert gpus.recorded[-3:] == ["first of 1"] * 3


@pytest.mark.parametrize(
    ("parameters", "reserved", "device"),
    [
        (("cuda:1",), [5, 5], 1),
        (("cuda:0", "cuda:1"), [5, 5], None),
        (("cpu",), [5, 0], None),
        (("cpu", "cuda:1"), [5, 5], 1),
        ((), [0, 5], 1),
        ((), [5, 5], None),
        ((), [0, 0], None),
    ],
)
def test_process_with_parameters_on_several_gpus_has_no_device_times(
    gpus: Gpus, parameters: tuple[str, ...], reserved: list[int], device: int | None
) -> None:
    gpus.reserved = reserved
    clock = find_device(Parameters(*parameters))
    assert getattr(clock, "device", None) == device


def test_device_is_not_queried_while_any_thread_captures_a_graph(gpus: Gpus) -> None:
    clock, graph = CudaClock(0), object()
    assert clock.usable()
    # The stream that is current on this thread is not captured.
    _capture_begins(lambda graph: None)(graph)
    assert not clock.usable()

    def fails(graph: object) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")

    with pytest.raises(RuntimeError):
        _noting_end(graph_capture.note_ended)(fails)(graph)
    assert clock.usable()
    with pytest.raises(RuntimeError):
        _capture_begins(fails)(graph)
    assert not graph_capture.going_on()
    gpus.is_current_stream_capturing = lambda: True  # type: ignore[method-assign]
    assert not clock.usable()


@pytest.mark.parametrize(
    ("parameters", "reserved", "uuids"),
    [
        (("cuda:1",), [0, 5], ["GPU-uuid-1"]),
        (("cuda:1",), [5, 5], ["GPU-uuid-1", "GPU-uuid-0"]),
        (("cuda:0", "cuda:1"), [5, 5], ["GPU-uuid-0", "GPU-uuid-1"]),
        (("cpu",), [0, 5], ["GPU-uuid-1"]),
        ((), [0, 0], ["GPU-uuid-0"]),
    ],
)
def test_rank_records_its_own_gpu_and_all_others_in_use(
    gpus: Gpus, parameters: tuple[str, ...], reserved: list[int], uuids: list[str]
) -> None:
    gpus.reserved = reserved
    settings = RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1)
    rank = identify(settings, parameter_devices(Parameters(*parameters))).rank
    assert (rank.device_kind, rank.gpu_uuid, rank.gpu_name) == ("cuda", uuids[0], f"GPU {uuids[0][-1]}")
    assert rank.gpu_uuids == (uuids if len(uuids) > 1 else [])


def test_cuda_malloc_async_allocator_creates_no_context_on_other_gpus(gpus: Gpus) -> None:
    gpus.backend, gpus.reserved = "cudaMallocAsync", [5, 5]
    assert used_gpus(parameter_devices(Parameters("cuda:1"))) == [1]
    assert used_gpus() == [0]


@pytest.mark.parametrize(("device", "kind"), [("cpu", "cpu"), ("xpu", "xpu"), ("mps", "other")])
def test_rank_on_another_device_kind_is_not_recorded_as_cpu(device: str, kind: str) -> None:
    optimizer = Parameters(device)
    settings = RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1)
    assert identify(settings, parameter_devices(optimizer)).rank.device_kind == kind
    assert find_device(optimizer) is None


def test_rank_with_unused_initialised_gpus_is_recorded_as_cpu(gpus: Gpus) -> None:
    settings = RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1)
    assert identify(settings, parameter_devices(Parameters("cpu"))).rank.device_kind == "cpu"


def test_memory_is_read_from_the_gpu_of_the_rank(gpus: Gpus) -> None:
    gpus.reserved = [3, 7]
    meter = MemoryMeter()
    meter.gpu = 1
    _, _, reserved, *_ = meter.read()
    meter.close()
    assert reserved == 7


OutOfMemory = Callable[[int, int, int, int], None]


@pytest.fixture
def observers(monkeypatch: pytest.MonkeyPatch) -> list[OutOfMemory]:
    """Observers of errors of the allocator that have been attached; CUDA counts as in use."""
    attached: list[OutOfMemory] = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [len(attached)]})
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attached.append, raising=False)
    return attached


def test_out_of_memory_error_writes_a_rate_limited_snapshot(
    tmp_path: Path, observers: list[OutOfMemory], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    memory_snapshot.record_memory(str(tmp_path / "run"))
    (out_of_memory,) = observers
    assert not (tmp_path / "run").exists()
    out_of_memory(0, 1 << 30, 2 << 30, 1 << 20)
    (file,) = (tmp_path / "run" / "memory").iterdir()
    assert file.name.startswith("rank-00003-")
    assert pickle.loads(file.read_bytes()) == {"segments": [1]}
    # A script that catches the error and tries again does not write each time.
    file.unlink()
    out_of_memory(0, 1 << 30, 2 << 30, 1 << 20)
    assert not file.exists()
    monkeypatch.setattr(memory_snapshot, "INTERVAL_SECONDS", 0.0)
    out_of_memory(0, 1 << 30, 2 << 30, 1 << 20)
    assert file.exists()
    assert capsys.readouterr().err == ""


def test_unwritable_snapshot_is_logged_without_raising(
    tmp_path: Path, observers: list[OutOfMemory], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    record_memory(str(tmp_path / "file"))
    observers[0](0, 1, 1, 0)
    assert "no snapshot of GPU memory: NotADirectoryError" in capsys.readouterr().err


def test_snapshot_replaces_a_planted_link_without_following_the_link(tmp_path: Path, observers: list[OutOfMemory]) -> None:
    folder, target = tmp_path / "memory", tmp_path / "target"
    folder.mkdir()
    target.write_bytes(b"precious")
    for name in (f"rank-00000-{os.getpid()}.pickle", f".rank-00000-{os.getpid()}.pickle"):
        (folder / name).symlink_to(target)
    record_memory(str(tmp_path))
    observers[0](0, 1, 1, 0)
    assert target.read_bytes() == b"precious"
    assert not (folder / f"rank-00000-{os.getpid()}.pickle").is_symlink()


def test_torch_without_memory_history_logs_one_reason_and_trains(
    tmp_path: Path, observers: list[OutOfMemory], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(torch.cuda.memory, "_record_memory_history")
    record_memory(str(tmp_path))
    assert observers == []
    assert "GPU memory is not recorded: AttributeError" in capsys.readouterr().err
