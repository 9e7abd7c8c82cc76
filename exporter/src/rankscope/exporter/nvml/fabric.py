"""The NVSwitch fabric as a GPU sees it."""

from __future__ import annotations

from ctypes import byref
from typing import Final

from rankscope.exporter.nvml.one_pass import Pass, PlainTopic
from rankscope.exporter.nvml.rows import SOMETIMES

_STATES: Final = ("not_supported", "not_started", "in_progress", "completed")
_FAILED: Final = "failed"
# Two bits each: 1 is true, 2 is false, 0 is not known here.
_TROUBLE_SHIFTS: Final = (0, 2, 4, 6)
_MISCONFIGURED_SHIFT: Final = 8
_MISCONFIGURED_MASK: Final = 0xF


class Fabric(PlainTopic):
    """Registration with the NVSwitch fabric and its health."""

    metrics = ("gpu_fabric_state", "gpu_fabric_healthy")

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._state = ""
        self._healthy: bool | None = None

    def collect(self, at: Pass) -> None:
        """State, and health where the fabric tells it."""
        if self._due_s <= at.now_s:
            self._ask(at)
            self._due_s = at.now_s + SOMETIMES
        at.give("gpu_fabric_state", 1, (("state", self._state),))
        if self._healthy is None:
            at.lack("gpu_fabric_healthy", "not_supported")
        else:
            at.give("gpu_fabric_healthy", self._healthy)

    def _ask(self, at: Pass) -> None:
        ask = at.ask
        info = ask.nvml.c_nvmlGpuFabricInfoV_t()
        try:
            ask("nvmlDeviceGetGpuFabricInfoV", ask.handle, byref(info))
            mask = info.healthMask
        except ask.nvml.NVMLError_FunctionNotFound:
            info = ask.nvml.c_nvmlGpuFabricInfo_t()
            ask("nvmlDeviceGetGpuFabricInfo", ask.handle, byref(info))
            mask = 0
        self._state = _STATES[info.state] if info.state < len(_STATES) else f"state_{info.state}"
        if self._state == "completed" and info.status:
            self._state = _FAILED
        self._healthy = None if not mask else not _is_sick(mask)


def _is_sick(mask: int) -> bool:
    misconfigured = mask >> _MISCONFIGURED_SHIFT & _MISCONFIGURED_MASK
    return misconfigured > 1 or any(mask >> shift & 3 == 1 for shift in _TROUBLE_SHIFTS)
