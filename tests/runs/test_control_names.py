"""Folder of requests: what is old, void or foreign costs little, is never followed, and hides no request."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import msgspec
import pytest
from tests.runs.control_requests import Reports, id_at, request_made, write

from rankscope.runs import control_names
from rankscope.runs.control import MAX_BYTES, MAX_REQUESTS, ControlInbox, new_request, post, read_answer
from rankscope.runs.control_names import MAX_ENTRIES, MOST_VOID


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


def test_pending_requests_are_never_removed_regardless_of_their_number(run: Path, reports: Reports) -> None:
    now = time.time_ns()
    for number in range(MOST_VOID + 20):
        write(run, f"{id_at(now - number, number)}.json", b"")
    ControlInbox(run, "dump", since_unix_ns=0, report=reports, rank=0, clears=True).pending(now=True)
    assert len(list((run / "control").iterdir())) == MOST_VOID + 20


def test_invalid_files_are_reported_in_one_line_and_hide_no_request(run: Path, reports: Reports, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_any_number_of_files_keeps_memory_and_open_files_bounded(run: Path, reports: Reports) -> None:
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


def test_later_requests_are_read_after_earlier_ones_expire(run: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_missing_or_foreign_control_folder_has_no_requests(tmp_path: Path, reports: Reports) -> None:
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


def test_unchanged_folder_is_not_listed_again_and_a_change_is_detected(
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
