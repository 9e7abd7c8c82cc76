"""The long campaign of the watcher: real jobs whose ranks are stopped and killed, watchers that are killed (`make campaign`)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest
from tests.alerts.conftest import RunOnDisk
from tests.local_http import answering, respond
from tests.waiting import wait_until
from tests.watched_job import QUICK, WatchProcess, training

from rankscope.alerts.watcher_alerts import CRASHED, LIVENESS_ALERTS
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

RANKS = 4
KILLS = 20


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes], Path]]:
    """Run, launcher and stop file of a real job whose ranks have made steps."""
    run, stop = tmp_path / "run", tmp_path / "stop"
    with training(run, stop, RANKS) as process:
        wait_until(lambda: len(list(run.glob("attempts/000/ranks/*/steps-*"))) == RANKS)
        yield run, process, stop


def pid_of(run: Path, rank: int) -> int:
    info = RunReader(run).rank(0, rank)
    assert info is not None
    return info.pid


@pytest.mark.parametrize("rank", range(RANKS))
def test_stopped_rank_is_the_hang_culprit(job: tuple[Path, subprocess.Popen[bytes], Path], tmp_path: Path, rank: int) -> None:
    if not hasattr(pytest.importorskip("torch._C._distributed_c10d"), "_dump_fr_trace"):
        pytest.skip("this torch has no Flight Recorder for gloo")
    run, process, stop = job
    with WatchProcess(run, "--state", tmp_path / "state", *QUICK) as watch:
        time.sleep(10)
        stopped = pid_of(run, rank)
        os.kill(stopped, signal.SIGSTOP)
        try:
            wait_until(lambda: watch.of("TrainingHang"))
        finally:
            os.kill(stopped, signal.SIGCONT)
        [fired] = watch.of("TrainingHang")
        assert fired["annotations"]["culprit"] == str(rank)
        assert f"py-spy dump --pid {stopped}" in fired["annotations"]["next"]
        wait_until(lambda: len(watch.of("TrainingHang")) == 2)
        stop.touch()
        assert process.wait(60) == 0
        assert watch.process.wait(60) == 0
    assert watch.fired() - {"TrainingStepRegression"} == {"TrainingHang"}  # steps may become longer on a busy machine


@pytest.mark.parametrize("rank", range(RANKS))
def test_killed_rank_is_the_crash_culprit(job: tuple[Path, subprocess.Popen[bytes], Path], tmp_path: Path, rank: int) -> None:
    run, process, _ = job
    with WatchProcess(run, "--state", tmp_path / "state", *QUICK) as watch:
        time.sleep(10)
        os.kill(pid_of(run, rank), signal.SIGKILL)
        assert process.wait(120) != 0
        assert watch.process.wait(120) == 0
    # After its exit, all output of the watcher has been read
    [fired] = [event for event in watch.of("TrainingCrashed") if event["event"] == "firing"]
    assert fired["annotations"].get("culprit", str(rank)) == str(rank)


@pytest.mark.parametrize("number", range(3))
def test_running_job_fires_no_liveness_alert(
    job: tuple[Path, subprocess.Popen[bytes], Path], tmp_path: Path, number: int
) -> None:
    del number
    run, process, stop = job
    with WatchProcess(run, "--state", tmp_path / "state", *QUICK) as watch:
        time.sleep(120)
        stop.touch()
        assert process.wait(60) == 0
        assert watch.process.wait(60) == 0
    # Other alerts may fire: on a busy machine other programs slow a rank down or make the job wait
    assert watch.fired().isdisjoint({*LIVENESS_ALERTS, CRASHED.alertname})


def test_a_watcher_killed_repeatedly_delivers_and_records_every_change(tmp_path: Path) -> None:
    # Given a run that grows all the time, whose rank 2 becomes slow, recovers, and becomes slow again
    run = RunOnDisk(tmp_path / "runs" / "llama", slow=None, name="llama")
    run.grow(200)
    done = threading.Event()

    def grow() -> None:
        while not done.wait(0.02):
            run.grow(10)

    reported: list[tuple[str, str]] = []

    def hear(request: BaseHTTPRequestHandler, body: bytes) -> None:
        payload = msgspec.json.decode(body)
        reported.extend((alert["status"], alert["startsAt"]) for alert in payload["alerts"])
        respond(request, 200, b"")

    growing = threading.Thread(target=grow)
    growing.start()
    draw = random.Random(7)
    kills = 0
    try:
        with answering(hear) as url:
            command = [
                sys.executable, "-m", "rankscope", "alerts", "watch", str(run.path), "--webhook", url,
                "--state", str(tmp_path / "state"),
                "--interval", "100ms", "--least-firing", "1s", "--budget", "host=100%", "--budget", "slower=100%",
            ]  # fmt: skip
            began = time.monotonic()
            once = [*command[:6], "--once", "--state", str(tmp_path / "once")]
            subprocess.run(once, stdout=subprocess.DEVNULL, check=True)
            start_s = time.monotonic() - began
            # when the watcher is killed twenty times at any moment, also before it has read anything
            while kills < KILLS:
                run.slow = 2 if (kills // 5) % 2 else None
                with subprocess.Popen(command, stdout=subprocess.DEVNULL) as watcher:
                    time.sleep(draw.uniform(0.5 * start_s, 1.5 * start_s + 5.0))
                    watcher.kill()
                kills += 1
            done.set()
            growing.join()
            run.end()
            assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=120, check=False).returncode == 0
    finally:
        done.set()
        growing.join()
    # then every change is in the run once, in order, and each was delivered
    rows = [msgspec.json.decode(line) for line in (run.path / "findings.jsonl").read_bytes().splitlines()]
    about = [(row["status"], row["time_unix_ns"]) for row in rows if row["labels"]["alertname"] == "TrainingStraggler"]
    assert len(set(about)) == len(about) >= 2
    assert [status for status, _ in about] == ["firing", "resolved"] * (len(about) // 2)
    assert {status for status, _ in reported} == {"firing", "resolved"}
    started = {start for status, start in reported if status == "firing"}
    assert {start for status, start in reported if status == "resolved"} <= started
