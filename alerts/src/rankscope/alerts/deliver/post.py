"""One POST over HTTP: bounded time, no redirects, and no secret of an address in any message."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx

from rankscope.alerts.deliver.retrying import judge_status


class Deadline:
    """Cuts the connection of a request when its time is up.

    The time-outs of httpx begin anew with every byte, so a receiver that sends one now and then would hold us up for hours.
    Used as httpx's ``trace``, it learns of each connection that is made.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._seconds = seconds
        self._over = False
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        _WATCHDOG.watch(self, time.monotonic() + self._seconds)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._over = True
            self._connection = None

    def trace(self, _event: str, info: Mapping[str, Any]) -> None:
        """What httpx is doing: look for a connection, plain or inside TLS."""
        ask = getattr(info.get("return_value"), "get_extra_info", None)
        connection = ask("socket") if ask else None
        if isinstance(connection, socket.socket):
            with self._lock:
                self._connection = connection
                if self.passed:
                    _shut(connection)

    def cut(self) -> None:
        """Its time is up."""
        with self._lock:
            if self._over:
                return
            self.passed = True
            if self._connection is not None:
                _shut(self._connection)


class _Watchdog:
    """One thread for all deadlines: a timer for each would cost more than the request that it watches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Deadline]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def watch(self, deadline: Deadline, when_s: float) -> None:
        """Cut it at that time of ``time.monotonic``, unless it is over."""
        with self._changed:
            heapq.heappush(self._due, (when_s, next(self._numbers), deadline))
            if self._thread is None or not self._thread.is_alive():  # the latter in a process that was forked
                self._thread = threading.Thread(target=self._run, name="rankscope-deadlines", daemon=True)
                self._thread.start()
            elif self._due[0][2] is deadline:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                deadline = heapq.heappop(self._due)[2]
            deadline.cut()


_WATCHDOG = _Watchdog()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # closed already
        # The plain one also for TLS, which would first take the connection apart under the thread that reads from it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


_THROUGH: Final = ", through the proxy "


def through(error: Exception, proxy: str) -> str:
    """The error's own words, and the proxy that they may be about; it is named without its password."""
    return f"{error}{_THROUGH}{redact(proxy)}"


def plain_words(error: Exception, url: str, *, late: bool = False) -> str:
    """The error's own words, unless they quote the address; ``late``: that it took too long. The proxy stays in them."""
    text, said, proxy = str(error).partition(_THROUGH)
    parts = urlsplit(url)
    secrets = [part for part in (parts.path.strip("/"), parts.query, parts.username, parts.password) if part]
    if not text or any(secret in text for secret in secrets):
        text = type(error).__name__
    return ("no answer in time" if late else text) + said + proxy


def redact(url: str) -> str:
    """An address fit for a log: scheme, host and port. User, path and query may be secrets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    port = f":{parts.port}" if parts.port is not None else ""
    rest = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{host}{port}{rest}"


ATTEMPT_S: Final = 10.0
"""For one attempt from beginning to end, however many reads it takes."""
_JSON: Final = {"Content-Type": "application/json"}


class DeliveryError(Exception):
    """A body was not accepted; the message says why without the address."""


class NoAnswerError(DeliveryError):
    """Nobody there, too slow (``late``), or gone in between. ``sent``: the body may have arrived all the same."""

    def __init__(self, reason: str, *, sent: bool, late: bool) -> None:
        super().__init__(reason)
        self.sent = sent
        self.late = late


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer, as far as it matters: ``retry_after`` and ``date`` are the headers."""

    status: int
    retry_after: str = ""
    date: str = ""


def post(
    client: httpx.Client, url: str, body: bytes, *, headers: Mapping[str, str] = _JSON, attempt_s: float = ATTEMPT_S
) -> Answer:
    """POST ``body`` once. Raises ``NoAnswerError``, and ``DeliveryError`` for what cannot be asked at all."""
    with Deadline(attempt_s) as deadline:
        try:
            # The body of the answer is of no interest and could be endless: it is never read.
            with client.stream("POST", url, content=body, headers=headers, extensions={"trace": deadline.trace}) as response:
                return Answer(response.status_code, response.headers.get("Retry-After", ""), response.headers.get("Date", ""))
        except (httpx.ConnectTimeout, httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol) as error:
            late = deadline.passed or isinstance(error, httpx.ConnectTimeout)
            raise NoAnswerError(plain_words(error, url, late=late), sent=False, late=late) from error
        except httpx.LocalProtocolError as error:  # its words quote headers
            raise DeliveryError(type(error).__name__) from error
        except httpx.TransportError as error:
            late = deadline.passed or isinstance(error, httpx.TimeoutException)
            raise NoAnswerError(plain_words(error, url, late=late), sent=True, late=late) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DeliveryError(type(error).__name__) from error


def post_json(client: httpx.Client, url: str, body: bytes, *, attempt_s: float = ATTEMPT_S) -> None:
    """POST ``body`` once; returns when it was accepted (2xx). Raises ``DeliveryError``."""
    judgement = judge_status(post(client, url, body, attempt_s=attempt_s).status)
    if judgement.kind != "delivered":
        raise DeliveryError(judgement.reason)


def receiver_key(kind: str, url: str) -> str:
    """A stable name of a receiver for the state file, from which the address cannot be read."""
    return f"{kind}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
