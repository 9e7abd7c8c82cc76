"""Fetch of one page of the node's exporter over HTTP, within bounds of time and size."""

from __future__ import annotations

import base64
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

CONNECT_SECONDS: Final = 2.0
DEADLINE_SECONDS: Final = 4.0
"""Longest time for the whole page, even if it arrives slowly."""
MAX_PAGE_BYTES: Final = 2 * 1024 * 1024
"""Largest size of a page; one of 16 GPUs is a tenth of it."""


class ScrapeError(Exception):
    """Raised when there is no page; the message is the reason and contains no credentials."""


@dataclass(frozen=True, slots=True)
class Target:
    """Location of a page; ``shown`` is its address without user and password."""

    secure: bool
    host: str
    port: int | None
    path: str
    authorization: str | None = field(repr=False)
    shown: str


def parse_target(url: str) -> Target:
    """Parse a URL. Raises ``ValueError`` if it is not a valid http or https URL, without quoting a possible password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError("the exporter's address is not a URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the exporter's address must begin with http:// or https:// and name a host")
    path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    if not (path + parts.hostname).isascii() or any(letter.isspace() for letter in path + parts.hostname):
        raise ValueError("the exporter's address holds characters that a URL cannot")
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Target(
        secure=parts.scheme == "https",
        host=parts.hostname,
        port=port,
        path=path,
        authorization=authorization,
        shown=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}",
    )


def fetch(target: Target) -> bytes:
    """Return the page. Follows no redirects and uses no proxy. Raises ``ScrapeError``."""
    # Imported here: three megabytes of modules that only one helper per host needs.
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    kind = HTTPSConnection if target.secure else HTTPConnection
    connection = kind(target.host, target.port, timeout=CONNECT_SECONDS)
    late = threading.Event()
    try:
        connection.connect()
        alarm = threading.Timer(DEADLINE_SECONDS, _hang_up, (connection.sock, late))
        alarm.daemon = True
        alarm.start()
        try:
            headers = {"Accept": "text/plain;version=0.0.4", "User-Agent": "rankscope-recorder", "Connection": "close"}
            if target.authorization is not None:
                headers["Authorization"] = target.authorization
            connection.request("GET", target.path, headers=headers)
            with connection.getresponse() as response:
                if response.status != 200:
                    raise ScrapeError(f"it answered with status {response.status}")
                page = response.read(MAX_PAGE_BYTES + 1)
                cut_off = bool(response.length) and len(page) <= MAX_PAGE_BYTES
        finally:
            alarm.cancel()
    except (OSError, HTTPException, ValueError) as error:
        reason = "it took too long" if late.is_set() else getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ScrapeError(reason) from error
    finally:
        connection.close()
    if late.is_set() or cut_off:
        raise ScrapeError("it took too long" if late.is_set() else "the page was cut off")
    if len(page) > MAX_PAGE_BYTES:
        raise ScrapeError(f"the page has more than {MAX_PAGE_BYTES} bytes")
    return page


def _hang_up(connected: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
