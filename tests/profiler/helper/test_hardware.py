"""Helpers that sample a real exporter with a simulated driver, their lock, and hardware samples on disks that refuse them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest
from tests.exporter import conftest as exporter
from tests.exporter.conftest import RunningExporter
from tests.exporter.fake_driver import FakeDriver, uuid_of
from tests.profiler.handovers import handover_of
from tests.ring_step import ring_in
from tests.waiting import wait_until

from rankscope.base.locks import try_lock
from rankscope.profiler.handover import HANDOVER_FILE, RING_FILE
from rankscope.profiler.helper.sampling import host_lock
from rankscope.profiler.helper.sampling.hardware import SampleLog
from rankscope.profiler.helper.sampling.host_lock import HostLock
from rankscope.profiler.ring import EndState
from rankscope.profiler.settings import EXPORTER_URL
from rankscope.runs.reader import RunReader
from rankscope.runs.records import HardwareSample, RunInfo
from rankscope.runs.segment_writer import JsonLinesWriter
from rankscope.runs.small_files import create_run

fake_nvml_library = exporter.fake_nvml_library


fake_nvml = exporter.fake_nvml


start_exporter = exporter.start_exporter


# The real helper, with shorter timeouts.
QUICK = """
import sys, pathlib, rankscope.profiler.helper.sampling.hardware as hardware, rankscope.profiler.helper.__main__ as helper
hardware.SAMPLE_SECONDS = hardware.ELECTION_SECONDS = 0.2
helper.main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
"""


class Rank:
    """Simulated rank: a scratch folder, a ring, and a real helper."""

    def __init__(self, folder: Path, run_id: str, rank: int, url: str | None, *, device: bool = True) -> None:
        handover = handover_of(
            folder / "run",
            run_id=run_id,
            settings={"exporter_url": url},
            rank=rank,
            world_size=2,
            host="node1",
            local_rank=rank,
            device_kind="cuda" if device else "cpu",
            gpu_uuid=uuid_of(rank) if device else None,
        )
        scratch = folder / f"scratch{rank}"
        scratch.mkdir()
        self.ring = ring_in(scratch / RING_FILE)
        (scratch / HANDOVER_FILE).write_bytes(msgspec.json.encode(handover))
        with (scratch / RING_FILE).open("r+b") as file:
            memory = file.fileno()
            command = [sys.executable, "-P", "-c", QUICK, str(scratch), str(memory)]
            self.helper = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=[memory])

    def has_open(self, part: str) -> bool:
        """Return whether this rank's helper has a file open whose path contains ``part``."""
        for handle in Path(f"/proc/{self.helper.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since
                if part in str(handle.readlink()):
                    return True
        return False

    def writes(self) -> bool:
        """Return whether this rank's helper is the one that writes samples."""
        return self.has_open("/gpu-")

    def end(self) -> str:
        """End the rank; return the output of its helper."""
        self.ring.set_end(EndState.EXIT)
        _, output = self.helper.communicate(timeout=60)
        self.ring.close()
        return output


StartRank = Callable[..., Rank]


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[StartRank]:
    """Function ``start_rank(0, url)``, which starts a rank of this test's run; its helper ends with the test."""
    with ExitStack() as stack:

        def start(rank: int, url: str | None, *, device: bool = True) -> Rank:
            started = Rank(tmp_path, str(tmp_path), rank, url, device=device)
            stack.enter_context(started.helper)
            stack.callback(started.helper.kill)
            return started

        yield start


def samples(folder: Path) -> list[HardwareSample]:
    """Return the samples recorded so far."""
    return list(RunReader(folder / "run").hardware("node1")) if (folder / "run" / "run.json").exists() else []


@pytest.mark.slow
def test_one_helper_per_host_samples_despite_exporter_and_helper_deaths(
    tmp_path: Path,
    fake_nvml: FakeDriver,
    start_exporter: Callable[..., RunningExporter],
    start_rank: StartRank,
    refusing_port: int,
) -> None:
    address = f"127.0.0.1:{refusing_port}"
    uuids = [uuid_of(0), uuid_of(1)]

    def values_since(count: int) -> set[str | None]:
        return {row.gpu_uuid for row in samples(tmp_path)[count:] if row.power_watts == 251.25}

    # Given two ranks on a host with an exporter
    node = start_exporter("--listen", address, env=fake_nvml.env)
    node.wait_until(lambda: len(node.values("gpu_power_watts")) == 2)
    ranks = [start_rank(rank, f"http://{address}/metrics") for rank in (0, 1)]
    wait_until(lambda: len(samples(tmp_path)) >= 8)

    # Then one of them writes, every GPU at every moment once
    rows = [row for row in samples(tmp_path) if row.missing is None]
    assert sorted((row.unix_ns, str(row.gpu_uuid)) for row in rows) == sorted(
        (moment, uuid) for moment in {row.unix_ns for row in rows} for uuid in uuids
    )
    assert {(row.gpu_index, row.temperature_celsius, row.sm_clock_hertz) for row in rows} == {
        (0, 40.0, 1.71e9),
        (1, 41.0, 1.71e9),
    }
    assert sum(rank.writes() for rank in ranks) == 1

    # When a GPU is lost, it has no values but one row that reports it
    fake_nvml.lose(1)
    wait_until(lambda: any(row.gpu_uuid == uuids[1] and row.missing for row in samples(tmp_path)))

    # When the exporter ends, that is one row, and there are values once it is back
    fake_nvml.heal()
    node.stop(signal.SIGKILL)
    wait_until(lambda: samples(tmp_path)[-1].gpu_uuid is None)
    before = len(samples(tmp_path))
    assert "no answer" in (samples(tmp_path)[-1].missing or "")
    start_exporter("--listen", address, "--control.socket", tmp_path / "again.sock", env=fake_nvml.env)
    wait_until(lambda: values_since(before) == set(uuids))

    # When the writer is killed, the other one takes over
    writer, other = sorted(ranks, key=Rank.writes, reverse=True)
    writer.helper.send_signal(signal.SIGKILL)
    wait_until(other.writes)
    after = len(samples(tmp_path))
    wait_until(lambda: values_since(after) == set(uuids))

    # And at the end nothing is left, and the absence was reported once on this host
    ends = [rank.end() for rank in (writer, other)]
    assert "".join(ends).count("no answer from the exporter") == 1
    assert not HostLock(str(tmp_path))._folder.exists()
    rows = samples(tmp_path)
    assert all(row.unix_ns > 10**18 for row in rows)
    assert sum(row.gpu_uuid is None for row in rows) == 1, "recorded once, not with every try"


@pytest.mark.slow
def test_absent_exporter_is_logged_once_per_host(tmp_path: Path, start_rank: StartRank, refusing_port: int) -> None:
    url = f"http://me:secret@127.0.0.1:{refusing_port}/metrics"
    ranks = [start_rank(rank, url) for rank in (0, 1)]
    wait_until(lambda: len(samples(tmp_path)) >= 1 and all(rank.has_open("-host-") for rank in ranks))
    writer, other = sorted(ranks, key=Rank.writes, reverse=True)
    first = writer.end()
    wait_until(lambda: len(samples(tmp_path)) >= 2)
    second = other.end()
    assert (first + second).count("no answer from the exporter at http://127.0.0.1:") == 1
    assert "secret" not in first + second
    rows = samples(tmp_path)
    assert {row.gpu_uuid for row in rows} == {None}
    assert all("refused" in (row.missing or "") and "secret" not in (row.missing or "") for row in rows)


@pytest.mark.slow
def test_cpu_rank_without_an_explicit_exporter_logs_nothing(tmp_path: Path, start_rank: StartRank) -> None:
    rank = start_rank(0, EXPORTER_URL, device=False)
    wait_until(lambda: len(samples(tmp_path)) >= 1)
    assert rank.end() == ""


@pytest.mark.slow
def test_disabled_sampling_writes_nothing(tmp_path: Path, start_rank: StartRank) -> None:
    rank = start_rank(0, None)
    wait_until((tmp_path / "run" / "run.json").exists)
    time.sleep(0.5)
    assert rank.end() == ""
    assert not (tmp_path / "run" / "hosts").exists()


def sample(number: int) -> HardwareSample:
    """Return a sample."""
    return HardwareSample(unix_ns=number, gpu_uuid="GPU-1")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    create_run(tmp_path / "run", RunInfo(run_id="r", name="r", start_unix_ns=1))
    return tmp_path / "run"


def test_samples_are_appended_in_order_and_read_back(run: Path) -> None:
    for start in (0, 300):  # two helpers, one after the other
        log = SampleLog(run, "node1", pytest.fail)
        log.add(sample(number) for number in range(start, start + 300))
        log.close(20)
    with (run / "hosts" / "node1" / "gpu-000001.jsonl").open("ab") as file:
        file.write(b'{"unix_ns": 9, "gpu_')
    reader = RunReader(run)
    assert reader.hosts() == ["node1"]
    assert [row.unix_ns for row in reader.hardware("node1")] == list(range(600))
    assert reader.skipped_lines == 1


def test_unwritable_folder_is_logged_once_and_the_newest_samples_are_kept(run: Path) -> None:
    (run / "hosts").touch()  # no folder can be created here
    collected: list[str] = []
    log = SampleLog(run, "node1", collected.append, max_pending=10)
    for number in range(25):
        log.add([sample(number)])
        wait_until(lambda: not log._wake.is_set())
    wait_until(lambda: bool(collected))
    (run / "hosts").unlink()
    log.add([sample(25)])
    log.close(20)
    assert [row.unix_ns for row in RunReader(run).hardware("node1")] == list(range(16, 26))
    assert len(collected) == 2
    assert "cannot write hardware samples" in collected[0]
    assert collected[1].startswith("16 hardware samples")


def test_hanging_disk_does_not_block_the_sample_log(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    append = JsonLinesWriter.append

    def slow(self: JsonLinesWriter, *records: msgspec.Struct | bytes) -> None:
        go_on.wait()
        append(self, *records)

    monkeypatch.setattr(JsonLinesWriter, "append", slow)
    collected: list[str] = []
    log = SampleLog(run, "node1", collected.append, max_pending=10)
    for number in range(50):
        log.add([sample(number)])
    log.close(0.05)
    assert collected, "what could not be written is said at the end"
    go_on.set()
    log.close(20)
    assert len(list(RunReader(run).hardware("node1"))) >= 10


def test_removed_run_is_not_recreated(run: Path) -> None:
    log = SampleLog(run, "node1", pytest.fail)
    log.add([sample(0)])
    wait_until(lambda: bool(list(RunReader(run).hardware("node1"))))
    (run / "run.json").unlink()
    (run / "hosts" / "node1" / "gpu-000000.jsonl").unlink()
    log.add([sample(1)])
    wait_until(lambda: log.run_gone)
    log.close(20)
    assert list((run / "hosts" / "node1").iterdir()) == []


def test_lock_has_one_holder_and_the_last_leave_removes_the_files(tmp_path: Path) -> None:
    first, second, other = HostLock("run", base=tmp_path), HostLock("run", base=tmp_path), HostLock("other", base=tmp_path)
    assert [lock.take() for lock in (first, second, other)] == [True, False, True]
    assert [lock.is_held() for lock in (first, second, other)] == [True, False, True]
    first.leave()
    assert second.take()
    second.release()
    assert first.take(), "also one that has left may come back"
    first.leave()
    second.leave()
    other.leave()
    assert list(tmp_path.iterdir()) == []


def test_removed_lock_is_no_longer_held(tmp_path: Path) -> None:
    first, second = HostLock("run", base=tmp_path), HostLock("run", base=tmp_path)
    assert first.take()
    next(tmp_path.glob("*/lock")).unlink()
    assert not first.is_held()
    assert second.take()
    first.leave()
    assert second.is_held(), "what the new holder has is not the old one's to remove"


def test_lock_removed_during_acquisition_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = HostLock("run", base=tmp_path)

    def late(handle: int, *, shared: bool = False) -> bool:
        for file in tmp_path.glob("*/lock"):
            file.unlink()  # as the last holder does on exit
        return try_lock(handle, shared=shared)

    with monkeypatch.context() as patch:
        patch.setattr(host_lock, "try_lock", late)
        assert not lock.take()
    assert lock.take()


def test_note_persists_until_the_last_holder_leaves(tmp_path: Path) -> None:
    first, second = HostLock("run", base=tmp_path), HostLock("run", base=tmp_path)
    assert [first.take(), second.take()] == [True, False]
    assert (first.note(b"absent"), first.note(b"absent"), first.note(b"other")) == (True, False, True)
    first.leave()
    assert second.take()
    assert not second.note(b"absent")
    second.leave()
    assert first.take()
    assert first.note(b"absent")


@pytest.mark.parametrize("kind", ["file", "link"])
def test_lock_folder_replaced_by_a_file_or_link_is_refused(tmp_path: Path, kind: str) -> None:
    lock = HostLock("run", base=tmp_path)
    if kind == "file":
        lock._folder.touch()
    else:
        lock._folder.symlink_to("/tmp")
    with pytest.raises(PermissionError, match="not a folder of this user"):
        lock.take()
