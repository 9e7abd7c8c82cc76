"""Killed processes, full or damaged caches, removed runs: the pages report each fault and recover."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.dashboards.blocks import page_for, page_text

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.app import create_app
from rankscope.dashboards.data.source import NotReadyError, RunSummary
from rankscope.dashboards.live.pages import INTERNAL_ERROR
from rankscope.dashboards.runs.view import asked_row
from rankscope.dashboards.store.builders import InlineBuilder, JobBuilder
from rankscope.dashboards.store.cache import LEFT_AFTER_S, Store, error_text
from rankscope.dashboards.store.derive import PARTS, DerivedData
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.follow import FollowerState, Update, follow
from rankscope.dashboards.store.jobs import AnalysisProcess
from rankscope.dashboards.store.tasks import TaskReport
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.web.errors import ANSWER
from rankscope.dashboards.words.wording import utc_time

WriteRun = Callable[..., Path]


def aged(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    for file in (*path.rglob("*"), path):
        os.utime(file, (moment, moment))


def test_leftovers_of_killed_servers_are_removed_unless_in_use(tmp_path: Path) -> None:
    for name in (".half", ".old", ".new"):
        (tmp_path / name / "steps").mkdir(parents=True)
    for path in list(tmp_path.iterdir()):
        aged(path, LEFT_AFTER_S + 1)
    os.utime(tmp_path / ".new")  # as the follower of a live run does
    Store(tmp_path).put("key", lambda _folder: None)
    assert {path.name for path in tmp_path.iterdir()} == {".new", "key"}


def test_internal_error_shows_an_error_page_and_is_logged(memory_runs: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_run_id: str) -> None:
        raise KeyError("idle")

    memory_runs.summary = broken
    made = page_for("/run/run-1", "", memory_runs, DashboardConfig())
    assert INTERNAL_ERROR in str(made.content)
    assert made.name == "Error"
    assert [record.getMessage() for record in caplog.records] == ["page /run/run-1"]


def test_run_whose_follower_failed_shows_data_age_and_reason(
    tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a live run with a cached analysis
    run = write_run(tmp_path / "runs" / "run", steps=12, finished=False)
    folder = Store(tmp_path / "cache").new_folder()
    following = FollowerState(run, folder)
    failure = following.failure_of_update()
    builder = JobBuilder(Store(tmp_path / "cache"))

    def followed(_key: str, run: RunSummary, **_: bool) -> AnalysisProcess:
        job = AnalysisProcess("follow", run.name, large=False, arguments=[], asked_s=0, heard_s=0, folder=folder)
        job.report = report()
        return job

    def report() -> TaskReport:
        return TaskReport(update=Update("1", failure))

    monkeypatch.setattr(builder.jobs, "followed", followed)
    source = DiskRuns(tmp_path / "runs", builder)

    def page_says() -> str:
        return page_text(source, "/run/run-1")

    def list_says() -> str:
        return str(asked_row(source, source.summary("run-1")).get("health"))

    assert "nothing newer could be read" not in page_says() + list_says()
    as_of = utc_time((folder / "analysis.json").stat().st_mtime_ns)
    version = source.version("run-1")

    # When newer states of the run cannot be read
    def full(_following: object) -> None:
        raise OSError(28, "No space left on device", "/cache/steps")

    with monkeypatch.context() as broken:
        broken.setattr(FollowerState, "update", full)
        failure = following.failure_of_update()

        # Then the pages report it and show the last state
        result = f"As of {as_of}; nothing newer could be read, and it is tried again: /cache/steps: No space"
        assert source.version("run-1") == version, "nothing is drawn anew"
        assert result in page_says()
        assert "Rank 2" in page_says()
        assert result in list_says()

    # And the report disappears once the run can be read again
    failure = following.failure_of_update()
    assert "nothing newer could be read" not in page_says() + list_says()


def test_failed_follower_retries_without_a_file_change(
    tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = write_run(tmp_path / "run", steps=12, finished=False), Store(tmp_path / "cache").new_folder()
    reports, used_s, update = list[str | None](), list[float](), FollowerState.update

    def fail_first(following: FollowerState) -> None:
        if not reports:
            raise OSError(28, "No space left on device")
        update(following)

    def report(update: Update) -> None:
        reports.append(update.failure)
        os.utime(folder, (0, 0))

    def pause(_seconds: float) -> None:
        used_s.append(folder.stat().st_mtime)
        if len(used_s) == 3:
            raise InterruptedError

    monkeypatch.setattr(FollowerState, "update", fail_first)
    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(InterruptedError):
        follow(run, folder, report)
    assert reports == ["No space left on device", None]
    assert min(used_s) > 0, "it is in use"


@pytest.mark.parametrize("body", [b"[]", b"null", b"{}", b"[" * 100_000, b'{"output": "page.children", "inputs": 5}'])
def test_malformed_callback_request_is_a_500_and_its_trace_is_logged(
    memory_runs: Any, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    http = create_app(memory_runs).server.test_client()
    answer = http.post("/_dash-update-component", data=body, content_type="application/json")
    assert (answer.status_code, answer.text) == (500, ANSWER)
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_unknown_component_script_is_404(memory_runs: Any) -> None:
    answer = create_app(memory_runs).server.test_client().get("/_dash-component-suites/nobody/x.js")
    assert (answer.status_code, answer.text) == (404, "There is no such file.\n")


@pytest.mark.slow
def test_any_damaged_cache_file_is_rebuilt(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "runs" / "run", steps=32)
    cache = Store(tmp_path / "cache")

    def read() -> None:
        """Read everything as a server that has just started."""
        source = DiskRuns(tmp_path / "runs", InlineBuilder(cache))
        run = source.summary("run-1")
        for name in PARTS:
            source.part("run-1", name)
        steps = source.part("run-1", "steps")
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
        content = path.read_bytes()
        for damaged in (content[: len(content) // 2], content.replace(b':"', b':"\xff')):
            path.write_bytes(damaged)
            with contextlib.suppress(RankscopeError):
                read()
            read()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def test_part_that_stays_unreadable_after_rebuild_is_an_error(
    tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DiskRuns(write_run(tmp_path / "run", steps=12))

    def broken(derived: DerivedData, _name: str) -> None:
        raise InputError(derived.folder, "damaged")

    monkeypatch.setattr(DerivedData, "part", broken)
    with pytest.raises(NotReadyError, match="Rebuilding"):
        source.part("run-1", "analysis")
    for _ in range(2):
        with pytest.raises(InputError, match="damaged"):
            source.part("run-1", "analysis")


def test_entries_of_a_read_only_cache_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "cache")
    made = store.put("key", lambda folder: (folder / "made").touch())

    def refused(_path: Path) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))  # root may write anywhere

    monkeypatch.setattr(os, "utime", refused)
    assert store.find("key") == made
    assert store.find("another") is None


def test_full_disk_error_names_the_folder_and_the_cache_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error_text(error, tmp_path / "new") == "No space left on device"  # of another disk
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=0))
    result = error_text(error, tmp_path / "new")
    assert str(tmp_path) in result
    assert "--cache" in result
