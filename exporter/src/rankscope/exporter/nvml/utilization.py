"""Utilisation from the driver's own samples: least, greatest and an exact counter, which its gauge cannot give."""

from __future__ import annotations

from ctypes import byref, c_uint, c_ulonglong, create_string_buffer
from struct import Struct
from typing import Final

from rankscope.exporter.nvml.fields import by_type
from rankscope.exporter.nvml.one_pass import Pass, PlainTopic

_GPU_UTILIZATION_SAMPLES: Final = 1
_GAUGE: Final = "gpu_utilization_ratio"
_SAMPLE: Final = Struct("@Q8s")
_SILENCE_S: Final = 10
"""Longer than the driver lets pass between two samples; its samples bear the time of the wall clock."""
_MOST_SAMPLES: Final = 256
"""More than the driver keeps."""


class BusySeconds(PlainTopic):
    """Every sample of the driver counts for the time since the one before it."""

    metrics = ("gpu_utilization_min_ratio", "gpu_utilization_max_ratio", "gpu_busy_seconds_total")

    def __init__(self) -> None:
        self._seen_us = 0
        self._heard_s = 0.0
        self._seconds = 0.0
        self._bounds: tuple[float, float] | None = None
        self._kind, self._count = c_uint(), c_uint()
        self._buffer = create_string_buffer(_MOST_SAMPLES * _SAMPLE.size)
        self._references = (byref(self._kind), byref(self._count), self._buffer)

    def collect(self, at: Pass) -> None:
        """Ask for the samples since the last pass; between two samples of the driver the bounds stay."""
        elapsed_s = at.now_s - self._heard_s
        if elapsed_s > _SILENCE_S:
            # The clock was set back: what the driver has now seems to be older than what was seen.
            self._seen_us = 0
        samples = self._samples(at)
        if samples and (not self._seen_us or samples[-1][0] - self._seen_us > (elapsed_s + _SILENCE_S) * 1e6):
            # What was before the exporter started is not its to count, and nor is the time by which a clock was set forward.
            samples = samples[-1:]
            self._seen_us = samples[0][0]
        for stamp_us, share in samples:
            self._seconds += share * (stamp_us - self._seen_us) / 1e6
            self._seen_us = stamp_us
        if samples:
            self._heard_s = at.now_s
            shares = [share for _, share in samples]
            self._bounds = min(shares), max(shares)
        if self._bounds is None:
            for metric in self.metrics:
                at.lack(metric, "no_data")
            return
        # The gauge of this pass may be newer than any sample, and must not lie outside its bounds.
        shares = [*self._bounds, *(reading.value for reading in at.readings if reading.metric == _GAUGE)]
        at.give("gpu_utilization_min_ratio", min(shares))
        at.give("gpu_utilization_max_ratio", max(shares))
        at.give("gpu_busy_seconds_total", self._seconds)

    def _samples(self, at: Pass) -> list[tuple[int, float]]:
        """Time in microseconds and share of those newer than the last one seen."""
        ask = at.ask
        self._count.value = _MOST_SAMPLES
        code = ask.call(
            "nvmlDeviceGetSamples", ask.handle, _GPU_UTILIZATION_SAMPLES, c_ulonglong(self._seen_us), *self._references
        )
        if code == ask.nvml.NVML_ERROR_NOT_FOUND:
            return []
        if code:
            raise ask.nvml.NVMLError(code)
        pairs = _SAMPLE.iter_unpack(memoryview(self._buffer)[: self._count.value * _SAMPLE.size])
        samples = [(stamp_us, by_type(self._kind.value, union) / 100) for stamp_us, union in pairs]
        return sorted((stamp_us, share) for stamp_us, share in samples if stamp_us > self._seen_us and 0 <= share <= 1)
