"""Authentication of visitors, and their permissions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import flask

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.web.config import DashboardConfig

CHANGES_OFF = "captures cannot be asked for here: this dashboard has no token; start it with --token-file FILE"
LOG_IN = "log in with the token of this dashboard first, at /login"


class NotAllowedError(RankscopeError):
    """The visitor lacks the permission; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Sender of a request, as far as the request identifies them."""

    may_view: bool = False
    may_change: bool = False
    by: Literal["session", "bearer", "proxy"] | None = None
    """Method by which the sender authenticated."""
    user: str | None = None
    """User name that the proxy reports."""


def visitor_of(request: flask.Request, config: DashboardConfig) -> Visitor:
    """Return the sender of a request."""
    token = config.token
    user = None if config.proxy is None else config.proxy.user(request)
    if token is not None:
        scheme, _, bearer_token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.matches(bearer_token.strip()):
            return Visitor(may_view=True, may_change=True, by="bearer", user=user)
        if token.is_session(request.cookies.get(token.cookie, "")):
            return Visitor(may_view=True, may_change=True, by="session", user=user)
    return Visitor(may_view=True, by="proxy", user=user) if user is not None else Visitor(may_view=config.open_pages)


def visitor() -> Visitor:
    """Return the sender of the current request, also within a callback."""
    visitor_: Visitor = flask.g.get("visitor", Visitor())
    return visitor_


def require_change(config: DashboardConfig) -> None:
    """Check that the sender of the current request may make changes. Raises ``NotAllowedError`` if not."""
    if config.token is None:
        raise NotAllowedError(CHANGES_OFF)
    if not visitor().may_change:
        raise NotAllowedError(LOG_IN)
