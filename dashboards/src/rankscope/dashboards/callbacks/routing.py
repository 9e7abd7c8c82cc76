"""Callbacks that map an address to its page."""

from __future__ import annotations

import logging
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, no_update
from dash.development.base_component import Component

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.callbacks.drawing import OUR_FAULT
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import NotReadyError, RunSource, UnknownRunError
from rankscope.dashboards.model.state import run_of
from rankscope.dashboards.pages import problem
from rankscope.dashboards.pages.run_page import run_page
from rankscope.dashboards.pages.site import SitePage, site_links, site_page
from rankscope.dashboards.views.registry import view_of
from rankscope.dashboards.views.view import View
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words.inert import shown

_LOG = logging.getLogger(__name__)


def register(app: Dash, source: RunSource, config: DashboardConfig) -> None:
    """Add the callbacks that show pages, links, title and colour scheme."""

    @app.callback(
        Output("page", "children"),
        Output("page-title", "data"),
        Input("url", "pathname"),
        Input({"type": problem.AGAIN, "of": ALL}, "n_intervals"),
        State("url", "search"),
    )
    def show_page(pathname: str | None, again: list[int | None], search: str | None) -> tuple[Any, Any]:
        if again and not any(again) and ctx.triggered_id != "url":
            return no_update, no_update  # the polling timer was only just created
        page, name = page_for(pathname, search, source, config)
        return page, f"{name} · {config.title}"

    @app.callback(Output("site-links", "children"), Input("url", "pathname"))
    def show_links(pathname: str | None) -> list[Component]:
        return site_links(pathname)

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
    """Return the page of an address and its name. Never raises, whatever the address or the run's files contain."""
    try:
        return _page_for(pathname, search, source, config)
    except Exception:  # noqa: BLE001  the user must see an error page; the log has the traceback
        _LOG.exception("page %s", shown(str(pathname)))
        return problem.problem_page("This page could not be made", OUR_FAULT), "Error"


def _page_for(pathname: object, search: str | None, source: RunSource, config: DashboardConfig) -> tuple[Component, str]:
    if (page := site_page(pathname)) is not None:
        return _site(page, search, source, config), page.title
    # Clients other than a browser may post any type.
    run_id, slug = (run_of(pathname) if isinstance(pathname, str) else None) or ("", "")
    view = view_of(slug)
    if not run_id or view is None:
        return problem.unknown_page(str(pathname)), "Not found"
    try:
        return _run_page(RunData(source, source.summary(run_id)), view, search, config)
    except UnknownRunError:
        return problem.unknown_run(run_id), "Not found"
    except RankscopeError as error:
        return problem.unreadable_run(run_id, str(error)), run_id


def _run_page(data: RunData, view: View, search: str | None, config: DashboardConfig) -> tuple[Component, str]:
    run = data.summary
    if run.problem is not None:
        return problem.unreadable_run(run.name, run.problem), run.name
    try:
        return run_page(data, view, search, config), run.name
    except NotReadyError as error:
        return problem.not_ready(run.name, error.progress), run.name


def _site(page: SitePage, search: str | None, source: RunSource, config: DashboardConfig) -> Component:
    try:
        return page.make(source, search, config)
    except NotReadyError as error:
        return problem.not_ready(page.subject or page.title, error.progress)
    except RankscopeError as error:
        return problem.problem_page(f"{page.title}: this cannot be shown", str(error))
