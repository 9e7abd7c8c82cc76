"""Which GPU or MIG device a scheduler means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rankscope.exporter.fleet import pci
from rankscope.exporter.jobs.party import SchedulerDevice
from rankscope.exporter.source import GpuState, MigDevice

_MINOR: Final = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)
_FOLDER: Final = Path("driver/nvidia/gpus")


def device_numbers(proc: Path) -> dict[str, int]:
    """Return the driver's device minor numbers by PCI bus id; empty if the driver does not list them. May block in the driver."""
    numbers = {}
    try:
        for folder in (proc / _FOLDER).iterdir():
            with (folder / "information").open("rb") as file:
                match = _MINOR.search(file.read(4096).decode("utf-8", "replace"))
            if match is not None:
                numbers[pci.bus_id(folder.name)] = int(match[1])
    except OSError:
        return {}
    return numbers


class Devices:
    """The GPUs of the node and their MIG devices, found by a scheduler's name for them.

    ``numbers`` is the result of ``device_numbers``. If it has no GPU of this node, a number is taken as an NVML index: NVML and
    the driver count in the same order unless a GPU is missing.
    """

    def __init__(self, gpus: tuple[GpuState, ...], migs: Mapping[str, tuple[MigDevice, ...]], numbers: Mapping[str, int]) -> None:
        self.migs = migs
        self._uuids = {bare_uuid(gpu.identity.uuid): gpu.identity.uuid for gpu in gpus}
        self._uuids |= {bare_uuid(mig.uuid): mig.uuid for devices in migs.values() for mig in devices}
        identities = {gpu.identity.pci_bus_id: gpu.identity for gpu in gpus}
        self._by_device_number = {numbers[bus_id]: gpu.uuid for bus_id, gpu in identities.items() if bus_id in numbers}
        self._by_number = self._by_device_number or {gpu.index: gpu.uuid for gpu in identities.values()}

    def uuid_of(self, device: SchedulerDevice) -> str | None:
        """Return the uuid of the GPU or MIG device; None if no device matches, or the match is ambiguous."""
        if device.uuid is not None:
            uuid = self._uuids.get(bare_uuid(device.uuid))
        elif device.number is not None:
            uuid = self._by_number.get(device.number)
            # With MIG, Slurm numbers the MIG devices after the whole GPUs, and only these keep their minor numbers.
            if device.gpu_instance is None and any(self.migs.values()):
                return uuid if uuid == self._by_device_number.get(device.number) and not self.migs.get(uuid or "") else None
        else:
            return None
        if uuid is None or device.gpu_instance is None:
            return uuid
        instances = [mig for mig in self.migs.get(uuid, ()) if mig.gpu_instance == device.gpu_instance]
        if device.compute_instance is not None:
            instances = [mig for mig in instances if mig.compute_instance == device.compute_instance]
        return instances[0].uuid if len(instances) == 1 else None


def bare_uuid(uuid: str) -> str:
    """Normalise a uuid: torch names a MIG device ``GPU-…``, and some schedulers use lower case only."""
    return uuid.lower().removeprefix("mig-").removeprefix("gpu-")
