"""Writing segments: lines are written wholly or not at all, and records are counted or told as lost."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from tests.full_disk import disk_with_room_for
from tests.profiler.handovers import handover_of, step
from tests.step_files import StepWriter

from rankscope.profiler.helper.writing.store import RunStore
from rankscope.runs.paths import rank_dir, segment
from rankscope.runs.reader import RunReader
from rankscope.runs.records import KernelRecord
from rankscope.runs.segment_writer import JsonLinesWriter
from rankscope.runs.step_columns import ROW_BYTES


def kernel(number: int) -> KernelRecord:
    return KernelRecord(step=number, name="k", kind="compute", total_us=1.0, calls=1)


def test_segments_rotate_and_a_restarted_writer_never_overwrites(run: Path) -> None:
    folder = rank_dir(run, 0, 0)
    for _ in range(2):
        writer = StepWriter(folder, rank=0, segment_bytes=100)
        for number in range(4):
            writer.append(step(number))
        writer.close()
    assert len(list(folder.glob("steps-*.npy"))) > 2
    assert [row.step for row in RunReader(run).steps(0, 0)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_failed_append_leaves_no_partial_record_and_can_be_retried(run: Path) -> None:
    # given a disk that takes two records and a half
    writer = StepWriter(rank_dir(run, 0, 0), rank=0)
    writer.append(step(0))
    size = segment(rank_dir(run, 0, 0), "steps", 0).stat().st_size
    batch = [step(number) for number in range(1, 5)]
    # when a batch is retried again and again
    with disk_with_room_for(size + ROW_BYTES * 3 // 2):
        for _ in range(3):
            with pytest.raises(OSError, match="File too large"):
                writer.append(*batch)
            assert [row.step for row in RunReader(run).steps(0, 0)] == [0]
    # then, once there is room, every record is there once, in one file
    writer.append(*batch)
    writer.close()
    reader = RunReader(run)
    assert [row.step for row in reader.steps(0, 0)] == [0, 1, 2, 3, 4]
    assert reader.skipped_lines == 0
    assert [path.name for path in rank_dir(run, 0, 0).iterdir()] == ["steps-000000.npy"]


class StubbornFile(io.FileIO):
    """File that cannot be truncated."""

    def truncate(self, size: int | None = None) -> int:
        raise OSError(116, "Stale file handle")


def test_record_after_an_unremovable_partial_row_is_still_readable(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda path, mode, **_: StubbornFile(path, mode.replace("b", "")))
    writer = StepWriter(rank_dir(run, 0, 0), rank=0)
    writer.append(step(0))
    size = segment(rank_dir(run, 0, 0), "steps", 0).stat().st_size
    with disk_with_room_for(size + ROW_BYTES // 2), pytest.raises(OSError, match="File too large"):
        writer.append(step(1))
    writer.append(step(1))
    writer.close()
    monkeypatch.undo()
    reader = RunReader(run)
    assert [row.step for row in reader.steps(0, 0)] == [0, 1]
    assert reader.skipped_lines == 1


def test_unremovable_rows_of_a_failed_append_are_not_written_twice(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a disk that takes two records and a half of a batch, and then cannot truncate the file
    monkeypatch.setattr(Path, "open", lambda path, mode, **_: StubbornFile(path, mode.replace("b", "")))
    store = RunStore(handover_of(run, run_id="r1", world_size=2))
    store.add_step(step(0))
    assert store.flush(now=True)
    size = segment(rank_dir(run, 0, 0), "steps", 0).stat().st_size
    for number in range(1, 5):
        store.add_step(step(number))
    with disk_with_room_for(size + ROW_BYTES * 5 // 2):
        assert not store.flush(now=True)
    # when there is room again
    assert store.flush(now=True)
    store.close()
    monkeypatch.undo()
    # then every record is there once
    reader = RunReader(run)
    assert [row.step for row in reader.steps(0, 0)] == [0, 1, 2, 3, 4]
    assert reader.skipped_lines == 1


def test_removed_segment_is_not_continued(run: Path) -> None:
    writer = StepWriter(rank_dir(run, 0, 0), rank=0)
    writer.append(step(0))
    segment(rank_dir(run, 0, 0), "steps", 0).unlink()
    writer.append(step(1))
    writer.close()
    assert [row.step for row in RunReader(run).steps(0, 0)] == [1]


def test_records_lost_at_fsync_are_counted_as_unconfirmed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a filesystem that reports a full disk only at fsync, as NFS does
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    def unable(_: int) -> None:
        raise OSError(22, "Invalid argument")

    writer = JsonLinesWriter(rank_dir(run, 0, 0), "kernels", segment_bytes=1)
    writer.append(kernel(0), kernel(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        # when the segment is full and the next begins
        with pytest.raises(OSError, match="No space"):
            writer.append(kernel(2))
    writer.append(kernel(2))
    # then the records of the first are counted, and the rest is written; without support of fsync a file counts as written
    monkeypatch.setattr(os, "fsync", unable)
    writer.close()
    assert writer.unconfirmed == 2
    assert len([*rank_dir(run, 0, 0).iterdir()]) == 2
    # and the end of a rank reports it
    monkeypatch.undo()
    store = RunStore(handover_of(run, run_id="r1", world_size=2))
    store.add_step(step(0))
    assert store.flush(now=True)
    monkeypatch.setattr(os, "fsync", full)
    store.close()
    assert "up to 1 records may be missing" in capsys.readouterr().err
