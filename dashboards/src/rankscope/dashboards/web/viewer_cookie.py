"""Cookie that tells viewers apart: a random name, without a meaning beyond that."""

from __future__ import annotations

import secrets
from typing import Final

import flask

from rankscope.dashboards.data.viewer import VIEWER
from rankscope.dashboards.web.access import visitor
from rankscope.dashboards.web.login import is_https

COOKIE: Final = "rankscope-viewer"


def register(server: flask.Flask) -> None:
    """Note the viewer of each request, and give new ones their cookie with the first page; clients without it are one viewer."""

    def note() -> None:
        VIEWER.set(flask.request.cookies.get(COOKIE, ""))

    def name(response: flask.Response) -> flask.Response:
        if response.mimetype == "text/html" and not VIEWER.get() and visitor().may_view:
            secure = is_https(flask.request)
            response.set_cookie(COOKIE, secrets.token_urlsafe(16), httponly=True, samesite="Lax", secure=secure)
        return response

    server.before_request(note)
    server.after_request(name)
