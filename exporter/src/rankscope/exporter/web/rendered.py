"""Cache of rendered pages: simultaneous scrapes cost one rendering."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

KEEP_S: Final = 0.25
"""Seconds for which a page is served after its rendering began; it may be this much staler than its age metrics say."""

_KEPT_PAGES: Final = 16
_GZIP_LEVEL: Final = 2  # any level shrinks a page to a tenth; higher ones take twice as long for a few percent

Rendered = tuple[bytes, str]


class _Rendering(NamedTuple):
    """A rendering and the monotonic time at which it began."""

    page: asyncio.Future[Rendered]
    began_s: float

    def is_current(self) -> bool:
        """Return whether the page may be served: it is being rendered, or was rendered a moment ago without an error."""
        if not self.page.done():
            return True
        return time.monotonic() - self.began_s <= KEEP_S and not self.page.cancelled() and self.page.exception() is None


class RenderedPages:
    """Cache of rendered pages. A thread of its own renders one page at a time.

    Requests during a rendering, or up to ``KEEP_S`` after its start, get the same page. The 16 most recently requested pages are
    kept, and compressed pages count separately. Not thread-safe.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "render")
        self._renderings: OrderedDict[Hashable, _Rendering] = OrderedDict()

    async def get(self, key: Hashable, render: Callable[[], Rendered], *, compressed: bool = False) -> Rendered:
        """Return the page that ``key`` identifies, and its content type. Raises what ``render`` raises."""
        cache_key = (key, compressed)
        rendering = self._renderings.get(cache_key)
        if rendering is None or not rendering.is_current():
            make = (lambda: _compressed(render())) if compressed else render
            began_s = time.monotonic()
            rendering = self._renderings[cache_key] = _Rendering(
                asyncio.get_running_loop().run_in_executor(self._thread, make), began_s
            )
            if len(self._renderings) > _KEPT_PAGES:
                self._renderings.popitem(last=False)
        self._renderings.move_to_end(cache_key)
        # Shielded: a client that disconnects must not cancel the rendering for the others.
        return await asyncio.shield(rendering.page)

    def forget(self) -> None:
        """Drop all pages, because the next one must show a change."""
        self._renderings.clear()


def _compressed(rendered: Rendered) -> Rendered:
    page, content_type = rendered
    return gzip.compress(page, _GZIP_LEVEL, mtime=0), content_type
