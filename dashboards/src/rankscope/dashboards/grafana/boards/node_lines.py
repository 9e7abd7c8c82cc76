"""Rows of the board of one host with one line per GPU: work, memory, heat, power, links."""

from __future__ import annotations

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import SCOPE, Dialect, named
from rankscope.dashboards.grafana.boards.kinds import Graph, Query, Thresholds, told
from rankscope.dashboards.grafana.boards.marks import DEGREES_LEFT, SHARE_OF_LIMIT


def _lines(  # noqa: PLR0917  # read as a table: title, metric, unit, text
    canvas: Canvas,
    dialect: Dialect,
    title: str,
    metric: str,
    unit: str,
    description: str,
    *,
    kind: str = "value",
    label: str = "",
    among: dict[str, str] | None = None,
    limit: Query | None = None,
    maximum: float | None = None,
    minimum: float | None = 0,
    thresholds: Thresholds = (),
) -> None:
    """Add a graph with one line per GPU; ``label``: a label of the metric that the legend shows as well."""
    expr = getattr(dialect, kind)(metric, **(among or {}))
    legend = dialect.legend + (f" {{{{{label}}}}}" if label else "")
    look = Graph(maximum=maximum, minimum=minimum, thresholds=thresholds, ascending=minimum is None)
    state_of_it = told(dialect.missing(metric))
    canvas.graph(title, description, unit, None if expr is None else Query(expr, legend), limit, state_of_it, look=look)


def _limit(dialect: Dialect, metric: str, **labels: str) -> Query | None:
    """Return the devices' own limit, the lowest per model: one line per model of a host instead of one per GPU."""
    selector = dialect.selector(metric, **labels)
    if selector is None:
        return None
    joined = f"{selector}\n* on (job, instance, uuid) group_left (host, model) gpu_info{{{SCOPE}}}"
    return Query(f"min by (host, model) ({joined})", "{{host}} {{model}} limit", dashed=True)


def work(canvas: Canvas, dialect: Dialect) -> None:
    """Add activity and clocks of the GPUs."""
    canvas.row("Work")
    _lines(
        canvas,
        dialect,
        "Kernel running",
        "gpu_busy_seconds_total",
        "percentunit",
        "Share of time with at least one kernel running, as an exact counter.",
        kind="rate",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "Utilisation",
        "gpu_utilization_ratio",
        "percentunit",
        "What the driver calls utilisation: a kernel was running in its last sampling period.",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "SMs active",
        "gpu_sm_active_seconds_total",
        "percentunit",
        "Share of time in which an SM had at least one warp (Hopper and newer).",
        kind="rate",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "Graphics or compute engine active",
        "gpu_graphics_active_ratio",
        "percentunit",
        "Share of time in which the engine was busy (Hopper and newer).",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "Tensor cores active",
        "gpu_tensor_active_ratio",
        "percentunit",
        "Share of the peak of the tensor cores (Hopper and newer).",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "Memory bandwidth",
        "gpu_dram_active_ratio",
        "percentunit",
        "Share of time in which memory bandwidth was used (Hopper and newer).",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "SM occupancy",
        "gpu_sm_occupancy_ratio",
        "percentunit",
        "Warps resident on the SMs as a share of what fits (Hopper and newer).",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "Pipes",
        "gpu_pipe_active_ratio",
        "percentunit",
        "Share of the peak of each pipe (Hopper and newer).",
        label="pipe",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "SM clock",
        "gpu_clock_hertz",
        "hertz",
        "Clock of the SMs; dashed: the highest the device itself allows.",
        among={"clock": "sm"},
        limit=_limit(dialect, "gpu_clock_max_hertz", clock="sm"),
    )
    _lines(canvas, dialect, "Memory clock", "gpu_clock_hertz", "hertz", "Clock of the memory.", among={"clock": "memory"})


def memory(canvas: Canvas, dialect: Dialect) -> None:
    """Add used and total memory."""
    canvas.row("Memory")
    _lines(
        canvas,
        dialect,
        "Memory in use",
        "gpu_memory_used_bytes",
        "bytes",
        "Memory that processes have allocated; dashed: all there is.",
        limit=_limit(dialect, "gpu_memory_total_bytes"),
    )
    _lines(canvas, dialect, "Memory free", "gpu_memory_free_bytes", "bytes", "Memory that nobody has allocated.")
    _lines(
        canvas,
        dialect,
        "Memory read and written",
        "gpu_memory_utilization_ratio",
        "percentunit",
        "Share of the driver's last sampling period in which memory was read or written.",
        maximum=1,
    )


def heat(canvas: Canvas, dialect: Dialect) -> None:
    """Add temperatures against the device's own limits, and throttling."""
    canvas.row("Heat")
    _lines(
        canvas,
        dialect,
        "Temperature",
        "gpu_temperature_celsius",
        "celsius",
        "Of the die; dashed: where the device itself slows down.",
        limit=_limit(dialect, "gpu_temperature_limit_celsius", limit="slowdown"),
    )
    _lines(
        canvas,
        dialect,
        "Memory temperature",
        "gpu_memory_temperature_celsius",
        "celsius",
        "Of the memory, where the device tells.",
    )
    _lines(
        canvas,
        dialect,
        "Margin to slowdown",
        "gpu_temperature_margin_celsius",
        "celsius",
        "Degrees left until the device slows down by its own limit.",
        minimum=None,
        thresholds=DEGREES_LEFT,
    )
    _lines(
        canvas,
        dialect,
        "Throttled",
        "gpu_throttle_seconds_total",
        "percentunit",
        "Share of time in which the clocks were held down, by reason.",
        kind="rate",
        label="reason",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "Throttle reasons now",
        "gpu_throttle_active",
        "bool_on_off",
        "1 while the clocks are held down for this reason.",
        label="reason",
        maximum=1,
    )
    _lines(
        canvas,
        dialect,
        "Fans",
        "gpu_fan_speed_ratio",
        "percentunit",
        "Speed of the fans, where the board has any.",
        label="fan",
        maximum=1,
    )


def power(canvas: Canvas, dialect: Dialect) -> None:
    """Add power against the device's own limit."""
    canvas.row("Power")
    _lines(
        canvas,
        dialect,
        "Power",
        "gpu_power_watts",
        "watt",
        "What each GPU draws; dashed: its own power limit.",
        limit=_limit(dialect, "gpu_power_limit_watts"),
    )
    watts, most = dialect.selector("gpu_power_watts"), dialect.selector("gpu_power_limit_watts")
    share = None if watts is None or most is None else Query(_named(dialect, f"({watts} / {most})"), dialect.legend)
    canvas.graph(
        "Share of the power limit",
        "Power over the device's own limit; what stays at 1 is held back by it.",
        "percentunit",
        share,
        told(dialect.missing("gpu_power_limit_watts")),
        look=Graph(thresholds=SHARE_OF_LIMIT),
    )
    _lines(
        canvas,
        dialect,
        "Power from energy",
        "gpu_energy_joules_total",
        "watt",
        "Rate of the energy counter: nothing between two samples is lost.",
        kind="rate",
    )


def _named(dialect: Dialect, expr: str) -> str:
    return named(expr) if dialect.name == "native" else expr


def links(canvas: Canvas, dialect: Dialect) -> None:
    """Add NVLink and PCIe: bytes, errors, and width relative to the maximum."""
    canvas.row("Links")
    _lines(canvas, dialect, "NVLink sent", "gpu_nvlink_transmit_bytes_total", "Bps", "Bytes sent over all NVLinks.", kind="rate")
    _lines(
        canvas,
        dialect,
        "NVLink received",
        "gpu_nvlink_receive_bytes_total",
        "Bps",
        "Bytes received over all NVLinks.",
        kind="rate",
    )
    both_ways = dialect.sum_of_rates("gpu_nvlink_transmit_bytes_total", "gpu_nvlink_receive_bytes_total")
    canvas.graph(
        "NVLink both ways",
        "Bytes per second over all NVLinks, both ways.",
        "Bps",
        None if both_ways is None else Query(both_ways, dialect.legend),
        told(dialect.missing("gpu_nvlink_transmit_bytes_total")),
        look=Graph(minimum=0),
    )
    _lines(
        canvas,
        dialect,
        "NVLinks",
        "gpu_nvlink_links",
        "none",
        "Links by state. An inactive link halves nothing by itself: it narrows every collective.",
        label="state",
    )
    _lines(
        canvas,
        dialect,
        "NVLink errors",
        "gpu_nvlink_errors_total",
        "cps",
        "Errors per second by kind.",
        kind="rate",
        label="error",
    )
    _lines(
        canvas,
        dialect,
        "Fabric healthy",
        "gpu_fabric_healthy",
        "bool_yes_no",
        "1 when the NVSwitch fabric says that this GPU is well connected.",
        maximum=1,
    )
    _lines(canvas, dialect, "PCIe sent", "gpu_pcie_transmit_bytes_total", "Bps", "Bytes sent over PCIe.", kind="rate")
    _lines(canvas, dialect, "PCIe received", "gpu_pcie_receive_bytes_total", "Bps", "Bytes received over PCIe.", kind="rate")
    _lines(
        canvas,
        dialect,
        "PCIe replays",
        "gpu_pcie_replays_total",
        "cps",
        "Packets sent again, per second: a bad contact or a bad riser.",
        kind="rate",
    )
    for what, title in (("width", "PCIe width, share of maximum"), ("generation", "PCIe generation, share of maximum")):
        now, most = dialect.selector(f"gpu_pcie_link_{what}"), dialect.selector(f"gpu_pcie_link_max_{what}")
        expr = None if now is None or most is None else Query(_named(dialect, f"({now} / {most})"), dialect.legend)
        canvas.graph(
            title,
            f"The {what} of the link over the greatest that device and slot can do. An idle GPU may lower its generation.",
            "percentunit",
            expr,
            told(dialect.missing(f"gpu_pcie_link_{what}")),
            look=Graph(maximum=1),
        )
    _lines(
        canvas,
        dialect,
        "PCIe errors",
        "gpu_pcie_errors_total",
        "cps",
        "Errors of the link per second, by severity.",
        kind="rate",
        label="severity",
    )
