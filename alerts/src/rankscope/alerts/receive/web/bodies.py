"""Reading of request bodies within bounds of time and memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rankscope.alerts.receive.web.refusals import CLOSE, Refusal, retry_after

MAX_BODY_BYTES: Final = 20 * 2**20
"""2,000 of the largest alerts of our own rules, with long labels, weigh 11 MiB: tests/alerts/receive/test_refusals.py."""
BODY_TIMEOUT_S: Final = 15.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


@dataclass(slots=True, eq=False)
class Body:
    """Memory of one request's body. ``deadline`` ends its reading; ``None`` unless it is being read."""

    address: str
    size: int = 0
    evicted: bool = False
    deadline: asyncio.Timeout | None = None


class BodyBudget:
    """Memory for the bodies of open requests, at most ``limit_bytes``.

    With ``evicts``, a body for which there is no room ends another one that is still being read: the oldest of the address
    that holds most. A sender that stalls thus does not lock out others. Otherwise the new body is refused.
    """

    def __init__(self, limit_bytes: int, *, evicts: bool) -> None:
        self._limit_bytes = limit_bytes
        self._evicts = evicts
        self._bodies: dict[Body, None] = {}

    @property
    def used_bytes(self) -> int:
        """Size of all bodies."""
        return sum(body.size for body in self._bodies)

    @contextmanager
    def body(self, address: str) -> Iterator[Body]:
        """Hold the memory of one body until its request is answered."""
        body = Body(address)
        self._bodies[body] = None
        try:
            yield body
        finally:
            del self._bodies[body]

    async def read(self, scope: Scope, receive: Receive, body: Body) -> bytes:
        """Read a body. Raises ``Refusal`` if it is too large, too slow, cut off, or if there is no room for it."""
        advice = f"the body is larger than {MAX_BODY_BYTES} bytes; set max_alerts in Alertmanager's webhook_configs"
        too_large = Refusal(413, "too_large", advice, (CLOSE,))
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise too_large
        data = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S) as body.deadline:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "cut_off", "the connection was closed early")
                    chunk = message.get("body", b"")
                    self._reserve(body, len(chunk))
                    data += chunk
                    if len(data) > MAX_BODY_BYTES:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(data)
        except TimeoutError as error:
            if body.evicted:
                raise _busy() from error
            raise Refusal(408, "slow", "the body did not arrive in time", (CLOSE,)) from error
        finally:
            body.deadline = None

    def _reserve(self, body: Body, size: int) -> None:
        if body.evicted:
            raise _busy()
        body.size += size
        while self.used_bytes > self._limit_bytes:
            victim = self._victim() if self._evicts else body
            if victim is None or victim is body:
                raise _busy()
            assert victim.deadline is not None
            victim.size, victim.evicted = 0, True
            victim.deadline.reschedule(asyncio.get_running_loop().time())

    def _victim(self) -> Body | None:
        """Return the oldest unfinished body of the address that holds most in unfinished bodies."""
        unfinished = [body for body in self._bodies if body.deadline is not None and body.size]
        bytes_of_address = Counter[str]()
        for body in unfinished:
            bytes_of_address[body.address] += body.size
        if not bytes_of_address:
            return None
        [(largest, _)] = bytes_of_address.most_common(1)
        return next(body for body in unfinished if body.address == largest)


def _busy() -> Refusal:
    return Refusal(503, "busy", "too many large deliveries arrive at once; try again", (CLOSE, *retry_after(1)))
