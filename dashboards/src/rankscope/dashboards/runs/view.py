"""Page with the list of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component

from rankscope.dashboards.data.source import RunSource, RunSummary
from rankscope.dashboards.many_state import MOST_COMPARED, ListState, compare_path
from rankscope.dashboards.pages.listing import listing_grid, listing_tools
from rankscope.dashboards.pages.pieces import advice
from rankscope.dashboards.runs.rows import COLUMNS, first_row
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording

LOOK_MS: Final = 1000
"""Interval in ms at which the browser looks for visible rows with a missing or changing verdict. It requests only these."""


def runs_page(source: RunSource, search: str | None, config: DashboardConfig) -> Component:
    """Return the list of runs, which polls for new ones. Raises ``RankscopeError``."""
    runs = source.runs()
    return html.Div(
        [
            html.H1("Runs", className="page-title"),
            html.Div(_empty(), id="runs-empty", hidden=bool(runs)),
            html.Div(_list(source, runs, ListState.parse(search)), id="runs-list", className="card", hidden=not runs),
            dcc.Location(id="list-address", refresh="callback-nav", search=search or ""),
            dcc.Store(id="run-list-revision", data=list_revision(runs)),
            dcc.Store(id="runs-asked"),
            dcc.Store(id="runs-answer"),
            dcc.Interval(id="runs-look", interval=LOOK_MS),
            dcc.Interval(id="run-list-poll", interval=int(config.poll_interval_s * 1000)),
        ],
        className="stack wide",
    )


def list_revision(runs: Sequence[RunSummary]) -> str:
    """Return a hash that changes when rows are added, removed or changed.

    Runs that go on count by id and status only, because their rows are requested separately.
    """
    told = [(run.run_id, run.status, None if run.status in wording.GOING_ON else run.revision) for run in runs]
    return hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def list_rows(source: RunSource, runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return a row per run, in the given order."""
    return [first_row(source, run) for run in runs]


def counted(runs: Sequence[RunSummary]) -> str:
    """Return the number of runs, and of live ones, in words."""
    live = sum(run.status == "live" for run in runs)
    return wording.count(len(runs), "run") + (f", {live:,} live" if live else "")


def _list(source: RunSource, runs: Sequence[RunSummary], state: ListState) -> list[Component]:
    return [
        listing_tools("runs", counted(runs), state, [html.Div(compare_link(state.picked), id="runs-compare")]),
        listing_grid(
            "runs",
            COLUMNS,
            list_rows(source, runs),
            state,
            height="max(320px, calc(100dvh - 220px))",
            rowSelection={
                "mode": "multiRow",
                "headerCheckbox": False,
                "isRowSelectable": {"function": "params.data != null && !params.data.problem"},
            },
            selectionColumnDef={"pinned": "left", "width": 46},
        ),
    ]


def compare_link(run_ids: Sequence[str]) -> Component:
    """Return the link to the comparison of the selected runs, or a hint if their number does not allow one."""
    if 2 <= len(run_ids) <= MOST_COMPARED:
        return dcc.Link(f"Compare {len(run_ids)} runs", href=compare_path(run_ids), className="button compact")
    too_many = len(run_ids) > MOST_COMPARED
    return html.Span(
        f"At most {MOST_COMPARED} runs can be compared" if too_many else "Select two runs to compare", className="help"
    )


def _empty() -> Component:
    return html.Section(
        [
            html.H2("No run here yet"),
            html.P("Record a training job; it needs no change to its code. The run appears here by itself.", className="help"),
            advice("rankscope run -- torchrun --nproc-per-node 8 train.py"),
        ],
        className="card empty",
    )
