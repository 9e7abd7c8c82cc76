"""The watcher's own health: metrics for Prometheus, and a health check.

A watcher that exited or hangs in a file server is as silent as one that finds nothing, so it needs monitoring itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from rankscope.base.exposition import TEXT_TYPE, Family, exposition_text
from rankscope.base.http import HttpRequest, Response, application, open_listener

STUCK_AFTER_S: Final = 300.0
"""Age of the last evaluation at which the watcher is unhealthy; a late evaluation of a thousand ranks takes a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Result of the last evaluation."""

    runs: int
    """Active runs."""
    firing: int
    problems: int
    """Runs and folders that could not be read or evaluated."""
    undelivered: int
    """Receivers that have not accepted the current state of an alert."""


_HELP: Final = {
    "runs": "Active runs that are followed.",
    "alerts_firing": "Firing alerts.",
    "problems": "Runs and folders that the last evaluation could not read.",
    "undelivered_receivers": "Alertmanagers and webhooks that have not accepted an alert in its current state.",
    "finished": "1 when the one run that this watcher followed is over and the watcher is about to exit, 0 before.",
    "evaluated_timestamp_seconds": "When the last evaluation ended, in seconds since 1970.",
}
_INFO_HELP: Final = "Always 1. A watcher that moves to another address with its state folder keeps its store."
_SENT_AFTER_S: Final = 0.2
_SCRAPED_WITHIN_S: Final = 300.0
"""Time without a scrape after which a client is not expected to scrape again."""


class WatcherPage:
    """Server of ``/metrics`` and ``/-/healthy``. ``elapsed`` returns seconds of a monotonic clock."""

    def __init__(self, *, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._began_s = elapsed()
        self._last: tuple[Evaluation, float, float] | None = None
        self._finished = False
        self.store_id = ""
        """``AlertStore.id``: tells that a watcher at another address is the same one."""
        self._scrapes = threading.Condition()
        self._scraped_s: dict[str, float] = {}
        """Clients that have not scraped the end of the run yet, with the time of their last scrape."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """Record a finished evaluation."""
        self._last = (evaluation, self._clock(), self._elapsed())

    @property
    def healthy(self) -> bool:
        """True if the last evaluation, or else the start, is recent."""
        return self._elapsed() - (self._began_s if self._last is None else self._last[2]) < STUCK_AFTER_S

    def finish(self, patience_s: float) -> bool:
        """Publish the end of the followed run, and wait until every known client has scraped it; return whether all did.

        Without this last sample, Prometheus cannot distinguish a watcher that finished from one that was killed.
        """
        now_s = self._elapsed()
        with self._scrapes:
            self._finished = True
            self._scraped_s = {client: at for client, at in self._scraped_s.items() if now_s - at < _SCRAPED_WITHIN_S}
            return self._scrapes.wait_for(lambda: not self._scraped_s, timeout=patience_s)

    def scraped(self, client: str, *, finished: bool) -> None:
        """Record that a client, by its address, was sent the metrics; ``finished``: with the end of the run."""
        with self._scrapes:
            if finished:
                self._scraped_s.pop(client, None)
                self._scrapes.notify_all()
            else:
                self._scraped_s[client] = self._elapsed()

    def metrics(self) -> bytes:
        """Render the metrics in Prometheus' text format; empty before the end of the first evaluation."""
        if self._last is None:
            return b""
        last, at, _ = self._last
        values = (last.runs, last.firing, last.problems, last.undelivered, int(self._finished), round(at, 3))
        families = []
        for (name, help_text), value in zip(_HELP.items(), values, strict=True):
            families.append(Family(f"rankscope_watcher_{name}", "gauge", help_text))
            families[-1].add((), value)
        if self.store_id:
            families.append(Family("rankscope_watcher_info", "gauge", _INFO_HELP))
            families[-1].add((("store", self.store_id),), 1)
        return exposition_text(families)

    def serve(self, host: str, port: int) -> int:
        """Serve from a thread until the process exits; return the port. Raises ``InputError``."""
        from rankscope.base.http_server import ListenEndpoint, serve_in_thread

        sock = open_listener(host, port)
        serve_in_thread([ListenEndpoint(sock, application(self._answer))], "rankscope-watcher-page")
        return int(sock.getsockname()[1])

    async def _answer(self, request: HttpRequest) -> Response:
        if request.path not in ("/metrics", "/-/healthy"):
            return Response(404, b"GET /metrics, /-/healthy\n")
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"only GET and HEAD\n", headers=(("allow", "GET, HEAD"),))
        if request.path == "/metrics":
            if self._finished:
                # Delayed: the process exits once the last client is recorded, and this response must be sent before.
                asyncio.get_running_loop().call_later(_SENT_AFTER_S, partial(self.scraped, request.peer, finished=True))
            else:
                # At once: if the run ends now, ``finish`` must wait for this client.
                self.scraped(request.peer, finished=False)
            return Response(200, self.metrics(), TEXT_TYPE)
        return Response(200, b"ok\n") if self.healthy else Response(503, f"no evaluation for {STUCK_AFTER_S:.0f} s\n".encode())
