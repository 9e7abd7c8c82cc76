"""The board of the cluster, from the metrics of dcgm-exporter."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.answers import HOSTS, NO_ANSWER_OR_RULES
from rankscope.dashboards.grafana.boards.canvas import Canvas, FigureRow
from rankscope.dashboards.grafana.boards.cluster import UID
from rankscope.dashboards.grafana.boards.columns import line_to_node, to_node
from rankscope.dashboards.grafana.boards.dialect import DCGM, SCOPE
from rankscope.dashboards.grafana.boards.frame import frame, gpu_variable, places
from rankscope.dashboards.grafana.boards.kinds import Column, Query
from rankscope.dashboards.grafana.boards.marks import ANY_IS_A_WARNING, none_is_zero, or_not_available

LEFT_OUT_OF_DCGM: Final = [
    *("GPUs not answering", "GPUs missing", "Least margin to slowdown", "GPUs throttled", "Allocated, idle", "Cost of idle GPUs"),
    *("Jobs on GPUs", "GPUs by state", "Share of GPU time", "Collectors that fail", "Collectors failing", "Simulated GPUs"),
]
"""Panels that DCGM's metrics do not cover, or not unambiguously."""
_HOST: Final = "instance, Hostname, hostname"
_POWER, _USED, _FREE = (DCGM.value(f"gpu_{name}") for name in ("power_watts", "memory_used_bytes", "memory_free_bytes"))
_BUSY, _HEAT = DCGM.value("gpu_utilization_ratio"), DCGM.value("gpu_temperature_celsius")
_ENERGY, _XID = DCGM.increase("gpu_energy_joules_total"), DCGM.selector("gpu_xid_last_code")
_FULL: Final = f"sum by (UUID) ({_USED}) / (sum by (UUID) ({_USED}) + sum by (UUID) ({_FREE}))"


def _available(expr: str) -> str:
    return or_not_available(expr, DCGM.alive)


_NOW: Final[tuple[FigureRow, ...]] = (
    *HOSTS,
    ("GPUs", "none", f"count(group by (UUID) ({_HEAT}))", {"width": 2}, "GPUs that give a temperature."),
    ("Power", "watt", _available(f"sum(max by (UUID) ({_POWER}))"), {}, "What all GPUs draw together now; each GPU once."),
    ("Hottest GPU", "celsius", _available(f"max({_HEAT})"), {"width": 2},
     "The highest temperature now. DCGM's default set has no limit to compare it with."),
    ("Energy in this time", "kwatth", _available(f"sum(max by (UUID) ({_ENERGY})) / 3.6e6"), {"decimals": 3},
     "What all GPUs took over the time shown, each GPU once."),
    ("GPUs with a last Xid", "none", _available(none_is_zero(f"count(group by (UUID) ({_XID} > 0))", f"{_XID}")),
     {"thresholds": ANY_IS_A_WARNING}, "GPUs whose last Xid is not 0. DCGM never takes it back: it may be old."),
    ("Full and idle", "none",
     _available(none_is_zero(f"count({_FULL} > 0.1 and on (UUID) max by (UUID) ({_BUSY}) == 0)", f"{_BUSY}")),
     {"thresholds": ANY_IS_A_WARNING},
     "GPUs with more than a tenth of the memory in use and no kernel running now: they may be held and idle."),
)  # fmt: skip
_OVER_TIME: Final = (
    ("Power by host", "watt", "power_watts:sum", True, "What the GPUs of each host draw; each GPU once."),
    ("GPUs at work by host", "none", "busy_gpus:count", False, "GPUs with a kernel running at the moment of the sample."),
    ("Hottest GPU by host", "celsius", "temperature_celsius:max", False, "The highest temperature of each host."),
    ("Memory in use by host", "bytes", "memory_used_bytes:sum", False,
     "Memory that processes have allocated; a GPU divided by MIG counts by its instances."),
)  # fmt: skip
"""Title, unit, recorded series, whether the hosts are stacked, description."""


def cluster_dcgm() -> Canvas:
    """Build the board from the metrics of dcgm-exporter."""
    about = "Hosts and GPUs of a cluster, over dcgm-exporter or `rankscope exporter --compat dcgm`."
    canvas = frame(UID, "Cluster (DCGM)", about, *places("DCGM_FI_DEV_GPU_TEMP"), gpu_variable(DCGM), dialect=DCGM)
    canvas.figure_width = 3
    canvas.left_out += LEFT_OUT_OF_DCGM
    canvas.row("Now")
    canvas.figures(*_NOW)
    canvas.row("Hosts")
    canvas.sheet(
        "Every host",
        "One row for each host that is collected.",
        [
            Column("Hostname", "Host", links=to_node(DCGM)),
            Column("instance", "Instance", links=to_node(DCGM)),
            Column(f"count by ({_HOST}) (group by ({_HOST}, UUID) ({_HEAT}))", "GPUs"),
            Column(f"sum by ({_HOST}) (max by ({_HOST}, UUID) ({_POWER}))", "Power", "watt"),
            Column(f"max by ({_HOST}) ({_HEAT})", "Hottest", "celsius"),
            Column(f"sum by ({_HOST}) (max by ({_HOST}, UUID, GPU_I_ID) ({_USED}))", "Memory in use", "bytes"),
        ],
    )
    canvas.row("Over time")
    for title, unit, recorded, stacked, text in _OVER_TIME:
        query = Query(f"max by ({_HOST}) (instance:dcgm_{recorded}{{{SCOPE}}})", "{{Hostname}}{{hostname}}")
        canvas.graph(title, unit, text, query, NO_ANSWER_OR_RULES, width=12, stacked=stacked, links=line_to_node(DCGM))
    return canvas
