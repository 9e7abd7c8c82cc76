"""What the driver asks for, and under which virtualisation a GPU runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rankscope.exporter.nvml.asking import is_lasting
from rankscope.exporter.nvml.one_pass import FieldKey, Pass, PlainTopic
from rankscope.exporter.nvml.rows import NOW, RARELY, SOMETIMES

_RECOVERY_ACTION: Final = (230, 0)
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


class Recovery(PlainTopic):
    """The recovery action."""

    metrics = ("gpu_recovery_action",)
    has_fields = True

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._said: float | str = ""

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """One field, from time to time."""
        return (_RECOVERY_ACTION,) if self._due_s <= now_s else ()

    def collect(self, at: Pass) -> None:
        """One reading; an action that is newer than this table is named by its number."""
        if _RECOVERY_ACTION in at.fields:
            said = self._said = at.fields[_RECOVERY_ACTION]
            if isinstance(said, str):
                self._due_s = at.now_s + (RARELY if is_lasting(said) else NOW)
            else:
                self._due_s = at.now_s + SOMETIMES
        if isinstance(self._said, str):
            at.lack(self.metrics[0], self._said)
            return
        number = int(self._said)
        at.give(self.metrics[0], 1, (("action", _ACTIONS[number] if 0 <= number < len(_ACTIONS) else f"action_{number}"),))


class RetiredPages(PlainTopic):
    """How many pages are retired, by cause; the call lists their addresses."""

    metrics = ("gpu_retired_pages",)

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._pages: dict[str, int] = {}

    def collect(self, at: Pass) -> None:
        """Two readings."""
        if self._due_s <= at.now_s:
            for number, cause in enumerate(("multiple_single_bit", "double_bit")):
                self._pages[cause] = len(at.ask("nvmlDeviceGetRetiredPages", at.ask.handle, number))
            self._due_s = at.now_s + SOMETIMES
        for cause, pages in self._pages.items():
            at.give("gpu_retired_pages", pages, (("cause", cause),))


class Virtualization(PlainTopic):
    """The mode, and in a guest the licence of its vGPU."""

    metrics = ("gpu_virtualization_mode", "gpu_vgpu_license_status")

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._mode = ""
        self._licensed: float | str = ""

    def collect(self, at: Pass) -> None:
        """Neither changes while the driver runs, or but rarely."""
        ask = at.ask
        if self._due_s <= at.now_s:
            number: int = ask("nvmlDeviceGetVirtualizationMode", ask.handle)
            self._mode = _MODES[number] if number < len(_MODES) else f"mode_{number}"
            self._licensed = self._licence(ask) if self._mode == "vgpu" else "no_vgpu_guest"
            self._due_s = at.now_s + RARELY
        at.give("gpu_virtualization_mode", 1, (("mode", self._mode),))
        if isinstance(self._licensed, str):
            at.lack("gpu_vgpu_license_status", self._licensed)
        else:
            at.give("gpu_vgpu_license_status", self._licensed)

    def _licence(self, ask: Any) -> float | str:
        try:
            answer = ask("nvmlDeviceGetGridLicensableFeatures", ask.handle)
        except ask.nvml.NVMLError as error:
            reason: str = ask.reason(error)
            return reason
        features = answer.gridLicensableFeatures[: answer.licensableFeaturesCount]
        return float(any(feature.featureState for feature in features))
