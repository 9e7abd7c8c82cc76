"""All ranks of a real job profile the same steps, without a collective and without a schedule given in advance."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.profiler.handovers import context_of, handover_of, plan_line
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import attached_environment, info_of
from tests.waiting import wait_until

from rankscope.base.errors import InputError
from rankscope.profiler.helper.coordination.coordination import Coordination
from rankscope.profiler.helper.coordination.reports import ReportWriter, report_file
from rankscope.profiler.helper.coordination.window_client import AnnouncedWindow, WindowClient, plan_file
from rankscope.profiler.helper.coordination.window_coordinator import WindowCoordinator
from rankscope.profiler.ring import Announcement, RingReader, RingWriter
from rankscope.runs.control import ControlAnswer, ControlRequest, new_request, post, read_answer
from rankscope.runs.paths import attempt_dir, rank_dir, reports_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import DeviceKind, StepRecord

JOB = Path(__file__).parents[1] / "jobs" / "trains_until_stopped.py"
RANKS = (0, 1)


def profiled(run: Path, rank: int) -> list[int]:
    """Return the steps of a rank that have been reduced; none while there is no run."""
    try:
        return [row.step for row in RunReader(run).windows(0, rank)]
    except InputError:
        return []


class Rank:
    """Helper of a simulated rank: the ring is real, and the test acts as the training thread."""

    def __init__(self, folder: Path, rank: int, *, since: int = 0, device: DeviceKind = "cpu") -> None:
        self.rank, self.at, self.missed, self.messages, self.captures = rank, since, list[str](), list[str](), 0
        self.disabled: str | None = None
        self.begun = True
        scratch = folder / f"scratch-{rank}-{since}"
        scratch.mkdir()
        self.writer = RingWriter()
        with (scratch / "ring").open("xb+") as file:
            self.writer.share(file.fileno())
            self.reader = RingReader(file.fileno())
        settings = {"plan_ahead_seconds": 0.2, "plan_ahead_steps": 10}
        handover = handover_of(folder / "run", settings=settings, rank=rank, world_size=2, device_kind=device)
        self.context = context_of(
            handover,
            scratch,
            self.messages.append,
            info=lambda: msgspec.structs.replace(handover.rank, disabled_reason=self.disabled),
            begun=lambda: self.begun,
        )
        self.duty = Coordination(self.context, self.reader, self.missed.append, self.count_capture)

    def count_capture(self) -> None:
        """Count a capture that the rank was asked for."""
        self.captures += 1

    def go(self, steps: int = 1) -> None:
        """Train this many steps of 10 ms."""
        for _ in range(steps):
            self.at += 1
            step = StepRecord(step=self.at, start_unix_ns=1, wall_us=10_000.0)
            self.context.baseline.add(step)
            self.duty.step(step)
        self.duty.tick()

    def end(self) -> None:
        """End the rank."""
        self.duty.end(vanished=False)
        self.reader.close()
        self.writer.close()


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """Folder of an attempt."""
    folder = attempt_dir(tmp_path / "run", 0)
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def ranks(tmp_path: Path, attempt: Path) -> Iterator[list[Rank]]:
    """Two ranks of the attempt."""
    assert attempt.is_dir()
    both = [Rank(tmp_path, 0, since=40), Rank(tmp_path, 1, since=40)]
    yield both
    for rank in both:
        rank.end()


def until(condition: Callable[[], object], ranks: Sequence[Rank]) -> None:
    """Run the ranks' helpers until ``condition`` is true; no rank trains."""

    def met() -> object:
        if not (result := condition()):
            for rank in ranks:
                rank.duty.tick()
        return result

    wait_until(met)


def announcement_to(rank: Rank, ranks: Sequence[Rank]) -> Announcement:
    """Return the next announcement that the rank's training thread receives."""
    received = list[Announcement]()

    def receive() -> bool:
        if (announcement := rank.writer.announcement()) is not None:
            received.append(announcement)
        return bool(received)

    until(receive, ranks)
    return received[0]


def answer_to(run: Path, ranks: Sequence[Rank], request: ControlRequest) -> ControlAnswer:
    """Post a request and return its answer, which requires a report of every rank."""
    for rank in ranks:
        rank.go(10)
    post(run, request)
    until(lambda: read_answer(run, request.id), ranks)
    answer = read_answer(run, request.id)
    assert answer is not None
    return answer


def test_capture_reaches_only_the_requested_ranks_once(tmp_path: Path, ranks: list[Rank]) -> None:
    answer = answer_to(tmp_path / "run", ranks, new_request("capture", steps=2, ranks=[1], keep_trace=True))
    assert answer.first_step is not None
    assert (answer.accepted, answer.ranks) == (True, [1])
    received = [announcement_to(ranks[1], ranks)]
    # When training passes it
    while ranks[0].at < answer.first_step + 20:
        for rank in ranks:
            rank.go()
            received += [announcement for _ in range(2) if (announcement := rank.writer.announcement()) is not None]
    # Then the rank has received it once, early enough, and the other has not
    assert received == [Announcement(1, answer.first_step, 2, keep_trace=True)]
    assert ranks[1].missed == ranks[0].missed == []
    assert [rank.captures for rank in ranks] == [0, 1]
    assert not [message for rank in ranks for message in rank.messages]


@pytest.mark.slow
def test_first_device_window_is_announced_once_the_budget_covers_the_cost(tmp_path: Path, attempt: Path) -> None:
    assert attempt.is_dir()
    ranks = [Rank(tmp_path, rank, device="cuda") for rank in (0, 1)]
    # Given ranks that are past the first step of the settings, but have not trained for 100 s
    for rank in ranks:
        rank.go(5000)
    until(report_file(attempt / "reports", 1).exists, ranks)
    time.sleep(1.0)
    assert plan_file(attempt).read_bytes() == b""
    # When they have nearly trained that long
    for rank in ranks:
        rank.go(4980)
    first = announcement_to(ranks[1], ranks)
    # Then 1 % of the time until then is 1 s (ranks that train on while the machine is busy are given a later step)
    assert first.first >= 10_000
    assert first.steps == 3
    for rank in ranks:
        rank.end()


def test_reports_share_run_permissions_and_are_removed_with_the_ranks(attempt: Path, ranks: list[Rank]) -> None:
    attempt.chmod(0o750)
    report = report_file(attempt / "reports", 1)
    for rank in ranks:
        rank.go(10)
    until(report.exists, ranks)
    assert report.stat().st_mode & 0o777 == 0o640
    assert plan_file(attempt).stat().st_mode & 0o777 == 0o640
    assert [path.name for path in report.parent.iterdir()] == ["00001.json"], "rank 0 reports to itself"
    for rank in ranks:
        rank.duty.end(vanished=False)
    assert sorted(path.name for path in attempt.iterdir()) == ["plan-000000.jsonl"]


def test_removed_run_is_not_recreated(tmp_path: Path, attempt: Path, ranks: list[Rank]) -> None:
    ranks[1].go(10)
    until(report_file(attempt / "reports", 1).exists, ranks)
    shutil.rmtree(tmp_path / "run")
    writer = ReportWriter(attempt / "reports", 1, 2, after_windows=True)
    report = ranks[1].duty._report
    assert report is not None
    writer.offer(*report, now=0.0)
    ranks[0].go(10)
    until(lambda: ranks[0].duty._thread is not None, ranks)
    ranks[0].duty.end(vanished=False)
    assert not (tmp_path / "run").exists()


def test_rank_skips_and_counts_a_window_announced_too_late(attempt: Path, ranks: list[Rank]) -> None:
    _, other = ranks
    # Given windows from before this rank's helper began, two that the rank has passed when they are announced, and one ahead
    plan_file(attempt).write_bytes(plan_line(30) + plan_line(50))
    other.go(20)
    until(lambda: other.duty._thread is not None, [other])
    other.go(40)
    with plan_file(attempt).open("ab") as file:
        file.write(plan_line(65) + plan_line(70) + plan_line(500) + b'{"torn')
    assert announcement_to(other, [other]) == Announcement(1, 500, 2)
    assert len(other.missed) == 2
    assert "announcement" in other.missed[0]


def test_close_windows_are_announced_before_the_first_begins(ranks: list[Rank]) -> None:
    _, other = ranks
    other.go(10)
    # Given a window, a second one a step after its end, and one that was chosen last and begins first
    firsts = (100, 104, 96)
    other.duty._add([AnnouncedWindow(first, 3) for first in firsts])
    # When the thread has received one, then the next, without a step in between
    received = [announcement_to(other, [other]).first for _ in firsts]
    assert received == sorted(firsts)
    # And when all are over, none was left out, and none is announced again
    other.go(60)
    assert other.writer.announcement() is None
    assert other.missed == []


def test_capture_is_forwarded_once(ranks: list[Rank]) -> None:
    for _ in range(2):
        ranks[1].duty._add([AnnouncedWindow(100, 2), AnnouncedWindow(200, 2, "capture"), AnnouncedWindow(300, 2, "capture", [0])])
    assert ranks[1].captures == 1


@pytest.mark.slow
def test_unannounceable_window_is_dropped_and_the_request_refused(tmp_path: Path, attempt: Path) -> None:
    rank = Rank(tmp_path, 0, since=40)
    rank.begun = False  # the test turns the coordinator itself
    rank.go(10)
    # Given a disk that is full
    plan_file(attempt).symlink_to("/dev/full")
    coordinator = WindowCoordinator(rank.context)
    report = rank.duty._report
    assert report is not None
    requests = [new_request("capture"), new_request("capture")]
    post(tmp_path / "run", requests[0])

    def answer(request: ControlRequest) -> ControlAnswer | None:
        coordinator.turn(report[0])
        return read_answer(tmp_path / "run", request.id)

    refused = wait_until(lambda: answer(requests[0]))
    assert not refused.accepted
    assert plan_file(attempt).name in (refused.reason or "")
    assert len([message for message in rank.messages if "announced" in message]) == 1
    # When there is room again
    plan_file(attempt).unlink()
    time.sleep(coordinator._planner.capture_seconds)
    post(tmp_path / "run", requests[1])
    accepted = wait_until(lambda: answer(requests[1]))
    assert accepted.accepted
    assert WindowClient(attempt, rank.messages.append).read()[-1].first == accepted.first_step
    rank.end()


def test_replacement_of_a_killed_coordinator_continues_the_plan(tmp_path: Path, ranks: list[Rank], attempt: Path) -> None:
    first = answer_to(tmp_path / "run", ranks, new_request("capture", steps=2)).first_step
    assert first is not None
    # Given ranks that have nearly reached the window, and another helper of rank 0
    for rank in ranks:
        rank.at = first - 1
        rank.go(0)
    ranks[0].duty._stop.set()
    other = Rank(tmp_path, 0, since=first - 20)
    try:
        second = answer_to(tmp_path / "run", [other, ranks[1]], new_request("capture", steps=2)).first_step
        assert second is not None
        assert second > first + 2
        assert [window.first for window in WindowClient(attempt, other.messages.append).read()] == [first, second]
    finally:
        other.end()


def test_withdrawn_request_is_not_served(tmp_path: Path, attempt: Path) -> None:
    # Given a request at the first step, when no rank has reported a step time
    rank = Rank(tmp_path, 0)
    rank.begun = False
    rank.go()
    coordinator = WindowCoordinator(rank.context)
    path = post(tmp_path / "run", new_request("capture"))
    report = rank.duty._report
    assert report is not None
    coordinator.turn(report[0])
    assert len(coordinator._requests) == 1
    # When the client withdraws it
    path.unlink()
    coordinator.turn(report[0])
    # Then the coordinator no longer waits for it, and nothing has been answered
    assert not coordinator._requests
    assert list(path.parent.iterdir()) == []
    assert plan_file(attempt).read_bytes() == b""
    rank.end()


def test_disabled_rank_withdraws_its_report(attempt: Path, ranks: list[Rank]) -> None:
    # Given two ranks that report
    for rank in ranks:
        rank.go(10)
    until(report_file(attempt / "reports", 1).exists, ranks)
    # When their recorders switch themselves off, there is nothing left that the planner could wait for
    for rank in ranks:
        rank.disabled = "something went wrong"
    until(lambda: not report_file(attempt / "reports", 1).exists() and ranks[0].duty._report is None, ranks)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_ranks_profile_the_same_steps_by_budget_and_by_request(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    # Given two ranks under a budget that leaves room for windows, and an announcement time that also suffices on a busy machine
    run, stop = tmp_path / "run", tmp_path / "stop"
    environment = attached_environment(
        run,
        budget=0.3,
        window_first=5,
        window_steps=2,
        plan_ahead_seconds=9.0,  # a third of it, because the ranks are on one host
        plan_ahead_steps=20,
    )
    command = torch_ranks.command(2, JOB, stop, "--pause", "0.01")
    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # When it has trained for a while
        wait_until(lambda: all(len(profiled(run, rank)) >= 4 for rank in RANKS), process=job)
        # And a client requests four steps, and at once four more, and a rank that does not exist
        requests = [
            new_request("capture", steps=4, keep_trace=True),
            new_request("capture", steps=4),
            new_request("capture", steps=1, ranks=[7]),
        ]
        for request in requests:
            post(run, request)
        wait_until(lambda: all(read_answer(run, request.id) for request in requests), process=job)
        answers = [read_answer(run, request.id) for request in requests]
        captured = next(answer for answer in answers if answer is not None and answer.accepted)
        assert captured.first_step is not None
        assert captured.last_step == captured.first_step + 3
        wait_until(lambda: all(captured.last_step in profiled(run, rank) for rank in RANKS), process=job)
    finally:
        stop.touch()
        _, output = job.communicate(timeout=120)
    assert job.returncode == 0, output
    assert "Traceback" not in output
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
        info = info_of(reader, rank)
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
    # And no reports are left
    assert not reports_dir(run, 0).exists()
