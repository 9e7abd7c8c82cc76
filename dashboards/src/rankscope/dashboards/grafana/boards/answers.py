"""Whether exporters answer Prometheus: what every board says of it, in whichever names."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import SCOPE, gone
from rankscope.dashboards.grafana.boards.kinds import Graph, Query, told
from rankscope.dashboards.grafana.boards.marks import ANY_IS_BAD, none_is_zero

NO_ANSWER: Final = told(f"NaN * {gone()}")
"""In the legend of a graph: the exporters of which there can be no line."""


def hosts_answering(canvas: Canvas) -> None:
    """How many hosts answer, and how many do not."""
    canvas.figure("Hosts", "Hosts whose exporter answers Prometheus.", "none", f"count(group by (instance) (up{{{SCOPE}}} == 1))")
    canvas.figure(
        "Hosts not answering",
        "Exporters that Prometheus cannot reach. What is not collected is missing, not healthy.",
        "none",
        none_is_zero(f"count(group by (instance) (up{{{SCOPE}}} == 0))", f"up{{{SCOPE}}}"),
        thresholds=ANY_IS_BAD,
    )


def answers_over_time(canvas: Canvas) -> None:
    """When each exporter answered."""
    canvas.graph(
        "Exporter answers",
        "1 when Prometheus reached the exporter, 0 when not: then nothing is known.",
        "bool_yes_no",
        Query(f"up{{{SCOPE}}}", "{{instance}}"),
        NO_ANSWER,
        look=Graph(maximum=1),
    )
