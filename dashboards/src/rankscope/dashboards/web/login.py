"""The login page, which asks for the token; without scripts, so that it works in browsers that block them."""

from __future__ import annotations

import logging
from functools import cache
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

import flask

from rankscope.dashboards.web.access import visitor
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.web.token import SESSION_S

_LOG: Final = logging.getLogger(__name__)

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
MAX_FORM_BYTES: Final = 8192


def register(server: flask.Flask, config: DashboardConfig) -> None:
    """Add the pages for login and logout."""

    def show() -> flask.typing.ResponseReturnValue:
        to = local(flask.request.args.get("next", "/"))
        if config.token is None:
            return _page("No login here", "none", to=to, proxied=config.proxy is not None)
        if visitor().by != "session":
            return _page("Log in", "form", to=to)
        if "next" in flask.request.args:
            return flask.redirect(to)
        return _page("Logged in", "session")

    def log_in() -> flask.typing.ResponseReturnValue:
        flask.request.max_content_length = MAX_FORM_BYTES
        to = local(flask.request.form.get("next", "/"))
        token = config.token
        if token is None or not token.matches(flask.request.form.get("token", "").strip()):
            # The address as its connection has it: behind a proxy, that of the proxy.
            _LOG.warning("login failed from %s", flask.request.remote_addr or "an unknown address")
            return _page("Log in", "form", status=401, to=to, problem="That is not the token.")
        redirect = flask.redirect(to, 303)
        redirect.set_cookie(
            token.cookie, token.new_session(), max_age=SESSION_S, httponly=True, samesite="Lax", secure=is_https(flask.request)
        )
        return redirect

    def log_out() -> flask.typing.ResponseReturnValue:
        redirect = flask.redirect(LOGIN, 303)
        if config.token is not None:
            redirect.delete_cookie(config.token.cookie, httponly=True, samesite="Lax")
        return redirect

    server.add_url_rule(LOGIN, "login", show, methods=["GET"])
    server.add_url_rule(LOGIN, "log_in", log_in, methods=["POST"])
    server.add_url_rule(LOGOUT, "log_out", log_out, methods=["POST"])


def is_https(request: flask.Request) -> bool:
    """Return whether the browser uses HTTPS, as the last proxy reports. A client that forges this loses only its own cookie."""
    return request.is_secure or request.headers.get("X-Forwarded-Proto", "").rpartition(",")[2].strip().lower() == "https"


def local(address: str) -> str:
    """Return ``address`` if it is on this server, else the front page, so that a login never redirects to another site."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    is_local = not parts.scheme and not parts.netloc and address.startswith("/") and address.isascii() and address.isprintable()
    # Browsers treat a backslash as a slash.
    return address if is_local and not address.startswith("//") and "\\" not in address else "/"


def _page(title: str, kind: str, *, status: int = 200, **values: object) -> flask.Response:
    page = flask.render_template_string(_template(), title=title, kind=kind, **values)
    return flask.Response(page, status, mimetype="text/html")


@cache
def _template() -> str:
    return (files("rankscope.dashboards") / "web/login.html").read_text("utf-8")
