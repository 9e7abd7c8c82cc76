"""Recovery action that the driver recommends, retired pages, and virtualization of a GPU."""

from __future__ import annotations

from typing import Any, Final

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
    """Number of retired pages by cause, counted from the list of addresses that NVML returns."""

    metrics = ("gpu_retired_pages",)

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._pages: dict[str, int] = {}

    def collect(self, sample_pass: Pass) -> None:
        """Emit one reading per cause."""
        if self._due_s <= sample_pass.now_s:
            for number, cause in enumerate(("multiple_single_bit", "double_bit")):
                self._pages[cause] = len(sample_pass.nvml("nvmlDeviceGetRetiredPages", sample_pass.nvml.handle, number))
            self._due_s = sample_pass.now_s + SOMETIMES
        for cause, pages in self._pages.items():
            sample_pass.emit("gpu_retired_pages", pages, (("cause", cause),))


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
