"""Survey of the node's GPUs: those on the PCI bus, the driver's count, and, if the two differ, the driver's list."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.exporter.fleet import pci
from rankscope.exporter.fleet.children import Child, Children
from rankscope.exporter.fleet.timeouts import FleetTimeouts
from rankscope.exporter.fleet.wire import DriverFound, Failed, FromChild, Listed, SpawnProbe
from rankscope.exporter.source import DownReason, Driver

logger = logging.getLogger(__name__)

_DRIVER_MODULE: Final = "nvidia"
_UNUSABLE: Final = ("no_driver", "library_mismatch")
_LIBRARY_MISMATCH: Final = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
_SILENCE_S: Final = 10.0
DriverNews = Literal["exchanged", "returned"]

_NOT_QUERIED: Final = "the driver has not been queried yet"


class GpuSurvey:
    """Survey of the node's GPUs, by the PCI bus and by probes of the driver.

    A probe runs when the PCI bus changes, on ``probe_soon``, periodically, and with backoff while the driver does not answer. If
    the driver hangs at an index, a new probe skips it, so that one GPU hides no other. ``done`` is True after the first answer
    or failure; ``problem`` says why the driver as a whole does not answer, ``problem_reason`` in a word.
    """

    def __init__(self, children: Children, *, pci_root: Path, timeouts: FleetTimeouts) -> None:
        self.driver: Driver | None = None  # the last one seen, kept while the driver does not answer
        self.answers: bool | None = None
        self.count: int | None = None
        self.problem: str | None = _NOT_QUERIED
        self.problem_reason: DownReason | None = None
        self.devices: tuple[pci.PciDevice, ...] = ()
        self.done = False
        self.stale_since: float | None = None
        self._children = children
        self._pci_root = pci_root
        self._timeouts = timeouts
        self._child: Child | None = None
        self._addresses: tuple[str, ...] | None = None
        self._watch_at = 0.0
        self._probe_at = 0.0
        self._failures = 0
        self._listed: dict[int, str] | None = None
        self._listed_without: frozenset[int] = frozenset()
        self._listing: dict[int, str] = {}
        self._list_unless = -1
        self._to_list = range(0)
        self._skipped: frozenset[int] = frozenset()
        self._left_behind: dict[Child, int] = {}
        self._answered = True

    @property
    def is_probing(self) -> bool:
        """True while a probe runs."""
        return self._child is not None

    def stuck(self, now: float) -> int:
        """Return the number of probes that were killed and did not exit."""
        probes = (*self._left_behind, *([self._child] if self._child is not None else []))
        return sum(child.killed_at is not None and now - child.killed_at > self._timeouts.die_s for child in probes)

    @property
    def bus_ids(self) -> frozenset[str]:
        """PCI bus ids of all GPUs that the PCI bus or the driver shows."""
        listed = {bus_id for bus_id in (self._listed or {}).values() if bus_id}
        return frozenset(listed | {device.bus_id for device in self._gpus()})

    @property
    def without_bus_id(self) -> int:
        """Number of GPUs that the driver counts without a known PCI bus id."""
        if self._listed is None:
            return 0
        return len(self._listed_without) + sum(not bus_id for bus_id in self._listed.values())

    @property
    def pci_count(self) -> int | None:
        """Number of GPUs on the PCI bus; None if sysfs shows none and the driver does not confirm that, as in some containers."""
        gpus = len(self._gpus())
        sure = gpus or self.count == 0 or (self.devices and not self.count)
        return gpus if sure else None

    @property
    def nvswitches(self) -> int | None:
        """Number of NVSwitches on the PCI bus; None if sysfs shows no NVIDIA device."""
        return sum(device.kind == "nvswitch" for device in self.devices) if self.devices else None

    def absent(self, bus_id: str) -> tuple[DownReason, str] | None:  # noqa: PLR0911  one line per case reads best
        """Return reason and detail why the GPU at this address cannot be queried; None if a process should try."""
        if self.problem_reason in _UNUSABLE:
            return self.problem_reason, self.problem or ""
        device = next((device for device in self._gpus() if device.bus_id == bus_id), None)
        bound = device is not None and device.driver == _DRIVER_MODULE
        if self._listed is not None and bus_id in self._listed.values():
            return None
        # Try it if there is no listing yet, or if this GPU may be one of those listed without a bus id.
        if bound and (self._listed is None or self.without_bus_id):
            return None
        if bound:
            return "missing", "it is on the PCI bus and bound to the driver, but the driver does not list it"
        if device is not None:
            return "not_in_driver", f"it is on the PCI bus, but bound to {device.driver or 'no driver'}"
        if not self.done:
            return "starting", _NOT_QUERIED
        if self._listed is None and self.problem is not None:
            return "nvml_error", self.problem
        if self.without_bus_id and not self.devices:
            return None
        return "missing", "neither the driver nor the PCI bus shows it any more"

    def probe_soon(self, now: float) -> None:
        """Probe again after the shortest retry delay at the latest."""
        self._probe_at = min(self._probe_at, now + self._timeouts.survey_retry_s[0])

    def step(self, now: float, *, skip: frozenset[int], paused: bool) -> bool:
        """Check the PCI bus and run the probe as due; return True if the PCI bus changed. Raises ``NurseryLostError``.

        ``skip`` are indexes known to hang. While ``paused``, no probe runs: even a short call can break a GPU reset, or load a
        driver that is about to be replaced.
        """
        changed = now >= self._watch_at and self._watch_bus(now)
        for child in self._left_behind:
            self._children.kill(child, now)
        if self._child is not None:
            if paused:
                self._answered, self._probe_at = True, now  # probe again after the pause
                self._children.kill(self._child, now)
            else:
                self._watch_probe(self._child, now)
        elif now >= self._probe_at and not paused:
            self._listing = {}
            self._probe(now, skip | frozenset(self._left_behind.values()))
        return changed

    def handle(self, child: Child, message: FromChild, now: float) -> DriverNews | None:
        """Handle a message of a probe; return ``exchanged`` or ``returned`` if the driver changed or answers again."""
        child.last_message_s = now
        if child is not self._child:
            return None
        if isinstance(message, DriverFound):
            before, was_silent = self.driver, not self.answers
            exchanged = before is not None and _differs(before, message.driver)
            self.driver, self.answers = message.driver if exchanged else _merged(before, message.driver), True
            self.count, self.problem_reason, self.stale_since = message.count, None, None
            self._to_list = range(message.count if message.count != self._list_unless else 0)
            if exchanged:
                return "exchanged"
            return "returned" if was_silent else None
        if isinstance(message, Listed):
            self._listing[message.index] = message.pci_bus_id
        elif isinstance(message, Failed):
            self._failed(message.reason, message.text, message.code, now)
        else:
            self._succeeded(now)
        return None

    def ended(self, child: Child, exit_reason: str, now: float) -> None:
        """Handle the exit of a probe."""
        self._left_behind.pop(child, None)
        if child is not self._child:
            return
        self._child = None
        if not self._answered:
            self._failed("died", f"the process that queried the driver {exit_reason}", None, now)

    def _gpus(self) -> list[pci.PciDevice]:
        return [device for device in self.devices if device.kind == "gpu"]

    def _watch_bus(self, now: float) -> bool:
        self._watch_at = now + self._timeouts.watch_s
        addresses = pci.addresses(self._pci_root)
        if addresses == self._addresses:
            return False
        self._addresses = addresses
        devices = pci.scan(self._pci_root)
        if devices == self.devices:
            return False
        self.devices, self._probe_at = devices, now
        return True

    def _probe(self, now: float, skip: frozenset[int]) -> None:
        bound = sum(device.driver == _DRIVER_MODULE for device in self._gpus())
        self._list_unless, self._skipped, self._answered = bound or -1, skip, False
        self._to_list = range(0)
        try:
            self._child = self._children.spawn(
                lambda number: SpawnProbe(number, self._list_unless, tuple(sorted(skip | self._listing.keys()))), now
            )
        except OSError as error:
            self._failed("died", f"the process that queries the driver could not be started: {error.strerror}", None, now)

    def _watch_probe(self, child: Child, now: float) -> None:
        if child.hung_up_at is not None:
            if now - child.hung_up_at > self._timeouts.end_s:
                self._children.kill(child, now)
            return
        hang_reason = child.hang_reason(now, deadline_s=self._timeouts.open_s, silence_s=self._timeouts.open_s + _SILENCE_S)
        if hang_reason is None:
            return
        self._children.kill(child, now)
        index = next((index for index in self._to_list if index not in self._skipped and index not in self._listing), None)
        if index is None:
            self._failed("hung", f"NVML: {hang_reason}", None, now)
            return
        # The driver hangs at one GPU: continue after it with a new process.
        logger.warning("querying GPU %d of the driver: %s", index, hang_reason)
        self._child = None
        self._left_behind[child] = index
        self._probe(now, self._skipped | {index})

    def _succeeded(self, now: float) -> None:
        if self.count != self._list_unless:
            self._listed, self._listed_without = self._listing, self._skipped
        else:
            self._listed, self._listed_without = None, frozenset()
        if self.problem not in (None, _NOT_QUERIED):
            logger.info("the driver answers again")
        self.problem, self.done, self._answered, self._failures = None, True, True, 0
        self._probe_at = now + self._timeouts.survey_s

    def _failed(self, reason: DownReason, text: str, code: int | None, now: float) -> None:
        if code == _LIBRARY_MISMATCH:
            reason = "library_mismatch"
            text += ": the driver's library here and the driver that is loaded are of different versions"
        if text != self.problem:
            logger.warning("%s", text)
        if code == _LIBRARY_MISMATCH and self.driver is not None:
            self.stale_since = self.stale_since or now
        self.answers, self.count = False, None
        self.problem, self.problem_reason, self.done, self._answered = text, reason, True, True
        pauses = self._timeouts.survey_retry_s
        self._probe_at = now + pauses[min(self._failures, len(pauses) - 1)]
        self._failures += 1


def _merged(before: Driver | None, driver: Driver) -> Driver:
    """Return the versions of the driver; those that it did not tell this time are as before."""
    return driver if before is None else Driver(*(new or old for old, new in _pairs(before, driver)))


def _differs(before: Driver, driver: Driver) -> bool:
    """Return whether a version changed; one that the driver did not tell has not."""
    return any(old and new and old != new for old, new in _pairs(before, driver))


def _pairs(before: Driver, driver: Driver) -> Iterator[tuple[str, str]]:
    return zip(msgspec.structs.astuple(before), msgspec.structs.astuple(driver), strict=True)
