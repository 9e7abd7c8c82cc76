"""``rankscope export`` at the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.conftest import SyntheticRun
from tests.cli.json_reports import json_report
from tests.command_line import Cli, one_line_error
from tests.full_disk import disk_with_room_for
from tests.perfetto_model import load, load_file

from rankscope.analysis.perfetto import export, run_source
from rankscope.runs.paths import attempt_dir, rank_dir, segment
from rankscope.runs.records import AttemptInfo, Phase
from rankscope.runs.run_files import list_run_folder
from rankscope.runs.small_files import create_attempt


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Run of two ranks whose steps take 1 ms."""
    phases: dict[Phase, float] = {"forward": 600, "backward": 400}
    return SyntheticRun(tmp_path / "run", 2, 300, noise=0, phases=phases, transfer_us=0, signals=False).write()


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_export_writes_a_trace_and_prints_how_to_open_the_file(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json.gz"
    completed = cli("export", recorded, "--perfetto", target)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "2 ranks, steps 0 to 299" in completed.stdout
    assert "https://ui.perfetto.dev" in completed.stdout
    assert target.read_bytes()[:2] == b"\x1f\x8b"
    model = load_file(target)
    assert model.dropped == []
    assert len(model.of("step")) == 600


def test_export_is_deterministic_compressed_or_not(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz", "c.json"):
        assert cli("export", recorded, "--perfetto", tmp_path / name).returncode == 0
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert (tmp_path / "c.json").read_bytes()[:1] == b"{"
    assert load_file(tmp_path / "c.json").document == load_file(tmp_path / "a.json.gz").document


def test_json_matches_the_published_schema(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    document = json_report(cli, "export", recorded, "--perfetto", target, "--steps", "10:20", "--ranks", "1")
    assert (document["ranks"], document["steps"], document["bytes"]) == ([1], [10, 20], target.stat().st_size)


@pytest.mark.parametrize(("steps", "expected"), [("5", [5, 6]), ("290:", [290, 300]), (":3", [0, 3])])
def test_steps_option_accepts_one_step_or_open_ranges(
    cli: Cli, recorded: Path, tmp_path: Path, steps: str, expected: list[int]
) -> None:
    completed = cli("export", recorded, "--perfetto", tmp_path / "o.json", "--steps", steps, "--format", "json", "--no-verdict")
    assert json.loads(completed.stdout)["steps"] == expected


def test_steps_beyond_max_events_are_left_out_and_reported(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    completed = cli("export", recorded, "--perfetto", tmp_path / "o.json", "--max-events", "1000")
    assert completed.returncode == 0
    assert "Left out: all but steps" in completed.stdout
    assert "--steps A:B" in completed.stdout


@pytest.mark.parametrize(
    "options",
    [["--steps", "5:5"], ["--steps", "a"], ["--steps", ":"], ["--steps", ""], ["--ranks", "x"], ["--max-events", "0"]],
)
def test_invalid_options_are_usage_errors(cli: Cli, recorded: Path, tmp_path: Path, options: list[str]) -> None:
    assert cli("export", recorded, "--perfetto", tmp_path / "o.json", *options).returncode == 2
    assert left_in(tmp_path) == ["run"]


def test_unusable_output_path_is_rejected(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    assert cli("export", recorded).returncode == 2
    assert cli("export", recorded, "--perfetto", tmp_path).returncode == 2
    os.mkfifo(tmp_path / "fifo")
    completed = cli("export", recorded, "--perfetto", tmp_path / "fifo")
    assert completed.returncode == 2
    assert "no regular file" in completed.stderr
    assert str(tmp_path / "gone") in one_line_error(cli("export", recorded, "--perfetto", tmp_path / "gone" / "o.json"))


def test_input_traces_are_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": {"stream": 7}}
    trace = tmp_path / "rank-0.json"
    trace.write_text(json.dumps({"traceEvents": [event]}))
    before = trace.read_bytes()
    assert cli("export", trace, "--perfetto", trace).returncode == 2
    completed = cli("export", tmp_path, "--perfetto", tmp_path / "out.json")
    assert completed.returncode == 2
    assert "would be taken for one of its traces" in completed.stderr
    assert (trace.read_bytes(), left_in(tmp_path)) == (before, ["rank-0.json"])


def test_unusable_input_is_a_one_line_error_and_leaves_no_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"traceEvents": [')
    out = tmp_path / "out"
    out.mkdir()
    for path in (tmp_path / "gone", tmp_path / "bad.json", out):
        completed = cli("export", path, "--perfetto", tmp_path / "out" / "o.json.gz" if path != out else tmp_path / "o.json")
        assert str(path) in one_line_error(completed)
    assert left_in(out) == []
    assert left_in(tmp_path) == ["bad.json", "out"]


@pytest.mark.parametrize("name", ["o.json", "o.json.gz"])
def test_full_disk_keeps_the_old_file_and_is_a_one_line_error(cli: Cli, recorded: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    target.write_bytes(b"old")
    with disk_with_room_for(4096):
        completed = cli("export", recorded, "--perfetto", target)
    assert str(target) in one_line_error(completed)
    assert "File too large" in completed.stderr
    assert target.read_bytes() == b"old"
    assert left_in(tmp_path) == sorted([name, "run"])


def test_export_to_standard_output_prints_its_summary_on_stderr(cli: Cli, recorded: Path) -> None:
    completed = cli("export", recorded, "--perfetto", "-", "--no-verdict")
    assert completed.returncode == 0
    assert len(load(completed.stdout.encode()).of("step")) == 600
    assert "2 ranks" in completed.stderr


@pytest.mark.full
@pytest.mark.slow
def test_closed_pipe_prints_no_error(recorded: Path) -> None:
    command = f"{sys.executable} -m rankscope export {recorded} --perfetto - --no-verdict"
    shell = f"{command} 2>/dev/null | head -c 10; exit ${{PIPESTATUS[0]}}"
    completed = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (141, "")


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal_and_erased(recorded: Path, tmp_path: Path) -> None:
    # given a terminal as stderr
    import pty

    ours, theirs = pty.openpty()
    command: list[Any] = [sys.executable, "-m", "rankscope", "export", recorded, "--perfetto", tmp_path / "o.json"]
    completed = subprocess.run(command, stderr=theirs, stdout=subprocess.PIPE, check=False)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert completed.returncode == 0
    assert "Looking through: 1 of 2" in shown
    assert "Writing: 1 of 2" in shown
    assert shown.endswith("\r\x1b[K")


@pytest.mark.parametrize("name", ["run.json", "findings.jsonl", "attempts/000/ranks/00000/steps-000000.npy", "attempts/new.json"])
def test_files_of_the_run_are_not_overwritten(cli: Cli, recorded: Path, name: str) -> None:
    target = recorded / name
    before = target.read_bytes() if target.exists() else None
    completed = cli("export", recorded, "--perfetto", target)
    assert completed.returncode == 2
    assert "the run's own files" in completed.stderr
    assert (target.read_bytes() if target.exists() else None) == before


def test_circular_link_at_the_output_path_is_replaced(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "circle.json"
    target.symlink_to(target)
    assert cli("export", recorded, "--perfetto", target).returncode == 0
    assert load_file(target).of("step")


def _meanwhile(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object]) -> None:
    """Call ``happen`` after the survey of the run and before the first write."""
    write_ranks = export._write_ranks

    def after(*args: Any) -> Any:
        happen()
        return write_ranks(*args)

    monkeypatch.setattr(export, "_write_ranks", after)


def _cannot_be_read(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (shutil.rmtree, "run: no such file"),
        (lambda run: shutil.rmtree(run / "attempts"), "ranks/00000: was there"),
        (lambda run: shutil.rmtree(rank_dir(run, 0, 1)), "ranks/00001: was there"),
    ],
)
def test_run_deleted_during_export_is_an_error(
    cli: Cli, recorded: Path, monkeypatch: pytest.MonkeyPatch, lost: Callable[[Path], None], named: str
) -> None:
    target = recorded.parent / "out.json"
    _meanwhile(monkeypatch, lambda: lost(recorded))
    completed = cli("export", recorded, "--perfetto", target)
    assert named in one_line_error(completed)
    assert not target.exists()


@pytest.mark.parametrize("lost", [Path.unlink, _cannot_be_read])
def test_step_records_deleted_during_export_are_counted(
    cli: Cli, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Callable[[Path], None]
) -> None:
    _meanwhile(monkeypatch, lambda: lost(segment(rank_dir(recorded, 0, 1), "steps", 0)))
    completed = cli("export", recorded, "--perfetto", tmp_path / "out.json", "--no-verdict")
    assert completed.returncode == 0
    assert "Left out: 300 step records: removed while the run was exported." in completed.stdout


def test_attempt_folder_selects_the_exported_attempt(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    create_attempt(recorded, AttemptInfo(attempt=1, start_unix_ns=10**18, world_size=2))
    completed = cli("export", attempt_dir(recorded, 0), "--perfetto", tmp_path / "out.json", "--format", "json")
    document = json.loads(completed.stdout)
    assert (document["steps"], document["left_out"][0]) == ([0, 300], "1 other attempt")
    completed = cli("export", attempt_dir(recorded, 3), "--perfetto", tmp_path / "o.json")
    assert (completed.returncode, completed.stderr.endswith("003: no such attempt of the run; there are 0, 1\n")) == (3, True)
    # and it must not overwrite the run's own files
    completed = cli("export", attempt_dir(recorded, 0), "--perfetto", recorded / "findings.jsonl")
    assert (completed.returncode, "a place of the run's own files" in completed.stderr) == (2, True)


def test_rank_with_unreadable_raw_traces_is_exported_without_traces(
    cli: Cli, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a folder of raw traces that no user may list
    closed = rank_dir(recorded, 0, 1) / "traces"
    closed.mkdir()
    monkeypatch.setattr(run_source, "list_run_folder", refusing(list_run_folder, closed))
    completed = cli("export", recorded, "--perfetto", tmp_path / "out.json")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert f"Left out: {closed}: Permission denied." in " ".join(completed.stdout.split())


def refusing(iterdir: Callable[[Path], Any], closed: Path) -> Callable[[Path], Any]:
    def listed(path: Path) -> Any:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    return listed
