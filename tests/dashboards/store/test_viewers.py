"""Several viewers, several live runs, and time that passes: no request waits, followers are bounded, cancelling is one's own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.dashboards.live.dash_client import Caller
from tests.waiting import wait_until

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.app import create_app
from rankscope.dashboards.data.background import BackgroundAnswers
from rankscope.dashboards.data.memory_cache import MemoryCache
from rankscope.dashboards.data.source import NotReadyError, RunSummary
from rankscope.dashboards.data.viewer import VIEWER
from rankscope.dashboards.store import run_folder
from rankscope.dashboards.store.builders import JobBuilder
from rankscope.dashboards.store.cache import Store
from rankscope.dashboards.store.derive import PARTS, derive
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.endings import CANCELLED, Ending
from rankscope.dashboards.store.follow import FollowerState, Update
from rankscope.dashboards.store.footprint import footprint
from rankscope.dashboards.store.jobs import (
    FAILURE_LASTS_S,
    FOLLOWER_IDLE_TIMEOUT_S,
    MAX_FOLLOWERS,
    WAITS_S,
    WATCHED_S,
    AnalysisProcess,
    Jobs,
)
from rankscope.dashboards.store.tasks import TaskReport
from rankscope.dashboards.timeline.windows import Window

WriteRun = Callable[..., Path]
GIB = 1 << 30


class Clock:
    """Clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """Clock of the jobs."""
    return Clock()


@pytest.fixture
def jobs(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Jobs whose processes are not started; they may take 4 GiB together."""
    monkeypatch.setattr(Jobs, "_attend", lambda *_: None)
    return Jobs(Store(tmp_path / "cache"), 4 * GIB, clock_s=clock)


def a_run(name: str, *, status: Any = "live", **about: Any) -> RunSummary:
    return RunSummary(run_id=name, name=name, path=f"/runs/{name}", revision="1", status=status, **about)


def follow(jobs: Jobs, name: str, *, watched: bool = True, used_bytes: int = 0) -> AnalysisProcess:
    """Ask for a live run, and let its follower read it."""
    with contextlib.suppress(NotReadyError):
        jobs.followed(name, a_run(name), watched=watched)
    job = jobs._jobs[name]
    job.report, job.used_bytes = TaskReport(update=Update("1")), used_bytes or job.used_bytes
    return job


def going_on(jobs: Jobs) -> list[str]:
    """Return the keys of the jobs that have no reason to end; the others end."""
    for key, job in list(jobs._jobs.items()):
        if jobs._ending(job) is not None:
            del jobs._jobs[key]
    return list(jobs._jobs)


@contextmanager
def viewer(name: str) -> Iterator[None]:
    """Act as a viewer."""
    token = VIEWER.set(name)
    yield
    VIEWER.reset(token)


# Followers ------------------------------------------------------------------------------------------------------------------


def test_least_recently_viewed_follower_is_stopped_at_the_limit(jobs: Jobs, clock: Clock) -> None:
    for number in range(MAX_FOLLOWERS):
        follow(jobs, f"run-{number}")
        clock.now_s += WATCHED_S
    follow(jobs, "run-0")
    follow(jobs, "new")
    assert going_on(jobs) == [f"run-{number}" for number in range(MAX_FOLLOWERS) if number != 1] + ["new"]


def test_page_in_view_keeps_its_follower(jobs: Jobs, clock: Clock) -> None:
    for number in range(MAX_FOLLOWERS):
        follow(jobs, f"run-{number}")
    with pytest.raises(NotReadyError, match="turn"):
        jobs.followed("new", a_run("new"))
    assert len(going_on(jobs)) == MAX_FOLLOWERS
    clock.now_s += WATCHED_S + 1
    follow(jobs, "run-0")
    follow(jobs, "new")
    assert set(going_on(jobs)) > {"run-0", "new"}


def test_page_evicts_a_follower_of_the_list_but_the_list_evicts_none(jobs: Jobs) -> None:
    for number in range(MAX_FOLLOWERS):
        follow(jobs, f"run-{number}", watched=number == 0)
    with pytest.raises(NotReadyError, match="turn"):
        jobs.followed("listed", a_run("listed"), watched=False)
    follow(jobs, "page")
    assert set(going_on(jobs)) == {"run-0", *(f"run-{number}" for number in range(2, MAX_FOLLOWERS)), "page"}


def test_hidden_tab_polling_once_a_minute_keeps_its_follower(jobs: Jobs, clock: Clock) -> None:
    for _ in range(10):
        follow(jobs, "run")
        clock.now_s += 60
        assert going_on(jobs) == ["run"]
    clock.now_s += FOLLOWER_IDLE_TIMEOUT_S
    assert going_on(jobs) == []


@pytest.mark.parametrize(("used", "left"), [(True, ["run"]), (False, [])])
def test_run_list_does_not_keep_a_follower_alive(jobs: Jobs, clock: Clock, left: list[str], *, used: bool) -> None:
    follow(jobs, "run")
    clock.now_s += FOLLOWER_IDLE_TIMEOUT_S + 1
    assert jobs.follower("run", used=used) is not None
    assert going_on(jobs) == left


def test_all_jobs_together_stay_within_the_memory_limit(jobs: Jobs, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        follow(jobs, name, used_bytes=GIB)
        clock.now_s += 1
    assert going_on(jobs) == ["a", "b", "c"]
    clock.now_s += WATCHED_S
    follow(jobs, "a")
    jobs._jobs["c"].used_bytes = 3 * GIB
    longest = jobs._jobs["b"]
    assert going_on(jobs) == ["a", "c"], "b was not looked at for the longest"
    assert longest.ending == Ending(), "it may begin again"
    assert follow(jobs, "b").ending is None


def test_job_that_exceeds_the_memory_limit_is_stopped_alone(jobs: Jobs) -> None:
    follow(jobs, "small", used_bytes=GIB)
    large = follow(jobs, "large", used_bytes=5 * GIB)
    assert going_on(jobs) == ["small"]
    assert large.ending is not None
    assert "4.0 GiB" in str(large.ending.failure)


def test_analysis_evicts_a_follower_for_memory_with_a_reason(jobs: Jobs) -> None:
    watched = follow(jobs, "watched", used_bytes=2 * GIB)
    with pytest.raises(NotReadyError):
        jobs.result("analysis", "analyse", [], [a_run("other", status="finished")])
    jobs._jobs["analysis"].used_bytes = 3 * GIB
    assert going_on(jobs) == ["analysis"]
    assert watched.ending is not None
    assert "together" in str(watched.ending.failure), "it would begin again at once otherwise"


# Cancelling ------------------------------------------------------------------------------------------------------------------


def ask(jobs: Jobs, who: str) -> str:
    """Ask for an analysis as a viewer; return what the viewer reads."""
    with viewer(who), pytest.raises(RankscopeError) as error:
        jobs.result("key", "analyse", [], [a_run("run", status="finished")])
    return str(error.value)


def test_viewer_cannot_cancel_a_job_that_another_viewer_waits_for(jobs: Jobs, clock: Clock) -> None:
    assert ask(jobs, "ann") == ask(jobs, "ben") == "Starting"
    with viewer("ann"):
        assert not jobs.cancel("key")
    assert ask(jobs, "ann") == CANCELLED
    assert ask(jobs, "ben") == "Starting"
    assert going_on(jobs) == ["key"]
    with viewer("ben"):
        assert jobs.cancel("key")
    assert going_on(jobs) == []
    assert ask(jobs, "eve") == "Starting", "what others cancelled is no reason not to begin it"
    clock.now_s += FAILURE_LASTS_S
    assert ask(jobs, "ann") == "Starting"


def test_viewer_without_recent_requests_does_not_block_a_cancel(jobs: Jobs, clock: Clock) -> None:
    ask(jobs, "hidden")
    clock.now_s += 60
    ask(jobs, "ann")
    with viewer("ann"):
        assert not jobs.cancel("key"), "a hidden tab asks once a minute"
    clock.now_s += WAITS_S
    ask(jobs, "ben")
    with viewer("ben"):
        assert jobs.cancel("key")


def test_forged_cookies_do_not_fill_the_memory(jobs: Jobs, clock: Clock) -> None:
    for number in range(2000):
        ask(jobs, str(number))
        clock.now_s += 1
    assert len(jobs._jobs["key"].viewers) <= 256


def test_browsers_are_distinguished_by_an_http_only_cookie(memory_runs: Any) -> None:
    app, names = create_app(memory_runs), set()
    for _ in range(2):
        browser = app.server.test_client()
        cookie = browser.get("/run/run-1").headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite" in cookie
        assert "Set-Cookie" not in browser.get("/run/run-1").headers
        names.add(cookie.split(";")[0])
    assert len(names) == 2


# No request waits ------------------------------------------------------------------------------------------------------------


def test_requests_for_a_pending_window_do_not_block(
    jobs: Jobs, tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DiskRuns(write_run(tmp_path / "run", steps=40), JobBuilder(jobs.store, jobs=jobs))
    http = create_app(source).server.test_client()
    run, window = source.summary("run-1"), Window(attempt=0, first=20, past=23, ranks=4, start_unix_ns=0)
    monkeypatch.setattr(time, "sleep", pytest.fail)

    def look(number: int) -> None:
        with pytest.raises(NotReadyError):
            source.window(run, window) if number % 2 else source.windows(run)

    began = time.monotonic()
    with ThreadPoolExecutor(40) as viewers:
        list(viewers.map(look, range(400)))
        assert viewers.submit(http.get, "/-/healthy").result().text == "ok\n"
    assert time.monotonic() - began < 5
    assert len(jobs._jobs) == 2


def test_remote_query_runs_once_in_the_background_for_all_viewers() -> None:
    answers, asked, may_answer = BackgroundAnswers(MemoryCache(), "kind", "http://prometheus"), [], threading.Event()

    def ask() -> int:
        asked.append(1)
        assert may_answer.wait(60)
        may_answer.clear()
        return len(asked)

    def answer(revision: str) -> int:
        wait_until(lambda: not answers._running_keys)
        return answers.get("key", revision, ask)

    for _ in range(20):
        with pytest.raises(NotReadyError, match="Asking http://prometheus"):
            answers.get("key", "1", ask)
    may_answer.set()
    assert answer("1") == 1
    assert answers.get("key", "2", ask) == 1, "the last answer, while the next one is asked for"
    may_answer.set()
    assert answer("2") == 2
    assert len(asked) == 2


def test_many_runs_are_listed_in_the_background(
    jobs: Jobs, tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch, until_ready: Callable[..., Any]
) -> None:
    monkeypatch.setattr(run_folder, "FEW_RUNS", 1)
    for name in "ab":
        write_run(tmp_path / "runs" / name, run_id=name, steps=1)
    source = DiskRuns(tmp_path / "runs", JobBuilder(jobs.store, jobs=jobs), look_again_s=1.0)
    http = create_app(source).server.test_client()
    assert http.get("/").status_code == 200, "it redirects to the only run"
    assert len(until_ready(source.runs)) == 2
    assert source.summary("a").run_id == "a"
    with pytest.raises(NotReadyError):
        source.all_alerts()
    assert until_ready(source.all_alerts).problems == []
    (tmp_path / "runs").rename(tmp_path / "away")
    assert len(source.runs()) == 2, "the last list"


# A run that ends with its page open ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [60, 560])
def test_ended_run_keeps_its_page_and_reuses_the_follower_result(
    tmp_path: Path, jobs: Jobs, write_run: WriteRun, steps: int
) -> None:
    # Given a page of a live run
    run = write_run(tmp_path / "run", steps=steps, finished=False)
    folder = jobs.store.new_folder()
    following = FollowerState(run, folder)
    builder = JobBuilder(jobs.store, jobs=jobs)
    source = DiskRuns(run, builder)
    call = Caller(create_app(source))
    with contextlib.suppress(NotReadyError):
        source.version("run-1")
    ((key, job),) = jobs._jobs.items()

    def update() -> None:
        revision = footprint(run).revision
        failure = following.failure_of_update()
        job.folder, job.report = folder, TaskReport(update=Update(revision, failure, following.is_final))

    update()
    shown = call.shown("/run/run-1")

    def poll() -> dict[str, Any]:
        return call.polled("/run/run-1")

    # When it ends
    write_run(tmp_path / "over", steps=steps)
    for info in (tmp_path / "over").rglob("rank.json"):
        (run / info.relative_to(tmp_path / "over")).write_bytes(info.read_bytes())

    # Then the page polls on with its content until the follower has read the last records
    changes = poll()
    assert changes["every_ms"] > 0
    assert "last records" in changes["note"]
    assert source.part("run-1", "analysis").source.steps == steps
    assert list(jobs._jobs) == [key], "nothing is read anew"

    # And the follower's result becomes that of the run if it is complete, else all of the run is analysed meanwhile
    update()
    assert following.is_final is (steps == 60)
    poll()
    if following.is_final:
        assert job.ending is not None
        assert list(jobs._jobs) == [key]
        jobs.store.publish(str(job.ending.publish_as), folder)
    else:
        assert [each.task for each in jobs._jobs.values()] == ["follow", "analyse"]
        assert "is being analysed" in poll()["note"]
        (analysis_key,) = set(jobs._jobs) - {key}
        derive(run, folder_of_it := jobs.store.new_folder(), lambda _: None)
        jobs.store.publish(analysis_key, folder_of_it)
    settled = poll()
    assert settled["every_ms"] == 0
    assert settled["version"] != shown["version"]

    # And it is what the analysis of the run would be
    fresh = DiskRuns(run)
    for name in set(PARTS) - {"steps", "trend", "script", "hardware"}:
        assert source.part("run-1", name) == fresh.part("run-1", name), name
    kept_part, theirs = source.part("run-1", "steps"), fresh.part("run-1", "steps")
    assert set(kept_part.metrics) == set(theirs.metrics)
    for metric in theirs.metrics:
        np.testing.assert_array_equal(kept_part.part(metric).values, theirs.part(metric).values, err_msg=metric)


def test_just_ended_follower_is_not_reported_as_a_failure(tmp_path: Path, jobs: Jobs, write_run: WriteRun) -> None:
    source = DiskRuns(write_run(tmp_path / "run", finished=False, steps=12), JobBuilder(jobs.store, jobs=jobs))
    with pytest.raises(NotReadyError):
        source.version("run-1")
    (job,) = jobs._jobs.values()
    job.folder, job.report = tmp_path / "cache" / ".gone", TaskReport(update=Update("1"))
    for ask_again in (source.version, source.stale, source.brief):
        with contextlib.suppress(NotReadyError):
            assert ask_again("run-1") is None, "there is nothing to report"


def test_silent_run_is_followed_only_while_its_last_write_is_recent(tmp_path: Path, jobs: Jobs) -> None:
    builder = JobBuilder(jobs.store, jobs=jobs, clock_s=lambda: 2e9)
    hung = a_run("hung", status="silent", last_write_unix_ns=int(2e18 - 600e9))
    for revision in "123":
        with pytest.raises(NotReadyError):
            builder.derived(replace(hung, revision=revision))
    assert [job.task for job in jobs._jobs.values()] == ["follow"]
    with pytest.raises(NotReadyError):
        builder.derived(replace(hung, run_id="old", last_write_unix_ns=int(1.9e18)))
    assert [job.task for job in jobs._jobs.values()] == ["follow", "analyse"]
