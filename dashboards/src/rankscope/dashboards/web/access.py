"""Authentication of visitors, and their permissions."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal

import flask
from werkzeug.exceptions import TooManyRequests

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.web.attempts import WrongTokens
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.web.trusted_proxy import TrustedProxy
from rankscope.dashboards.words.inert import shown

_LOG = logging.getLogger(__name__)

CHANGES_OFF = "captures cannot be asked for here: this dashboard has no token; start it with --token-file FILE"
LOG_IN = "log in with the token of this dashboard first, at /login"


_TLS_PROXY: Final = TrustedProxy("X-Forwarded-User")


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


class Access:
    """Authenticator of requests."""

    def __init__(self, config: DashboardConfig) -> None:
        self.config = config
        self._wrong = WrongTokens()

    def visitor(self, request: flask.Request) -> Visitor:
        """Return the sender of a request. Raises ``TooManyRequests`` after many wrong tokens."""
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
        """Return whether ``given`` is the token. Raises ``TooManyRequests`` after many wrong ones by the same sender."""
        proxy = self.config.proxy
        # A proxy without users, such as one for TLS, is usually on this machine.
        sender = (proxy or _TLS_PROXY).client(request) + ("" if proxy is None else f" {proxy.user(request)}")
        if wait := self._wrong.wait_s(sender):
            raise TooManyRequests(f"too many wrong tokens; try again in {wait} s", retry_after=wait)
        if self.config.token is not None and self.config.token.matches(given):
            return True
        self._wrong.note(sender)
        if self._wrong.wait_s(sender):
            _LOG.warning("many wrong tokens from %s", shown(sender))
        return False


def visitor() -> Visitor:
    """Return the sender of the current request, also within a callback."""
    found: Visitor = flask.g.get("visitor", Visitor())
    return found


def require_change(config: DashboardConfig) -> None:
    """Check that the sender of the current request may make changes. Raises ``NotAllowedError`` if not."""
    if config.token is None:
        raise NotAllowedError(CHANGES_OFF)
    if not visitor().may_change:
        raise NotAllowedError(LOG_IN)
