"""Records of the journal: single errors, and counts by device and code."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "rankscope.xids/1"

Kind = Literal["xid", "sxid", "reset"]
"""``reset``: not an error, but a reset of the GPU, which repairs what errors before it were about. Its code is 0."""
Severity = Literal["", "fatal", "non_fatal"]
"""As the line says; empty for a code without a severity, and for an NVML event, which has none."""
SeenBy = Literal["nvml", "kernel_log", "kernel_log_fallen"]
"""``kernel_log_fallen``: a line, not an Xid itself, that reports that the GPU has fallen off the bus."""


class KernelXid(msgspec.Struct, frozen=True, kw_only=True):
    """An error in a line of the kernel log.

    ``boot_s`` is its time on the monotonic clock, ``seq`` the line's number in this boot.
    """

    kind: Kind
    seen_by: SeenBy
    pci_bus_id: str
    code: int
    severity: Severity = ""
    text: str
    seq: int
    boot_s: float


class XidEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="entry"):
    """One error or reset, from one or several sources. In the file, a later line with the same ``id`` replaces the earlier one.

    Attributes:
        uuid: uuid of the GPU; empty for an NVSwitch, and for a GPU that is not identified yet.
        unix_s: time of the error on the wall clock, as of the time it was recorded.
        boot_s: the same on the monotonic clock of the boot ``boot_id``.
        seq: number of the last kernel log line about it; None without one.
    """

    id: int
    kind: Kind = "xid"
    pci_bus_id: str
    uuid: str = ""
    code: int
    severity: Severity = ""
    unix_s: float
    boot_id: str
    boot_s: float
    seen_by: tuple[SeenBy, ...]
    seq: int | None = None
    job_id: str | None = None
    text: str = ""

    @property
    def device(self) -> str:
        """Label value of its series: uuid of a GPU, PCI bus id of an NVSwitch; empty while unknown."""
        return self.pci_bus_id if self.kind == "sxid" else self.uuid


class Tally(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Count of errors of one code and severity on one device, and the time of the last one."""

    kind: Kind = "xid"
    device: str
    code: str
    severity: Severity = ""
    count: int
    unix_s: float
    boot_id: str
    boot_s: float
    job_id: str | None = None


class JournalSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="snapshot"):
    """First line of the file: the counts up to entry ``last_id``; entries up to that id are not counted again.

    ``boot_id`` and ``seq``: kernel log lines of that boot up to that number are included.
    """

    format: str
    last_id: int = 0
    boot_id: str = ""
    seq: int = -1
    tallies: tuple[Tally, ...] = ()
