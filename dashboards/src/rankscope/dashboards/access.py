"""Who is there, and what they may do."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import flask
from werkzeug.exceptions import TooManyRequests

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.attempts import WrongTokens
from rankscope.dashboards.config import DashboardConfig
from rankscope.dashboards.inert import shown

_LOG = logging.getLogger(__name__)

CHANGES_OFF = "captures cannot be asked for here: this dashboard has no token; start it with --token-file FILE"
LOG_IN = "log in with the token of this dashboard first, at /login"


class NotAllowedError(RankscopeError):
    """Who is there may not do that; the message says how they may."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who sends a request, as far as it shows."""

    may_view: bool = False
    may_change: bool = False
    by: Literal["session", "bearer", "proxy"] | None = None
    """How they have shown it."""
    user: str | None = None
    """Who the proxy says they are."""


class Access:
    """Tells who sends a request."""

    def __init__(self, config: DashboardConfig) -> None:
        self.config = config
        self._wrong = WrongTokens()

    def visitor(self, request: flask.Request) -> Visitor:
        """Who it is. Raises ``TooManyRequests`` for who tries tokens."""
        token, proxy = self.config.token, self.config.proxy
        user = None if proxy is None else proxy.user(request)
        if token is not None:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() == "bearer" and self.is_token(given.strip(), request):
                return Visitor(may_view=True, may_change=True, by="bearer", user=user)
            if token.is_session(request.cookies.get(token.cookie, "")):
                return Visitor(may_view=True, may_change=True, by="session", user=user)
        if user is not None:
            return Visitor(may_view=True, by="proxy", user=user)
        return Visitor(may_view=self.config.open_pages)

    def is_token(self, given: str, request: flask.Request) -> bool:
        """Whether it is the token. Raises ``TooManyRequests`` after many wrong ones by the same sender."""
        proxy = self.config.proxy
        # Behind a proxy everybody has the same address.
        sender = f"{request.remote_addr} {'' if proxy is None else proxy.user(request)}"
        if wait := self._wrong.wait_s(sender):
            raise TooManyRequests(f"too many wrong tokens; try again in {wait} s", retry_after=wait)
        if self.config.token is not None and self.config.token.matches(given):
            return True
        self._wrong.note(sender)
        if self._wrong.wait_s(sender):
            _LOG.warning("many wrong tokens from %s", shown(sender))
        return False


def visitor() -> Visitor:
    """Who sends the request that is being answered, also in a callback."""
    found: Visitor = flask.g.get("visitor", Visitor())
    return found


def require_change(config: DashboardConfig) -> None:
    """Raises ``NotAllowedError`` unless who sends the request that is being answered may change something."""
    if config.token is None:
        raise NotAllowedError(CHANGES_OFF)
    if not visitor().may_change:
        raise NotAllowedError(LOG_IN)
