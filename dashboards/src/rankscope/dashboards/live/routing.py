"""Callbacks that show the page of an address, links, title and colour scheme, and that cancel what a page waits for."""

from __future__ import annotations

from typing import Any

from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, no_update
from dash.development.base_component import Component

from rankscope.dashboards.live.components import CANCEL
from rankscope.dashboards.live.pages import Pages, site_links


def register(app: Dash, pages: Pages) -> None:
    """Add the callbacks."""

    @app.callback(
        Output("page", "children"),
        Output("page-title", "data"),
        Output("shown", "data"),
        Input("url", "pathname"),
        Input("again", "data"),
        State("url", "search"),
    )
    def show_page(pathname: str | None, _again: int | None, search: str | None) -> tuple[Any, Any, Any]:
        page = pages.page(pathname, search)
        return page.content, f"{page.name} · {pages.config.title}", page.shown

    @app.callback(Output("site-links", "children"), Input("url", "pathname"))
    def show_links(pathname: str | None) -> list[Component]:
        return site_links(pathname)

    each_cancel: Any = {"type": CANCEL, "job": MATCH, "of": MATCH}

    @app.callback(
        Output(each_cancel, "children"),
        Input(each_cancel, "n_clicks"),
        State(each_cancel, "id"),
        prevent_initial_call=True,
    )
    def cancel(clicks: int | None, which: dict[str, str]) -> Any:
        if not clicks:
            return no_update  # the button was only just created
        return "Cancelling …" if pages.source.cancel(str(which["job"])) else "It goes on: another viewer waits for it"

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "scheme"),
        Output("provider", "forceColorScheme"),
        Output("scheme", "data"),
        Input("scheme-choice", "value"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "title"), Output("page-title-sink", "title"), Input("page-title", "data")
    )
