"""All ranks of a real job profile the same steps, without a collective and without a schedule given in advance."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.profiler.ranks import PreloadedTorch

from rankscope.base.errors import InputError
from rankscope.profiler.handover import Hello
from rankscope.profiler.helper.coordination.asking import Asking
from rankscope.profiler.helper.coordination.duty import Coordination
from rankscope.profiler.helper.coordination.planning import Planning
from rankscope.profiler.helper.coordination.sidestore import SideClient, SideWindow, side_window
from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline
from rankscope.profiler.helper.tasks import HelperContext
from rankscope.profiler.plan import RankReport
from rankscope.profiler.ring import Announcement, RingReader, RingWriter
from rankscope.profiler.settings import SITE_FOLDER, RecorderSettings
from rankscope.runs.control import ControlAnswer, ControlRequest, new_request, post, read_answer
from rankscope.runs.paths import attempt_dir, rank_dir, segment
from rankscope.runs.reader import RunReader
from rankscope.runs.records import AttemptInfo, PlannedWindow, RankInfo, RunInfo, StepRecord

JOB = Path(__file__).parents[1] / "jobs" / "until_told.py"
RANKS = (0, 1)


def eventually(condition: Callable[[], object], job: subprocess.Popen[str]) -> None:
    """Wait until the running job has met a condition."""
    deadline = time.monotonic() + 90
    while not condition():
        assert job.poll() is None, "the job ended"
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def start(torch: PreloadedTorch, stop: Path, settings: RecorderSettings) -> subprocess.Popen[str]:
    """Start the job on two ranks, recorded."""
    environment = {**os.environ, **settings.environment(), "PYTHONPATH": str(SITE_FOLDER)}
    return subprocess.Popen(
        torch.command(2, JOB, stop, "--pause", "0.01"), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def profiled(run: Path, rank: int) -> list[int]:
    """Return the steps of a rank that have been reduced; none while there is no run."""
    try:
        return [row.step for row in RunReader(run).windows(0, rank)]
    except InputError:
        return []


class Rank:
    """Helper of a simulated rank: the ring is real, and the test acts as the training thread."""

    def __init__(self, folder: Path, rank: int, *, since: int = 0) -> None:
        self.rank, self.at, self.missed, self.said = rank, since, list[str](), list[str]()
        self.disabled: str | None = None
        scratch = folder / f"scratch-{rank}"
        scratch.mkdir()
        self.writer, self.reader = RingWriter(scratch / "ring", slots=1), RingReader(scratch / "ring")
        settings = RecorderSettings(
            run_dir=str(folder / "run"), run_id="r", name="r", start_unix_ns=1, plan_ahead_seconds=0.2, plan_ahead_steps=10
        )
        info = RankInfo(rank=rank, world_size=2, host="h", pid=1, start_unix_ns=1)
        context = HelperContext(
            hello=Hello(
                settings=settings,
                run=RunInfo(run_id="r", name="r", start_unix_ns=1),
                attempt=AttemptInfo(attempt=0, start_unix_ns=1, world_size=2),
                rank=info,
                baseline=StepTimeBaseline(),
            ),
            scratch=scratch,
            run=lambda: RunInfo(run_id="r", name="r", start_unix_ns=1),
            info=lambda: msgspec.structs.replace(info, disabled_reason=self.disabled),
            begun=lambda: True,
            report=self.said.append,
        )
        self.task = Coordination(context, self.reader, self.missed.append)

    def go(self, steps: int = 1) -> None:
        """Train this many steps of 10 ms."""
        for _ in range(steps):
            self.at += 1
            self.task.step(StepRecord(step=self.at, start_unix_ns=1, wall_us=10_000.0))
        self.task.tick()

    def end(self) -> None:
        """End the rank."""
        self.task.end(vanished=False)
        self.reader.close()
        self.writer.close()


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rank]]:
    """Two ranks on this host, in an existing attempt."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    attempt_dir(tmp_path / "run", 0).mkdir(parents=True)
    both = [Rank(tmp_path, 0, since=40), Rank(tmp_path, 1, since=40)]
    yield both
    for rank in both:
        rank.end()


def until(condition: Callable[[], object], ranks: Sequence[Rank]) -> None:
    """Run the ranks' helpers until ``condition`` is true; no rank trains."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        for rank in ranks:
            rank.task.tick()
        time.sleep(0.02)


def heard_by(rank: Rank, ranks: Sequence[Rank]) -> Announcement:
    """Return the next announcement that the rank's training thread receives."""
    news = list[Announcement]()

    def listen() -> bool:
        if (heard := rank.writer.news()) is not None:
            news.append(heard)
        return bool(news)

    until(listen, ranks)
    return news[0]


def asked(run: Path, ranks: Sequence[Rank], request: ControlRequest) -> ControlAnswer:
    """Post a request and return its answer, which requires a report of every rank."""
    for rank in ranks:
        rank.go(10)
    post(run, request)
    until(lambda: read_answer(run, request.id), ranks)
    given = read_answer(run, request.id)
    assert given is not None
    return given


def test_a_capture_reaches_the_ranks_it_is_for_and_they_hear_of_it_once(tmp_path: Path, ranks: list[Rank]) -> None:
    given = asked(tmp_path / "run", ranks, new_request("capture", steps=2, ranks=[1], keep_trace=True))
    assert given.first_step is not None
    assert (given.accepted, given.ranks) == (True, [1])
    heard = [heard_by(ranks[1], ranks)]
    # When training passes it
    while ranks[0].at < given.first_step + 20:
        for rank in ranks:
            rank.go()
            heard += [news for _ in range(2) if (news := rank.writer.news()) is not None]
    # Then the rank has received it once, early enough, and the other has not
    assert heard == [Announcement(1, given.first_step, 2, keep_trace=True)]
    assert ranks[1].missed == ranks[0].missed == []
    assert not [line for rank in ranks for line in rank.said]


def test_a_rank_that_cannot_reach_the_store_reads_the_file(
    tmp_path: Path, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a rank that has reported once, and cannot report any more
    def refuse(_client: SideClient, _report: RankReport) -> list[SideWindow]:
        raise ConnectionRefusedError

    run, exchange, reported = tmp_path / "run", SideClient.exchange, list[int]()

    def exchange_once(client: SideClient, report: RankReport) -> list[SideWindow]:
        if report.step_us is not None:
            monkeypatch.setattr(SideClient, "exchange", refuse)
            reported.append(report.rank)
        return exchange(client, report)

    monkeypatch.setattr(SideClient, "exchange", exchange_once)
    given = asked(run, ranks, new_request("capture", steps=2))
    assert reported == [1]
    # Then it receives the window nevertheless
    assert heard_by(ranks[1], ranks).first == given.first_step


def test_a_rank_that_hears_of_a_window_too_late_leaves_it_out_and_counts_it(tmp_path: Path, ranks: list[Rank]) -> None:
    _, other = ranks
    # Given windows in the file alone: one from before this rank began, two that it has already passed when it reads, one ahead
    firsts = (30, 60, 70, 500)
    lines = b"".join(
        msgspec.json.encode(PlannedWindow(first=first, steps=2, reason="schedule", chosen_unix_ns=1)) + b"\n" for first in firsts
    )
    other.go(60)
    # (the task's own reader starts at step 100, and must not be the first to read the file)
    begun = other.task._post
    assert isinstance(begun, Asking)
    begun.stop()
    begun._thread.join()
    segment(attempt_dir(tmp_path / "run", 0), "plan", 0).write_bytes(lines + b'{"torn')
    other.task._post = Asking(other.task._context, other.task._hear, since=40)
    other.task._post.start()
    assert heard_by(other, [other]) == Announcement(1, 500, 2)
    assert len(other.missed) == 2


def test_windows_that_follow_each_other_closely_are_heard_of_before_the_first_begins(ranks: list[Rank]) -> None:
    _, other = ranks
    other.go(10)
    # Given a window, a second one a step after its end, and one that was chosen last and begins first
    firsts = (100, 104, 96)
    other.task._hear([SideWindow(first, 3) for first in firsts])
    # When the thread has received one, then the next, without a step in between
    heard = [heard_by(other, [other]).first for _ in firsts]
    assert heard == sorted(firsts)
    # And when all are over, none was left out, and none is announced again
    other.go(60)
    assert other.writer.news() is None
    assert other.missed == []


def test_what_is_written_into_the_file_by_others_is_not_believed(tmp_path: Path, ranks: list[Rank]) -> None:
    _, other = ranks
    path = segment(attempt_dir(tmp_path / "run", 0), "plan", 0)

    def line(first: int, steps: int) -> bytes:
        return msgspec.json.encode(PlannedWindow(first=first, steps=steps, reason="schedule", chosen_unix_ns=1)) + b"\n"

    asking = Asking(other.task._context, other.task._hear, since=40)
    # Windows of impossible size or position, more of them than any planner announces, and endless nesting
    many = b"".join(line(first, 2) for first in range(1000, 3000, 10))
    path.write_bytes(many + line(100, 10**9) + line(110, 0) + line(2**60, 3) + b"[" * 5000 + b"\n" + line(500, 3))
    asking._read_file()
    assert sorted(other.task._heard) == [500, *range(2930, 3000, 10)]
    # A link is not followed, and a FIFO without a writer does not block the reader
    secret = tmp_path / "secret"
    path.rename(secret)
    path.symlink_to(secret)
    other.task._heard.clear()
    Asking(other.task._context, other.task._hear, since=40)._read_file()
    path.unlink()
    os.mkfifo(path)
    Asking(other.task._context, other.task._hear, since=40)._read_file()
    assert other.task._heard == {}


@pytest.mark.parametrize("channel", ["server", "file"])
def test_a_capture_is_passed_on_to_what_else_it_starts_once(tmp_path: Path, ranks: list[Rank], channel: str) -> None:
    windows = [
        PlannedWindow(first=100, steps=2, reason="schedule", chosen_unix_ns=1),
        PlannedWindow(first=200, steps=2, reason="capture", chosen_unix_ns=1),
    ]
    captures = list[int]()
    task = Coordination(ranks[1].task._context, ranks[1].reader, lambda _: None, lambda: captures.append(1))
    for _ in range(2):
        if channel == "server":
            task._hear(map(side_window, windows))
        else:
            lines = b"".join(msgspec.json.encode(window) + b"\n" for window in windows)
            segment(attempt_dir(tmp_path / "run", 0), "plan", 0).write_bytes(lines)
            Asking(task._context, task._hear, since=40)._read_file()
    assert captures == [1]


def test_the_plan_that_could_not_be_written_is_written_later_and_is_open_to_whom_the_run_is(
    tmp_path: Path, ranks: list[Rank]
) -> None:
    first, _ = ranks
    folder = attempt_dir(tmp_path / "run", 0)
    folder.chmod(0o750)
    plan = segment(folder, "plan", 0)
    planning = Planning(first.task._context, first.task._hear)
    window = PlannedWindow(first=100, steps=2, reason="schedule", chosen_unix_ns=1)
    planning._publish(window)
    # given a disk that is full
    plan.symlink_to("/dev/full")
    planning._write_down()
    plan.unlink()
    # when there is room again
    planning._write_down()
    planning._write_down()
    # then it is there once
    assert plan.read_bytes() == msgspec.json.encode(window) + b"\n"
    assert plan.stat().st_mode & 0o777 == 0o640


def test_a_request_that_is_taken_back_while_it_waits_is_not_carried_out(tmp_path: Path, ranks: list[Rank]) -> None:
    # Given a request at the first step, when no rank has a pace yet
    first, _ = ranks
    first.go()
    planning = first.task._post
    assert isinstance(planning, Planning)
    path = post(tmp_path / "run", new_request("capture"))
    until(lambda: planning._requests, [first])
    # When the client withdraws it
    path.unlink()
    # Then the planner no longer waits for it, and nothing has been answered
    until(lambda: not planning._requests, [first])
    assert list(path.parent.iterdir()) == []
    assert list(planning._planned) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_switched_off_no_longer_reports(ranks: list[Rank], rank: int) -> None:
    # Given a rank that reports
    one = ranks[rank]
    one.go(10)
    until(lambda: one.task._post is not None and one.task._post.report is not None, [one])
    # When its recorder switches itself off, there is nothing left that the planner could wait for
    one.disabled = "something went wrong"
    until(lambda: one.task._post is not None and one.task._post.report is None, [one])


@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_ranks_profile_the_same_steps_as_the_budget_allows_and_as_people_ask(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    # Given two ranks under a budget that leaves room for windows, and an announcement time that also suffices on a busy machine
    run, stop = tmp_path / "run", tmp_path / "stop"
    settings = RecorderSettings(
        run_dir=str(run),
        run_id="r",
        name="r",
        start_unix_ns=time.time_ns(),
        budget=0.3,
        window_first=5,
        window_steps=2,
        plan_ahead_seconds=3.0,
        plan_ahead_steps=20,
        exporter_url=None,
    )
    job = start(torch_ranks, stop, settings)
    try:
        # When it has trained for a while
        eventually(lambda: all(len(profiled(run, rank)) >= 4 for rank in RANKS), job)
        # And a client requests four steps, and at once four more, and a rank that does not exist
        requests = [
            new_request("capture", steps=4, keep_trace=True),
            new_request("capture", steps=4),
            new_request("capture", steps=1, ranks=[7]),
        ]
        for request in requests:
            post(run, request)
        eventually(lambda: all(read_answer(run, request.id) for request in requests), job)
        answers = [read_answer(run, request.id) for request in requests]
        captured = next(answer for answer in answers if answer is not None and answer.accepted)
        assert captured.first_step is not None
        assert captured.last_step == captured.first_step + 3
        eventually(lambda: all(captured.last_step in profiled(run, rank) for rank in RANKS), job)
    finally:
        stop.touch()
        _, said = job.communicate(timeout=120)
    assert job.returncode == 0, said
    assert "Traceback" not in said
    # Then the ranks have profiled the same steps: the first from the settings, the others as announced
    reader = RunReader(run)
    last = max(row.step for row in reader.steps(0, 0))
    common = [set(profiled(run, rank)) for rank in RANKS]
    assert common[0] == common[1]
    assert {5, 6} <= common[0]
    plan = list(reader.plan(0))
    announced = {step for row in plan for step in range(row.first, row.first + row.steps)}
    assert common[0] - {5, 6} <= announced
    assert all(step > last - 2 for step in announced - common[0]), "only what the end cut off is missing"
    # And one window is the capture, with its raw traces
    assert [(row.first, row.steps, row.keep_trace) for row in plan if row.reason == "capture"] == [(captured.first_step, 4, True)]
    for rank in RANKS:
        # On a busy machine a window may look wrong to its rank, and is kept for that
        odd = [row for row in reader.windows(0, rank) if row.looked_wrong]
        kept = {path.name for path in (rank_dir(run, 0, rank) / "traces").iterdir()}
        assert f"window-{captured.first_step:09d}.json.gz" in kept
        assert len(kept) == 1 or odd
        info = reader.rank(0, rank)
        assert info is not None
        assert info.missed_windows == 0
        assert info.windows * 2 + 2 == len(common[0])
        assert info.budget == 0.3
        assert info.window_cost_us is not None
        assert info.recorder_cost_us is not None
        assert 0 < info.window_cost_us < info.recorder_cost_us
    # And the others were refused, with a reason
    refused = {answer.id: answer.reason for answer in answers if answer is not None and not answer.accepted}
    assert len(refused) == 2
    assert "no such rank" in (refused[requests[2].id] or "")
    assert "another capture" in next(reason or "" for id_, reason in refused.items() if id_ != requests[2].id)
    # And no rendezvous file is left
    assert not (attempt_dir(run, 0) / "side.json").exists()
