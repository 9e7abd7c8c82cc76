"""Sending one JSON body over HTTP: bounded retries, bounded time, no redirects, and no secret of an address in any message."""

from __future__ import annotations

import hashlib
from typing import Final

import httpx
import stamina

from rankscope.alerts.deadline import Deadline
from rankscope.alerts.redacted import plain_words

ATTEMPTS: Final = 3
TOTAL_S: Final = 30.0
"""After this long no further attempt begins."""
TIMEOUT: Final = httpx.Timeout(10.0, connect=5.0)
"""For each connect, read and write."""
ATTEMPT_S: Final = 10.0
"""For one attempt from beginning to end, however many reads it takes."""


class DeliveryError(Exception):
    """A body was not accepted; the message says why without the address."""


class _PassingError(DeliveryError):
    """Worth another attempt: nobody there, too slow, or the receiver said it is busy or broken."""


def http_client(*, timeout: httpx.Timeout = TIMEOUT) -> httpx.Client:
    """A client that verifies TLS, follows no redirect, and honours ``HTTPS_PROXY`` and ``SSL_CERT_FILE``."""
    # No connection is kept: the deadline of an attempt learns of its connection when that is made.
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(timeout=timeout, limits=limits, follow_redirects=False, headers={"User-Agent": "rankscope"})


def post_json(client: httpx.Client, url: str, body: bytes, *, attempts: int = ATTEMPTS, attempt_s: float = ATTEMPT_S) -> None:
    """POST ``body``; returns when it was accepted (2xx).

    Raises ``DeliveryError``: at once for a redirect or a refusal (4xx), after ``attempts`` for 5xx, 429 and network errors.
    """
    for attempt in stamina.retry_context(on=_PassingError, attempts=attempts, timeout=TOTAL_S, wait_initial=0.5, wait_max=5.0):
        with attempt:
            _post(client, url, body, attempt_s)


def _post(client: httpx.Client, url: str, body: bytes, attempt_s: float) -> None:
    headers = {"Content-Type": "application/json"}
    with Deadline(attempt_s) as deadline:
        try:
            # The body of the answer is of no interest and could be endless: it is never read.
            with client.stream("POST", url, content=body, headers=headers, extensions={"trace": deadline.trace}) as response:
                status = response.status_code
        except httpx.TimeoutException as error:
            raise _PassingError("no answer in time") from error
        except httpx.TransportError as error:
            raise _PassingError("no answer in time" if deadline.passed else plain_words(error, url)) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DeliveryError(type(error).__name__) from error
    if httpx.codes.is_success(status):
        return
    if httpx.codes.is_redirect(status):
        raise DeliveryError(f"answered {status}; redirects are not followed")
    if status == httpx.codes.TOO_MANY_REQUESTS or httpx.codes.is_server_error(status):
        raise _PassingError(f"answered {status}")
    raise DeliveryError(f"refused with {status}")


def receiver_key(kind: str, url: str) -> str:
    """A stable name of a receiver for the state file, from which the address cannot be read."""
    return f"{kind}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
