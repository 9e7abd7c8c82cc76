"""Frame of every page: head with navigation and colour scheme, address, and the page's container."""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.resources import as_file, files
from typing import Final

import dash
import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component
from dash.fingerprint import build_fingerprint

from rankscope.dashboards.live.components import aria
from rankscope.dashboards.web.compression import ASSETS, PACKAGES

_LATER: Final = re.compile(rf'(<script src="({PACKAGES}dash_ag_grid/[^"]+)"></script>)')
_PLOTLY: Final = "package_data/plotly.min.js"

POLL_MS: Final = 700
"""Interval of the only timer of a tab (assets/page.js)."""

DARK_SHADES = [
    "#e8ecf2", "#c3cad5", "#9aa5b4", "#6b7788", "#3a4555", "#2b3442", "#1e2632", "#171d27", "#10151d", "#0b0f15",
]  # fmt: skip
"""Mantine's dark greys, in the hue of assets/style.css."""


class App(dash.Dash):
    """Dash whose pages do not begin with the library of the tables: assets/grid.js loads it with the first table."""

    def interpolate_index(self, **parts: str) -> str:  # type: ignore[override]
        """Return the document. The browser fetches the library when it has nothing else to do."""
        scripts, metas = parts.get("scripts", ""), parts.get("metas", "")
        for tag, address in _LATER.findall(scripts):
            scripts = scripts.replace(tag, "")
            metas += f'<link id="library-dash_ag_grid" rel="prefetch" as="script" href="{address}">'
        page: str = super().interpolate_index(**{**parts, "scripts": scripts, "metas": metas})  # type: ignore[no-untyped-call]
        return page


def document() -> str:
    """Return the HTML document of the app. early.js comes first: it sets the colour scheme before anything is painted."""
    package = files("rankscope.dashboards")
    with as_file(package / "assets/early.js") as early, as_file(files("plotly") / _PLOTLY) as plotly:
        begin = f"{ASSETS}early.js?m={early.stat().st_mtime}"
        date = int(plotly.stat().st_mtime)
        drawing = f"{PACKAGES}plotly/{build_fingerprint(_PLOTLY, version('plotly'), date)}"  # type: ignore[no-untyped-call]
    return (package / "live/index.html").read_text("utf-8").replace("{early}", begin).replace("{plotly}", drawing)


def shell(*, with_login: bool = False) -> Component:
    """Return the app's layout. ``with_login``: link the page for logging in and out."""
    layout: Component = dmc.MantineProvider(
        id="provider",
        theme={
            "primaryColor": "blue",
            "defaultRadius": "md",
            "fontFamily": "inherit",
            "cursorType": "pointer",
            "colors": {"dark": DARK_SHADES},
        },
        children=[
            html.A("Skip to the page", href="#page", className="skip"),
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="scheme"),
            dcc.Store(id="page-title"),
            dcc.Store(id="shown"),
            dcc.Store(id="asked"),
            dcc.Store(id="answer"),
            dcc.Store(id="again"),
            dcc.Interval(id="poll", interval=POLL_MS),
            html.Div(id="page-title-sink", hidden=True),
            html.Header(
                [
                    dcc.Link(
                        [html.Img(src="/assets/icons/rankscope.svg", alt="", width=24, height=24), html.Span("rankscope")],
                        href="/",
                        className="brand",
                    ),
                    html.Nav(id="site-links", className="site-links", **aria(label="Pages")),
                    *([html.A("Log in or out", href="/login", className="login")] if with_login else []),
                    dmc.SegmentedControl(
                        id="scheme-choice",
                        data=[
                            {"value": "light", "label": "Light"},
                            {"value": "auto", "label": "System"},
                            {"value": "dark", "label": "Dark"},
                        ],
                        value="auto",
                        size="xs",
                        persistence=True,
                        persistence_type="local",
                        **aria(label="Colour scheme"),
                    ),
                ],
                className="site-head",
            ),
            html.Main(_loading(), id="page", tabIndex=-1),
        ],
    )
    return layout


def _loading() -> Component:
    return html.Div(
        [dmc.Skeleton(height=30, width="40%"), dmc.Skeleton(height=240), dmc.Skeleton(height=320)],
        className="stack",
        **aria(busy="true", label="Loading"),
    )
