"""Availability of the exporters, shown on every board in both dialects."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import RULES, SCOPE, gone, no_rules
from rankscope.dashboards.grafana.boards.kinds import Graph, Query, told
from rankscope.dashboards.grafana.boards.marks import ANY_IS_BAD, BAD, GOOD, none_is_zero, words

NO_ANSWER: Final = told(f"NaN * {gone()}")
"""Query for a graph's legend: the exporters that do not answer and so have no lines."""
NO_RULES: Final = told(f"NaN * {no_rules()}")
NO_ANSWER_OR_RULES: Final = told(f"NaN * ({gone()}\nor\n{no_rules()})")
"""``NO_ANSWER`` for graphs of recorded series, which are empty without the rules as well."""


def rules_loaded(canvas: Canvas) -> None:
    """Add whether the recording rules are evaluated."""
    canvas.figure(
        "Recording rules",
        "Whether this Prometheus evaluates the rules of `rankscope alerts rules export`. Without them, many panels stay empty.",
        "none",
        f"max({RULES})\nor on ()\nvector(0)",
        words=words({0: ("not loaded", BAD), 1: ("loaded", GOOD)}),
        width=3,
    )


def hosts_answering(canvas: Canvas) -> None:
    """Add the numbers of hosts that answer and that do not."""
    canvas.figure(
        "Hosts", "Hosts whose exporter answers Prometheus.", "none", f"count(group by (instance) (up{{{SCOPE}}} == 1))", width=2
    )
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
