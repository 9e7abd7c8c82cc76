"""The pages of the exporter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qs

from rankscope.base.exposition import prefers_openmetrics
from rankscope.base.http import TEXT, HttpRequest, Response
from rankscope.base.text import one_line
from rankscope.exporter.catalogue import COLLECTORS
from rankscope.exporter.pages.dcgm import DcgmPage
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.settings import DCGM_PATH
from rankscope.exporter.web.access import WebAccess
from rankscope.exporter.web.config import WebConfig
from rankscope.exporter.web.control import PATHS as CONTROL_PATHS
from rankscope.exporter.web.control import ReleaseHandler
from rankscope.exporter.web.landing import landing_page
from rankscope.exporter.web.rendered import RenderedPages

_HEALTHY: Final = "/-/healthy"
_READY: Final = "/-/ready"
_IS_READY: Final = b"ready\n"
_MAX_QUERY_FIELDS: Final = 128
_CONTENT_SECURITY: Final = ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
_TOO_MANY: Final = Response(400, b"too many parameters\n")

Query = Mapping[str, list[str]]
Route = Callable[[HttpRequest, Query], Awaitable[Response]]


class ExporterApp:
    """Routes of the exporter: ``/metrics``, ``/-/healthy``, ``/-/ready``, landing page, release. No page waits for a GPU.

    ``web`` serves the web addresses, ``local`` the control socket, and ``compatible_only`` an address that has the compatible
    page at ``/metrics``.
    """

    def __init__(
        self, page: MetricsPage, access: WebAccess, *, telemetry_path: str = "/metrics", compatible: DcgmPage | None = None
    ) -> None:
        self._page = page
        self._access = access
        self._telemetry_path = telemetry_path
        self._compatible = compatible
        self._rendered = RenderedPages()
        self.control = ReleaseHandler(page.fleet, self._rendered.forget)
        self._routes: dict[str, Route] = {
            "/": self._landing,
            telemetry_path: self._metrics,
            _HEALTHY: self._healthy,
            _READY: self._ready,
        }
        if compatible is not None:
            self._routes[DCGM_PATH] = self._compatible_metrics

    async def web(self, request: HttpRequest) -> Response:
        """Answer a request over the network, which may need a password; ``/-/healthy`` is public, for probes."""
        return await self._guarded(request, self._routes)

    async def local(self, request: HttpRequest) -> Response:
        """Answer a request over the Unix socket, whose file mode restricts access; only here can GPUs be released."""
        if request.path in CONTROL_PATHS:
            query = _query_of(request)
            return _TOO_MANY if query is None else await self.control.answer(request, query)
        return await self._route(request, self._routes)

    async def compatible_only(self, request: HttpRequest) -> Response:
        """Answer a request on an address of its own, with the compatible page at ``/metrics``, where its scrapers expect it."""
        routes = {"/metrics": self._compatible_metrics, _HEALTHY: self._healthy, _READY: self._ready, "/health": self._healthy}
        return await self._guarded(request, routes)

    async def _guarded(self, request: HttpRequest, routes: Mapping[str, Route]) -> Response:
        refused, web = await self._access.checked(request, public=request.path == _HEALTHY)
        return self._under(web, refused or await self._route(request, routes))

    def _under(self, web: WebConfig, response: Response) -> Response:
        """Return the response with the headers of ``web``."""
        chosen = {name for name, _ in web.headers}
        return replace(response, headers=(*(header for header in response.headers if header[0] not in chosen), *web.headers))

    async def _route(self, request: HttpRequest, routes: Mapping[str, Route]) -> Response:
        query = _query_of(request)
        if query is None:
            return _TOO_MANY
        route = routes.get(request.path)
        if route is None:
            return Response(404, f"not found: try {self._telemetry_path}\n".encode())
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"only GET and HEAD\n", headers=(("allow", "GET, HEAD"),))
        return await route(request, query)

    async def _metrics(self, request: HttpRequest, query: Query) -> Response:
        accept = request.headers.get("accept", "")
        collectors: frozenset[str] | None = None
        if unknown_names := sorted(query.keys() - {"collect[]"}):
            return Response(
                400, f"no such parameter: {_line(unknown_names[0])}; collect[] names the wanted collectors\n".encode()
            )
        if "collect[]" in query:
            collectors = frozenset(query["collect[]"])
            unknown = sorted(collectors - self._page.collectors)
            if unknown:
                return Response(400, _unknown_collectors(unknown, self._page.collectors).encode())
        key = (prefers_openmetrics(accept), collectors)
        return await self._rendered_page(request, key, lambda: self._page.render(accept, collectors))

    async def _compatible_metrics(self, request: HttpRequest, query: Query) -> Response:
        if query:
            return Response(400, b"this page has no parameters: choose its metrics with --compat.dcgm-counters\n")
        compatible = self._compatible
        assert compatible is not None
        return await self._rendered_page(request, "compatible", compatible.render)

    async def _rendered_page(self, request: HttpRequest, key: Hashable, render: Callable[[], tuple[bytes, str]]) -> Response:
        compressed = accepts_gzip(request.headers.get("accept-encoding", ""))
        headers: tuple[tuple[str, str], ...] = (("vary", "accept, accept-encoding"), ("cache-control", "no-store"))
        if compressed:
            headers = (*headers, ("content-encoding", "gzip"))
        page = await self._rendered.get(key, render, compressed=compressed)
        return Response(200, *page, headers)

    async def _healthy(self, _request: HttpRequest, _query: Query) -> Response:
        """Answer without checking anything: a liveness probe must not restart the exporter because a driver hangs."""
        return Response(200, b"healthy\n")

    async def _ready(self, _request: HttpRequest, _query: Query) -> Response:
        body, content_type = await self._rendered.get(_READY, self._readiness)
        return Response(200 if body.startswith(_IS_READY) else 503, body, content_type)

    def _readiness(self) -> tuple[bytes, str]:
        problems, notes = (
            "".join(f"{_line(name)}: {_line(reason)}\n" for name, reason in lines)
            for lines in (self._page.problems(), self._page.notes())
        )
        return (b"not ready\n" if problems else _IS_READY) + f"{problems}{notes}".encode(), TEXT

    async def _landing(self, _request: HttpRequest, _query: Query) -> Response:
        body, content_type = await self._rendered.get("/", self._landing_page)
        return Response(200, body, content_type, (_CONTENT_SECURITY, ("cache-control", "no-store")))

    def _landing_page(self) -> tuple[bytes, str]:
        links = [self._telemetry_path, *([DCGM_PATH] if self._compatible is not None else []), _READY, _HEALTHY]
        return landing_page(self._page, links).encode(), "text/html; charset=utf-8"


def _query_of(request: HttpRequest) -> Query | None:
    """Parse the query; None if it has too many fields."""
    try:
        return parse_qs(request.query, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError:
        return None


@lru_cache(16)  # a scraper always sends the same header
def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header accepts gzip, with a weight above 0."""
    for part in header.split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            name, _, value = weight.partition("=")
            try:
                return name.strip().lower() != "q" or float(value) > 0
            except ValueError:
                return False
    return False


def _unknown_collectors(unknown: list[str], enabled: frozenset[str]) -> str:
    off = [name for name in unknown if name in COLLECTORS]
    names = [name for name in unknown if name not in COLLECTORS]
    reasons = [f"no such collector: {_line(', '.join(names))}"] if names else []
    reasons += [f"switched off: {', '.join(off)} (--collector.NAME)"] if off else []
    return "; ".join(reasons) + f"; on are: {', '.join(sorted(enabled))}\n"


def _line(text: str) -> str:
    """Return untrusted text as one printable line of at most 500 characters."""
    return one_line(text, " ")[:500]
