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
"""How long a page is given after it was made, and after there was news that it does not have."""

AHEAD_INTERVALS: Final = 1.25
"""How long a page is given that was made ahead and has all news, in intervals of sampling, of which none counts for more than a
second: so much older than it says may everything on it be."""

_OFTEN_S: Final = 2.5  # who asks at least this often finds the page ready
_SETTLE_S: Final = 0.1  # the GPUs of a node are asked at the same moment, and some answer later than others
_KEPT_PAGES: Final = 16
_GZIP_LEVEL: Final = 2  # a page shrinks to a tenth at any level, and higher ones take twice as long for a few percent

Rendered = tuple[bytes, str]


@dataclass(slots=True)
class _Kept:
    """A page; ``asked_s`` and ``before_s`` are when it was asked for last, and before that."""

    render: Callable[[], Rendered]
    result: asyncio.Future[Rendered]
    until_s: float
    asked_s: float
    before_s: float = float("-inf")


class RenderedPages:
    """Renders in a thread of its own, one page at a time; who asks meanwhile, or a moment later, gets the same page.

    A page that is asked for again and again is made as soon as there is ``news``, which should be every ``interval_s`` seconds.
    Pages that differ in anything, compression included, are kept apart, the newest few of them. One thread calls the methods.
    """

    def __init__(self, interval_s: float) -> None:
        self._ahead_s = max(KEEP_S, AHEAD_INTERVALS * min(1, interval_s))
        self._thread = ThreadPoolExecutor(1, "render")
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._settling: asyncio.TimerHandle | None = None
        self._news_s = 0.0

    async def get(self, key: Hashable, render: Callable[[], Rendered], *, compressed: bool = False) -> Rendered:
        """The page and its content type; ``key`` stands for everything that makes pages differ. Raises what ``render`` raises."""
        return await (self._get((key, "gzip"), lambda: _compressed(render())) if compressed else self._get(key, render))

    def forget(self) -> None:
        """Something has changed that the next page has to show."""
        self._kept.clear()

    def news(self) -> None:
        """There is something new to show, soon."""
        self._news_s = time.monotonic()
        for kept in self._kept.values():
            kept.until_s = min(kept.until_s, self._news_s + KEEP_S)
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(_SETTLE_S, self._make_ahead)

    async def _get(self, key: Hashable, render: Callable[[], Rendered]) -> Rendered:
        now_s = time.monotonic()
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(render, self._start(render), now_s + KEEP_S, now_s)
            if len(self._kept) > _KEPT_PAGES:
                self._kept.popitem(last=False)
        elif kept.until_s <= now_s:
            kept.result, kept.until_s = self._start(render), now_s + KEEP_S
            self._kept.move_to_end(key)
        if now_s - kept.asked_s > KEEP_S:  # those who come together ask once
            kept.asked_s, kept.before_s = now_s, kept.asked_s
        # Shielded: one client that goes away must not take the page from the others.
        return await asyncio.shield(kept.result)

    def _make_ahead(self) -> None:
        self._settling = None
        now_s = time.monotonic()
        for kept in self._kept.values():
            if now_s - kept.asked_s <= _OFTEN_S and kept.asked_s - kept.before_s <= _OFTEN_S:
                self._start(kept.render).add_done_callback(partial(self._replace, kept, now_s))

    def _replace(self, kept: _Kept, began_s: float, result: asyncio.Future[Rendered]) -> None:
        """A page that was made ahead is there; if that failed, the next who asks will hear of it."""
        if not result.cancelled() and result.exception() is None:
            kept.result = result
            kept.until_s = began_s + self._ahead_s if self._news_s <= began_s else self._news_s + KEEP_S

    def _start(self, render: Callable[[], Rendered]) -> asyncio.Future[Rendered]:
        return asyncio.get_running_loop().run_in_executor(self._thread, render)


def _compressed(rendered: Rendered) -> Rendered:
    page, content_type = rendered
    return gzip.compress(page, _GZIP_LEVEL, mtime=0), content_type
