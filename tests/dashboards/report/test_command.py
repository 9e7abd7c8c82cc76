"""``rankscope report``: from a run to a file, and its errors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import one_line_error
from tests.full_disk import disk_with_room_for

from rankscope.dashboards.model.drawn import DrawnFigure
from rankscope.dashboards.model.page import FigureBlock
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.report import document

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(cli: Command) -> Command:
    """Function ``command(run, …)`` that runs ``rankscope report`` in this process."""
    return lambda *args: cli("report", *args)


@pytest.mark.slow
def test_report_command_writes_or_replaces_the_file(
    tmp_path: Path, write_run: Callable[..., Path], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1795000000")
    run, target = write_run(tmp_path / "run"), tmp_path / "report.html"
    target.write_text("old")
    completed = command(run, "-o", target, "--rank", "1", "--steps", "10-30", "--metric", "wall_us", "--rows", "host")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.count("\n") == 1
    assert re.search(rf"bert-base .*{re.escape(str(target))} \(\d\.\d MiB\)", completed.stdout)
    text = target.read_text()
    assert "Selected: rank 1; metric wall_us; steps 10-30; one row per host." in text
    assert "Made 2026-11-18 11:06:40 UTC" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]
    # and to standard output, without other output
    first = target.read_bytes()
    completed = command(run, "-o", "-", "--rank", "1", "--steps", "10-30", "--metric", "wall_us", "--rows", "host")
    assert (completed.returncode, completed.stdout.encode()) == (0, first)
    assert "written to standard output" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["{tmp}/nowhere"], 3, "no such file or folder"),
        (["{tmp}"], 3, "a folder of runs; name one of them"),
        (["{tmp}/traces"], 3, "of traces, `rankscope analyze`"),
        (["{tmp}/traces/rank-0.json"], 3, "of traces, `rankscope analyze`"),
        (["{tmp}/broken"], 3, "run.json"),
        (["s3://bucket/run"], 3, "not from a URL"),
        (["{tmp}/run", "-o", "{tmp}"], 2, "is a folder"),
        (["{tmp}/run", "-o", "/dev/null"], 2, "is no regular file"),
        (["{tmp}/run", "-o", "{tmp}/run/report.html"], 2, "lies in the run itself"),
        (["{tmp}/run", "-o", "{tmp}/no/report.html"], 3, "no such folder"),
        (["{tmp}/run", "-o", "{tmp}/a.html", "--cache", "{tmp}/run/cache"], 2, "lies in the run"),
        (["{tmp}/run", "-o", "{tmp}/a.html", "--rank", "4"], 2, "rank 4 is not in this run, which has 0 to 3"),
        (["{tmp}/run", "-o", "{tmp}/a.html", "--steps", "60-70"], 2, "it has 0 to 59"),
        (["{tmp}/run", "-o", "{tmp}/a.html", "--steps", "9-3"], 2, "has no step in it"),
        (["{tmp}/run", "-o", "{tmp}/a.html", "--steps", "x"], 2, "is no range of steps"),
        (["{tmp}/run", "-o", "{tmp}/a.html", "--metric", "speed"], 2, "'speed' is none of"),
    ],
)
def test_invalid_input_or_options_are_an_error_without_a_file(
    tmp_path: Path, write_run: Callable[..., Path], command: Command, *, arguments: list[str], status: int, says: str
) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "rank-0.json").write_text('{"traceEvents": []}')
    completed = command(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert (completed.returncode, completed.stdout) == (status, "")
    assert says in " ".join(completed.stderr.split())
    assert "Traceback" not in completed.stderr
    assert status == 2 or len(completed.stderr.splitlines()) == 1
    assert not (tmp_path / "a.html").exists()


@pytest.mark.slow
def test_an_unwritable_folder_is_an_error_before_the_analysis(
    tmp_path: Path, write_run: Callable[..., Path], without_privilege: list[str]
) -> None:
    run, cache, locked = write_run(tmp_path / "run"), tmp_path / "cache", tmp_path / "locked"
    locked.mkdir(mode=0o500)
    report = [sys.executable, "-m", "rankscope", "report", str(run), "-o", str(locked / "a.html"), "--cache", str(cache)]
    line = one_line_error(subprocess.run([*without_privilege, *report], capture_output=True, text=True, check=False))
    assert str(locked) in line
    assert not cache.exists(), "the run was analysed all the same"


def test_cache_folder_comes_from_the_option_or_the_environment(
    tmp_path: Path, write_run: Callable[..., Path], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", steps=12)
    monkeypatch.setenv("RANKSCOPE_CACHE", str(tmp_path / "environment"))
    for options, folder in (((), "environment"), (("--cache", tmp_path / "option"), "option")):
        assert command(run, "-o", tmp_path / "a.html", *options).returncode == 0
        assert list((tmp_path / folder).iterdir())


def test_invalid_source_date_epoch_is_a_usage_error(
    tmp_path: Path, write_run: Callable[..., Path], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    completed = command(write_run(tmp_path / "run"), "-o", tmp_path / "a.html")
    assert completed.returncode == 2
    assert "SOURCE_DATE_EPOCH" in completed.stderr


@pytest.mark.slow
def test_full_disk_keeps_the_old_report(tmp_path: Path, write_run: Callable[..., Path], command: Command) -> None:
    run, target = write_run(tmp_path / "run"), tmp_path / "report.html"
    target.write_text("old")
    with disk_with_room_for(1_000_000):
        completed = command(run, "-o", target)
    assert (completed.returncode, completed.stdout) == (3, "")
    assert len(completed.stderr.splitlines()) == 1
    assert str(target) in completed.stderr
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]


def test_figure_that_fails_to_draw_is_named_with_status_1(
    tmp_path: Path, write_run: Callable[..., Path], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> DrawnFigure:
        raise ZeroDivisionError("by zero")

    result = FigureBlock(name="one", label="one", draw=broken)
    view = View(slug="", label="Made up", help=Help("a", "b", "c"), blocks=lambda *_: [result])
    monkeypatch.setattr(document, "VIEWS", (view,))
    completed = command(write_run(tmp_path / "run"), "-o", tmp_path / "a.html")
    assert completed.returncode == 1
    assert (tmp_path / "a.html").exists()
    assert completed.stderr.count("\n") == 1
    assert "Made up, figure one: ZeroDivisionError: by zero" in completed.stderr
