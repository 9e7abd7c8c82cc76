"""``rankscope hang``: from dumps on disk to who hung the job, and a real job that hangs."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from tests.flight_dumps import Job, write

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
WORLD = {"0": (0, 1, 2, 3)}


def test_the_json_is_what_its_published_schema_says(cli: Cli, shared_data: Path) -> None:
    schema = json.loads(cli("schema", "hang").stdout)
    for case, planted in {"lock_gil_1st": [9, 14], "gpu_error_1st": [12, 14]}.items():
        done = cli("hang", shared_data / "flight_recorder" / case, "--format", "json")
        assert (done.returncode, done.stderr) == (0, "")
        document = json.loads(done.stdout)
        jsonschema.validate(document, schema)
        assert document["schema"] == "rankscope.hang/1"
        assert document["culprits"] == planted


def test_the_text_says_who_where_and_what_to_do(cli: Cli, shared_data: Path) -> None:
    done = cli("hang", shared_data / "flight_recorder" / "lock_gil_1st", env={"COLUMNS": "80"})
    assert done.stdout.startswith("HANG\nRanks 9, 14 did not arrive at all_to_all 45265 of group 72")
    assert "rank 7 waits for rank 15" in done.stdout
    assert "ranks 8, 10, 11, 12, 13, 15 wait for ranks 9, 14" in done.stdout
    assert "next\n" in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "\x1b" not in done.stdout


def test_the_exit_status_is_as_told(cli: Cli, tmp_path: Path) -> None:
    hung = write(tmp_path / "hung", Job.of_events(WORLD, ["0"] * 3, stops={2: 1}).dumps())
    well = write(tmp_path / "well", Job.of_events(WORLD, ["0"] * 3).dumps())
    assert cli("hang", hung, "--fail-on", "hang").returncode == 1
    done = cli("hang", well, "--fail-on", "hang")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "NO HANG")
    assert cli("hang", well, "--fail-on", "no_hang").returncode == 1
    assert cli("hang", well, "--fail-on", "nonsense").returncode == 2


def test_a_hostile_dump_is_one_line_with_status_3(cli: Cli, tmp_path: Path) -> None:
    class Calls:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path}/was-here",)

    path = tmp_path / "dump_0"
    path.write_bytes(pickle.dumps({"version": "2", "entries": Calls()}, 2))
    for output in ("text", "json"):
        done = cli("hang", path, "--format", output)
        assert (done.returncode, done.stdout) == (3, "")
        assert len(done.stderr.splitlines()) == 1
        assert str(path) in done.stderr
        assert "refused" in done.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_names_from_a_dump_bring_no_escape_sequences(cli: Cli, tmp_path: Path) -> None:
    groups = {"\x1b[2J\n\u202e": (0, 1)}
    done = cli("hang", write(tmp_path / "d", Job.of_events(groups, list(groups), stops={1: 0}).dumps()))
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout


@pytest.mark.parametrize("missing", ["nowhere_0", "none_*"])
def test_a_path_that_is_not_there_is_one_line_with_status_3(cli: Cli, tmp_path: Path, missing: str) -> None:
    done = cli("hang", tmp_path / missing)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 1)
