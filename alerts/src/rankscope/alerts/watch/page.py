"""The watcher's own health: metrics for Prometheus, and a health check.

A watcher that is gone, or stuck in a file server, is as quiet as one that finds nothing, so something has to watch it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from rankscope.alerts.address import bind

STUCK_AFTER_S: Final = 300.0
"""An evaluation of a thousand ranks that is made late takes a minute."""
_ASK_S: Final = 10.0
"""For one request."""
_TEXT: Final = "text/plain; charset=utf-8"
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Result of the last evaluation."""

    runs: int
    """Runs that go on."""
    firing: int
    troubles: int
    """Runs and folders that could not be read or evaluated."""
    untold: int
    """Receivers that have not accepted an alert in its present state."""


_HELP: Final = {
    "runs": "Runs that go on and are followed.",
    "alerts_firing": "Alerts that fire.",
    "troubles": "Runs and folders that the last evaluation could not read.",
    "untold_receivers": "Alertmanagers and webhooks that have not accepted an alert in its present state.",
    "finished": "1 when the one run that this watcher followed is over and the watcher is about to exit, 0 before.",
    "evaluated_timestamp_seconds": "When the last evaluation ended, in seconds since 1970.",
}
_SCRAPED_WITHIN_S: Final = 300.0
"""A client that has not scraped for longer is not expected to scrape again."""


class WatcherPage:
    """What is served at ``/metrics`` and ``/-/healthy``. ``elapsed``: seconds of a clock that is never set."""

    def __init__(self, *, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._began_s = elapsed()
        self._last: tuple[Watched, float, float] | None = None
        self._finished = False
        self._scrapes = threading.Condition()
        self._scraped_s: dict[str, float] = {}
        """Clients that have not scraped since the end, and when they did last."""

    def evaluated(self, watched: Watched) -> None:
        """An evaluation is over."""
        self._last = (watched, self._clock(), self._elapsed())

    @property
    def healthy(self) -> bool:
        """Whether the last evaluation, or the start, is not long ago."""
        return self._elapsed() - (self._began_s if self._last is None else self._last[2]) < STUCK_AFTER_S

    def finish(self, patience_s: float) -> bool:
        """Report that the followed run is over, and wait until every client that scrapes has been told; returns whether all were.

        Prometheus cannot tell a watcher that ended from one that was killed, unless its last sample says so.
        """
        now_s = self._elapsed()
        with self._scrapes:
            self._finished = True
            self._scraped_s = {client: at for client, at in self._scraped_s.items() if now_s - at < _SCRAPED_WITHIN_S}
            return self._scrapes.wait_for(lambda: not self._scraped_s, timeout=patience_s)

    @contextmanager
    def scrape(self, client: str) -> Iterator[str]:
        """``metrics`` for the client at an address; to be sent before the context ends, for the process may exit then."""
        finished = self._finished
        yield self.metrics()
        with self._scrapes:
            if finished:
                self._scraped_s.pop(client, None)
                self._scrapes.notify_all()
            else:
                self._scraped_s[client] = self._elapsed()

    def metrics(self) -> str:
        """In Prometheus' text format; nothing before the first evaluation is over."""
        if self._last is None:
            return ""
        watched, at, _ = self._last
        values = (watched.runs, watched.firing, watched.troubles, watched.untold, int(self._finished), f"{at:.3f}")
        lines = []
        for (name, text), value in zip(_HELP.items(), values, strict=True):
            full = f"rankscope_watcher_{name}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {value}"]
        return "".join(f"{line}\n" for line in lines)

    def serve(self, host: str, port: int) -> int:
        """Serve it from threads of its own until the process ends; returns the port. Raises ``InputError``."""
        page = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _ASK_S

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    with page.scrape(self.client_address[0]) as text:
                        self._answer(HTTPStatus.OK, _PROMETHEUS, text)
                elif self.path == "/-/healthy":
                    status = HTTPStatus.OK if page.healthy else HTTPStatus.SERVICE_UNAVAILABLE
                    self._answer(status, _TEXT, "ok\n" if page.healthy else f"no evaluation for {STUCK_AFTER_S:.0f} s\n")
                else:
                    self._answer(HTTPStatus.NOT_FOUND, _TEXT, "GET /metrics, /-/healthy\n")

            def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                """Nobody reads it."""

        server = ThreadingHTTPServer((host, port), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = bind(host, port)
        threading.Thread(target=server.serve_forever, name="rankscope-watcher-page", daemon=True).start()
        return int(server.socket.getsockname()[1])
