"""Runs on a remote filesystem: their local copy follows growth and removal, and reports when it is outdated."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import httpx
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rankscope.base.errors import InputError, MissingError
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.mirror import Mirror, copied, not_renewed
from rankscope.dashboards.timeline.capture import NotLiveError, request_capture
from rankscope.runs.reader import RunReader
from rankscope.runs.step_columns import ROW_BYTES

URL = "memory://bucket/runs"


@pytest.fixture
def remote() -> Iterator[Callable[[Path], None]]:
    """Function ``remote(folder)`` that replaces the files at ``URL`` by those of a folder."""
    filesystem = fsspec.filesystem("memory")

    def put(folder: Path) -> None:
        if filesystem.exists("/bucket"):
            filesystem.rm("/bucket", recursive=True)
        for file in folder.rglob("*"):
            if file.is_file():
                filesystem.pipe_file(f"/bucket/runs/{file.relative_to(folder).as_posix()}", file.read_bytes())

    yield put
    if filesystem.exists("/bucket"):
        filesystem.rm("/bucket", recursive=True)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    }


def test_a_copy_grows_changes_and_shrinks_with_what_is_there(
    tmp_path: Path, write_run: Callable[..., Path], remote: Callable[[Path], None]
) -> None:
    runs, here = tmp_path / "runs", tmp_path / "here"
    write_run(runs / "a", run_id="a", finished=False)
    write_run(runs / "b", run_id="b")
    remote(runs)
    Mirror(URL, here).bring()
    assert files_of(here) == files_of(runs)

    steps = next((here / "a").rglob("steps-*.npy"))
    inode, before = steps.stat().st_ino, steps.read_bytes()
    original = runs / steps.relative_to(here)
    original.write_bytes(before + before[-ROW_BYTES:])
    shutil.rmtree(runs / "b")
    (runs / "a" / "run.json").write_text((runs / "a" / "run.json").read_text() + " ")
    remote(runs)
    Mirror(URL, here).bring()  # as in another process, which knows only the local files
    assert files_of(here) == files_of(runs)
    assert steps.stat().st_ino == inode, "who follows it reads on where it was"
    assert not (here / "b").exists()


def test_what_is_not_shown_or_would_lead_out_stays_where_it_is(tmp_path: Path, remote: Callable[[Path], None]) -> None:
    runs = tmp_path / "runs"
    for name in ("a/run.json", "a/control/request.json", "a/attempts/000/traces/big.json", "a/.hidden"):
        (runs / name).parent.mkdir(parents=True, exist_ok=True)
        (runs / name).write_text("{}")
    remote(runs)
    fsspec.filesystem("memory").store["/bucket/runs/../../../outside"] = fsspec.filesystem("memory").store[
        "/bucket/runs/a/run.json"
    ]
    try:
        Mirror(URL, tmp_path / "here").bring()
    finally:
        del fsspec.filesystem("memory").store["/bucket/runs/../../../outside"]
    assert set(files_of(tmp_path / "here")) == {"a/run.json"}
    assert not (tmp_path / "outside").exists()


def test_runs_of_a_copy_say_where_they_are_from_and_take_no_requests(
    tmp_path: Path, write_run: Callable[..., Path], remote: Callable[[Path], None]
) -> None:
    write_run(tmp_path / "runs" / "a", run_id="a", finished=False)
    remote(tmp_path / "runs")
    Mirror(URL, tmp_path / "here").bring()
    source = DiskRuns(tmp_path / "here", copy_of=URL)
    (run,) = source.runs()
    assert run.copy_of == f"{URL}/a"
    with pytest.raises(NotLiveError, match=r"copy of memory://bucket/runs/a"):
        request_capture(source, "a", 3)


def test_a_copy_that_cannot_be_renewed_says_since_when_and_why(
    tmp_path: Path, write_run: Callable[..., Path], remote: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "runs" / "a", run_id="a")
    remote(tmp_path / "runs")
    here = tmp_path / "here"
    copy = Mirror(URL, here)
    looks = 0

    def pause(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            assert not_renewed(here) is None
            (tmp_path / "empty").mkdir()
            remote(tmp_path / "empty")
        elif looks == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        copy.follow()
    stale = not_renewed(here)
    assert stale is not None
    assert URL in stale.why
    assert (here / "a" / "run.json").exists(), "what was there is still shown"
    note = DiskRuns(here, copy_of=URL).stale("a")
    assert note == stale


def test_what_cannot_be_copied_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for url in ("memory://nothing/here", (tmp_path / "a file").as_uri()):
        (tmp_path / "a file").touch()
        with pytest.raises(InputError, match="no such folder"):
            copied(url, lambda _what: None)
    with pytest.raises((InputError, MissingError), match="nosuch"):
        copied("nosuch://bucket/runs", lambda _what: None)


@pytest.mark.slow
def test_runs_at_a_url_are_served_and_followed_and_nothing_is_left_running(
    tmp_path: Path, write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "runs" / "a", run_id="a", name="first")
    command = [sys.executable, "-m", "rankscope", "dashboard", f"file://{tmp_path}/runs", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = server.stderr.readline().partition(": ")[2].split()[0]
        try:
            assert httpx.get(f"{url}run/a", timeout=120).status_code == 200
            write_run(tmp_path / "runs" / "b", run_id="b", name="second")
            copy = next((tmp_path / "cache").rglob("a/run.json")).parents[1]
            until = time.monotonic() + 120
            while not (copy / "b" / "run.json").exists() and time.monotonic() < until:
                time.sleep(0.2)
            assert RunReader(copy / "b").info.name == "second"
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=120) == 0
        assert server.stderr.read() == "", "whoever copies has it open, too, and is gone"


def test_a_copy_whose_process_died_is_out_of_date(
    tmp_path: Path, write_run: Callable[..., Path], remote: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a process that updated a copy once and was killed
    write_run(tmp_path / "runs" / "a", run_id="a")
    remote(tmp_path / "runs")

    def killed(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", killed)
    with pytest.raises(KeyboardInterrupt):
        Mirror(URL, tmp_path / "here").follow()
    assert not_renewed(tmp_path / "here") is None
    # when its next update is long overdue
    now = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now + 3600 * 10**9)
    stale = not_renewed(tmp_path / "here")
    # then that is said
    assert stale is not None
    assert stale.as_of_unix_ns <= now


def test_what_a_partial_listing_leaves_out_is_not_deleted(
    tmp_path: Path, write_run: Callable[..., Path], remote: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a copy of two runs
    runs, here = tmp_path / "runs", tmp_path / "here"
    for name in ("a", "b"):
        write_run(runs / name, run_id=name, steps=3)
    remote(runs)
    Mirror(URL, here).bring()
    # when a listing lacks one of them and files of the other, which are still there
    find = MemoryFileSystem.find

    def partial(self: MemoryFileSystem, path: str, **options: Any) -> Any:
        listed = find(self, path, **options)
        return {name: about for name, about in listed.items() if "/b/" not in name and "rank.json" not in name}

    monkeypatch.setattr(MemoryFileSystem, "find", partial)
    Mirror(URL, here).bring()
    # then nothing is deleted
    assert files_of(here) == files_of(runs)
