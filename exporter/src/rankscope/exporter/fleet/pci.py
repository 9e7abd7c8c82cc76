"""NVIDIA devices on the PCI bus, read from sysfs: works also when the driver hangs, is not loaded, or has lost a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

import msgspec

SYSFS_PCI: Final = Path("/sys/bus/pci")

_NVIDIA: Final = "0x10de"
_KINDS: Final[dict[str, Literal["gpu", "nvswitch"]]] = {"0x0300": "gpu", "0x0302": "gpu", "0x0680": "nvswitch"}
_ADDRESS: Final = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")


_NO_DOMAIN: Final = "ffffffff"


class PciDevice(msgspec.Struct, frozen=True):
    """A GPU or an NVSwitch. ``driver`` is the kernel module it is bound to (``nvidia``, ``vfio-pci``); None if unbound."""

    bus_id: str
    kind: Literal["gpu", "nvswitch"]
    driver: str | None


def bus_id(address: str) -> str:
    """Return a PCI address in NVML's form: lower case, eight digits of domain (0 if the address has none).

    Text that is no PCI address is only converted to lower case.
    """
    match = _ADDRESS.fullmatch(address)
    return f"{(match[1] or '').lower():0>8}:{match[2].lower()}" if match else address.lower()


def is_address(text: str) -> bool:
    """Return whether a text is the address of a PCI device: one with all bits set is none."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and (match[1] or "").lower() != _NO_DOMAIN


def scan(root: Path = SYSFS_PCI) -> tuple[PciDevice, ...]:
    """Return the NVIDIA GPUs and NVSwitches of this machine in the order of their addresses; empty if sysfs shows none."""
    devices = []
    for name in _names(root / "devices"):
        folder = root / "devices" / name
        if _read(folder / "vendor") != _NVIDIA:
            continue
        kind = _KINDS.get(_read(folder / "class")[:6])
        if kind is not None:
            devices.append(PciDevice(bus_id(name), kind, _driver(folder)))
    return tuple(devices)


def addresses(root: Path = SYSFS_PCI) -> tuple[str, ...]:
    """Return the addresses of all devices, then of those bound to the NVIDIA driver. A cheap check before a ``scan``."""
    return (*_names(root / "devices"), *_names(root / "drivers" / "nvidia"))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if _ADDRESS.fullmatch(path.name))
    except OSError:
        return []


def _read(file: Path) -> str:
    try:
        return file.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _driver(folder: Path) -> str | None:
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return None
