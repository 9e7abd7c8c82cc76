"""``rankscope hang``: from dumps on disk to the culprit of the hang, and a real job that hangs."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.json_reports import json_report
from tests.command_line import Cli, one_line_error
from tests.dumped_job import DumpedJob
from tests.flight_dump_files import write
from tests.waiting import wait_until

WORLD = {"0": (0, 1, 2, 3)}
JOB = Path(__file__).parents[1] / "profiler" / "jobs" / "hung.py"


def test_json_matches_the_published_schema(cli: Cli, shared_data: Path) -> None:
    for case, planted in {"lock_gil_1st": [9, 14], "gpu_error_1st": [12, 14]}.items():
        document = json_report(cli, "hang", shared_data / "flight_recorder" / case)
        assert document["culprits"] == planted


def test_text_names_absent_ranks_collective_and_next_step(cli: Cli, shared_data: Path) -> None:
    completed = cli("hang", shared_data / "flight_recorder" / "lock_gil_1st", env={"COLUMNS": "80"})
    assert completed.stdout.startswith("HANG\nRanks 9, 14 probably did not arrive at all_to_all 45265 of group 72")
    assert "rank 7 waits for rank 15" in completed.stdout
    assert "ranks 8, 10, 11, 12, 13, 15 wait for ranks 9, 14" in completed.stdout
    assert "next\n" in completed.stdout
    assert [line for line in completed.stdout.splitlines() if len(line) > 80] == []
    assert "\x1b" not in completed.stdout


def test_fail_on_sets_the_exit_status(cli: Cli, tmp_path: Path) -> None:
    hung = write(tmp_path / "hung", DumpedJob.of_events(WORLD, ["0"] * 3, stops={2: 1}).dumps())
    well = write(tmp_path / "well", DumpedJob.of_events(WORLD, ["0"] * 3).dumps())
    assert cli("hang", hung, "--fail-on", "hang").returncode == 1
    completed = cli("hang", well, "--fail-on", "hang")
    assert (completed.returncode, completed.stdout.splitlines()[0]) == (0, "NO HANG")
    assert cli("hang", well, "--fail-on", "no_hang").returncode == 1
    assert cli("hang", well, "--fail-on", "nonsense").returncode == 2


def test_malicious_pickle_is_refused_with_status_3(cli: Cli, tmp_path: Path) -> None:
    class Calls:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path}/was-here",)

    path = tmp_path / "dump_0"
    path.write_bytes(pickle.dumps({"version": "2", "entries": Calls()}, 2))
    for output in ("text", "json"):
        completed = cli("hang", path, "--format", output)
        assert str(path) in one_line_error(completed)
        assert "refused" in completed.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_group_names_from_a_dump_are_escaped(cli: Cli, tmp_path: Path) -> None:
    groups = {"\x1b[2J\n\u202e": (0, 1)}
    completed = cli("hang", write(tmp_path / "d", DumpedJob.of_events(groups, list(groups), stops={1: 0}).dumps()))
    assert completed.returncode == 0
    assert "\x1b" not in completed.stdout
    assert "\u202e" not in completed.stdout


@pytest.mark.parametrize("missing", ["nowhere_0", "none_*"])
def test_missing_path_is_a_one_line_error_with_status_3(cli: Cli, tmp_path: Path, missing: str) -> None:
    completed = cli("hang", tmp_path / missing)
    assert (completed.returncode, completed.stdout, len(completed.stderr.splitlines())) == (3, "", 1)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_absent_rank_of_a_real_hung_job_is_named(cli: Cli, tmp_path: Path) -> None:
    if not hasattr(pytest.importorskip("torch._C._distributed_c10d"), "_dump_fr_trace"):
        pytest.skip("this torch has no Flight Recorder for gloo")
    # Given three ranks, of which the last never comes to an all-reduce
    run = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(JOB)]
    collected = ["run", "--run-dir", str(run), "--window-steps", "0", "--no-verdict", "--", *torchrun]
    job = subprocess.Popen([sys.executable, "-m", "rankscope", *collected], stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(list(run.glob("attempts/000/ranks/*/steps-*"))) >= 3, process=job)

        # when dumps are requested, late enough that no rank can still be on its way
        def hanging() -> Any:
            assert cli("capture", run, "--flight-recorder", "--wait", "60").returncode == 0
            report = json.loads(cli("hang", run, "--format", "json").stdout)
            return report if report["kind"] == "hang" else None

        time.sleep(10)
        report = wait_until(hanging, poll_s=10)
        # then the last rank is named, with the collective that the others wait in, and its call in the script
        assert (report["cause"], report["culprits"]) == ("not_arrived", [2]), report
        assert report["collective"]["op"] == "all_reduce"
        assert any("hung.py" in frame for frame in report["collective"]["frames"])
        assert [row["rank"] for row in report["waiting"]] == [0, 1]
        assert all(row["waited_s"] >= 5 for row in report["waiting"])
        assert report["coverage"] == 1.0
        # and it is the verdict on the run
        verdict = json.loads(cli("analyze", run, "--format", "json").stdout)["verdict"]
        assert (verdict["kind"], verdict["ranks"]) == ("hang", [2])
    finally:
        job.send_signal(signal.SIGTERM)
        job.communicate()
