"""Common layout of all pages of a run: head, links to views, content of the view, help."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.model.state import PageState, run_path
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.pages.pieces import simulated_band, status_badges
from rankscope.dashboards.views.registry import VIEWS
from rankscope.dashboards.views.view import View
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import inert, wording

LIVE = wording.GOING_ON | {"failed"}
"""Statuses of runs that may still change. A failed elastic job may start its next attempt."""


def run_page(run: RunData, view: View, search: str | None, config: DashboardConfig) -> Component:
    """Return a page of a run. It has its own ``Location``, so that its callbacks exist only while the page is shown."""
    state = PageState.parse(search)
    summary = run.summary
    version = shown(run, view)  # read before the content: if the content is newer, the next poll redraws it
    return html.Div(
        [
            html.Header(run_head(run), id="run-head", className="run-page-head"),
            html.P(stale_note(run), id="run-away", className="reason", role="status"),
            html.Nav(
                view_links(summary.run_id, view.slug, state), id="views", className="views", **aria(label="Views of the run")
            ),
            html.Div(_content(run, view, state), className="stack", id="view"),
            about(view),
            dcc.Location(id="address", refresh="callback-nav", search=search or ""),
            dcc.Store(id="run", data=version),
            dcc.Interval(id="poll", interval=int(config.poll_interval_s * 1000), disabled=summary.status not in LIVE),
        ],
        className="stack",
    )


def _content(run: RunData, view: View, state: PageState) -> list[Component]:
    """Return the view's content, or its error: other views may still work. Raises ``NotReadyError``."""
    try:
        return view.layout(run, state)
    except NotReadyError:
        raise
    except RankscopeError as error:
        return [html.Section(html.P(str(error), className="reason"), className="card", role="alert")]


def shown(run: RunData, view: View) -> dict[str, str]:
    """Return the identity of the shown content. Figures are redrawn when it changes."""
    summary = run.summary
    return {
        "run_id": summary.run_id,
        "view": view.slug,
        "version": run.source.version(summary.run_id),
        "status": summary.status,
    }


def stale_note(run: RunData) -> str:
    """Return why the shown content is outdated; ``""`` if it is not."""
    return "" if run.stale is None else wording.not_renewed(run.stale)


def run_head(run: RunData) -> list[Component]:
    """Return name, status and identity of the run, with a banner if its GPUs are simulated."""
    summary = run.summary
    facts = [
        f"started {wording.moment(summary.start_unix_ns)}",
        f"{summary.ranks:,} of {wording.count(summary.world_size, 'rank')} recorded"
        if summary.world_size
        else wording.count(summary.ranks, "rank"),
        *([wording.count(summary.hosts, "host")] if summary.hosts else []),
        *([wording.count(summary.attempts, "attempt")] if summary.attempts > 1 else []),
    ]
    if summary.status == "silent":
        facts.append(
            f"nothing was written since {wording.moment(summary.last_write_unix_ns)}, and no rank has said that it ended"
        )
    where = summary.copy_of or summary.path
    path, whole_path = inert.shown(where), inert.shown(where, inert.MAX_TEXT)
    return [
        html.Div([html.H1(summary.name, className="run-name"), *status_badges(summary)], className="run-head"),
        html.Div([html.Span(" · ".join(facts)), html.Code(path, className="path", title=whole_path)], className="run-facts"),
        *([simulated_band()] if summary.simulated else []),
    ]


def view_links(run_id: str, current: str, state: PageState) -> list[Component]:
    """Return links to the views, which keep the selection."""
    return [
        html.Span(
            dcc.Link(view.label, href=run_path(run_id, view.slug) + state.search, className="view-link"),
            className="current" if view.slug == current else "",
            **aria(current="page") if view.slug == current else {},
        )
        for view in VIEWS
    ]


def about(view: View) -> Component:
    """Return the view's help: content, formula, next steps."""
    text = view.help
    return html.Details(
        [
            html.Summary(f"About {view.label}"),
            html.Dl(
                [
                    *(html.Dt("What it shows"), html.Dd(text.shows)),
                    *(html.Dt("How it is worked out"), html.Dd(text.formula)),
                    *(html.Dt("What to do"), html.Dd(text.do)),
                ]
            ),
        ],
        className="about",
    )
