"""Address to page."""

from __future__ import annotations

from typing import Any

from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, no_update
from dash.development.base_component import Component

from rankscope.dashboards.config import DashboardConfig
from rankscope.dashboards.data.source import RunSource, UnknownRunError
from rankscope.dashboards.pages import problem
from rankscope.dashboards.pages.overview import overview_page
from rankscope.dashboards.pages.runs import list_revision, run_list, runs_page, verdict_line
from rankscope.dashboards.url_state import run_id_of
from rankscope.runs.errors import RankscopeError


def register(app: Dash, source: RunSource, config: DashboardConfig) -> None:
    """Add the callbacks that choose and list pages."""

    @app.callback(
        Output("page", "children"),
        Output("page-title", "data"),
        Input("url", "pathname"),
        State("url", "search"),
    )
    def show_page(pathname: str | None, search: str | None) -> tuple[Component, str]:
        page, name = page_for(pathname, search, source, config)
        return page, f"{name} · {config.title}"

    @app.callback(
        Output("run-list", "children"),
        Output("run-list-revision", "data"),
        Input("run-list-poll", "n_intervals"),
        State("run-list-revision", "data"),
        prevent_initial_call=True,
    )
    def refresh_list(_ticks: int | None, seen: str | None) -> tuple[Any, Any]:
        try:
            runs = source.runs()
        except RankscopeError:
            return no_update, no_update  # the folder is away for the moment; what is on the page stays
        revision = list_revision(runs)
        return (no_update, no_update) if revision == seen else (run_list(runs), revision)

    @app.callback(Output({"type": "run-verdict", "run": MATCH}, "children"), Input({"type": "run-verdict", "run": MATCH}, "id"))
    def show_verdict(identifier: dict[str, str]) -> list[Component] | str:
        try:
            return verdict_line(source.summary(identifier["run"]), source.analysis(identifier["run"]))
        except RankscopeError as error:
            return str(error)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "scheme"),
        Output("provider", "forceColorScheme"),
        Output("scheme", "data"),
        Input("scheme-choice", "value"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "title"), Output("page-title-sink", "title"), Input("page-title", "data")
    )


def page_for(pathname: object, search: str | None, source: RunSource, config: DashboardConfig) -> tuple[Component, str]:
    """The page of an address and its name; never raises for what a user may type or a run may hold."""
    if pathname is None or pathname in ("", "/"):
        return _list(source, config), "Runs"
    # Whoever posts to the app without a browser may send anything.
    run_id = run_id_of(pathname) if isinstance(pathname, str) else None
    if run_id is None:
        return problem.unknown_page(str(pathname)), "Not found"
    try:
        run = source.summary(run_id)
        if run.problem is not None:
            return problem.unreadable_run(run.name, run.problem), run.name
        return overview_page(run, source.analysis(run_id), search, config), run.name
    except UnknownRunError:
        return problem.unknown_run(run_id), "Not found"
    except RankscopeError as error:
        return problem.unreadable_run(run_id, str(error)), run_id


def _list(source: RunSource, config: DashboardConfig) -> Component:
    try:
        return runs_page(source.runs(), config)
    except RankscopeError as error:
        return problem.problem_page("The runs cannot be read", str(error))
