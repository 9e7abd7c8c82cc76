"""The fleet's pure parts: PCI, the inventory, continuous counters, the call board, frames."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.exporter.catalogue import BY_NAME, CATALOGUE
from rankscope.exporter.fleet import pci
from rankscope.exporter.fleet.call_board import CallBoard, new_board
from rankscope.exporter.fleet.children import Child, Children
from rankscope.exporter.fleet.counters import ADDED_UP_BY_PROCESS, MonotonicCounters
from rankscope.exporter.fleet.deltas import DeltaEncoder, apply_delta
from rankscope.exporter.fleet.gpu_slot import GpuSlot
from rankscope.exporter.fleet.inventory import EnergyMeter, Inventory, forget
from rankscope.exporter.fleet.probe import probe
from rankscope.exporter.fleet.survey import GpuSurvey
from rankscope.exporter.fleet.timeouts import FleetTimeouts
from rankscope.exporter.fleet.wire import Done, DriverFound, Failed, FrameReader, Listed, Opened, Sampled, send_frame
from rankscope.exporter.fleet.worker import work
from rankscope.exporter.nvml.gpm import Gpm, PcieBytes
from rankscope.exporter.source import Driver, GpuIdentity, GpuSample, Reading, SourceError

BUSY = "gpu_busy_seconds_total"
DAY_S = 86400.0


def _identity(number: int, *, bus: int | None = None) -> GpuIdentity:
    at = bus if bus is not None else number
    return GpuIdentity(f"GPU-{number}", index=at, model="Test GPU", pci_bus_id=f"00000000:{0x1A + at:02x}:00.0")


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("0000:1A:00.0", "00000000:1a:00.0"),
        ("00000000:1A:00.0", "00000000:1a:00.0"),
        ("10000:e1:00.7", "00010000:e1:00.7"),
        ("1A:00.0", "00000000:1a:00.0"),
        ("GPU-ABC", "gpu-abc"),
    ],
)
def test_pci_addresses_are_written_one_way(address: str, written: str) -> None:
    assert pci.bus_id(address) == written


def test_no_gpu_on_a_bus_that_nobody_shows_is_no_count(tmp_path: Path) -> None:
    nobody: Any = None
    survey = GpuSurvey(nobody, pci_root=tmp_path, timeouts=FleetTimeouts())
    assert survey.pci_count is None
    survey = GpuSurvey(nobody, pci_root=tmp_path, timeouts=FleetTimeouts())
    survey.count = 0
    assert survey.pci_count == 0
    survey.count, survey.devices = None, (pci.PciDevice("00000000:05:00.0", "nvswitch", None),)
    assert survey.pci_count == 0
    survey.devices = (*survey.devices, pci.PciDevice("00000000:1a:00.0", "gpu", None))
    assert survey.pci_count == 1


def test_a_gpu_skipped_by_a_listing_is_not_missing_during_the_next_one(tmp_path: Path) -> None:
    """Else a GPU that had hung would count as reset, and its Xid alerts would end."""
    children = _Probes()
    survey = GpuSurvey(cast(Children, children), pci_root=tmp_path, timeouts=FleetTimeouts(survey_s=1.0))

    def listing(now: float, *indexes: int, skip: frozenset[int]) -> Child:
        survey.step(now, skip=skip, paused=False)
        probe = children.last
        survey.handle(probe, DriverFound(Driver("580.65.06", "12.580", "13.0"), 2), now)
        for index in indexes:
            survey.handle(probe, Listed(index, f"00000000:{0x1A + index:02x}:00.0"), now)
        return probe

    first = listing(1.0, 0, skip=frozenset({1}))
    survey.handle(first, Done(), 1.0)
    survey.ended(first, "exited", 1.0)
    assert survey.absent("00000000:1b:00.0") is None

    second = listing(2.0, 0, skip=frozenset())
    assert survey.absent("00000000:1b:00.0") is None

    survey.handle(second, Done(), 2.1)
    assert (survey.absent("00000000:1b:00.0") or ("", ""))[0] == "missing"
    children.close()


def test_a_driver_that_does_not_tell_its_version_once_was_not_exchanged(tmp_path: Path) -> None:
    """Else all GPUs would count as reset."""
    children = _Probes()
    survey = GpuSurvey(cast(Children, children), pci_root=tmp_path, timeouts=FleetTimeouts(survey_s=1.0))

    def probed(now: float, *versions: str) -> str | None:
        survey.step(now, skip=frozenset(), paused=False)
        probe = children.last
        news = survey.handle(probe, DriverFound(Driver(*versions), 0), now)
        survey.handle(probe, Done(), now)
        survey.ended(probe, "exited", now)
        return news

    assert probed(1.0, "580.65.06", "", "13.0") == "returned"
    assert probed(2.0, "", "13.580", "") is None
    assert survey.driver == Driver("580.65.06", "13.580", "13.0")
    assert probed(3.0, "580.65.06", "13.580", "13.0") is None
    assert probed(4.0, "590.44.01", "13.580", "") == "exchanged"
    assert survey.driver == Driver("590.44.01", "13.580", "")
    children.close()


class _Nvml:
    """The calls of a probe, with answers by name; an exception is raised."""

    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9

    class NVMLError(Exception):
        value = 999

    def __init__(self, **answers: object) -> None:
        usual = {
            "nvmlSystemGetDriverVersion": "580.65.06",
            "nvmlSystemGetNVMLVersion": "13.580.65.06",
            "nvmlSystemGetCudaDriverVersion": 13000,
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:1A:00.0"),
        }
        self._answers = {**usual, **answers}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*_: object) -> object:
            answer = self._answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def _probed(nvml: _Nvml) -> list[Any]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = new_board()
        board = CallBoard(fd)
        os.close(fd)
        probe(theirs, board, nvml, list_unless=-1, skip=frozenset())
        board.close()
        return FrameReader().feed(ours.recv(1 << 16))


@pytest.mark.parametrize("count", [2**32 - 1, 2**31, 100_000])
def test_a_number_of_gpus_that_cannot_be_is_a_failure_of_the_driver(count: int) -> None:
    (failed,) = _probed(_Nvml(nvmlDeviceGetCount=count))

    assert isinstance(failed, Failed)
    assert failed.reason == "nvml_error"
    assert "nvmlDeviceGetCount" in failed.text
    assert str(count) in failed.text


@pytest.mark.parametrize("address", [b"\xff" * 13, "FFFFFFFF:FF:1F.7", b"", "nonsense"])
def test_a_gpu_with_an_address_that_cannot_be_has_none(address: bytes | str) -> None:
    _, *listed, completed = _probed(_Nvml(nvmlDeviceGetPciInfo=SimpleNamespace(busId=address)))

    assert listed == [Listed(0, ""), Listed(1, "")]
    assert completed == Done()


def test_versions_that_cannot_be_are_unknown() -> None:
    undecodable = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    nvml = _Nvml(
        nvmlSystemGetDriverVersion=undecodable, nvmlSystemGetNVMLVersion="\x7f\x01", nvmlSystemGetCudaDriverVersion=2**32 - 1
    )

    result, *_ = _probed(nvml)

    assert result == DriverFound(Driver("", "", ""), 2)


def test_a_probe_that_meets_a_defect_says_in_which_call() -> None:
    (failed,) = _probed(_Nvml(nvmlDeviceGetCount=TypeError("no integer")))

    assert isinstance(failed, Failed)
    assert "TypeError in nvmlDeviceGetCount" in failed.text


class _Probes:
    """``Children`` without processes."""

    def __init__(self) -> None:
        self._open: list[tuple[Child, socket.socket]] = []

    @property
    def last(self) -> Child:
        return self._open[-1][0]

    def spawn(self, _request: object, _now: float) -> Child:
        child, theirs, _ = _child()
        self._open.append((child, theirs))
        return child

    def close(self) -> None:
        for child, item in self._open:
            assert child.connection is not None
            child.connection.close()
            item.close()


def test_a_release_that_did_not_come_about_leaves_nothing_released() -> None:
    nobody: Any = None
    slot = GpuSlot(
        "00000000:1a:00.0",
        nobody,
        collectors=frozenset(),
        interval_s=1,
        timeouts=FleetTimeouts(),
        on_xid=lambda _gpu, _xid: None,
        on_reset=lambda _gpu, _monotonic_s: None,
    )

    def why() -> str | None:
        return slot.down.reason if slot.down is not None else None

    slot.release(time.monotonic(), 60)
    assert why() == "released"
    slot.give_up_release(time.monotonic())
    assert why() == "starting"

    child, theirs, _ = _child()
    slot.child, slot.state, child.pid = child, "sampling", 7
    slot.release(time.monotonic(), 60)
    slot.give_up_release(time.monotonic())
    assert why() == "stuck"
    assert child.connection is not None
    child.connection.close()
    theirs.close()


def test_a_smaller_energy_counter_of_a_new_process_is_a_reset() -> None:
    nobody: Any = None
    resets: list[tuple[str, float]] = []
    slot = GpuSlot(
        "00000000:1a:00.0",
        nobody,
        collectors=frozenset(),
        interval_s=1,
        timeouts=FleetTimeouts(),
        on_xid=lambda _gpu, _xid: None,
        on_reset=lambda gpu, monotonic_s: resets.append((gpu.uuid, monotonic_s)),
    )
    child, theirs, _ = _child()
    slot.child = child

    def process(now: float, *energies_j: float | None, uuid: int = 0) -> None:
        slot.state = "opening"
        slot.handle(Opened(_identity(uuid, bus=0)), now)
        for energy_j in energies_j:
            readings = () if energy_j is None else (Reading("gpu_energy_joules_total", energy_j),)
            slot.handle(Sampled(GpuSample(_identity(uuid, bus=0), 0.0, now, readings), 0.1), now)

    process(1.0, 100.0, 5000.0)
    process(2.0, 5001.0)
    assert resets == []
    process(3.0, 150.0)
    assert resets == [("GPU-0", 3.0)]
    process(4.0, None, None, 20.0)  # not in the first sample
    assert resets == [("GPU-0", 3.0), ("GPU-0", 4.0)]
    process(5.0, 1.0, uuid=1)  # another GPU in its place
    assert len(resets) == 2

    # A reset while no exporter ran
    slot.remember(_identity(1, bus=0), EnergyMeter(900.0, "boot", 0.5))
    slot._readings = ()
    process(6.0, None, 30.0, uuid=1)
    assert resets[2:] == [("GPU-1", 6.0)]
    assert child.connection is not None
    child.connection.close()
    theirs.close()


def test_a_machine_without_sysfs_shows_nothing(tmp_path: Path) -> None:
    assert pci.scan(tmp_path / "nowhere") == ()
    assert pci.addresses(tmp_path / "nowhere") == ()


def test_pci_devices_that_vanish_or_talk_nonsense_are_passed_over(tmp_path: Path) -> None:
    for name, vendor, kind in (("0000:01:00.0", b"0x10de", b"0x030000"), ("0000:02:00.0", b"\xff\xfe", b""), ("junk", b"", b"")):
        (tmp_path / "devices" / name).mkdir(parents=True)
        (tmp_path / "devices" / name / "vendor").write_bytes(vendor)
        (tmp_path / "devices" / name / "class").write_bytes(kind)
    (tmp_path / "devices" / "0000:03:00.0").symlink_to("/nowhere")

    assert pci.scan(tmp_path) == (pci.PciDevice("00000000:01:00.0", "gpu", None),)


def test_the_inventory_outlives_its_process(tmp_path: Path) -> None:
    first = Inventory(tmp_path / "state")
    first.see(_identity(1))
    first.see(_identity(0))
    first.save()
    first.wait(60)

    assert Inventory(tmp_path / "state").identities() == (_identity(0), _identity(1))
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["gpus.json", "gpus.lock"]


def test_energy_is_kept_for_the_next_exporter_of_this_boot(tmp_path: Path) -> None:
    first = Inventory(tmp_path)
    first.see(_identity(0))
    first.read_meters({"GPU-0": 5000.0, "GPU-unknown": 1.0})
    first.see(_identity(0))
    first.pass_time(1.0, frozenset())
    first.save(meters=True)
    first.wait(60)

    meter = Inventory(tmp_path).meter("GPU-0")
    assert meter is not None
    assert meter.energy_j == 5000.0
    file = tmp_path / "gpus.json"
    file.write_text(file.read_text().replace(meter.boot_id, "another-boot"))
    assert Inventory(tmp_path).meter("GPU-0") is None
    assert Inventory(tmp_path).identities() == (_identity(0),)


def test_another_users_link_or_pipe_is_replaced_without_writing_or_waiting(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    puts: list[Callable[[Path], object]] = [lambda path: path.symlink_to(target), os.mkfifo]
    for number, put in enumerate(puts):
        folder = tmp_path / str(number)
        folder.mkdir()
        put(folder / "gpus.json")
        inventory = Inventory(folder)
        inventory.see(_identity(0))
        inventory.save()
        inventory.wait(60)
        assert Inventory(folder).identities() == (_identity(0),)
    assert target.read_text() == "precious"


def test_a_temporary_file_of_a_killed_exporter_is_removed_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".gpus.json.7-0123456789ab").write_text("[")
    inventory = Inventory(tmp_path)
    inventory.see(_identity(0))
    inventory.save()
    inventory.wait(60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpus.json", "gpus.lock"]


def test_a_new_gpu_in_a_slot_replaces_the_old_and_a_moved_one_stays_itself() -> None:
    inventory = Inventory(None)
    inventory.see(_identity(0))
    inventory.see(_identity(1))

    inventory.see(_identity(7, bus=1))
    inventory.see(_identity(0, bus=5))

    assert inventory.identities() == (_identity(7, bus=1), _identity(0, bus=5))


def test_only_time_in_which_somebody_looked_makes_a_gpu_forgotten(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path, forget_after_s=30 * DAY_S)
    inventory.see(_identity(0))
    inventory.see(_identity(1))
    inventory.pass_time(29 * DAY_S, frozenset({"GPU-0"}))
    inventory.save()
    inventory.wait(60)

    # the duration of an absence is kept across restarts
    later = Inventory(tmp_path, forget_after_s=30 * DAY_S)
    later.pass_time(0.5 * DAY_S, frozenset({"GPU-0"}))
    assert len(later) == 2
    later.pass_time(0.6 * DAY_S, frozenset({"GPU-0"}))
    assert later.identities() == (_identity(0),)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": "rankscope.gpus/2", "gpus": []}', b"\xff" * 2_000_000])
def test_an_inventory_that_cannot_be_read_costs_only_itself(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gpus.json").write_bytes(content)

    inventory = Inventory(tmp_path)

    assert inventory.identities() == ()
    assert len(caplog.records) == 1
    assert str(tmp_path / "gpus.json") in caplog.text


def test_a_full_disk_is_said_once_and_leaves_the_old_file_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = Inventory(tmp_path, retry_s=0)
    inventory.see(_identity(0))
    inventory.save()
    inventory.wait(60)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for number in (1, 2):
        inventory.see(_identity(number))
        inventory.save()
        inventory.wait(60)

    assert [record.getMessage().count("No space left") for record in caplog.records] == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpus.json", "gpus.lock"]
    assert Inventory(tmp_path).identities() == (_identity(0),)

    # when there is room again, everything is written
    monkeypatch.undo()
    inventory.save()
    inventory.wait(60)
    assert len(Inventory(tmp_path)) == 3


def test_the_file_is_for_the_exporters_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    mask = os.umask(0)
    try:
        inventory = Inventory(folder)
        inventory.see(_identity(0))
        inventory.save()
        inventory.wait(60)
        written = (folder / "gpus.json").stat().st_mode & 0o777
        inventory.see(_identity(1))
        (folder / "gpus.json").chmod(0o644)  # as older exporters wrote it
        inventory.save()
        inventory.wait(60)
        forget(folder, "GPU-1")
    finally:
        os.umask(mask)

    assert written == 0o600
    assert (folder / "gpus.json").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o007 == 0


def test_what_is_taken_out_of_the_file_is_forgotten_unless_it_is_there(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path)
    for number in range(3):
        inventory.see(_identity(number))
    inventory.save()
    inventory.wait(60)

    forget(tmp_path, "GPU-0")
    forget(tmp_path, "GPU-1")
    with pytest.raises(KeyError):
        forget(tmp_path, "GPU-1")
    assert not inventory.changed()
    inventory.take_over_changes(frozenset({"GPU-1"}))
    inventory.wait(60)
    assert inventory.changed()
    inventory.take_over_changes(frozenset({"GPU-1"}))

    assert inventory.identities() == (_identity(1), _identity(2))
    assert not inventory.changed()


def test_what_is_forgotten_does_not_come_back_with_the_next_write(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path)
    inventory.see(_identity(0))
    inventory.see(_identity(1))
    inventory.save()
    inventory.wait(60)

    forget(tmp_path, "GPU-0")
    inventory.see(_identity(2))
    inventory.save()
    inventory.wait(60)
    assert inventory.changed()
    inventory.take_over_changes(frozenset({"GPU-1", "GPU-2"}))
    inventory.save()
    inventory.wait(60)

    assert inventory.identities() == (_identity(1), _identity(2))
    assert Inventory(tmp_path).identities() == (_identity(1), _identity(2))


def test_a_gpu_forgotten_while_the_exporter_writes_stays_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = Inventory(tmp_path)
    inventory.see(_identity(0))
    inventory.see(_identity(1))
    inventory.save()
    inventory.wait(60)
    replacing, go_on = threading.Event(), threading.Event()

    def replace(*paths: Any, **options: Any) -> None:
        if threading.current_thread().name == "inventory":
            replacing.set()
            assert go_on.wait(60)
        real(*paths, **options)

    real = os.replace
    monkeypatch.setattr(os, "replace", replace)
    inventory.see(_identity(2))
    inventory.save()
    assert replacing.wait(60)
    other = threading.Thread(target=forget, args=(tmp_path, "GPU-0"))
    other.start()
    other.join(0.2)
    go_on.set()
    other.join(60)
    inventory.wait(60)
    for _ in range(2):
        inventory.take_over_changes(frozenset({"GPU-1", "GPU-2"}))
        inventory.wait(60)

    assert inventory.identities() == Inventory(tmp_path).identities() == (_identity(1), _identity(2))


def test_a_disk_that_hangs_holds_up_nobody_who_asks_for_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = Inventory(tmp_path)
    inventory.see(_identity(0))
    hanging, healed = threading.Event(), threading.Event()

    def stat(self: Path, **options: Any) -> os.stat_result:
        hanging.set()
        assert healed.wait(60)
        return real(self, **options)

    real = Path.stat
    monkeypatch.setattr(Path, "stat", stat)
    inventory.take_over_changes(frozenset())
    assert hanging.wait(60)
    inventory.save()
    inventory.take_over_changes(frozenset())
    assert inventory.identities() == (_identity(0),)

    healed.set()
    inventory.wait(60)


def test_counters_that_a_process_adds_up_continue_in_the_next_process() -> None:
    assert all(BY_NAME[name].type == "counter" for name in ADDED_UP_BY_PROCESS)
    of_instances = {row.name for row in CATALOGUE if row.name.startswith("gpu_mig_") and row.type == "counter"}
    of_gpus = {name for name in Gpm.metrics if BY_NAME[name].type == "counter"}
    assert {*of_gpus, *of_instances, *PcieBytes.metrics, BUSY} == ADDED_UP_BY_PROCESS
    counters = MonotonicCounters()

    def published(*readings: Reading) -> list[float]:
        return [reading.value for reading in counters.apply(readings)]

    counters.new_process()
    assert published(Reading(BUSY, 0.0), Reading(BUSY, 1.0, uuid="MIG-1")) == [0.0, 1.0]
    assert published(Reading(BUSY, 10.0), Reading(BUSY, 2.0, uuid="MIG-1")) == [10.0, 2.0]
    counters.new_process()
    assert published(Reading(BUSY, 0.5), Reading(BUSY, 0.0, uuid="MIG-1")) == [10.5, 2.0]
    assert published(Reading(BUSY, 3.0)) == [13.0]
    counters.new_process()
    assert published(Reading(BUSY, 1.0), Reading(BUSY, 1.0, uuid="MIG-1")) == [14.0, 3.0]


def test_counters_of_the_driver_are_left_as_they_are() -> None:
    counters = MonotonicCounters()
    counters.new_process()
    counters.apply((Reading("gpu_energy_joules_total", 500.0), Reading("gpu_pcie_transmit_bytes_total", 500.0)))
    counters.new_process()

    after = counters.apply((Reading("gpu_energy_joules_total", 5.0), Reading("gpu_pcie_transmit_bytes_total", 600.0)))

    # a decrease of a driver's counter is published as it is; a counter that never decreased needs no offset
    assert [reading.value for reading in after] == [5.0, 600.0]


def _child() -> tuple[Child, socket.socket, CallBoard]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    fd = new_board()
    child, board = Child(1, ours, CallBoard(fd), time.monotonic()), CallBoard(fd)
    os.close(fd)
    return child, theirs, board


def test_only_the_second_look_at_the_same_call_makes_it_a_hang() -> None:
    child, theirs, board = _child()
    board.mark("nvmlInit")
    board.mark("nvmlDeviceGetPowerUsage" + "x" * 200)
    late = time.monotonic() + 60

    def look(at: float) -> str | None:
        return child.trouble(at, deadline_s=5, silence_s=10)

    assert look(late) is None
    board.mark("nvmlDeviceGetTemperature")  # the process was only stopped, together with everything else
    assert look(late) is None
    assert look(late) == "nvmlDeviceGetTemperature did not return within 5 s"
    board.mark("")
    # silent, without a call in progress
    assert look(late) is None
    child.pid = 7
    trouble = look(late)
    assert trouble is not None
    assert "pid 7" in trouble
    assert "10 s" in trouble
    child.heard_at = late
    assert look(late) is None
    assert child.connection is not None
    child.connection.close()
    theirs.close()


@pytest.mark.parametrize("nonsense", [b"\xff\xff\xff\xff", b"\0\0\0\x03abc", b"\0\0\0\x01\x80"])
def test_a_process_that_talks_nonsense_is_not_listened_to(nonsense: bytes) -> None:
    child, theirs, _ = _child()
    theirs.sendall(nonsense)

    assert child.read() is None

    assert child.connection is not None
    child.connection.close()
    theirs.close()


class _Gpu:
    """A GPU whose third sample fails with ``error``."""

    def __init__(self, error: Exception, *, readings: int = 1) -> None:
        self._error = error
        self._readings = tuple(Reading(BUSY, float(number)) for number in range(readings))
        self.samples = 0
        self.closed = False
        self.driver_version = "580.65.06"

    def open(self) -> GpuIdentity:
        return _identity(0)

    def sample(self) -> GpuSample:
        self.samples += 1
        if self.samples == 3:
            raise self._error
        return GpuSample(_identity(0), time.time(), time.monotonic(), self._readings)

    def part(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("error", "last_word"),
    [
        (SourceError("lost", "fell off the bus"), Failed("lost", "fell off the bus")),
        (AttributeError("nvmlNothing"), Failed("nvml_error", "AttributeError: nvmlNothing")),
    ],
)
def test_what_a_worker_says_arrives_whole_and_its_last_word_is_why(error: Exception, last_word: Failed) -> None:
    ours, theirs = socket.socketpair()
    fd = new_board()
    gpu = _Gpu(error, readings=20_000)  # more than a socket takes at once

    def run() -> None:
        with theirs:
            work(theirs, CallBoard(fd), lambda: gpu, interval_s=0.01)

    worker = threading.Thread(target=run)
    worker.start()
    reader, messages = FrameReader(), list[Any]()
    while piece := ours.recv(10_000):
        messages += reader.feed(piece)
    worker.join()
    ours.close()
    os.close(fd)

    assert [type(message) for message in messages] == [Opened, Sampled, Sampled, Failed]
    assert len(messages[1].sample.readings) == 20_000
    assert messages[-1] == last_word


def test_a_worker_closes_its_gpu_when_nobody_listens_any_more() -> None:
    ours, theirs = socket.socketpair()
    fd = new_board()
    gpu = _Gpu(RuntimeError())
    ours.shutdown(socket.SHUT_WR)

    work(theirs, CallBoard(fd), lambda: gpu, interval_s=60)

    os.close(fd)
    ours.close()
    theirs.close()
    assert (gpu.samples, gpu.closed) == (1, True)


def test_only_readings_that_differ_are_sent_and_all_of_them_arrive() -> None:
    fan, clock = (("fan", "0"),), (("clock", "sm"),)
    passes = [
        (Reading("a", 1), Reading("b", 2, fan), Reading("c", 3)),
        (Reading("a", 1), Reading("b", 2.5, fan), Reading("c", 3)),
        (Reading("a", 1), Reading("b", 2.5, clock), Reading("c", 3, (), "MIG-1")),  # other readings in their places
        (Reading("a", 1), Reading("b", 2.5, clock), Reading("c", 3, (), "MIG-1")),
        (Reading("b", 2.5, clock), Reading("a", 1)),
        (),
    ]
    encoder, sizes = DeltaEncoder(), []
    received: tuple[Reading, ...] = ()

    for readings in passes:
        message = encoder.encode(GpuSample(_identity(0), 0.0, 0.0, readings=readings), 0.1)
        before, received = received, apply_delta(received, message.sample.readings, message.places)
        assert received == readings
        sizes.append(len(message.sample.readings))
        kept = set(range(len(readings))) - set(message.places if message.places is not None else range(len(readings)))
        assert all(received[place] is before[place] for place in kept)

    assert sizes == [3, 1, 2, 0, 2, 0]


def test_frames_survive_any_cut() -> None:
    ours, theirs = socket.socketpair()
    send_frame(ours, Opened(_identity(0)))
    send_frame(ours, Failed("lost", "é"))
    ours.close()
    reader, messages = FrameReader(), list[Any]()
    while piece := theirs.recv(1):
        messages += reader.feed(piece)
    theirs.close()

    assert messages == [Opened(_identity(0)), Failed("lost", "é")]


def test_a_new_process_without_readings_takes_the_old_ones_away() -> None:
    # given readings of a process that has ended
    readings = (Reading("gpu_power_watts", 300.0),)
    identity = _identity(0)
    before = apply_delta((), DeltaEncoder().encode(GpuSample(identity, 1.0, 1.0, readings), 0.1).sample.readings, None)
    assert before == readings

    # when the first sample of the next process has none
    encoder = DeltaEncoder()
    message = encoder.encode(GpuSample(identity, 2.0, 2.0), 0.1)

    assert apply_delta(before, message.sample.readings, message.places) == ()
    again = encoder.encode(GpuSample(identity, 3.0, 3.0, readings), 0.1)
    assert apply_delta((), again.sample.readings, again.places) == readings
