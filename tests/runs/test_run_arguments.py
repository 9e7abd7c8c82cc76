"""Arguments that name a run, and the messages for other files beside a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.base.errors import InputError
from rankscope.runs.named import NamedRun, named_run, newest_run, refuse_folder_of_runs
from rankscope.runs.paths import attempt_dir, rank_dir, run_file
from rankscope.runs.records import AttemptInfo, RunInfo
from rankscope.runs.small_files import create_attempt, create_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "one"
    create_run(path, RunInfo(run_id="r", name="n", start_unix_ns=10**18))
    for attempt in range(2):
        create_attempt(path, AttemptInfo(attempt=attempt, start_unix_ns=10**18, world_size=2))
    rank_dir(path, 1, 0).mkdir(parents=True)
    return path


def test_run_path_may_be_the_folder_run_json_or_an_attempt(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named_run(run) == named_run(run_file(run)) == NamedRun(run, None)
    assert [named_run(attempt_dir(run, attempt)) for attempt in range(2)] == [NamedRun(run, 0), NamedRun(run, 1)]
    # and from inside the run
    monkeypatch.chdir(attempt_dir(run, 1))
    assert named_run(Path()) == named_run(Path("../001")) == NamedRun(run, 1)
    assert named_run(Path("../../run.json")) == NamedRun(run, None)


def test_path_inside_or_beside_a_run_is_not_a_run(run: Path, tmp_path: Path) -> None:
    others = [rank_dir(run, 1, 0), attempt_dir(run, 1) / "flight", run.parent, tmp_path / "gone", tmp_path / "3"]
    assert [named_run(path) for path in others] == [None] * len(others)
    # also a trace with the name of a file of a run
    trace = tmp_path / "traces" / "run.json"
    trace.parent.mkdir()
    trace.write_text('{"traceEvents": []}')
    assert named_run(trace) is None


def test_missing_attempt_error_lists_the_existing_attempts(run: Path) -> None:
    with pytest.raises(InputError, match=r"007: no such attempt of the run; there are 0, 1$"):
        named_run(attempt_dir(run, 7))
    for attempt in range(2, 12):
        create_attempt(run, AttemptInfo(attempt=attempt, start_unix_ns=10**18, world_size=2))
    with pytest.raises(InputError, match=r"there are 4 earlier ones and 4, 5, 6, 7, 8, 9, 10, 11$"):
        named_run(attempt_dir(run, 99))


def test_newest_run_is_the_one_that_started_last(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run.parent
    create_run(folder / "a-newer-run", RunInfo(run_id="2", name="2", start_unix_ns=10**18 + 1))
    (folder / "z-broken").mkdir()
    (folder / "z-broken" / "run.json").write_text("{")
    assert newest_run(folder) == folder / "a-newer-run"
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="rankscope-runs: no run in it"):
        newest_run()


def test_attempts_folder_and_folder_of_runs_raise_errors_with_suggestions(run: Path) -> None:
    with pytest.raises(InputError, match=rf"name the run, {run}, or one of them, such as {run}/attempts/001"):
        named_run(run / "attempts")
    with pytest.raises(InputError, match=f"a folder of runs; name one of them, such as {run}"):
        refuse_folder_of_runs(run.parent)
    refuse_folder_of_runs(run)
    refuse_folder_of_runs(run_file(run))
