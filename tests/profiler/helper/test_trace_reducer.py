"""Traces in the helper: reduced, kept or removed, even when the disk or another process interferes."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import wait_until

from rankscope.profiler.handover import ProfiledWindow
from rankscope.profiler.helper.writing import trace_reducer as reducer_module
from rankscope.profiler.helper.writing import trace_retention as retention_module
from rankscope.profiler.helper.writing.no_activity import reason_without_activity
from rankscope.profiler.helper.writing.trace_reducer import ReducedWindow, TraceReducer
from rankscope.profiler.helper.writing.trace_retention import (
    CAPTURED,
    MAX_WAITING,
    WRONG,
    WRONG_BYTES,
    TraceRetention,
    keeps_wrong,
)
from rankscope.runs.records import DeviceKind

TRACE = '{"traceEvents": []}'


class Place:
    """A scratch folder, a rank's folder, and the reported lines."""

    def __init__(self, base: Path) -> None:
        self.scratch, self.folder, self.reported = base / "scratch", base / "run" / "rank", list[str]()
        self.scratch.mkdir()
        self.folder.mkdir(parents=True)

    def trace(self, number: int) -> Path:
        path = self.scratch / f"window-{number:09d}.json"
        path.write_text(TRACE)
        return path

    def window(self, number: int, *, requested: bool = False) -> ProfiledWindow:
        return ProfiledWindow(str(self.trace(number)), number, number, keep_trace=requested)

    def retention(self, *, keep: int = 0, wrong_bytes: int = WRONG_BYTES) -> TraceRetention:
        return TraceRetention(
            self.scratch, keep=keep, keep_in=lambda: self.folder, report=self.reported.append, wrong_bytes=wrong_bytes
        )

    def reducer(self, *, keep: int = 0) -> TraceReducer:
        return TraceReducer(self.scratch, self.retention(keep=keep))

    @property
    def kept(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "traces").iterdir())


@pytest.mark.parametrize(("world_size", "kept"), [(1, 1), (2, 2), (8, 8), (9, 5), (64, 8), (1000, 8), (1024, 8)])
def test_few_ranks_of_a_large_job_keep_suspicious_traces(world_size: int, kept: int) -> None:
    ranks = [rank for rank in range(world_size) if keeps_wrong(rank, world_size)]
    assert (len(ranks), ranks[0]) == (kept, 0)


def test_unrequested_trace_is_not_kept_on_a_nearly_full_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(place.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    retention = place.retention()
    retention.take(place.trace(1), wrong=True)
    retention.take(place.trace(2), requested=True)
    assert retention.finish(60)
    assert place.kept == [name(2)]
    assert place.reported == ["cannot keep the trace window-000000001.json.gz: the disk is nearly full"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Event that holds up work until it is set, at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def reduction_began(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the reduction of a trace wait for the gate; the event is set once one has begun."""
    began = threading.Event()

    def slow(_: Path, _kind: DeviceKind) -> ReducedWindow:
        began.set()
        gate.wait()
        return ReducedWindow()

    monkeypatch.setattr(reducer_module, "_reduce", slow)
    return began


def name(number: int) -> str:
    return f"window-{number:09d}.json.gz"


def test_latest_traces_are_kept_and_requested_ones_have_a_separate_limit(place: Place) -> None:
    retention = place.retention(keep=2)
    captured = range(100, 100 + CAPTURED + 2)
    for number in (1, 2, *captured, 3):
        retention.take(place.trace(number), requested=number in captured)
        wait_until(lambda: not [*place.scratch.iterdir()])
    assert retention.finish(30)
    assert place.kept == [name(2), name(3), *map(name, captured[2:])]
    assert gzip.decompress((place.folder / "traces" / name(3)).read_bytes()).decode() == TRACE
    assert place.reported == []


def test_suspicious_traces_are_kept_longer_with_count_and_size_limits(place: Place) -> None:
    def keep(retention: TraceRetention, number: int, size: int = 0, *, requested: bool = False, wrong: bool = True) -> None:
        trace = place.trace(number)
        trace.write_bytes(random.Random(number).randbytes(size))  # random bytes do not compress
        retention.take(trace, requested=requested, wrong=wrong)
        wait_until(lambda: not [*place.scratch.iterdir()])

    retention = place.retention(keep=1, wrong_bytes=100_000)
    # given one trace too many, among others: the oldest is removed; requested ones count by themselves
    keep(retention, 1, requested=True)
    for number in range(2, WRONG + 3):
        keep(retention, number)
        keep(retention, 90 + number, wrong=False)
    assert place.kept == [name(1), *map(name, range(3, WRONG + 3)), name(90 + WRONG + 2)]
    # given two traces that fit, one that displaces all before it, and one larger than the limit
    keep(retention, 20, 45_000)
    keep(retention, 21, 45_000)
    assert place.kept[-4:-1] == [name(WRONG + 2), name(20), name(21)]
    keep(retention, 22, 90_000)
    assert place.kept == [name(1), name(22), name(90 + WRONG + 2)]
    keep(retention, 23, 120_000)
    assert retention.finish(30)
    assert place.kept == [name(1), name(22), name(90 + WRONG + 2)]
    assert [line.startswith(f"cannot keep the trace {name(23)}: it is larger") for line in place.reported] == [True]


@pytest.mark.parametrize("trace", ["{", TRACE], ids=["unreadable", "without its steps"])
def test_trace_of_an_irreducible_window_is_kept(place: Place, trace: str) -> None:
    reducer = place.reducer()
    window = place.window(7)
    Path(window.path).write_text(trace)
    reducer.add(window)
    assert reducer.finish(30) == 0
    (reduced,) = reducer.results()
    assert reduced.reason
    assert reducer._retention.finish(30)
    assert place.kept == [name(7)]


def test_foreign_file_in_place_of_a_trace_is_replaced_not_written_to(place: Place, tmp_path: Path) -> None:
    # given a link to a valuable file and a FIFO without a reader
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (place.folder / "traces").mkdir()
    (place.folder / "traces" / name(1)).symlink_to(victim)
    os.mkfifo(place.folder / "traces" / name(2))
    retention = place.retention(keep=3)
    for number in (1, 2):
        retention.take(place.trace(number), requested=False)
    assert retention.finish(30)
    assert victim.read_text() == "precious"
    for number in (1, 2):
        path = place.folder / "traces" / name(number)
        assert not path.is_symlink()
        assert gzip.decompress(path.read_bytes()).decode() == TRACE
    assert place.reported == []


def test_linked_trace_folder_is_not_followed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (place.folder / "traces").symlink_to(tmp_path / "elsewhere")
    retention = place.retention()
    retention.take(place.trace(1), requested=True)
    assert retention.finish(30)
    assert [*(tmp_path / "elsewhere").iterdir()] == []
    assert [*place.scratch.iterdir()] == []
    assert len(place.reported) == 1


def test_trace_that_does_not_fit_leaves_no_file_and_recreates_no_run(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        retention = place.retention()
        retention.take(place.trace(1), requested=True)
        assert retention.finish(30)
    assert place.kept == []
    (place.folder / "traces").rmdir()
    place.folder.rmdir()
    place.folder.parent.rmdir()
    retention = place.retention()
    retention.take(place.trace(2), requested=True)
    assert retention.finish(30)
    assert not (tmp_path / "run").exists()
    assert [*place.scratch.iterdir()] == []
    assert ["No space left" in place.reported[0], "No such file" in place.reported[1], len(place.reported)] == [True, True, 2]


def test_traces_have_the_permissions_of_the_run(place: Place) -> None:
    place.folder.chmod(0o2750)
    before = os.umask(0o077)
    try:
        retention = place.retention()
        retention.take(place.trace(1), requested=True)
        assert retention.finish(30)
    finally:
        os.umask(before)
    traces = place.folder / "traces"
    assert (traces.stat().st_mode & 0o7777, (traces / name(1)).stat().st_mode & 0o777) == (0o2750, 0o640)


def test_hanging_disk_delays_neither_reduction_nor_local_memory_release(
    place: Place, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    def stuck(*_: object, **__: object) -> None:
        began.set()
        gate.wait()

    monkeypatch.setattr(retention_module, "make_folder", stuck)
    reducer = place.reducer(keep=9)
    # given one trace whose writing to the disk is blocked
    reducer.add(place.window(0))
    assert began.wait(60)
    # when more come than may wait for it
    reduced = len(reducer.results())
    for number in range(1, MAX_WAITING + 2):
        reducer.add(place.window(number))
        wait_until(lambda: not reducer._done.empty())
        reduced += len(reducer.results())
    # then all have been reduced, the last is given up, and the end does not wait for ever
    assert reducer.finish(30) == 0
    assert reduced == MAX_WAITING + 2
    assert len([*place.scratch.iterdir()]) == MAX_WAITING + 1
    assert len(place.reported) == 1
    assert not reducer._retention.finish(0.05)


def test_traces_left_by_a_killed_helper_are_removed_and_counted(
    place: Place, gate: threading.Event, reduction_began: threading.Event
) -> None:
    # Given a helper that is killed while it reduces a trace and another waits, and the trace of a window it does not know of
    killed = place.reducer()
    for number in range(2):
        killed.add(place.window(number))
    assert reduction_began.wait(60)
    unknown = place.trace(2)
    # Then its replacement removes the two, does not try them again, and reports why
    reasons = [reduced.reason for reduced in place.reducer().results()]
    assert len(reasons) == 2
    assert all(reason is not None and "killed" in reason for reason in reasons)
    assert list(place.scratch.iterdir()) == [unknown]
    gate.set()
    killed.finish(60)


def test_traces_waiting_for_a_slow_reduction_are_bounded(
    place: Place, gate: threading.Event, reduction_began: threading.Event
) -> None:
    reducer = place.reducer()
    reducer.add(place.window(0))
    assert reduction_began.wait(60)
    # when more come than may wait
    for number in range(1, reducer_module.MAX_WAITING + 3):
        reducer.add(place.window(number))
    # then the newest are removed and counted as missed, with a reason
    assert len([*place.scratch.glob("*.json")]) == reducer_module.MAX_WAITING + 1
    assert ["still wait" in (reduced_window.reason or "") for reduced_window in reducer.results()] == [True, True]
    # and the end reports how many were not reduced
    assert reducer.finish(0.05) == reducer_module.MAX_WAITING + 1
    gate.set()
    wait_until(lambda: not [*place.scratch.iterdir()])
    assert reducer.finish(30) == 0


STEP_ON_THE_HOST = """{"traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 1, "tid": 1, "ts": 10, "dur": 90},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 20, "dur": 50}
]}"""


@pytest.mark.parametrize("kind", ["cpu", "cuda", "rocm"])
def test_gpu_window_without_gpu_events_is_rejected_unlike_a_cpu_window(place: Place, kind: DeviceKind) -> None:
    reducer = TraceReducer(place.scratch, place.retention(), device_kind=kind)
    window = place.window(7)
    Path(window.path).write_text(STEP_ON_THE_HOST)
    reducer.add(window)
    assert reducer.finish(30) == 0
    (reduced,) = reducer.results()
    assert [row.step for row in reduced.breakdowns] == ([7] if kind == "cpu" else [])
    assert (reduced.reason is None) == (kind == "cpu")


@pytest.mark.parametrize(
    ("parameters", "capabilities", "denied"),
    [
        ("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n", "00000000a80425fb", True),
        ("RmProfilingAdminOnly: 1\n", "000001ffffffffff", False),
        ("RmProfilingAdminOnly: 0\n", "0000000000000000", False),
        (None, "0000000000000000", False),
    ],
)
def test_permission_denial_is_reported_with_the_remedy(
    tmp_path: Path, parameters: str | None, capabilities: str, denied: bool
) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    if parameters is not None:
        (tmp_path / "params").write_text(parameters)
    reason = reason_without_activity("cuda", parameters=tmp_path / "params", status=status)
    remedies = ("NVreg_RestrictProfilingToAdminUsers=0", "SYS_ADMIN", "ERR_NVGPUCTRPERM")
    assert [remedy in reason for remedy in remedies] == [denied] * 3
    assert "GPU" in reason
