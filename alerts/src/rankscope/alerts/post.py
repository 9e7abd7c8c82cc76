"""Sending one JSON body over HTTP: bounded retries, bounded time, no redirects, and no secret of an address in any message."""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import urlsplit

import httpx
import stamina

ATTEMPTS: Final = 3
TOTAL_S: Final = 30.0
"""After this long no further attempt begins."""
TIMEOUT: Final = httpx.Timeout(10.0, connect=5.0)


class DeliveryError(Exception):
    """A body was not accepted; the message says why without the address."""


class _PassingError(DeliveryError):
    """Worth another attempt: nobody there, too slow, or the receiver said it is busy or broken."""


def http_client(*, timeout: httpx.Timeout = TIMEOUT) -> httpx.Client:
    """A client that verifies TLS, follows no redirect, and honours ``HTTPS_PROXY`` and ``SSL_CERT_FILE``."""
    return httpx.Client(timeout=timeout, follow_redirects=False, headers={"User-Agent": "rankscope"})


def post_json(client: httpx.Client, url: str, body: bytes, *, attempts: int = ATTEMPTS) -> None:
    """POST ``body``; returns when it was accepted (2xx).

    Raises ``DeliveryError``: at once for a redirect or a refusal (4xx), after ``attempts`` for 5xx, 429 and network errors.
    """
    for attempt in stamina.retry_context(on=_PassingError, attempts=attempts, timeout=TOTAL_S, wait_initial=0.5, wait_max=5.0):
        with attempt:
            _post(client, url, body)


def _post(client: httpx.Client, url: str, body: bytes) -> None:
    try:
        # The body of the answer is of no interest and could be endless: it is never read.
        with client.stream("POST", url, content=body, headers={"Content-Type": "application/json"}) as response:
            status = response.status_code
    except httpx.TimeoutException as error:
        raise _PassingError("no answer in time") from error
    except httpx.TransportError as error:
        raise _PassingError(_plain(error, url)) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DeliveryError(type(error).__name__) from error
    if httpx.codes.is_success(status):
        return
    if httpx.codes.is_redirect(status):
        raise DeliveryError(f"answered {status}; redirects are not followed")
    if status == httpx.codes.TOO_MANY_REQUESTS or httpx.codes.is_server_error(status):
        raise _PassingError(f"answered {status}")
    raise DeliveryError(f"refused with {status}")


def _plain(error: httpx.TransportError, url: str) -> str:
    """The error's own words, unless they quote the address."""
    text = str(error)
    parts = urlsplit(url)
    secrets = [part for part in (parts.path.strip("/"), parts.query, parts.username, parts.password) if part]
    return type(error).__name__ if not text or any(secret in text for secret in secrets) else text


def redact(url: str) -> str:
    """An address fit for a log: scheme, host and port. User, path and query may be secrets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    port = f":{parts.port}" if parts.port is not None else ""
    rest = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{host}{port}{rest}"


def receiver_key(kind: str, url: str) -> str:
    """A stable name of a receiver for the state file, from which the address cannot be read."""
    return f"{kind}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
