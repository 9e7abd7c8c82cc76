"""Recovery action that the driver recommends, retired pages, and virtualization of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_uint
from typing import Any, Final

from rankscope.exporter.nvml.calls import NvmlCalls
from rankscope.exporter.nvml.rows import EVERY_10_S, EVERY_60_S, FieldRow, OutputSeries
from rankscope.exporter.nvml.sample_pass import SamplePass, SlowTopic
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
_MAX_PAGES: Final = 1 << 20
_MODES: Final = ("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")


class RecoveryAction(FieldRow):
    """Field with the recovery action that the driver recommends; an action unknown to this table is ``action_N``."""

    def outcome(self, result: float | str) -> list[Reading | Absent]:
        """Convert the value to a series with the action as a label."""
        if isinstance(result, str):
            return super().outcome(result)
        number = int(result)
        action = _ACTIONS[number] if 0 <= number < len(_ACTIONS) else f"action_{number}"
        return [Reading(self.output.metric, 1, (("action", action),))]


RECOVERY_ACTION: Final = RecoveryAction(230, OutputSeries("gpu_recovery_action"), every_s=EVERY_10_S)


class RetiredPagesTopic(SlowTopic):
    """Number of retired pages by cause."""

    metrics = ("gpu_retired_pages",)
    every_s = EVERY_10_S

    def read(self, sample_pass: SamplePass) -> Iterator[Reading | Absent]:
        """Yield one reading per cause."""
        for number, cause in enumerate(("multiple_single_bit", "double_bit")):
            yield Reading(self.metrics[0], _retired(sample_pass.nvml, number), (("cause", cause),))


def _retired(nvml: NvmlCalls, cause: int) -> int:
    """Return the number of pages; without room for their addresses, NVML returns that only."""
    count = c_uint(0)
    code = nvml.call("nvmlDeviceGetRetiredPages", nvml.handle, cause, byref(count), None)
    if code not in (nvml.binding.NVML_SUCCESS, nvml.binding.NVML_ERROR_INSUFFICIENT_SIZE):
        raise nvml.binding.NVMLError(code)
    return nvml.check_count(count.value, _MAX_PAGES)


class VirtualizationTopic(SlowTopic):
    """Virtualization mode, and in a guest the licence of its vGPU."""

    metrics = ("gpu_virtualization_mode", "gpu_vgpu_license_status")
    every_s = EVERY_60_S  # they rarely change

    def read(self, sample_pass: SamplePass) -> Iterator[Reading | Absent]:
        """Yield mode and licence."""
        nvml = sample_pass.nvml
        number: int = nvml("nvmlDeviceGetVirtualizationMode", nvml.handle)
        mode = _MODES[number] if number < len(_MODES) else f"mode_{number}"
        yield Reading("gpu_virtualization_mode", 1, (("mode", mode),))
        licensed = self._licence(nvml) if mode == "vgpu" else "no_vgpu_guest"
        yield Absent(self.metrics[1], licensed) if isinstance(licensed, str) else Reading(self.metrics[1], licensed)

    def _licence(self, nvml: Any) -> float | str:
        try:
            answer = nvml("nvmlDeviceGetGridLicensableFeatures", nvml.handle)
        except nvml.binding.NVMLError as error:
            reason: str = nvml.reason(error)
            return reason
        features = answer.gridLicensableFeatures[: answer.licensableFeaturesCount]
        return float(any(feature.featureState for feature in features))
