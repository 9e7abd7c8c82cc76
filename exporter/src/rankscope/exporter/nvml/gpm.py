"""Activity by GPM (Hopper and newer): every interval joins the next, so that integrals are exact."""

from __future__ import annotations

import time
from collections.abc import Sequence
from ctypes import byref, sizeof
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, Final

from rankscope.exporter.nvml.asking import Asking, is_lasting
from rankscope.exporter.nvml.one_pass import FieldKey, Pass, PlainTopic
from rankscope.exporter.nvml.rows import RARELY
from rankscope.exporter.source import Labels

_CLOSEST_S: Final = 0.1
"""GPM has nothing to say about samples that are closer together."""
_MOST_SAMPLES: Final = 8
"""Of one interval. It lasts as long as nothing can be told of it; then its end moves on, and not its memory."""
_HOPPER: Final = 9
_METRICS_GET_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Activity:
    """A GPM metric: its number and the catalogue's name up to ``_ratio``; empty for a rate of which only the integral is wanted.

    ``integral`` and ``bounds`` say whether the catalogue has those too. NVML's number divided by ``per`` is in the metric's unit;
    above ``at_most`` it cannot be.
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
        """All metrics of the catalogue that come of it."""
        if not self.metric:
            return ()
        bounds = (f"{self.metric}_min_ratio", f"{self.metric}_max_ratio") if self.bounds else ()
        return (f"{self.metric}_ratio", *bounds, *((f"{self.metric}_seconds_total",) if self.integral else ()))


_PER_MIB: Final = 2.0**-20
_MOST_MIB: Final = 2.0**30
TRANSMIT: Final = Activity(20, "", per=_PER_MIB, at_most=_MOST_MIB)
RECEIVE: Final = Activity(21, "", per=_PER_MIB, at_most=_MOST_MIB)

ACTIVITIES: Final = (
    Activity(1, "gpu_graphics_active", integral=True),
    Activity(2, "gpu_sm_active", integral=True, bounds=True),
    Activity(5, "gpu_tensor_active", integral=True, bounds=True),
    Activity(10, "gpu_dram_active", integral=True, bounds=True),
    Activity(3, "gpu_sm_occupancy"),
    *(
        Activity(number, "gpu_pipe_active", labels=(("pipe", pipe),))
        for pipe, number in (("fp64", 11), ("fp32", 12), ("fp16", 13))
    ),
    TRANSMIT,
    RECEIVE,
)


class _Question:
    """The same GPM metrics asked of pair after pair of samples."""

    def __init__(self, ask: Asking, activities: Sequence[Activity]) -> None:
        self.activities = activities
        self._metrics = metrics = ask.nvml.c_nvmlGpmMetricsGet_t()
        metrics.version = _METRICS_GET_VERSION
        metrics.numMetrics = len(activities)
        for slot, activity in zip(metrics.metrics, activities, strict=False):
            slot.metricId = activity.number
        # Unpacking the memory is several times cheaper than going through ctypes' attributes.
        start, size = type(metrics).metrics.offset, sizeof(ask.nvml.c_nvmlGpmMetric_t)
        self._reference = byref(metrics)
        self._slots = [start + size * index for index in range(len(activities))]

    def answers(self, ask: Asking, first: Any, second: Any) -> list[float | str]:
        """For each metric its value in the unit, or why it has none."""
        metrics = self._metrics
        metrics.sample1, metrics.sample2 = first, second
        code = ask.call("nvmlGpmMetricsGet", self._reference)
        if code:
            raise ask.nvml.NVMLError(code)
        answers: list[float | str] = []
        for activity, slot in zip(self.activities, self._slots, strict=True):
            _, code, value = _SLOT.unpack_from(metrics, slot)
            if code:
                ask.check(code, f"nvmlGpmMetricsGet({activity.number})")
                answers.append(ask.reason_of(code))
            elif not 0 <= value <= activity.at_most:
                answers.append("implausible")
            else:
                # Rounding in the driver can bring a share a little above 100 %.
                answers.append(min(value, 100) / 100 if activity.per > 1 else value / activity.per)
        return answers


_SLOT: Final = Struct("Iid")


class GpmChain:
    """Samples of a GPU, or of a GPU instance of it: intervals that join, and parts of the present one."""

    def __init__(self, activities: Sequence[Activity], instance: int | None = None) -> None:
        self._activities = activities
        self._bounded = [activity for activity in activities if activity.bounds]
        self._instance = instance
        self._totals = dict.fromkeys((activity.number for activity in activities), 0.0)
        self._answers: list[float | str] = []
        self._bounds: dict[int, tuple[float, float]] = {}
        self._samples: list[Any] = []
        self._spare: list[Any] = []
        self._first_s = self._last_s = 0.0
        self._whole: _Question | None = None
        self._part: _Question | None = None

    def look(self, ask: Asking) -> None:
        """Take a sample, unless the last is too fresh; after an error the next look covers what this one would have."""
        if self._samples and time.monotonic() - self._last_s < _CLOSEST_S:
            return
        if not self._spare:
            self._spare.append(ask("nvmlGpmSampleAlloc"))
        if self._instance is None:
            code = ask.call("nvmlGpmSampleGet", ask.handle, self._spare[-1])
        else:
            code = ask.call("nvmlGpmMigSampleGet", ask.handle, self._instance, self._spare[-1])
        if code:
            raise ask.nvml.NVMLError(code)
        self._last_s = time.monotonic()
        if not self._samples:
            self._first_s = self._last_s
        fresh = self._spare.pop()
        if len(self._samples) == _MOST_SAMPLES:
            self._spare.append(self._samples.pop())
        self._samples.append(fresh)

    @property
    def empty(self) -> bool:
        """There is nothing to tell yet."""
        return not self._answers and len(self._samples) < 2

    def tell(self, at: Pass, uuid: str = "") -> None:
        """Give the readings of the interval since the last time, or the same again where no part has ended since."""
        if len(self._samples) > 1:
            self._learn(at.ask)
        for activity, answer in zip(self._activities, self._answers, strict=True):
            if isinstance(answer, str):
                for metric in activity.metrics:
                    at.lack(metric, answer, activity.labels)
                continue
            if not activity.metric:
                continue
            at.give(f"{activity.metric}_ratio", answer, activity.labels, uuid)
            if activity.bounds:
                least, greatest = self._bounds[activity.number]
                at.give(f"{activity.metric}_min_ratio", least, activity.labels, uuid)
                at.give(f"{activity.metric}_max_ratio", greatest, activity.labels, uuid)
            if activity.integral:
                at.give(f"{activity.metric}_seconds_total", self._totals[activity.number], activity.labels, uuid)

    def total(self, activity: Activity) -> float | None:
        """The integral of a metric since the beginning; None where it has none."""
        answer = self._answers[self._activities.index(activity)] if self._answers else ""
        return None if isinstance(answer, str) else self._totals[activity.number]

    def close(self, ask: Asking) -> None:
        """Free the samples."""
        for sample in (*self._samples, *self._spare):
            ask("nvmlGpmSampleFree", sample)
        self._samples, self._spare = [], []

    def _learn(self, ask: Asking) -> None:
        """End the interval: its last sample is the first of the next."""
        samples = self._samples
        self._whole = self._whole or _Question(ask, self._activities)
        self._answers = self._whole.answers(ask, samples[0], samples[-1])
        seconds = self._last_s - self._first_s
        for activity, answer in zip(self._activities, self._answers, strict=True):
            if not isinstance(answer, str):
                self._totals[activity.number] += answer * seconds
                self._bounds[activity.number] = answer, answer
        if len(samples) > 2 and self._bounded:
            self._part = self._part or _Question(ask, self._bounded)
            parts = [self._part.answers(ask, first, second) for first, second in pairwise(samples)]
            for activity, answers in zip(self._bounded, zip(*parts, strict=True), strict=True):
                numbers = [answer for answer in answers if not isinstance(answer, str)]
                if numbers:
                    self._bounds[activity.number] = min(numbers), max(numbers)
        self._spare += samples[:-1]
        self._samples = samples[-1:]
        self._first_s = self._last_s


def look_at_all(ask: Asking, chains: Sequence[GpmChain]) -> None:
    """Take a sample of each; at the very first, wait for a second one, so that there is something to tell."""
    for chain in chains:
        chain.look(ask)
    if any(chain.empty for chain in chains):
        time.sleep(_CLOSEST_S)
        for chain in chains:
            chain.look(ask)


def why_unsupported(ask: Asking) -> str | None:
    """The reason why this GPU has no GPM; None when it has."""
    if ask("nvmlGpmQueryDeviceSupport", ask.handle).isSupportedDevice:
        return None
    try:
        architecture: int = ask("nvmlDeviceGetArchitecture", ask.handle)
    except ask.nvml.NVMLError:
        return "not_supported"
    return "before_hopper" if architecture < _HOPPER else "not_supported"


class Gpm(PlainTopic):
    """The GPU's own activity."""

    metrics = tuple(dict.fromkeys(metric for activity in ACTIVITIES for metric in activity.metrics))
    has_parts = True

    def __init__(self) -> None:
        self.chain = GpmChain(ACTIVITIES)
        self._lacking: str | None = ""
        self._due_s = float("-inf")

    def collect(self, at: Pass) -> None:
        """Readings of the time since the last pass; waits a tenth of a second at the first."""
        if self._lacking is not None and self._due_s <= at.now_s:
            self._lacking = why_unsupported(at.ask)
            self._due_s = at.now_s + RARELY
        if self._lacking is not None:
            for metric in self.metrics:
                at.lack(metric, self._lacking)
            return
        look_at_all(at.ask, (self.chain,))
        self.chain.tell(at)

    def part(self, ask: Asking) -> None:
        """End a part of the interval."""
        if self._lacking is None:
            self.chain.look(ask)

    def close(self, ask: Asking) -> None:
        """Free the samples."""
        self.chain.close(ask)


class PcieBytes(PlainTopic):
    """Bytes over PCIe: the driver's counters, else the integral of GPM's rate.

    What it begins with it stays with, so it waits for a sure answer.
    """

    metrics = ("gpu_pcie_transmit_bytes_total", "gpu_pcie_receive_bytes_total")
    has_fields = True
    _ROWS: Final = ((197, "gpu_pcie_transmit_bytes_total", TRANSMIT), (198, "gpu_pcie_receive_bytes_total", RECEIVE))

    def __init__(self, chain: GpmChain | None) -> None:
        self._chain = chain
        self._by_field: bool | None = None

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """The driver's counters."""
        del now_s
        return () if self._by_field is False else [(number, 0) for number, _, _ in self._ROWS]

    def collect(self, at: Pass) -> None:
        """Two counters."""
        if self._by_field is None:
            reasons = [answer for number, _, _ in self._ROWS if isinstance(answer := at.fields[number, 0], str)]
            if any(not is_lasting(reason) for reason in reasons):
                for metric in self.metrics:
                    at.lack(metric, reasons[0])
                return
            self._by_field = not reasons
        for number, metric, activity in self._ROWS:
            if self._by_field:
                value = at.fields.get((number, 0))
            else:
                value = self._chain.total(activity) if self._chain is not None else None
            if value is None or isinstance(value, str):
                at.lack(metric, value or "not_supported")
            else:
                at.give(metric, value)
