"""Jobs beside the server: killed, hung, cancelled, too large, on a full disk, many; the server lives on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.dashboards.live.dash_client import Caller
from tests.full_disk import disk_with_room_for
from tests.waiting import wait_until

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.app import create_app
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError, RunSummary
from rankscope.dashboards.store import jobs as module
from rankscope.dashboards.store import tasks
from rankscope.dashboards.store.backlog import AT_ONCE, Backlog
from rankscope.dashboards.store.builders import InlineBuilder, JobBuilder
from rankscope.dashboards.store.cache import Store
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.endings import CANCELLED, ended_silently
from rankscope.dashboards.store.follow import Update
from rankscope.dashboards.store.jobs import LARGE_BYTES, SLOTS, AnalysisProcess, Jobs
from rankscope.dashboards.store.memory import memory_left, used_bytes
from rankscope.dashboards.store.tasks import TaskReport, main

WriteRun = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, write_run: WriteRun) -> RunSummary:
    """A finished run."""
    return DiskRuns(write_run(tmp_path / "run", steps=12)).runs()[0]


@contextmanager
def stopped_job(jobs: Jobs, run: RunSummary) -> Iterator[int]:
    """Start the analysis of ``run``, which hangs from the start; yield its process id."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "start", hanging(module.start))
        with pytest.raises(NotReadyError):
            jobs.result("key", "analyse", [run.path], [run])
        pid = pid_of(jobs._jobs["key"])  # a thread starts the process
    yield pid
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def pid_of(job: AnalysisProcess) -> int:
    def pids() -> list[str]:
        return subprocess.run(["pgrep", "-f", str(job.folder)], capture_output=True, text=True, check=False).stdout.split()

    wait_until(lambda: job.folder)  # "None" is in the command lines of others
    return int(wait_until(pids)[0])


def outcome(jobs: Jobs, run: RunSummary) -> Path | str:
    """Ask until the analysis of ``run`` has ended; return its folder, or why it failed."""

    def ended() -> Path | str | None:
        try:
            return jobs.result("key", "analyse", [run.path], [run])
        except NotReadyError:
            return None
        except RankscopeError as error:
            return str(error)

    outcome: Path | str = wait_until(ended)
    return outcome


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def left_over(jobs: Jobs) -> list[Path]:
    """Return what failed jobs leave in the store, after a moment for them to end."""
    wait_until(lambda: not list(jobs.store.root.glob(".*")))
    return list(jobs.store.root.iterdir())


@pytest.mark.slow
def test_killed_job_is_reported_and_later_retried(tmp_path: Path, run: RunSummary) -> None:
    jobs = Jobs(Store(tmp_path / "cache"))
    with stopped_job(jobs, run) as pid:
        os.kill(pid, signal.SIGKILL)
        output = outcome(jobs, run)
    assert "signal 9" in str(output)
    assert left_over(jobs) == []
    jobs._failures.clear()
    assert isinstance(outcome(jobs, run), Path)


@pytest.mark.slow
@pytest.mark.parametrize(("view", "was_analysed"), [("", False), ("/whatif", True)])
def test_hanging_job_can_be_cancelled_on_the_page(
    tmp_path: Path, run: RunSummary, monkeypatch: pytest.MonkeyPatch, view: str, *, was_analysed: bool
) -> None:
    before = [InlineBuilder(Store(tmp_path / "cache")).derived(run).folder] if was_analysed else []
    monkeypatch.setattr(module, "start", hanging(module.start))
    builder = JobBuilder(Store(tmp_path / "cache"))
    call = Caller(create_app(DiskRuns(Path(run.path), builder)))

    def page() -> Any:
        return call.page(f"/run/run-1{view}")

    waiting = page()
    assert "Starting" in str(waiting)
    ((key, job),) = builder.jobs._jobs.items()
    pid, button = pid_of(job), next(buttons(waiting))
    assert button["job"] == key
    assert call.clicked(button) == "Cancelling …"
    wait_for_end(pid)
    assert left_over(builder.jobs) == before
    assert CANCELLED in str(page())


def buttons(page: Any) -> Iterator[dict[str, str]]:
    """Yield the ids of the cancel buttons of a page."""
    if isinstance(page, dict) and page.get("type") == "cancel":
        yield page
    elif isinstance(page, (dict, list)):
        for inner in page.values() if isinstance(page, dict) else page:
            yield from buttons(inner)


def hanging(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``start`` whose processes hang."""

    def started(*arguments: Any) -> Any:
        process, connection = start(*arguments)
        process.send_signal(signal.SIGSTOP)
        return process, connection

    return started


@pytest.mark.slow
def test_job_without_progress_is_killed(tmp_path: Path, run: RunSummary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HUNG_AFTER_S", 0.5)
    jobs = Jobs(Store(tmp_path / "cache"))
    with stopped_job(jobs, run) as pid:
        assert "no progress" in str(outcome(jobs, run))
        wait_for_end(pid)


@pytest.mark.slow
def test_job_that_exceeds_the_memory_limit_is_killed_with_the_reason(tmp_path: Path, run: RunSummary) -> None:
    output = str(outcome(Jobs(Store(tmp_path / "cache"), memory_bytes=1 << 20), run))
    assert "1.0 MiB" in output
    assert "--memory" in output
    assert isinstance(outcome(Jobs(Store(tmp_path / "cache"), memory_bytes=4 << 30), run), Path)


@pytest.mark.slow
def test_full_disk_is_reported_and_leaves_no_partial_files(tmp_path: Path, run: RunSummary) -> None:
    jobs = Jobs(Store(tmp_path / "cache"))
    with disk_with_room_for(1000):
        output = str(outcome(jobs, run))
    assert output == os.strerror(errno.EFBIG)
    assert left_over(jobs) == []


@pytest.mark.slow
def test_jobs_of_a_killed_server_exit_and_remove_their_files(tmp_path: Path, run: RunSummary) -> None:
    script = (
        "import sys, time; from pathlib import Path; from rankscope.dashboards.store.jobs import start\n"
        "process, _ = start('follow', Path(sys.argv[1]), [sys.argv[2]]); print(process.pid, flush=True); time.sleep(600)"
    )
    (folder := tmp_path / "live").mkdir()
    server = subprocess.Popen([sys.executable, "-c", script, str(folder), run.path], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    pid = int(server.stdout.readline())
    wait_until((folder / "analysis.json").exists, process=server)
    server.kill()
    server.wait()
    server.stdout.close()
    wait_for_end(pid)
    assert not folder.exists()


@pytest.mark.slow
def test_job_that_reports_to_a_dead_server_leaves_no_files(tmp_path: Path, run: RunSummary) -> None:
    script = (
        "import sys; from multiprocessing import Pipe; from pathlib import Path; from rankscope.dashboards.store import tasks\n"
        "tasks._end_with = lambda *_: None  # the report is faster\n"
        "ours, theirs = Pipe(); ours.close(); tasks.main(theirs, 'follow', Path(sys.argv[1]), [sys.argv[2]])"
    )
    (folder := tmp_path / "live").mkdir()
    ended = subprocess.run([sys.executable, "-c", script, str(folder), run.path], stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert not folder.exists()


def test_one_large_analysis_runs_at_a_time_beside_a_small_one(
    tmp_path: Path, run: RunSummary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_start(*_: object) -> Any:
        return None, None

    monkeypatch.setattr(module, "start", no_start)
    monkeypatch.setattr(Jobs, "_attend", no_start)
    jobs = Jobs(Store(tmp_path / "cache"))

    def waits_for(key: str, name: str, size_bytes: int) -> str | None:
        with pytest.raises(NotReadyError) as error:
            jobs.result(key, "analyse", [run.path], [replace(run, name=name, size_bytes=size_bytes)])
        return error.value.progress.activity if error.value.job is None else None

    assert waits_for("a", "large-1", LARGE_BYTES) is None
    jobs._jobs["a"].report = TaskReport(Progress("reading", 2, 5))
    assert waits_for("b", "large-2", LARGE_BYTES) == "waiting for another analysis: run large-1, 40 %"
    assert waits_for("c", "small-1", 1) is None
    assert str(waits_for("d", "small-2", 1)).startswith("waiting for another analysis: run ")
    for number in range(50):  # any address may ask
        waits_for(str(number), "small", 1)
    assert len(jobs._jobs) == SLOTS
    del jobs._jobs["a"]
    assert waits_for("b", "large-2", LARGE_BYTES) is None

    # The first read of a live run is an analysis; a follower that has read it is none
    del jobs._jobs["c"]
    live = replace(run, name="live", size_bytes=LARGE_BYTES)
    with pytest.raises(NotReadyError, match="another analysis: run large-2"):
        jobs.followed("live", live)
    del jobs._jobs["b"]
    with pytest.raises(NotReadyError, match="first time"):
        jobs.followed("live", live)
    assert str(waits_for("b", "large-2", LARGE_BYTES)).endswith("run live, starting")
    jobs._jobs["live"].report = TaskReport(update=Update("1"))
    assert waits_for("b", "large-2", LARGE_BYTES) is None


def test_internal_error_of_a_job_is_reported_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("idle")

    monkeypatch.setattr(tasks, "TASKS", {"analyse": broken})
    monkeypatch.setattr(tasks, "_end_with", lambda *_: None)
    ours, theirs = Pipe()
    with ours, theirs:
        with pytest.raises(KeyError):
            main(theirs, "analyse", tmp_path, [])
        assert b"an error in rankscope (KeyError)" in ours.recv_bytes()


def test_full_disk_is_named_as_the_cause_of_a_silent_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=0))
    why = ended_silently(-9, tmp_path / "job")
    assert "full" in why
    assert str(tmp_path) in why
    assert "--cache" in why


def test_unwritable_cache_is_an_error(
    tmp_path: Path, run: RunSummary, monkeypatch: pytest.MonkeyPatch, until_ready: Callable[..., Any]
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.mkdtemp", full)
    builder = JobBuilder(Store(tmp_path / "cache"))
    with pytest.raises(RankscopeError, match="No space left"):
        until_ready(lambda: builder.derived(run))


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("", {}, 1000 << 10),
        ("0::/a/b", {"a/b/memory.max": "max"}, 1000 << 10),
        ("0::/a/b", {"a/memory.max": "9000", "a/memory.current": "5000", "a/memory.stat": "anon 1\ninactive_file 2000"}, 6000),
        ("0::/../../pod", {"memory.max": "9000", "memory.current": "5000"}, 4000),
        ("0::/", {"memory.max": "5000", "memory.current": "9000"}, 0),
        (
            "5:cpu,memory:/docker/x",
            {
                "memory/memory.limit_in_bytes": "9000",
                "memory/memory.usage_in_bytes": "5000",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500",
            },
            4500,
        ),
    ],
)
def test_available_memory_is_the_minimum_of_machine_and_cgroups(
    tmp_path: Path, group: str, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 5000 kB\nMemAvailable:    1000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"7:devices:/other\n{group}\n" if group else "")
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(f"{text}\n")
    assert memory_left(tmp_path / "proc", tmp_path / "cgroup") == expected


@pytest.mark.slow
def test_run_replaced_by_a_link_before_its_job_starts_is_not_read(tmp_path: Path, run: RunSummary) -> None:
    Path(run.path).rename(tmp_path / "elsewhere")
    Path(run.path).symlink_to(tmp_path / "elsewhere")
    assert "a symbolic link" in str(outcome(Jobs(Store(tmp_path / "cache")), run))


@pytest.mark.slow
def test_memory_limit_includes_memory_used_by_running_jobs(
    tmp_path: Path, run: RunSummary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "memory_left", lambda: 1 << 30)
    jobs = Jobs(Store(tmp_path / "cache"))
    other = AnalysisProcess("follow", "another run", large=False, arguments=[], asked_s=0, heard_s=0, used_bytes=8 << 30)
    other.report = TaskReport(update=Update("1"))
    jobs._jobs["other"] = other
    assert isinstance(outcome(jobs, run), Path)
    assert other.ending is None


def test_unknown_available_memory_is_no_limit(tmp_path: Path) -> None:
    assert memory_left(tmp_path, tmp_path) is None
    assert used_bytes(os.getpid()) > 1 << 20
    assert used_bytes(os.getpid(), tmp_path) == 0


PATIENCE_S = 20.0


class Analyses:
    """Analyses that take two requests each, one of which fails, and one of which is an error of ours."""

    def __init__(self, last: str) -> None:
        self.asked: dict[str, int] = {}
        self.most_at_once = 0
        self.ended: list[str] = []
        self.last = threading.Event()
        self._last = last

    def __call__(self, run_id: str) -> None:
        self.asked[run_id] = self.asked.get(run_id, 0) + 1
        self.most_at_once = max(self.most_at_once, len(self.asked) - len(self.ended))
        if run_id not in ("damaged", "ours") and self.asked[run_id] < 2:
            raise NotReadyError(Progress("starting"))
        self.ended.append(run_id)
        if run_id == self._last:
            self.last.set()
        if run_id == "damaged":
            raise InputError("x", "damaged")
        if run_id == "ours":
            raise ZeroDivisionError


def test_backlog_analyses_few_runs_at_a_time_and_skips_damaged_ones() -> None:
    analyses = Analyses("h")
    backlog = Backlog(analyses, look_every_s=0.01)
    backlog.add(["damaged", "ours", *"abcdefgh"])
    backlog.add(["h"])  # a second viewer clicks
    assert analyses.last.wait(PATIENCE_S)
    assert sorted(analyses.ended) == sorted(["damaged", "ours", *"abcdefgh"])
    assert analyses.most_at_once <= AT_ONCE
    for thread in threading.enumerate():
        if thread.name == "analyse runs":
            thread.join(PATIENCE_S)
    assert backlog.progress == Progress("analysing runs", 10, 10)


def test_backlog_restarts_for_a_request_after_completion() -> None:
    analyses = Analyses("b")
    backlog = Backlog(analyses, look_every_s=0.01)
    backlog.add([])
    assert backlog.progress.of == 0
    backlog.add("a")
    wait_until(lambda: backlog.progress.done >= 1)
    backlog.add("b")
    assert analyses.last.wait(PATIENCE_S)
