"""Tables of NVML calls and field values, by collector."""

from __future__ import annotations

from collections.abc import Sequence
from sys import byteorder
from typing import Final

from rankscope.exporter.nvml.rows import EVERY_10_S, EVERY_60_S, CallRow, FieldRow, OutputSeries

_CLOCKS: Final = (("graphics", 0), ("sm", 1), ("memory", 2))
_LIMITS: Final = (("shutdown", 0), ("slowdown", 1), ("memory", 2))
_MAX_CELSIUS: Final = 200
_MAX_WATTS: Final = 100_000
_MAX_HERTZ: Final = 1e11
MAX_BYTES: Final = 2.0**60
_NS: Final = 1e9
MEMORY_V2: Final = 0x02000028.to_bytes(4, byteorder)
MEMORY_V2_LAYOUT: Final = "8xQQQQ"
"""Layout after the version: total, reserved, free, used."""

THROTTLE_BITS: Final = (
    ("gpu_idle", 0x1),
    ("applications_clocks", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal", 0x20),
    ("hw_thermal", 0x40),
    ("hw_power_brake", 0x80),
    ("display_clocks", 0x100),
)
_ECC_ERRORS: Final = (("corrected", 0), ("uncorrected", 1))
_ECC_MEMORIES: Final = (("dram", 2), ("sram", 7))


def _first(number: float, *_: float) -> Sequence[float]:
    return (number,)


def _bits(reasons: float) -> Sequence[float]:
    if not isinstance(reasons, int):  # NaN: all bits were set
        return [reasons] * len(THROTTLE_BITS)
    return [float(bool(reasons & bit)) for _, bit in THROTTLE_BITS]


def _ecc(metric: str, counter: int, every_s: float) -> tuple[CallRow, ...]:
    return tuple(
        CallRow(
            "nvmlDeviceGetMemoryErrorCounter",
            (OutputSeries(metric, at_most=2.0**63, labels=(("error", error), ("memory", memory))),),
            args=(error_type, counter, location),
            formats=("Q",),
            every_s=every_s,
        )
        for error, error_type in _ECC_ERRORS
        for memory, location in _ECC_MEMORIES
    )


def _seconds(reason: str) -> OutputSeries:
    return OutputSeries("gpu_throttle_seconds_total", per=_NS, labels=(("reason", reason),))


CALLS: Final[dict[str, tuple[CallRow, ...]]] = {
    "temperature": (
        CallRow("nvmlDeviceGetTemperature", (OutputSeries("gpu_temperature_celsius", at_most=_MAX_CELSIUS),), args=(0,)),
        *(
            CallRow(
                "nvmlDeviceGetTemperatureThreshold",
                (OutputSeries("gpu_temperature_limit_celsius", at_most=_MAX_CELSIUS, labels=(("limit", limit),)),),
                args=(threshold,),
                every_s=EVERY_60_S,
            )
            for limit, threshold in _LIMITS
        ),
    ),
    "memory": (
        # No fallback to version 1, which counts the driver's reservation as used: the metric would have two meanings.
        CallRow(
            "nvmlDeviceGetMemoryInfo_v2",
            tuple(OutputSeries(f"gpu_memory_{part}_bytes", at_most=MAX_BYTES) for part in ("total", "reserved", "free", "used")),
            formats=(MEMORY_V2_LAYOUT,),
            initial=MEMORY_V2,
        ),
    ),
    "utilization": (
        CallRow(
            "nvmlDeviceGetUtilizationRates",
            (
                OutputSeries("gpu_utilization_ratio", per=100, at_most=1),
                OutputSeries("gpu_memory_utilization_ratio", per=100, at_most=1),
            ),
            formats=("II",),
        ),
    ),
    "clocks": (
        *(
            CallRow(
                "nvmlDeviceGetClockInfo",
                (OutputSeries("gpu_clock_hertz", times=1e6, at_most=_MAX_HERTZ, labels=(("clock", clock),)),),
                args=(kind,),
            )
            for clock, kind in _CLOCKS
        ),
        *(
            CallRow(
                "nvmlDeviceGetMaxClockInfo",
                (OutputSeries("gpu_clock_max_hertz", times=1e6, at_most=_MAX_HERTZ, labels=(("clock", clock),)),),
                args=(kind,),
                every_s=EVERY_60_S,
            )
            for clock, kind in _CLOCKS
        ),
        CallRow("nvmlDeviceGetPerformanceState", (OutputSeries("gpu_performance_state", at_most=15),)),
    ),
    "power": (
        CallRow("nvmlDeviceGetPowerUsage", (OutputSeries("gpu_power_watts", per=1000, at_most=_MAX_WATTS),)),
        CallRow(
            "nvmlDeviceGetEnforcedPowerLimit",
            (OutputSeries("gpu_power_limit_watts", per=1000, at_most=_MAX_WATTS),),
            every_s=EVERY_10_S,
        ),
        CallRow(
            "nvmlDeviceGetPowerManagementDefaultLimit",
            (OutputSeries("gpu_power_limit_default_watts", per=1000, at_most=_MAX_WATTS),),
            every_s=EVERY_60_S,
        ),
        CallRow(
            "nvmlDeviceGetTotalEnergyConsumption",
            (OutputSeries("gpu_energy_joules_total", per=1000, at_most=2.0**53),),
            formats=("Q",),
        ),
    ),
    "throttle": (
        CallRow(
            "nvmlDeviceGetCurrentClocksEventReasons",
            tuple(OutputSeries("gpu_throttle_active", labels=(("reason", reason),)) for reason, _ in THROTTLE_BITS),
            formats=("Q",),
            numbers=_bits,
            before="nvmlDeviceGetCurrentClocksThrottleReasons",
        ),
    ),
    "pcie": (
        CallRow("nvmlDeviceGetPcieReplayCounter", (OutputSeries("gpu_pcie_replays_total"),), every_s=EVERY_10_S),
        CallRow("nvmlDeviceGetCurrPcieLinkWidth", (OutputSeries("gpu_pcie_link_width", at_most=64),), every_s=EVERY_10_S),
        CallRow("nvmlDeviceGetMaxPcieLinkWidth", (OutputSeries("gpu_pcie_link_max_width", at_most=64),), every_s=EVERY_60_S),
        CallRow(
            "nvmlDeviceGetCurrPcieLinkGeneration", (OutputSeries("gpu_pcie_link_generation", at_most=16),), every_s=EVERY_10_S
        ),
        CallRow(
            "nvmlDeviceGetMaxPcieLinkGeneration", (OutputSeries("gpu_pcie_link_max_generation", at_most=16),), every_s=EVERY_60_S
        ),
    ),
    "ecc": (
        CallRow(
            "nvmlDeviceGetEccMode",
            (OutputSeries("gpu_ecc_enabled", at_most=1),),
            formats=("I", "I"),
            numbers=_first,
            every_s=EVERY_60_S,
        ),
        *_ecc("gpu_ecc_errors_total", 0, EVERY_10_S),
        *_ecc("gpu_ecc_errors_lifetime_total", 1, EVERY_10_S),
    ),
    "remap": (
        CallRow(
            "nvmlDeviceGetRowRemapperHistogram",
            tuple(
                OutputSeries("gpu_row_remap_banks", labels=(("spares", spares),))
                for spares in ("max", "high", "partial", "low", "none")
            ),
            formats=("IIIII",),
            every_s=EVERY_60_S,
        ),
    ),
    "encoder": tuple(
        CallRow(
            f"nvmlDeviceGet{engine.capitalize()}Utilization",
            (OutputSeries(f"gpu_{engine}_utilization_ratio", per=100, at_most=1),),
            formats=("I", "I"),
            numbers=_first,
        )
        for engine in ("encoder", "decoder")
    ),
    "pcie_throughput": tuple(
        CallRow(
            "nvmlDeviceGetPcieThroughput",
            (
                OutputSeries(
                    "gpu_pcie_throughput_bytes_per_second", times=1024, at_most=2.0**50, labels=(("direction", direction),)
                ),
            ),
            args=(counter,),
        )
        for direction, counter in (("transmit", 0), ("receive", 1))
    ),
    "retired_pages": (
        CallRow(
            "nvmlDeviceGetRetiredPagesPendingStatus", (OutputSeries("gpu_retired_pages_pending", at_most=1),), every_s=EVERY_10_S
        ),
    ),
}

FIELDS: Final[dict[str, tuple[FieldRow, ...]]] = {
    "temperature": (FieldRow(82, OutputSeries("gpu_memory_temperature_celsius", at_most=_MAX_CELSIUS)),),
    "power": (FieldRow(186, OutputSeries("gpu_power_instant_watts", per=1000, at_most=_MAX_WATTS)),),
    "throttle": (
        FieldRow(74, _seconds("sw_power_cap")),
        FieldRow(76, _seconds("sync_boost")),
        FieldRow(269, _seconds("sw_thermal")),
        FieldRow(270, _seconds("hw_thermal")),
        FieldRow(271, _seconds("hw_power_brake")),
        FieldRow(77, _seconds("board_limit")),
        FieldRow(79, _seconds("reliability")),
        FieldRow(75, _seconds("thermal"), unless=269),  # drivers without the reasons of their own for heat
    ),
    "pcie": tuple(
        FieldRow(number, OutputSeries("gpu_pcie_errors_total", labels=(("severity", severity),)), every_s=EVERY_10_S)
        for severity, number in (("correctable", 173), ("non_fatal", 179), ("fatal", 180))
    ),
    "nvlink": tuple(
        FieldRow(number, OutputSeries("gpu_c2c_errors_total", labels=(("error", error),)), every_s=EVERY_10_S)
        for error, number in (("crc", 231), ("replay", 232), ("replay_back_to_back", 233))
    ),
    "remap": (
        *(
            FieldRow(number, OutputSeries("gpu_remapped_rows_total", labels=(("cause", cause),)), every_s=EVERY_10_S)
            for cause, number in (("corrected", 142), ("uncorrected", 143))
        ),
        FieldRow(144, OutputSeries("gpu_row_remap_pending", at_most=1), every_s=EVERY_10_S),
        FieldRow(145, OutputSeries("gpu_row_remap_failure", at_most=1), every_s=EVERY_10_S),
    ),
}
