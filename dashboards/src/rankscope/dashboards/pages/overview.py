"""The page of one run: the verdict first, the evidence below."""

from __future__ import annotations

from typing import Any, cast

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.analysis.result import Analysis
from rankscope.analysis.steps import METRICS
from rankscope.dashboards.config import DashboardConfig
from rankscope.dashboards.data.source import RunSummary
from rankscope.dashboards.figures.breakdown import ALL_UP_TO, NOTABLE, PARTS
from rankscope.dashboards.figures.frame import GRAPH_CONFIG
from rankscope.dashboards.pages import wording
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.pages.pieces import legend, section, status_badges
from rankscope.dashboards.pages.rank_table import rank_grid, rank_rows
from rankscope.dashboards.pages.verdict import verdict_card
from rankscope.dashboards.url_state import OverviewState

LIVE = frozenset({"starting", "live", "silent", "failed"})
"""Statuses of runs that may still change; an elastic job that lost ranks may start its next attempt."""


def overview_page(run: RunSummary, analysis: Analysis, search: str | None, config: DashboardConfig) -> Component:
    """Everything but the figures, which are drawn for the colour scheme and the selection by a callback.

    ``search`` is the query part of the address. The page has a ``Location`` of its own: its callbacks come and go with it.
    """
    state = OverviewState.parse(search)
    return html.Div(
        [
            html.Header(run_head(run), id="run-head", className="run-page-head"),
            html.Section(
                verdict_card(run, analysis),
                id="verdict",
                className="card",
                **aria(live="polite", labelledby="verdict-sentence"),
            ),
            _steps(state, analysis),
            html.Div([_breakdown(analysis), _imposed()], className="pair"),
            _table(run, analysis),
            dcc.Location(id="address", refresh="callback-nav", search=search or ""),
            dcc.Store(id="run", data={"run_id": run.run_id, "revision": run.revision, "status": run.status}),
            dcc.Interval(id="poll", interval=int(config.poll_interval_s * 1000), disabled=run.status not in LIVE),
        ],
        className="stack",
    )


def run_head(run: RunSummary) -> list[Component]:
    """Name, status and identity of the run."""
    facts = [
        f"started {wording.moment(run.start_unix_ns)}",
        f"{run.ranks:,} of {wording.count(run.world_size, 'rank')} recorded"
        if run.world_size
        else wording.count(run.ranks, "rank"),
        *([wording.count(run.hosts, "host")] if run.hosts else []),
        *([wording.count(run.attempts, "attempt")] if run.attempts > 1 else []),
    ]
    if run.status == "silent":
        facts.append(f"nothing was written since {wording.moment(run.last_write_unix_ns)}, and no rank has said that it ended")
    return [
        html.Div([html.Span(run.name, className="run-name"), *status_badges(run)], className="run-head"),
        html.Div([html.Span(" · ".join(facts)), html.Code(run.path, className="path", title=run.path)], className="run-facts"),
    ]


def _graph(identifier: str, label: str) -> Component:
    return html.Div(
        dcc.Graph(
            id=identifier,
            config=cast("Any", GRAPH_CONFIG),
            figure={"layout": {"height": 240, "xaxis": {"visible": False}, "yaxis": {"visible": False}}},
        ),
        className="graph",
        role="img",
        **aria(label=label),
    )


def _steps(state: OverviewState, analysis: Analysis) -> Component:
    return section(
        "steps",
        "Every rank, every step",
        "A slow rank is a line, a slow moment a column. Own time is wall time minus time blocked on other ranks: "
        "walls look alike, own times do not. Grey: no record. Click a row to pick its rank.",
        [_graph("step-heatmap", "Heat map of the chosen metric by rank and step; the table below has the medians")],
        tools=[
            dmc.Select(
                id="metric",
                label="Metric",
                data=metric_options(),
                value=state.metric if state.metric in METRICS else None,
                allowDeselect=False,
                size="xs",
                w=190,
                comboboxProps={"withinPortal": True},
            ),
            dmc.Select(
                id="rank-pick",
                label="Picked rank",
                data=rank_options(analysis),
                value=None if state.rank is None else str(state.rank),
                placeholder="none",
                searchable=True,
                clearable=True,
                limit=100,
                nothingFoundMessage="no such rank",
                size="xs",
                w=130,
            ),
        ],
    )


def rank_options(analysis: Analysis) -> list[dict[str, str]]:
    """Choices of the picked rank."""
    return [{"value": str(rank.rank), "label": f"rank {rank.rank}"} for rank in analysis.ranks]


def metric_options() -> list[dict[str, Any]]:
    """Choices of the heat map's metric."""
    return [{"value": name, "label": metric.label[:1].upper() + metric.label[1:]} for name, metric in METRICS.items()]


def _breakdown(analysis: Analysis) -> Component:
    some = f" Shown: the mean and the {NOTABLE} ranks that differ most from it." if len(analysis.ranks) > ALL_UP_TO else ""
    return section(
        "breakdown",
        "Where the time went",
        "The parts of each bar sum to its profiled steps. Exposed communication on all ranks but one "
        "means that they wait for that one; on all alike, that the network is slow." + some,
        [
            legend([(part.key, part.label) for part in PARTS]),
            _graph(
                "breakdown-bars", "Stacked bars of compute, overlap, exposed communication, exposed copies and idle time per rank"
            ),
        ],
    )


def _imposed() -> Component:
    return section(
        "imposed",
        "Who made others wait",
        "Wait that each rank imposed, summed over the ranks that waited. What compute did not hide cost time: "
        "fix the longest bar first.",
        [
            legend([("exposed_communication", "Cost time"), ("overlap", "Hidden by compute")]),
            _graph("imposed-bars", "Bars of the wait each rank imposed on the others"),
        ],
    )


def _table(run: RunSummary, analysis: Analysis) -> Component:
    return section(
        "table",
        "All ranks",
        "Own, blocked and wall: median per step. The others: sums over the profiled steps. A dash means not known.",
        [rank_grid(rank_rows(analysis), file_name=f"rankscope-{run.run_id}")],
        tools=[dmc.Button("Save as CSV", id="save-csv", size="compact-sm", variant="default")],
    )
