"""The board of one host: everything about each of its GPUs, and how well that is known."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import NATIVE, SCOPE, Dialect, gone, named, state
from rankscope.dashboards.grafana.boards.frame import frame, gpu_variable, places, run_board, run_page
from rankscope.dashboards.grafana.boards.kinds import Column, Graph, Query, Thresholds
from rankscope.dashboards.grafana.boards.marks import (
    ALL_IS_GOOD,
    ANY_IS_BAD,
    DEGREES_LEFT,
    SHARE_OF_LIMIT,
    STATE_WORDS,
    STATES,
    none_is_zero,
    or_not_available,
)
from rankscope.dashboards.grafana.boards.node_trouble import collection, errors, off_by_default

UID: Final = "rankscope-node"


def node(dialect: Dialect) -> Canvas:
    """The board in one of the two dialects; what a dialect has no name for is left out."""
    native = dialect.name == "native"
    about = (
        "Everything about the GPUs of a host: state, activity, memory, heat, power, links, errors, and how well that is known."
    )
    alerts = ', instance=~"$instance"'
    canvas = Canvas(
        frame(UID, "Node and GPU" if native else "Node and GPU (DCGM)", about, dialect=dialect, alerts=alerts, since="now-3h")
    )
    series = "gpu_info" if native else "DCGM_FI_DEV_GPU_TEMP"
    for variable in [*places(series, all_instances=False), gpu_variable(dialect)]:
        canvas.board.with_variable(variable)
    if native:
        _now(canvas)
    else:
        canvas.left_out += ["Now", "State of each GPU", "Who holds the GPUs", "Ranks of this host"]
    _work(canvas, dialect)
    _memory(canvas, dialect)
    _heat(canvas, dialect)
    _power(canvas, dialect)
    _links(canvas, dialect)
    errors(canvas, dialect)
    off_by_default(canvas, dialect)
    collection(canvas, dialect)
    return canvas


def _lines(
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
    """A line for each GPU; ``label`` is a label of the metric that the legend shows, too."""
    expr = getattr(dialect, kind)(metric, **(among or {}))
    legend = dialect.legend + (f" {{{{{label}}}}}" if label else "")
    look = Graph(maximum=maximum, minimum=minimum, thresholds=thresholds)
    state_of_it = Query(dialect.missing(metric), "{{of}}: {{why}}")
    canvas.graph(title, description, unit, None if expr is None else Query(expr, legend), limit, state_of_it, look=look)


def _now(canvas: Canvas) -> None:
    up = f'gpu_up{{{SCOPE}, uuid=~"$gpu"}}'
    canvas.row("Now")
    canvas.figure(
        "GPUs answering",
        "GPUs that the driver can read.",
        "none",
        none_is_zero(f"count(group by (uuid) ({up} == 1))", up),
        thresholds=ALL_IS_GOOD,
    )
    canvas.figure(
        "GPUs not answering",
        "Lost, hung, missing or given back; the table below says which and why.",
        "none",
        none_is_zero(f"count(group by (uuid) ({up} == 0))", up),
        thresholds=ANY_IS_BAD,
    )
    canvas.figure(
        "Least margin to slowdown",
        "Degrees that the hottest GPU has left until it slows down by its own limit.",
        "celsius",
        or_not_available(f"min({NATIVE.selector('gpu_temperature_margin_celsius')})", NATIVE.alive),
        thresholds=DEGREES_LEFT,
    )
    canvas.figure(
        "Power",
        "What the GPUs draw together now.",
        "watt",
        or_not_available(f"sum(max by (uuid) ({NATIVE.selector('gpu_power_watts')}))", NATIVE.alive),
    )
    canvas.figure(
        "Oldest sample",
        "Age of the oldest values of a GPU on the page; a GPU without fresh ones does not answer.",
        "s",
        or_not_available(f"max({NATIVE.selector('gpu_sample_age_seconds')})", NATIVE.alive),
        thresholds=((None, "green"), (10, "orange"), (60, "red")),
    )
    canvas.figure(
        "Recovery asked for",
        "GPUs for which the driver asks for a reset, a reboot or a drain.",
        "none",
        or_not_available(
            none_is_zero(
                f"count({NATIVE.selector('gpu_recovery_action', action='!none')} == 1)",
                f"{NATIVE.selector('gpu_recovery_action')}",
            ),
            NATIVE.alive,
        ),
        thresholds=ANY_IS_BAD,
    )
    codes = "\nor\n".join(f"{number} * {state(name)}" for name, (number, _, _) in STATES.items())
    canvas.timeline(
        "State of each GPU",
        "What recording rules say each GPU is doing; unknown where it cannot be told.",
        STATE_WORDS,
        Query(f"max by (host, index, uuid) (\n{codes}\n)", NATIVE.legend),
        Query(f"NaN * {gone()}", "{{of}}: {{why}}"),
        width=16,
    )
    canvas.sheet(
        "GPUs that do not answer",
        "Why the driver cannot read a GPU, and since when.",
        [
            Column(source="index", title="GPU"),
            Column(source="reason", title="Why"),
            Column(source="Value", title="Since", unit="dateTimeAsIso"),
            Column(source="uuid", title="UUID"),
        ],
        f"max by (host, index, uuid, reason) (1000 * {NATIVE.value('gpu_down_since_timestamp_seconds')}"
        f"\n* on (job, instance, uuid) group_left (reason) gpu_down_info{{{SCOPE}}})",
        width=8,
    )
    canvas.sheet(
        "Who holds the GPUs",
        "As Slurm, the kubelet, the process table and the ranks tell.",
        [
            Column(source="host", title="Host"),
            Column(source="index", title="GPU"),
            *(Column(source=name, title=title) for name, title in JOB_COLUMNS.items()),
            Column(source="run_id", title="Run", links=(("Training run", run_board()), ("Evidence", run_page()))),
            Column(source="rank", title="Rank", links=(("Evidence", run_page(rank="${__data.fields.rank:percentencode}")),)),
        ],
        f"max by (host, index, uuid, {', '.join(JOB_COLUMNS)}, run_id, rank) ({NATIVE.value('gpu_job_info')})",
        width=12,
    )
    ranks = f"max by (run, run_id, rank, local_rank, host, gpu_uuid, simulated) (rank_info{{{SCOPE}}})"
    canvas.sheet(
        "Ranks of this host",
        "Ranks whose recorder writes into the spool folder of this host.",
        [
            Column(source="run", title="Name"),
            Column(source="run_id", title="Run", links=(("Training run", run_board()), ("Evidence", run_page()))),
            Column(source="rank", title="Rank", links=(("Evidence", run_page(rank="${__data.fields.rank:percentencode}")),)),
            Column(source="local_rank", title="Local rank"),
            Column(source="gpu_uuid", title="GPU"),
            Column(source="simulated", title="Simulated"),
        ],
        ranks,
        width=12,
    )


JOB_COLUMNS: Final = {"job_id": "Job", "user": "User", "account": "Account", "namespace_k8s": "Namespace", "pod_k8s": "Pod"}


def _work(canvas: Canvas, dialect: Dialect) -> None:
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
    clocks = dialect.value("gpu_clock_max_hertz", clock="sm")
    _lines(
        canvas,
        dialect,
        "SM clock",
        "gpu_clock_hertz",
        "hertz",
        "Clock of the SMs; dashed: the highest the device itself allows.",
        among={"clock": "sm"},
        limit=None if clocks is None else Query(clocks, dialect.legend + " limit", dashed=True),
    )
    _lines(canvas, dialect, "Memory clock", "gpu_clock_hertz", "hertz", "Clock of the memory.", among={"clock": "memory"})


def _memory(canvas: Canvas, dialect: Dialect) -> None:
    canvas.row("Memory")
    total = dialect.value("gpu_memory_total_bytes")
    _lines(
        canvas,
        dialect,
        "Memory in use",
        "gpu_memory_used_bytes",
        "bytes",
        "Memory that processes have allocated; dashed: all there is.",
        limit=None if total is None else Query(total, dialect.legend + " total", dashed=True),
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


def _heat(canvas: Canvas, dialect: Dialect) -> None:
    canvas.row("Heat")
    slowdown = dialect.value("gpu_temperature_limit_celsius", limit="slowdown")
    _lines(
        canvas,
        dialect,
        "Temperature",
        "gpu_temperature_celsius",
        "celsius",
        "Of the die; dashed: where the device itself slows down.",
        limit=None if slowdown is None else Query(slowdown, dialect.legend + " slows down", dashed=True),
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


def _power(canvas: Canvas, dialect: Dialect) -> None:
    canvas.row("Power")
    limit = dialect.value("gpu_power_limit_watts")
    _lines(
        canvas,
        dialect,
        "Power",
        "gpu_power_watts",
        "watt",
        "What each GPU draws; dashed: its own power limit.",
        limit=None if limit is None else Query(limit, dialect.legend + " limit", dashed=True),
    )
    watts, most = dialect.selector("gpu_power_watts"), dialect.selector("gpu_power_limit_watts")
    share = None if watts is None or most is None else Query(_named(dialect, f"({watts} / {most})"), dialect.legend)
    canvas.graph(
        "Share of the power limit",
        "Power over the device's own limit; what stays at 1 is held back by it.",
        "percentunit",
        share,
        Query(dialect.missing("gpu_power_limit_watts"), "{{of}}: {{why}}"),
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


def _links(canvas: Canvas, dialect: Dialect) -> None:
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
    _lines(
        canvas, dialect, "NVLink both ways", "gpu_nvlink_bytes_per_second", "Bps", "Bytes per second over all NVLinks, both ways."
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
    _lines(canvas, dialect, "PCIe sent", "gpu_pcie_transmit_bytes_per_second", "Bps", "Bytes sent over PCIe.")
    _lines(canvas, dialect, "PCIe received", "gpu_pcie_receive_bytes_per_second", "Bps", "Bytes received over PCIe.")
    _lines(
        canvas,
        dialect,
        "PCIe replays",
        "gpu_pcie_replays_total",
        "cps",
        "Packets sent again, per second: a bad contact or a bad riser.",
        kind="rate",
    )
    for what, title in (("width", "PCIe width of its greatest"), ("generation", "PCIe generation of its greatest")):
        now, most = dialect.selector(f"gpu_pcie_link_{what}"), dialect.selector(f"gpu_pcie_link_{what}_max")
        expr = None if now is None or most is None else Query(_named(dialect, f"({now} / {most})"), dialect.legend)
        canvas.graph(
            title,
            f"The {what} of the link over the greatest that device and slot can do. An idle GPU may lower its generation.",
            "percentunit",
            expr,
            Query(dialect.missing(f"gpu_pcie_link_{what}"), "{{of}}: {{why}}"),
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
