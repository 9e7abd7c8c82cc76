"""InfiniBand as node_exporter tells of it, under a job and an instance of its own: found by the name of the host."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import RANGE, RATE, SCOPE, gone
from rankscope.dashboards.grafana.boards.kinds import Graph, Query, told

HOSTS: Final = f"group by (host) (gpu_info{{{SCOPE}}})"
"""Of the chosen exporters: node_exporter is asked about these and no others."""
LEGEND: Final = "{{host}} {{device}}/{{port}}"
ACTIVE: Final = 4
"""``state_id`` of a port that carries data."""
LINK_EVENTS: Final = {
    "node_infiniband_link_downed_total": "went down",
    "node_infiniband_link_error_recovery_total": "recovered by itself",
}
ERRORS: Final = {
    "node_infiniband_symbol_error_total": "symbol errors",
    "node_infiniband_port_errors_received_total": "damaged packets received",
    "node_infiniband_port_discards_transmitted_total": "packets thrown away",
}
OF_NODE_EXPORTER: Final = "From node_exporter (collector infiniband), not from the exporter of GPUs."


def of_hosts(expr: str) -> str:
    """Series of ports of the chosen hosts, each port once however many jobs scrape it."""
    chosen = f"(instance:node_uname_info:host and on (host) {HOSTS})"
    return f"max by (host, device, port) (\n  ({expr})\n  * on (instance) group_left (host) {chosen}\n)"


def links_lost() -> str:
    """How often links went down in the time shown, by chosen host."""
    return f"sum by (host) (round({of_hosts(f'increase(node_infiniband_link_downed_total[{RANGE}])')}))"


def infiniband(canvas: Canvas) -> None:
    """Traffic, links and errors of each port; of hosts without such series the legends say so."""
    absent = told(_absent())
    # What has no name of ours is asked of all hosts before it is known whose it is: only when somebody wants to see it.
    canvas.row("InfiniBand (node_exporter)", collapsed=True)
    for way, metric in (("sent", "transmitted"), ("received", "received")):
        canvas.graph(
            f"InfiniBand {way}",
            f"Bytes that each port has {way}. {OF_NODE_EXPORTER}",
            "Bps",
            Query(of_hosts(f"rate(node_infiniband_port_data_{metric}_bytes_total[{RATE}])"), LEGEND),
            absent,
        )
    canvas.graph(
        "InfiniBand rate of the link",
        "What the link has settled on: a port that is slower than its like slows every collective that goes over it. "
        + OF_NODE_EXPORTER,
        "Bps",
        Query(of_hosts("node_infiniband_rate_bytes_per_second"), LEGEND),
        absent,
    )
    canvas.graph(
        "InfiniBand link up",
        f"1 while the port is active; a port that nothing is plugged into is down for good. {OF_NODE_EXPORTER}",
        "bool_yes_no",
        Query(of_hosts(f"node_infiniband_state_id == bool {ACTIVE}"), LEGEND),
        absent,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "InfiniBand links lost",
        f"How often links went down, and how often they recovered from errors, in the time up to each moment. {OF_NODE_EXPORTER}",
        "none",
        *(Query(of_hosts(f"increase({metric}[{RANGE}])"), f"{LEGEND} {words}") for metric, words in LINK_EVENTS.items()),
        absent,
    )
    canvas.graph(
        "InfiniBand errors",
        f"Errors of each port per second: a cable, a transceiver or a port going bad, or a congested network. {OF_NODE_EXPORTER}",
        "cps",
        *(Query(of_hosts(f"rate({metric}[{RATE}])"), f"{LEGEND} {words}") for metric, words in ERRORS.items()),
        absent,
    )


def _absent() -> str:
    why = "not available (no InfiniBand of node_exporter)"
    unknown = f"{HOSTS} unless on (host) ({of_hosts('node_infiniband_state_id')})"
    named = f'label_replace(label_replace({unknown}, "of", "$1", "host", "(.*)"), "why", "{why}", "", "")'
    return f"NaN * (\n  {named}\nor\n  {gone()}\n)"
