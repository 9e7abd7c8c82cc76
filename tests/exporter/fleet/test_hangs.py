"""Hanging calls, slow drivers, and processes that do not die affect only their own GPU."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.fake_driver import FakeDriver
from tests.exporter.fleet.hosted_fleet import ONE, ZERO, StartFleet, until_gone
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # each starts real processes

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.parametrize("hold_lock", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_hang_in_one_gpu_leaves_the_other_fresh_and_names_the_call(
    start_fleet: StartFleet, fake_nvml: FakeDriver, *, hold_lock: bool
) -> None:
    fleet = start_fleet(interval_s=0.3)
    fleet.until_up(ZERO, ONE)
    worker = fleet.worker(1)

    # the lock is the one that every call of the same process needs
    fake_nvml.hang("nvmlDeviceGetPowerUsage", gpu=1, hold_lock=hold_lock)

    down = fleet.until_down(ONE, "hung")
    assert "nvmlDeviceGetPowerUsage did not return" in down["detail"]
    assert down["sample"] is None
    assert down["since_unix_s"] <= time.time()

    # while its process is restarted repeatedly, the other GPU stays fresh
    def restarted_twice(state: Any) -> bool:
        assert state["gpus"][0]["up"], state
        return bool(state["gpus"][1]["restarts"] >= 2)

    fleet.until(restarted_twice)
    assert fleet.log.count("is down (hung)") == 1
    assert not Path(f"/proc/{worker}").exists()

    fake_nvml.heal()
    state = fleet.until_up(ZERO, ONE)
    assert state["gpus"][1]["since_unix_s"] is None
    assert "answers again" in fleet.log


def test_stale_values_are_dropped_before_the_call_counts_as_hung(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fleet = start_fleet(timeouts={"call_s": 600, "end_s": 0.1})
    fleet.until_up(ZERO, ONE)
    worker = fleet.worker(1)

    fake_nvml.hang("nvmlDeviceGetPowerUsage", gpu=1)

    down = fleet.until_down(ONE, "stale")
    assert down["sample"] is None
    assert "nvmlDeviceGetPowerUsage" in down["detail"]
    assert down["age_s"] > 0.5

    # a release kills the process that hangs
    assert fleet.ask("release", ONE, 3600) is None
    assert not Path(f"/proc/{worker}").exists()
    fake_nvml.heal()
    fleet.ask("resume", ONE)
    fleet.until_up(ZERO, ONE)


def test_a_driver_that_is_slow_but_answers_stays_fresh(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fake_nvml.slow("nvmlDeviceGetPowerUsage", 500, gpu=1)
    fleet = start_fleet(interval_s=0.05, timeouts={"call_s": 60})

    first = fleet.until_up(ZERO, ONE)
    enough = first["gpus"][1]["sample"]["monotonic_s"] + 0.6  # one more pass and part of the next

    def sampled_again(state: Any) -> bool:
        assert state["gpus"][1]["up"], state
        return bool(state["gpus"][1]["sample"]["monotonic_s"] >= enough)

    assert fleet.until(sampled_again)["gpus"][1]["restarts"] == 0


@pytest.mark.parametrize("milliseconds", [300, pytest.param(600, marks=pytest.mark.full)])
def test_slow_activity_samples_leave_time_for_passes(start_fleet: StartFleet, fake_nvml: FakeDriver, milliseconds: int) -> None:
    fake_nvml.slow("nvmlGpmSampleGet", milliseconds, gpu=1)
    fake_nvml.slow("nvmlGpmMetricsGet", milliseconds, gpu=1)
    fleet = start_fleet(interval_s=0.3, timeouts={"call_s": 60, "open_s": 60})

    fleet.until_up(ZERO, ONE)
    fleet.until_sampled(ONE, 0)
    fleet.until_sampled(ONE, 0)


def test_gpu_that_hangs_at_start_hides_no_other_gpu(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fake_nvml.hang("nvmlDeviceGetHandleByIndex_v2", gpu=0)

    fleet = start_fleet()

    state = fleet.until_up(ONE)
    assert state["unidentified"] == 1
    assert state["counts"]["driver"] == 2
    fake_nvml.heal()
    fleet.until_up(ZERO, ONE)


def test_stopped_process_counts_as_hung(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    os.kill(fleet.worker(1), signal.SIGSTOP)

    down = fleet.until_down(ONE, "hung")
    assert "1 s" in down["detail"] or "did not return" in down["detail"]  # reported as silence, or as a call in progress


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_hung_processes_end_with_the_daemon(start_fleet: StartFleet, fake_nvml: FakeDriver, end: str) -> None:
    fleet = start_fleet(timeouts={"call_s": 3600})
    fleet.until_up(ZERO, ONE)
    fake_nvml.hang("nvmlDeviceGetPowerUsage", gpu=1)
    fleet.until_down(ONE, "stale")
    pids = [fleet.ask("info")["nursery"], *fleet.children().values()]

    if end == "stop":
        fleet.stop()
        assert fleet.process.returncode == 0
    else:
        fleet.process.kill()
        fleet.process.wait()

    until_gone(pids)


@pytest.fixture
def frozen() -> Iterator[Callable[[int, str], None]]:
    """Function ``frozen(pid, "FROZEN")``: not even SIGKILL ends the process until "THAWED", as if stuck in the driver."""
    folder = FREEZER / f"rankscope-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "freezer.state").write_text("THAWED")
    except OSError as error:
        pytest.skip(f"no cgroup freezer that this user may use: {error}")

    def freeze(pid: int, state: str) -> None:
        if state == "FROZEN":
            (folder / "cgroup.procs").write_text(str(pid))
        (folder / "freezer.state").write_text(state)

    yield freeze
    (folder / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def test_process_that_survives_sigkill_is_stuck_and_not_replaced(
    start_fleet: StartFleet, frozen: Callable[[int, str], None]
) -> None:
    fleet = start_fleet(release_s=0.5)
    fleet.until_up(ZERO, ONE)
    pid = fleet.worker(1)

    frozen(pid, "FROZEN")

    down = fleet.until_down(ONE, "stuck")
    assert f"pid {pid}" in down["detail"]
    assert fleet.state()["stuck"] == 1
    # no second process was started, although several retries were due by now
    state = fleet.until_sampled(ZERO, 0.5)
    assert state["gpus"][1]["restarts"] == 0
    assert fleet.worker(1) == pid
    # the stuck GPU cannot be released, and after the failed release the other one is monitored again
    assert fleet.ask("release", "all", 60) == "TimeoutError"
    assert fleet.gpu(ONE)["reason"] == "stuck"
    fleet.until_up(ZERO)

    frozen(pid, "THAWED")
    state = fleet.until_up(ZERO, ONE)
    assert state["stuck"] == 0
    assert not Path(f"/proc/{pid}").exists()

    # and the next stuck process does not delay the shutdown
    pid = fleet.worker(1)
    frozen(pid, "FROZEN")
    fleet.until_down(ONE, "stuck")
    fleet.stop()
    assert fleet.process.returncode == 0
    assert Path(f"/proc/{pid}").exists()
