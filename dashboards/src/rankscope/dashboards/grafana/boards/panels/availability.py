"""Availability of the exporters and of the recording rules, shown on every board."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels.canvas import Canvas, FigureRow
from rankscope.dashboards.grafana.boards.panels.kinds import Query, placeholder
from rankscope.dashboards.grafana.boards.panels.marks import ANY_IS_BAD, BAD, GOOD, none_is_zero, words
from rankscope.dashboards.grafana.boards.panels.promql import RULES, SCOPE, no_rules, targets_down

NO_ANSWER: Final = placeholder(f"NaN * {targets_down()}")
"""Query for a graph's legend: the exporters that do not answer and so have no lines."""
NO_RULES: Final = placeholder(f"NaN * {no_rules()}")
NO_ANSWER_OR_RULES: Final = placeholder(f"NaN * ({targets_down()}\nor\n{no_rules()})")
"""``NO_ANSWER`` for graphs of recorded series, which are empty without the rules as well."""
RULES_LOADED: Final[FigureRow] = (
    "Recording rules", "none", f"max({RULES})\nor on ()\nvector(0)",
    {"words": words({0: ("not loaded", BAD), 1: ("loaded", GOOD)}), "width": 3},
    "Whether this Prometheus evaluates the rules of `rankscope alerts rules export`. Without them, many panels stay empty.",
)  # fmt: skip
HOSTS: Final[tuple[FigureRow, ...]] = (
    RULES_LOADED,
    ("Hosts", "none", f"count(group by (instance) (up{{{SCOPE}}} == 1))", {"width": 2},
     "Hosts whose exporter answers Prometheus."),
    ("Hosts not answering", "none",
     none_is_zero(f"count(group by (instance) (up{{{SCOPE}}} == 0))", f"up{{{SCOPE}}}"), {"thresholds": ANY_IS_BAD},
     "Exporters that Prometheus cannot reach. What is not collected is missing, not healthy."),
)  # fmt: skip


def exporter_availability(canvas: Canvas) -> None:
    """Add the availability of each exporter over time."""
    text = "1 when Prometheus reached the exporter, 0 when not: then nothing is known."
    canvas.graph("Exporter answers", "bool_yes_no", text, Query(f"up{{{SCOPE}}}", "{{instance}}"), NO_ANSWER, maximum=1)
