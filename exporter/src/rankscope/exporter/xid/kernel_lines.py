"""Parser of kernel log records that report an Xid, an SXid, or a GPU that fell off the bus."""

from __future__ import annotations

import re
from typing import Final

from rankscope.exporter.fleet.pci import bus_id
from rankscope.exporter.xid.entry import KernelXid, Severity
from rankscope.exporter.xids import FALLEN_OFF_THE_BUS, GRADED

_MAX_TEXT: Final = 256
_KERNEL_PRIORITIES: Final = 8  # facility 0, which programs that write to /dev/kmsg cannot use

_ADDRESS: Final = r"(?:PCI:)?(?P<address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
# A MIG instance or the uuid may follow the address.
_XID: Final = re.compile(rf"NVRM: Xid \({_ADDRESS}[^)]{{0,64}}\): (?P<code>[0-9]{{1,5}})\b[,:]? ?(?P<text>.*)", re.DOTALL)
# The driver logs three lines per error of an NVSwitch; only this one has the severity.
_SXID: Final = re.compile(
    rf"nvidia-nvswitch[0-9]{{1,3}}: SXid \({_ADDRESS}\): (?P<code>[0-9]{{1,5}}), (?P<severity>Fatal|Non-fatal), ?(?P<text>.*)",
    re.DOTALL,
)
# NVLink errors from Blackwell on. A process may have such a name, which comes first.
_SEVERITY: Final = re.compile(r".*\b(?P<severity>Fatal|Non-?fatal)\b", re.DOTALL)
_GPU: Final = re.compile(rf"NVRM: (?:The NVIDIA GPU|GPU(?: at)?) {_ADDRESS}")
_FALLEN: Final = re.compile(r"NVRM:.{0,200}\bfallen off the bus", re.DOTALL)
_RECORD: Final = re.compile(rb"([0-9]{1,4}),([0-9]{1,19}),([0-9]{1,19}),[^;]{0,200};([^\n]*)")
_ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")
# The driver logs a graphics engine exception once per affected unit, and more; NVML sends one event for all of them.
_WITH_DETAILS: Final = frozenset({13})
_ONE_MESSAGE_S: Final = 0.1
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class KernelLines:
    """Stateful parser of records: the driver may spread one message over several of them."""

    def __init__(self) -> None:
        self._spoken_of: tuple[str, float] | None = None
        self._detailed: tuple[str, int, float] | None = None

    def read(self, record: bytes) -> tuple[int, int, KernelXid | None] | None:
        """Parse a record to sequence number, microseconds since boot, and its error (or None); None if it is not a record.

        ``boot_s`` of the error is the kernel's timestamp, uncorrected.
        """
        parts = _RECORD.match(record)
        if parts is None:
            return None
        priority, seq, stamp_us = int(parts[1]), int(parts[2]), int(parts[3])
        message = parts[4]
        # Skip the expensive parsing for nearly all records.
        if priority >= _KERNEL_PRIORITIES or not message.startswith((b"NVRM:", b"nvidia-nvswitch")):
            return seq, stamp_us, None
        text = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), message).decode("utf-8", "replace")
        return seq, stamp_us, self._error(text, seq, stamp_us / 1e6)

    def _error(self, text: str, seq: int, boot_s: float) -> KernelXid | None:
        if xid := _XID.match(text):
            self._spoken_of = None
            address, code = pci_bus_id(xid["address"]), int(xid["code"])
            if self._is_detail(address, code, boot_s):
                return None
            return KernelXid(
                kind="xid",
                seen_by="kernel_log",
                pci_bus_id=address,
                code=code,
                severity=_severity(_SEVERITY.match(xid["text"]) if code in GRADED else None),
                text=_clean(xid["text"]),
                seq=seq,
                boot_s=boot_s,
            )
        if sxid := _SXID.match(text):
            return KernelXid(
                kind="sxid",
                seen_by="kernel_log",
                pci_bus_id=pci_bus_id(sxid["address"]),
                code=int(sxid["code"]),
                severity=_severity(sxid),
                text=_clean(sxid["text"]),
                seq=seq,
                boot_s=boot_s,
            )
        if gpu := _GPU.match(text):
            self._spoken_of = pci_bus_id(gpu["address"]), boot_s
        if self._spoken_of is None or boot_s - self._spoken_of[1] > _ONE_MESSAGE_S or not _FALLEN.match(text):
            return None
        (address, _), self._spoken_of = self._spoken_of, None
        return KernelXid(
            kind="xid",
            seen_by="kernel_log_fallen",
            pci_bus_id=address,
            code=FALLEN_OFF_THE_BUS,
            text=_clean(text),
            seq=seq,
            boot_s=boot_s,
        )

    def _is_detail(self, address: str, code: int, boot_s: float) -> bool:
        """Return True if this line only adds details to the error of the previous line."""
        before, self._detailed = self._detailed, (address, code, boot_s)
        return (
            code in _WITH_DETAILS
            and before is not None
            and before[:2] == (address, code)
            and boot_s - before[2] <= _ONE_MESSAGE_S
        )


def pci_bus_id(address: str) -> str:
    """Convert ``0000:1a:00``, with or without function, to the form of ``GpuIdentity.pci_bus_id``."""
    return bus_id(f"{address.partition('.')[0]}.0")


def _severity(match: re.Match[str] | None) -> Severity:
    return "" if match is None else "fatal" if match["severity"] == "Fatal" else "non_fatal"


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text)[:_MAX_TEXT].strip()
