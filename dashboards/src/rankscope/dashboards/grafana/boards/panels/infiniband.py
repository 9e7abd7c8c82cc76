"""InfiniBand metrics of node_exporter, which has its own job and instance, so they are joined by host name."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.kinds import Query, placeholder
from rankscope.dashboards.grafana.boards.panels.promql import RANGE, RATE, SCOPE, hosts_without, no_rules, targets_down

HOSTS: Final = f"group by (host) (gpu_info{{{SCOPE}}})"
"""Hosts of the chosen exporters; node_exporter is queried only for these."""
LEGEND: Final = "{{host}} {{device}}/{{port}}"
ACTIVE: Final = 4
"""``state_id`` of an active port."""
LINK_EVENTS: Final = {"link_downed": "went down", "link_error_recovery": "recovered by itself"}
ERRORS: Final = {
    "symbol_error": "symbol errors",
    "port_errors_received": "damaged packets received",
    "port_discards_transmitted": "packets thrown away",
}


def of_hosts(expr: str, by: str = "device, port") -> str:
    """Return node_exporter's series of the chosen hosts, each set of labels ``by`` once even if several jobs scrape it."""
    chosen = f"(instance:node_uname_info:host and on (host) {HOSTS})"
    return f"max by (host, {by}) (\n  ({expr})\n  * on (instance) group_left (host) {chosen}\n)"


def links_lost() -> str:
    """Return the number of link failures in the shown time, by chosen host."""
    return f"sum by (host) (round({of_hosts(f'increase(node_infiniband_link_downed_total[{RANGE}])')}))"


def infiniband(canvas: Canvas) -> None:
    """Add traffic, links and errors of each port; the legends name hosts without such series."""
    of = "From node_exporter (collector infiniband), not from the exporter of GPUs."

    def lines(expr: str, words: str = "") -> Query:
        return Query(of_hosts(expr), f"{LEGEND} {words}".rstrip())

    def data(metric: str) -> list[Query | None]:
        return [lines(f"rate(node_infiniband_port_data_{metric}_bytes_total[{RATE}])")]

    # Foreign metrics are queried for all hosts before the join, which is slow: so only if the row is opened.
    canvas.row("InfiniBand (node_exporter)", collapsed=True)
    canvas.graphs(
        placeholder(_absent()),
        ("InfiniBand sent", "Bps", data("transmitted"), {}, f"Bytes that each port has sent. {of}"),
        ("InfiniBand received", "Bps", data("received"), {}, f"Bytes that each port has received. {of}"),
        ("InfiniBand rate of the link", "Bps", [lines("node_infiniband_rate_bytes_per_second")], {},
         f"What the link has settled on: a port that is slower than its like slows every collective that goes over it. {of}"),
        ("InfiniBand link up", "bool_yes_no", [lines(f"node_infiniband_state_id == bool {ACTIVE}")], {"maximum": 1},
         f"1 while the port is active; a port that nothing is plugged into is down for good. {of}"),
        ("InfiniBand links lost", "none",
         [lines(f"increase(node_infiniband_{name}_total[{RANGE}])", words) for name, words in LINK_EVENTS.items()], {},
         f"How often links went down, and how often they recovered from errors, in the time up to each moment. {of}"),
        ("InfiniBand errors", "cps",
         [lines(f"rate(node_infiniband_{name}_total[{RATE}])", words) for name, words in ERRORS.items()], {},
         f"Errors of each port per second: a cable, a transceiver or a port going bad, or a congested network. {of}"),
    )  # fmt: skip


def _absent() -> str:
    unknown = f"{HOSTS} unless on (host) ({of_hosts('node_infiniband_state_id')})"
    named = hosts_without(unknown, "not available (no InfiniBand of node_exporter)")
    return f"NaN * (\n  {named}\nor\n  {targets_down()}\nor\n  {no_rules()}\n)"
