"""``rankscope steps``: the recorded steps, in formats of other programs."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as pa_csv
from pyarrow import parquet as pq
from tests.command_line import Cli, one_line_error
from tests.full_disk import disk_with_room_for
from tests.step_files import add_damaged, append, change, damage, rows_of, steps_file

from rankscope.cli.verbs.step_batches import FIELDS, CsvSink, JsonSink, ParquetSink, batch_of
from rankscope.runs.follow import StartOverError, StepFollower
from rankscope.runs.paths import attempt_dir, rank_dir, segment
from rankscope.runs.records import PHASES, AttemptInfo, PhaseTimes, RunInfo, StepRecord
from rankscope.runs.small_files import create_attempt, create_run
from rankscope.runs.step_columns import COLUMNS

STEPS = 30
TAGS = {3: ["eval"], 5: ["checkpoint", 'of "a", b\n']}


def record(step: int, rank: int = 0) -> StepRecord:
    return StepRecord(
        step=step,
        start_unix_ns=10**18 + step,
        wall_us=1000.25 + rank,
        phases_us=PhaseTimes(forward=0.1, backward=600.0),
        device_us=None,
        samples=None if step % 2 else step,
        profiled=step == 7,
        tags=TAGS.get(step, []),
        sections_us={"tokenise": 1.0},
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Run of two attempts; the last has three ranks."""
    path = tmp_path / "run"
    create_run(path, RunInfo(run_id="r", name="n", start_unix_ns=10**18))
    for attempt, ranks in ((0, 1), (1, 3)):
        create_attempt(path, AttemptInfo(attempt=attempt, start_unix_ns=10**18, world_size=ranks))
        for rank in range(ranks):
            append(rank_dir(path, attempt, rank), "steps", *(record(step, rank) for step in range(STEPS)))
    return path


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def csv_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_record_column_is_exported_with_attempt_rank_and_tags() -> None:
    columns = [column.name for column in COLUMNS if column.name not in ("flags", "checksum")]
    assert set(FIELDS) == {"attempt", "rank", *columns, "profiled", "tags"}


def test_all_formats_have_the_same_rows(cli: Cli, run: Path, tmp_path: Path) -> None:
    for name in ("s.csv", "s.jsonl", "s.parquet", "s.csv.gz", "s.jsonl.gz"):
        completed = cli("steps", run, "-o", tmp_path / name)
        assert (completed.returncode, completed.stderr) == (0, "")
        assert "90 records of 3 ranks" in completed.stdout
    rows = pq.read_table(tmp_path / "s.parquet").to_pylist()
    assert [(row["attempt"], row["rank"], row["step"]) for row in rows] == [(1, r, s) for r in range(3) for s in range(STEPS)]
    for row in rows:
        expected = record(row["step"], row["rank"])
        assert (row["wall_us"], row["samples"], row["profiled"], row["tags"]) == (
            expected.wall_us,
            expected.samples,
            expected.profiled,
            expected.tags,
        )
        assert (row["forward_us"], row["data_us"], row["device_forward_us"]) == (pytest.approx(0.1, rel=1e-6), None, None)
    lines = (tmp_path / "s.jsonl").read_text()
    for row, line in zip(rows, lines_of(lines), strict=True):
        assert list(line) == list(row)
        assert line == {name: np.float32(value) if name == "forward_us" else value for name, value in row.items()} | {
            "forward_us": 0.1
        }
    text = (tmp_path / "s.csv").read_text()
    for row, fields in zip(rows, csv_of(text), strict=True):
        assert (fields["samples"], fields["data_us"]) == ("" if row["samples"] is None else str(row["samples"]), "")
        assert (fields["wall_us"], fields["tags"]) == (str(row["wall_us"]), ";".join(row["tags"]))
    assert gzip.decompress((tmp_path / "s.csv.gz").read_bytes()).decode() == text
    assert gzip.decompress((tmp_path / "s.jsonl.gz").read_bytes()).decode() == lines


def test_ranks_steps_and_columns_can_be_selected(cli: Cli, run: Path) -> None:
    completed = cli("steps", run, "--ranks", "0,2", "--steps", "4:6", "--columns", "step,rank,tags,step", "--format", "jsonl")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert lines_of(completed.stdout) == [
        {"step": step, "rank": rank, "tags": TAGS.get(step, [])} for rank in (0, 2) for step in (4, 5)
    ]
    completed = cli("steps", run, "--steps", "1000:", "--columns", "step")
    assert (completed.returncode, completed.stdout) == (0, "step\n")


@pytest.mark.parametrize("named", [["--attempt", "0"], []])
def test_attempt_is_selected_by_number_or_folder(cli: Cli, run: Path, named: list[str]) -> None:
    completed = cli("steps", run if named else attempt_dir(run, 0), *named, "--columns", "attempt,rank,step")
    assert [(row["attempt"], row["rank"]) for row in csv_of(completed.stdout)] == [("0", "0")] * STEPS


@pytest.mark.parametrize(
    "options",
    [
        ["--attempt", "7"],
        ["--attempt", "-1"],
        ["--ranks", "3"],
        ["--steps", "9:3"],
        ["--columns", "walls_us"],
        ["--columns", ""],
        ["--columns", "checksum"],
        ["--format", "arrow"],
        ["-o", "s.parquet.gz"],
        ["-o", "{run}/run.json"],
        ["-o", "{run}/attempts/s.csv"],
    ],
)
def test_invalid_options_are_usage_errors_and_write_no_file(
    cli: Cli, run: Path, tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    completed = cli("steps", run, *(option.format(run=run) for option in options))
    assert (completed.returncode, completed.stdout) == (2, "")
    assert sorted(tmp_path.rglob("*")) == before


def test_misspelled_column_gets_a_suggestion(cli: Cli, run: Path) -> None:
    assert "wall_us" in cli("steps", run, "--columns", "walls_us").stderr


def test_path_without_a_run_is_a_one_line_error(cli: Cli, run: Path, tmp_path: Path) -> None:
    create_run(tmp_path / "new", RunInfo(run_id="r", name="n", start_unix_ns=1))
    old = tmp_path / "old"
    old.mkdir()
    (old / "run.json").write_text('{"schema": "rankscope.run/1", "run_id": "r", "name": "n", "start_unix_ns": 1}')
    for path in (tmp_path / "gone", tmp_path, tmp_path / "new", old, run / "attempts"):
        assert str(path) in one_line_error(cli("steps", path))


def test_damaged_records_are_skipped_and_counted_on_stderr(cli: Cli, run: Path) -> None:
    damage(twice := steps_file(run, 0, 1), 4, 5)
    add_damaged(steps_file(run, 1, 1))
    segment(rank_dir(run, 1, 2), "steps", 1).mkdir()
    completed = cli("steps", run, "--columns", "step")
    assert completed.returncode == 0
    assert len(completed.stdout.splitlines()) == 1 + 3 * STEPS - 2
    counted, named = completed.stderr.splitlines()
    assert " 3 " in counted
    assert f"{twice.relative_to(run)} (2, from byte " in counted
    assert "attempts/001/ranks/00002/steps-000001.npy" in named


def test_records_written_during_the_export_have_tags(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = StepFollower.new

    def late(follower: StepFollower, *arguments: Any) -> Iterator[Any]:
        append(rank_dir(run, 0, 0), "steps", msgspec.structs.replace(record(STEPS), tags=["eval"]))
        yield from new(follower, *arguments)

    monkeypatch.setattr(StepFollower, "new", late)
    completed = cli("steps", run, "--attempt", "0", "--steps", str(STEPS), "--columns", "step,tags")
    assert completed.stdout == f"step,tags\n{STEPS},eval\n"


def test_files_replaced_during_the_export_are_an_error(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(*_: Any) -> Iterator[Any]:
        yield from ()
        raise StartOverError

    monkeypatch.setattr(StepFollower, "new", replaced)
    for name in ("s.csv", "s.parquet"):
        completed = cli("steps", run, "-o", tmp_path / name)
        assert "00000" in one_line_error(completed)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_impossible_values_are_exported_as_unknown(cli: Cli, run: Path) -> None:
    def spoil(rows: Any) -> None:
        rows["wall_us"][:] = np.inf
        rows["flops"][:] = np.nan
        rows["tokens"][:] = -7
        rows["start_unix_ns"][:] = -(2**63)

    change(steps_file(run, 0, 0), spoil)
    names = ["wall_us", "flops", "tokens", "start_unix_ns"]
    completed = cli("steps", run, "--attempt", "0", "--format", "jsonl", "--columns", ",".join(names), "--steps", "1")
    assert lines_of(completed.stdout) == [{"wall_us": None, "flops": None, "tokens": None, "start_unix_ns": -(2**63)}]


def test_full_disk_keeps_the_old_file_and_is_a_one_line_error(cli: Cli, run: Path, tmp_path: Path) -> None:
    for name, room in (("s.csv", 2000), ("s.parquet", 2000), ("s.parquet", 500)):
        target = tmp_path / name
        target.write_bytes(b"old")
        with disk_with_room_for(room):
            completed = cli("steps", run, "-o", target)
        assert str(target) in one_line_error(completed)
        assert target.read_bytes() == b"old"
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        target.unlink()


@pytest.mark.slow
def test_parquet_is_written_to_a_pipe_but_not_to_a_terminal(run: Path) -> None:
    import pty

    command = [sys.executable, "-m", "rankscope", "steps", str(run), "--format", "parquet"]
    completed = subprocess.run(command, capture_output=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, b"")
    assert pq.read_table(io.BytesIO(completed.stdout)).num_rows == 3 * STEPS
    ours, theirs = pty.openpty()
    refused = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    os.close(ours)
    assert refused.returncode == 2
    assert b"terminal" in refused.stderr


record_lists = st.lists(
    st.builds(
        StepRecord,
        step=st.integers(0, 2**63 - 1),
        start_unix_ns=st.integers(0, 2**63 - 1),
        wall_us=st.floats(0, 1e300),
        phases_us=st.builds(PhaseTimes, **dict.fromkeys(PHASES, st.none() | st.floats(0, 2**99, width=32))),
        flops=st.none() | st.floats(0, 1e300),
        tokens=st.none() | st.integers(0, 2**63 - 1),
        profiled=st.booleans(),
        tags=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=2),
    ),
    max_size=5,
    unique_by=lambda record: record.step,
)


@given(record_lists)
def test_every_format_reads_back_the_written_rows(records: list[StepRecord]) -> None:
    rows, names = rows_of(*records), list(FIELDS)
    batch = batch_of(rows, names, attempt=2, rank=5, tags={row.step: row.tags for row in records if row.tags})
    expected: list[dict[str, Any]] = [
        {"attempt": 2, "rank": 5}
        | {"step": row.step, "start_unix_ns": row.start_unix_ns, "wall_us": row.wall_us, "profiled": row.profiled}
        | {f"{phase}_us": row.phases_us.get(phase) for phase in PHASES}
        | {"flops": row.flops, "tokens": row.tokens, "tags": row.tags}
        for row in records
    ]
    for row, values in zip(batch.to_pylist(), expected, strict=True):
        assert {name: row[name] for name in values} == values

    made = io.BytesIO()
    with ParquetSink(made.write, batch.schema) as sink:
        sink.write(batch)
    assert pq.read_table(io.BytesIO(made.getvalue())).to_pylist() == batch.to_pylist()

    made = io.BytesIO()
    JsonSink(made.write, batch.schema).write(batch)
    lines = made.getvalue().splitlines()
    assert len(lines) == len(records)
    for line, row in zip(lines, expected, strict=True):
        read = msgspec.json.decode(line)
        for name, value in row.items():
            assert read[name] == pytest.approx(value, rel=1e-6) if isinstance(value, float) else read[name] == value

    made = io.BytesIO()
    CsvSink(made.write, batch.schema).write(batch)
    fields = list(csv.DictReader(io.StringIO(made.getvalue().decode(), newline="")))
    assert [(row["step"], row["tags"]) for row in fields] == [(str(row.step), ";".join(row.tags)) for row in records]
    if records:
        parsed = pa_csv.read_csv(io.BytesIO(made.getvalue()), parse_options=pa_csv.ParseOptions(newlines_in_values=True))
        assert parsed["wall_us"].to_pylist() == [row.wall_us for row in records]


def test_parquet_row_groups_have_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParquetSink, "GROUP_ROWS", 50)
    batch = batch_of(rows_of(*map(record, range(STEPS))), ["step"], attempt=0, rank=0, tags={})
    made = io.BytesIO()
    with ParquetSink(made.write, batch.schema) as sink:
        for _ in range(5):
            sink.write(batch)
    file = pq.ParquetFile(io.BytesIO(made.getvalue()))
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [60, 60, 30]
