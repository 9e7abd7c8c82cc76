"""The Dash app."""

from __future__ import annotations

from importlib.resources import files

import dash
import flask

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.live import capture_api, downloads, lists, redraw, routing, selection
from rankscope.dashboards.live.pages import Pages
from rankscope.dashboards.live.shell import App, document, shell
from rankscope.dashboards.model.state import run_path
from rankscope.dashboards.web import compression, errors, login, viewer_cookie
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.web.security import OWN_REQUEST, protect


def create_app(source: RunSource, config: DashboardConfig | None = None) -> dash.Dash:
    """Return the app over ``source``; ``.server`` is its WSGI application.

    Everything a page needs is served from the installed packages: no request leaves the host.
    """
    config = config or DashboardConfig()
    app = App(
        "rankscope.dashboards",
        assets_folder=str(files("rankscope.dashboards") / "assets"),
        assets_ignore=r"early\.js",  # the page itself loads it, before all others
        index_string=document(),
        serve_locally=True,
        suppress_callback_exceptions=True,  # parts of a page do not exist before it is shown
        title=config.title,
        update_title="",  # the title does not flicker while a callback runs
    )
    app.layout = shell(with_login=config.token is not None)
    pages = Pages(source, config)
    for adapter in (routing, redraw, selection, downloads):
        adapter.register(app, pages)
    lists.register(app)

    def healthy() -> flask.Response:
        return flask.Response("ok\n", mimetype="text/plain")

    def to_the_only_run() -> flask.typing.ResponseReturnValue | None:
        """Redirect the front page to the only run, if there is just one. A redirect keeps the back button working."""
        if flask.request.path != "/":
            return None
        try:
            runs = source.runs()
        except RankscopeError:
            return None  # the page shows the error
        return flask.redirect(run_path(runs[0].run_id)) if len(runs) == 1 else None

    app.server.add_url_rule("/-/healthy", view_func=healthy)
    login.register(app.server, config)
    errors.register(app.server)
    capture_api.register(app.server, source, config)
    compression.register(app)
    protect(app, config)
    viewer_cookie.register(app.server)
    app.server.before_request(to_the_only_run)
    _make_ready(app)
    return app


def _make_ready(app: dash.Dash) -> None:
    """Build the page once: Dash registers the scripts that it serves while it builds it, and open pages ask for them first."""
    with app.server.test_client() as browser:
        browser.get("/run/", environ_overrides={OWN_REQUEST: True})
