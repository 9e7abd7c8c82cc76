"""InfiniBand metrics of node_exporter, which has its own job and instance, so they are joined by host name."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import RANGE, RATE, SCOPE, gone, no_rules
from rankscope.dashboards.grafana.boards.kinds import Graph, Query, told

HOSTS: Final = f"group by (host) (gpu_info{{{SCOPE}}})"
"""Hosts of the chosen exporters; node_exporter is queried only for these."""
LEGEND: Final = "{{host}} {{device}}/{{port}}"
ACTIVE: Final = 4
"""``state_id`` of an active port."""
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
    """Return series of ports of the chosen hosts, each port once even if several jobs scrape it."""
    chosen = f"(instance:node_uname_info:host and on (host) {HOSTS})"
    return f"max by (host, device, port) (\n  ({expr})\n  * on (instance) group_left (host) {chosen}\n)"


def links_lost() -> str:
    """Return the number of link failures in the shown time, by chosen host."""
    return f"sum by (host) (round({of_hosts(f'increase(node_infiniband_link_downed_total[{RANGE}])')}))"


def infiniband(canvas: Canvas) -> None:
    """Add traffic, links and errors of each port; the legends name hosts without such series."""
    absent = told(_absent())
    # Foreign metrics are queried for all hosts before the join, which is slow: so only if the row is opened.
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
    return f"NaN * (\n  {named}\nor\n  {gone()}\nor\n  {no_rules()}\n)"
