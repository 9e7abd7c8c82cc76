"""Callbacks that show the page of an address, links, title and colour scheme, and that cancel what a page waits for."""

from __future__ import annotations

from typing import Any

from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, ctx, no_update
from dash.development.base_component import Component

from rankscope.dashboards.live.components import AGAIN, CANCEL
from rankscope.dashboards.live.pages import Pages, site_links


def register(app: Dash, pages: Pages) -> None:
    """Add the callbacks."""

    @app.callback(
        Output("page", "children"),
        Output("page-title", "data"),
        Input("url", "pathname"),
        Input({"type": AGAIN, "of": ALL}, "n_intervals"),
        State("url", "search"),
    )
    def show_page(pathname: str | None, again: list[int | None], search: str | None) -> tuple[Any, Any]:
        if again and not any(again) and ctx.triggered_id != "url":
            return no_update, no_update  # the polling timer was only just created
        page, name = pages.page(pathname, search)
        return page, f"{name} · {pages.config.title}"

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
