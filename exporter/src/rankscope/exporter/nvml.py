"""GPUs through NVML, by the official ``nvidia-ml-py``.

Every call's error is its own: a metric that is not supported costs that metric, a lost GPU costs that GPU. One thread makes all
calls, and NVML has a lock for the process: a call that hangs in the driver stops this source (but nothing else of the exporter).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rankscope.exporter.errors import ExporterMissingError
from rankscope.exporter.source import Absent, GpuIdentity, GpuSample, Labels, NodeSample, Reading, SourceError

logger = logging.getLogger(__name__)

SYSFS_DRIVER: Final = Path("/sys/bus/pci/drivers/nvidia")
_FIELD_MEMORY_TEMPERATURE: Final = 82
_CLOCKS: Final = (("graphics", 0), ("sm", 1), ("memory", 2))


@dataclass(frozen=True, slots=True)
class _Series:
    """One series a call gives: NVML's number times ``times``, divided by ``per``, is in the metric's unit.

    A value above ``at_most`` is the driver's way of saying that it does not know.
    """

    metric: str
    times: float = 1
    per: float = 1
    at_most: float = float("inf")
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class _Call:
    """One NVML call: how to make it with the module and a GPU's handle, and the series its numbers are, in order."""

    name: str
    make: Callable[[Any, Any], tuple[float, ...]]
    series: tuple[_Series, ...]


def _memory(nvml: Any, gpu: Any) -> tuple[float, ...]:
    # The older call counts the driver's reservation as used; a name with two meanings would be worse than none.
    info = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    return (info.total, info.used, info.free, info.reserved)


def _utilization(nvml: Any, gpu: Any) -> tuple[float, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return (rates.gpu, rates.memory)


def _field(nvml: Any, gpu: Any, field: int) -> tuple[float, ...]:
    """One field value: the call succeeds even when the field does not, and the number lies in a union."""
    value = nvml.nvmlDeviceGetFieldValues(gpu, [field])[0]
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    members = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }
    if value.valueType not in members:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return (getattr(value.value, members[value.valueType]),)


def _clock(kind: int) -> Callable[[Any, Any], tuple[float, ...]]:
    return lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, kind),)


def _max_clock(kind: int) -> Callable[[Any, Any], tuple[float, ...]]:
    return lambda nvml, gpu: (nvml.nvmlDeviceGetMaxClockInfo(gpu, kind),)


_CALLS: Final[tuple[_Call, ...]] = (
    _Call(
        "nvmlDeviceGetTemperature",
        lambda nvml, gpu: (nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),),
        (_Series("gpu_temperature_celsius", at_most=200),),
    ),
    _Call(
        "nvmlDeviceGetFieldValues",
        lambda nvml, gpu: _field(nvml, gpu, _FIELD_MEMORY_TEMPERATURE),
        (_Series("gpu_memory_temperature_celsius", at_most=200),),
    ),
    _Call(
        "nvmlDeviceGetMemoryInfo",
        _memory,
        tuple(_Series(f"gpu_memory_{part}_bytes", at_most=2.0**60) for part in ("total", "used", "free", "reserved")),
    ),
    _Call(
        "nvmlDeviceGetUtilizationRates",
        _utilization,
        (_Series("gpu_utilization_ratio", per=100, at_most=1), _Series("gpu_memory_utilization_ratio", per=100, at_most=1)),
    ),
    _Call(
        "nvmlDeviceGetPowerUsage",
        lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu),),
        (_Series("gpu_power_watts", per=1000, at_most=100_000),),
    ),
    _Call(
        "nvmlDeviceGetEnforcedPowerLimit",
        lambda nvml, gpu: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu),),
        (_Series("gpu_power_limit_watts", per=1000, at_most=100_000),),
    ),
    _Call(
        "nvmlDeviceGetTotalEnergyConsumption",
        lambda nvml, gpu: (nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),),
        (_Series("gpu_energy_joules_total", per=1000),),
    ),
    *(
        _Call(
            "nvmlDeviceGetClockInfo",
            _clock(kind),
            (_Series("gpu_clock_hertz", times=1e6, at_most=1e11, labels=(("clock", name),)),),
        )
        for name, kind in _CLOCKS
    ),
    *(
        _Call(
            "nvmlDeviceGetMaxClockInfo",
            _max_clock(kind),
            (_Series("gpu_clock_max_hertz", times=1e6, at_most=1e11, labels=(("clock", name),)),),
        )
        for name, kind in _CLOCKS
    ),
)


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


class NvmlSource:
    """A ``GpuSource`` over NVML; it starts NVML at the first sample and again whenever that is needed.

    ``driver_folder`` is where Linux lists the GPUs bound to the driver: NVML enumerates only when it starts, so a change there
    (hot plug, a GPU bound again after a reset) starts it anew.
    """

    simulated = False

    def __init__(self, nvml: Any, *, driver_folder: Path = SYSFS_DRIVER) -> None:
        self._nvml = nvml
        self._driver_folder = driver_folder
        self._started = False
        self._bound: frozenset[str] = frozenset()
        self._driver_version = ""
        self._known: dict[str, GpuIdentity] = {}
        self.doing = "waiting"
        self._reasons = {
            value: name.removeprefix("NVML_ERROR_").lower()
            for name, value in vars(nvml).items()
            if name.startswith("NVML_ERROR_") and isinstance(value, int)
        }

    def sample(self) -> NodeSample:
        """Ask every GPU; raises ``SourceError`` when NVML cannot be started or does not count GPUs."""
        bound = self._bound_gpus()
        if self._started and bound != self._bound:
            self.close()
        try:
            if not self._started:
                self._start(bound)
            self.doing = "nvmlDeviceGetCount"
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self.close()
            raise SourceError(f"NVML: {error} ({self._reason(error)}) in {self.doing}") from error
        samples, nameless = {}, 0
        for index in range(count):
            try:
                handle, identity = self._identify(index)
            except (self._nvml.NVMLError, UnicodeDecodeError):
                nameless += 1
                continue
            self._known[identity.uuid] = identity
            samples[identity.uuid] = self._read(handle, identity)
        gone = [identity for uuid, identity in self._known.items() if uuid not in samples]
        samples |= {identity.uuid: GpuSample(identity, up=False, reason="no longer answers to NVML") for identity in gone}
        self.doing = "waiting"
        ordered = sorted(samples.values(), key=lambda sample: (sample.identity.index, sample.identity.uuid))
        return NodeSample(self._driver_version, tuple(ordered), unidentified=max(0, nameless - len(gone)))

    def close(self) -> None:
        """Shut NVML down; the library stays loaded."""
        if self._started:
            self._started = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _start(self, bound: frozenset[str]) -> None:
        self.doing = "nvmlInit"
        self._nvml.nvmlInit()
        self._started, self._bound = True, bound
        self.doing = "nvmlSystemGetDriverVersion"
        self._driver_version = self._nvml.nvmlSystemGetDriverVersion()

    def _bound_gpus(self) -> frozenset[str]:
        try:
            return frozenset(path.name for path in self._driver_folder.iterdir() if ":" in path.name)
        except OSError:
            return frozenset()

    def _identify(self, index: int) -> tuple[Any, GpuIdentity]:
        nvml = self._nvml
        self.doing = f"nvmlDeviceGetHandleByIndex({index})"
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        known = self._known.get(uuid)
        if known is not None:
            return handle, replace(known, index=index)
        try:
            serial = nvml.nvmlDeviceGetSerial(handle)
        except nvml.NVMLError:
            serial = None
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId
        return handle, GpuIdentity(
            uuid=uuid,
            index=index,
            model=nvml.nvmlDeviceGetName(handle),
            pci_bus_id=(bus.decode() if isinstance(bus, bytes) else bus).lower(),
            serial=serial,
        )

    def _read(self, handle: Any, identity: GpuIdentity) -> GpuSample:
        readings: list[Reading] = []
        absent: list[Absent] = []
        lost_codes = (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)
        for call in _CALLS:
            self.doing = f"{call.name} of {identity.uuid}"
            try:
                values = call.make(self._nvml, handle)
            except self._nvml.NVMLError as error:
                if error.value in lost_codes:
                    return GpuSample(identity, up=False, reason=str(error))
                absent += [Absent(series.metric, self._reason(error), series.labels) for series in call.series]
                continue
            for outcome in _outcomes(call, values):
                readings.append(outcome) if isinstance(outcome, Reading) else absent.append(outcome)
        if not readings:
            return GpuSample(identity, up=False, absent=tuple(absent), reason="not one of its metrics can be read")
        return GpuSample(identity, up=True, readings=tuple(readings), absent=tuple(absent))

    def _reason(self, error: Any) -> str:
        name: str = self._reasons.get(error.value, f"error_{error.value}")
        return name


def _outcomes(call: _Call, values: tuple[float, ...]) -> Iterator[Reading | Absent]:
    for series, raw in zip(call.series, values, strict=True):
        value = raw * series.times / series.per
        if 0 <= value <= series.at_most:
            yield Reading(series.metric, value, series.labels)
        else:
            yield Absent(series.metric, "implausible", series.labels)
