"""Capture requests to a live run, against ranks simulated by the test, which write the same files as real ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.played_ranks import FIRST, accept, append, breakdown, end, job, profile, rank_info, two_ranks

from rankscope.cli.live import capture as capture_module
from rankscope.cli.live import capture_request, live_run, standstill
from rankscope.cli.live.capture import capture
from rankscope.runs.control import ControlAnswer, ControlRequest, answer
from rankscope.runs.paths import attempt_dir, flight_dir, rank_dir
from rankscope.runs.records import AttemptInfo, RunInfo, StepRecord
from rankscope.runs.small_files import create_attempt, create_run, write_record

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command in this process, with short waits."""
    monkeypatch.setattr(capture_request, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(live_run, "POLL_SECONDS", 0.02)
    return cli


class Clock:
    """Clock that stands still for the command until the job has served its request."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs = threading.Event()
        self.time, self.time_ns = time.time, time.time_ns

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if self.runs.wait(0.02):
            self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The command's clock, controlled by the test."""
    made = Clock()
    for module in (capture_module, capture_request, live_run, standstill):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Run of two ranks that train."""
    return two_ranks(tmp_path / "run")


def leftovers(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "control").iterdir())


def test_what_the_profiled_steps_show_is_printed(run: Path, cli: Cli) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        profile(run, 0, request.steps)
        profile(run, 1, request.steps)

    with job(run, serve) as seen:
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


def test_a_late_rank_is_named_from_the_captured_steps_alone(run: Path, cli: Cli) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        profile(run, 0, request.steps)
        profile(run, 1, request.steps)

    # given a profile of another step, too, with other results
    append(run, 0, "windows", breakdown(20, compute_us=9e5, idle_us=-3e5))
    with job(run, serve):
        completed = cli("capture", run, "--wait", "60", "--format", "json")
    report = json.loads(completed.stdout)
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


def starting(run: Path) -> Path:
    """Make the run one of which only rank 1 has appeared, a moment ago."""
    (rank_dir(run, 0, 0) / "rank.json").unlink()
    write_record(rank_dir(run, 0, 1) / "rank.json", replace(rank_info(1), start_unix_ns=time.time_ns()))
    return run


def serve_all(run: Path, request: ControlRequest) -> None:
    accept(run, request)
    profile(run, 0, request.steps)
    profile(run, 1, request.steps)


@pytest.mark.parametrize("chosen", [[], ["--ranks", "0-1"]])
def test_ranks_that_appear_a_moment_later_are_asked_too(
    run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, chosen: list[str]
) -> None:
    # given a job whose first step is not written yet, and of which rank 0 appears only while the command waits for it
    starting(run)
    for path in attempt_dir(run, 0).rglob("steps-*"):
        path.unlink()

    def print_progress(line: str) -> None:
        collected.append(line)
        if "rank 0" in line:
            write_record(rank_dir(run, 0, 0) / "rank.json", rank_info(0))

    collected: list[str] = []
    monkeypatch.setattr(live_run, "print_progress", print_progress)
    with job(run, serve_all):
        completed = cli("capture", run, *chosen, "--wait", "1000", "--format", "json")
    # then both are asked
    assert completed.returncode == 0, completed.stderr
    assert len(collected) == 1
    assert "asked for 3 steps of ranks 0, 1" in completed.stderr
    report = json.loads(completed.stdout)
    assert (report["ranks"], report["missing"]) == ([0, 1], [])


@pytest.mark.parametrize("what", ["profile", "dump"])
def test_a_rank_that_does_not_appear_is_missing_and_the_others_are_asked(
    run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(live_run, "JOIN_SECONDS", 0.2)
    starting(run)

    def serve(run: Path, request: ControlRequest) -> None:
        if request.kind == "capture":
            accept(run, request)
            profile(run, 1, request.steps)
        else:
            answer(run, ControlAnswer(id=request.id, accepted=True, answered_unix_ns=1), rank=1)

    with job(run, serve):
        completed = cli("capture", run, "--wait", "1000", "--format", "json", *(["--flight-recorder"] if what == "dump" else []))
    assert completed.returncode == 1
    assert "rank 0 of this job: still no record" in completed.stderr
    report = json.loads(completed.stdout)
    assert [(row["rank"], "no record" in row["reason"]) for row in report["missing"]] == [(0, True)]
    if what == "profile":
        assert (report["ranks"], report["accepted"]) == ([1], True)
        assert "no record" in report["reason"]


def test_a_rank_that_has_been_absent_for_long_is_not_waited_for(run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a job that has trained since 1970 without rank 0
    monkeypatch.setattr(live_run, "JOIN_SECONDS", 1e9)
    (rank_dir(run, 0, 0) / "rank.json").unlink()
    monkeypatch.setattr(live_run, "poll", lambda *_, **__: pytest.fail("it waits"))
    with job(run, serve_all):
        completed = cli("capture", run, "--wait", "1000", "--format", "json")
    assert completed.returncode == 1
    assert [row["rank"] for row in json.loads(completed.stdout)["missing"]] == [0]
    # and named alone, it is an error that says why
    completed = cli("capture", run, "--ranks", "0")
    assert completed.returncode == 2
    assert "rank 0 has left no record yet" in completed.stderr


def test_a_job_that_ends_while_its_ranks_appear_is_over(run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    starting(run)

    def print_progress(_line: str) -> None:
        end(run, 0)
        end(run, 1)

    monkeypatch.setattr(live_run, "print_progress", print_progress)
    completed = cli("capture", run, "--wait", "1000")
    assert completed.returncode == 3
    assert "the run is over" in completed.stderr


def test_only_the_named_ranks_are_waited_for(run: Path, cli: Cli) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        profile(run, 1, request.steps)

    with job(run, serve) as seen:
        completed = cli("capture", run, "--ranks", "1", "--keep-trace", "--wait", "60", "--format", "json")
    assert seen[0].ranks == [1]
    assert seen[0].keep_trace
    assert completed.returncode == 0
    assert json.loads(completed.stdout)["ranks"] == [1]


def test_traces_that_were_kept_are_named(run: Path, cli: Cli) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        for rank in (0, 1):
            traces = rank_dir(run, 0, rank) / "traces"
            traces.mkdir()
            (traces / f"window-{FIRST:09d}.json.gz").touch()
            (traces / "window-000000020.json.gz").touch()
            profile(run, rank, request.steps)

    with job(run, serve):
        completed = cli("capture", run, "--keep-trace", "--wait", "60", "--format", "json")
    expected = [f"attempts/000/ranks/0000{rank}/traces/window-000000070.json.gz" for rank in (0, 1)]
    assert json.loads(completed.stdout)["traces"] == expected


def test_a_refusal_says_why_and_is_status_1(run: Path, cli: Cli) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        no = ControlAnswer(id=request.id, accepted=False, reason="there was\x1b[31m another", answered_unix_ns=1)
        answer(run, no)

    with job(run, serve):
        completed = cli("capture", run, "--wait", "60", "--format", "json")
    assert completed.returncode == 1
    assert "refused: there was" in completed.stderr
    assert "\x1b" not in completed.stderr + completed.stdout
    assert json.loads(completed.stdout)["accepted"] is False


def test_no_answer_in_time_is_status_1_and_the_request_is_taken_back(run: Path, cli: Cli) -> None:
    completed = cli("capture", run, "--wait", "0.2", "--format", "json")
    assert completed.returncode == 1
    assert "no answer" in completed.stderr
    assert json.loads(completed.stdout)["accepted"] is None
    assert leftovers(run) == []


def test_a_job_that_makes_no_step_is_said_to_and_what_to_ask_it_instead(run: Path, cli: Cli) -> None:
    # given ranks of steps of 0.1 s, and no answer for half a second
    completed = cli("capture", run, "--wait", "0.5", "--format", "json")
    # then the message says more than that
    assert completed.returncode == 1
    (text,) = (line for line in completed.stderr.splitlines() if "no answer" in line)
    assert "no rank has finished a step in the " in text
    assert "rank 0's last is step 60; its steps took 0.1 s before" in text
    assert f"`rankscope capture {run} --flight-recorder`" in text
    assert text.endswith(json.loads(completed.stdout)["reason"])


def test_a_job_that_accepts_and_then_hangs_is_reported(run: Path, cli: Cli, clock: Clock) -> None:
    # given a job of which only rank 1 makes another step after it has accepted
    def serve(run: Path, request: ControlRequest) -> None:
        append(run, 1, "steps", StepRecord(step=61, start_unix_ns=1, wall_us=1e5))
        accept(run, request)
        clock.runs.set()

    with job(run, serve):
        completed = cli("capture", run, "--wait", "1", "--format", "json")
    report = json.loads(completed.stdout)
    assert (completed.returncode, report["accepted"], len(report["missing"])) == (1, True, 2)
    assert "none of the steps was profiled in time" in report["reason"]
    assert ": rank 0 has not finished a step in the " in report["reason"]
    assert "--flight-recorder" in report["reason"]


def test_who_waits_for_less_than_a_few_steps_does_not_hear_of_a_hang(run: Path, cli: Cli) -> None:
    for rank in (0, 1):
        append(run, rank, "steps", StepRecord(step=61, start_unix_ns=1, wall_us=90e6))
    completed = cli("capture", run, "--wait", "0.2")
    assert "no rank has finished a step" in completed.stderr
    assert "its steps took 90 s before" in completed.stderr
    assert "--wait" in completed.stderr
    assert "--flight-recorder" not in completed.stderr


def test_of_a_job_that_makes_steps_nobody_says_that_it_stands_still(run: Path, cli: Cli, clock: Clock) -> None:
    def serve(run: Path, _request: ControlRequest) -> None:
        for rank in (0, 1):
            append(run, rank, "steps", StepRecord(step=61, start_unix_ns=1, wall_us=1e5))
        clock.runs.set()

    with job(run, serve):
        completed = cli("capture", run, "--wait", "1")
    assert completed.returncode == 1
    assert "no answer: the job records no profiles, or the clocks" in completed.stderr


def test_what_is_missing_is_named_and_what_is_there_is_shown(run: Path, cli: Cli) -> None:
    # given a rank that is killed before it has profiled anything
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        profile(run, 0, request.steps)
        end(run, 1)

    with job(run, serve):
        completed = cli("capture", run, "--wait", "60", "--format", "json")
    assert completed.returncode == 1
    report = json.loads(completed.stdout)
    assert report["ranks"] == [0]
    assert [(row["rank"], "killed" in row["reason"]) for row in report["missing"]] == [(1, True)]
    assert report["analysis"]["ranks"][0]["window_us"] == 3e6
    assert report["analysis"]["ranks"][1]["window_us"] is None
    assert report["analysis"]["verdict"]["kind"] == "insufficient_data"
    assert "rank 1 has no profile of these steps" in report["analysis"]["source"]["warnings"]


@pytest.mark.parametrize("seen_by", ["its steps", "later windows"])
def test_a_rank_that_leaves_the_steps_out_is_not_waited_for(run: Path, cli: Cli, seen_by: str) -> None:
    # given a rank that makes the steps without the profiler, or loses their profile and continues to the next
    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        profile(run, 0, request.steps)
        by_steps = seen_by == "its steps"
        made = (StepRecord(step=step, start_unix_ns=1, wall_us=1e5, profiled=not by_steps) for step in range(61, 80))
        append(run, 1, "steps", *made)
        if not by_steps:
            append(run, 1, "windows", breakdown(90))

    with job(run, serve):
        completed = cli("capture", run, "--wait", "1000", "--format", "json")
    # then the available profiles are shown, and the missing ones with the place to look
    assert completed.returncode == 1
    report = json.loads(completed.stdout)
    assert report["ranks"] == [0]
    (missing,) = report["missing"]
    assert missing["rank"] == 1
    assert "it left the window out, and the job's stderr says why" in missing["reason"]
    assert report["analysis"]["ranks"][0]["window_us"] == 3e6


@pytest.mark.parametrize(("first", "last"), [(0, 2**62), (5, 4), (None, 3)])
def test_an_answer_that_makes_no_sense_neither_hangs_nor_counts(run: Path, cli: Cli, first: int | None, last: int) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        answer(run, ControlAnswer(id=request.id, accepted=True, first_step=first, last_step=last, answered_unix_ns=1))

    with job(run, serve):
        completed = cli("capture", run, "--wait", "60")
    assert completed.returncode == 1
    assert "no sense" in completed.stderr


def test_a_job_that_ends_instead_of_answering_is_not_waited_for(run: Path, cli: Cli) -> None:
    def serve(run: Path, _request: ControlRequest) -> None:
        end(run, 0)
        end(run, 1)

    with job(run, serve):
        completed = cli("capture", run, "--wait", "1000")
    assert completed.returncode == 1
    assert "the job ended" in completed.stderr


def test_a_run_that_is_over_or_hangs_or_has_not_begun_is_status_3(run: Path, cli: Cli, tmp_path: Path) -> None:
    for rank in (0, 1):
        for path in rank_dir(run, 0, rank).glob("steps-*"):
            os.utime(path, (time.time() - 3600,) * 2)
    completed = cli("capture", run)
    assert completed.returncode == 3
    assert "hangs" in completed.stderr
    assert "--flight-recorder" in completed.stderr
    end(run, 0)
    end(run, 1)
    for option in ([], ["--flight-recorder"]):
        completed = cli("capture", run, *option)
        assert completed.returncode == 3
        assert "the run is over (rank 0: killed, rank 1: killed)" in completed.stderr
    assert not (run / "control").exists()
    create_run(tmp_path / "new", RunInfo(run_id="r2", name="test", start_unix_ns=1))
    completed = cli("capture", tmp_path / "new")
    assert completed.returncode == 3
    assert "nothing has been recorded yet" in completed.stderr
    completed = cli("capture", tmp_path / "nowhere")
    assert completed.returncode == 3
    assert completed.stderr.count("\n") == 1


@pytest.mark.parametrize("ranks", ["", "a", "1-0", "0,,1", "-1", "0-99999999", "1.5"])
def test_ranks_that_are_none_are_a_usage_error(run: Path, cli: Cli, ranks: str) -> None:
    completed = cli("capture", run, "--ranks", ranks)
    assert completed.returncode == 2
    assert not (run / "control").exists()


def test_ranks_that_are_not_there_are_a_usage_error(run: Path, cli: Cli) -> None:
    end(run, 1)
    for rank, why in (("1", "has ended"), ("7", "is not in this run")):
        completed = cli("capture", run, "--ranks", rank)
        assert completed.returncode == 2
        assert why in completed.stderr


def test_ranks_and_ranges_are_understood() -> None:
    kind = next(option.type for option in capture.params if option.name == "ranks")
    assert kind.convert("5, 0,2-4,3", None, None) == [0, 2, 3, 4, 5]


def test_where_one_may_not_write_one_may_not_ask(run: Path, cli: Cli) -> None:
    # given a run whose control folder is no folder
    (run / "control").write_text("")
    completed = cli("capture", run)
    assert completed.returncode == 3
    assert "cannot write a request here" in completed.stderr


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(run: Path) -> None:
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


def test_flight_recorder_dumps_are_named_and_what_is_missing_too(run: Path, cli: Cli) -> None:
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

    with job(run, serve) as seen:
        completed = cli("capture", run, "--flight-recorder", "--wait", "60", "--format", "json")
    assert completed.returncode == 1
    report = json.loads(completed.stdout)
    name = f"rank-00000-{seen[0].id}-gloo.pickle"
    assert report["dumps"] == [{"rank": 0, "host": "node0", "path": f"attempts/000/flight/{name}"}]
    assert report["missing"] == [{"rank": 1, "reason": "it is stuck"}]


def test_one_rank_may_refuse_a_dump_for_all(run: Path, cli: Cli) -> None:
    # given ranks of which the first answers that it was too early, and the other does not answer
    def serve(run: Path, request: ControlRequest) -> None:
        answer(run, ControlAnswer(id=request.id, accepted=False, reason="too early", answered_unix_ns=1))

    with job(run, serve):
        completed = cli("capture", run, "--flight-recorder", "--wait", "1000", "--format", "json")
    assert completed.returncode == 1
    assert json.loads(completed.stdout)["missing"] == [{"rank": rank, "reason": "too early"} for rank in (0, 1)]


def start_anew(run: Path, *, unix_ns: int = 1) -> None:
    """Start attempt 1, with the same ranks and a third."""
    create_attempt(run, AttemptInfo(attempt=1, start_unix_ns=unix_ns, world_size=3))
    for rank in (0, 1, 2):
        write_record(rank_dir(run, 1, rank) / "rank.json", rank_info(rank, attempt=1))
        append(run, rank, "steps", StepRecord(step=60, start_unix_ns=1, wall_us=1e5), attempt=1)


def test_the_attempt_that_answers_is_the_one_that_is_waited_for(run: Path, cli: Cli) -> None:
    # given a job that is started again after the command has listed its ranks
    def serve(run: Path, request: ControlRequest) -> None:
        start_anew(run)
        for rank in (0, 1, 2):
            append(run, rank, "windows", *(breakdown(step) for step in range(FIRST, FIRST + request.steps)), attempt=1)
        accept(run, request, attempt=1)
        # Last: if the old attempt were over without an answer, the command would stop waiting.
        end(run, 0)
        end(run, 1)

    with job(run, serve):
        completed = cli("capture", run, "--wait", "60", "--format", "json")
    # then its ranks' profiles are the answer, and the output says so
    assert completed.returncode == 0, completed.stderr
    assert "attempt 1 answers, not 0" in completed.stderr
    report = json.loads(completed.stdout)
    assert (report["attempt"], report["ranks"], report["missing"]) == (1, [0, 1, 2], [])


def test_dumps_of_another_attempt_than_that_asked_are_found(run: Path, cli: Cli) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        start_anew(run)
        flight_dir(run, 1).mkdir()
        for rank in (0, 1, 2):
            (flight_dir(run, 1) / f"rank-{rank:05d}-{request.id}-gloo.pickle").touch()
            answer(run, ControlAnswer(id=request.id, accepted=True, attempt=1, answered_unix_ns=1), rank=rank)

    with job(run, serve):
        completed = cli("capture", run, "--flight-recorder", "--wait", "60", "--format", "json")
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout)
    assert (report["attempt"], [row["rank"] for row in report["dumps"]]) == (1, [0, 1, 2])


def test_an_attempt_that_is_none_is_not_followed(run: Path, cli: Cli) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        for rank in (0, 1):
            profile(run, rank, request.steps)
        accept(run, request, attempt=7)

    with job(run, serve):
        completed = cli("capture", run, "--wait", "60", "--format", "json")
    assert json.loads(completed.stdout)["attempt"] == 0


def test_an_attempt_that_began_after_the_request_is_not_waited_for(run: Path, cli: Cli) -> None:
    def serve(run: Path, _request: ControlRequest) -> None:
        start_anew(run, unix_ns=time.time_ns())
        end(run, 0)
        end(run, 1)

    with job(run, serve):
        completed = cli("capture", run, "--wait", "1000")
    assert completed.returncode == 1
    assert "started anew" in completed.stderr


def test_how_long_to_wait_is_a_number(cli: Cli, run: Path) -> None:
    completed = cli("capture", run, "--wait", "nan")
    assert completed.returncode == 2
    assert "'nan' is no number" in completed.stderr


def test_a_request_that_was_settled_before_is_asked_once(run: Path, cli: Cli) -> None:
    # A request is valid for some minutes: made here, as a slow suite may come here long after this file was loaded.
    request_id = f"{time.time_ns():019d}-0123abcd"

    def serve(run: Path, request: ControlRequest) -> None:
        accept(run, request)
        profile(run, 0, request.steps)
        profile(run, 1, request.steps)

    # given a client with its own request id, which is ended and requests again
    asked = ("capture", run, "--request", request_id, "--wait", "60", "--format", "json")
    with job(run, serve) as seen:
        first = json.loads(cli(*asked).stdout)
        again = json.loads(cli(*asked).stdout)
        # also when the job has ended meanwhile
        end(run, 0)
        end(run, 1)
        last = cli(*asked)
    # then the job did it once, and the answer is the same
    assert [request.id for request in seen] == [request_id]
    assert first["request"] == request_id
    assert first == again
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout)["analysis"]["verdict"] == first["analysis"]["verdict"]


def test_an_id_that_is_none_is_a_usage_error(run: Path, cli: Cli) -> None:
    assert cli("capture", run, "--request", "../../etc/passwd").returncode == 2
    assert not (run / "control").exists()


def test_nothing_is_asked_through_a_link(run: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / "control").symlink_to(tmp_path / "elsewhere")
    completed = cli("capture", run, "--wait", "1")
    assert completed.returncode == 3
    assert "a symbolic link" in completed.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []
