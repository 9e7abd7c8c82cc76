"""Readings of one simulated GPU: plausible, slowly varying values of every metric that such a board has."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rankscope.exporter.nvml.tables import FIELDS, THROTTLE_BITS
from rankscope.exporter.source import Absent, GpuIdentity, Reading

_MIB: Final = 2**20
_GIB: Final = 2**30
_THROTTLE_COUNTED: Final = tuple(field.output.labels for field in FIELDS["throttle"] if not field.unless)
_ACTIVITIES: Final = {"graphics": 1.0, "sm": 0.82, "tensor": 0.41, "dram": 0.53}
_PIPES: Final = {"fp64": 0.0, "fp32": 0.17, "fp16": 0.05}
_IDLE_WATTS: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """GPU model: sizes and limits of its data sheet. ``gpm``: it supports GPM (GPU performance monitoring)."""

    model: str
    memory_bytes: int
    power_limit_watts: float
    sm_clock_hertz: float
    memory_clock_hertz: float
    nvlinks: int
    nvlink_bytes_per_second: float
    pcie_generation: int
    remap_banks: int
    gpm: bool


BOARDS: Final[dict[str, GpuModel]] = {
    "A100": GpuModel(
        model="simulated A100-SXM4-80GB",
        memory_bytes=80 * _GIB,
        power_limit_watts=400,
        sm_clock_hertz=1.41e9,
        memory_clock_hertz=1.593e9,
        nvlinks=12,
        nvlink_bytes_per_second=600e9,
        pcie_generation=4,
        remap_banks=640,
        gpm=False,
    ),
    "H100": GpuModel(
        model="simulated H100 80GB HBM3",
        memory_bytes=80 * _GIB,
        power_limit_watts=700,
        sm_clock_hertz=1.98e9,
        memory_clock_hertz=2.619e9,
        nvlinks=18,
        nvlink_bytes_per_second=900e9,
        pcie_generation=5,
        remap_banks=2560,
        gpm=True,
    ),
    "H200": GpuModel(
        model="simulated H200",
        memory_bytes=141 * _GIB,
        power_limit_watts=700,
        sm_clock_hertz=1.98e9,
        memory_clock_hertz=3.201e9,
        nvlinks=18,
        nvlink_bytes_per_second=900e9,
        pcie_generation=5,
        remap_banks=3072,
        gpm=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a GPU at ``at_s``: now, lowest and highest of the last second, and the integral in seconds since the start."""

    now: float
    lowest: float
    highest: float
    seconds: float
    at_s: float


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """Simulated GPU: its board, and its individual load, variation and temperature."""

    board: GpuModel
    identity: GpuIdentity
    mean: float
    swing: float
    period_s: float
    phase: float
    memory_share: float
    coolness: float

    @classmethod
    def rolled(cls, board: GpuModel, index: int, dice: random.Random) -> SimulatedGpu:
        """Create the GPU ``index`` of a node with random characteristics."""
        return cls(
            board=board,
            identity=GpuIdentity(
                uuid=f"GPU-51312a7e-d000-4000-8000-{index:012x}",
                index=index,
                model=board.model,
                pci_bus_id=f"00000000:{0x10 + index:02x}:00.0",
            ),
            mean=dice.uniform(0.7, 0.85),
            swing=dice.uniform(0.05, 0.12),
            period_s=dice.uniform(40, 120),
            phase=dice.uniform(0, math.tau),
            memory_share=dice.uniform(0.6, 0.8),
            coolness=dice.uniform(-3, 3),
        )

    def readings(self, at_s: float) -> Iterator[Reading]:
        """Yield all values at ``at_s`` seconds since the start."""
        board, load = self.board, self._load(at_s)
        yield from _thermal_and_power(board, load, self.coolness)
        yield from _memory(board, self.memory_share)
        yield from _activity(load, gpm=board.gpm)
        yield from _clocks(board, load)
        yield from _links(board, load)
        yield from _state(board)

    def absent(self) -> Iterator[Absent]:
        """Yield the metrics that such a board does not support."""
        yield Absent("gpu_fan_speed_ratio", "not_supported")
        yield Absent("gpu_vgpu_license_status", "not_supported")
        for metric in ("gpu_c2c_errors_total", "gpu_nvlink_recoveries_total", "gpu_nvlink_physical_errors_total"):
            yield Absent(metric, "not_supported")
        if not self.board.gpm:
            for metric in sorted({reading.metric for reading in _activity(self._load(0), gpm=True)} - _WITHOUT_GPM):
                yield Absent(metric, "before_hopper")

    def _load(self, at_s: float) -> Load:
        omega = math.tau / self.period_s

        def at(moment_s: float) -> float:
            return self.mean + self.swing * math.sin(omega * moment_s + self.phase)

        # The exact integral, so that counters and gauges agree.
        seconds = self.mean * at_s + self.swing / omega * (math.cos(self.phase) - math.cos(omega * at_s + self.phase))
        last = [at(at_s - part / 4) for part in range(4)]
        return Load(last[0], min(last), max(last), seconds, at_s)


def _thermal_and_power(board: GpuModel, load: Load, coolness: float) -> Iterator[Reading]:
    celsius = 32 + 38 * load.now + coolness
    yield Reading("gpu_temperature_celsius", round(celsius))
    yield Reading("gpu_memory_temperature_celsius", round(celsius + 9))
    yield Reading("gpu_temperature_margin_celsius", 87 - round(celsius))
    for limit, at_celsius in (("slowdown", 87), ("shutdown", 92), ("memory", 95)):
        yield Reading("gpu_temperature_limit_celsius", at_celsius, (("limit", limit),))
    span = 0.8 * board.power_limit_watts
    watts = round(_IDLE_WATTS + span * load.now, 3)
    yield Reading("gpu_power_watts", watts)
    yield Reading("gpu_power_instant_watts", watts)
    yield Reading("gpu_power_limit_watts", board.power_limit_watts)
    yield Reading("gpu_power_limit_default_watts", board.power_limit_watts)
    yield Reading("gpu_energy_joules_total", round(_IDLE_WATTS * load.at_s + span * load.seconds, 3))


def _memory(board: GpuModel, share: float) -> Iterator[Reading]:
    reserved = 600 * _MIB
    used = round(share * (board.memory_bytes - reserved))
    yield Reading("gpu_memory_total_bytes", board.memory_bytes)
    yield Reading("gpu_memory_used_bytes", used)
    yield Reading("gpu_memory_free_bytes", board.memory_bytes - reserved - used)
    yield Reading("gpu_memory_reserved_bytes", reserved)


_WITHOUT_GPM: Final = frozenset(
    {
        "gpu_utilization_ratio",
        "gpu_utilization_min_ratio",
        "gpu_utilization_max_ratio",
        "gpu_busy_seconds_total",
        "gpu_memory_utilization_ratio",
        "gpu_pcie_transmit_bytes_total",
        "gpu_pcie_receive_bytes_total",
    }
)


def _activity(load: Load, *, gpm: bool) -> Iterator[Reading]:
    yield Reading("gpu_utilization_ratio", round(load.now, 2))
    yield Reading("gpu_utilization_min_ratio", round(load.lowest, 2))
    yield Reading("gpu_utilization_max_ratio", round(load.highest, 2))
    yield Reading("gpu_busy_seconds_total", round(load.seconds, 6))
    yield Reading("gpu_memory_utilization_ratio", round(0.55 * load.now, 2))
    for direction, bytes_per_second in (("transmit", 2e9), ("receive", 3e9)):
        yield Reading(f"gpu_pcie_{direction}_bytes_total", round(bytes_per_second * load.seconds))
    if not gpm:
        return
    for part, share in _ACTIVITIES.items():
        yield Reading(f"gpu_{part}_active_ratio", round(share * load.now, 4))
        if part != "graphics":
            yield Reading(f"gpu_{part}_active_min_ratio", round(share * load.lowest, 4))
            yield Reading(f"gpu_{part}_active_max_ratio", round(share * load.highest, 4))
        yield Reading(f"gpu_{part}_active_seconds_total", round(share * load.seconds, 6))
    yield Reading("gpu_sm_occupancy_ratio", round(0.3 * load.now, 4))
    for pipe, share in _PIPES.items():
        yield Reading("gpu_pipe_active_ratio", round(share * load.now, 4), (("pipe", pipe),))


def _clocks(board: GpuModel, load: Load) -> Iterator[Reading]:
    # Under load the SM clock drops a little; the memory clock is constant.
    share = 1 - 0.08 * load.now
    highest = {"graphics": board.sm_clock_hertz, "memory": board.memory_clock_hertz, "sm": board.sm_clock_hertz}
    for clock, hertz in highest.items():
        label = (("clock", clock),)
        yield Reading("gpu_clock_hertz", round(hertz if clock == "memory" else share * hertz, -6), label)
        yield Reading("gpu_clock_max_hertz", hertz, label)
    yield Reading("gpu_performance_state", 0)


def _links(board: GpuModel, load: Load) -> Iterator[Reading]:
    yield Reading("gpu_pcie_replays_total", 0)
    for severity in ("correctable", "non_fatal", "fatal"):
        yield Reading("gpu_pcie_errors_total", 0, (("severity", severity),))
    for prefix in ("", "max_"):
        yield Reading(f"gpu_pcie_link_{prefix}width", 16)
        yield Reading(f"gpu_pcie_link_{prefix}generation", board.pcie_generation)
    yield Reading("gpu_nvlink_links", board.nvlinks, (("state", "up"),))
    yield Reading("gpu_nvlink_links", 0, (("state", "down"),))
    for link in range(board.nvlinks):
        yield Reading("gpu_nvlink_link_up", 1, (("link", str(link)),))
    each_way = 0.15 * board.nvlink_bytes_per_second
    yield Reading("gpu_nvlink_transmit_bytes_total", round(each_way * load.seconds))
    yield Reading("gpu_nvlink_receive_bytes_total", round(each_way * load.seconds))
    for error in ("crc_flit", "crc_data", "replay", "recovery", "ecc"):
        yield Reading("gpu_nvlink_errors_total", 0, (("error", error),))
    yield Reading("gpu_fabric_state", 1, (("state", "completed" if board.gpm else "not_supported"),))
    if board.gpm:
        yield Reading("gpu_fabric_healthy", 1)


def _state(board: GpuModel) -> Iterator[Reading]:
    for reason, _ in THROTTLE_BITS:
        yield Reading("gpu_throttle_active", 0, (("reason", reason),))
    for labels in _THROTTLE_COUNTED:
        yield Reading("gpu_throttle_seconds_total", 0, labels)
    yield Reading("gpu_ecc_enabled", 1)
    for name in ("gpu_ecc_errors_total", "gpu_ecc_errors_lifetime_total"):
        for error in ("corrected", "uncorrected"):
            for memory in ("dram", "sram"):
                yield Reading(name, 0, (("error", error), ("memory", memory)))
    for cause in ("corrected", "uncorrected"):
        yield Reading("gpu_remapped_rows_total", 0, (("cause", cause),))
    yield Reading("gpu_row_remap_pending", 0)
    yield Reading("gpu_row_remap_failure", 0)
    for spares in ("max", "high", "partial", "low", "none"):
        yield Reading("gpu_row_remap_banks", board.remap_banks if spares == "max" else 0, (("spares", spares),))
    yield Reading("gpu_recovery_action", 1, (("action", "none"),))
    yield Reading("gpu_mig_enabled", 0)
    yield Reading("gpu_mig_instances", 0)
    yield Reading("gpu_virtualization_mode", 1, (("mode", "none"),))
    yield Reading("gpu_encoder_utilization_ratio", 0)
    yield Reading("gpu_decoder_utilization_ratio", 0)
