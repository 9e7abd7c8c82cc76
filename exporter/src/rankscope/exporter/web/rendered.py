"""Cache of rendered pages: simultaneous scrapes cost one rendering, and regular ones do not wait for it."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

KEEP_S: Final = 0.25
"""Seconds for which a page is served after it was rendered on demand, or after newer data arrived."""

AHEAD_INTERVALS: Final = 1.25
"""Sampling intervals (of at most one second each) for which a pre-rendered page is served if no newer data arrives.

Values may be this much staler than the page's age metrics say."""

_SETTLE_S: Final = 0.1  # the GPUs of a node are sampled at the same time, but do not all answer at once
_JITTER: Final = 0.04  # of the time between two scrapes
_KEPT_PAGES: Final = 16
_GZIP_LEVEL: Final = 2  # any level shrinks a page to a tenth; higher ones take twice as long for a few percent

Rendered = tuple[bytes, str]


@dataclass(slots=True)
class _Kept:
    """Cache entry of a page: ``last``, valid until ``until_s``, and ``making``, the rendering in progress.

    ``asked_s`` is the time of the last request, ``pause_s`` the time between it and the request before. Times are monotonic.
    """

    render: Callable[[], Rendered]
    ahead: bool
    asked_s: float
    pause_s: float = float("inf")
    until_s: float = float("-inf")
    last: Rendered = (b"", "")
    making: asyncio.Future[Rendered] | None = None

    def expected(self, now_s: float, within_s: float) -> bool:
        """Return whether the next request is due within ``within_s``, if requests are periodic up to a jitter."""
        return self.ahead and abs(self.asked_s + self.pause_s - now_s) - _JITTER * self.pause_s <= within_s


class RenderedPages:
    """Cache of rendered pages. A thread of its own renders one page at a time.

    Requests during a rendering, or up to ``KEEP_S`` after its start, get the same page. A page that is scraped regularly is
    pre-rendered after the last ``news`` before the next scrape. ``interval_s`` is the expected time between calls of ``news``.
    The 16 most recently requested pages are kept, and compressed pages count separately. Not thread-safe.
    """

    def __init__(self, interval_s: float) -> None:
        self._ahead_s = max(KEEP_S, AHEAD_INTERVALS * min(1, interval_s))
        self._thread = ThreadPoolExecutor(1, "render")
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._settling: asyncio.TimerHandle | None = None
        self._news_s = self._ahead_at_s = float("-inf")

    async def get(
        self, key: Hashable, render: Callable[[], Rendered], *, compressed: bool = False, ahead: bool = False
    ) -> Rendered:
        """Return the page and its content type. Raises what ``render`` raises.

        ``key`` identifies the page. With ``ahead``, the page may be pre-rendered: available at once, but slightly stale.
        """
        if (page := self.rendered(key, compressed=compressed)) is not None:
            return page
        place = (key, compressed)
        kept = self._kept.get(place)
        if kept is None:
            kept = self._kept[place] = _Kept((lambda: _compressed(render())) if compressed else render, ahead, time.monotonic())
            if len(self._kept) > _KEPT_PAGES:
                self._kept.popitem(last=False)
        # Shielded: a client that disconnects must not cancel the rendering for the others.
        return await asyncio.shield(kept.making or self._make(kept, KEEP_S))

    def rendered(self, key: Hashable, *, compressed: bool = False) -> Rendered | None:
        """Return a page that need not be rendered now; else None. The request counts, so that the next one is expected."""
        kept = self._kept.get((key, compressed))
        if kept is None:
            return None
        now_s = time.monotonic()
        if now_s - kept.asked_s > KEEP_S:  # simultaneous requests count as one
            kept.asked_s, kept.pause_s = now_s, now_s - kept.asked_s
        self._kept.move_to_end((key, compressed))
        return kept.last if kept.until_s > now_s else None

    def forget(self) -> None:
        """Drop all pages, because the next one must show a change."""
        self._kept.clear()

    def news(self) -> None:
        """Report that new data has arrived: pages without it expire within ``KEEP_S``, and pages due soon are pre-rendered."""
        now_s = self._news_s = time.monotonic()
        for kept in self._kept.values():
            kept.until_s = min(kept.until_s, now_s + KEEP_S)
        if self._settling is None:
            settle_s = max(_SETTLE_S, self._ahead_at_s + KEEP_S - now_s)
            self._settling = asyncio.get_running_loop().call_later(settle_s, self._make_ahead)

    def _make_ahead(self) -> None:
        self._settling = None
        now_s = self._ahead_at_s = time.monotonic()
        for kept in self._kept.values():
            if kept.making is None and kept.expected(now_s, self._ahead_s):
                self._make(kept, self._ahead_s)

    def _make(self, kept: _Kept, keep_s: float) -> asyncio.Future[Rendered]:
        making = kept.making = asyncio.get_running_loop().run_in_executor(self._thread, kept.render)
        making.add_done_callback(partial(self._made, kept, time.monotonic(), keep_s))
        return making

    def _made(self, kept: _Kept, began_s: float, keep_s: float, making: asyncio.Future[Rendered]) -> None:
        kept.making = None
        if making.cancelled() or making.exception() is not None:
            return  # the waiting requests raise the error; the next request renders again
        kept.last = making.result()
        kept.until_s = began_s + keep_s if self._news_s <= began_s else min(began_s + keep_s, self._news_s + KEEP_S)


def _compressed(rendered: Rendered) -> Rendered:
    page, content_type = rendered
    return gzip.compress(page, _GZIP_LEVEL, mtime=0), content_type
