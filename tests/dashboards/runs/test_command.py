"""``rankscope runs``: the list of runs, without an analysis."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.command_line import Cli
from tests.dumped_job import DumpedJob

from rankscope.analysis.engine import analyze
from rankscope.analysis.result.stored import store_verdict
from rankscope.runs.paths import activity_file, flight_dir, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankActivity
from rankscope.runs.small_files import write_record


@pytest.fixture
def folder(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    """Three runs, of which one has a verdict, and one cannot be read."""
    judged = write_run(tmp_path / "judged", run_id="run-1", steps=60)
    write_run(tmp_path / "new", run_id="run-2", steps=60)
    store_verdict(judged, analyze([judged]), as_of_unix_ns=time.time_ns())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    return tmp_path


def test_runs_are_listed_with_state_and_stored_verdict(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    completed = cli("runs", folder)
    assert completed.returncode == 0, completed.stderr
    head, *lines = completed.stdout.splitlines()
    assert head.split() == ["folder", "state", "started", "ranks", "verdict"]
    by_folder = {line.split()[0]: line for line in lines}
    assert "Straggler: Rank 2" in by_folder["judged"]
    assert "rankscope analyze" in by_folder["new"]
    assert "Unreadable" in by_folder["broken"]


def test_narrow_terminal_truncates_only_the_verdict(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("runs", folder).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.endswith("…") for line in lines)


def test_json_lists_runs_with_verdicts_and_problems(cli: Cli, folder: Path) -> None:
    rows = {Path(row["path"]).name: row for row in json.loads(cli("runs", folder, "--format", "json").stdout)}
    assert (rows["judged"]["kind"], rows["judged"]["status"]) == ("straggler", "finished")
    assert rows["new"]["kind"] is None
    assert rows["broken"]["problem"]


def test_run_with_stalled_ranks_is_listed_as_hung(cli: Cli, tmp_path: Path, write_run: Callable[..., Path]) -> None:
    # given a run that was recorded long ago, whose ranks have not ended
    run = write_run(tmp_path / "standing", run_id="run-1", steps=60, slow_rank=None)
    reader, now = RunReader(run), time.time_ns()
    for rank, info in reader.infos(0).items():
        going_on = msgspec.structs.replace(info, end_reason=None, end_unix_ns=None)
        write_record(rank_dir(run, 0, rank) / "rank.json", going_on)
        # and of which all wait but rank 2, whose process is stopped
        standing = RankActivity(
            attempt=0, rank=rank, step=60, phase="backward", waiting=rank != 2, process="stopped" if rank == 2 else None,
            since_unix_ns=now - 40 * 10**9, updated_unix_ns=now,
        )  # fmt: skip
        write_record(activity_file(run, 0, rank), standing)
    # then the list has the verdict of the analysis
    (row,) = json.loads(cli("runs", tmp_path, "--format", "json").stdout)
    assert row["kind"] == "hang"
    assert "Hung" in cli("runs", tmp_path).stdout


def test_interrupted_hung_run_is_listed_as_hung(cli: Cli, tmp_path: Path, write_run: Callable[..., Path]) -> None:
    # given a run whose ranks, except rank 2, wait for a minute when they are dumped, and are then ended by Ctrl-C
    run = write_run(tmp_path / "ended", run_id="run-1", steps=60, slow_rank=None)
    reader, begun = RunReader(run), time.time_ns() + 3600 * 10**9
    dumps = DumpedJob.of_events({"0": range(4)}, ["0"] * 5, stops={2: 3}).dumps()
    flight_dir(run, 0).mkdir()
    for rank, info in reader.infos(0).items():
        write_record(rank_dir(run, 0, rank) / "rank.json", msgspec.structs.replace(info, end_reason="interrupted"))
        for entry in dumps[rank]["entries"]:
            entry["time_created_ns"], entry["time_discovered_completed_ns"] = begun, None
        path = flight_dir(run, 0) / f"rank-{rank:05d}-1000000000000000000-aaaaaaaa-nccl.pickle"
        path.write_bytes(pickle.dumps(dumps[rank], 2))
        os.utime(path, ns=(begun + 60 * 10**9,) * 2)
    # then the list has the verdict of the analysis
    assert analyze([run]).verdict.kind == "hang"
    (row,) = json.loads(cli("runs", tmp_path, "--format", "json").stdout)
    assert (row["kind"], row["status"]) == ("hang", "finished")


def test_empty_folder_shows_how_to_record_a_run(cli: Cli, tmp_path: Path) -> None:
    completed = cli("runs", tmp_path)
    assert (completed.returncode, completed.stdout) == (0, "")
    assert "rankscope run --" in completed.stderr
    completed = cli("runs", tmp_path / "gone")
    assert completed.returncode == 3
    assert "record one with `rankscope run`" in completed.stderr
