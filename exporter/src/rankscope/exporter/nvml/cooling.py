"""Margin of a GPU to its thermal slowdown, and its fans."""

from __future__ import annotations

from math import isfinite
from struct import Struct
from typing import Final

from rankscope.exporter.nvml.calls import IMPLAUSIBLE
from rankscope.exporter.nvml.rows import EVERY_60_S, CallRow, PreparedCall
from rankscope.exporter.nvml.sample_pass import SamplePass, Topic

_MARGIN_LAYOUT: Final = Struct("@Ii")
_MARGIN_VERSION: Final = _MARGIN_LAYOUT.size | 1 << 24


_MAX_FANS: Final = 64


class MarginTopic(Topic):
    """Thermal margin as the driver reports it, else the slowdown threshold minus the temperature.

    A reported margin of -1 has all bits set, so it counts as unknown.
    """

    metrics = ("gpu_temperature_margin_celsius",)

    def __init__(self) -> None:
        initial = _MARGIN_LAYOUT.pack(_MARGIN_VERSION, 0)
        self._call = PreparedCall(CallRow("nvmlDeviceGetMarginTemperature", (), formats=("Ii",), initial=initial))
        self._due_s = float("-inf")

    def collect(self, sample_pass: SamplePass) -> None:
        """Emit one reading; negative above the limit."""
        reason = "not_supported"
        if self._due_s <= sample_pass.now_s:
            result = self._call.read(sample_pass.nvml)
            if not isinstance(result, str):
                if isfinite(result[1]):
                    sample_pass.emit(self.metrics[0], result[1])
                    return
                reason = IMPLAUSIBLE
            else:
                self._due_s, reason = sample_pass.now_s + EVERY_60_S, result
        limits = [reading.value for reading in sample_pass.readings if reading.labels == (("limit", "slowdown"),)]
        temperatures = [reading.value for reading in sample_pass.readings if reading.metric == "gpu_temperature_celsius"]
        if limits and temperatures:
            sample_pass.emit(self.metrics[0], limits[0] - temperatures[0])
        else:
            sample_pass.mark_absent(self.metrics[0], reason)


class FansTopic(Topic):
    """Speed of each fan of the board; most server boards have none."""

    metrics = ("gpu_fan_speed_ratio",)
    _AT_MOST: Final = 2

    def __init__(self) -> None:
        self._count: int | None = None

    def collect(self, sample_pass: SamplePass) -> None:
        """Emit one reading per fan. A ratio above 1 is valid: the fan is driven above its nominal maximum."""
        nvml = sample_pass.nvml
        if self._count is None:
            self._count = nvml.check_count(nvml("nvmlDeviceGetNumFans", nvml.handle), _MAX_FANS)
        if not self._count:
            sample_pass.mark_absent(self.metrics[0], "no_fans")
        for fan in range(self._count):
            labels = (("fan", str(fan)),)
            ratio = nvml("nvmlDeviceGetFanSpeed_v2", nvml.handle, fan) / 100
            if ratio <= self._AT_MOST:
                sample_pass.emit(self.metrics[0], ratio, labels)
            else:
                sample_pass.mark_absent(self.metrics[0], IMPLAUSIBLE, labels)
