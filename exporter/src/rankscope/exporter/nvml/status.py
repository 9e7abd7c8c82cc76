"""Recovery action that the driver recommends, retired pages, and virtualization of a GPU."""

from __future__ import annotations

from ctypes import byref, c_uint
from typing import Any, Final

from rankscope.exporter.nvml.calls import NvmlCalls
from rankscope.exporter.nvml.one_pass import Pass, Topic
from rankscope.exporter.nvml.rows import RARELY, SOMETIMES, Field, Out
from rankscope.exporter.source import Absent, Reading

_ACTIONS: Final = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)
_MOST_PAGES: Final = 1 << 20
_MODES: Final = ("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")


class RecoveryAction(Field):
    """Field with the recovery action that the driver recommends; an action unknown to this table is ``action_N``."""

    def outcome(self, result: float | str) -> list[Reading | Absent]:
        """Convert the value to a series with the action as a label."""
        if isinstance(result, str):
            return super().outcome(result)
        number = int(result)
        action = _ACTIONS[number] if 0 <= number < len(_ACTIONS) else f"action_{number}"
        return [Reading(self.out.metric, 1, (("action", action),))]


RECOVERY_ACTION: Final = RecoveryAction(230, Out("gpu_recovery_action"), every_s=SOMETIMES)


class RetiredPages(Topic):
    """Number of retired pages by cause."""

    metrics = ("gpu_retired_pages",)

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._pages: dict[str, int] = {}

    def collect(self, sample_pass: Pass) -> None:
        """Emit one reading per cause."""
        if self._due_s <= sample_pass.now_s:
            for number, cause in enumerate(("multiple_single_bit", "double_bit")):
                self._pages[cause] = _retired(sample_pass.nvml, number)
            self._due_s = sample_pass.now_s + SOMETIMES
        for cause, pages in self._pages.items():
            sample_pass.emit("gpu_retired_pages", pages, (("cause", cause),))


def _retired(nvml: NvmlCalls, cause: int) -> int:
    """Return the number of pages; without room for their addresses, NVML returns that only."""
    count = c_uint(0)
    code = nvml.call("nvmlDeviceGetRetiredPages", nvml.handle, cause, byref(count), None)
    if code not in (nvml.binding.NVML_SUCCESS, nvml.binding.NVML_ERROR_INSUFFICIENT_SIZE):
        raise nvml.binding.NVMLError(code)
    return nvml.check_count(count.value, _MOST_PAGES)


class Virtualization(Topic):
    """Virtualization mode, and in a guest the licence of its vGPU."""

    metrics = ("gpu_virtualization_mode", "gpu_vgpu_license_status")

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._mode = ""
        self._licensed: float | str = ""

    def collect(self, sample_pass: Pass) -> None:
        """Emit mode and licence, read once a minute because they rarely change."""
        nvml = sample_pass.nvml
        if self._due_s <= sample_pass.now_s:
            number: int = nvml("nvmlDeviceGetVirtualizationMode", nvml.handle)
            self._mode = _MODES[number] if number < len(_MODES) else f"mode_{number}"
            self._licensed = self._licence(nvml) if self._mode == "vgpu" else "no_vgpu_guest"
            self._due_s = sample_pass.now_s + RARELY
        sample_pass.emit("gpu_virtualization_mode", 1, (("mode", self._mode),))
        if isinstance(self._licensed, str):
            sample_pass.mark_absent("gpu_vgpu_license_status", self._licensed)
        else:
            sample_pass.emit("gpu_vgpu_license_status", self._licensed)

    def _licence(self, nvml: Any) -> float | str:
        try:
            answer = nvml("nvmlDeviceGetGridLicensableFeatures", nvml.handle)
        except nvml.binding.NVMLError as error:
            reason: str = nvml.reason(error)
            return reason
        features = answer.gridLicensableFeatures[: answer.licensableFeaturesCount]
        return float(any(feature.featureState for feature in features))
