"""Activity by GPM (Hopper and newer), measured over adjacent intervals so that integrals are exact."""

from __future__ import annotations

import time
from collections.abc import Sequence
from ctypes import byref, sizeof
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, Final

from rankscope.exporter.nvml.calls import IMPLAUSIBLE, NvmlCalls, is_lasting
from rankscope.exporter.nvml.rows import EVERY_60_S
from rankscope.exporter.nvml.sample_pass import FieldKey, SamplePass, Topic
from rankscope.exporter.source import Labels

_CLOSEST_S: Final = 0.1
"""Minimum distance of two GPM samples in seconds; closer ones give no result."""
_MAX_SAMPLES: Final = 8
"""Maximum samples of one interval. If an interval is longer because no pass succeeds, a new sample replaces its last one."""
_HOPPER: Final = 9
_METRICS_GET_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class GpmMetric:
    """A GPM metric.

    Attributes:
        number: NVML's number of the metric.
        metric: the catalogue's name without ``_ratio``; empty if only the integral of a rate is used.
        integral: the catalogue also has the integral in seconds.
        bounds: the catalogue also has minimum and maximum within the interval.
        per: NVML's value divided by this is in the metric's unit.
        at_most: larger NVML values are implausible.
    """

    number: int
    metric: str
    integral: bool = False
    bounds: bool = False
    labels: Labels = ()
    per: float = 100
    at_most: float = 110

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the catalogue's metrics that are derived from it."""
        if not self.metric:
            return ()
        bounds = (f"{self.metric}_min_ratio", f"{self.metric}_max_ratio") if self.bounds else ()
        return (f"{self.metric}_ratio", *bounds, *((f"{self.metric}_seconds_total",) if self.integral else ()))


_PER_MIB: Final = 2.0**-20
_MAX_MIB: Final = 2.0**30
TRANSMIT: Final = GpmMetric(20, "", per=_PER_MIB, at_most=_MAX_MIB)
RECEIVE: Final = GpmMetric(21, "", per=_PER_MIB, at_most=_MAX_MIB)

ACTIVITIES: Final = (
    GpmMetric(1, "gpu_graphics_active", integral=True),
    GpmMetric(2, "gpu_sm_active", integral=True, bounds=True),
    GpmMetric(5, "gpu_tensor_active", integral=True, bounds=True),
    GpmMetric(10, "gpu_dram_active", integral=True, bounds=True),
    GpmMetric(3, "gpu_sm_occupancy"),
    *(
        GpmMetric(number, "gpu_pipe_active", labels=(("pipe", pipe),))
        for pipe, number in (("fp64", 11), ("fp32", 12), ("fp16", 13))
    ),
    TRANSMIT,
    RECEIVE,
)


class _GpmQuery:
    """Reusable request for the same GPM metrics for pairs of samples."""

    def __init__(self, nvml: NvmlCalls, activities: Sequence[GpmMetric]) -> None:
        self.activities = activities
        self._metrics = metrics = nvml.binding.c_nvmlGpmMetricsGet_t()
        metrics.version = _METRICS_GET_VERSION
        metrics.numMetrics = len(activities)
        for slot, activity in zip(metrics.metrics, activities, strict=False):
            slot.metricId = activity.number
        # Unpacking the memory is several times faster than reading ctypes attributes.
        start, size = type(metrics).metrics.offset, sizeof(nvml.binding.c_nvmlGpmMetric_t)
        self._reference = byref(metrics)
        self._slots = [start + size * index for index in range(len(activities))]

    def results(self, nvml: NvmlCalls, first: Any, second: Any) -> list[float | str]:
        """Return each metric's value between two samples, in its unit, or the reason why it has none."""
        metrics = self._metrics
        metrics.sample1, metrics.sample2 = first, second
        code = nvml.call("nvmlGpmMetricsGet", self._reference)
        if code:
            raise nvml.binding.NVMLError(code)
        results: list[float | str] = []
        for activity, slot in zip(self.activities, self._slots, strict=True):
            _, code, value = _SLOT.unpack_from(metrics, slot)
            if code:
                nvml.check(code, f"nvmlGpmMetricsGet({activity.number})")
                results.append(nvml.reason_of(code))
            elif not 0 <= value <= activity.at_most:
                results.append(IMPLAUSIBLE)
            else:
                # The driver's rounding can give a percentage slightly above 100.
                results.append(min(value, 100) / 100 if activity.per > 1 else value / activity.per)
        return results


_SLOT: Final = Struct("Iid")


class GpmChain:
    """GPM samples of a GPU or of one of its GPU instances, over adjacent intervals that are divided into parts."""

    def __init__(self, activities: Sequence[GpmMetric], instance: int | None = None) -> None:
        self._activities = activities
        self._bounded = [activity for activity in activities if activity.bounds]
        self._instance = instance
        self._totals = dict.fromkeys((activity.number for activity in activities), 0.0)
        self._results: list[float | str] = []
        self._bounds: dict[int, tuple[float, float]] = {}
        self._samples: list[Any] = []
        self._free_samples: list[Any] = []
        self._first_s = self._last_s = 0.0
        self._query: _GpmQuery | None = None
        self._part_query: _GpmQuery | None = None

    def take_sample(self, nvml: NvmlCalls) -> None:
        """Take a sample unless the last one is too recent. After an error, the next sample covers the time of this one."""
        if self._samples and time.monotonic() - self._last_s < _CLOSEST_S:
            return
        if not self._free_samples:
            self._free_samples.append(nvml("nvmlGpmSampleAlloc"))
        if self._instance is None:
            code = nvml.call("nvmlGpmSampleGet", nvml.handle, self._free_samples[-1])
        else:
            code = nvml.call("nvmlGpmMigSampleGet", nvml.handle, self._instance, self._free_samples[-1])
        if code:
            raise nvml.binding.NVMLError(code)
        self._last_s = time.monotonic()
        if not self._samples:
            self._first_s = self._last_s
        fresh = self._free_samples.pop()
        if len(self._samples) == _MAX_SAMPLES:
            self._free_samples.append(self._samples.pop())
        self._samples.append(fresh)

    @property
    def empty(self) -> bool:
        """True while there is no result yet."""
        return not self._results and len(self._samples) < 2

    def emit(self, sample_pass: SamplePass, uuid: str = "") -> None:
        """Emit the readings of the interval since the last call; the previous ones if there is no new sample."""
        if len(self._samples) > 1:
            self._evaluate(sample_pass.nvml)
        for activity, result in zip(self._activities, self._results, strict=True):
            if isinstance(result, str):
                for metric in activity.metrics:
                    sample_pass.mark_absent(metric, result, activity.labels)
                continue
            if not activity.metric:
                continue
            sample_pass.emit(f"{activity.metric}_ratio", result, activity.labels, uuid)
            if activity.bounds:
                lowest, highest = self._bounds[activity.number]
                sample_pass.emit(f"{activity.metric}_min_ratio", lowest, activity.labels, uuid)
                sample_pass.emit(f"{activity.metric}_max_ratio", highest, activity.labels, uuid)
            if activity.integral:
                sample_pass.emit(f"{activity.metric}_seconds_total", self._totals[activity.number], activity.labels, uuid)

    def total(self, activity: GpmMetric) -> float | None:
        """Return the integral of a metric since the start; None if it has no value."""
        result = self._results[self._activities.index(activity)] if self._results else ""
        return None if isinstance(result, str) else self._totals[activity.number]

    def close(self, nvml: NvmlCalls) -> None:
        """Free the samples."""
        for sample in (*self._samples, *self._free_samples):
            nvml("nvmlGpmSampleFree", sample)
        self._samples, self._free_samples = [], []

    def _evaluate(self, nvml: NvmlCalls) -> None:
        """Evaluate the interval and start the next one with its last sample."""
        samples = self._samples
        self._query = self._query or _GpmQuery(nvml, self._activities)
        self._results = self._query.results(nvml, samples[0], samples[-1])
        seconds = self._last_s - self._first_s
        for activity, result in zip(self._activities, self._results, strict=True):
            if not isinstance(result, str):
                self._totals[activity.number] += result * seconds
                self._bounds[activity.number] = result, result
        if len(samples) > 2 and self._bounded:
            self._part_query = self._part_query or _GpmQuery(nvml, self._bounded)
            parts = [self._part_query.results(nvml, first, second) for first, second in pairwise(samples)]
            for activity, results in zip(self._bounded, zip(*parts, strict=True), strict=True):
                numbers = [result for result in results if not isinstance(result, str)]
                if numbers:
                    self._bounds[activity.number] = min(numbers), max(numbers)
        self._free_samples += samples[:-1]
        self._samples = samples[-1:]
        self._first_s = self._last_s


def take_samples(nvml: NvmlCalls, chains: Sequence[GpmChain]) -> None:
    """Take a sample of each chain. The first time, wait 0.1 s for a second one, so that there is a result."""
    for chain in chains:
        chain.take_sample(nvml)
    if any(chain.empty for chain in chains):
        time.sleep(_CLOSEST_S)
        for chain in chains:
            chain.take_sample(nvml)


def why_unsupported(nvml: NvmlCalls) -> str | None:
    """Return the reason why this GPU has no GPM; None if it has."""
    if nvml("nvmlGpmQueryDeviceSupport", nvml.handle).isSupportedDevice:
        return None
    try:
        architecture: int = nvml("nvmlDeviceGetArchitecture", nvml.handle)
    except nvml.binding.NVMLError:
        return "not_supported"
    return "before_hopper" if architecture < _HOPPER else "not_supported"


class GpmTopic(Topic):
    """Activity of the whole GPU."""

    metrics = tuple(dict.fromkeys(metric for activity in ACTIVITIES for metric in activity.metrics))
    has_activity = True

    def __init__(self) -> None:
        self.chain = GpmChain(ACTIVITIES)
        self._unsupported: str | None = ""
        self._due_s = float("-inf")

    def collect(self, sample_pass: SamplePass) -> None:
        """Emit the activity since the last pass; the first pass waits 0.1 s."""
        if self._unsupported is not None and self._due_s <= sample_pass.now_s:
            self._unsupported = why_unsupported(sample_pass.nvml)
            self._due_s = sample_pass.now_s + EVERY_60_S
        if self._unsupported is not None:
            for metric in self.metrics:
                sample_pass.mark_absent(metric, self._unsupported)
            return
        take_samples(sample_pass.nvml, (self.chain,))
        self.chain.emit(sample_pass)

    def sample_activity(self, nvml: NvmlCalls) -> None:
        """Take a sample that ends a part of the interval."""
        if self._unsupported is None:
            self.chain.take_sample(nvml)

    def close(self, nvml: NvmlCalls) -> None:
        """Free the samples."""
        self.chain.close(nvml)


class PcieBytesTopic(Topic):
    """Bytes over PCIe: the driver's counters, else the integral of GPM's rate.

    The source is chosen once, when the driver either returns both counters or reports a permanent reason; until then both metrics
    are absent.
    """

    metrics = ("gpu_pcie_transmit_bytes_total", "gpu_pcie_receive_bytes_total")
    has_fields = True
    _ROWS: Final = ((197, "gpu_pcie_transmit_bytes_total", TRANSMIT), (198, "gpu_pcie_receive_bytes_total", RECEIVE))

    def __init__(self, chain: GpmChain | None) -> None:
        self._chain = chain
        self._by_field: bool | None = None

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """Return the fields of the driver's counters."""
        del now_s
        return () if self._by_field is False else [(number, 0) for number, _, _ in self._ROWS]

    def collect(self, sample_pass: SamplePass) -> None:
        """Emit the two counters."""
        if self._by_field is None:
            reasons = [result for number, _, _ in self._ROWS if isinstance(result := sample_pass.fields[number, 0], str)]
            if any(not is_lasting(reason) for reason in reasons):
                for metric in self.metrics:
                    sample_pass.mark_absent(metric, reasons[0])
                return
            self._by_field = not reasons
        for number, metric, activity in self._ROWS:
            if self._by_field:
                value = sample_pass.fields.get((number, 0))
            else:
                value = self._chain.total(activity) if self._chain is not None else None
            if value is None or isinstance(value, str):
                sample_pass.mark_absent(metric, value or "not_supported")
            else:
                sample_pass.emit(metric, value)
