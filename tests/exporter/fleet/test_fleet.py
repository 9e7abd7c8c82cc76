"""The fleet's processes: one per GPU, replaced when they die, ended by a release and with the daemon."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.fake_driver import FakeDriver
from tests.exporter.fleet.hosted_fleet import ONE, ZERO, StartFleet, until_gone

pytestmark = pytest.mark.slow  # each starts real processes


def test_every_gpu_process_is_isolated_from_the_daemon(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fleet = start_fleet(expected_gpus=8)

    state = fleet.until_up(ZERO, ONE)

    assert [gpu["identity"]["index"] for gpu in state["gpus"]] == [0, 1]
    assert all(state["readings"][uuid] > 10 for uuid in (ZERO, ONE))
    assert state["driver"]["driver_version"] == "580.65.06"
    assert state["counts"] == {"driver": 2, "remembered": 2, "expected": 8}
    assert (state["problem"], state["unidentified"], state["stuck"], state["nvswitches"]) == (None, 0, 0, None)
    assert len({fleet.worker(0), fleet.worker(1)}) == 2
    # the daemon never loads NVML
    assert not {"pynvml", "uvicorn"} & set(fleet.ask("info")["modules"])
    # its standard streams are pipes and a file; a pipe held by a stuck process would keep its reader waiting
    strs = [str(link.readlink()) for link in Path(f"/proc/{fleet.worker(1)}/fd").iterdir()]
    assert not [target for target in strs if target.startswith("pipe:") or target.endswith(".log")]
    assert len([target for target in strs if target.startswith("socket:")]) == 1
    assert strs.count("/dev/null") == 3

    # and samples continue
    fleet.until_sampled(ZERO, 0)
    fake_nvml.change(1, {"temperature": 77})
    fleet.until(lambda state: ["gpu_temperature_celsius", 77.0, [], ""] in state["gpus"][1]["sample"]["readings"])


def test_lost_gpu_keeps_identity_and_xid_and_recovers(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)

    fake_nvml.change(1, {"lost": 1, "xid.0": 79})

    down = fleet.until_down(ONE, "lost")
    assert down["identity"]["model"] == "Test GPU"
    assert fleet.ask("xids") == [[ONE, 79]]
    fleet.until_up(ZERO)
    fake_nvml.heal()
    fleet.until_up(ZERO, ONE)


def test_each_xid_is_forwarded_once(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)

    fake_nvml.xid(1, 79, 48)

    fleet.until(lambda _: len(fleet.ask("xids")) >= 2)
    fleet.until_sampled(ONE, 0.3)
    assert fleet.ask("xids") == [[ONE, 79], [ONE, 48]]


def test_killed_process_is_replaced_and_counters_continue(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fake_nvml.change(1, {"samples.1": "90,93,96"})
    fleet = start_fleet()

    def busy(state: Any) -> float:
        sample = state["gpus"][1]["sample"]
        return next((value for name, value, *_ in sample["readings"] if name == "gpu_busy_seconds_total"), 0.0) if sample else 0.0

    before = busy(fleet.until(lambda state: busy(state) > 0.3))
    os.kill(fleet.worker(1), signal.SIGKILL)

    first = fleet.until(lambda state: state["gpus"][1]["restarts"] == 1 and busy(state))
    assert fleet.ask("resets") == []  # a new process is no reset
    (died,) = fleet.lines("is down (died)")
    assert ONE in died
    assert "signal 9" in died
    assert busy(first) >= before
    fleet.until(lambda state: busy(state) > busy(first))


def test_many_restarts_leave_no_descriptor_and_no_process(start_fleet: StartFleet) -> None:
    fleet = start_fleet(timeouts={"retry_s": [0.02]})
    fleet.until_up(ZERO, ONE)
    before = fleet.ask("info")["fds"]

    while (restarts := fleet.gpu(ONE)["restarts"]) < 15:
        os.kill(fleet.worker(1), signal.SIGKILL)
        fleet.until(_restarted(restarts))

    fleet.until(lambda _: fleet.ask("info")["fds"] <= before + 2)  # a survey may be under way
    assert len([name for name in fleet.children() if name.startswith("rs-gpu")]) == 2
    nursery = fleet.ask("info")["nursery"]
    assert len(list(Path(f"/proc/{nursery}/fd").iterdir())) <= 8


def _restarted(before: int) -> Callable[[Any], bool]:
    return lambda state: state["gpus"][1]["up"] and state["gpus"][1]["restarts"] > before


def test_workers_ignore_signals_and_end_with_the_nursery(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    workers = [fleet.worker(index) for index in range(2)]  # not the survey's process, which ends by itself
    nursery = fleet.ask("info")["nursery"]

    for pid in (nursery, *workers):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)

    state = fleet.until_sampled(ZERO, 0.3)
    assert [gpu["restarts"] for gpu in state["gpus"]] == [0, 0]

    os.kill(nursery, signal.SIGKILL)

    state = fleet.until(lambda state: state["ends"])
    assert [status for status, _ in state["ends"]] == [6]
    assert "restart the exporter" in state["problem"]
    assert [(gpu["up"], gpu["reason"]) for gpu in state["gpus"]] == [(False, "died")] * 2
    until_gone(workers)
    fleet.stop()


def test_release_ends_the_processes_until_they_are_resumed(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    worker = fleet.worker(1)

    assert fleet.ask("release", "1", 3600) is None

    assert not Path(f"/proc/{worker}").exists()
    down = fleet.gpu(ONE)
    assert (down["reason"], down["sample"]) == ("released", None)
    assert fleet.ask("release", "GPU-none", 1) == "KeyError"
    assert fleet.ask("resume", "GPU-none") == "KeyError"
    # no survey opens the driver in the meantime, and the other GPU's process continues
    enough = fleet.gpu(ZERO)["sample"]["monotonic_s"] + 0.6
    while (other := fleet.until_up(ZERO)["gpus"][0])["sample"]["monotonic_s"] < enough:
        assert set(fleet.children()) == {"rs-gpu-1a:00.0"}
        assert other["restarts"] == 0

    assert fleet.ask("resume", "00000000:1B:00.0") is None
    fleet.until_up(ZERO, ONE)
    assert fleet.ask("resets") == [ONE]

    # all GPUs are released, for another driver
    assert fleet.ask("release", "all", 3600) is None
    assert fleet.children() == {}
    assert [gpu["reason"] for gpu in fleet.state()["gpus"]] == ["released"] * 2
    assert fleet.ask("resume", "all") is None
    fleet.until_up(ZERO, ONE)


def test_release_expires(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)

    assert fleet.ask("release", ONE, 0.3) is None

    fleet.until_logged("answers again")
    fleet.until_up(ZERO, ONE)
    (again,) = fleet.log.splitlines()  # the caller of a release logs that
    assert ONE in again
