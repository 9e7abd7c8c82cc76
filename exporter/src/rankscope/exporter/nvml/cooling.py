"""How far a GPU is from slowing down because of heat, and its fans."""

from __future__ import annotations

from typing import Final

from rankscope.exporter.nvml.one_pass import Pass, PlainTopic
from rankscope.exporter.nvml.rows import RARELY


class Margin(PlainTopic):
    """The driver's own margin where it has one, else what lies between the temperature and the slowdown threshold."""

    metrics = ("gpu_temperature_margin_celsius",)

    def __init__(self) -> None:
        self._due_s = float("-inf")

    def collect(self, at: Pass) -> None:
        """One reading; below zero when the limit is passed."""
        if self._due_s <= at.now_s:
            try:
                at.give(self.metrics[0], at.ask("nvmlDeviceGetMarginTemperature", at.ask.handle))
            except at.ask.nvml.NVMLError as error:
                self._due_s = at.now_s + RARELY
                reason = at.ask.reason(error)
            else:
                return
        else:
            reason = "not_supported"
        limits = [one.value for one in at.readings if one.labels == (("limit", "slowdown"),)]
        temperatures = [one.value for one in at.readings if one.metric == "gpu_temperature_celsius"]
        if limits and temperatures:
            at.give(self.metrics[0], limits[0] - temperatures[0])
        else:
            at.lack(self.metrics[0], reason)


class Fans(PlainTopic):
    """Each fan of the board; most boards of servers have none."""

    metrics = ("gpu_fan_speed_ratio",)
    _AT_MOST: Final = 2

    def __init__(self) -> None:
        self._count: int | None = None

    def collect(self, at: Pass) -> None:
        """One reading per fan. A speed above 1 is real: the fan is asked for more than its nominal greatest."""
        ask = at.ask
        if self._count is None:
            self._count = ask("nvmlDeviceGetNumFans", ask.handle)
        if not self._count:
            at.lack(self.metrics[0], "no_fans")
        for fan in range(self._count):
            labels = (("fan", str(fan)),)
            ratio = ask("nvmlDeviceGetFanSpeed_v2", ask.handle, fan) / 100
            if ratio <= self._AT_MOST:
                at.give(self.metrics[0], ratio, labels)
            else:
                at.lack(self.metrics[0], "implausible", labels)
