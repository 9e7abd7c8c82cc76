"""Capture requests to a live run, against ranks simulated by the test, which write the same files as real ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.live.conftest import Ask
from tests.command_line import Cli
from tests.played_ranks import FIRST, accept, append, breakdown, end, job, profile, serve_all

from rankscope.cli.live.capture import capture
from rankscope.runs.control import ControlAnswer, ControlRequest, answer
from rankscope.runs.paths import attempt_dir, flight_dir, rank_dir
from rankscope.runs.records import StepRecord


def leftovers(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "control").iterdir())


def test_capture_prints_the_analysis_of_the_profiled_steps(run: Path, cli: Cli) -> None:
    with job(run, serve_all) as seen:
        completed = cli("capture", run, "--steps", "2", "--note", "slow since noon", "--wait", "60")
    # then the request contains the options
    assert [(request.kind, request.steps, request.ranks, request.keep_trace) for request in seen] == [("capture", 2, None, False)]
    assert seen[0].note == "slow since noon"
    # and the output shows those steps, and the late rank in them
    assert completed.returncode == 0, completed.stderr
    assert "steps 70 to 71" in completed.stderr
    for heading in ("compute", "overlap", "exposed", "idle", "hidden"):
        assert heading in completed.stdout
    assert "40.0%" in completed.stdout  # compute of the window
    # the verdict on the run is first
    assert re.match(r"THE RUN SO FAR: [A-Z ]+\n.+\n\nWHAT THE WINDOW ADDS \(steps 70 to 71\)\n", completed.stdout, re.DOTALL)


def test_late_rank_is_identified_from_the_captured_steps_alone(run: Path, ask: Ask) -> None:
    # given a profile of another step, too, with other results
    append(run, 0, "windows", breakdown(20, compute_us=9e5, idle_us=-3e5))
    _, report = ask(serve_all)
    assert (report["schema"], report["kind"], report["accepted"]) == ("rankscope.capture/1", "capture", True)
    assert (report["first_step"], report["last_step"], report["ranks"], report["missing"]) == (70, 72, [0, 1], [])
    analysis = report["analysis"]
    for row in analysis["ranks"]:
        assert (row["window_us"], row["compute_us"], row["overlap_ratio"], row["steps"]) == (3e6, 1.2e6, 0.2, 3)
    assert (analysis["verdict"]["kind"], analysis["verdict"]["rank"]) == ("straggler", 1)
    assert analysis["verdict"]["evidence_source"] == "windows"
    assert analysis["verdict"]["steps"] == [70, 73]
    assert analysis["source"]["coverage"] == 1.0
    assert report["run_verdict"]["summary"]
    # ten collectives a step, 40 ms each
    assert analysis["imposed_wait"][0] == {"rank": 1, "imposed_us": 1_200_000, "imposed_exposed_us": 1_200_000, "share": 1.0}


def test_capture_waits_only_for_the_chosen_ranks(run: Path, ask: Ask) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        profile(run, 1, request.steps)

    completed, report = ask(serve, "--ranks", "1", "--keep-trace")
    assert ask.requests[0].ranks == [1]
    assert ask.requests[0].keep_trace
    assert completed.returncode == 0
    assert report["ranks"] == [1]


def test_kept_traces_of_the_window_are_listed(run: Path, ask: Ask) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        for rank in (0, 1):
            traces = rank_dir(run, 0, rank) / "traces"
            traces.mkdir()
            (traces / f"window-{FIRST:09d}.json.gz").touch()
            (traces / "window-000000020.json.gz").touch()
            profile(run, rank, request.steps)

    _, report = ask(serve, "--keep-trace")
    expected = [f"attempts/000/ranks/0000{rank}/traces/window-000000070.json.gz" for rank in (0, 1)]
    assert report["traces"] == expected


def test_refused_capture_reports_the_reason_with_status_1(run: Path, ask: Ask) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        no = ControlAnswer(id=request.id, accepted=False, reason="there was\x1b[31m another", answered_unix_ns=1)
        answer(run, no)

    completed, report = ask(serve)
    assert completed.returncode == 1
    assert "refused: there was" in completed.stderr
    assert "\x1b" not in completed.stderr + completed.stdout
    assert report["accepted"] is False


def test_timeout_is_status_1_and_withdraws_the_request(run: Path, cli: Cli) -> None:
    completed = cli("capture", run, "--wait", "0.2", "--format", "json")
    assert completed.returncode == 1
    assert "no answer" in completed.stderr
    assert json.loads(completed.stdout)["accepted"] is None
    assert leftovers(run) == []


def test_missing_ranks_are_named_and_available_profiles_shown(run: Path, ask: Ask) -> None:
    # given a rank that is killed before it has profiled anything
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        profile(run, 0, request.steps)
        end(run, 1)

    completed, report = ask(serve)
    assert completed.returncode == 1
    assert report["ranks"] == [0]
    assert [(row["rank"], "killed" in row["reason"]) for row in report["missing"]] == [(1, True)]
    assert report["analysis"]["ranks"][0]["window_us"] == 3e6
    assert report["analysis"]["ranks"][1]["window_us"] is None
    assert report["analysis"]["verdict"]["kind"] == "insufficient_data"
    assert "rank 1 has no profile of these steps" in report["analysis"]["source"]["warnings"]


@pytest.mark.parametrize("seen_by", ["its steps", "later windows"])
def test_rank_that_skipped_the_steps_is_not_waited_for(run: Path, ask: Ask, seen_by: str) -> None:
    # given a rank that makes the steps without the profiler, or loses their profile and continues to the next
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        profile(run, 0, request.steps)
        by_steps = seen_by == "its steps"
        made = (StepRecord(step=step, start_unix_ns=1, wall_us=1e5, profiled=not by_steps) for step in range(61, 80))
        append(run, 1, "steps", *made)
        if not by_steps:
            append(run, 1, "windows", breakdown(90))

    completed, report = ask(serve)
    # then the available profiles are shown, and the missing ones with the place to look
    assert completed.returncode == 1
    assert report["ranks"] == [0]
    (missing,) = report["missing"]
    assert missing["rank"] == 1
    assert "it left the window out, and the job's stderr says why" in missing["reason"]
    assert report["analysis"]["ranks"][0]["window_us"] == 3e6


@pytest.mark.parametrize(("first", "last"), [(0, 2**62), (5, 4), (None, 3)])
def test_invalid_answer_is_rejected_without_waiting(run: Path, cli: Cli, first: int | None, last: int) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        answer(run, ControlAnswer(id=request.id, accepted=True, first_step=first, last_step=last, answered_unix_ns=1))

    with job(run, serve):
        completed = cli("capture", run, "--wait", "60")
    assert completed.returncode == 1
    assert "no sense" in completed.stderr


@pytest.mark.parametrize("ranks", ["", "a", "1-0", "0,,1", "-1", "0-99999999", "1.5"])
def test_malformed_rank_list_is_a_usage_error(run: Path, cli: Cli, ranks: str) -> None:
    completed = cli("capture", run, "--ranks", ranks)
    assert completed.returncode == 2
    assert not (run / "control").exists()


def test_rank_list_accepts_numbers_and_ranges() -> None:
    kind = next(option.type for option in capture.params if option.name == "ranks")
    assert kind.convert("5, 0,2-4,3", None, None) == [0, 2, 3, 4, 5]


@pytest.mark.slow
def test_ctrl_c_withdraws_the_request(run: Path) -> None:
    command = [sys.executable, "-m", "rankscope", "capture", str(run), "--wait", "300"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stderr is not None
        asking.stderr.readline()  # it has posted the request
        assert len(leftovers(run)) == 1
        asking.send_signal(signal.SIGINT)
        output = asking.stderr.read()
        assert asking.wait(60) == 130
    assert "Traceback" not in output
    assert leftovers(run) == []


def test_flight_recorder_dumps_and_missing_ranks_are_listed(run: Path, ask: Ask) -> None:
    # given a job that hangs: no steps for an hour, rank 0 answers, rank 1 cannot
    for path in attempt_dir(run, 0).rglob("steps-*"):
        os.utime(path, (time.time() - 3600,) * 2)

    def serve(run: Path, request: ControlRequest) -> None:
        folder = flight_dir(run, 0)
        folder.mkdir()
        (folder / f"rank-00000-{request.id}-gloo.pickle").touch()
        (folder / "rank-00000-1111111111111111111-00000000-gloo.pickle").touch()
        answer(run, ControlAnswer(id=request.id, accepted=True, answered_unix_ns=1), rank=0)
        answer(run, ControlAnswer(id=request.id, accepted=False, reason="it is stuck", answered_unix_ns=1), rank=1)

    completed, report = ask(serve, "--flight-recorder")
    assert completed.returncode == 1
    name = f"rank-00000-{ask.requests[0].id}-gloo.pickle"
    assert report["dumps"] == [{"rank": 0, "host": "node0", "path": f"attempts/000/flight/{name}"}]
    assert report["missing"] == [{"rank": 1, "reason": "it is stuck"}]


def test_refusal_by_one_rank_counts_for_all_ranks(run: Path, ask: Ask) -> None:
    # given ranks of which the first answers that it was too early, and the other does not answer
    def serve(run: Path, request: ControlRequest) -> None:
        answer(run, ControlAnswer(id=request.id, accepted=False, reason="too early", answered_unix_ns=1))

    completed, report = ask(serve, "--flight-recorder")
    assert completed.returncode == 1
    assert report["missing"] == [{"rank": rank, "reason": "too early"} for rank in (0, 1)]


def test_wait_of_nan_is_a_usage_error(cli: Cli, run: Path) -> None:
    completed = cli("capture", run, "--wait", "nan")
    assert completed.returncode == 2
    assert "'nan' is no number" in completed.stderr


def test_repeated_request_id_is_served_once(run: Path, cli: Cli) -> None:
    # A request is valid for some minutes: made here, as a slow suite may come here long after this file was loaded.
    request_id = f"{time.time_ns():019d}-0123abcd"

    # given a client with its own request id, which is ended and requests again
    asked = ("capture", run, "--request", request_id, "--wait", "60", "--format", "json")
    with job(run, serve_all) as seen:
        first = json.loads(cli(*asked).stdout)
        again = json.loads(cli(*asked).stdout)
        # also when the job has ended meanwhile
        end(run, 0, 1)
        last = cli(*asked)
    # then the job did it once, and the answer is the same
    assert [request.id for request in seen] == [request_id]
    assert first["request"] == request_id
    assert first == again
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout)["analysis"]["verdict"] == first["analysis"]["verdict"]


def test_malformed_request_id_is_a_usage_error(run: Path, cli: Cli) -> None:
    assert cli("capture", run, "--request", "../../etc/passwd").returncode == 2
    assert not (run / "control").exists()
