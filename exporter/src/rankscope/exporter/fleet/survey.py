"""Which GPUs this node has: what the PCI bus shows, what the driver counts, and, where the two differ, what the driver lists."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, Literal

from rankscope.exporter.fleet import pci
from rankscope.exporter.fleet.children import Child, Children
from rankscope.exporter.fleet.patience import Patience
from rankscope.exporter.fleet.wire import DriverFound, Failed, FromChild, Listed, SpawnProbe
from rankscope.exporter.source import DownReason, Driver

logger = logging.getLogger(__name__)

_DRIVER_MODULE: Final = "nvidia"
_LIBRARY_MISMATCH: Final = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
_SILENCE_S: Final = 10.0
DriverNews = Literal["exchanged", "returned"]

_NOT_ASKED: Final = "the driver has not been asked yet"


class Survey:
    """Looks when the PCI bus changes, when told to, after a while anyway, and, with growing pauses, while the driver is silent.

    An index at which the driver hangs is left out and the probe goes on behind it, so that one GPU hides no other. ``done`` is
    True after the first answer of any kind; ``problem`` says why the driver as a whole does not answer.
    """

    def __init__(self, children: Children, *, pci_root: Path, patience: Patience) -> None:
        self.driver: Driver | None = None  # the last one seen: who does not answer has not become another
        self.answers: bool | None = None
        self.count: int | None = None
        self.problem: str | None = _NOT_ASKED
        self.devices: tuple[pci.PciDevice, ...] = ()
        self.done = False
        self.stale_since: float | None = None
        self._children = children
        self._pci_root = pci_root
        self._patience = patience
        self._child: Child | None = None
        self._addresses: tuple[str, ...] | None = None
        self._watch_at = 0.0
        self._probe_at = 0.0
        self._failures = 0
        self._no_driver = False
        self._listed: dict[int, str] | None = None
        self._listing: dict[int, str] = {}
        self._list_unless = -1
        self._to_list = range(0)
        self._skipped: frozenset[int] = frozenset()
        self._left_behind: dict[Child, int] = {}
        self._answered = True

    @property
    def asking(self) -> bool:
        """Whether a probe is under way."""
        return self._child is not None

    def stuck(self, now: float) -> int:
        """Probes that were killed and did not die."""
        probes = (*self._left_behind, *([self._child] if self._child is not None else []))
        return sum(child.killed_at is not None and now - child.killed_at > self._patience.die_s for child in probes)

    @property
    def bus_ids(self) -> frozenset[str]:
        """All GPUs that the PCI bus or the driver shows."""
        listed = {bus_id for bus_id in (self._listed or {}).values() if bus_id}
        return frozenset(listed | {device.bus_id for device in self._gpus()})

    @property
    def nameless(self) -> int:
        """GPUs that the driver counts but does not say where they are."""
        if self._listed is None:
            return 0
        return len(self._skipped) + sum(not bus_id for bus_id in self._listed.values())

    @property
    def pci_count(self) -> int | None:
        """GPUs on the PCI bus; None where sysfs shows none and nobody else says so, as in a container that hides it."""
        gpus = len(self._gpus())
        sure = gpus or self.count == 0 or (self.devices and not self.count)
        return gpus if sure else None

    @property
    def nvswitches(self) -> int | None:
        """NVSwitches on the PCI bus; None where sysfs shows nothing of NVIDIA."""
        return sum(device.kind == "nvswitch" for device in self.devices) if self.devices else None

    def absent(self, bus_id: str) -> tuple[DownReason, str] | None:  # noqa: PLR0911  one line per case reads best
        """Why the GPU at this address cannot be asked, as far as the node as a whole knows; None when it is worth trying."""
        if self._no_driver:
            return "no_driver", self.problem or ""
        device = next((device for device in self._gpus() if device.bus_id == bus_id), None)
        bound = device is not None and device.driver == _DRIVER_MODULE
        if self._listed is not None and bus_id in self._listed.values():
            return None
        # Before any listing, and when one of the GPUs that it could not place may be this one, the attempt tells.
        if bound and (self._listed is None or self.nameless):
            return None
        if bound:
            return "missing", "it is on the PCI bus and bound to the driver, but the driver does not list it"
        if device is not None:
            return "not_in_driver", f"it is on the PCI bus, but bound to {device.driver or 'no driver'}"
        if not self.done:
            return "starting", _NOT_ASKED
        if self._listed is None and self.problem is not None:
            return "nvml_error", self.problem
        if self.nameless and not self.devices:
            return None
        return "missing", "neither the driver nor the PCI bus shows it any more"

    def soon(self, now: float) -> None:
        """Look again without waiting for the next time, but never twice within the shortest pause."""
        self._probe_at = min(self._probe_at, now + self._patience.survey_retry_s[0])

    def step(self, now: float, *, skip: frozenset[int], paused: bool) -> bool:
        """Do what is due; True when the PCI bus changed. Raises ``NurseryLostError``.

        ``skip`` are indexes known to hang. While ``paused`` nobody asks the driver: even a short look can spoil a reset, or load
        a driver that is about to be exchanged.
        """
        changed = now >= self._watch_at and self._watch_bus(now)
        for child in self._left_behind:
            self._children.kill(child, now)
        if self._child is not None:
            if paused:
                self._answered, self._probe_at = True, now  # again, afterwards
                self._children.kill(self._child, now)
            else:
                self._watch_probe(self._child, now)
        elif now >= self._probe_at and not paused:
            self._listing = {}
            self._probe(now, skip | frozenset(self._left_behind.values()))
        return changed

    def hear(self, child: Child, message: FromChild, now: float) -> DriverNews | None:
        """A message of a probe; says when the driver is another one than before, or answers again."""
        child.heard_at = now
        if child is not self._child:
            return None
        if isinstance(message, DriverFound):
            before, was_silent = self.driver, not self.answers
            self.driver, self.answers = message.driver, True
            self.count, self._no_driver, self.stale_since = message.count, False, None
            self._to_list = range(message.count if message.count != self._list_unless else 0)
            if before not in (None, message.driver):
                return "exchanged"
            return "returned" if was_silent else None
        if isinstance(message, Listed):
            self._listing[message.index] = message.pci_bus_id
        elif isinstance(message, Failed):
            self._failed(message.reason, message.text, message.code, now)
        else:
            self._succeeded(now)
        return None

    def ended(self, child: Child, why: str, now: float) -> None:
        """A probe is gone."""
        self._left_behind.pop(child, None)
        if child is not self._child:
            return
        self._child = None
        if not self._answered:
            self._failed("died", f"the process that asked the driver {why}", None, now)

    def _gpus(self) -> list[pci.PciDevice]:
        return [device for device in self.devices if device.kind == "gpu"]

    def _watch_bus(self, now: float) -> bool:
        self._watch_at = now + self._patience.watch_s
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
            self._failed("died", f"a process to ask the driver could not be started: {error.strerror}", None, now)

    def _watch_probe(self, child: Child, now: float) -> None:
        if child.hung_up_at is not None:
            if now - child.hung_up_at > self._patience.end_s:
                self._children.kill(child, now)
            return
        trouble = child.trouble(now, deadline_s=self._patience.open_s, silence_s=self._patience.open_s + _SILENCE_S)
        if trouble is None:
            return
        self._children.kill(child, now)
        index = next((index for index in self._to_list if index not in self._skipped and index not in self._listing), None)
        if index is None:
            self._failed("hung", f"NVML: {trouble}", None, now)
            return
        # It hangs at one GPU: on to those behind it, with another process.
        logger.warning("asking the driver for its GPU %d: %s", index, trouble)
        self._child = None
        self._left_behind[child] = index
        self._probe(now, self._skipped | {index})

    def _succeeded(self, now: float) -> None:
        if self.count != self._list_unless:
            self._listed = self._listing
        else:
            self._listed, self._skipped = None, frozenset()
        if self.problem not in (None, _NOT_ASKED):
            logger.info("the driver answers again")
        self.problem, self.done, self._answered, self._failures = None, True, True, 0
        self._probe_at = now + self._patience.survey_s

    def _failed(self, reason: DownReason, text: str, code: int | None, now: float) -> None:
        if code == _LIBRARY_MISMATCH:
            text += ": the driver's library here and the driver that is loaded are of different versions"
        if text != self.problem:
            logger.warning("%s", text)
        if code == _LIBRARY_MISMATCH and self.driver is not None:
            self.stale_since = self.stale_since or now
        self.answers, self.count = False, None
        self.problem, self.done, self._answered, self._no_driver = text, True, True, reason == "no_driver"
        pauses = self._patience.survey_retry_s
        self._probe_at = now + pauses[min(self._failures, len(pauses) - 1)]
        self._failures += 1
