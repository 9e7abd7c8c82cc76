"""Availability of the exporters, shown on every board in both dialects."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import SCOPE, gone
from rankscope.dashboards.grafana.boards.kinds import Graph, Query, told
from rankscope.dashboards.grafana.boards.marks import ANY_IS_BAD, none_is_zero

NO_ANSWER: Final = told(f"NaN * {gone()}")
"""Query for a graph's legend: the exporters that do not answer and so have no lines."""


def hosts_answering(canvas: Canvas) -> None:
    """Add the numbers of hosts that answer and that do not."""
    canvas.figure("Hosts", "Hosts whose exporter answers Prometheus.", "none", f"count(group by (instance) (up{{{SCOPE}}} == 1))")
    canvas.figure(
        "Hosts not answering",
        "Exporters that Prometheus cannot reach. What is not collected is missing, not healthy.",
        "none",
        none_is_zero(f"count(group by (instance) (up{{{SCOPE}}} == 0))", f"up{{{SCOPE}}}"),
        thresholds=ANY_IS_BAD,
    )


def answers_over_time(canvas: Canvas) -> None:
    """Add the availability of each exporter over time."""
    canvas.graph(
        "Exporter answers",
        "1 when Prometheus reached the exporter, 0 when not: then nothing is known.",
        "bool_yes_no",
        Query(f"up{{{SCOPE}}}", "{{instance}}"),
        NO_ANSWER,
        look=Graph(maximum=1),
    )
