"""Hardware samples written to disks that refuse them."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from tests.waiting import wait_until

from rankscope.profiler.helper.sampling.hardware import SampleLog
from rankscope.runs.reader import RunReader
from rankscope.runs.records import HardwareSample, RunInfo
from rankscope.runs.segment_writer import JsonLinesWriter
from rankscope.runs.small_files import create_run


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


def test_a_folder_that_cannot_be_written_is_said_once_and_the_newest_are_kept(run: Path) -> None:
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


def test_a_disk_that_stands_still_holds_up_nobody(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_run_that_was_removed_is_not_made_again(run: Path) -> None:
    log = SampleLog(run, "node1", pytest.fail)
    log.add([sample(0)])
    wait_until(lambda: bool(list(RunReader(run).hardware("node1"))))
    (run / "run.json").unlink()
    (run / "hosts" / "node1" / "gpu-000000.jsonl").unlink()
    log.add([sample(1)])
    wait_until(lambda: log.run_gone)
    log.close(20)
    assert list((run / "hosts" / "node1").iterdir()) == []
