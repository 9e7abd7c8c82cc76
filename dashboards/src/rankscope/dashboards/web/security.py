"""Security of the web server: headers for the browser, accepted host names, and access control."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import quote

import dash
import flask

from rankscope.dashboards.web.access import visitor_of
from rankscope.dashboards.web.compression import ASSETS, PACKAGES
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.web.login import LOGIN, LOGOUT

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
HEALTHY: Final = "/-/healthy"
OWN_REQUEST: Final = "rankscope.ourselves"
"""WSGI environment key of requests that the server makes to itself; a browser cannot set it."""

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": the login form would be sent without its origin.
    "Referrer-Policy": "same-origin",
    # A page must reach the tab of Perfetto that it opens. It stays out of reach of pages that open it.
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?", re.ASCII)
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NO_LOGIN: Final = frozenset({HEALTHY, LOGIN, LOGOUT})
_NO_LOGIN_BELOW: Final = (ASSETS, PACKAGES)
_FOR_SCRIPTS: Final = ("/api/", "/_")
"""Path prefixes for scripts, where refusals are JSON instead of a page."""


def content_security_policy(app: dash.Dash) -> str:
    """Return a policy that allows only this server. Call it after all callbacks are registered: their inline scripts are allowed
    by hash.

    Styles may be inline because Plotly, Mantine and AG Grid set them from scripts.
    """
    scripts = " ".join(["'self'", *app.csp_hashes()])
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


def protect(app: dash.Dash, config: DashboardConfig) -> None:
    """Check every request before other handlers, and add the security headers to every response.

    Call it before any other ``before_request`` function is registered.
    """
    policy = content_security_policy(app)
    names = [name.lower() for name in (*LOOPBACK_NAMES, *config.allowed_hosts)]

    def guard() -> flask.typing.ResponseReturnValue | None:
        request = flask.request
        if OWN_REQUEST in request.environ or request.path == HEALTHY:
            return None
        if not is_answered(_host(request), names):
            text = "This dashboard does not answer under that name; --allow-host NAME lets it.\n"
            return flask.Response(text, 400, mimetype="text/plain")
        if request.method not in _READS and not from_own_pages(request):
            return {"error": "sent by a page of another site, so nothing was done"}, 403
        if request.path.startswith(_NO_LOGIN_BELOW):
            return None
        visitor = flask.g.visitor = visitor_of(request, config)
        return None if visitor.may_view or request.path in _NO_LOGIN else _to_login(request)

    def add_headers(response: flask.Response) -> flask.Response:
        response.headers.update(HEADERS)
        response.headers["Content-Security-Policy"] = policy
        if not config.open_pages and not flask.request.path.startswith(_NO_LOGIN_BELOW):
            response.headers["Cache-Control"] = "no-store"  # must not be shown after logout, nor stored by a proxy
        return response

    app.server.before_request(guard)
    app.server.after_request(add_headers)


def is_answered(host: str, names: Collection[str]) -> bool:
    """Return whether ``host``, as a browser sends it, is one of ``names`` (lower case), on any port.

    Flask's ``TRUSTED_HOSTS`` has no exception for health probes, and Werkzeug knows no names with underscores, which services of
    Docker Compose may have.
    """
    match = _HOST.fullmatch(host.lower())
    if match is None:
        return False
    return any(match[1] == name.removeprefix(".") or (name.startswith(".") and match[1].endswith(name)) for name in names)


def _host(request: flask.Request) -> str:
    """Return the host name that was asked for; Werkzeug's is empty for a name with an underscore."""
    return request.host or request.headers.get("Host", "")


def from_own_pages(request: flask.Request) -> bool:
    """Return whether a request that may make changes comes from one of our pages or from a client other than a browser.

    Browsers report the source in ``Sec-Fetch-Site`` over HTTPS and to loopback addresses, else in ``Origin``.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == _host(request)


def _to_login(request: flask.Request) -> flask.typing.ResponseReturnValue:
    # Only the bearer scheme: proxies forward the user's password as Basic.
    sends_token = request.headers.get("Authorization", "").lower().startswith("bearer ")
    if request.method not in _READS or request.path.startswith(_FOR_SCRIPTS) or sends_token:
        challenge = {"WWW-Authenticate": 'Bearer realm="rankscope"', "X-Rankscope-Login": LOGIN}
        return {"error": "log in first, or send the token as: Authorization: Bearer TOKEN"}, 401, challenge
    target = quote(request.path) + (f"?{request.query_string.decode('latin-1')}" if request.query_string else "")
    return flask.redirect(f"{LOGIN}?next={quote(target)}")
