"""The few pages of the exporter, as an ASGI application."""

from __future__ import annotations

import gzip
import html
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.exposition import gzip_accepted

from rankscope.exporter.page import Page

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_TEXT: Final = "text/plain; charset=utf-8"
_GZIP_FROM_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[bytes, bytes], ...] = ()


class App:
    """``/metrics``, ``/-/healthy``, ``/-/ready`` and a landing page. Nothing here waits for a GPU or a disk."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._routes: dict[str, Callable[[Mapping[str, str]], _Response]] = {
            "/": self._landing,
            "/metrics": self._metrics,
            "/-/healthy": self._healthy,
            "/-/ready": self._ready,
        }

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        assert scope["type"] == "http"  # the server is configured for nothing else
        # Repeated headers mean the same as one list (RFC 9110).
        headers: dict[str, str] = {}
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        response = self._answer(scope["method"], scope["path"], headers)
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": [
                    (b"content-type", response.content_type.encode("latin-1")),
                    (b"content-length", str(len(response.body)).encode()),
                    (b"x-content-type-options", b"nosniff"),
                    *response.headers,
                ],
            }
        )
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})

    def _answer(self, method: str, path: str, headers: Mapping[str, str]) -> _Response:
        route = self._routes.get(path)
        if route is None:
            return _Response(404, b"not found: try /metrics\n")
        if method not in ("GET", "HEAD"):
            return _Response(405, b"only GET and HEAD\n", headers=((b"allow", b"GET, HEAD"),))
        return route(headers)

    def _metrics(self, headers: Mapping[str, str]) -> _Response:
        body, content_type = self._page.render(headers.get("accept", ""))
        vary = ((b"vary", b"accept, accept-encoding"), (b"cache-control", b"no-store"))
        if len(body) >= _GZIP_FROM_BYTES and gzip_accepted(headers.get("accept-encoding", "")):
            # A middle level: a page of text shrinks to a tenth at any, and this one costs little.
            return _Response(200, gzip.compress(body, 4), content_type, (*vary, (b"content-encoding", b"gzip")))
        return _Response(200, body, content_type, vary)

    def _healthy(self, _headers: Mapping[str, str]) -> _Response:
        """Answering at all is the whole check: a wedged driver must not get the exporter killed."""
        return _Response(200, b"healthy\n")

    def _ready(self, _headers: Mapping[str, str]) -> _Response:
        problems = self._page.problems()
        if problems:
            lines = "".join(f"{collector}: {reason}\n" for collector, reason in problems)
            return _Response(503, f"not ready\n{lines}".encode())
        return _Response(200, b"ready\n")

    def _landing(self, _headers: Mapping[str, str]) -> _Response:
        simulated = "<p><strong>SIMULATED: the GPUs of this exporter are invented.</strong></p>" if self._page.simulated else ""
        problems = "".join(f"<li>{html.escape(name)}: {html.escape(reason)}</li>" for name, reason in self._page.problems())
        state = f"<p>Not ready:</p><ul>{problems}</ul>" if problems else "<p>Ready.</p>"
        body = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>rankscope exporter</title></head><body>'
            f"<h1>rankscope exporter on {html.escape(self._page.host)}</h1>{simulated}{state}"
            '<ul><li><a href="/metrics">/metrics</a></li><li><a href="/-/healthy">/-/healthy</a></li>'
            '<li><a href="/-/ready">/-/ready</a></li></ul></body></html>\n'
        )
        return _Response(200, body.encode(), "text/html; charset=utf-8")
