"""``rankscope hang`` with NCCL RAS: a live job alone, a run with its dumps, answers kept in a run."""

from __future__ import annotations

import json
import os
import pickle
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.json_reports import json_report
from tests.command_line import Cli, one_line_error
from tests.dumped_job import DumpedJob
from tests.flight_dump_files import SECOND, START_NS, write
from tests.ras_server import Comm, Speak, answer, listening, ras, text_answer

from rankscope.runs.paths import flight_dir, rank_dir
from rankscope.runs.ras import RasAnswer, keep_answer
from rankscope.runs.records import AttemptInfo, RankInfo, RunInfo
from rankscope.runs.small_files import create_attempt, create_run, write_record

LATE = answer(Comm({0: 42, 1: 42, 2: 41, 3: 42}))
GONE = answer(Comm({0: 42, 1: 42, 3: 42}, unresponsive=[2]))
WORLD = {"0": (0, 1, 2, 3)}


def recorded(folder: Path, *, here: bool = False, backend: str = "nccl") -> Path:
    """Write a run of four ranks; ``here``: the first is this process, with the process id that NCCL RAS has of it."""
    create_run(folder, RunInfo(run_id="r1", name="test", start_unix_ns=1))
    create_attempt(folder, AttemptInfo(attempt=0, start_unix_ns=1, world_size=4, backend=backend))
    for rank in range(4):
        pid, host = (os.getpid(), socket.gethostname()) if here and rank == 0 else (1000 + rank, f"node{rank}")
        info = RankInfo(rank=rank, world_size=4, host=host, pid=pid, start_unix_ns=1)
        write_record(rank_dir(folder, 0, rank) / "rank.json", info)
    return folder


def dump(run: Path, *, ranks: tuple[int, ...] = (0, 1, 2, 3), stops: dict[int, int] | None = None) -> None:
    """Write dumps into the run; by default of a hang for which rank 2 is to blame."""
    flight_dir(run, 0).mkdir()
    dumps = DumpedJob.of_events(WORLD, ["0"] * 3, stops={2: 1} if stops is None else stops).dumps()
    for rank in ranks:
        path = flight_dir(run, 0) / f"rank-{rank:05d}-watchdog-nccl.pickle"
        path.write_bytes(pickle.dumps(dumps[rank], 2))
        os.utime(path, ns=(START_NS + 211 * SECOND,) * 2)


def asked(cli: Cli, *args: str | Path, env: dict[str, str] | None = None) -> dict[str, Any]:
    report: dict[str, Any] = json_report(cli, "hang", *args, "--wait", "0", env=env)
    return report


def test_ras_of_the_local_job_is_queried_by_default(cli: Cli) -> None:
    with listening(ras(LATE)) as address:
        report = asked(cli, env={"NCCL_RAS_ADDR": address})
    assert (report["kind"], report["cause"], report["culprits"]) == ("hang", "not_arrived", [2])
    assert (report["ras"]["live"], report["ras"]["answers"], report["ras"]["moved"]) == (True, 2, False)
    assert (report["ranks"], report["world_size"], report["coverage"]) == (0, 4, None)
    assert [(row["rank"], row["certain"]) for row in report["evidence"]] == [(2, False)]
    assert any("capture" in row for row in report["next"])
    assert any("process 1002" in row and "py-spy" in row for row in report["next"])


def test_text_names_rank_process_and_limits_of_ras(cli: Cli) -> None:
    with listening(ras(LATE)) as address:
        completed = cli("hang", "--ras", address, "--wait", "0", env={"COLUMNS": "80"})
    assert completed.stdout.startswith("HANG\nRank 2 has not launched AllReduce 42")
    assert f"NCCL 2.28.9 on {address}" in completed.stdout
    assert "process 1002 on 10.0.0.0" in completed.stdout.replace("\n", " ").replace("  ", " ")
    assert "sends and receives" in completed.stdout.replace("\n  ", " ")
    assert [line for line in completed.stdout.splitlines() if len(line) > 80] == []


def test_nccl_without_json_support_is_queried_in_text(cli: Cli) -> None:
    row = "      0         1         1         8         8         8   RUNNING      OK\n"
    with listening(ras(text_answer(row), has_json=False)) as address:
        report = asked(cli, "--ras", address)
    assert (report["kind"], report["ras"]["format"], report["ras"]["moved"]) == ("insufficient_data", "text", None)


def test_fail_on_sets_the_exit_status_for_ras_answers(cli: Cli) -> None:
    with listening(ras(LATE)) as address:
        assert cli("hang", "--ras", address, "--wait", "0", "--fail-on", "hang").returncode == 1
    with listening(ras(answer(Comm({0: 1, 1: 1})), answer(Comm({0: 2, 1: 1})))) as address:
        completed = cli("hang", "--ras", address, "--wait", "0", "--fail-on", "hang")
    assert (completed.returncode, completed.stdout.splitlines()[0]) == (0, "NO HANG")
    assert cli("hang", "--ras", "nowhere").returncode == 2


def hostile(connection: socket.socket) -> None:
    connection.recv(1024)
    connection.sendall(b"\x1b[2J\n")


@pytest.mark.parametrize(("speak", "reason"), [(hostile, "not NCCL RAS"), (ras(LATE[:-100]), "cut off"), (ras(b"{}"), "cut off")])
def test_invalid_ras_answer_is_a_one_line_error_with_status_3(cli: Cli, speak: Speak, reason: str) -> None:
    with listening(speak) as address:
        completed = cli("hang", "--ras", address, "--wait", "0")
    assert address in one_line_error(completed)
    assert reason in completed.stderr
    assert "\x1b" not in completed.stderr


def test_no_ras_listener_is_reported_with_status_3(cli: Cli) -> None:
    completed = cli("hang", env={"NCCL_RAS_ADDR": "127.0.0.1:1"})
    assert "nothing listens" in one_line_error(completed)
    assert "127.0.0.1:1" in completed.stderr


def test_names_from_a_ras_answer_are_escaped(cli: Cli) -> None:
    document = json.loads(GONE)
    document["communicators"][0]["missing_ranks"][0]["host"] = "\x1b[2J\u202e"
    document["nccl_version"] = "\x1b[2J"
    with listening(ras(json.dumps(document).encode())) as address:
        completed = cli("hang", "--ras", address, "--wait", "0")
    assert (completed.returncode, completed.stdout.splitlines()[0]) == (0, "HANG")
    assert "\x1b" not in completed.stdout
    assert "\u202e" not in completed.stdout


def test_dumps_identify_the_collective_and_ras_confirms_the_rank(cli: Cli, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    dump(run)
    with listening(ras(LATE)) as address:
        report = asked(cli, run, "--ras", address)
        text = cli("hang", run, "--ras", address, "--wait", "0").stdout
    assert (report["culprits"], report["collective"]["sequence"], report["ras"]["culprits"]) == ([2], 2, [2])
    assert report["evidence"][0]["certain"] is True
    assert [row["rank"] for row in report["waiting"]] == [0, 1, 3]
    assert "NCCL RAS" in text


def test_ras_identifies_the_rank_without_a_dump_and_dumps_the_call(cli: Cli, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    dump(run, ranks=(0, 1, 3))
    assert asked(cli, run)["cause"] == "no_dump"
    with listening(ras(GONE)) as address:
        report = asked(cli, run, "--ras", address)
    assert (report["cause"], report["culprits"], report["suspects"]) == ("unreachable", [2], [])
    assert report["collective"]["op"] == "all_reduce"
    assert "all_reduce 2 of group 0" in report["summary"]
    assert (report["evidence"][0]["host"], report["evidence"][0]["certain"]) == ("node2", True)


def test_ranks_named_only_by_ras_are_warnings_and_moving_job_is_no_hang(cli: Cli, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    dump(run)
    with listening(ras(answer(Comm({0: 41, 1: 42, 2: 42, 3: 42})))) as address:
        report = asked(cli, run, "--ras", address)
    assert report["culprits"] == [2]
    assert any("Rank 0" in row for row in report["warnings"])
    with listening(ras(LATE, answer(Comm(dict.fromkeys(range(4), 43))))) as address:
        report = asked(cli, run, "--ras", address)
    assert (report["kind"], report["culprits"], report["evidence"]) == ("no_hang", [], [])
    assert any("Rank 2 did not arrive" in row for row in report["warnings"])


def test_ras_is_queried_only_for_nccl_jobs_on_this_host(cli: Cli, tmp_path: Path) -> None:
    document = json.loads(LATE)
    document["communicators"][0]["ranks"][0]["pid"] = os.getpid()
    with listening(ras(json.dumps(document).encode())) as address:
        env = {"NCCL_RAS_ADDR": address}
        report = asked(cli, recorded(tmp_path / "here", here=True), env=env)
        assert (report["culprits"], report["path"]) == ([2], str(tmp_path / "here"))
        for run in (recorded(tmp_path / "elsewhere"), recorded(tmp_path / "gloo", here=True, backend="gloo")):
            completed = cli("hang", run, "--wait", "0", env=env)
            assert (completed.returncode, "no Flight Recorder dumps" in completed.stderr) == (3, True)


def test_ras_answer_of_another_job_is_ignored(cli: Cli, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", here=True)
    theirs = json.loads(LATE)
    for row in theirs["communicators"][0]["ranks"]:
        row["pid"] += 5_000_000
    with listening(ras(json.dumps(theirs).encode())) as address:
        completed = cli("hang", run, "--ras", address, "--wait", "0")
        assert (completed.returncode, "another job" in completed.stderr) == (3, True)
        dump(run)
        answer = asked(cli, run, "--ras", address)
    assert (answer["culprits"], answer["ras"]) == ([2], None)
    assert any("another job" in row for row in answer["warnings"])


def test_run_without_ras_answer_is_judged_by_dumps_with_a_warning(cli: Cli, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", here=True)
    completed = cli("hang", run, env={"NCCL_RAS_ADDR": "127.0.0.1:1"})
    assert "nothing listens" in one_line_error(completed)
    dump(run)
    report = asked(cli, run, env={"NCCL_RAS_ADDR": "127.0.0.1:1"})
    assert (report["culprits"], report["ras"]) == ([2], None)
    assert any("nothing listens" in row for row in report["warnings"])


def test_stored_ras_answers_are_used_after_the_job_ended(cli: Cli, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    assert cli("hang", run).returncode == 3
    now = time.time_ns()
    keep(run, GONE, now - 100 * 10**9)
    keep(run, LATE, now)
    # One answer proves nothing: the other is too old
    report = asked(cli, run)
    assert (report["kind"], report["suspects"], report["ras"]["answers"]) == ("insufficient_data", [2], 1)
    keep(run, LATE, now + 5 * 10**9)
    report = asked(cli, run)
    assert (report["kind"], report["culprits"], report["ras"]["live"]) == ("hang", [2], False)
    assert report["evidence"][0]["host"] == "node2"
    keep(run, b"{", now + 6 * 10**9)
    completed = cli("hang", run)
    assert (completed.returncode, len(completed.stderr.splitlines())) == (3, 1)
    dump(run)
    assert any("cut off" in row for row in asked(cli, run)["warnings"])


def keep(run: Path, data: bytes, asked_unix_ns: int) -> None:
    given = RasAnswer(address="localhost:28028", asked_unix_ns=asked_unix_ns, protocol=2, format="json", text=data.decode())
    keep_answer(run, 0, given)


def test_plain_dumps_are_combined_only_with_an_explicit_ras_address(cli: Cli, tmp_path: Path) -> None:
    dumps = write(tmp_path / "dumps", DumpedJob.of_events(WORLD, ["0"] * 3, stops={2: 1}).dumps())
    with listening(ras(LATE)) as address:
        assert asked(cli, dumps, env={"NCCL_RAS_ADDR": address})["ras"] is None
        assert asked(cli, dumps, "--ras", address)["ras"]["culprits"] == [2]
