"""Killed processes, full or damaged caches, removed runs: the pages report each fault and recover."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.dashboards.blocks import page_for, page_text
from tests.step_files import steps_file

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.app import create_app
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.live.pages import OUR_FAULT
from rankscope.dashboards.runs.view import asked_row
from rankscope.dashboards.store import follow, jobs
from rankscope.dashboards.store.cache import LEFT_AFTER_S, Store
from rankscope.dashboards.store.derive import Derived
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.follow import Following, Live
from rankscope.dashboards.store.jobs import FAILURE_LASTS_S, MOST_BEGUN, Jobs, ended_silently
from rankscope.dashboards.store.making import MadeBeside, MadeHere
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.web.unforeseen import ANSWER
from rankscope.dashboards.words.wording import moment

WriteRun = Callable[..., Path]


def killed_at_once(*_: object, **__: object) -> None:
    """Stand-in for the start of a process that is killed at once."""


def updated(folder: Path, run: Path) -> None:
    """Do one periodic update of a process that follows a run."""
    Live(folder, run).update(Following(run, folder))


def aged(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    for file in (*path.rglob("*"), path):
        os.utime(file, (moment, moment))


def test_what_is_killed_each_time_is_said_and_tried_again_a_while_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "start", killed_at_once)
    ask = Jobs(Store(tmp_path))
    for _ in range(MOST_BEGUN):
        assert ask.want("key", "analyse", ["run"]).failure is None
    for _ in range(2):
        assert "killed for want of memory" in str(ask.want("key", "analyse", ["run"]).failure)
    aged(tmp_path / ".state-key", FAILURE_LASTS_S)
    assert ask.want("key", "analyse", ["run"]).failure is None


def test_what_is_made_leaves_no_word_of_how_often_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "start", killed_at_once)
    monkeypatch.setitem(jobs.TASKS, "analyse", lambda _arguments, _folder, _tell: None)
    ask = Jobs(Store(tmp_path))
    ask.want("key", "analyse", ["run"])
    assert (tmp_path / ".state-key").exists()
    ask.work("key", "analyse", ["run"])
    assert not (tmp_path / ".state-key").exists()


def test_a_follower_that_is_killed_each_time_is_said_and_begun_again_a_while_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "start", killed_at_once)
    live = Live(tmp_path / "live", tmp_path / "run")
    assert live.look() is None, "it has only just been begun"
    seen = live.look()
    assert seen is not None
    assert "killed for want of memory" in str(seen.failure)
    aged(tmp_path / "live", FAILURE_LASTS_S)
    assert live.look() is None


def test_what_killed_jobs_left_makes_room_and_what_is_used_stays(tmp_path: Path) -> None:
    for name in (".key-half", ".live-old", ".live-new"):
        (tmp_path / name / "steps").mkdir(parents=True)
        (tmp_path / name / "looked").touch()
    for name in (".lock-old", ".state-old", ".slot-0"):
        (tmp_path / name).touch()
    for path in list(tmp_path.iterdir()):
        aged(path, LEFT_AFTER_S + 1)
    (tmp_path / ".live-new" / "looked").touch()
    Store(tmp_path).put("key", lambda _folder: None)
    assert {path.name for path in tmp_path.iterdir()} == {".live-new", ".slot-0", "key"}


def test_no_process_that_has_ended_stays_a_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Seen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Seen)
    before = set(threading.enumerate())
    jobs.start("this", [], locks=[])
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()
    (pid,) = started
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_an_error_of_ours_is_a_page_that_says_so_and_a_line_in_the_log(
    memory_runs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_run_id: str) -> None:
        raise KeyError("idle")

    memory_runs.summary = broken
    page, title = page_for("/run/run-1", "", memory_runs, DashboardConfig())
    assert OUR_FAULT in str(page)
    assert title == "Error"
    assert [record.getMessage() for record in caplog.records] == ["page /run/run-1"]


def test_a_live_run_that_cannot_be_followed_any_more_says_as_of_when_it_is_shown_and_why(
    tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a live run with a cached analysis
    run = write_run(tmp_path / "runs" / "run", steps=12, finished=False)
    monkeypatch.setattr(follow, "start", lambda _module, arguments, **_: updated(*arguments))
    source = DiskRuns(tmp_path / "runs", MadeBeside(Store(tmp_path / "cache"), patience_s=0.0))

    def page_says() -> str:
        return page_text(source, "/run/run-1")

    def list_says() -> str:
        return str(asked_row(source, source.summary("run-1")).get("health"))

    assert "nothing newer could be read" not in page_says() + list_says()
    (written,) = (tmp_path / "cache").glob(".live-*/analysis.json")
    folder, as_of = written.parent, moment(written.stat().st_mtime_ns)
    version = source.version("run-1")

    # When newer states of the run cannot be read
    def full(_following: object) -> None:
        raise OSError(28, "No space left on device", "/cache/steps")

    with monkeypatch.context() as broken:
        broken.setattr(Following, "update", full)
        steps_file(run, 0).touch()
        updated(folder, run)

        # Then the pages report it and show the last state
        told = f"As of {as_of}; nothing newer could be read, and it is tried again: /cache/steps: No space"
        assert source.version("run-1") == version, "nothing is drawn anew"
        assert told in page_says()
        assert "Rank 2" in page_says()
        assert told in list_says()

    # And the report disappears once the run can be read again
    steps_file(run, 1).touch()
    updated(folder, run)
    assert "nothing newer could be read" not in page_says() + list_says()


@pytest.mark.parametrize("body", [b"[]", b"null", b"{}", b"[" * 100_000, b'{"output": "page.children", "inputs": 5}'])
def test_what_no_page_sends_gets_a_line_and_its_trace_is_logged_once(
    memory_runs: Any, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    http = create_app(memory_runs).server.test_client()
    for _ in range(3):
        answer = http.post("/_dash-update-component", data=body, content_type="application/json")
        assert (answer.status_code, answer.text) == (500, ANSWER)
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False]


def test_a_script_that_is_none_of_ours_is_not_there(memory_runs: Any) -> None:
    answer = create_app(memory_runs).server.test_client().get("/_dash-component-suites/nobody/x.js")
    assert (answer.status_code, answer.text) == (404, "There is no such file.\n")


def test_what_is_cached_and_damaged_is_made_anew_whatever_file_it_is(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "runs" / "run", steps=32)
    cache = Store(tmp_path / "cache")

    def read() -> None:
        """Read everything as a server that has just started."""
        source = DiskRuns(tmp_path / "runs", MadeHere(cache))
        run = source.summary("run-1")
        for what in (source.analysis, source.blame, source.trend, source.topology, source.hardware, source.events):
            what("run-1")
        steps = source.steps("run-1")
        for metric in steps.metrics:
            assert steps.part(metric).values.shape == (4, 32)
        (window,) = source.windows(run).windows
        source.window(run, window)

    read()
    files = {
        path.name: path for path in cache.root.rglob("*") if path.is_file() and path.suffix != ".f32" and path.stat().st_size
    }
    files["matrix"] = next(cache.root.rglob("own_us.1.*.f32"))
    assert len(files) > 8
    for path in files.values():
        whole = path.read_bytes()
        for damaged in (whole[: len(whole) // 2], whole.replace(b':"', b':"\xff')):
            path.write_bytes(damaged)
            with contextlib.suppress(RankscopeError):
                read()
            read()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(whole)


def test_what_cannot_be_read_although_it_was_made_anew_is_said(
    tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DiskRuns(write_run(tmp_path / "run", steps=12))

    def broken(derived: Derived) -> None:
        raise InputError(derived.folder, "damaged")

    monkeypatch.setattr(Derived, "analysis", broken)
    with pytest.raises(NotReadyError, match="anew"):
        source.analysis("run-1")
    for _ in range(2):
        with pytest.raises(InputError, match="damaged"):
            source.analysis("run-1")


def test_a_full_disk_is_named_where_nobody_could_write_that_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=0))
    why = ended_silently("what follows this run", tmp_path)
    assert "full" in why
    assert str(tmp_path) in why
    assert "XDG_CACHE_HOME" in why


def test_what_is_in_a_cache_that_may_only_be_read_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "cache")
    made = store.put("key", lambda folder: (folder / "made").touch())

    def refused(_path: Path) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))  # root may write anywhere

    monkeypatch.setattr(os, "utime", refused)
    assert store.find("key") == made
    assert store.find("another") is None


def test_a_full_disk_is_told_with_its_folder_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = jobs.in_words(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert told.startswith(str(tmp_path))
    assert "XDG_CACHE_HOME" in told
