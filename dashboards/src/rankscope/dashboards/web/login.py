"""The login page, which asks for the token; without scripts, so that it works in browsers that block them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from html import escape
from typing import Final
from urllib.parse import urlsplit

import flask

from rankscope.dashboards.web.access import Access, visitor
from rankscope.dashboards.web.token import SESSION_S

_LOG: Final = logging.getLogger(__name__)

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
MAX_FORM_BYTES: Final = 8192

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="UTF-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{head}<title>{title} · rankscope</title>
<link rel="icon" type="image/svg+xml" href="/assets/icons/rankscope.svg">
<style>
:root {{ color-scheme: light dark; --page: #f4f6f9; --surface: #fff; --text: #1c2430; --muted: #5b6675; --line: #8a94a2;
  --accent: #0069a6; --on-accent: #fff; --bad: #b3400a; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #0f141b; --surface: #171d27; --text: #e8ecf2; --muted: #9aa5b4;
  --line: #6b7788; --accent: #6cb8ec; --on-accent: #0f141b; --bad: #ff9a5c; }} }}
body {{ margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }}
main {{ box-sizing: border-box; width: min(26rem, 100% - 2rem); margin: 12vh auto 0; padding: 1.5rem;
  background: var(--surface); border-radius: 8px; }}
h1 {{ margin: 0 0 .5rem; font-size: 1.25rem; }}
p {{ margin: .5rem 0; }}
label {{ display: block; margin-top: 1rem; font-weight: 600; }}
input {{ box-sizing: border-box; width: 100%; padding: .5rem; font: inherit; color: inherit; background: var(--page);
  border: 1px solid var(--line); border-radius: 6px; }}
button {{ margin-top: 1rem; padding: .5rem 1rem; font: inherit; font-weight: 600; color: var(--on-accent);
  background: var(--accent); border: 0; border-radius: 6px; cursor: pointer; }}
a {{ color: var(--accent); }}
:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; }}
.help {{ color: var(--muted); }}
.bad {{ color: var(--bad); font-weight: 600; }}
</style>
</head>
<body><main>
<h1>{title}</h1>
{content}
</main></body>
</html>
"""

_FORM: Final = """<p class="help">Whoever started this dashboard has its token.</p>
{problem}<form method="post" action="/login">
<input type="hidden" name="next" value="{to}">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus{invalid}>
<button type="submit">Log in</button>
</form>
<p class="help">Logged in already? <a href="{to}">Go on</a></p>
"""

_LOGGED_IN: Final = """<p>You have the token: you see the runs and may ask for captures.</p>
<p><a href="/">See the runs</a></p>
<form method="post" action="/logout"><button type="submit">Log out</button></form>
"""

_NO_LOGIN: Final = """<p>This dashboard has no token{why}</p>
<p class="help">Whoever starts it can give it one with <code>--token-file FILE</code>.</p>
<p><a href="{to}">Go on</a></p>
"""


def register(server: flask.Flask, access: Access) -> None:
    """Add the pages for login and logout."""
    failures = FailureLog()

    def show() -> flask.typing.ResponseReturnValue:
        to = local(flask.request.args.get("next", "/"))
        if access.config.token is None:
            proxied = access.config.proxy is not None
            why = ": the proxy in front of it says who may see the runs." if proxied else ", so nobody needs to log in."
            return _page("No login here", _NO_LOGIN.format(to=escape(to), why=why))
        if visitor().by != "session":
            return _form(to)
        if "next" in flask.request.args:
            return flask.redirect(to)
        return _page("Logged in", _LOGGED_IN)

    def log_in() -> flask.typing.ResponseReturnValue:
        flask.request.max_content_length = MAX_FORM_BYTES
        to = local(flask.request.form.get("next", "/"))
        token = access.config.token
        if token is None or not token.matches(flask.request.form.get("token", "").strip()):
            failures.add()
            return _form(to, "That is not the token.", status=401)
        redirect = flask.redirect(to, 303)
        redirect.set_cookie(
            token.cookie,
            token.new_session(),
            max_age=SESSION_S,
            httponly=True,
            samesite="Strict",
            secure=_is_https(flask.request),
        )
        return redirect

    def log_out() -> flask.typing.ResponseReturnValue:
        redirect = flask.redirect(LOGIN, 303)
        if access.config.token is not None:
            redirect.delete_cookie(access.config.token.cookie, httponly=True, samesite="Strict")
        return redirect

    server.add_url_rule(LOGIN, "login", show, methods=["GET"])
    server.add_url_rule(LOGIN, "log_in", log_in, methods=["POST"])
    server.add_url_rule(LOGOUT, "log_out", log_out, methods=["POST"])


class FailureLog:
    """Log of failed logins: one line at most every ``EVERY_S``, with their number since the last line."""

    EVERY_S: Final = 10.0

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._count = 0
        self._next_s = -math.inf

    def add(self) -> None:
        """Count the current request as a failed login."""
        with self._lock:
            self._count += 1
            now = self._clock_s()
            if now < self._next_s:
                return
            count, self._count, self._next_s = self._count, 0, now + self.EVERY_S
        _LOG.warning("login failed: %s wrong %s, the last from %s", count, "token" if count == 1 else "tokens", _sender())


def _sender() -> str:
    """Return the address of the client as its connection has it: behind a proxy, that of the proxy."""
    return flask.request.remote_addr or "an unknown address"


def _is_https(request: flask.Request) -> bool:
    """Return whether the browser uses HTTPS, by the last proxy's word. Whoever makes that up only loses a cookie of their own."""
    return request.is_secure or request.headers.get("X-Forwarded-Proto", "").rpartition(",")[2].strip().lower() == "https"


def local(address: str) -> str:
    """Return ``address`` if it is on this server, else the front page, so that a login never redirects to another site."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    ours = not parts.scheme and not parts.netloc and address.startswith("/") and address.isascii() and address.isprintable()
    # Browsers treat a backslash as a slash.
    return address if ours and not address.startswith("//") and "\\" not in address else "/"


def by_way_of(address: str) -> flask.Response:
    """Return a page that redirects to ``address`` by itself.

    After a link on another site, the browser withholds the session cookie until one of our own pages makes the request.
    """
    to = escape(address)
    return _page("One moment", f'<p><a href="{to}">Go on</a></p>', head=f'<meta http-equiv="refresh" content="0; url={to}">\n')


def _form(to: str, problem: str | None = None, *, status: int = 200) -> flask.Response:
    said = "" if problem is None else f'<p class="bad" id="problem" role="alert">{escape(problem)}</p>\n'
    invalid = "" if problem is None else ' aria-invalid="true" aria-describedby="problem"'
    return _page("Log in", _FORM.format(to=escape(to), problem=said, invalid=invalid), status=status)


def _page(title: str, content: str, *, head: str = "", status: int = 200) -> flask.Response:
    return flask.Response(_PAGE.format(title=title, content=content, head=head), status, mimetype="text/html")
