"""The rank's side of Flight Recorder dumps: torch's configuration, and the thread that waits for requests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from tests.waiting import wait_until
from torch import distributed as dist
from torch._C import _distributed_c10d as distributed_c10d

from rankscope.profiler import scratch
from rankscope.profiler.flight_files import done_file, dump_files
from rankscope.profiler.rank.gpu import flight_dump

NAMES = {
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_ENABLE_TIMING",
}


def per_backend(backend: str = "gloo") -> bytes:
    """Return a dump as in torch 2.15; older versions lack this signature, ``(backend: str = 'gloo') -> bytes``."""
    return b"record_id of " + backend.encode() if backend != "idle" else b""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch with one recorder for all backends, and one for NCCL."""

    def of_all() -> bytes:
        return b"record_id of all"

    monkeypatch.setattr(distributed_c10d, "_dump_fr_trace", of_all, raising=False)
    monkeypatch.setattr(distributed_c10d, "_dump_nccl_trace", lambda: b"", raising=False)


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch, alone: None) -> pytest.MonkeyPatch:
    """Environment without any configuration of torch's recorder, restored afterwards."""
    for name in NAMES:
        # Set first, so that what ``prepare`` sets is taken back.
        monkeypatch.setenv(name, "")
        del os.environ[name]
    return monkeypatch


def variables_set() -> dict[str, str]:
    return {name: os.environ[name] for name in NAMES & set(os.environ)}


@pytest.mark.parametrize(
    ("version", "size", "file"),
    [
        ("2.6.0", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.6.0a0+df5bbc09d1.nv24.11", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.8.0+cu128", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("2.14.1", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
    ],
)
def test_torch_version_determines_the_flight_recorder_variables(
    patched: pytest.MonkeyPatch, tmp_path: Path, version: str, size: str, file: str
) -> None:
    patched.setattr(torch, "__version__", version)
    flight_dump.prepare(str(tmp_path))
    output = variables_set()
    prefix = Path(output.pop(file))
    assert output == {size: "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    # a unique name: ranks of other attempts have the same number
    assert prefix.parent == tmp_path
    assert str(os.getpid()) in prefix.name


def test_torch_with_a_recorder_per_backend_gets_no_deprecated_variable(patched: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patched.setattr(distributed_c10d, "_dump_fr_trace", per_backend, raising=False)
    patched.setattr(torch, "__version__", "2.15.0")
    flight_dump.prepare(str(tmp_path))
    assert variables_set().keys() == {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}


def test_dump_goes_to_local_memory_when_the_launcher_folder_is_missing(patched: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # as on the other nodes of a job
    patched.setattr(torch, "__version__", "2.13.0")
    for folder in (None, str(tmp_path / "not-here")):
        os.environ.pop("TORCH_FR_DUMP_TEMP_FILE", None)
        flight_dump.prepare(folder)
        prefix = Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"])
        assert prefix.parent.is_dir()
        assert prefix.parent != tmp_path / "not-here"


def test_old_uncollected_dump_is_swept_from_local_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "LOCAL_MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    uncollected, fresh = (Path(f"{scratch.flight_prefix(None, name)}0") for name in ("1", "2"))
    for path in (uncollected, fresh):
        path.touch()
    os.utime(uncollected, (1, 1))
    scratch.sweep()
    assert list(tmp_path.iterdir()) == [fresh]


def test_user_set_flight_recorder_variables_are_kept(patched: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patched.setattr(torch, "__version__", "2.13.0")
    # given the old names, which torch still accepts, and of which it would warn together with the new ones
    variables = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/rank_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }
    for name, value in variables.items():
        patched.setenv(name, value)
    flight_dump.prepare(str(tmp_path))
    assert variables_set() == variables


def test_variables_are_not_set_after_initialisation(patched: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patched.setattr(dist, "is_initialized", lambda: True)
    flight_dump.prepare(str(tmp_path))
    assert variables_set() == {}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rankscope-flight"]


def test_valid_request_is_served_and_invalid_lines_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a recorder without records; that of this process may have some, from another test
    monkeypatch.setattr(flight_dump, "_dumpers", lambda: {"gloo": lambda: b""})
    request_reader, request_writer = os.pipe()
    flight_dump.listen(request_reader, tmp_path)
    (thread,) = threads()
    assert thread.daemon
    # when an invalid request is written, then a valid one
    os.write(request_writer, b"../../etc/passwd\nA\n" + b"1" * 100 + b"\n\n\xff\xfe\n" + b"12-ab\n")
    # then the valid one is served, though there is nothing to dump
    done = done_file(tmp_path, "12-ab")
    assert "no collective" in wait_until(lambda: done.exists() and done.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["flight-12-ab.done"]
    # and the thread ends when the last writer has closed the pipe
    os.close(request_writer)
    thread.join(60)
    assert threads() == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(request_reader)


def test_dump_survives_a_missing_folder_and_a_failing_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bytes:
        raise RuntimeError("no CUDA")

    flight_dump.dump(tmp_path / "gone", "1-a")
    monkeypatch.setattr(flight_dump, "_dumpers", lambda: {"nccl": broken})
    flight_dump.dump(tmp_path, "1-a")
    assert done_file(tmp_path, "1-a").read_text() == "RuntimeError: no CUDA"


class Group:
    """Process group of torch 2.15, with one backend per device."""

    def __init__(self, **backends: str) -> None:
        self._device_types = list(backends)
        self._backends = backends

    def _get_backend(self, device: str) -> SimpleNamespace:
        return SimpleNamespace(name=lambda: self._backends[device])


def test_every_backend_with_a_flight_recorder_is_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None) -> None:
    # Given the backends of an "nccl" group from 2.15 on, a backend without records, and one whose name is no file name
    groups = [Group(cpu="gloo", cuda="nccl2"), Group(cuda="nccl2", xpu="idle"), Group(npu="../../etc")]
    monkeypatch.setattr(distributed_c10d, "_dump_fr_trace", per_backend)
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_flight_recorder_hooks=dict.fromkeys(groups)))
    flight_dump.dump(tmp_path, "1-a")
    assert {backend: path.read_bytes() for backend, path in dump_files(tmp_path, "1-a").items()} == {
        "gloo": b"record_id of gloo",
        "nccl2": b"record_id of nccl2",
    }
    assert done_file(tmp_path, "1-a").read_text() == ""
    # And when an exception ends the script, NCCL has written its own dump already
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    flight_dump.dump_crash(tmp_path)
    assert dump_files(tmp_path, "crash").keys() == {"gloo"}


def test_empty_dump_reports_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> bytes:
        return b""

    for number, (dumpers, item) in enumerate(
        [
            ({}, "this torch has no Flight Recorder for it"),
            ({"gloo": nothing}, "no collective has been recorded"),
            ({"nccl": nothing, "gloo": nothing}, "no collective has been recorded"),
            # 2.6 and 2.7, where training may be on gloo
            ({"nccl": nothing}, "no collective has been recorded, and this torch records those of NCCL alone"),
        ]
    ):
        flight_dump.dump(tmp_path, str(number), dumpers)
        assert done_file(tmp_path, str(number)).read_text() == item


def test_process_exit_waits_briefly_for_a_dump_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def make() -> bytes:
        begun.set()
        go_on.wait(60)
        return b"record_id"

    monkeypatch.setattr(flight_dump, "_dumpers", lambda: {"gloo": make})
    monkeypatch.setattr(flight_dump, "SETTLE_SECONDS", 0.01)
    reading, writing = os.pipe()
    flight_dump.listen(reading, tmp_path)
    (thread,) = threads()
    os.write(writing, b"1-2\n")
    assert begun.wait(60)
    flight_dump.settle()  # not for ever
    assert not done_file(tmp_path, "1-2").exists()
    monkeypatch.setattr(flight_dump, "SETTLE_SECONDS", 60)
    threading.Timer(0.05, go_on.set).start()
    flight_dump.settle()
    assert done_file(tmp_path, "1-2").exists()
    os.close(writing)
    thread.join(60)


def test_failed_thread_start_closes_the_request_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    request_reader, request_writer = os.pipe()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        flight_dump.listen(request_reader, tmp_path)
    # then the helper sees that there is no reader
    with pytest.raises(BrokenPipeError):
        os.write(request_writer, b"1-a\n")
    os.close(request_writer)


SCRIPT = """
import os, sys, threading
from pathlib import Path
from rankscope.profiler.rank.gpu import flight_dump
from rankscope.profiler import scratch
heard, asks = os.pipe()
flight_dump.listen(heard, Path(sys.argv[1]))
if not (child := os.fork()):
    os._exit(len([thread for thread in threading.enumerate() if thread.name == "rankscope-flight"]))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
# The writer is still there: the thread waits.
"""


@pytest.mark.slow
def test_listener_thread_is_not_forked_and_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "0\n", "")


def test_duration_dump_has_no_stacks_and_only_nccl(tmp_path: Path, patched: pytest.MonkeyPatch) -> None:
    """Stacks take most of the time of a dump, during which the interpreter's lock is held."""
    wanted: list[bool] = []

    def dumped(*, includeStackTraces: bool = True) -> bytes:  # noqa: N803  # torch's spelling
        wanted.append(includeStackTraces)
        return b"record_id"

    patched.setattr(distributed_c10d, "_dump_nccl_trace", dumped, raising=False)
    reads, writes = os.pipe()
    flight_dump.listen(reads, tmp_path)
    os.write(writes, b"durations\n")
    wait_until(done_file(tmp_path, "durations").exists)
    os.close(writes)
    assert wanted == [False]
    assert list(dump_files(tmp_path, "durations")) == ["nccl"]
    # and the helper learns how long the dump took
    assert done_file(tmp_path, "durations").read_text().removesuffix(" us").isdecimal()


@pytest.mark.parametrize(("timed", "size"), [("1", 4000), ("0", 2000), ("", 2000)])
def test_buffer_is_larger_when_collectives_are_timed(patched: pytest.MonkeyPatch, timed: str, size: int) -> None:
    patched.setenv("TORCH_NCCL_ENABLE_TIMING", timed)
    flight_dump.prepare(None)
    assert int(next(value for name, value in variables_set().items() if "BUFFER_SIZE" in name)) == size
