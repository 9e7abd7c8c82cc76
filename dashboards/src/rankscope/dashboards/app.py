"""The Dash app."""

from __future__ import annotations

from importlib.resources import files

import dash
import flask

from rankscope.dashboards.callbacks import drawing, following, routing, selection, table
from rankscope.dashboards.config import DashboardConfig
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.pages.shell import INDEX, shell
from rankscope.dashboards.security import protect
from rankscope.dashboards.url_state import run_path
from rankscope.runs.errors import RankscopeError


def create_app(source: RunSource, config: DashboardConfig | None = None) -> dash.Dash:
    """The app over ``source``; ``.server`` is its WSGI application.

    Everything a page needs is served from the installed packages: no request leaves the host.
    """
    config = config or DashboardConfig()
    app = dash.Dash(
        "rankscope.dashboards",
        assets_folder=str(files("rankscope.dashboards") / "assets"),
        assets_ignore=r"early\.js",  # the page loads it by itself, first
        index_string=INDEX,
        serve_locally=True,
        suppress_callback_exceptions=True,  # the parts of a page are not there before the page is
        title=config.title,
        update_title="",  # the title does not flicker while a callback runs
    )
    app.layout = shell()
    routing.register(app, source, config)
    selection.register(app)
    drawing.register(app, source)
    following.register(app, source)
    table.register(app)

    def healthy() -> flask.Response:
        return flask.Response("ok\n", mimetype="text/plain")

    def to_the_only_run() -> flask.typing.ResponseReturnValue | None:
        """With a single run its page is the front page. As a redirect, so that the back button leads out again."""
        if flask.request.path != "/":
            return None
        try:
            runs = source.runs()
        except RankscopeError:
            return None  # the page will say it
        return flask.redirect(run_path(runs[0].run_id)) if len(runs) == 1 else None

    app.server.add_url_rule("/-/healthy", view_func=healthy)
    app.server.before_request(to_the_only_run)
    protect(app, allow_any_host=config.allow_any_host)
    _make_ready(app)
    return app


def _make_ready(app: dash.Dash) -> None:
    """Build the page once, before the server forks.

    Dash learns which scripts it may serve while it builds the page; a worker that has not built one would refuse them all.
    """
    with app.server.test_client() as browser:
        browser.get("/run/")
