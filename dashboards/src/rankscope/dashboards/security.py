"""What the browser may do with our pages, and under which names we answer."""

from __future__ import annotations

from typing import Final

import dash
import flask

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def content_security_policy(app: dash.Dash) -> str:
    """Everything from here only. Call it after all callbacks are registered: their inline scripts are allowed by hash.

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
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def protect(app: dash.Dash, *, allow_any_host: bool) -> None:
    """Send the headers with every response; unless ``allow_any_host``, answer only under loopback names."""
    policy = content_security_policy(app)
    if not allow_any_host:
        app.server.config["TRUSTED_HOSTS"] = list(LOOPBACK_NAMES)

    def add_headers(response: flask.Response) -> flask.Response:
        response.headers.update(HEADERS)
        response.headers["Content-Security-Policy"] = policy
        return response

    app.server.after_request(add_headers)
