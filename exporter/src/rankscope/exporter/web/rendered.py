"""Rendered pages, kept for a moment: twenty scrapers that come together cost one rendering."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

KEEP_S: Final = 0.25
_KEPT_PAGES: Final = 16
_GZIP_LEVEL: Final = 2  # a page shrinks to a tenth at any level, and higher ones take twice as long for a few percent

Rendered = tuple[bytes, str]


@dataclass(frozen=True, slots=True)
class _Kept:
    until: float
    result: asyncio.Future[Rendered]


class RenderedPages:
    """Renders in a thread of its own, one page at a time; who asks meanwhile, or a moment later, gets the same page.

    Pages that differ in anything, compression included, are kept apart, the newest few of them. One thread calls the methods.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "render")
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    async def get(self, key: Hashable, render: Callable[[], Rendered], *, compressed: bool = False) -> Rendered:
        """The page and its content type; ``key`` stands for everything that makes pages differ. Raises what ``render`` raises."""
        return await (self._get((key, "gzip"), lambda: _compressed(render())) if compressed else self._get(key, render))

    def forget(self) -> None:
        """Something has changed that the next page has to show."""
        self._kept.clear()

    async def _get(self, key: Hashable, render: Callable[[], Rendered]) -> Rendered:
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or kept.until <= now:
            result = asyncio.get_running_loop().run_in_executor(self._thread, render)
            kept = self._kept[key] = _Kept(now + KEEP_S, result)
            self._kept.move_to_end(key)
            if len(self._kept) > _KEPT_PAGES:
                self._kept.popitem(last=False)
        # Shielded: one client that goes away must not take the page from the others.
        return await asyncio.shield(kept.result)


def _compressed(rendered: Rendered) -> Rendered:
    page, content_type = rendered
    return gzip.compress(page, _GZIP_LEVEL, mtime=0), content_type
