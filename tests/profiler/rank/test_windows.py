"""Windows on the training thread: their steps, and their clean-up; torch's profiler is replaced."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

pytest.importorskip("torch")

import torch
from tests.ring_step import ring_in

from rankscope.profiler import scratch
from rankscope.profiler.handover import MessageKind, ProfiledWindow
from rankscope.profiler.helper.step_assembler import StepAssembler
from rankscope.profiler.plan import Schedule
from rankscope.profiler.rank.gpu import graph_capture, kineto
from rankscope.profiler.rank.gpu import windows as windows_module
from rankscope.profiler.rank.gpu.windows import WindowController
from rankscope.profiler.ring import Announcement, RingReader, RingWriter


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[tuple[RingWriter, RingReader]]:
    """Both ends of a ring."""
    writer = ring_in(tmp_path / "ring")
    with (tmp_path / "ring").open("r+b") as file:
        reader = RingReader(file.fileno())
    yield writer, reader
    reader.close()
    writer.close()


def messages(ring: tuple[RingWriter, RingReader]) -> list[tuple[int, bytes]]:
    """Return the messages that have been written."""
    writer, reader = ring
    writer.publish()
    return StepAssembler(lambda _: "", lose=lambda _: None).add(reader.read())


class Profiler:
    """Replacement for torch's profiler."""

    starts = exports = True
    device: str | None = None
    prepared = False

    def drain(self) -> None: ...

    def start(self) -> None:
        if not self.starts:
            raise kineto.KinetoUnavailable("another profiler is on")

    def begin_step(self, step: int) -> None: ...

    def stop(self) -> None: ...

    def export(self, path: Path) -> None:
        path.touch()
        if not self.exports:
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("ends", ["whole", "refused", "given way", "closed", "not exported", "not taken"])
def test_window_leaves_a_trace_only_if_the_helper_receives_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: tuple[RingWriter, RingReader], ends: str
) -> None:
    # Given no room in local memory, so that traces go to the temporary disk
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    monkeypatch.setattr(scratch, "_free", lambda folder: 0 if folder == memory else 10**12)
    monkeypatch.setattr(windows_module, "KinetoSession", Profiler)
    monkeypatch.setattr(Profiler, "starts", ends != "refused")
    monkeypatch.setattr(Profiler, "exports", ends != "not exported")
    writer, reader = ring
    if ends == "not taken":
        while writer.put(0, b""):
            pass
        writer.overflow()

    # When a window of one step is due
    windows = WindowController(Schedule(1, 0, 1), memory, writer)
    windows.boundary(1)
    after: dict[str, Callable[[], None]] = {"given way": windows.yield_to_script, "closed": windows.close}
    after.get(ends, lambda: windows.boundary(2))()
    # Then there is a trace for the helper, or nothing
    assert len(list(disk.rglob("*.json"))) == len(list(disk.iterdir())) == (ends == "whole")
    kinds = {"whole": [MessageKind.WINDOW], "not taken": [], "closed": []}
    assert [kind for kind, _ in messages(ring) if kind] == kinds.get(ends, [MessageKind.MISSED_WINDOW])
    # And its cost is reported separately, when the next step ends
    windows.boundary(3)
    assert reader.windows == (ends == "whole")
    assert reader.window_cost_ns > 0


def test_announced_window_is_profiled_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: tuple[RingWriter, RingReader]
) -> None:
    monkeypatch.setattr(windows_module, "KinetoSession", Profiler)
    writer, reader = ring
    windows = WindowController(Schedule(3, 0, 2), tmp_path, writer)
    announced = {
        5: Announcement(1, 8, 3, keep_trace=True),
        9: Announcement(2, 10, 2),  # in the middle of the other
        12: Announcement(3, 12, 2),  # at its first step, which is early enough
        15: Announcement(4, 14, 2),  # too late
        16: Announcement(5, 30, 2),
        17: Announcement(6, 20, 1),  # before the previously announced one
        18: Announcement(7, 22, 1),  # a step after the previous one
        19: Announcement(8, 22, 1),  # a second time
    }
    profiled = []
    for step in range(1, 40):
        if step in announced:
            reader.announce(announced[step])
        windows.boundary(step)
        if windows.active:
            profiled.append(step)
    assert profiled == [3, 4, 8, 9, 10, 12, 13, 20, 22, 30, 31]
    entries = messages(ring)
    taken = [msgspec.json.decode(payload, type=ProfiledWindow) for kind, payload in entries if kind == MessageKind.WINDOW]
    assert [(item.first, item.last, item.keep_trace) for item in taken] == [
        (3, 4, False),
        (8, 10, True),
        (12, 13, False),
        (20, 20, False),
        (22, 22, False),
        (30, 31, False),
    ]
    missed = [payload.decode() for kind, payload in entries if kind == MessageKind.MISSED_WINDOW]
    assert ["another window" in reason for reason in missed] == [True, False]
    assert "when its first step had begun" in missed[1]
    assert reader.windows == 6


def test_back_to_back_windows_are_delivered_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: tuple[RingWriter, RingReader]
) -> None:
    monkeypatch.setattr(windows_module, "KinetoSession", Profiler)
    writer = ring[0]
    windows = WindowController(Schedule(1, 2, 5), tmp_path, writer)
    for step in range(1, 8):
        windows.boundary(step)
    taken = [msgspec.json.decode(payload, type=ProfiledWindow) for _, payload in messages(ring)]
    assert [(item.first, item.last) for item in taken] == [(1, 2), (3, 4), (5, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("torch_has", ["all of it", "no choice of scopes", "no trace alone"])
def test_window_has_steps_and_operators_for_every_torch_feature_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_has: str
) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    if torch_has == "no choice of scopes":
        monkeypatch.delattr(torch._C._profiler, "RecordScope")
    elif torch_has == "no trace alone":
        monkeypatch.delattr(torch._C._profiler, "_ExperimentalConfig")
    weight = torch.ones(4, 4, requires_grad=True)
    session = kineto.KinetoSession()
    session.start()
    session.begin_step(7)
    (torch.ones(4, 4) @ weight).sum().backward()  # type: ignore[no-untyped-call]
    session.stop()
    session.export(tmp_path / "trace.json")
    names = {str(event["name"]) for event in msgspec.json.decode((tmp_path / "trace.json").read_bytes())["traceEvents"]}
    assert {"ProfilerStep#7", "aten::mm"} <= names
    assert ("MmBackward0" in names) == (torch_has == "no choice of scopes")


@pytest.mark.parametrize(("ranks", "kind"), [(1, MessageKind.WINDOW), (2, MessageKind.MISSED_WINDOW)])
def test_window_needs_space_for_the_traces_of_all_ranks_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: tuple[RingWriter, RingReader], ranks: int, kind: MessageKind
) -> None:
    monkeypatch.setattr(scratch, "_free", lambda folder: scratch.MIN_FREE_BYTES if folder == tmp_path else 0)
    monkeypatch.setattr(windows_module, "KinetoSession", Profiler)
    writer = ring[0]
    windows = WindowController(Schedule(1, 0, 1), tmp_path, writer, ranks_here=ranks)
    windows.boundary(1)
    windows.boundary(2)
    assert [item for item, _ in messages(ring) if item] == [kind]


class OnDevice(Profiler):
    """Replacement for torch's profiler of a device, which notes what is called."""

    device = "cuda"
    called: ClassVar[list[str]] = []

    def prepare(self) -> None:
        self.called.append("prepare")
        self.prepared = True

    def drain(self) -> None:
        self.called.append("drain")

    def start(self) -> None:
        super().start()
        self.called.append("start")
        self.prepared = False

    def cancel(self) -> None:
        self.called.append("cancel")
        self.prepared = False

    def begin_step(self, step: int) -> None:
        self.called.append(str(step))

    def stop(self) -> None:
        self.called.append("stop")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> type[OnDevice]:
    OnDevice.called.clear()
    monkeypatch.setattr(windows_module, "KinetoSession", OnDevice)
    monkeypatch.setattr(windows_module, "device_type", lambda: "cuda")
    monkeypatch.setattr(graph_capture, "going_on", lambda: False)
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    return OnDevice


def test_device_window_follows_a_warm_up_step(
    tmp_path: Path, ring: tuple[RingWriter, RingReader], device: type[OnDevice]
) -> None:
    writer, reader = ring
    windows = WindowController(Schedule(10, 0, 2), tmp_path, writer)
    profiled, step = [], 1
    while step < 40:
        if step == 15:
            reader.announce(Announcement(1, 20, 1))
            windows.wake = 0
        windows.boundary(step)
        if windows.prepared or windows.session:
            profiled.append(step)
        step = max(step + 1, min(windows.wake, 15 if step < 15 else 40))
    # The device is attached to one step early and not before, and it is idle at both ends.
    window = ["prepare", "drain", "start"]
    assert device.called == [*window, "10", "11", "drain", "stop", *window, "20", "drain", "stop"]
    # The warm-up step is not a usual step either.
    assert profiled == [9, 10, 11, 19, 20]
    assert [kind for kind, _ in messages(ring) if kind] == [MessageKind.WINDOW, MessageKind.WINDOW]


@pytest.mark.slow
def test_device_window_cost_includes_profiler_loading_but_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: tuple[RingWriter, RingReader], device: type[OnDevice]
) -> None:
    def load(session: OnDevice) -> None:
        session.prepared = True
        time.sleep(0.05)

    monkeypatch.setattr(device, "prepare", load)
    monkeypatch.setattr(device, "drain", lambda _: time.sleep(1.0))
    writer, reader = ring
    windows = WindowController(Schedule(2, 0, 1), tmp_path, writer)
    for step in range(1, 5):
        windows.boundary(step)
    assert reader.windows == 1
    assert 50e6 <= reader.window_cost_ns < 1e9


def test_device_window_announced_too_late_for_a_warm_up_is_missed(
    tmp_path: Path, ring: tuple[RingWriter, RingReader], device: type[OnDevice]
) -> None:
    writer, reader = ring
    windows = WindowController(Schedule(100, 0, 2), tmp_path, writer)
    reader.announce(Announcement(1, 7, 1))
    windows.boundary(7)
    windows.boundary(8)
    assert device.called == []
    assert [kind for kind, _ in messages(ring) if kind] == [MessageKind.MISSED_WINDOW]


@pytest.mark.parametrize("ends", ["given way", "closed", "refused", "no room"])
def test_warm_up_without_a_window_is_cancelled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ring: tuple[RingWriter, RingReader],
    device: type[OnDevice],
    ends: str,
) -> None:
    monkeypatch.setattr(device, "starts", ends != "refused")
    if ends == "no room":
        monkeypatch.setattr(scratch, "_free", lambda folder: 0)
    writer = ring[0]
    windows = WindowController(Schedule(2, 0, 2), tmp_path, writer)
    windows.boundary(1)
    {"given way": windows.yield_to_script, "closed": windows.close}.get(ends, lambda: windows.boundary(2))()
    assert device.called[-1] == "cancel"
    assert windows.prepared is None
    assert windows.session is None
    missed = [kind for kind, _ in messages(ring) if kind]
    assert missed == ([] if ends in ("given way", "closed") else [MessageKind.MISSED_WINDOW])


@pytest.mark.parametrize("captured", [9, 10, 11, 12])
def test_profiler_is_neither_started_nor_stopped_during_a_graph_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: tuple[RingWriter, RingReader], device: type[OnDevice], captured: int
) -> None:
    capturing = False
    monkeypatch.setattr(graph_capture, "going_on", lambda: capturing)
    writer = ring[0]
    windows = WindowController(Schedule(10, 0, 2), tmp_path, writer)
    # Given a graph whose capture goes over the boundary before step ``captured``
    for step in range(1, 16):
        capturing = step == captured
        before = len(device.called)
        windows.boundary(step)
        assert not capturing or not {"prepare", "drain", "start", "stop", "cancel"} & set(device.called[before:])
    # Then the window is recorded as a whole or missed, and nothing stays on
    kinds = [kind for kind, _ in messages(ring) if kind]
    assert kinds == ([MessageKind.WINDOW] if captured == 9 else [MessageKind.MISSED_WINDOW])
    assert windows.session is None
    assert windows.prepared is None
    assert device.called[-1] == ("cancel" if captured == 10 else "stop")


@pytest.mark.parametrize("teardown", ["1", "0"])
def test_window_soon_after_another_is_missed_when_cupti_detaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: tuple[RingWriter, RingReader], device: type[OnDevice], teardown: str
) -> None:
    # Kineto detaches in the background, at some of the next calls of CUDA: nothing may attach meanwhile.
    monkeypatch.setenv("TEARDOWN_CUPTI", teardown)
    writer = ring[0]
    windows = WindowController(Schedule(1, 5, 2), tmp_path, writer)
    attached = []
    for step in range(1, 45):
        before = device.called.count("start")
        windows.boundary(step)
        attached += [step] * (device.called.count("start") - before)
        assert windows.prepared is None or windows.session is None
    recorded = [1, 16, 31] if teardown == "1" else list(range(1, 45, 5))
    entries = messages(ring)
    assert attached == recorded
    taken = [msgspec.json.decode(payload, type=ProfiledWindow).first for kind, payload in entries if kind == MessageKind.WINDOW]
    missed = [payload.decode() for kind, payload in entries if kind == MessageKind.MISSED_WINDOW]
    assert taken == recorded
    assert len(missed) == 9 - len(recorded)
    assert all("TEARDOWN_CUPTI" in reason for reason in missed)


def test_window_soon_after_a_cancelled_warm_up_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: tuple[RingWriter, RingReader], device: type[OnDevice]
) -> None:
    monkeypatch.setenv("TEARDOWN_CUPTI", "1")
    writer, reader = ring
    windows = WindowController(Schedule(5, 0, 2), tmp_path, writer)
    # Given a window that is missed after its warm-up, because a CUDA graph is captured, and another one soon after
    for step in range(1, 12):
        monkeypatch.setattr(graph_capture, "going_on", lambda step=step: step == 5)
        if step == 7:
            reader.announce(Announcement(1, 10, 1))
        windows.boundary(step)
    assert device.called == ["prepare", "cancel"]
    assert [kind for kind, _ in messages(ring) if kind] == 2 * [MessageKind.MISSED_WINDOW]


def test_torch_without_a_gpu_profiler_raises_kineto_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "device_type", lambda: "cuda")
    monkeypatch.setattr(torch.autograd, "_supported_activities", lambda: {torch.profiler.ProfilerActivity.CPU})
    with pytest.raises(kineto.KinetoUnavailable, match="CUPTI"):
        kineto.KinetoSession()


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["started", "cancelled"])
def test_prepared_session_records_its_own_steps_and_stops_the_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    session = kineto.KinetoSession()
    session.prepare()
    torch.ones(4, 4) @ torch.ones(4, 4)
    if ends == "cancelled":
        session.cancel()
        assert not kineto.busy()
        session = kineto.KinetoSession()
        session.prepare()
    session.start()
    session.begin_step(7)
    torch.ones(4, 4).exp()
    session.stop()
    assert not kineto.busy()
    session.export(tmp_path / "trace.json")
    names = {str(event["name"]) for event in msgspec.json.decode((tmp_path / "trace.json").read_bytes())["traceEvents"]}
    assert {"ProfilerStep#7", "aten::exp"} <= names
    assert "aten::mm" not in names
