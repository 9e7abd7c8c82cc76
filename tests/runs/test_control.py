"""Requests to a running job: reading them is safe whatever the files contain, in bounded time and memory."""

from __future__ import annotations

import os
import resource
import stat
import time
from pathlib import Path

import msgspec
import pytest

from rankscope.runs import control, control_names
from rankscope.runs.control import (
    MAX_BYTES,
    MAX_REQUESTS,
    MAX_STEPS,
    ControlAnswer,
    ControlInbox,
    ControlRequest,
    answer,
    make_control_dir,
    new_request,
    post,
    read_answer,
)
from rankscope.runs.control_names import MAX_ENTRIES, MOST_VOID


class Reports(list[str]):
    """Reported lines."""

    def __call__(self, line: str) -> None:
        self.append(line)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    make_control_dir(path)
    return path


@pytest.fixture
def reports() -> Reports:
    return Reports()


def id_at(unix_ns: int, number: int = 0) -> str:
    return f"{unix_ns:019d}-{number:08x}"


def request_made(unix_ns: int, number: int = 0) -> ControlRequest:
    return msgspec.structs.replace(new_request("capture"), id=id_at(unix_ns, number), created_unix_ns=unix_ns)


def write(run: Path, name: str, content: bytes) -> Path:
    path = run / "control" / name
    path.write_bytes(content)
    return path


def test_a_request_is_handed_out_once_to_those_who_serve_its_kind(run: Path, reports: Reports) -> None:
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


def test_requests_come_in_the_order_in_which_they_were_made(run: Path, reports: Reports) -> None:
    now = time.time_ns()
    made = [request_made(now - after, after) for after in (3, 1, 2)]
    for request in made:
        post(run, request)
    requests = ControlInbox(run, "capture", since_unix_ns=0, report=reports).pending(now=True)
    assert [request.id for request in requests] == sorted(request.id for request in made)


def test_an_answer_reaches_who_asked_and_nobody_serves_the_request_again(run: Path, reports: Reports) -> None:
    request = new_request("capture")
    post(run, request)
    assert read_answer(run, request.id) is None
    given = ControlAnswer(id=request.id, accepted=True, first_step=70, last_step=72, attempt=1, answered_unix_ns=time.time_ns())
    answer(run, given)
    assert read_answer(run, request.id) == given
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


def test_what_has_been_answered_for_the_job_no_rank_does(run: Path, reports: Reports) -> None:
    request = new_request("dump")
    post(run, request)
    answer(run, ControlAnswer(id=request.id, accepted=False, reason="too soon", answered_unix_ns=1))
    assert ControlInbox(run, "dump", since_unix_ns=0, report=reports, rank=4).pending(now=True) == []


def test_answers_of_many_ranks_do_not_hide_requests(run: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 100
    monkeypatch.setattr(control, "MAX_ENTRIES", most)
    monkeypatch.setattr(control_names, "MAX_ENTRIES", most)
    # given a dump with more answers of ranks than the number of names that are read
    asked = new_request("dump")
    post(run, asked)
    given = ControlAnswer(id=asked.id, accepted=True, answered_unix_ns=1)
    answer(run, given, rank=0)
    answers = run / "control" / f"{asked.id}.answers"
    for rank in range(1, most + 1):
        (answers / f"{rank:05d}.json").touch()
    assert (read_answer(run, asked.id, rank=0), read_answer(run, asked.id, rank=1)) == (given, None)
    # then the next request is seen
    request = new_request("capture")
    post(run, request)
    assert ControlInbox(run, "capture", since_unix_ns=0, report=reports).pending(now=True) == [request]
    assert reports == []
    assert len(list((run / "control").iterdir())) == 3


def test_answers_go_nowhere_else_and_make_no_run_again(run: Path, tmp_path: Path) -> None:
    # given a link in place of the folder for answers
    request = new_request("dump")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / "control" / f"{request.id}.answers").symlink_to(elsewhere)
    given = ControlAnswer(id=request.id, accepted=True, answered_unix_ns=1)
    with pytest.raises(NotADirectoryError):
        answer(run, given, rank=0)
    assert list(elsewhere.iterdir()) == []
    (elsewhere / "00000.json").write_bytes(msgspec.json.encode(given))
    assert read_answer(run, request.id, rank=0) is None
    # and a run that was removed
    for rank in (None, 0):
        with pytest.raises(FileNotFoundError):
            answer(tmp_path / "removed", given, rank=rank)
    assert not (tmp_path / "removed").exists()


@pytest.mark.parametrize("rank", [None, 0])
def test_a_link_in_place_of_the_folder_is_not_written_through(tmp_path: Path, rank: int | None) -> None:
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


def test_a_link_in_place_of_a_request_is_replaced(run: Path, tmp_path: Path) -> None:
    target, request = tmp_path / "target", new_request("dump")
    target.write_bytes(b"precious")
    (run / "control" / f"{request.id}.json").symlink_to(target)
    post(run, request)
    assert target.read_bytes() == b"precious"
    assert not (run / "control" / f"{request.id}.json").is_symlink()
    assert len(list((run / "control").iterdir())) == 1


def answered(run: Path, made: int, number: int) -> None:
    """Write a request, its answers for the job and for one rank, and temporary files of a killed writer."""
    name = id_at(made, number)
    (run / "control" / f"{name}.answers").mkdir()
    for file in (".json", ".answer.json", ".answers/00001.json", ".answers/.00001.json.4711-0123456789ab"):
        write(run, name + file, b"")
    write(run, f".{name}.json.4711-0123456789ab", b"")


def test_old_requests_and_their_answers_are_removed(
    run: Path, reports: Reports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = run / "control"
    # given some requests of today, some of yesterday or tomorrow, and more of the last hours than are kept
    now, hour = time.time_ns(), 3600 * 10**9
    monkeypatch.setattr(control_names, "MOST_VOID", 3)
    ages = {1: 0, 2: 1 * hour, 3: 2 * hour, 4: 3 * hour, 5: 4 * hour, 6: 25 * hour, 7: -30 * hour}
    for number, age in ages.items():
        answered(run, now - age, number)
    kept = {path.name for number in (1, 2, 3, 4) for path in control.glob(f"*{id_at(now - ages[number], number)}*")}
    # and files that are not ours, with similar names
    old = now - 48 * hour
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "00001.json").touch()
    strange = [f"{id_at(old, 20)}.json", f"{id_at(old, 21)}.answers", f"{id_at(old, 22)}.json", f"{id_at(old, 23)}.answers"]
    (control / strange[0]).symlink_to(outside / "00001.json")
    (control / strange[1]).symlink_to(outside)
    (control / strange[2]).mkdir()
    (control / strange[3]).mkdir()
    strange += [f"{id_at(old, 24)}.txt", "notes.txt"]
    for name in (*strange[4:], f"{strange[3]}/notes.txt"):
        write(run, name, b"precious")
    # when a helper that does not clear reads the folder, then all files stay
    before = sorted(control.rglob("*"))
    ControlInbox(run, "dump", since_unix_ns=0, report=reports, rank=1).pending(now=True)
    assert sorted(control.rglob("*")) == before
    # when the clearing helper reads it, removing a few at a time, then new requests and foreign files stay
    monkeypatch.setattr(control_names, "REMOVED_AT_ONCE", 4)
    inbox = ControlInbox(run, "dump", since_unix_ns=0, report=reports, rank=0, clears=True)
    for _ in range(10):
        inbox.pending(now=True)
    assert {path.name for path in control.iterdir()} == kept | set(strange)
    assert (outside / "00001.json").exists()
    assert (control / strange[3] / "notes.txt").exists()


def test_no_request_that_waits_is_removed_however_many_there_are(run: Path, reports: Reports) -> None:
    now = time.time_ns()
    for number in range(MOST_VOID + 20):
        write(run, f"{id_at(now - number, number)}.json", b"")
    ControlInbox(run, "dump", since_unix_ns=0, report=reports, rank=0, clears=True).pending(now=True)
    assert len(list((run / "control").iterdir())) == MOST_VOID + 20


def test_a_request_that_waits_can_be_taken_back_and_gets_too_old(
    run: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_requests_of_earlier_attempts_of_the_past_or_future_are_void(run: Path, reports: Reports) -> None:
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
def test_what_nobody_may_ask_is_no_request(run: Path, reports: Reports, wrong: dict[str, object]) -> None:
    good = new_request("capture")
    write(run, f"{good.id}.json", msgspec.json.encode(msgspec.to_builtins(good) | wrong))
    inbox = ControlInbox(run, "capture", since_unix_ns=0, report=reports)
    assert inbox.pending(now=True) == []
    assert len(reports) == 1
    assert good.id in reports[0]


def test_nobody_can_post_what_nobody_may_ask() -> None:
    with pytest.raises(msgspec.ValidationError):
        new_request("capture", steps=MAX_STEPS + 1)
    with pytest.raises(msgspec.ValidationError):
        new_request("capture", ranks=[-1])


def test_a_folder_full_of_rubbish_costs_one_line_and_no_request(run: Path, reports: Reports, tmp_path: Path) -> None:
    # given a FIFO, a folder, links, damage of all kinds, and names that could lead elsewhere
    now = time.time_ns()
    names = (f"{id_at(now + number, number)}.json" for number in range(100))
    os.mkfifo(run / "control" / next(names))
    (run / "control" / next(names)).mkdir()
    outside = tmp_path / "outside.json"
    outside.write_bytes(msgspec.json.encode(request_made(now)))
    (run / "control" / next(names)).symlink_to(outside)
    (run / "control" / next(names)).symlink_to("/dev/zero")
    (run / "control" / next(names)).symlink_to(run / "control")
    write(run, next(names), b"")
    write(run, next(names), b"{" * 1000)
    write(run, next(names), b"[" * (MAX_BYTES - 1))
    write(run, next(names), b'{"unknown":' + b"[" * (MAX_BYTES // 2))
    write(run, next(names), b"\xff\xfe\x00")
    write(run, next(names), b" " * (MAX_BYTES + 1))
    with write(run, next(names), b"").open("r+b") as sparse:
        sparse.truncate(2**40)
    write(run, next(names), msgspec.json.encode(request_made(now, 4711)))  # under the name of another request
    for name in ("x.json", "..json", "0-0.json", f"{id_at(now)}.json.swp", f"{id_at(now)}\n.json", "\udcff.json"):
        write(run, name, b"{}")
    # and one valid request
    good = new_request("capture")
    post(run, good)
    # when they are read, twice
    inbox = ControlInbox(run, "capture", since_unix_ns=0, report=reports)
    requests = [*inbox.pending(now=True), *inbox.pending(now=True)]
    # then the valid one is found, and the others are reported, once
    assert requests == [good]
    assert len(reports) == 1
    assert reports[0].isprintable()


def test_unknown_fields_of_a_later_version_are_ignored(run: Path, reports: Reports) -> None:
    good = new_request("capture")
    write(run, f"{good.id}.json", msgspec.json.encode(msgspec.to_builtins(good) | {"colour": "blue"}))
    assert ControlInbox(run, "capture", since_unix_ns=0, report=reports).pending(now=True) == [good]


def test_any_number_of_files_neither_hangs_nor_grows_the_helper(run: Path, reports: Reports) -> None:
    # given more requests than are looked at
    now = time.time_ns()
    content = run / "control" / "content"
    content.write_bytes(msgspec.json.encode(new_request("dump")))
    for number in range(MAX_ENTRIES + 1000):
        (run / "control" / f"{id_at(now - number, number)}.json").symlink_to(content)
    inbox = ControlInbox(run, "capture", since_unix_ns=0, report=reports)
    inbox.pending(now=True)
    before, opened = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(list(Path("/proc/self/fd").iterdir()))
    # when the folder is read again and again
    for _ in range(20):
        assert inbox.pending(now=True) == []
    # then it stays within its bounds, and has reported it
    assert len(inbox._taken_names) <= MAX_REQUESTS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5 * 1024
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened
    assert [line for line in reports if str(MAX_ENTRIES) in line] == [reports[0]]
    assert len(reports) == 2


def test_requests_above_the_limit_are_seen_when_earlier_ones_are_void(
    run: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, minute = time.time_ns(), 60 * 10**9
    for number in range(MAX_REQUESTS + 10):
        write(run, f"{id_at(now + number, number)}.json", msgspec.json.encode(request_made(now + number, number)))
    inbox = ControlInbox(run, "capture", since_unix_ns=0, report=reports)
    assert len(inbox.pending(now=True)) == MAX_REQUESTS
    assert inbox.pending(now=True) == []
    # given a later request, and time passing without a change of the folder
    later = request_made(now + 5 * minute)
    write(run, f"{later.id}.json", msgspec.json.encode(later))
    monkeypatch.setattr(time, "time_ns", lambda: now + 11 * minute)
    assert inbox.pending(now=True) == [later]


def test_a_folder_that_is_not_there_or_is_something_else_holds_no_requests(tmp_path: Path, reports: Reports) -> None:
    assert ControlInbox(tmp_path, "capture", since_unix_ns=0, report=reports).pending(now=True) == []
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    post(elsewhere, new_request("capture"))
    for kind in ("fifo", "link"):
        run = tmp_path / kind
        run.mkdir()
        if kind == "fifo":
            os.mkfifo(run / "control")
        else:
            (run / "control").symlink_to(elsewhere / "control")
        inbox = ControlInbox(run, "capture", since_unix_ns=0, report=reports)
        assert inbox.pending(now=True) == []
        assert read_answer(run, id_at(1)) is None
    assert reports == []


def test_a_quiet_folder_is_not_listed_again_and_a_change_is_seen(
    run: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[object] = []
    scandir = os.scandir

    def counting(path: int) -> object:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    inbox = ControlInbox(run, "capture", since_unix_ns=0, report=reports)
    for _ in range(100):
        clock[0] += 1
        inbox.pending()
    quiet = len(listed)
    assert 1 <= quiet < 10
    # nor between the polls
    for _ in range(100):
        inbox.pending()
    assert len(listed) == quiet
    os.utime(run / "control", (1, 1))  # for any clock of the disk: a different time is a change
    clock[0] += 1
    request = new_request("capture")
    post(run, request)
    assert inbox.pending() == [request]


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o2775, 0o777, 0o700])
def test_whoever_may_write_into_the_run_may_ask(tmp_path: Path, mode: int) -> None:
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


def test_a_folder_of_another_group_is_not_opened_to_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
