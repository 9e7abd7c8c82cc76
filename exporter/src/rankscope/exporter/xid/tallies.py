"""Counts of errors by device and code, with a bounded rate of new codes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from rankscope.exporter.xid.entry import Kind, Severity, Tally, XidEntry
from rankscope.exporter.xids import ACTIONABLE

NEW_CODES: Final = 32
NEW_CODES_S: Final = 3600.0
"""At most ``NEW_CODES`` codes of a device get a series within ``NEW_CODES_S`` seconds, besides the actionable ones.

The series of the others appear later. They are counted from their first error.
"""

_ALWAYS: Final = frozenset(str(code) for code in ACTIONABLE)

Device = tuple[Kind, str]
_Key = tuple[str, Severity]


class Tallies:
    """Counts by device, code and severity. A code that has a series keeps it. Times are monotonic."""

    def __init__(self, tallies: Iterable[Tally] = ()) -> None:
        self._by_device: dict[Device, dict[_Key, Tally]] = {}
        self._shown_keys: dict[Device, dict[_Key, None]] = {}
        self._waiting: dict[Device, dict[_Key, None]] = {}
        self._shown_s: dict[Device, deque[float]] = {}
        for tally in tallies:
            if tally.code.isdecimal():
                self._by_device.setdefault((tally.kind, tally.device), {})[tally.code, tally.severity] = tally
        self.show_all()

    def add(self, entry: XidEntry, now_s: float) -> None:
        """Count an entry of a known device."""
        device: Device = (entry.kind, entry.device)
        key = str(entry.code), entry.severity
        before = self._by_device.get(device, {}).get(key)
        # Kernel log lines may arrive after newer errors: keep the time and job of the newest one.
        if before is not None and before.boot_id == entry.boot_id and before.boot_s > entry.boot_s:
            last_unix_s, last_boot_s, last_job_id = before.unix_s, before.boot_s, before.job_id
        else:
            last_unix_s, last_boot_s, last_job_id = entry.unix_s, entry.boot_s, entry.job_id
        self._by_device.setdefault(device, {})[key] = Tally(
            kind=entry.kind,
            device=entry.device,
            code=str(entry.code),
            severity=entry.severity,
            count=1 if before is None else before.count + 1,
            unix_s=last_unix_s,
            boot_id=entry.boot_id,
            boot_s=last_boot_s,
            job_id=last_job_id,
        )
        if before is None:
            self._waiting.setdefault(device, {})[key] = None
            self.show_due(now_s)

    def show_due(self, now_s: float) -> list[Tally]:
        """Let waiting codes have their series as far as the rate permits; return them."""
        shown: list[Tally] = []
        for device, waiting in list(self._waiting.items()):
            recent = self._shown_s.setdefault(device, deque())
            while recent and recent[0] <= now_s - NEW_CODES_S:
                recent.popleft()
            for key in list(waiting):
                if key[0] not in _ALWAYS:
                    if len(recent) >= NEW_CODES:
                        continue
                    recent.append(now_s)
                del waiting[key]
                self._shown_keys.setdefault(device, {})[key] = None
                shown.append(self._by_device[device][key])
            if not waiting:
                del self._waiting[device]
        return shown

    def show_all(self) -> None:
        """Let all codes have their series: those from the file had them before a restart."""
        self._shown_keys = {device: dict.fromkeys(tallies) for device, tallies in self._by_device.items()}
        self._waiting = {}

    def waiting(self, device: Device) -> list[str]:
        """Return the codes of a device whose series have to wait."""
        return [code for code, _ in self._waiting.get(device, {})]

    def of_gpu(self, uuid: str, kind: Kind = "xid") -> list[Tally]:
        """Return a GPU's tallies of one kind that have series, in the order in which their codes appeared."""
        return self._with_series((kind, uuid))

    def of_switches(self) -> Iterator[Tally]:
        """Yield the tallies of all NVSwitches that have series."""
        for device in sorted(self._by_device):
            if device[0] == "sxid":
                yield from self._with_series(device)

    def all(self) -> tuple[Tally, ...]:
        """Return all tallies; those of a device in the order in which its codes appeared."""
        return tuple(tally for tallies in self._by_device.values() for tally in tallies.values())

    def _with_series(self, device: Device) -> list[Tally]:
        shown = self._shown_keys.get(device, {})
        return [tally for key, tally in self._by_device.get(device, {}).items() if key in shown]
