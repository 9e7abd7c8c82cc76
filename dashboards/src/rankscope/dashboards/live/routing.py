"""Callbacks that show the page of an address, links, title and colour scheme, and that cancel what a page waits for."""

from __future__ import annotations

from typing import Any, Final

import flask
from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, no_update
from dash.development.base_component import Component
from plotly.io.json import to_json_plotly  # type: ignore[import-untyped]

from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.live.components import CANCEL
from rankscope.dashboards.live.pages import Pages, site_links
from rankscope.dashboards.words.units import time_zone

PAGE: Final = "/api/page"
"""Path of the content of pages. assets/early.js requests it while the scripts that show it are still loading."""

ZONE_COOKIE: Final = "rankscope-zone"
"""Cookie in which assets/early.js puts the time zone of the browser."""


def register(app: Dash, pages: Pages) -> None:
    """Add the callbacks."""

    def page_content() -> flask.Response:
        query = flask.request.args
        with time_zone(flask.request.cookies.get(ZONE_COOKIE)):
            page = pages.page(query.get("path"), query.get("search"), palette(query.get("scheme")))
        content = {"content": page.content, "title": f"{page.name} · {pages.config.title}", "shown": page.shown}
        return flask.Response(to_json_plotly(content), mimetype="application/json", headers={"Cache-Control": "no-store"})

    app.server.add_url_rule(PAGE, view_func=page_content)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope_page", "open"),
        Output("page", "children"),
        Output("page-title", "data"),
        Output("shown", "data"),
        Input("url", "pathname"),
        Input("again", "data"),
        State("url", "search"),
    )

    @app.callback(Output("site-links", "children"), Input("url", "pathname"))
    def show_links(pathname: str | None) -> list[Component]:
        return site_links(pathname)

    each_cancel: Any = {"type": CANCEL, "job": MATCH, "of": MATCH}

    @app.callback(
        Output(each_cancel, "children"), Input(each_cancel, "n_clicks"), State(each_cancel, "id"), prevent_initial_call=True
    )
    def cancel(clicks: int | None, element_id: dict[str, str]) -> Any:
        if not clicks:
            return no_update  # the button was only just created
        return "Cancelling …" if pages.source.cancel(str(element_id["job"])) else "It goes on: another viewer waits for it"

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "scheme"),
        Output("provider", "forceColorScheme"),
        Output("scheme", "data"),
        Input("scheme-choice", "value"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "title"), Output("page-title-sink", "title"), Input("page-title", "data")
    )
