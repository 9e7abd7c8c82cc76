"""Live ranks that appear later, stand still, end or are started anew; polling, and reading of new records only."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
from msgspec.structs import replace
from tests.cli.live.conftest import Ask
from tests.command_line import Cli, one_line_error
from tests.played_ranks import FIRST, accept, append, breakdown, end, job, profile, rank_info, serve_all

from rankscope.cli.live import capture as capture_module
from rankscope.cli.live import capture_request, live_run, standstill
from rankscope.cli.live.live_run import LiveRun
from rankscope.cli.live.profile_progress import ProfileProgress
from rankscope.runs.control import ControlAnswer, ControlRequest, answer
from rankscope.runs.paths import attempt_dir, flight_dir, rank_dir
from rankscope.runs.records import AttemptInfo, RunInfo, StepRecord
from rankscope.runs.segments import read_blocks
from rankscope.runs.small_files import create_attempt, create_run, write_record


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


def starting(run: Path) -> Path:
    """Make the run one of which only rank 1 has appeared, a moment ago."""
    (rank_dir(run, 0, 0) / "rank.json").unlink()
    write_record(rank_dir(run, 0, 1) / "rank.json", replace(rank_info(1), start_unix_ns=time.time_ns()))
    return run


@pytest.mark.parametrize("chosen", [[], ["--ranks", "0-1"]])
def test_ranks_that_register_late_are_captured_too(
    run: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch, chosen: list[str]
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
    completed, report = ask(serve_all, *chosen)
    # then both are asked
    assert completed.returncode == 0, completed.stderr
    assert len(collected) == 1
    assert "asked for 3 steps of ranks 0, 1" in completed.stderr
    assert (report["ranks"], report["missing"]) == ([0, 1], [])


@pytest.mark.parametrize("what", ["profile", "dump"])
def test_unregistered_rank_is_reported_missing_and_others_captured(
    run: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(live_run, "JOIN_SECONDS", 0.2)
    starting(run)

    def serve(run: Path, request: ControlRequest) -> None:
        if request.kind == "capture":
            accept(run, request)
            profile(run, 1, request.steps)
        else:
            answer(run, ControlAnswer(id=request.id, accepted=True, answered_unix_ns=1), rank=1)

    completed, report = ask(serve, *(["--flight-recorder"] if what == "dump" else []))
    assert completed.returncode == 1
    assert "rank 0 of this job: still no record" in completed.stderr
    assert [(row["rank"], "no record" in row["reason"]) for row in report["missing"]] == [(0, True)]
    if what == "profile":
        assert (report["ranks"], report["accepted"]) == ([1], True)
        assert "no record" in report["reason"]


def test_long_absent_rank_is_not_waited_for(run: Path, cli: Cli, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a job that has trained since 1970 without rank 0
    monkeypatch.setattr(live_run, "JOIN_SECONDS", 1e9)
    (rank_dir(run, 0, 0) / "rank.json").unlink()
    monkeypatch.setattr(live_run, "poll", lambda *_, **__: pytest.fail("it waits"))
    completed, report = ask(serve_all)
    assert completed.returncode == 1
    assert [row["rank"] for row in report["missing"]] == [0]
    # and named alone, it is an error that says why
    completed = cli("capture", run, "--ranks", "0")
    assert completed.returncode == 2
    assert "rank 0 has left no record yet" in completed.stderr


def test_job_that_ends_during_startup_is_reported_as_over(run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    starting(run)

    def print_progress(_line: str) -> None:
        end(run, 0, 1)

    monkeypatch.setattr(live_run, "print_progress", print_progress)
    completed = cli("capture", run, "--wait", "1000")
    assert completed.returncode == 3
    assert "the run is over" in completed.stderr


def test_stalled_job_is_reported_and_flight_recorder_suggested(run: Path, cli: Cli) -> None:
    # given ranks of steps of 0.1 s, and no answer for half a second
    completed = cli("capture", run, "--wait", "0.5", "--format", "json")
    # then the message says more than that
    assert completed.returncode == 1
    (text,) = (line for line in completed.stderr.splitlines() if "no answer" in line)
    assert "no rank has finished a step in the " in text
    assert "rank 0's last is step 60; its steps took 0.1 s before" in text
    assert f"`rankscope capture {run} --flight-recorder`" in text
    assert text.endswith(json.loads(completed.stdout)["reason"])


def test_job_that_hangs_after_accepting_is_reported(run: Path, cli: Cli, clock: Clock) -> None:
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


def test_wait_shorter_than_a_few_steps_does_not_suggest_a_hang(run: Path, cli: Cli) -> None:
    for rank in (0, 1):
        append(run, rank, "steps", StepRecord(step=61, start_unix_ns=1, wall_us=90e6))
    completed = cli("capture", run, "--wait", "0.2")
    assert "no rank has finished a step" in completed.stderr
    assert "its steps took 90 s before" in completed.stderr
    assert "--wait" in completed.stderr
    assert "--flight-recorder" not in completed.stderr


def test_job_that_makes_steps_is_not_reported_as_stalled(run: Path, cli: Cli, clock: Clock) -> None:
    def serve(run: Path, _request: ControlRequest) -> None:
        for rank in (0, 1):
            append(run, rank, "steps", StepRecord(step=61, start_unix_ns=1, wall_us=1e5))
        clock.runs.set()

    with job(run, serve):
        completed = cli("capture", run, "--wait", "1")
    assert completed.returncode == 1
    assert "no answer: the job records no profiles, or the clocks" in completed.stderr


def test_finished_hung_or_empty_run_is_status_3(run: Path, cli: Cli, tmp_path: Path) -> None:
    for rank in (0, 1):
        for path in rank_dir(run, 0, rank).glob("steps-*"):
            os.utime(path, (time.time() - 3600,) * 2)
    completed = cli("capture", run)
    assert completed.returncode == 3
    assert "hangs" in completed.stderr
    assert "--flight-recorder" in completed.stderr
    end(run, 0, 1)
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
    one_line_error(completed)


def test_ended_or_unknown_rank_is_a_usage_error(run: Path, cli: Cli) -> None:
    end(run, 1)
    for rank, why in (("1", "has ended"), ("7", "is not in this run")):
        completed = cli("capture", run, "--ranks", rank)
        assert completed.returncode == 2
        assert why in completed.stderr


def test_unwritable_run_directory_is_status_3(run: Path, cli: Cli) -> None:
    # given a run whose control folder is no folder
    (run / "control").write_text("")
    completed = cli("capture", run)
    assert completed.returncode == 3
    assert "cannot write a request here" in completed.stderr


def start_anew(run: Path, *, unix_ns: int = 1) -> None:
    """Start attempt 1, with the same ranks and a third."""
    create_attempt(run, AttemptInfo(attempt=1, start_unix_ns=unix_ns, world_size=3))
    for rank in (0, 1, 2):
        write_record(rank_dir(run, 1, rank) / "rank.json", rank_info(rank, attempt=1))
        append(run, rank, "steps", StepRecord(step=60, start_unix_ns=1, wall_us=1e5), attempt=1)


def test_capture_waits_for_the_attempt_that_answered(run: Path, ask: Ask) -> None:
    # given a job that is started again after the command has listed its ranks
    def serve(run: Path, request: ControlRequest) -> None:
        start_anew(run)
        for rank in (0, 1, 2):
            append(run, rank, "windows", *(breakdown(step) for step in range(FIRST, FIRST + request.steps)), attempt=1)
        accept(run, request, attempt=1)
        # Last: if the old attempt were over without an answer, the command would stop waiting.
        end(run, 0, 1)

    completed, report = ask(serve)
    # then its ranks' profiles are the answer, and the output says so
    assert completed.returncode == 0, completed.stderr
    assert "attempt 1 answers, not 0" in completed.stderr
    assert (report["attempt"], report["ranks"], report["missing"]) == (1, [0, 1, 2], [])


def test_dumps_of_a_newer_attempt_are_found(run: Path, ask: Ask) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        start_anew(run)
        flight_dir(run, 1).mkdir()
        for rank in (0, 1, 2):
            (flight_dir(run, 1) / f"rank-{rank:05d}-{request.id}-gloo.pickle").touch()
            answer(run, ControlAnswer(id=request.id, accepted=True, attempt=1, answered_unix_ns=1), rank=rank)

    completed, report = ask(serve, "--flight-recorder")
    assert completed.returncode == 0, completed.stderr
    assert (report["attempt"], [row["rank"] for row in report["dumps"]]) == (1, [0, 1, 2])


def test_answer_from_a_nonexistent_attempt_is_ignored(run: Path, ask: Ask) -> None:
    def serve(run: Path, request: ControlRequest) -> None:
        for rank in (0, 1):
            profile(run, rank, request.steps)
        accept(run, request, attempt=7)

    _, report = ask(serve)
    assert report["attempt"] == 0


@pytest.mark.parametrize(("starts_anew", "reason"), [(False, "the job ended"), (True, "started anew")])
def test_job_that_ends_without_answering_is_not_waited_for(run: Path, cli: Cli, reason: str, *, starts_anew: bool) -> None:
    def serve(run: Path, _request: ControlRequest) -> None:
        if starts_anew:
            start_anew(run, unix_ns=time.time_ns())
        end(run, 0, 1)

    with job(run, serve):
        completed = cli("capture", run, "--wait", "1000")
    assert completed.returncode == 1
    assert reason in completed.stderr


def test_request_is_not_written_through_a_link(run: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / "control").symlink_to(tmp_path / "elsewhere")
    completed = cli("capture", run, "--wait", "1")
    assert completed.returncode == 3
    assert "a symbolic link" in completed.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_poll_interval_grows_with_the_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    for ranks, longest in ((8, 0.5), (100, 1.0), (1024, 5.0)):
        clock[0] = 0.0
        pauses.clear()
        assert live_run.poll(lambda: None, until=120.0, ranks=ranks) is None
        assert (pauses[0], max(pauses)) == (0.5, longest)
        assert clock[0] == 120.0


def test_profiles_are_read_incrementally(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a rank with a history
    append(run, 0, "windows", *(breakdown(step) for step in range(60)))
    progress = ProfileProgress(LiveRun(run), 0, range(70, 72))
    assert progress.missing_steps() == [70, 71]
    read: list[bytes] = []

    def counted(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
        for block, length in read_blocks(file):
            read.append(block)
            yield block, length

    monkeypatch.setattr("rankscope.runs.follow.read_blocks", counted)
    # when it continues, in the same segment, in the middle of a line, and in the next
    rows = [msgspec.json.encode(breakdown(step)) + b"\n" for step in range(69, 72)]
    path = next(rank_dir(run, 0, 0).glob("windows-*"))
    with path.open("ab") as file:
        file.write(rows[0] + rows[1] + rows[2][:20])
    assert progress.missing_steps() == [71]
    with path.open("ab") as file:
        file.write(rows[2][20:])
    append(run, 0, "windows", breakdown(72))
    # then that is read, and nothing twice
    assert progress.missing_steps() == []
    assert read == [rows[0] + rows[1], rows[2][:20], rows[2], msgspec.json.encode(breakdown(72)) + b"\n"]


def test_profiles_in_replaced_segments_are_found(run: Path) -> None:
    append(run, 0, "windows", breakdown(60))
    append(run, 0, "windows", breakdown(70))
    progress = ProfileProgress(LiveRun(run), 0, range(70, 72))
    assert progress.missing_steps() == [71]
    # when the segments are replaced
    for path in rank_dir(run, 0, 0).glob("windows-*"):
        path.unlink()
    (rank_dir(run, 0, 0) / "windows-000009.jsonl").write_bytes(msgspec.json.encode(breakdown(71)) + b"\n")
    assert progress.missing_steps() == []
