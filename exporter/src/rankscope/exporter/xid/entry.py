"""What the journal remembers: single errors, and how many there were of each kind."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "rankscope.xids/1"

Kind = Literal["xid", "sxid"]
SeenBy = Literal["nvml", "kernel_log", "kernel_log_fallen"]
"""``kernel_log_fallen``: a line that says that the GPU has fallen off the bus, and is no Xid itself."""


class KernelXid(msgspec.Struct, frozen=True, kw_only=True):
    """An error as a line of the kernel log tells it.

    ``boot_s`` is when, on the monotonic clock; ``seq`` the line's number in this boot. ``severity`` is for NVSwitches only.
    """

    kind: Kind
    seen_by: SeenBy
    pci_bus_id: str
    code: int
    severity: Literal["", "fatal", "non_fatal"] = ""
    text: str
    seq: int
    boot_s: float


class XidEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="entry"):
    """One error, seen once or more: a line with a known ``id`` in the file replaces what was known.

    ``uuid`` is empty for an NVSwitch, and for a GPU as long as nobody said who is at that address. ``boot_s`` is when, on the
    monotonic clock of that boot; ``unix_s`` is the same on the wall clock at the time it was recorded. ``seq``: the last of the
    kernel's lines about it.
    """

    id: int
    kind: Kind = "xid"
    pci_bus_id: str
    uuid: str = ""
    code: int
    severity: Literal["", "fatal", "non_fatal"] = ""
    unix_s: float
    boot_id: str
    boot_s: float
    seen_by: tuple[SeenBy, ...]
    seq: int | None = None
    job_id: str | None = None
    text: str = ""

    @property
    def device(self) -> str:
        """What the series of it are labelled with: uuid of a GPU, address of an NVSwitch; empty when not known."""
        return self.pci_bus_id if self.kind == "sxid" else self.uuid


class Tally(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All errors of one code (or of the codes beyond the cap) on one device, and when the last was."""

    kind: Kind = "xid"
    device: str
    code: str
    severity: Literal["", "fatal", "non_fatal"] = ""
    count: int
    unix_s: float
    boot_id: str
    boot_s: float
    job_id: str | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="snapshot"):
    """The first line of the file: everything counted up to entry ``last_id``; entries below that do not count again.

    ``boot_id`` and ``seq``: the kernel's lines of that boot up to that number are in.
    """

    format: str
    last_id: int = 0
    boot_id: str = ""
    seq: int = -1
    tallies: tuple[Tally, ...] = ()
