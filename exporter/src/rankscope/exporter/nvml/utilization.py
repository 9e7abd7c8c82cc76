"""Utilisation from the driver's own samples: minimum, maximum and an exact counter, which the driver's gauge does not have."""

from __future__ import annotations

from ctypes import byref, c_uint, c_ulonglong, create_string_buffer
from itertools import pairwise
from struct import Struct
from typing import Final

from rankscope.exporter.nvml.calls import is_all_ones
from rankscope.exporter.nvml.fields import by_type
from rankscope.exporter.nvml.sample_pass import SamplePass, Topic

_GPU_UTILIZATION_SAMPLES: Final = 1
_GAUGE: Final = "gpu_utilization_ratio"
_SAMPLE: Final = Struct("@Q8s")
_CLOCK_STEP_S: Final = 10
"""The driver's samples have wall-clock times; a larger difference from the monotonic clock means that the wall clock was set."""
_MAX_SAMPLES: Final = 256
"""Buffer size in samples, more than the driver keeps."""

_Samples = list[tuple[int, float]]


class BusySecondsTopic(Topic):
    """Busy time as the integral of the driver's utilisation samples, for any interval between two passes.

    Each sample counts for the time since the previous sample. Time that the driver's buffer no longer covers counts with the mean
    of the covered samples. The same holds for an interval in which the wall clock was set.
    """

    metrics = ("gpu_utilization_min_ratio", "gpu_utilization_max_ratio", "gpu_busy_seconds_total")

    def __init__(self) -> None:
        self._seen_us = 0
        self._seen_s = 0.0
        self._seconds = 0.0
        self._bounds: tuple[float, float] | None = None
        self._kind, self._count = c_uint(), c_uint()
        self._buffer = create_string_buffer(_MAX_SAMPLES * _SAMPLE.size)
        self._references = (byref(self._kind), byref(self._count), self._buffer)

    def collect(self, sample_pass: SamplePass) -> None:
        """Add the samples since the last pass. Without a new sample, counter and bounds keep their values."""
        samples = self._new_samples(sample_pass)
        if samples:
            if self._seen_us:
                self._seconds += _busy_s(samples, self._seen_us, sample_pass.now_s - self._seen_s)
            else:
                samples = samples[-1:]  # the counter starts at the first pass
            self._seen_us, self._seen_s = samples[-1][0], sample_pass.now_s
            shares = [share for _, share in samples]
            self._bounds = min(shares), max(shares)
        if self._bounds is None:
            for metric in self.metrics:
                sample_pass.mark_absent(metric, "no_data")
            return
        # The gauge of this pass may be newer than any sample: extend the bounds to include it.
        shares = [*self._bounds, *(reading.value for reading in sample_pass.readings if reading.metric == _GAUGE)]
        sample_pass.emit("gpu_utilization_min_ratio", min(shares))
        sample_pass.emit("gpu_utilization_max_ratio", max(shares))
        sample_pass.emit("gpu_busy_seconds_total", self._seconds)

    def _new_samples(self, sample_pass: SamplePass) -> _Samples:
        """Return the samples since the last pass as (time in microseconds, share), oldest first."""
        samples = self._samples(sample_pass, self._seen_us)
        if samples or not self._seen_us or sample_pass.now_s - self._seen_s <= _CLOCK_STEP_S:
            return samples
        # After the wall clock was set back, new samples are older than the last one seen.
        samples = self._samples(sample_pass, 0)
        return samples if samples and samples[-1][0] != self._seen_us else []

    def _samples(self, sample_pass: SamplePass, since_us: int) -> _Samples:
        nvml = sample_pass.nvml
        self._count.value = _MAX_SAMPLES
        code = nvml.call("nvmlDeviceGetSamples", nvml.handle, _GPU_UTILIZATION_SAMPLES, c_ulonglong(since_us), *self._references)
        if code == nvml.binding.NVML_ERROR_NOT_FOUND:
            return []
        if code:
            raise nvml.binding.NVMLError(code)
        nvml.check_count(self._count.value, _MAX_SAMPLES)
        pairs = _SAMPLE.iter_unpack(memoryview(self._buffer)[: self._count.value * _SAMPLE.size])
        samples = ((stamp_us, by_type(self._kind.value, union) / 100) for stamp_us, union in pairs if not is_all_ones(stamp_us))
        # A dict: of two samples with one time stamp, the later counts.
        return sorted({stamp_us: share for stamp_us, share in samples if stamp_us > since_us and 0 <= share <= 1}.items())


def _busy_s(samples: _Samples, seen_us: int, elapsed_s: float) -> float:
    """Return the busy seconds from the last sample of the previous pass (``seen_us``) to the last of ``samples``.

    ``elapsed_s`` is the monotonic time between the two passes.
    """
    steps = [(after_us - before_us, share) for (before_us, _), (after_us, share) in pairwise(samples)]
    first_us, first_share = samples[0]
    longest_us = max((step_us for step_us, _ in steps), default=0)
    if not steps or 0 < first_us - seen_us <= 2 * longest_us:
        steps.append((first_us - seen_us, first_share))  # the buffer reaches back to the last pass
    span_s = (samples[-1][0] - seen_us) / 1e6
    if abs(span_s - elapsed_s) > _CLOCK_STEP_S:
        span_s = elapsed_s
    covered_us = sum(step_us for step_us, _ in steps)
    return span_s * sum(step_us * share for step_us, share in steps) / covered_us
