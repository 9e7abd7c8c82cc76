"""Rendered pages, kept for a moment: twenty scrapers that come together cost one rendering, and mostly do not wait for it."""

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
"""How long a page is given after it was made on demand, and after there was news that it does not have."""

AHEAD_INTERVALS: Final = 1.25
"""How long a page is given that was made ahead and has all news, in intervals of sampling, of which none counts for more than a
second: so much older than it says may everything on it be."""

_SETTLE_S: Final = 0.1  # the GPUs of a node are asked at the same moment, and some answer later than others
_KEPT_PAGES: Final = 16
_GZIP_LEVEL: Final = 2  # a page shrinks to a tenth at any level, and higher ones take twice as long for a few percent

Rendered = tuple[bytes, str]


@dataclass(slots=True)
class _Kept:
    """A page and how to make it: the last one, good until ``until_s``, and the one that is being made.

    ``asked_s`` is when it was asked for last, ``pause_s`` how long nobody had asked before that.
    """

    render: Callable[[], Rendered]
    ahead: bool
    asked_s: float
    pause_s: float = float("inf")
    until_s: float = float("-inf")
    last: Rendered = (b"", "")
    making: asyncio.Future[Rendered] | None = None

    def expected(self, now_s: float, within_s: float) -> bool:
        """Whether whoever asked before may be about to ask again."""
        return self.ahead and abs(self.asked_s + self.pause_s - now_s) <= within_s


class RenderedPages:
    """Renders in a thread of its own, one page at a time; who asks meanwhile, or a moment later, gets the same page.

    A page that is asked for with some regularity is made ahead, from the last ``news`` before the next scrape. There should be
    news every ``interval_s`` seconds. Pages that differ in anything, compression included, are kept apart, the newest few of
    them. One thread calls the methods.
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
        """The page and its content type; ``key`` stands for everything that makes pages differ. Raises what ``render`` raises.

        ``ahead`` says whether it may be a little behind, so as to be there at once.
        """
        if compressed:
            return await self._get((key, "gzip"), lambda: _compressed(render()), ahead)
        return await self._get(key, render, ahead)

    def forget(self) -> None:
        """Something has changed that the next page has to show."""
        self._kept.clear()

    def news(self) -> None:
        """There is something new to show, soon."""
        now_s = self._news_s = time.monotonic()
        for kept in self._kept.values():
            kept.until_s = min(kept.until_s, now_s + KEEP_S)
        if self._settling is None:
            settle_s = max(_SETTLE_S, self._ahead_at_s + KEEP_S - now_s)
            self._settling = asyncio.get_running_loop().call_later(settle_s, self._make_ahead)

    async def _get(self, key: Hashable, render: Callable[[], Rendered], ahead: bool) -> Rendered:
        now_s = time.monotonic()
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(render, ahead, now_s)
            if len(self._kept) > _KEPT_PAGES:
                self._kept.popitem(last=False)
        elif now_s - kept.asked_s > KEEP_S:  # those who come together ask once
            kept.asked_s, kept.pause_s = now_s, now_s - kept.asked_s
        self._kept.move_to_end(key)
        if kept.until_s > now_s:
            return kept.last
        # Shielded: one client that goes away must not take the page from the others.
        return await asyncio.shield(kept.making or self._make(kept, KEEP_S))

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
            return  # who waits for it hears of it; the next who asks tries again
        kept.last = making.result()
        kept.until_s = began_s + keep_s if self._news_s <= began_s else min(began_s + keep_s, self._news_s + KEEP_S)


def _compressed(rendered: Rendered) -> Rendered:
    page, content_type = rendered
    return gzip.compress(page, _GZIP_LEVEL, mtime=0), content_type
