"""Requests to a running job: reading them is safe whatever the files contain, in bounded time and memory."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import msgspec
import pytest
from tests.runs.control_requests import Reports, id_at, request_made, write

from rankscope.runs import control, control_names
from rankscope.runs.control import (
    MAX_STEPS,
    ControlAnswer,
    ControlInbox,
    answer,
    make_control_dir,
    new_request,
    post,
    read_answer,
)


def test_request_is_delivered_once_to_inboxes_of_its_kind(run: Path, reports: Reports) -> None:
    # given inboxes for captures, and for dumps of two ranks
    captures = ControlInbox(run, "capture", since_unix_ns=0, report=reports)
    dumps = [ControlInbox(run, "dump", since_unix_ns=0, report=reports, rank=rank) for rank in (0, 1)]
    assert captures.pending(now=True) == []
    # when requests for both are posted, the dump of rank 1 only
    wanted = new_request("capture", steps=5, ranks=[3, 4], keep_trace=True, note="slow since noon")
    path = post(run, wanted)
    dump = new_request("dump", ranks=[1])
    post(run, dump)
    # then each gets its own, whole, and once
    assert path == run / "control" / f"{wanted.id}.json"
    assert captures.pending(now=True) == [wanted]
    assert [inbox.pending(now=True) for inbox in dumps] == [[], [dump]]
    assert captures.pending(now=True) == dumps[1].pending(now=True) == []
    assert "@" in wanted.by
    assert reports == []


def test_requests_are_ordered_by_creation_time(run: Path, reports: Reports) -> None:
    now = time.time_ns()
    made = [request_made(now - after, after) for after in (3, 1, 2)]
    for request in made:
        post(run, request)
    requests = ControlInbox(run, "capture", since_unix_ns=0, report=reports).pending(now=True)
    assert [request.id for request in requests] == sorted(request.id for request in made)


def test_answer_reaches_the_client_and_the_request_is_not_served_again(run: Path, reports: Reports) -> None:
    request = new_request("capture")
    post(run, request)
    assert read_answer(run, request.id) is None
    sent = ControlAnswer(id=request.id, accepted=True, first_step=70, last_step=72, attempt=1, answered_unix_ns=time.time_ns())
    answer(run, sent)
    assert read_answer(run, request.id) == sent
    # then a helper that replaced the one that answered does not see it
    assert ControlInbox(run, "capture", since_unix_ns=0, report=reports).pending(now=True) == []


def test_each_rank_answers_for_itself(run: Path, reports: Reports) -> None:
    request = new_request("dump")
    post(run, request)
    no = ControlAnswer(id=request.id, accepted=False, reason="no recorder in this torch", answered_unix_ns=1)
    answer(run, no, rank=5)
    assert read_answer(run, request.id, rank=5) == no
    assert read_answer(run, request.id) is read_answer(run, request.id, rank=4) is None
    assert ControlInbox(run, "dump", since_unix_ns=0, report=reports, rank=5).pending(now=True) == []
    assert ControlInbox(run, "dump", since_unix_ns=0, report=reports, rank=4).pending(now=True) == [request]


def test_request_answered_for_the_job_is_not_pending_for_any_rank(run: Path, reports: Reports) -> None:
    request = new_request("dump")
    post(run, request)
    answer(run, ControlAnswer(id=request.id, accepted=False, reason="too soon", answered_unix_ns=1))
    assert ControlInbox(run, "dump", since_unix_ns=0, report=reports, rank=4).pending(now=True) == []


def test_answers_of_many_ranks_do_not_hide_requests(run: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 100
    monkeypatch.setattr(control, "MAX_ENTRIES", most)
    monkeypatch.setattr(control_names, "MAX_ENTRIES", most)
    # given a dump with more answers of ranks than the number of names that are read
    dump_request = new_request("dump")
    post(run, dump_request)
    sent = ControlAnswer(id=dump_request.id, accepted=True, answered_unix_ns=1)
    answer(run, sent, rank=0)
    answers = run / "control" / f"{dump_request.id}.answers"
    for rank in range(1, most + 1):
        (answers / f"{rank:05d}.json").touch()
    assert (read_answer(run, dump_request.id, rank=0), read_answer(run, dump_request.id, rank=1)) == (sent, None)
    # then the next request is seen
    request = new_request("capture")
    post(run, request)
    assert ControlInbox(run, "capture", since_unix_ns=0, report=reports).pending(now=True) == [request]
    assert reports == []
    assert len(list((run / "control").iterdir())) == 3


def test_answers_follow_no_link_and_recreate_no_removed_run(run: Path, tmp_path: Path) -> None:
    # given a link in place of the folder for answers
    request = new_request("dump")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / "control" / f"{request.id}.answers").symlink_to(elsewhere)
    sent = ControlAnswer(id=request.id, accepted=True, answered_unix_ns=1)
    with pytest.raises(NotADirectoryError):
        answer(run, sent, rank=0)
    assert list(elsewhere.iterdir()) == []
    (elsewhere / "00000.json").write_bytes(msgspec.json.encode(sent))
    assert read_answer(run, request.id, rank=0) is None
    # and a run that was removed
    for rank in (None, 0):
        with pytest.raises(FileNotFoundError):
            answer(tmp_path / "removed", sent, rank=rank)
    assert not (tmp_path / "removed").exists()


@pytest.mark.parametrize("rank", [None, 0])
def test_link_in_place_of_the_control_folder_is_not_written_through(tmp_path: Path, rank: int | None) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    run = tmp_path / "run"
    run.mkdir(mode=0o777)
    (run / "control").symlink_to(elsewhere)
    before = elsewhere.stat()
    with pytest.raises(NotADirectoryError):
        post(run, new_request("dump"))
    with pytest.raises(NotADirectoryError):
        answer(run, ControlAnswer(id=new_request("dump").id, accepted=True, answered_unix_ns=1), rank=rank)
    assert list(elsewhere.iterdir()) == []
    assert elsewhere.stat().st_mode == before.st_mode


def test_link_in_place_of_a_request_is_replaced(run: Path, tmp_path: Path) -> None:
    target, request = tmp_path / "target", new_request("dump")
    target.write_bytes(b"precious")
    (run / "control" / f"{request.id}.json").symlink_to(target)
    post(run, request)
    assert target.read_bytes() == b"precious"
    assert not (run / "control" / f"{request.id}.json").is_symlink()
    assert len(list((run / "control").iterdir())) == 1


def test_pending_request_can_be_withdrawn_and_expires(run: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    request = new_request("capture")
    path = post(run, request)
    inbox = ControlInbox(run, "capture", since_unix_ns=0, report=reports)
    assert inbox.pending(now=True) == [request]
    assert inbox.still_wanted(request)
    with monkeypatch.context() as later:
        later.setattr(time, "time_ns", lambda: request.created_unix_ns + 601 * 10**9)
        assert not inbox.still_wanted(request)
    path.unlink()
    assert not inbox.still_wanted(request)


def test_requests_of_earlier_attempts_or_distant_times_are_void(run: Path, reports: Reports) -> None:
    now, minute = time.time_ns(), 60 * 10**9
    began = now - 2 * minute
    for number, made in enumerate((began - 1, began + 1, now, now + minute, now + 11 * minute, 9_999_999_999_999_999_999)):
        write(run, f"{id_at(made, number)}.json", msgspec.json.encode(request_made(min(made, 2**63 - 1), number)))
    requests = ControlInbox(run, "capture", since_unix_ns=began, report=reports).pending(now=True)
    assert [request.created_unix_ns for request in requests] == [began + 1, now, now + minute]
    # and without the start of an attempt, age alone decides
    write(run, f"{id_at(now - 11 * minute, 9)}.json", msgspec.json.encode(request_made(now - 11 * minute, 9)))
    assert len(ControlInbox(run, "capture", since_unix_ns=0, report=reports).pending(now=True)) == 4
    assert reports == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"steps": -3},
        {"steps": MAX_STEPS + 1},
        {"steps": 10**400},
        {"ranks": [-1]},
        {"ranks": [2**31]},
        {"ranks": []},
        {"kind": "delete"},
        {"schema": "rankscope.control/2"},
        {"created_unix_ns": -1},
        {"note": "x" * 1000},
        {"by": "x" * 1000},
        {"id": "../../../etc/passwd"},
    ],
    ids=lambda wrong: "-".join(f"{key}={str(value)[:12]}" for key, value in wrong.items()),
)
def test_invalid_request_file_is_ignored_and_reported_once(run: Path, reports: Reports, wrong: dict[str, object]) -> None:
    good = new_request("capture")
    write(run, f"{good.id}.json", msgspec.json.encode(msgspec.to_builtins(good) | wrong))
    inbox = ControlInbox(run, "capture", since_unix_ns=0, report=reports)
    assert inbox.pending(now=True) == []
    assert len(reports) == 1
    assert good.id in reports[0]


def test_invalid_request_cannot_be_created() -> None:
    with pytest.raises(msgspec.ValidationError):
        new_request("capture", steps=MAX_STEPS + 1)
    with pytest.raises(msgspec.ValidationError):
        new_request("capture", ranks=[-1])


def test_unknown_fields_of_a_later_version_are_ignored_in_a_request(run: Path, reports: Reports) -> None:
    good = new_request("capture")
    write(run, f"{good.id}.json", msgspec.json.encode(msgspec.to_builtins(good) | {"colour": "blue"}))
    assert ControlInbox(run, "capture", since_unix_ns=0, report=reports).pending(now=True) == [good]


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o2775, 0o777, 0o700])
def test_control_folder_has_the_mode_and_group_of_the_run(tmp_path: Path, mode: int) -> None:
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(mode)
    previous = os.umask(0o077)
    try:
        make_control_dir(run)
        make_control_dir(run)
    finally:
        os.umask(previous)
    made = (run / "control").stat()
    assert stat.S_IMODE(made.st_mode) == mode
    assert made.st_gid == run.stat().st_gid


def test_control_folder_is_private_when_the_group_cannot_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a run of a group to which this process cannot assign files
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o770)

    def refuse(*_: object) -> None:
        raise PermissionError

    whose = run.stat()
    monkeypatch.setattr(os, "fchown", refuse)
    stat_of = Path.stat
    another = os.stat_result((whose.st_mode, 0, 0, 0, whose.st_uid, whose.st_gid + 1, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda path, **how: another if path == run else stat_of(path, **how))
    make_control_dir(run)
    assert stat.S_IMODE(stat_of(run / "control").st_mode) == 0o700
