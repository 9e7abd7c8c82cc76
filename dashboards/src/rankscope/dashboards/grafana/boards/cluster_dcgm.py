"""The board of the cluster, from the metrics of dcgm-exporter."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.answers import hosts_answering, rules_loaded
from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.cluster import UID
from rankscope.dashboards.grafana.boards.columns import line_to_node, to_node
from rankscope.dashboards.grafana.boards.dialect import DCGM, SCOPE, gone, no_rules
from rankscope.dashboards.grafana.boards.frame import frame, gpu_variable, places
from rankscope.dashboards.grafana.boards.kinds import Column, Graph, Query, told
from rankscope.dashboards.grafana.boards.marks import ANY_IS_A_WARNING, none_is_zero, or_not_available

LEFT_OUT_OF_DCGM: Final = [
    "GPUs not answering",
    "GPUs missing",
    "Least margin to slowdown",
    "GPUs throttled",
    "Allocated, idle",
    "Cost of idle GPUs",
    "Jobs on GPUs",
    "GPUs by state",
    "Share of GPU time",
    "Collectors that fail",
    "Collectors failing",
    "Simulated GPUs",
]
"""Panels that DCGM's metrics do not cover, or not unambiguously."""


def cluster_dcgm() -> Canvas:
    """Build the board from the metrics of dcgm-exporter."""
    about = "Hosts and GPUs of a cluster, over dcgm-exporter or `rankscope exporter --compat dcgm`."
    canvas = Canvas(frame(UID, "Cluster (DCGM)", about, dialect=DCGM, alerts=', instance=~"$instance|"'), figure_width=3)
    for variable in [*places("DCGM_FI_DEV_GPU_TEMP"), gpu_variable(DCGM)]:
        canvas.board.with_variable(variable)
    power, used, free = (DCGM.value(f"gpu_{name}") for name in ("power_watts", "memory_used_bytes", "memory_free_bytes"))
    busy, heat, energy = (
        DCGM.value("gpu_utilization_ratio"),
        DCGM.value("gpu_temperature_celsius"),
        DCGM.increase("gpu_energy_joules_total"),
    )
    full = f"sum by (UUID) ({used}) / (sum by (UUID) ({used}) + sum by (UUID) ({free}))"
    host = "instance, Hostname, hostname"
    silent = told(f"NaN * ({gone()}\nor\n{no_rules()})")
    canvas.left_out += LEFT_OUT_OF_DCGM
    canvas.row("Now")
    rules_loaded(canvas)
    hosts_answering(canvas)
    canvas.figure("GPUs", "GPUs that give a temperature.", "none", f"count(group by (UUID) ({heat}))", width=2)
    canvas.figure(
        "Power",
        "What all GPUs draw together now; each GPU once.",
        "watt",
        or_not_available(f"sum(max by (UUID) ({power}))", DCGM.alive),
    )
    canvas.figure(
        "Hottest GPU",
        "The highest temperature now. DCGM's default set has no limit to compare it with.",
        "celsius",
        or_not_available(f"max({heat})", DCGM.alive),
        width=2,
    )
    canvas.figure(
        "Energy in this time",
        "What all GPUs took over the time shown, each GPU once.",
        "kwatth",
        or_not_available(f"sum(max by (UUID) ({energy})) / 3.6e6", DCGM.alive),
        decimals=3,
    )
    canvas.figure(
        "GPUs with a last Xid",
        "GPUs whose last Xid is not 0. DCGM never takes it back: it may be old.",
        "none",
        or_not_available(
            none_is_zero(
                f"count(group by (UUID) ({DCGM.selector('gpu_xid_last_code')} > 0))", f"{DCGM.selector('gpu_xid_last_code')}"
            ),
            DCGM.alive,
        ),
        thresholds=ANY_IS_A_WARNING,
    )
    canvas.figure(
        "Full and idle",
        "GPUs with more than a tenth of the memory in use and no kernel running now: they may be held and idle.",
        "none",
        or_not_available(
            none_is_zero(
                f"count({full} > 0.1 and on (UUID) max by (UUID) ({busy}) == 0)",
                f"{busy}",
            ),
            DCGM.alive,
        ),
        thresholds=ANY_IS_A_WARNING,
    )
    canvas.row("Hosts")
    canvas.sheet(
        "Every host",
        "One row for each host that is collected.",
        [
            Column(source="Hostname", title="Host", links=to_node(DCGM)),
            Column(source="instance", title="Instance", links=to_node(DCGM)),
            Column(source="Value #A", title="GPUs"),
            Column(source="Value #B", title="Power", unit="watt"),
            Column(source="Value #C", title="Hottest", unit="celsius"),
            Column(source="Value #D", title="Memory in use", unit="bytes"),
        ],
        f"count by ({host}) (group by ({host}, UUID) ({heat}))",
        f"sum by ({host}) (max by ({host}, UUID) ({power}))",
        f"max by ({host}) ({heat})",
        f"sum by ({host}) (max by ({host}, UUID, GPU_I_ID) ({used}))",
    )
    canvas.row("Over time")
    lines = Graph(links=line_to_node(DCGM))
    for title, text, unit, recorded, look in (
        (
            "Power by host",
            "What the GPUs of each host draw; each GPU once.",
            "watt",
            "dcgm_power_watts:sum",
            Graph(stacked=True, links=line_to_node(DCGM)),
        ),
        (
            "GPUs at work by host",
            "GPUs with a kernel running at the moment of the sample.",
            "none",
            "dcgm_busy_gpus:count",
            lines,
        ),
        ("Hottest GPU by host", "The highest temperature of each host.", "celsius", "dcgm_temperature_celsius:max", lines),
        (
            "Memory in use by host",
            "Memory that processes have allocated; a GPU divided by MIG counts by its instances.",
            "bytes",
            "dcgm_memory_used_bytes:sum",
            lines,
        ),
    ):
        expr = f"max by ({host}) (instance:{recorded}{{{SCOPE}}})"
        canvas.graph(title, text, unit, Query(expr, "{{Hostname}}{{hostname}}"), silent, width=12, look=look)
    return canvas
