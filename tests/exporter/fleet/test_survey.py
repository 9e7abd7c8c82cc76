"""The survey of the node's GPUs: the PCI bus, and the probe that queries the driver as a whole."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.exporter.fleet.gpu_child import connected_child, disconnect

from rankscope.exporter.fleet import pci
from rankscope.exporter.fleet.call_board import CallBoard, new_board
from rankscope.exporter.fleet.children import Child, Children
from rankscope.exporter.fleet.probe import probe
from rankscope.exporter.fleet.survey import GpuSurvey
from rankscope.exporter.fleet.timeouts import FleetTimeouts
from rankscope.exporter.fleet.wire import Done, DriverFound, Failed, FrameReader, Listed, SpawnProbe
from rankscope.exporter.source import Driver


class Probes:
    """``Children`` without processes."""

    def __init__(self) -> None:
        self.requests: list[SpawnProbe] = []
        self._open: list[tuple[Child, socket.socket, CallBoard]] = []

    @property
    def last(self) -> Child:
        return self._open[-1][0]

    @property
    def last_board(self) -> CallBoard:
        """The call board of the last process."""
        return self._open[-1][2]

    def spawn(self, request: Callable[[int], SpawnProbe], _now: float) -> Child:
        self.requests.append(request(1))
        self._open.append(connected_child())
        return self.last

    def kill(self, child: Child, now: float) -> None:
        child.killed_at = now

    def close(self) -> None:
        for child, theirs, _ in self._open:
            disconnect(child, theirs)


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
def test_pci_addresses_are_normalized(address: str, written: str) -> None:
    assert pci.bus_id(address) == written


def test_machine_without_sysfs_has_no_pci_devices(tmp_path: Path) -> None:
    assert pci.scan(tmp_path / "nowhere") == ()
    assert pci.addresses(tmp_path / "nowhere") == ()


def test_vanished_or_invalid_pci_devices_are_skipped(tmp_path: Path) -> None:
    for name, vendor, kind in (("0000:01:00.0", b"0x10de", b"0x030000"), ("0000:02:00.0", b"\xff\xfe", b""), ("junk", b"", b"")):
        (tmp_path / "devices" / name).mkdir(parents=True)
        (tmp_path / "devices" / name / "vendor").write_bytes(vendor)
        (tmp_path / "devices" / name / "class").write_bytes(kind)
    (tmp_path / "devices" / "0000:03:00.0").symlink_to("/nowhere")

    assert pci.scan(tmp_path) == (pci.PciDevice("00000000:01:00.0", "gpu", None),)


def test_pci_count_is_unknown_without_driver_count_or_pci_devices(tmp_path: Path) -> None:
    fresh, survey = (GpuSurvey(cast("Children", Probes()), pci_root=tmp_path, timeouts=FleetTimeouts()) for _ in range(2))
    assert fresh.pci_count is None
    survey.count = 0
    assert survey.pci_count == 0
    survey.count, survey.devices = None, (pci.PciDevice("00000000:05:00.0", "nvswitch", None),)
    assert survey.pci_count == 0
    survey.devices = (*survey.devices, pci.PciDevice("00000000:1a:00.0", "gpu", None))
    assert survey.pci_count == 1


def test_gpu_skipped_by_a_listing_is_not_missing_in_the_next(tmp_path: Path) -> None:
    """Else a GPU that had hung would count as reset, and its Xid alerts would end."""
    children = Probes()
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


def test_listing_skips_every_hung_gpu(tmp_path: Path) -> None:
    children = Probes()
    survey = GpuSurvey(cast(Children, children), pci_root=tmp_path, timeouts=FleetTimeouts())
    now = time.monotonic()

    def listing(*indexes: int) -> None:
        survey.handle(children.last, DriverFound(Driver("580.65.06", "12.580", "13.0"), 4), now)
        for index in indexes:
            survey.handle(children.last, Listed(index, f"00000000:{0x1A + index:02x}:00.0"), now)

    survey.step(now, skip=frozenset(), paused=False)
    for indexes in ((0,), ()):  # the driver hangs at GPU 1, then at GPU 2
        listing(*indexes)
        children.last_board.mark("nvmlDeviceGetHandleByIndex")
        for late in (now + 60, now + 61):
            survey.step(late, skip=frozenset(), paused=False)
    listing(3)
    survey.handle(children.last, Done(), now)

    assert [request.skip for request in children.requests] == [(), (0, 1), (0, 1, 2)]
    assert survey.bus_ids == {"00000000:1a:00.0", "00000000:1d:00.0"}
    assert survey.without_bus_id == 2
    children.close()


def test_probe_killed_for_a_release_is_no_failure(tmp_path: Path) -> None:
    children = Probes()
    survey = GpuSurvey(cast(Children, children), pci_root=tmp_path, timeouts=FleetTimeouts())
    survey.step(1.0, skip=frozenset(), paused=False)

    survey.step(2.0, skip=frozenset(), paused=True)
    assert children.last.killed_at == 2.0
    survey.ended(children.last, "ended by signal 9", 2.0)

    assert (survey.done, survey.problem_reason) == (False, None)
    survey.step(3.0, skip=frozenset(), paused=False)
    assert len(children.requests) == 2
    children.close()


def test_temporarily_unknown_driver_version_is_no_driver_change(tmp_path: Path) -> None:
    """Else all GPUs would count as reset."""
    children = Probes()
    survey = GpuSurvey(cast(Children, children), pci_root=tmp_path, timeouts=FleetTimeouts(survey_s=1.0))

    def news(now: float, *versions: str) -> str | None:
        survey.step(now, skip=frozenset(), paused=False)
        probe = children.last
        result = survey.handle(probe, DriverFound(Driver(*versions), 0), now)
        survey.handle(probe, Done(), now)
        survey.ended(probe, "exited", now)
        return result

    assert news(1.0, "580.65.06", "", "13.0") == "returned"
    assert news(2.0, "", "13.580", "") is None
    assert survey.driver == Driver("580.65.06", "13.580", "13.0")
    assert news(3.0, "580.65.06", "13.580", "13.0") is None
    assert news(4.0, "590.44.01", "13.580", "") == "exchanged"
    assert survey.driver == Driver("590.44.01", "13.580", "")
    children.close()


class Nvml:
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


def probed(nvml: Nvml) -> list[Any]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = new_board()
        board = CallBoard(fd)
        os.close(fd)
        probe(theirs, board, nvml, list_unless=-1, skip=frozenset())
        board.close()
        return FrameReader().feed(ours.recv(1 << 16))


@pytest.mark.parametrize("count", [2**32 - 1, 2**31, 100_000])
def test_impossible_gpu_count_is_a_driver_failure(count: int) -> None:
    (failed,) = probed(Nvml(nvmlDeviceGetCount=count))

    assert isinstance(failed, Failed)
    assert failed.reason == "nvml_error"
    assert "nvmlDeviceGetCount" in failed.text
    assert str(count) in failed.text


@pytest.mark.parametrize("address", [b"\xff" * 13, "FFFFFFFF:FF:1F.7", b"", "nonsense"])
def test_gpu_with_an_invalid_pci_address_has_no_address(address: bytes | str) -> None:
    _, *listed, completed = probed(Nvml(nvmlDeviceGetPciInfo=SimpleNamespace(busId=address)))

    assert listed == [Listed(0, ""), Listed(1, "")]
    assert completed == Done()


def test_invalid_versions_are_unknown() -> None:
    undecodable = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    nvml = Nvml(
        nvmlSystemGetDriverVersion=undecodable, nvmlSystemGetNVMLVersion="\x7f\x01", nvmlSystemGetCudaDriverVersion=2**32 - 1
    )

    result, *_ = probed(nvml)

    assert result == DriverFound(Driver("", "", ""), 2)


def test_probe_failure_names_the_call() -> None:
    (failed,) = probed(Nvml(nvmlDeviceGetCount=TypeError("no integer")))

    assert isinstance(failed, Failed)
    assert "TypeError in nvmlDeviceGetCount" in failed.text
