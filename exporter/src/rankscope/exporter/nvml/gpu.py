"""One GPU through NVML, by the official ``nvidia-ml-py``.

Every call's error is its own: a metric that is not supported costs that metric, a collector that fails costs itself, a lost GPU
costs that GPU. The process it runs in is the GPU's own, because a call may hang for good and NVML has one lock for a process.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from rankscope.exporter.catalogue import BY_NAME, COLLECTORS
from rankscope.exporter.errors import ExporterMissingError
from rankscope.exporter.nvml.asking import Asking, is_lasting, is_trouble
from rankscope.exporter.nvml.cooling import Fans, Margin
from rankscope.exporter.nvml.fields import FieldBatches
from rankscope.exporter.nvml.gpm import Gpm, PcieBytes
from rankscope.exporter.nvml.mig import Mig
from rankscope.exporter.nvml.nvlink import EachLink, Fabric, Links, NvLinks, PeerToPeer
from rankscope.exporter.nvml.one_pass import FieldKey, Pass, Topic
from rankscope.exporter.nvml.processes import Processes
from rankscope.exporter.nvml.rows import RARELY, Rows
from rankscope.exporter.nvml.status import RECOVERY_ACTION, RetiredPages, Virtualization
from rankscope.exporter.nvml.tables import CALLS, FIELDS
from rankscope.exporter.nvml.utilization import BusySeconds
from rankscope.exporter.nvml.xid_events import Xids
from rankscope.exporter.source import Absent, CollectorRun, GpuIdentity, GpuSample, Reading, SourceError, XidEvent


def topics_of(collectors: frozenset[str]) -> dict[str, Sequence[Topic]]:
    """The parts of each enabled collector that asks GPUs, in the order in which they run: MIG devices come before processes."""
    links = Links()
    gpm = Gpm() if "gpm" in collectors else None
    special: dict[str, Sequence[Topic]] = {
        # The table of processes is asked for jobs as well, whose collector is not one of GPUs.
        "gpu": [] if "process" in collectors or "jobs" not in collectors else [Processes(series=False)],
        "temperature": [Margin()],
        "utilization": [BusySeconds()],
        "gpm": [gpm] if gpm else [],
        "fan": [Fans()],
        "pcie": [PcieBytes(gpm.chain if gpm else None)],
        "nvlink": [NvLinks(links), Fabric()],
        "nvlink_link": [EachLink(links)],
        "xid": [Xids()],
        "recovery": [Rows(fields=(RECOVERY_ACTION,))],
        "mig": [Mig()],
        "retired_pages": [RetiredPages()],
        "virtualization": [Virtualization()],
        "process": [Processes(series=True)],
        "p2p": [PeerToPeer()],
    }
    names = [name for name, collector in COLLECTORS.items() if collector.asks_gpu and name != "gpu" and name in collectors]
    return {
        name: [
            *([Rows(CALLS.get(name, ()), FIELDS.get(name, ()))] if name in CALLS or name in FIELDS else []),
            *special.get(name, ()),
        ]
        for name in [*names, "gpu"]
    }


_NOT_WHEN_DIVIDED: Final = frozenset({"utilization", "encoder"})


def load_nvml() -> Any:
    """The module of the official package.

    Raises:
        ExporterMissingError: it is not installed, or the unofficial package of the same module name hides it.
    """
    try:
        module = importlib.import_module("pynvml")
    except ImportError as error:
        raise ExporterMissingError(f"reading GPUs needs nvidia-ml-py ({error}): pip install 'rankscope[exporter]'") from error
    # The unofficial one is a package (it has a path) and lacks the newer calls.
    if hasattr(module, "__path__") or not hasattr(module, "nvmlMemory_v2"):
        raise ExporterMissingError(
            "the unofficial package 'pynvml' hides nvidia-ml-py: "
            "pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py"
        )
    return module


class NvmlGpu:
    """A ``source.Gpu`` over NVML: the GPU at ``pci_bus_id``, asked for what the enabled ``collectors`` (names) need.

    ``mark`` is called with the name of every NVML call just before it is made.
    """

    def __init__(self, nvml: Any, pci_bus_id: str, collectors: frozenset[str], mark: Callable[[str], None]) -> None:
        self._ask = Asking(nvml, mark)
        self._pci_bus_id = pci_bus_id
        self._parts = {name: [_Part(topic) for topic in topics] for name, topics in topics_of(collectors).items()}
        every = [part for parts in self._parts.values() for part in parts]
        self._between = [part.topic for part in every if part.topic.has_parts]
        self._wanting = [part for part in every if part.topic.has_fields]
        self._fields = FieldBatches()
        self._identity: GpuIdentity | None = None
        self._started = False

    def open(self) -> GpuIdentity:
        """Start NVML and find the GPU by its PCI bus id; raises ``SourceError``."""
        ask = self._ask
        try:
            ask("nvmlInit")
            self._started = True
            ask.handle = ask("nvmlDeviceGetHandleByPciBusId", self._pci_bus_id.encode())
            self._identity = self._identify()
        except (ask.nvml.NVMLError, UnicodeDecodeError) as error:
            self.close()
            reason = ask.reason(error) if isinstance(error, ask.nvml.NVMLError) else "unreadable"
            raise SourceError("missing" if reason == "not_found" else "nvml_error", f"{error} ({reason})") from error
        except SourceError:
            self.close()
            raise
        return self._identity

    def sample(self) -> GpuSample:
        """Ask what the enabled collectors need; raises ``SourceError`` when the GPU itself is gone."""
        assert self._identity is not None, "opened first"
        at = Pass(self._ask, self._identity.uuid, time.monotonic())
        try:
            return self._sample(self._identity, at)
        except SourceError as error:
            error.xids = self._last_xids(at.xids)
            raise

    def _sample(self, identity: GpuIdentity, at: Pass) -> GpuSample:
        unix_s, now_s = time.time(), at.now_s
        keys = [key for part in self._wanting for key in part.wants(now_s)]
        if keys:
            at.fields = self._fields.read(self._ask, keys)
        began_s, runs = now_s, []
        for collector, parts in self._parts.items():
            at.trouble = None
            for part in parts:
                part.collect(at)
            ended_s = time.monotonic()
            runs.append(CollectorRun(collector, ended_s - began_s, at.trouble))
            began_s = ended_s
        return GpuSample(
            identity,
            unix_s,
            began_s,
            readings=tuple(at.readings),
            absent=_fewer(_because_divided(at.absent) if at.mig_enabled else at.absent, at.readings),
            runs=tuple(runs),
            processes=None if at.processes is None else tuple(at.processes),
            processes_s=at.processes_s,
            mig_devices=tuple(at.mig_devices),
            xids=tuple(at.xids),
        )

    def part(self) -> None:
        """Look at what only adjacent looks can tell."""
        for topic in self._between:
            try:
                topic.part(self._ask)
            except self._ask.nvml.NVMLError:
                pass  # what failed now will fail, or not, in the next pass, where it is told
            except SourceError as error:
                error.xids = self._last_xids([])
                raise

    def close(self) -> None:
        """Free everything and shut NVML down; the library stays loaded."""
        errors = (self._ask.nvml.NVMLError, SourceError)
        if self._started:
            self._started = False
            for parts in self._parts.values():
                for part in parts:
                    with contextlib.suppress(*errors):
                        part.topic.close(self._ask)
            with contextlib.suppress(*errors):
                self._ask("nvmlShutdown")

    def _last_xids(self, heard: list[XidEvent]) -> tuple[XidEvent, ...]:
        """Those of a pass that failed, and what still waits: the driver keeps it for a listener even when the GPU is lost."""
        for part in (part for parts in self._parts.values() for part in parts):
            if isinstance(part.topic, Xids):
                with contextlib.suppress(self._ask.nvml.NVMLError, SourceError):
                    part.topic.drain(self._ask, heard)
        return tuple(heard)

    def _identify(self) -> GpuIdentity:
        ask, gpu = self._ask, self._ask.handle
        bus = ask("nvmlDeviceGetPciInfo", gpu).busId
        return GpuIdentity(
            uuid=ask("nvmlDeviceGetUUID", gpu),
            index=ask("nvmlDeviceGetIndex", gpu),
            model=ask("nvmlDeviceGetName", gpu),
            pci_bus_id=(bus.decode() if isinstance(bus, bytes) else bus).lower(),
            serial=self._if_any("nvmlDeviceGetSerial"),
            vbios_version=self._if_any("nvmlDeviceGetVbiosVersion"),
        )

    def _if_any(self, name: str) -> str | None:
        try:
            text: str = self._ask(name, self._ask.handle)
        except self._ask.nvml.NVMLError:
            return None
        return text or None


class _Part:
    """A topic and what befell it: when it fails its metrics are absent; what the GPU does not have is asked again, but rarely."""

    __slots__ = ("_due_s", "_reason", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._due_s = float("-inf")
        self._reason = ""

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        return self.topic.wants(now_s) if self._due_s <= now_s else ()

    def collect(self, at: Pass) -> None:
        if self._due_s > at.now_s:
            self._lack_all(at)
            return
        nvml, before = at.ask.nvml, (len(at.readings), len(at.absent))
        try:
            self.topic.collect(at)
        except nvml.NVMLError as error:
            self._reason = at.ask.reason(error)
            text = f"{error} ({self._reason})"
        except (UnicodeDecodeError, ValueError, OSError) as error:
            self._reason = "unreadable"
            text = f"{type(error).__name__}: {error}"
        else:
            return
        # Half of it would look as if it were all of it.
        del at.readings[before[0] :], at.absent[before[1] :]
        if is_trouble(self._reason):
            at.trouble = at.trouble or text
        elif is_lasting(self._reason):
            self._due_s = at.now_s + RARELY
        self._lack_all(at)

    def _lack_all(self, at: Pass) -> None:
        for metric in self.topic.metrics:
            at.lack(metric, self._reason)


def _because_divided(absent: Sequence[Absent]) -> list[Absent]:
    """The driver calls utilisation unsupported while MIG is on: there it is the mode, and not the board, that has none."""
    return [
        Absent(one.metric, "mig_enabled", one.labels)
        if one.reason == "not_supported" and BY_NAME[one.metric].collector in _NOT_WHEN_DIVIDED
        else one
        for one in absent
    ]


def _fewer(absent: Sequence[Absent], readings: Sequence[Reading]) -> tuple[Absent, ...]:
    """A metric of which nothing is there, for one reason, is named once and not once for each of its labels."""
    reasons: dict[str, set[str]] = {}
    for one in absent:
        reasons.setdefault(one.metric, set()).add(one.reason)
    there = {reading.metric for reading in readings if reading.metric in reasons}
    short = {
        one.metric: Absent(one.metric, one.reason) for one in absent if len(reasons[one.metric]) == 1 and one.metric not in there
    }
    return (*short.values(), *(one for one in absent if one.metric not in short))
