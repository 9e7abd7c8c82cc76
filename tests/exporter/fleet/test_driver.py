"""The driver as a whole: missing, replaced, hanging, mismatched; and the fleet's memory of its GPUs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.fake_driver import FakeDriver
from tests.exporter.fleet.hosted_fleet import ONE, ZERO, FleetHost, StartFleet

from rankscope.exporter.fleet.inventory import forget

pytestmark = pytest.mark.slow  # each starts real processes

NO_DRIVER, GPU_IS_LOST, MISMATCH = 9, 15, 18


def test_missing_driver_is_a_problem_until_loaded(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fake_nvml.fail("nvmlInitWithFlags", NO_DRIVER)
    fleet = start_fleet()
    state = fleet.state()
    assert (state["gpus"], state["driver"]) == ([], None)
    assert "driver" not in state["counts"]
    assert "driver_not_loaded in nvmlInit" in state["problem"]

    fake_nvml.heal()

    assert fleet.until_up(ZERO, ONE)["problem"] is None
    # ... and when it is unloaded while in use, where the processes only get errors
    fake_nvml.fail("nvmlInitWithFlags", NO_DRIVER)
    fake_nvml.fail("nvmlDeviceGetFieldValues", 1)
    state = fleet.until(lambda state: not state["driver_answers"] and _reasons(state) == ["no_driver"] * 2)
    assert fleet.log.count("driver_not_loaded in nvmlInit\n") == 2
    assert state["driver"]["driver_version"] == "580.65.06"  # labels stay while the driver does not answer
    fake_nvml.heal()
    fleet.until_up(ZERO, ONE)
    assert len(fleet.lines("INFO GPU")) == 2
    assert fleet.ask("resets") == []  # neither at the start of the exporter nor where the driver only did not answer


def _reasons(state: Any) -> list[str]:
    return [gpu["reason"] for gpu in state["gpus"]]


def test_hang_in_nvml_init_does_not_affect_open_gpus(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fleet = start_fleet(timeouts={"call_s": 60}, interval_s=0.3)
    fleet.until_up(ZERO, ONE)

    fake_nvml.hang("nvmlInitWithFlags")

    state = fleet.until(lambda state: state["driver_answers"] is False)
    assert "nvmlInit did not return within 0.5 s" in state["driver_problem"]
    assert state["driver"]["driver_version"] == "580.65.06"
    assert [(gpu["up"], gpu["restarts"]) for gpu in state["gpus"]] == [(True, 0)] * 2
    assert state["problem"] is None
    fake_nvml.heal()
    state = fleet.until(lambda state: state["driver_answers"])
    assert [(gpu["up"], gpu["restarts"]) for gpu in state["gpus"]] == [(True, 0)] * 2


def test_driver_reload_restarts_the_processes(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fleet = start_fleet(timeouts={"call_s": 60, "open_s": 60})
    fleet.until_up(ZERO, ONE)
    workers = {fleet.worker(0), fleet.worker(1)}

    fake_nvml.reload("590.44.01")

    fleet.until(lambda state: state["driver"] is not None and state["driver"]["driver_version"] == "590.44.01")
    fleet.until(lambda state: all(gpu["up"] and gpu["restarts"] for gpu in state["gpus"]))
    assert sorted(fleet.ask("resets")) == [ZERO, ONE]
    assert not workers & set(fleet.children().values())


def _after_surveys(fleet: FleetHost, fake_nvml: FakeDriver) -> Any:
    """Return the state after more failed attempts to open the driver than a restart needs."""
    before = fake_nvml.counts().get("nvmlInitWithFlags", 0)
    return fleet.until(lambda _: fake_nvml.counts().get("nvmlInitWithFlags", 0) > before + 5)


def test_a_mismatched_library_asks_for_a_restart_when_no_gpu_answers(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fleet = start_fleet(interval_s=0.3)
    fleet.until_up(ZERO, ONE)
    # as after an upgrade without a reload: open GPUs keep working, but a new exporter could not open them
    fake_nvml.fail("nvmlInitWithFlags", MISMATCH)
    fleet.until(lambda state: "lib_rm_version_mismatch" in (state["driver_problem"] or ""))
    state = _after_surveys(fleet, fake_nvml)
    assert state["ends"] == []
    assert [gpu["up"] for gpu in state["gpus"]] == [True, True]

    fake_nvml.fail("nvmlDeviceGetFieldValues", MISMATCH)

    ((status, why),) = fleet.until(lambda state: state["ends"])["ends"]
    assert status == 5
    assert "lib_rm_version_mismatch" in why


def test_initial_library_mismatch_asks_for_no_restart(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fake_nvml.fail("nvmlInitWithFlags", MISMATCH)
    fleet = start_fleet()

    state = _after_surveys(fleet, fake_nvml)

    assert state["ends"] == []
    assert "lib_rm_version_mismatch" in state["problem"]
    assert state["driver_problem_reason"] == "library_mismatch"


def _pci_device(root: Path, address: str, *, driver: str | None, pci_class: str = "0x030200", vendor: str = "0x10de") -> None:
    folder = root / "devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{pci_class}\n")
    if driver is not None:
        (root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(root / "drivers" / driver)
        (root / "drivers" / driver / address).symlink_to(folder)


def test_gpus_on_the_pci_bus_but_not_in_the_driver_are_reported(
    start_fleet: StartFleet, fake_nvml: FakeDriver, tmp_path: Path
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
    fleet.until_up(ZERO)

    # ... then a GPU that is unbound from the driver, and then removed from the bus
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


def test_new_gpu_in_the_driver_is_found(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    added = fake_nvml.gpus.pop()
    fake_nvml.write()
    fleet = start_fleet(expected_gpus=2)
    fleet.until_up(ZERO)

    fake_nvml.gpus.append(added)
    fake_nvml.write()

    fleet.until_up(ZERO, ONE)
    fewer, enough = fleet.lines("the node shows")
    assert "1 GPUs" in fewer
    assert "--expected-gpus" in fewer
    assert "2 GPUs" in enough
    # ... and it disappears and returns, logged once each
    fake_nvml.gpus.pop()
    fake_nvml.write()
    os.kill(fleet.worker(1), signal.SIGKILL)
    fleet.until_down(ONE, "missing")
    fake_nvml.gpus.append(added)
    fake_nvml.write()
    fleet.until_up(ZERO, ONE)
    (again,) = fleet.lines(" answers again")
    assert ONE in again


def test_gpu_that_never_opened_is_identified_by_pci_address(start_fleet: StartFleet, fake_nvml: FakeDriver) -> None:
    fake_nvml.fail("nvmlDeviceGetUUID", GPU_IS_LOST, gpu=1)
    fleet = start_fleet()

    state = fleet.until(lambda state: [reason for _, reason, _ in state["unidentified_gpus"]] == ["lost"])
    assert state["unidentified"] == 1
    ((bus_id, _, detail),) = state["unidentified_gpus"]
    assert (bus_id, "nvmlDeviceGetUUID" in detail) == ("00000000:1b:00.0", True)


def test_inventory_of_another_version_is_kept_and_damaged_file_is_moved(start_fleet: StartFleet, tmp_path: Path) -> None:
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
    assert len(fleet.lines("another version")) == 1

    file.write_text('{"gpus": [')
    fleet = start_fleet(state_dir=str(state_dir))
    fleet.until_up(ZERO, ONE)
    fleet.stop()
    assert (state_dir / "gpus.json.bad").read_text() == '{"gpus": ['
    assert {gpu["identity"]["uuid"] for gpu in json.loads(file.read_text())["gpus"]} == {ZERO, ONE}
    assert len(fleet.lines("is damaged")) == 1


def test_gpu_absent_after_restart_is_missing_until_replaced_or_forgotten(
    start_fleet: StartFleet, fake_nvml: FakeDriver, tmp_path: Path
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

    # a replacement in the same place ends the search
    fake_nvml.gpus.append({**gone, "uuid": "GPU-new"})
    fake_nvml.write()
    state = fleet.until_up(ZERO, "GPU-new")
    assert len(state["gpus"]) == 2
    assert state["counts"]["remembered"] == 2

    # ... and so does --forget, while the exporter runs
    fake_nvml.gpus.pop()
    fake_nvml.write()
    os.kill(fleet.worker(1), signal.SIGKILL)
    fleet.until_down("GPU-new", "missing")
    forget(tmp_path / "state", "GPU-new")
    fleet.until(lambda state: [gpu["identity"]["uuid"] for gpu in state["gpus"]] == [ZERO])


def test_unwritable_state_folder_is_logged_once_and_affects_no_gpu(start_fleet: StartFleet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    fleet = start_fleet(state_dir=str(tmp_path / "file" / "state"))

    fleet.until_up(ZERO, ONE)
    fleet.until_sampled(ZERO, 0.5)
    assert len(fleet.lines(str(tmp_path / "file"))) == 1
