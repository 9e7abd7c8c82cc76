"""Refusals of requests: an HTTP answer each, and log lines that a sender cannot multiply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rankscope.base.text import one_line

REFUSALS_S: Final = 60.0
"""Further refusals for one reason are reported together after this long."""
EVICTED: Final = "evicted"
"""Reason of a connection that was closed before its answer, to make room for another."""

_Headers = tuple[tuple[bytes, bytes], ...]
CLOSE: Final = (b"connection", b"close")


def retry_after(seconds: float) -> _Headers:
    """Header that tells the sender when to try again."""
    return ((b"retry-after", b"%d" % max(1, round(seconds))),)


class Refusal(Exception):  # noqa: N818 - an HTTP answer, not an error
    """Refusal of a request, with a status and one line of text."""

    def __init__(self, status: int, reason: str, text: str, headers: _Headers = ()) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        """Label of the counter."""
        self.text = text
        self.headers = headers


class RefusalLog:
    """Reports refused requests: the first for a reason at once, the number of further ones after ``REFUSALS_S``."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._further: dict[str, int] = {}

    def add(self, refused: Refusal, client: str) -> None:
        """Report a refusal. Runs in the event loop."""
        self._add(refused.reason, client, f"with {refused.status} ({refused.reason}): {refused.text}")

    def add_evicted(self, client: str) -> None:
        """Report a connection that was closed before its answer. Runs in the event loop."""
        self._add(EVICTED, client, f"without an answer ({EVICTED}): too many connections are open, the sender has to try again")

    def _add(self, reason: str, client: str, how: str) -> None:
        if reason in self._further:
            self._further[reason] += 1
            return
        self._further[reason] = 0
        self._report(f"refused a delivery from {one_line(client) or 'an unknown address'} {how}")
        asyncio.get_running_loop().call_later(REFUSALS_S, self._summarise, reason)

    def _summarise(self, reason: str) -> None:
        if further := self._further.pop(reason):
            self._report(f"refused {further} more deliveries within {REFUSALS_S:g} s ({reason})")
