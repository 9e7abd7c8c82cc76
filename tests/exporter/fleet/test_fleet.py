"""The fleet: real processes over the real nvidia-ml-py, and a driver library that hangs, loses GPUs and goes away as told."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # each starts real processes

HOST = Path(__file__).with_name("fleet_host.py")
FREEZER = Path("/sys/fs/cgroup/freezer")
ZERO, ONE = "GPU-00000000-aaaa-bbbb-cccc-000000000000", "GPU-10000000-aaaa-bbbb-cccc-000000000000"
PATIENCE = {
    "call_s": 0.5,
    "open_s": 1.0,
    "die_s": 0.3,
    "end_s": 0.5,
    "retry_s": [0.3, 0.6],
    "survey_s": 1.0,
    "survey_retry_s": [0.1, 0.3],
    "watch_s": 0.1,
    "stale_driver_s": 0.5,
}


class FleetHost:
    """A process with a fleet in it."""

    def __init__(self, process: subprocess.Popen[str], stderr: Path) -> None:
        self.process = process
        self._stderr = stderr

    @property
    def log(self) -> str:
        return self._stderr.read_text()

    def ask(self, *command: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        readable, _, _ = select.select([self.process.stdout], [], [], 30)
        assert readable, f"no answer to {command}\n{self.log}"
        line = self.process.stdout.readline()
        assert line, self.log
        return json.loads(line)

    def state(self) -> Any:
        return self.ask("state")

    def gpu(self, uuid: str) -> Any:
        return next((gpu for gpu in self.state()["gpus"] if gpu["identity"]["uuid"] == uuid), None)

    def until(self, condition: Callable[[Any], object]) -> Any:
        """Wait until the state is so, and give it back."""
        deadline = time.monotonic() + 30
        while not condition(state := self.state()):
            assert time.monotonic() < deadline, f"it did not come to that: {state}\n{self.log}"
            time.sleep(0.02)
        return state

    def until_up(self, *uuids: str) -> Any:
        return self.until(lambda state: {gpu["identity"]["uuid"] for gpu in state["gpus"] if gpu["up"]} == set(uuids))

    def until_down(self, uuid: str, reason: str, detail: str = "") -> Any:
        """Wait for the reason and these words, and give back the GPU."""
        state = self.until(lambda state: any(_is_down(gpu, uuid, reason) and detail in gpu["detail"] for gpu in state["gpus"]))
        return next(gpu for gpu in state["gpus"] if gpu["identity"]["uuid"] == uuid)

    def children(self) -> dict[str, int]:
        """The processes that call the driver: pid by name."""
        nursery = self.ask("info")["nursery"]
        pids = map(int, Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split())
        named = {}
        for pid in pids:
            with contextlib.suppress(OSError):
                named[Path(f"/proc/{pid}/comm").read_text().strip()] = pid
        return named

    def worker(self, index: int) -> int:
        return self.children()[f"rs-gpu-{0x1A + index:02x}:00.0"]

    def stop(self) -> float:
        took_s: float = self.ask("stop")
        self.process.wait(10)
        return took_s


def _is_down(gpu: Any, uuid: str, reason: str) -> bool:
    return bool(gpu["identity"]["uuid"] == uuid and not gpu["up"] and gpu["reason"] == reason)


@pytest.fixture
def start_fleet(fake_nvml: Any, tmp_path: Path) -> Iterator[Callable[..., FleetHost]]:
    """``start_fleet(state_dir=…, pci_root=…)`` over the fake driver, with little patience."""
    with contextlib.ExitStack() as stack:
        number = iter(range(100))

        def start(*, wait: bool = True, patience: dict[str, object] | None = None, **options: object) -> FleetHost:
            defaults = {"interval_s": 0.1, "pci_root": str(tmp_path / "no-pci"), "patience": {**PATIENCE, **(patience or {})}}
            stderr = tmp_path / f"fleet-{next(number)}.log"
            with stderr.open("w") as log:
                process = subprocess.Popen(
                    [sys.executable, str(HOST), json.dumps({**defaults, **options})],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, **fake_nvml.env},
                )
            stack.enter_context(process)
            stack.callback(process.kill)
            host = FleetHost(process, stderr)
            if wait:
                assert host.ask("wait", 30) is True, host.log
            return host

        yield start


def _plant(fake_nvml: Any, **calls: str) -> None:
    fake_nvml.calls.update({name.replace("__", "@"): what for name, what in calls.items()})
    fake_nvml.write()


def _heal(fake_nvml: Any) -> None:
    fake_nvml.calls.clear()
    fake_nvml.write()


def test_every_gpu_is_asked_by_a_process_of_its_own_and_the_daemon_never_loads_nvml(
    start_fleet: Callable[..., FleetHost],
) -> None:
    fleet = start_fleet(expected_gpus=8)

    state = fleet.until_up(ZERO, ONE)

    assert [gpu["identity"]["index"] for gpu in state["gpus"]] == [0, 1]
    assert all(state["readings"][uuid] > 10 for uuid in (ZERO, ONE))
    assert state["driver"]["driver_version"] == "580.65.06"
    assert state["counts"] == {"driver": 2, "remembered": 2, "expected": 8}
    assert (state["problem"], state["unidentified"], state["stuck"], state["nvswitches"]) == (None, 0, 0, None)
    assert len({fleet.worker(0), fleet.worker(1)}) == 2
    assert "pynvml" not in fleet.ask("info")["modules"]
    assert "uvicorn" not in fleet.ask("info")["modules"]


def test_samples_go_on(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    fleet = start_fleet()
    first = fleet.until_up(ZERO, ONE)

    fleet.until(lambda state: state["gpus"][0]["sample"]["monotonic_s"] > first["gpus"][0]["sample"]["monotonic_s"])

    fake_nvml.gpus[1]["temperature"] = 77
    fake_nvml.write()
    fleet.until(lambda state: ["gpu_temperature_celsius", 77.0, [], ""] in state["gpus"][1]["sample"]["readings"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hang", "lock"])
def test_a_hang_in_one_gpu_leaves_the_other_fresh_and_names_the_call(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any, kind: str
) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    worker = fleet.worker(1)

    # "lock" also holds the lock that every call of the same process needs
    _plant(fake_nvml, nvmlDeviceGetPowerUsage__1=kind)

    down = fleet.until_down(ONE, "hung")
    assert "nvmlDeviceGetPowerUsage did not return" in down["detail"]
    assert down["sample"] is None
    assert down["since_unix_s"] <= time.time()
    # while its process is tried again and again, the other has never been anything but fresh
    while (state := fleet.state())["gpus"][1]["restarts"] < 2:
        assert state["gpus"][0]["up"], state
    assert fleet.log.count("is down (hung)") == 1
    assert not Path(f"/proc/{worker}").exists()

    _heal(fake_nvml)
    state = fleet.until_up(ZERO, ONE)
    assert state["gpus"][1]["since_unix_s"] is None
    assert "answers again" in fleet.log


def test_values_that_get_old_are_dropped_before_the_call_counts_as_hung(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any
) -> None:
    fleet = start_fleet(patience={"call_s": 60})
    fleet.until_up(ZERO, ONE)

    _plant(fake_nvml, nvmlDeviceGetPowerUsage__1="hang")

    down = fleet.until_down(ONE, "stale")
    assert down["sample"] is None
    assert "nvmlDeviceGetPowerUsage" in down["detail"]
    assert down["age_s"] > 0.5
    _heal(fake_nvml)
    fleet.until_up(ZERO, ONE)


@pytest.mark.slow
def test_a_driver_that_is_slow_but_answers_stays_fresh(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    _plant(fake_nvml, nvmlDeviceGetPowerUsage__1="slow:400")
    fleet = start_fleet(interval_s=0.05)

    first = fleet.until_up(ZERO, ONE)
    enough = first["gpus"][1]["sample"]["monotonic_s"] + 1
    while (state := fleet.state())["gpus"][1]["sample"]["monotonic_s"] < enough:
        assert state["gpus"][1]["up"], state
    assert state["gpus"][1]["restarts"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [300, 600])
def test_looks_between_passes_that_outlast_their_time_leave_room_for_passes(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any, milliseconds: int
) -> None:
    slow = f"slow:{milliseconds}"
    _plant(fake_nvml, nvmlGpmSampleGet__1=slow, nvmlGpmMetricsGet__1=slow)
    fleet = start_fleet(interval_s=0.3, patience={"call_s": 3.0, "open_s": 3.0})

    first = fleet.until_up(ZERO, ONE)["gpus"][1]["sample"]["monotonic_s"]
    second = fleet.until(lambda state: state["gpus"][1]["up"] and state["gpus"][1]["sample"]["monotonic_s"] > first)
    until = second["gpus"][1]["sample"]["monotonic_s"]
    fleet.until(lambda state: state["gpus"][1]["up"] and state["gpus"][1]["sample"]["monotonic_s"] > until)


def test_a_lost_gpu_is_down_with_its_identity_and_comes_back(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)

    fake_nvml.gpus[1]["lost"] = 1
    fake_nvml.write()

    down = fleet.until_down(ONE, "lost")
    assert down["identity"]["model"] == "Test GPU"
    assert fleet.gpu(ZERO)["up"] is True
    fake_nvml.gpus[1]["lost"] = 0
    fake_nvml.write()
    fleet.until_up(ZERO, ONE)


@pytest.mark.slow
def test_a_gpu_that_hangs_from_the_start_hides_none_behind_it(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    _plant(fake_nvml, nvmlDeviceGetHandleByIndex_v2__0="hang")

    fleet = start_fleet()

    state = fleet.until_up(ONE)
    assert state["unidentified"] == 1
    assert state["counts"]["driver"] == 2
    _heal(fake_nvml)
    fleet.until_up(ZERO, ONE)


def test_a_killed_process_is_replaced(start_fleet: Callable[..., FleetHost]) -> None:
    # time enough to look at what is in between
    fleet = start_fleet(patience={"retry_s": [1.5]})
    fleet.until_up(ZERO, ONE)

    os.kill(fleet.worker(1), signal.SIGKILL)

    down = fleet.until_down(ONE, "died")
    assert "signal 9" in down["detail"]
    assert fleet.until_up(ZERO, ONE)["gpus"][1]["restarts"] == 1


def test_counters_that_a_process_adds_up_go_on_with_the_next_process(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any
) -> None:
    fake_nvml.gpus[1]["samples.1"] = "90,93,96"
    fake_nvml.write()
    fleet = start_fleet()

    def busy(state: Any) -> float:
        sample = state["gpus"][1]["sample"]
        return next((value for name, value, *_ in sample["readings"] if name == "gpu_busy_seconds_total"), 0.0) if sample else 0.0

    before = busy(fleet.until(lambda state: busy(state) > 0.5))
    os.kill(fleet.worker(1), signal.SIGKILL)
    fleet.until_down(ONE, "died")

    first = fleet.until(lambda state: state["gpus"][1]["restarts"] == 1 and busy(state))

    assert busy(first) >= before
    fleet.until(lambda state: busy(state) > busy(first))


def test_a_gpus_process_holds_nothing_of_the_daemon(start_fleet: Callable[..., FleetHost]) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)

    held = [str(link.readlink()) for link in Path(f"/proc/{fleet.worker(1)}/fd").iterdir()]

    # the daemon's standard streams are pipes and a file; a pipe held by a stuck process would keep its reader waiting
    assert not [target for target in held if target.startswith("pipe:")]
    assert len([target for target in held if target.startswith("socket:")]) == 1
    assert held.count("/dev/null") == 3
    assert not [target for target in held if target.endswith(".log")]


def test_each_xid_is_handed_on_once_and_only_once(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)

    fake_nvml.gpus[1] |= {"xid.0": 79, "xid.1": 48}
    fake_nvml.write()

    fleet.until(lambda _: len(fleet.ask("xids")) >= 2)
    before = fleet.gpu(ONE)["sample"]["monotonic_s"]
    fleet.until(lambda state: state["gpus"][1]["sample"]["monotonic_s"] > before + 0.5)
    assert fleet.ask("xids") == [[ONE, 79], [ONE, 48]]


def test_the_xid_that_explains_a_loss_is_handed_on(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)

    fake_nvml.gpus[1] |= {"lost": 1, "xid.0": 79}
    fake_nvml.write()

    fleet.until_down(ONE, "lost")
    assert fleet.ask("xids") == [[ONE, 79]]


def test_signals_meant_for_the_daemon_leave_the_other_processes_alone(start_fleet: Callable[..., FleetHost]) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    pids = [fleet.ask("info")["nursery"], *fleet.children().values()]

    for pid in pids:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)

    before = fleet.state()["gpus"][0]["sample"]["monotonic_s"]
    state = fleet.until(lambda state: state["gpus"][0]["up"] and state["gpus"][0]["sample"]["monotonic_s"] > before + 0.5)
    assert [gpu["restarts"] for gpu in state["gpus"]] == [0, 0]


def test_the_death_of_the_nursery_is_said_and_nothing_of_it_is_left(start_fleet: Callable[..., FleetHost]) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    workers = list(fleet.children().values())

    os.kill(fleet.ask("info")["nursery"], signal.SIGKILL)

    state = fleet.until(lambda state: state["ends"])
    assert [status for status, _ in state["ends"]] == [6]
    assert "has to be started again" in state["problem"]
    assert [(gpu["up"], gpu["reason"]) for gpu in state["gpus"]] == [(False, "died")] * 2
    _until_gone(workers)
    fleet.stop()


def test_the_death_of_the_daemon_ends_all_processes(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    fleet = start_fleet(patience={"call_s": 60})
    fleet.until_up(ZERO, ONE)
    _plant(fake_nvml, nvmlDeviceGetPowerUsage__1="hang")
    fleet.until_down(ONE, "stale")
    pids = [fleet.ask("info")["nursery"], *fleet.children().values()]

    fleet.process.kill()
    fleet.process.wait()

    _until_gone(pids)


def test_stopping_does_not_wait_for_a_hung_process_and_leaves_nothing(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any
) -> None:
    fleet = start_fleet(patience={"call_s": 3600})
    fleet.until_up(ZERO, ONE)
    _plant(fake_nvml, nvmlDeviceGetPowerUsage__1="hang")
    fleet.until_down(ONE, "stale")
    pids = [fleet.ask("info")["nursery"], *fleet.children().values()]

    fleet.stop()

    assert fleet.process.returncode == 0
    _until_gone(pids)


@pytest.fixture
def frozen() -> Iterator[Callable[[int], None]]:
    """Puts a process where not even SIGKILL ends it, as a process in the kernel's driver is, until the test is over."""
    folder = FREEZER / f"rankscope-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "freezer.state").write_text("THAWED")
    except OSError as error:
        pytest.skip(f"no cgroup freezer that this user may use: {error}")

    def freeze(pid: int) -> None:
        (folder / "cgroup.procs").write_text(str(pid))
        (folder / "freezer.state").write_text("FROZEN")

    yield freeze
    (folder / "freezer.state").write_text("THAWED")
    deadline = time.monotonic() + 10
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    folder.rmdir()


@pytest.mark.slow
def test_a_process_that_does_not_die_is_stuck_and_gets_no_second(
    start_fleet: Callable[..., FleetHost], frozen: Callable[[int], None]
) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    pid = fleet.worker(1)

    frozen(pid)

    down = fleet.until_down(ONE, "stuck")
    assert f"pid {pid}" in down["detail"]
    state = fleet.state()
    assert state["stuck"] == 1
    # no second one, however often it would have been tried by now
    before = state["gpus"][0]["sample"]["monotonic_s"]
    state = fleet.until(lambda state: state["gpus"][0]["up"] and state["gpus"][0]["sample"]["monotonic_s"] > before + 2)
    assert state["gpus"][1]["restarts"] == 0
    assert fleet.worker(1) == pid
    # it cannot be released either, and those that could be are not left alone
    assert fleet.ask("release", "all", 60) == "TimeoutError"
    assert fleet.gpu(ONE)["reason"] == "stuck"
    fleet.until_up(ZERO)

    (FREEZER / f"rankscope-test-{os.getpid()}" / "freezer.state").write_text("THAWED")
    state = fleet.until_up(ZERO, ONE)
    assert state["stuck"] == 0
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_stopping_does_not_wait_for_a_stuck_process(start_fleet: Callable[..., FleetHost], frozen: Callable[[int], None]) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    pid = fleet.worker(1)
    frozen(pid)
    fleet.until_down(ONE, "stuck")

    fleet.stop()

    assert fleet.process.returncode == 0
    assert Path(f"/proc/{pid}").exists()


def test_release_ends_the_process_until_it_is_resumed(start_fleet: Callable[..., FleetHost]) -> None:
    fleet = start_fleet(patience={"survey_s": 0.1})
    fleet.until_up(ZERO, ONE)
    worker = fleet.worker(1)

    assert fleet.ask("release", "1", 3600) is None

    assert not Path(f"/proc/{worker}").exists()
    down = fleet.gpu(ONE)
    assert (down["reason"], down["sample"]) == ("released", None)
    assert fleet.ask("release", "GPU-nobody", 1) == "KeyError"
    assert fleet.ask("resume", "GPU-nobody") == "KeyError"
    # nobody looks at the driver as a whole in the meantime, the other GPU's process goes on
    enough = fleet.gpu(ZERO)["sample"]["monotonic_s"] + 1
    while (other := fleet.gpu(ZERO))["sample"]["monotonic_s"] < enough:
        assert other["up"], other
        assert set(fleet.children()) == {"rs-gpu-1a:00.0"}

    assert fleet.ask("resume", "00000000:1B:00.0") is None
    fleet.until_up(ZERO, ONE)


def test_all_gpus_can_be_released_for_another_driver(start_fleet: Callable[..., FleetHost]) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)

    assert fleet.ask("release", "all", 3600) is None

    assert fleet.children() == {}
    assert [gpu["reason"] for gpu in fleet.state()["gpus"]] == ["released"] * 2
    assert fleet.ask("resume", "all") is None
    fleet.until_up(ZERO, ONE)


def test_a_release_ends_by_itself(start_fleet: Callable[..., FleetHost]) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)

    assert fleet.ask("release", ONE, 1) is None

    assert fleet.gpu(ONE)["reason"] == "released"
    fleet.until_up(ZERO, ONE)
    assert fleet.log.splitlines() == [f"INFO GPU {ONE} answers again"]  # who took the request logs that it was released


def test_a_hung_process_is_killed_for_a_release(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    fleet = start_fleet(patience={"call_s": 3600})
    fleet.until_up(ZERO, ONE)
    worker = fleet.worker(1)
    _plant(fake_nvml, nvmlDeviceGetPowerUsage__1="hang")
    fleet.until_down(ONE, "stale")

    assert fleet.ask("release", ONE, 3600) is None

    assert not Path(f"/proc/{worker}").exists()


def test_without_a_driver_it_says_so_and_recovers(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    _plant(fake_nvml, nvmlInitWithFlags="err:9")
    fleet = start_fleet()
    state = fleet.state()
    assert state["gpus"] == []
    assert state["driver"] is None
    assert "driver" not in state["counts"]
    assert state["problem"] == "NVML: driver_not_loaded in nvmlInit"

    _heal(fake_nvml)

    assert fleet.until_up(ZERO, ONE)["problem"] is None
    # ... and when it is unloaded under its users, which then see no more than errors
    _plant(fake_nvml, nvmlInitWithFlags="err:9", nvmlDeviceGetFieldValues="err:1")
    state = fleet.until(lambda state: not state["driver_answers"] and _reasons(state) == ["no_driver"] * 2)
    assert fleet.log.count("driver_not_loaded in nvmlInit\n") == 2
    assert state["driver"]["driver_version"] == "580.65.06"  # no label changes because nobody answers
    _heal(fake_nvml)
    fleet.until_up(ZERO, ONE)
    assert sorted(_told(fleet.log, "INFO GPU")) == [f"INFO GPU {ZERO} answers again", f"INFO GPU {ONE} answers again"]


@pytest.mark.slow
def test_a_driver_that_hangs_for_newcomers_only_costs_those_who_are_in_nothing(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any
) -> None:
    fleet = start_fleet(patience={"survey_s": 0.2, "open_s": 0.5})
    fleet.until_up(ZERO, ONE)

    _plant(fake_nvml, nvmlInitWithFlags="hang")

    state = fleet.until(lambda state: state["driver_answers"] is False)
    assert state["driver_problem"] == "NVML: nvmlInit did not return within 0.5 s"
    assert state["driver"]["driver_version"] == "580.65.06"
    assert [(gpu["up"], gpu["restarts"]) for gpu in state["gpus"]] == [(True, 0)] * 2
    assert state["problem"] is None
    _heal(fake_nvml)
    state = fleet.until(lambda state: state["driver_answers"])
    assert [(gpu["up"], gpu["restarts"]) for gpu in state["gpus"]] == [(True, 0)] * 2


def test_another_driver_gets_new_processes(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    workers = {fleet.worker(0), fleet.worker(1)}

    fake_nvml.calls["x"] = "x\ndriver 590.44.01"
    fake_nvml.write()

    fleet.until(lambda state: state["driver"] is not None and state["driver"]["driver_version"] == "590.44.01")
    fleet.until(lambda state: all(gpu["up"] and gpu["restarts"] for gpu in state["gpus"]))
    assert not workers & set(fleet.children().values())


def test_a_library_that_no_longer_matches_the_driver_asks_for_a_restart(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any
) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    # those that are open go on, and a new exporter could not open them: an upgrade without a reload does that
    _plant(fake_nvml, nvmlInitWithFlags="err:18")
    fleet.until(lambda state: "lib_rm_version_mismatch" in (state["driver_problem"] or ""))
    until = time.monotonic() + 1  # more than the time after which it would be asked for
    state = fleet.until(lambda _: time.monotonic() > until)
    assert state["ends"] == []
    assert [gpu["up"] for gpu in state["gpus"]] == [True, True]

    _plant(fake_nvml, nvmlInitWithFlags="err:18", nvmlDeviceGetFieldValues="err:18")

    state = fleet.until(lambda state: state["ends"])
    assert [status for status, _ in state["ends"]] == [5]
    assert "lib_rm_version_mismatch" in state["ends"][0][1]


def test_one_that_never_matched_does_not(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    _plant(fake_nvml, nvmlInitWithFlags="err:18")
    fleet = start_fleet(patience={"stale_driver_s": 0.1})

    # given more than the time after which it would have been asked for
    until = time.monotonic() + 1
    fleet.until(lambda _: time.monotonic() > until)

    assert fleet.state()["ends"] == []
    assert "lib_rm_version_mismatch" in fleet.state()["problem"]


def _pci_device(root: Path, address: str, *, driver: str | None, pci_class: str = "0x030200", vendor: str = "0x10de") -> None:
    folder = root / "devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{pci_class}\n")
    if driver is not None:
        (root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(root / "drivers" / driver)
        (root / "drivers" / driver / address).symlink_to(folder)


def test_the_pci_bus_shows_what_the_driver_does_not(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any, tmp_path: Path
) -> None:
    root = tmp_path / "pci"
    _pci_device(root, "0000:1a:00.0", driver="nvidia")
    _pci_device(root, "0000:1b:00.0", driver="nvidia")
    _pci_device(root, "0000:05:00.0", driver=None, pci_class="0x068000")
    _pci_device(root, "0000:00:1f.0", driver="lpc", vendor="0x8086")
    fleet = start_fleet(pci_root=str(root))
    state = fleet.until_up(ZERO, ONE)
    assert (state["counts"]["pci"], state["counts"]["driver"], state["nvswitches"]) == (2, 2, 1)

    # a GPU that the driver no longer lists, although it is there
    gone = fake_nvml.gpus.pop()
    fake_nvml.write()
    fleet.until_down(ONE, "missing", "the driver does not list it")
    assert fleet.gpu(ZERO)["up"] is True

    # ... then one that is taken from the driver, and from the bus
    (root / "devices" / "0000:1b:00.0" / "driver").unlink()
    (root / "drivers" / "nvidia" / "0000:1b:00.0").unlink()
    fleet.until_down(ONE, "not_in_driver", "bound to no driver")
    (root / "devices" / "0000:1b:00.0").rename(tmp_path / "unplugged")
    fleet.until_down(ONE, "missing", "neither")
    assert fleet.state()["counts"]["pci"] == 1

    # ... and one that is plugged in
    fake_nvml.gpus.append(gone)
    fake_nvml.write()
    _pci_device(root, "0000:1b:00.0", driver="nvidia")
    fleet.until_up(ZERO, ONE)


def test_a_gpu_that_appears_in_the_driver_only_is_found(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    added = fake_nvml.gpus.pop()
    fake_nvml.write()
    fleet = start_fleet(expected_gpus=2)
    fleet.until_up(ZERO)

    fake_nvml.gpus.append(added)
    fake_nvml.write()

    fleet.until_up(ZERO, ONE)
    assert _told(fleet.log, "the node shows") == [
        "WARNING the node shows 1 GPUs, but --expected-gpus says 2",
        "INFO the node shows 2 GPUs again, as expected",
    ]
    # ... and goes and comes back, which is told once each
    fake_nvml.gpus.pop()
    fake_nvml.write()
    os.kill(fleet.worker(1), signal.SIGKILL)
    fleet.until_down(ONE, "missing")
    fake_nvml.gpus.append(added)
    fake_nvml.write()
    fleet.until_up(ZERO, ONE)
    assert _told(fleet.log, " answers again") == [f"INFO GPU {ONE} answers again"]


def test_a_gpu_that_never_opened_is_known_by_its_place(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    _plant(fake_nvml, nvmlDeviceGetUUID__1="err:15")
    fleet = start_fleet()

    state = fleet.until(lambda state: [reason for _, reason, _ in state["unidentified_gpus"]] == ["lost"])
    assert state["unidentified"] == 1
    ((place, _, detail),) = state["unidentified_gpus"]
    assert (place, "nvmlDeviceGetUUID" in detail) == ("00000000:1b:00.0", True)


def test_a_stopped_process_is_said_to_be_silent(start_fleet: Callable[..., FleetHost]) -> None:
    fleet = start_fleet()
    fleet.until_up(ZERO, ONE)
    os.kill(fleet.worker(1), signal.SIGSTOP)

    down = fleet.until_down(ONE, "hung")
    assert "asks the driver nothing and has not said anything for 1 s" in down["detail"] or "did not return" in down["detail"]


def test_the_inventory_of_another_version_is_left_alone_and_a_damaged_one_put_aside(
    start_fleet: Callable[..., FleetHost], tmp_path: Path
) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    file = state_dir / "gpus.json"
    file.write_text('{"schema": "rankscope.gpus/2", "gpus": {"all": "different"}}')
    fleet = start_fleet(state_dir=str(state_dir))
    fleet.until_up(ZERO, ONE)
    fleet.until(lambda state: state["counts"]["remembered"] == 2)
    assert fleet.state()["inventory_durable"] is False
    fleet.stop()
    assert json.loads(file.read_text())["schema"] == "rankscope.gpus/2"
    assert len(_told(fleet.log, "another version's")) == 1

    file.write_text('{"gpus": [')
    fleet = start_fleet(state_dir=str(state_dir))
    fleet.until_up(ZERO, ONE)
    fleet.stop()
    assert (state_dir / "gpus.json.bad").read_text() == '{"gpus": ['
    assert {gpu["identity"]["uuid"] for gpu in json.loads(file.read_text())["gpus"]} == {ZERO, ONE}
    assert len(_told(fleet.log, "is damaged")) == 1


def test_a_gpu_that_is_gone_after_a_restart_is_missed(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any, tmp_path: Path
) -> None:
    first = start_fleet(state_dir=str(tmp_path / "state"))
    first.until_up(ZERO, ONE)
    first.stop()
    gone = fake_nvml.gpus.pop()
    fake_nvml.write()

    fleet = start_fleet(state_dir=str(tmp_path / "state"))

    fleet.until_up(ZERO)
    down = fleet.until_down(ONE, "missing")
    assert down["identity"]["serial"] == "165001"
    assert fleet.state()["counts"] == {"driver": 1, "remembered": 2}

    # one that was put in its place on purpose ends the mourning
    fake_nvml.gpus.append({**gone, "uuid": "GPU-new"})
    fake_nvml.write()
    state = fleet.until_up(ZERO, "GPU-new")
    assert len(state["gpus"]) == 2
    assert state["counts"]["remembered"] == 2


def test_a_gpu_can_be_forgotten_while_the_exporter_runs(
    start_fleet: Callable[..., FleetHost], fake_nvml: Any, tmp_path: Path
) -> None:
    from rankscope.exporter.fleet.inventory import forget

    fleet = start_fleet(state_dir=str(tmp_path / "state"))
    fleet.until_up(ZERO, ONE)
    fake_nvml.gpus.pop()
    fake_nvml.write()
    os.kill(fleet.worker(1), signal.SIGKILL)
    fleet.until_down(ONE, "missing")

    forget(tmp_path / "state", ONE)

    fleet.until(lambda state: [gpu["identity"]["uuid"] for gpu in state["gpus"]] == [ZERO])


def test_a_state_folder_that_cannot_be_written_is_said_once_and_harms_nobody(
    start_fleet: Callable[..., FleetHost], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    fleet = start_fleet(state_dir=str(tmp_path / "file" / "state"))

    state = fleet.until_up(ZERO, ONE)
    before = state["gpus"][0]["sample"]["monotonic_s"]
    fleet.until(lambda state: state["gpus"][0]["sample"]["monotonic_s"] > before + 1)
    assert fleet.log.count("cannot write") + fleet.log.count("cannot read") == 1


@pytest.mark.slow
def test_many_restarts_leave_no_descriptor_and_no_process(start_fleet: Callable[..., FleetHost], fake_nvml: Any) -> None:
    fleet = start_fleet(patience={"retry_s": [0.05]})
    fleet.until_up(ZERO, ONE)
    before = fleet.ask("info")["fds"]

    while (restarts := fleet.gpu(ONE)["restarts"]) < 50:
        os.kill(fleet.worker(1), signal.SIGKILL)
        fleet.until(_restarted(restarts))

    assert fleet.ask("info")["fds"] <= before + 2  # a probe may be under way
    names = fleet.children()
    assert len([name for name in names if name.startswith("rs-gpu")]) == 2
    nursery = fleet.ask("info")["nursery"]
    assert len(list(Path(f"/proc/{nursery}/fd").iterdir())) <= 8


def test_a_missing_binding_is_an_error_for_people(start_fleet: Callable[..., FleetHost], fake_nvml: Any, tmp_path: Path) -> None:
    (tmp_path / "shadow" / "pynvml").mkdir(parents=True)
    (tmp_path / "shadow" / "pynvml" / "__init__.py").write_text("nvmlMemory_v2 = 1\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "shadow")}

    result = subprocess.run(
        [sys.executable, str(HOST), json.dumps({})], env=environment, capture_output=True, text=True, timeout=60, check=True
    )

    assert "pip uninstall -y pynvml" in json.loads(result.stdout)["missing"]
    assert result.stderr == ""


def _reasons(state: Any) -> list[str]:
    return [gpu["reason"] for gpu in state["gpus"]]


def _told(log: str, words: str) -> list[str]:
    return [line for line in log.splitlines() if words in line]


def _restarted(before: int) -> Callable[[Any], bool]:
    return lambda state: state["gpus"][1]["up"] and state["gpus"][1]["restarts"] > before


def _until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while alive := [pid for pid in pids if _alive(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    """Whether it runs; one that waits to be buried by this machine's init does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
