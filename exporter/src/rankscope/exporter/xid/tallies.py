"""Counts of errors by device and code, with a bounded number of codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from rankscope.exporter.xid.entry import Kind, Tally, XidEntry
from rankscope.exporter.xids import ACTIONABLE

OTHER: Final = "other"
"""Code of all errors beyond the cap, which bounds the number of series."""

MAX_OTHER_CODES: Final = 4
"""Maximum number of codes of one GPU with series of their own, besides the actionable ones."""

MAX_SXID_CODES: Final = 16
"""Maximum number of codes of one NVSwitch and severity with series of their own."""

_ALWAYS: Final = frozenset(str(code) for code in ACTIONABLE)

Device = tuple[Kind, str, str]


class Tallies:
    """Counts by device and code. A code that has a series of its own keeps it."""

    def __init__(self, tallies: Iterable[Tally] = ()) -> None:
        self._of: dict[Device, dict[str, Tally]] = {}
        self._own_codes: Counter[Device] = Counter()
        for tally in tallies:
            self._put((tally.kind, tally.device, tally.severity), tally)

    def add(self, entry: XidEntry) -> None:
        """Count an entry of a known device."""
        device: Device = (entry.kind, entry.device, entry.severity)
        known = self._of.get(device, {})
        code = str(entry.code)
        if code not in known and code not in _ALWAYS:
            cap = MAX_SXID_CODES if entry.kind == "sxid" else MAX_OTHER_CODES
            code = code if self._own_codes[device] < cap else OTHER
        before = known.get(code)
        # Kernel log lines may arrive after newer errors: keep the time and job of the newest one.
        if before is not None and before.boot_id == entry.boot_id and before.boot_s > entry.boot_s:
            last_unix_s, last_boot_s, last_job_id = before.unix_s, before.boot_s, before.job_id
        else:
            last_unix_s, last_boot_s, last_job_id = entry.unix_s, entry.boot_s, entry.job_id
        tally = Tally(
            kind=entry.kind,
            device=entry.device,
            code=code,
            severity=entry.severity,
            count=1 if before is None else before.count + 1,
            unix_s=last_unix_s,
            boot_id=entry.boot_id,
            boot_s=last_boot_s,
            job_id=last_job_id,
        )
        self._put(device, tally)

    def of_gpu(self, uuid: str, kind: Kind = "xid") -> dict[str, Tally]:
        """Return a GPU's tallies of one kind by code."""
        return self._of.get((kind, uuid, ""), {})

    def of_switches(self) -> list[Tally]:
        """Return the tallies of all NVSwitches."""
        return [tally for (kind, _, _), tallies in sorted(self._of.items()) if kind == "sxid" for tally in tallies.values()]

    def all(self) -> tuple[Tally, ...]:
        """Return all tallies; those of a device in the order in which its codes appeared."""
        return tuple(tally for tallies in self._of.values() for tally in tallies.values())

    def _put(self, device: Device, tally: Tally) -> None:
        known = self._of.setdefault(device, {})
        if tally.code not in known and tally.code not in _ALWAYS and tally.code != OTHER:
            self._own_codes[device] += 1
        known[tally.code] = tally
