"""One GPU through NVML, by the official ``nvidia-ml-py``.

Errors are isolated: an unsupported metric, a failing collector or a lost GPU affects nothing else. Each GPU has its own process,
because a call may never return and NVML has one lock per process.
"""

from __future__ import annotations

import contextlib
import importlib
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rankscope.base.errors import MissingError
from rankscope.exporter.catalogue import BY_NAME, COLLECTORS
from rankscope.exporter.nvml.calls import IMPLAUSIBLE, NvmlCalls, is_fault, is_lasting
from rankscope.exporter.nvml.cooling import FansTopic, MarginTopic
from rankscope.exporter.nvml.fields import FieldBatches
from rankscope.exporter.nvml.gpm import GpmTopic, PcieBytesTopic
from rankscope.exporter.nvml.mig import MigTopic
from rankscope.exporter.nvml.nvlink import FabricTopic, LinkStates, LinkStateTopic, NvLinksTopic, PeerToPeerTopic
from rankscope.exporter.nvml.processes import ProcessTopic
from rankscope.exporter.nvml.rows import EVERY_60_S, RowsTopic
from rankscope.exporter.nvml.sample_pass import FieldKey, SamplePass, Topic
from rankscope.exporter.nvml.status import RECOVERY_ACTION, RetiredPagesTopic, VirtualizationTopic
from rankscope.exporter.nvml.tables import CALLS, FIELDS
from rankscope.exporter.nvml.utilization import BusySecondsTopic
from rankscope.exporter.nvml.xid_events import XidTopic
from rankscope.exporter.source import DEFECT, Absent, CollectorRun, GpuIdentity, GpuSample, Reading, SourceError, XidEvent


def topics_of(collectors: frozenset[str]) -> dict[str, Sequence[Topic]]:
    """Return the topics of each enabled collector that queries GPUs, in the order in which they run.

    MIG devices come before processes, which refer to them.
    """
    links = LinkStates()
    gpm = GpmTopic() if "gpm" in collectors else None
    special: dict[str, Sequence[Topic]] = {
        # The jobs collector, which does not query GPUs itself, needs the process table, too.
        "gpu": [] if "process" in collectors or "jobs" not in collectors else [ProcessTopic(series=False)],
        "temperature": [MarginTopic()],
        "utilization": [BusySecondsTopic()],
        "gpm": [gpm] if gpm else [],
        "fan": [FansTopic()],
        "pcie": [PcieBytesTopic(gpm.chain if gpm else None)],
        "nvlink": [NvLinksTopic(links), FabricTopic()],
        "nvlink_link": [LinkStateTopic(links)],
        "xid": [XidTopic()],
        "recovery": [RowsTopic(fields=(RECOVERY_ACTION,))],
        "mig": [MigTopic()],
        "retired_pages": [RetiredPagesTopic()],
        "virtualization": [VirtualizationTopic()],
        "process": [ProcessTopic(series=True)],
        "p2p": [PeerToPeerTopic()],
    }
    names = [name for name, collector in COLLECTORS.items() if collector.reads_gpu and name != "gpu" and name in collectors]
    return {
        name: [
            *([RowsTopic(CALLS.get(name, ()), FIELDS.get(name, ()))] if name in CALLS or name in FIELDS else []),
            *special.get(name, ()),
        ]
        for name in [*names, "gpu"]
    }


_NOT_WHEN_DIVIDED: Final = frozenset({"utilization", "encoder"})


def load_nvml() -> Any:
    """Import ``pynvml`` of the official package and return it.

    Raises:
        MissingError: it is not installed, or the unofficial package with the same module name hides it.
    """
    try:
        module = importlib.import_module("pynvml")
    except ImportError as error:
        raise MissingError(f"reading GPUs needs nvidia-ml-py ({error}): pip install 'rankscope[exporter]'") from error
    # The unofficial one is a package (it has a path) and lacks the newer calls.
    if hasattr(module, "__path__") or not hasattr(module, "nvmlMemory_v2"):
        raise MissingError(
            "the unofficial package 'pynvml' hides nvidia-ml-py: "
            "pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py"
        )
    return module


class NvmlGpu:
    """``source.Gpu`` through NVML: the GPU at ``pci_bus_id``, read for the enabled ``collectors`` (names).

    ``mark`` is called with the name of each NVML call just before it is made.
    """

    def __init__(self, binding: Any, pci_bus_id: str, collectors: frozenset[str], mark: Callable[[str], None]) -> None:
        self._nvml = NvmlCalls(binding, mark)
        self._pci_bus_id = pci_bus_id
        self._by_collector = {name: [_TopicState(topic) for topic in topics] for name, topics in topics_of(collectors).items()}
        self._topics = [state for states in self._by_collector.values() for state in states]
        self._fields = FieldBatches()
        self._identity: GpuIdentity | None = None
        self.driver_version = ""
        self._started = False

    def open(self) -> GpuIdentity:
        """Initialize NVML and find the GPU by its PCI bus id; raises ``SourceError``."""
        nvml = self._nvml
        try:
            nvml("nvmlInit")
            self._started = True
            nvml.handle = nvml("nvmlDeviceGetHandleByPciBusId", self._pci_bus_id.encode())
            self._identity = self._identify()
            self.driver_version = self._if_any("nvmlSystemGetDriverVersion") or ""
        except (nvml.binding.NVMLError, UnicodeDecodeError) as error:
            self.close()
            reason = nvml.reason(error) if isinstance(error, nvml.binding.NVMLError) else "unreadable"
            raise SourceError("missing" if reason == "not_found" else "nvml_error", f"{error} ({reason})") from error
        except SourceError:
            self.close()
            raise
        return self._identity

    def sample(self) -> GpuSample:
        """Read the values of the enabled collectors; raises ``SourceError`` if the GPU itself is lost."""
        assert self._identity is not None, "opened first"
        sample_pass = SamplePass(self._nvml, self._identity.uuid, time.monotonic())
        try:
            return self._sample(self._identity, sample_pass)
        except SourceError as error:
            error.xids = self._last_xids(sample_pass.xids)
            raise

    def _sample(self, identity: GpuIdentity, sample_pass: SamplePass) -> GpuSample:
        unix_s, now_s = time.time(), sample_pass.now_s
        keys = [key for state in self._topics for key in state.wants(now_s)]
        if keys:
            sample_pass.fields = self._read_fields(keys)
        began_s, runs = now_s, []
        for collector, states in self._by_collector.items():
            sample_pass.fault = None
            for state in states:
                state.collect(sample_pass)
            ended_s = time.monotonic()
            runs.append(CollectorRun(collector, ended_s - began_s, sample_pass.fault))
            began_s = ended_s
        return GpuSample(
            identity,
            unix_s,
            began_s,
            readings=tuple(sample_pass.readings),
            absent=_fewer(
                _because_divided(sample_pass.absent) if sample_pass.mig_enabled else sample_pass.absent, sample_pass.readings
            ),
            runs=tuple(runs),
            processes=None if sample_pass.processes is None else tuple(sample_pass.processes),
            processes_s=sample_pass.processes_s,
            mig_devices=tuple(sample_pass.mig_devices),
            xids=tuple(sample_pass.xids),
        )

    def sample_activity(self) -> None:
        """Read activity counters between two samples; raises ``SourceError`` if the GPU itself is lost."""
        try:
            for state in self._topics:
                state.sample_activity(self._nvml)
        except SourceError as error:
            error.xids = self._last_xids([])
            raise

    def close(self) -> None:
        """Free all NVML objects and shut NVML down; the library stays loaded."""
        if self._started:
            self._started = False
            for state in self._topics:
                with contextlib.suppress(Exception):
                    state.topic.close(self._nvml)
            with contextlib.suppress(self._nvml.binding.NVMLError, SourceError):
                self._nvml("nvmlShutdown")

    def _last_xids(self, read: list[XidEvent]) -> tuple[XidEvent, ...]:
        """Return the Xids of a failed pass and those still queued: the driver keeps them even if the GPU is lost."""
        for state in self._topics:
            if isinstance(state.topic, XidTopic):
                with contextlib.suppress(Exception):  # the pass has failed already
                    state.topic.drain(self._nvml, read)
        return tuple(read)

    def _read_fields(self, keys: Sequence[FieldKey]) -> dict[FieldKey, float | str]:
        try:
            return self._fields.read(self._nvml, keys)
        except SourceError:
            raise
        except Exception:  # noqa: BLE001  costs the fields only; calls of other kinds still work
            return dict.fromkeys(keys, DEFECT)

    def _identify(self) -> GpuIdentity:
        nvml, gpu = self._nvml, self._nvml.handle
        uuid: str = nvml("nvmlDeviceGetUUID", gpu)
        if not uuid or not uuid.isprintable():
            raise SourceError("nvml_error", f"nvmlDeviceGetUUID: {uuid!r} is no uuid ({IMPLAUSIBLE})")
        return GpuIdentity(
            uuid=uuid,
            index=nvml("nvmlDeviceGetIndex", gpu),
            model=nvml("nvmlDeviceGetName", gpu),
            pci_bus_id=self._pci_bus_id,
            serial=self._if_any("nvmlDeviceGetSerial", gpu),
            vbios_version=self._if_any("nvmlDeviceGetVbiosVersion", gpu),
        )

    def _if_any(self, name: str, *arguments: Any) -> str | None:
        try:
            text: str = self._nvml(name, *arguments)
        except SourceError:
            raise
        except Exception:  # noqa: BLE001  an unreadable serial number or version must not cost the GPU
            return None
        return text or None


class _TopicState:
    """A topic and its last error. If it fails, its metrics are absent; an unsupported topic is retried only every minute.

    An exception of any kind costs this topic only, except ``SourceError``: then the GPU itself is lost.
    """

    __slots__ = ("_defect", "_due_s", "_reason", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._due_s = float("-inf")
        self._reason = ""
        self._defect: Exception | None = None

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        try:
            return self.topic.wants(now_s) if self.topic.has_fields and self._due_s <= now_s else ()
        except Exception as error:  # noqa: BLE001  reported by collect
            self._defect = error
            return ()

    def sample_activity(self, nvml: NvmlCalls) -> None:
        try:
            if self.topic.has_activity:
                self.topic.sample_activity(nvml)
        except nvml.binding.NVMLError:
            pass  # if it persists, the next pass reports it
        except SourceError:
            raise
        except Exception as error:  # noqa: BLE001  reported by collect
            self._defect = error

    def collect(self, sample_pass: SamplePass) -> None:
        if self._due_s > sample_pass.now_s:
            self._mark_all_absent(sample_pass)
            return
        binding, before = sample_pass.nvml.binding, (len(sample_pass.readings), len(sample_pass.absent))
        defect, self._defect = self._defect, None
        try:
            if defect is not None:
                raise defect  # noqa: TRY301  handled as if collect had raised it
            self.topic.collect(sample_pass)
        except SourceError:
            raise
        except binding.NVMLError as error:
            self._reason = sample_pass.nvml.reason(error)
            text = f"{error} ({self._reason})"
        except (UnicodeDecodeError, ValueError, OSError) as error:
            self._reason = "unreadable"
            text = f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001
            self._reason = DEFECT
            text = _described(error)
        else:
            return
        # Drop partial results: they would look complete.
        del sample_pass.readings[before[0] :], sample_pass.absent[before[1] :]
        if is_fault(self._reason):
            sample_pass.fault = sample_pass.fault or text
        elif is_lasting(self._reason):
            self._due_s = sample_pass.now_s + EVERY_60_S
        self._mark_all_absent(sample_pass)

    def _mark_all_absent(self, sample_pass: SamplePass) -> None:
        for metric in self.topic.metrics:
            sample_pass.mark_absent(metric, self._reason)


def _described(error: Exception) -> str:
    """Return an unforeseen exception with the line that raised it: the only trace of it that leaves this process."""
    frames = traceback.extract_tb(error.__traceback__)
    location = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{location}"


def _because_divided(absent: Sequence[Absent]) -> list[Absent]:
    """Replace the reason ``not_supported`` by ``mig_enabled`` for metrics that the driver does not support in MIG mode."""
    return [
        Absent(absence.metric, "mig_enabled", absence.labels)
        if absence.reason == "not_supported" and BY_NAME[absence.metric].collector in _NOT_WHEN_DIVIDED
        else absence
        for absence in absent
    ]


def _fewer(absent: Sequence[Absent], readings: Sequence[Reading]) -> tuple[Absent, ...]:
    """Merge the entries of a metric that is completely absent for one reason into one entry without labels."""
    reasons: dict[str, set[str]] = {}
    for absence in absent:
        reasons.setdefault(absence.metric, set()).add(absence.reason)
    measured = {reading.metric for reading in readings if reading.metric in reasons}
    short = {
        absence.metric: Absent(absence.metric, absence.reason)
        for absence in absent
        if len(reasons[absence.metric]) == 1 and absence.metric not in measured
    }
    return (*short.values(), *(absence for absence in absent if absence.metric not in short))
