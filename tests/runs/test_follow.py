"""Following one stream: every record is read once, for any changes of the files."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.step_files import append, keep_rows, steps_file

from rankscope.runs.follow import StartOverError, StepFollower, StreamFollower
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import KernelRecord, RunInfo, StepEvent, StepRecord
from rankscope.runs.segment_writer import JsonLinesWriter, RowWriter
from rankscope.runs.segments import BLOCK_BYTES, MAX_LINE_BYTES, decode_blocks, read_blocks
from rankscope.runs.small_files import create_run


def record(step: int) -> KernelRecord:
    return KernelRecord(step=step, name="k", kind="compute", total_us=1.0, calls=1)


def line(step: int) -> bytes:
    return msgspec.json.encode(record(step)) + b"\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_run(tmp_path, RunInfo(run_id="1", name="n", start_unix_ns=1))
    folder = rank_dir(tmp_path, 0, 0)
    folder.mkdir(parents=True)
    return folder


def follower(run: Path) -> StreamFollower[KernelRecord]:
    return StreamFollower(rank_dir(run, 0, 0), "kernels", KernelRecord)


def new(followed: StreamFollower[KernelRecord], run: Path) -> list[int]:
    return [row.step for rows in followed.new(RunReader(run)) for row in rows]


def test_torn_line_is_read_when_complete(tmp_path: Path, folder: Path) -> None:
    followed = follower(tmp_path)
    assert new(followed, tmp_path) == []
    file = folder / "kernels-000000.jsonl"
    file.write_bytes(line(0) + line(1)[:20])
    assert new(followed, tmp_path) == [0]
    assert followed.skipped == {file: (1, len(line(0)))}  # as when it is read at once
    with file.open("ab") as out:
        out.write(line(1)[20:] + b"not JSON\n")
    assert new(followed, tmp_path) == [1]
    assert followed.skipped == {file: (1, len(line(0) + line(1)))}
    assert new(followed, tmp_path) == []


def test_rotated_and_expired_segments_are_read_once(tmp_path: Path, folder: Path) -> None:
    # Given a writer that begins new segments all the time, and removes old ones
    writer = JsonLinesWriter(folder, "kernels", segment_bytes=100, retain_bytes=800)
    followed = follower(tmp_path)
    read: list[int] = []
    for step in range(60):
        writer.append(record(step))
        if step % 3 == 0:
            read += new(followed, tmp_path)
    writer.close()
    read += new(followed, tmp_path)
    assert writer.expired > 0
    assert read == list(range(60))


def test_existing_lines_can_be_skipped_except_the_last_bytes(tmp_path: Path, folder: Path) -> None:
    # Given two segments, the last of which is cut in the middle of a line
    lines = [line(step) for step in range(6)]
    (folder / "kernels-000000.jsonl").write_bytes(b"".join(lines[:2]))
    last = folder / "kernels-000001.jsonl"
    last.write_bytes(b"".join(lines[2:5]))
    followed = follower(tmp_path)
    followed.skip(keep=len(lines[4]) + 3)
    # When the writer continues
    assert new(followed, tmp_path) == [4]
    with last.open("ab") as out:
        out.write(lines[5])
    # Then no earlier record is read, and none twice
    assert new(followed, tmp_path) == [5]
    assert followed.skipped == {last: (1, len(lines[2] + lines[3]) - 3)}


def test_rows_and_events_of_rotated_and_expired_segments_are_read_once(tmp_path: Path, folder: Path) -> None:
    writer = RowWriter(folder, rank=0, attempt=0, segment_bytes=3000, retain_bytes=24_000)
    events = JsonLinesWriter(folder, "events")
    followed, reader = StepFollower(folder), RunReader(tmp_path)
    read, tagged = list[int](), list[int]()
    for number in range(300):
        if number % 7 == 0:
            events.append(StepEvent(step=number, end_unix_ns=1, tags=["eval"]))
        writer.append(StepRecord(step=number, start_unix_ns=1, wall_us=1.0))
        if number % 3 == 0:
            read += [step for rows in followed.new(reader) for step in rows["step"].tolist()]
            tagged += [event.step for new_event in followed.new_events(reader) for event in new_event]
            assert tagged == [step for step in read if step % 7 == 0]
    writer.close()
    events.close()
    read += [step for rows in followed.new(reader) for step in rows["step"].tolist()]
    assert writer.expired > 0
    assert read == [*range(300)]
    assert (followed.skipped, reader.unusable) == ({}, [])


@pytest.mark.parametrize("change", ["shorter", "another"])
def test_truncated_or_replaced_row_segment_raises_start_over_error(tmp_path: Path, folder: Path, change: str) -> None:
    append(folder, "steps", *(StepRecord(step=number, start_unix_ns=1, wall_us=1.0) for number in range(3)))
    file, followed = steps_file(tmp_path, 0), StepFollower(folder)
    assert sum(map(len, followed.new(RunReader(tmp_path)))) == 3
    if change == "shorter":
        keep_rows(file, 2)
    else:
        other = folder / "other"
        other.write_bytes(file.read_bytes())
        other.replace(file)
    with pytest.raises(StartOverError):
        list(followed.new(RunReader(tmp_path)))


@pytest.mark.parametrize("change", ["shorter", "another"])
def test_truncated_or_replaced_file_raises_start_over_error(tmp_path: Path, folder: Path, change: str) -> None:
    file = folder / "kernels-000000.jsonl"
    file.write_bytes(line(0))
    followed = follower(tmp_path)
    assert new(followed, tmp_path) == [0]
    if change == "shorter":
        file.write_bytes(b"")
    else:
        other = folder / "other"
        other.write_bytes(2 * file.read_bytes())
        other.replace(file)
    with pytest.raises(StartOverError):
        new(followed, tmp_path)


def test_folder_in_place_of_a_segment_is_listed_as_unusable(tmp_path: Path, folder: Path) -> None:
    (folder / "kernels-000000.jsonl").mkdir()
    reader = RunReader(tmp_path)
    assert list(follower(tmp_path).new(reader)) == []
    assert reader.unusable == [folder / "kernels-000000.jsonl"]


@given(lines=st.lists(st.sampled_from([b'{"n":1}', b"", b"x", b'{"n":1}{"n":2}', b'\xff{"n":1}'])), end=st.booleans())
def test_block_decoding_counts_the_same_lines_as_line_decoding(lines: list[bytes], end: bool) -> None:
    class Row(msgspec.Struct):
        n: int

    text = b"\n".join(lines) + (b"\n" if end else b"")
    result = list(decode_blocks([(text, len(text))] if text else [], msgspec.json.Decoder(Row)))
    full_lines = text.split(b"\n")[:-1]
    torn = [text.rfind(b"\n") + 1] if text and not text.endswith(b"\n") else []
    good = sum(line == b'{"n":1}' for line in full_lines)
    assert sum(len(rows) for rows, _ in result) == good
    begins = [0, *accumulate(len(line) + 1 for line in full_lines)]
    damaged = [begin for begin, line in zip(begins, full_lines, strict=False) if line != b'{"n":1}']
    assert [at for _, places in result for at in places] == [*damaged, *torn]


def test_overlong_line_uses_bounded_memory_and_the_next_line_is_found(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    size = 3 * MAX_LINE_BYTES
    file.write_bytes(b'{"a":1}\n' + b" " * size + b'\n{"b":2}\n')
    with file.open("rb") as source:
        blocks = list(read_blocks(source))
    assert max(len(lines) for lines, _ in blocks) <= MAX_LINE_BYTES + BLOCK_BYTES
    assert sum(length for _, length in blocks) == file.stat().st_size
    assert blocks[-1][0].endswith(b'\n{"b":2}\n')
