"""Rows of the board of one host with one line per GPU: work, memory, heat, power, links."""

from __future__ import annotations

from typing import Any, Final

from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.kinds import Query, placeholder
from rankscope.dashboards.grafana.boards.panels.marks import DEGREES_LEFT, SHARE_OF_LIMIT
from rankscope.dashboards.grafana.boards.panels.promql import (
    GPU_LEGEND,
    SCOPE,
    gpu_rates,
    gpu_series,
    gpu_values,
    gpus_without,
    with_gpu_names,
)

_FULL: Final = {"maximum": 1}
Line = tuple[str, str, str, dict[str, Any], str]
"""Title, unit, metric (counters as rates), settings, description.

Of the settings, ``label`` is a label that the legend shows as well, ``among`` selects series, and ``limit`` is the metric, with
its labels, of the devices' own limit; the rest is for ``kinds.GraphStyle``.
"""

_WORK: Final[tuple[Line, ...]] = (
    ("Kernel running", "percentunit", "gpu_busy_seconds_total", _FULL,
     "Share of time with at least one kernel running, as an exact counter."),
    ("Utilisation", "percentunit", "gpu_utilization_ratio", _FULL,
     "What the driver calls utilisation: a kernel was running in its last sampling period."),
    ("SMs active", "percentunit", "gpu_sm_active_seconds_total", _FULL,
     "Share of time in which an SM had at least one warp (Hopper and newer)."),
    ("Graphics or compute engine active", "percentunit", "gpu_graphics_active_ratio", _FULL,
     "Share of time in which the engine was busy (Hopper and newer)."),
    ("Tensor cores active", "percentunit", "gpu_tensor_active_ratio", _FULL,
     "Share of the peak of the tensor cores (Hopper and newer)."),
    ("Memory bandwidth", "percentunit", "gpu_dram_active_ratio", _FULL,
     "Share of time in which memory bandwidth was used (Hopper and newer)."),
    ("SM occupancy", "percentunit", "gpu_sm_occupancy_ratio", _FULL,
     "Warps resident on the SMs as a share of what fits (Hopper and newer)."),
    ("Pipes", "percentunit", "gpu_pipe_active_ratio", {"label": "pipe", **_FULL},
     "Share of the peak of each pipe (Hopper and newer)."),
    ("SM clock", "hertz", "gpu_clock_hertz", {"among": {"clock": "sm"}, "limit": ("gpu_clock_max_hertz", {"clock": "sm"})},
     "Clock of the SMs; dashed: the highest the device itself allows."),
    ("Memory clock", "hertz", "gpu_clock_hertz", {"among": {"clock": "memory"}}, "Clock of the memory."),
)  # fmt: skip
_MEMORY: Final[tuple[Line, ...]] = (
    ("Memory in use", "bytes", "gpu_memory_used_bytes", {"limit": ("gpu_memory_total_bytes", {})},
     "Memory that processes have allocated; dashed: all there is."),
    ("Memory free", "bytes", "gpu_memory_free_bytes", {}, "Memory that no process has allocated."),
    ("Memory read and written", "percentunit", "gpu_memory_utilization_ratio", _FULL,
     "Share of the driver's last sampling period in which memory was read or written."),
)  # fmt: skip
_HEAT: Final[tuple[Line, ...]] = (
    ("Temperature", "celsius", "gpu_temperature_celsius", {"limit": ("gpu_temperature_limit_celsius", {"limit": "slowdown"})},
     "Of the die; dashed: where the device itself slows down."),
    ("Memory temperature", "celsius", "gpu_memory_temperature_celsius", {}, "Of the memory, where the device reports it."),
    ("Margin to slowdown", "celsius", "gpu_temperature_margin_celsius",
     {"minimum": None, "thresholds": DEGREES_LEFT, "ascending": True},
     "Degrees left until the device slows down by its own limit."),
    ("Throttled", "percentunit", "gpu_throttle_seconds_total", {"label": "reason", **_FULL},
     "Share of time in which the clocks were held down, by reason."),
    ("Throttle reasons now", "bool_on_off", "gpu_throttle_active", {"label": "reason", **_FULL},
     "1 while the clocks are held down for this reason."),
    ("Fans", "percentunit", "gpu_fan_speed_ratio", {"label": "fan", **_FULL}, "Speed of the fans, where the board has any."),
)  # fmt: skip
_POWER: Final[Line] = (
    "Power", "watt", "gpu_power_watts", {"limit": ("gpu_power_limit_watts", {})},
    "What each GPU draws; dashed: its own power limit.",
)  # fmt: skip
_ENERGY: Final[Line] = (
    "Power from energy", "watt", "gpu_energy_joules_total", {},
    "Rate of the energy counter: nothing between two samples is lost.",
)  # fmt: skip
_NVLINK: Final[tuple[Line, ...]] = (
    ("NVLink sent", "Bps", "gpu_nvlink_transmit_bytes_total", {}, "Bytes sent over all NVLinks."),
    ("NVLink received", "Bps", "gpu_nvlink_receive_bytes_total", {}, "Bytes received over all NVLinks."),
)
_LINKS: Final[tuple[Line, ...]] = (
    ("NVLinks", "none", "gpu_nvlink_links", {"label": "state"},
     "Links by state. An inactive link halves nothing by itself: it narrows every collective."),
    ("NVLink errors", "cps", "gpu_nvlink_errors_total", {"label": "error"}, "Errors per second by kind."),
    ("Fabric healthy", "bool_yes_no", "gpu_fabric_healthy", _FULL,
     "1 when the NVSwitch fabric reports this GPU as well connected."),
    ("PCIe sent", "Bps", "gpu_pcie_transmit_bytes_total", {}, "Bytes sent over PCIe."),
    ("PCIe received", "Bps", "gpu_pcie_receive_bytes_total", {}, "Bytes received over PCIe."),
    ("PCIe replays", "cps", "gpu_pcie_replays_total", {}, "Packets sent again, per second: a bad contact or a bad riser."),
)  # fmt: skip
_PCIE_ERRORS: Final[Line] = (
    "PCIe errors", "cps", "gpu_pcie_errors_total", {"label": "severity"}, "Errors of the link per second, by severity.",
)  # fmt: skip


def lines(canvas: Canvas) -> None:
    """Add the graphs of work, memory, heat, power and links."""
    for row, rows in (("Work", _WORK), ("Memory", _MEMORY), ("Heat", _HEAT)):
        canvas.row(row)
        _lines(canvas, *rows)
    canvas.row("Power")
    _lines(canvas, _POWER)
    text, limit = "Power over the device's own limit; what stays at 1 is held back by it.", "gpu_power_limit_watts"
    settings: dict[str, Any] = {"missing": limit, "thresholds": SHARE_OF_LIMIT}
    _ratio(canvas, "Share of the power limit", text, "gpu_power_watts", limit, **settings)
    _lines(canvas, _ENERGY)
    canvas.row("Links")
    _lines(canvas, *_NVLINK)
    query = Query("\n+\n".join(gpu_rates(metric) for _, _, metric, _, _ in _NVLINK), GPU_LEGEND)
    absent = placeholder(gpus_without("gpu_nvlink_transmit_bytes_total"))
    canvas.graph("NVLink both ways", "Bps", "Bytes per second over all NVLinks, both ways.", query, absent)
    _lines(canvas, *_LINKS)
    for quality in ("width", "generation"):
        text = f"The {quality} of the link over the greatest that device and slot can do. An idle GPU may lower its generation."
        now, most = f"gpu_pcie_link_{quality}", f"gpu_pcie_link_max_{quality}"
        _ratio(canvas, f"PCIe {quality}, share of maximum", text, now, most, missing=now, maximum=1)
    _lines(canvas, _PCIE_ERRORS)


def _lines(canvas: Canvas, *rows: Line) -> None:
    """Add graphs with one line per GPU."""
    for title, unit, metric, settings, text in rows:
        expression = gpu_rates if metric.endswith("_total") else gpu_values
        expr = expression(metric, **settings.get("among", {}))
        legend = GPU_LEGEND + (f" {{{{{settings['label']}}}}}" if "label" in settings else "")
        queries = [Query(expr, legend), _limit(*settings["limit"]) if "limit" in settings else None]
        more = {name: value for name, value in settings.items() if name not in ("label", "among", "limit")}
        canvas.graph(title, unit, text, *queries, placeholder(gpus_without(metric)), **more)


def _limit(metric: str, labels: dict[str, str]) -> Query:
    """Return the devices' own limit, the lowest per model: one line per model of a host instead of one per GPU."""
    selector = gpu_series(metric, **labels)
    joined = f"{selector}\n* on (job, instance, uuid) group_left (host, model) gpu_info{{{SCOPE}}}"
    return Query(f"min by (host, model) ({joined})", "{{host}} {{model}} limit", dashed=True)


def _ratio(canvas: Canvas, title: str, text: str, *metrics: str, missing: str, **settings: Any) -> None:
    """Add a graph of the ratio of two gauges of each GPU."""
    above, below = map(gpu_series, metrics)
    query = Query(with_gpu_names(f"({above} / {below})"), GPU_LEGEND)
    canvas.graph(title, "percentunit", text, query, placeholder(gpus_without(missing)), **settings)
