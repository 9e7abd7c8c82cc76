"""Flight Recorder dumps: those of torch's watchdog, and requested ones."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.profiler.handovers import context_of, handover_of
from tests.profiler.request_pipe import RequestPipe
from tests.waiting import wait_until

from rankscope.base.atomic_files import replace_file
from rankscope.profiler.flight_files import done_file, dump_file
from rankscope.profiler.helper.collectives import flight
from rankscope.profiler.helper.collectives.flight import MOST_DUMPS, FlightDumps, WatchdogFile
from rankscope.runs.control import ControlAnswer, ControlRequest, answer, new_request, post, read_answer
from rankscope.runs.paths import attempt_dir, flight_dir

JOB = Path(__file__).parents[1] / "jobs" / "hung.py"


RANK = 5


class Rank:
    """Simulated rank: its scratch folder, and the pipe through which its helper requests dumps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.scratch = folder / "run", folder / "scratch"
        attempt_dir(self.run, 0).mkdir(parents=True)
        self.scratch.mkdir()
        self.now = 1000.0
        self.reported: list[str] = []
        self.requests = RequestPipe()
        monkeypatch.setattr(flight, "_REQUESTS", self.requests.writer)
        monkeypatch.setattr(flight, "time", self)
        self.begun = True
        self.task = self.helper()

    def helper(self, world_size: int = 8) -> FlightDumps:
        handover = handover_of(self.run, rank=RANK, world_size=world_size)
        return FlightDumps(context_of(handover, self.scratch, self.reported.append, begun=lambda: self.begun))

    # The clock of the helper.

    def monotonic(self) -> float:
        return self.now

    @staticmethod
    def time_ns() -> int:
        return time.time_ns()

    def tick(self, seconds: float = 1.0) -> None:
        """Run the helper's next tick."""
        self.now += seconds
        self.task._inbox._due = 0.0
        self.task.tick()
        if self.task._worker is not None:
            looked = threading.Event()
            self.task._submit(looked.set)
            assert looked.wait(60)

    def ask(self, **fields: Any) -> ControlRequest:
        """Request a dump, and let the helper read the request."""
        request = new_request("dump", **fields)
        post(self.run, request)
        self.tick()
        return request

    def obey(self, name: str, *backends: str, reason: str = "") -> None:
        """Write the rank's dumps."""
        for backend in backends:
            replace_file(dump_file(self.scratch, name, backend), f"{backend} of {name}".encode())
        replace_file(done_file(self.scratch, name), reason.encode())

    def answer(self, request: ControlRequest) -> ControlAnswer:
        """Return the helper's answer."""
        answer: ControlAnswer = wait_until(lambda: read_answer(self.run, request.id, rank=RANK))
        return answer

    def dumps(self) -> dict[str, bytes]:
        """Return the dumps in the run."""
        return {path.name: path.read_bytes() for path in sorted(flight_dir(self.run, 0).glob("*"))}


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    for name in (*flight._TEMP_FILE, flight._PIPE_FILE):
        monkeypatch.delenv(name, raising=False)
    played = Rank(tmp_path, monkeypatch)
    yield played
    played.requests.close()


def test_requested_dump_is_copied_into_the_run(rank: Rank) -> None:
    # when a dump is requested, then the rank receives the request
    request = rank.ask()
    assert rank.requests.received() == [request.id]
    assert read_answer(rank.run, request.id, rank=RANK) is None
    # when it has written the dumps of both its recorders, then they are in the run
    rank.obey(request.id, "gloo", "nccl")
    rank.tick()
    answer = rank.answer(request)
    assert (answer.accepted, answer.ranks) == (True, [RANK])
    assert rank.dumps() == {
        f"rank-00005-{request.id}-gloo.pickle": f"gloo of {request.id}".encode(),
        f"rank-00005-{request.id}-nccl.pickle": f"nccl of {request.id}".encode(),
    }
    # and local memory is released
    assert list(rank.scratch.iterdir()) == []


def test_unrequested_rank_does_nothing(rank: Rank) -> None:
    rank.ask(ranks=[4, 6])
    assert rank.requests.received() == []


def test_request_waits_until_the_rank_has_a_place_in_the_run(rank: Rank) -> None:
    rank.begun = False
    rank.ask()
    assert rank.requests.received() == []
    rank.begun = True
    rank.tick()
    assert len(rank.requests.received()) == 1


def test_control_folder_is_created_on_the_first_tick(rank: Rank) -> None:
    rank.tick()
    assert (rank.run / "control").is_dir()


def test_rank_without_a_recorder_answers_with_the_reason(rank: Rank) -> None:
    request = rank.ask()
    rank.obey(request.id, reason="no collective has been recorded")
    rank.tick()
    answer = rank.answer(request)
    assert (answer.accepted, answer.reason) == (False, "no collective has been recorded")


def test_process_without_a_process_group_refuses_the_request(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a standard output without a reader
    with Path(os.devnull).open("wb") as nothing:
        monkeypatch.setattr(flight, "_REQUESTS", nothing.fileno())
        request = rank.ask()
    answer = rank.answer(request)
    assert not answer.accepted
    assert "no process group" in (answer.reason or "")


def test_rank_without_a_listening_thread_does_not_block_the_helper(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(flight, "_REQUESTS", write)
    request = rank.ask()
    os.close(write)
    answer = rank.answer(request)
    assert not answer.accepted
    assert "does not listen" in (answer.reason or "")


def test_stuck_rank_times_out_and_a_late_dump_is_collected(rank: Rank) -> None:
    request = rank.ask()
    rank.tick(flight.ANSWER_SECONDS + 1)
    answer = rank.answer(request)
    assert not answer.accepted
    assert "stuck" in (answer.reason or "")
    # and the rank gets no second request while the first is unanswered
    again = rank.ask()
    assert "owes" in (rank.answer(again).reason or "")
    assert rank.requests.received() == [request.id]
    rank.obey(request.id, "gloo")
    rank.tick()
    wait_until(lambda: rank.answer(request).accepted)
    assert list(rank.dumps()) == [f"rank-00005-{request.id}-gloo.pickle"]


@pytest.mark.parametrize(("state", "reason"), [("stopped", "state T"), ("disk", "state D")])
def test_process_blocked_in_the_kernel_is_not_reported_as_stuck(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, state: str, reason: str
) -> None:
    monkeypatch.setattr(flight, "process_state", lambda _: state)
    request = rank.ask()
    rank.tick(flight.ANSWER_SECONDS + 1)
    given_reason = rank.answer(request).reason or ""
    assert reason in given_reason
    assert "interpreter" not in given_reason


def test_torch_dump_pipe_is_used_when_python_is_stuck(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    # given the files that torch creates per rank if configured: a pipe for requests, and a dump file
    stem = rank.scratch / "ask-"
    os.mkfifo(f"{stem}{RANK}.pipe")
    torchs_pipe = os.open(f"{stem}{RANK}.pipe", os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(stem))
    theirs = rank.run.parent / f"theirs-{RANK}"
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(theirs)[:-1])
    rank.task = rank.helper()
    # when the rank's Python does not answer
    request = rank.ask()
    rank.tick(flight.ANSWER_SECONDS + 1)
    # then torch gets the request, and its dump is the answer
    assert os.read(torchs_pipe, 100)
    os.close(torchs_pipe)
    theirs.write_bytes(b"by nccl's own thread")
    rank.tick()
    rank.tick()
    assert rank.answer(request).accepted
    assert rank.dumps() == {f"rank-00005-{request.id}-nccl.pickle": b"by nccl's own thread"}
    assert theirs.exists()


@pytest.mark.parametrize("kind", ["nothing", "file", "nobody", "link"])
def test_path_that_is_not_a_readable_pipe_is_left_untouched(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(tmp_path / "ask-"))
    pipe = tmp_path / "ask-5.pipe"
    if kind == "file":
        pipe.write_bytes(b"precious")
    elif kind == "nobody":
        os.mkfifo(pipe)
    elif kind == "link":
        (tmp_path / "other").write_bytes(b"precious")
        pipe.symlink_to(tmp_path / "other")
    assert not flight.write_to_pipe(5)
    assert kind not in ("file", "link") or pipe.read_bytes() == b"precious"


def test_dumps_are_rate_limited_and_only_the_latest_are_kept(rank: Rank) -> None:
    requests = []
    for _ in range(MOST_DUMPS + 2):
        requests.append(rank.ask())
        rank.obey(requests[-1].id, "gloo")
        refused = rank.ask()
        rank.tick(flight.REST_SECONDS)
        assert rank.answer(requests[-1]).accepted
        assert not rank.answer(refused).accepted
    wait_until(lambda: len(rank.dumps()) == MOST_DUMPS)
    assert [name.split("-", 2)[2] for name in rank.dumps()] == [f"{request.id}-gloo.pickle" for request in requests[2:]]


@pytest.mark.parametrize("named", [[RANK, RANK + 1], [RANK - 1, RANK]], ids=["the first", "another"])
def test_first_named_rank_refuses_for_all_and_others_only_as_fallback(rank: Rank, named: list[int]) -> None:
    # given ranks that have just dumped, and get another request
    rank.obey(rank.ask().id, "gloo")
    rank.tick(flight.CHECK_SECONDS)
    refused = rank.ask(ranks=named)
    if named[0] == RANK:
        # then the first of them answers for all
        refusal = read_answer(rank.run, refused.id)
        assert refusal is not None
        assert not refusal.accepted
        assert read_answer(rank.run, refused.id, rank=RANK) is None
        return
    # and another rank is silent, as long as the first may still answer
    rank.tick()
    assert read_answer(rank.run, refused.id, rank=RANK) is None
    rank.tick(2)
    assert not rank.answer(refused).accepted
    # but not if the first has answered
    answered = rank.ask(ranks=named)
    answer(rank.run, ControlAnswer(id=answered.id, accepted=False, reason="too soon", answered_unix_ns=1))
    rank.tick(4)
    assert read_answer(rank.run, answered.id, rank=RANK) is None


def test_helpers_of_large_jobs_poll_less_often(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: dict[int, int] = {}
    for size in (8, 2000):
        rank.task = rank.helper(size)
        seen: list[float] = []

        def look(seen: list[float] = seen) -> list[ControlRequest]:
            seen.append(rank.now)
            return []

        monkeypatch.setattr(rank.task._inbox, "pending", look)
        for _ in range(100):
            rank.tick()
        looks[size] = len(seen)
    assert looks == {8: 100, 2000: 10}


@pytest.mark.parametrize("where", ["make_control_dir", "pending", "complete"])
def test_hanging_disk_does_not_block_the_helper(rank: Rank, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    # given a disk at which every access blocks for ever
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(rank.run / "theirs-"))
    rank.task = rank.helper()
    main, reached, back = threading.current_thread(), threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> Any:
        assert threading.current_thread() is not main
        reached.set()
        assert back.wait(60)

    whose: Any = {"make_control_dir": flight, "pending": rank.task._inbox, "complete": rank.task._watchdog}[where]
    monkeypatch.setattr(whose, where, hang)
    monkeypatch.setattr(flight, "END_SECONDS", 0.01)
    try:
        # when the helper ticks on, then each tick returns, and no work piles up behind the blocked access
        rank.task.tick()
        assert reached.wait(60)
        for _ in range(100):
            rank.now += 1
            rank.task.tick()
        assert rank.task._work.empty()
        # and the end of the rank is not held up either
        rank.task.end(vanished=True)
    finally:
        back.set()


def test_unexpected_error_is_logged_once_and_costs_only_the_dumps(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[ControlRequest]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(rank.task._inbox, "pending", fail)
    for _ in range(5):
        rank.tick()
    (text,) = rank.reported
    assert "FlightDumps" in text
    assert "ZeroDivisionError: a bug" in text


@pytest.mark.parametrize("variable", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_watchdog_dump_of_torch_is_copied_into_the_run(rank: Rank, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    # given a file that grows
    monkeypatch.setenv(variable, str(rank.scratch / "theirs-"))
    rank.task = rank.helper()
    theirs = rank.scratch / f"theirs-{RANK}"
    (rank.scratch / f"theirs-{RANK}0").write_bytes(b"of rank 50")
    for part in range(1, 4):
        theirs.write_bytes(b"." * part)
        rank.tick()
    assert rank.dumps() == {}
    # when it no longer grows, then it is copied, once, and left in place if the user chose its name
    rank.tick()
    rank.tick()
    wait_until(lambda: rank.reported)
    assert rank.dumps() == {"rank-00005-watchdog-nccl.pickle": b"..."}
    assert theirs.exists()
    assert len(rank.reported) == 1


def test_watchdog_dump_of_an_exiting_process_is_collected(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a file whose name the recorder chose
    prefix = rank.scratch / "flight-123-"
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(prefix))
    rank.task = rank.helper()
    rank.tick()
    Path(f"{prefix}{RANK}").write_bytes(b"the last words")
    # when the process ends before the helper has looked
    rank.task.end(vanished=True)
    # then the dumps are in the run, and the file is no longer needed
    assert rank.dumps() == {"rank-00005-watchdog-nccl.pickle": b"the last words"}
    assert not Path(f"{prefix}{RANK}").exists()


def test_end_of_a_rank_answers_pending_requests(rank: Rank) -> None:
    written, silent = rank.ask(), None
    rank.obey(written.id, "gloo")
    rank.task.end(vanished=True)
    assert rank.answer(written).accepted
    rank.task = rank.helper()
    silent = rank.ask()
    rank.task.end(vanished=True)
    assert "ended" in (rank.answer(silent).reason or "")


def test_dump_older_than_the_rank_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "theirs-5"
    path.write_bytes(b"of another job")
    file = WatchdogFile(path, newer_than_ns=path.stat().st_mtime_ns + 1)
    assert [file.complete(), file.complete(), file.complete(last=True)] == [None, None, None]


def test_dump_of_a_crashed_rank_is_copied_into_the_run(rank: Rank) -> None:
    rank.tick()
    rank.obey("crash", "gloo")
    rank.task.end(vanished=False)
    assert rank.dumps() == {"rank-00005-crash-gloo.pickle": b"gloo of crash"}
