"""Files written by the helper on a disk that fails; no process."""

from __future__ import annotations

import os
import resource
import shutil
import time
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest
from tests.profiler.handovers import handover_of, step
from tests.profiler.recorded_runs import info_of
from tests.waiting import wait_until

from rankscope.analysis.engine import analyze
from rankscope.profiler.handover import Handover
from rankscope.profiler.helper.writing.store import MAX_PENDING, PATIENCE, RunStore
from rankscope.profiler.helper.writing.writer_thread import WriterThread
from rankscope.runs.paths import RankStream
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo, RunInfo
from rankscope.runs.segment_writer import RowWriter
from rankscope.runs.small_files import create_run, run_is_gone
from rankscope.runs.step_columns import HEADER_BYTES, ROW_BYTES


def test_memory_is_bounded_while_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    store = RunStore(handover_of(tmp_path / "run"))
    for number in range(MAX_PENDING + 10):
        store.add_step(step(number))
    assert not store.flush()
    (tmp_path / "run").unlink()
    assert store.flush(now=True)
    assert store.dropped == 10
    assert next(RunReader(tmp_path / "run").steps(0, 0)).step == 10
    store.close()


def test_full_disk_neither_repeats_records_nor_leaves_extra_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given a store that has begun, and a disk that takes a part of the next write
    store = RunStore(handover_of(tmp_path / "run"))
    store.add_step(step(0))
    assert store.flush()
    numbers = range(1, 1001)
    for number in numbers:
        store.add_step(step(number))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        for _ in range(5):
            assert not store.flush(now=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # When there is room again
    assert store.flush(now=True)
    store.close()
    # Then every record is there once
    run = RunReader(tmp_path / "run")
    assert [row.step for row in run.steps(0, 0)] == [0, *numbers]
    assert run.skipped_lines == 0
    assert [path.name for path in store.folder.glob("steps-*")] == ["steps-000000.npy"]
    assert capsys.readouterr().err.count("cannot write to") == 1


def test_rank_already_recorded_by_another_process_is_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # of another host, where nothing tells that it has ended
    first, second = RunStore(handover_of(tmp_path, host="elsewhere")), RunStore(handover_of(tmp_path, run_id="other", pid=2))
    for number, store in enumerate((first, second)):
        store.add_step(step(number))
        assert store.flush()
        store.close()
    assert [row.step for row in RunReader(tmp_path).steps(0, 0)] == [0]
    assert "is already recorded in" in capsys.readouterr().err
    assert second.run.run_id == "run", "the run is that of whoever made it"


def storing_to_its_end(store: RunStore, handover: Handover) -> bool:
    storing = WriterThread(store)
    storing.start()
    storing.wake()
    return not storing.finish(handover.rank)


def test_rank_info_reported_during_a_write_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handover = handover_of(tmp_path / "run")
    store, calls = RunStore(handover), list[RankInfo | None]()
    storing, older, newer = WriterThread(store), handover.rank, msgspec.structs.replace(handover.rank, missed_windows=3)
    flush, write = store.flush, store.write_rank

    def counted_flush(*, now: bool) -> bool:
        calls.append(None)
        return flush(now=now)

    def write_rank(info: RankInfo) -> bool:
        calls.append(info)
        if info is older:
            storing.write_rank(newer)
        return write(info)

    monkeypatch.setattr(store, "flush", counted_flush)
    monkeypatch.setattr(store, "write_rank", write_rank)
    store.add_step(step(0))
    storing.write_rank(older)
    storing.start()
    wait_until(lambda: older in calls and calls[calls.index(older) :].count(None) == 2)
    assert newer in calls
    storing.finish(newer)


def test_run_json_with_invalid_utf_8_does_not_stop_writing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b'{"run_id":"\xff","name":"n","start_unix_ns":1}')
    store = RunStore(handover_of(tmp_path))
    store.add_step(step(0))
    assert storing_to_its_end(store, handover_of(tmp_path))
    assert [*store.folder.glob("steps-*")] == [store.folder / "steps-000000.npy"]
    assert (store.folder / "steps-000000.npy").stat().st_size == HEADER_BYTES + ROW_BYTES


def test_unexpected_write_error_is_logged_once_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rankscope.profiler.helper.writing import store as module

    # Given a folder whose writes fail twice with an error that no disk raises
    attempts = 0

    def fail(run: Path, info: RunInfo) -> bool:
        nonlocal attempts
        attempts += 1
        if attempts <= 2:
            raise RuntimeError("something new")
        return create_run(run, info)

    monkeypatch.setattr(module, "create_run", fail)
    store = RunStore(handover_of(tmp_path))
    for number in range(2):
        store.add_step(step(number))
    # Then that is one line, and in the end everything is there
    assert storing_to_its_end(store, handover_of(tmp_path))
    assert [row.step for row in RunReader(tmp_path).steps(0, 0)] == [0, 1]
    err = capsys.readouterr().err
    assert f"rank 0: cannot write to {tmp_path} (RuntimeError: something new)" in err
    assert err.count("\n") == 1


def test_unwritable_records_are_counted_and_do_not_delay_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a record that cannot be encoded, and a batch whose writing always fails half-way, between others
    append = RowWriter.append

    def odd(writer: RowWriter, *records: bytes) -> None:
        file = writer._file
        if file is None or not any(record.startswith((3).to_bytes(8, "little")) for record in records):
            append(writer, *records)
            return
        writer._file = Halting(file)  # type: ignore[assignment]
        try:
            append(writer, *records)
        finally:
            writer._file = file

    monkeypatch.setattr(RowWriter, "append", odd)
    store = RunStore(handover_of(tmp_path))
    store.add_step(step(0))
    store.add_step(msgspec.structs.replace(step(1), samples=2**63))
    store.add_step(step(2))
    assert store.flush(now=True)
    for number in (3, 4):
        store.add_step(step(number))
    for _ in range(PATIENCE - 1):
        with pytest.raises(RuntimeError):
            store.flush(now=True)
    assert store.flush(now=True)
    store.add_step(step(5))
    # Then the rest is there, once, and the missing records are counted
    assert storing_to_its_end(store, handover_of(tmp_path))
    run = RunReader(tmp_path)
    assert [row.step for row in run.steps(0, 0)] == [0, 2, 5]
    assert run.skipped_lines == 0
    info = info_of(run)
    assert info.dropped_records == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "1 record(s) dropped (" in err
    assert "3 records were dropped" in " ".join(analyze([tmp_path]).source.warnings)


class Halting:
    """File that takes ten bytes and then raises an error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        self._file.write(data[:10])
        raise RuntimeError("something new")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_writes_lost_by_the_filesystem_are_counted_in_rank_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore(handover_of(tmp_path))
    for number in range(2):
        store.add_step(step(number))
    assert store.flush(now=True)
    sync = os.fsync

    def late(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().suffix == ".npy":
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", late)
    assert storing_to_its_end(store, handover_of(tmp_path))
    info = info_of(tmp_path)
    assert info.unconfirmed_records == 2
    assert capsys.readouterr().err.count("up to 2 records may be missing") == 1
    assert "up to 2 records may be missing" in " ".join(analyze([tmp_path]).source.warnings)


def test_removed_run_is_not_recreated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given a rank that records
    first = handover_of(tmp_path / "run")
    store = RunStore(first)
    store.add_step(step(0))
    assert store.flush()
    # When the run is removed, and the rank continues to its end
    shutil.rmtree(tmp_path / "run")
    for number in range(1, 4):
        store.add_step(step(number))
        assert store.flush()
    assert store.write_rank(first.rank)
    store.close()
    # Then nothing is created again, and that is reported once
    assert not any(tmp_path.iterdir())
    err = capsys.readouterr().err
    assert f"rank 0: {tmp_path / 'run'} was removed" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("stream", ["steps", "windows"], ids=["open file", "new file"])
def test_run_is_checked_every_two_seconds_and_before_each_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: RankStream
) -> None:
    # Given a rank that writes five times a second
    clock, looks = [1000.0], list[Path]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def look(file: Path) -> bool:
        looks.append(file)
        return run_is_gone(file)

    monkeypatch.setattr("rankscope.profiler.helper.writing.store.run_is_gone", look)
    store = RunStore(handover_of(tmp_path / "run"))
    for number in range(100):
        clock[0] += 0.2
        store.add_step(step(number))
        assert store.flush()
    # Then it has looked at run.json every other second
    assert 5 <= len(looks) <= 12
    # When the run is removed between two looks, then nothing is created again, whether the next record needs a new file or not
    shutil.rmtree(tmp_path / "run")
    if stream == "steps":
        store.add_step(step(100))
    else:
        store.add(stream, step(100))
    assert store.flush()
    store.close()
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_final_write_continues_only_while_there_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.profiler.helper.writing import writer_thread as module

    monkeypatch.setattr(module, "LAST_TRY_SECONDS", 0.5)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    output = handover_of(tmp_path / "run")

    def ends(failures: int, *, moving: bool) -> bool:
        """Return whether the end is written on a disk on which the first ``failures`` attempts fail."""
        store = RunStore(msgspec.structs.replace(output, rank=msgspec.structs.replace(output.rank, rank=failures)))
        write, attempts = store.write_rank, 0

        def write_rank(info: RankInfo) -> bool:
            nonlocal attempts
            attempts += 1
            if attempts <= failures:
                if moving:
                    store._moved()
                else:
                    store.failing = True
                return False
            return write(info)

        monkeypatch.setattr(store, "write_rank", write_rank)
        store.add_step(step(0))
        storing = WriterThread(store)
        storing.start()
        return not storing.finish(output.rank)

    assert ends(0, moving=False)
    assert ends(8, moving=True)
    assert not ends(10**6, moving=False)
