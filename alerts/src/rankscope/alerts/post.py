"""One POST over HTTP: bounded time, no redirects, and no secret of an address in any message."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from rankscope.alerts.deadline import Deadline
from rankscope.alerts.redacted import plain_words
from rankscope.alerts.retrying import judge_status

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
