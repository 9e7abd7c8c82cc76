"""Matching of errors: an NVML event and a kernel log line of the same device and code at about the same time are one error.

They are matched one to one: two lines are two errors, and so are two events.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankscope.exporter.xid.entry import KernelXid, XidEntry

EARLY_S: Final = 10.0
LATE_S: Final = 120.0
"""Maximum seconds by which an NVML event may be earlier (``EARLY_S``) or later (``LATE_S``) than the kernel log line.

The event has the time at which it was read, which can be long after the error while the driver handles it.
"""

_FALLEN_S: Final = 300.0

Key = tuple[str, str, int]


def key_of(error: KernelXid | XidEntry) -> Key:
    """Return what all reports of one error have in common."""
    return error.kind, error.pci_bus_id, error.code


def may_be_same(error: KernelXid | XidEntry, other: XidEntry) -> bool:
    """Return whether two reports with the same key do not contradict each other; only a line has a severity."""
    return error.severity == other.severity or "" in (error.severity, other.severity)


def is_repeat(xid: KernelXid, entry: XidEntry) -> bool:
    """Return whether a report with the entry's key may be about the same error."""
    if not may_be_same(xid, entry):
        return False
    later_s = xid.boot_s - entry.boot_s
    # The driver repeats that a GPU has fallen off the bus; that is the same error.
    if xid.seen_by == "kernel_log_fallen":
        return abs(later_s) <= _FALLEN_S
    late_s = later_s if xid.seen_by == "nvml" else -later_s
    return xid.seen_by not in entry.seen_by and -EARLY_S <= late_s <= LATE_S


def merged(entry: XidEntry, other: XidEntry) -> XidEntry:
    """Merge two entries of the same error; fields of ``entry`` take precedence."""
    return msgspec.structs.replace(
        entry,
        uuid=entry.uuid or other.uuid,
        severity=entry.severity or other.severity,
        seen_by=tuple(dict.fromkeys((*entry.seen_by, *other.seen_by))),
        seq=max((seq for seq in (entry.seq, other.seq) if seq is not None), default=None),
        job_id=entry.job_id or other.job_id,
        text=entry.text or other.text,
    )
