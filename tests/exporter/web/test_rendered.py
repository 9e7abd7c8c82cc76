"""Pages that simultaneous clients share."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from rankscope.exporter.web import rendered
from rankscope.exporter.web.rendered import KEEP_S, RenderedPages


class Scraped:
    """A page whose content is the number of its renderings, and a client with a clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.made = 0
        self.broken = False
        self.go_on = threading.Event()
        self.go_on.set()
        self.pages = RenderedPages()

    def _render(self) -> tuple[bytes, str]:
        self.go_on.wait()
        self.made += 1
        if self.broken:
            raise ValueError("broken")
        return str(self.made).encode(), "text/plain"

    async def at(self, now_s: float) -> int:
        """Scrape at a time and return the number of the page that is served."""
        self.now_s = 1000 + now_s
        body, _ = await self.pages.get("page", self._render)
        return int(body)


Story = Callable[[Scraped], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    def run(story: Story) -> None:
        async def main() -> None:
            scraped = Scraped()
            monkeypatch.setattr(rendered, "time", SimpleNamespace(monotonic=lambda: scraped.now_s))
            await story(scraped)

        asyncio.run(main())

    return run


def test_simultaneous_scrapes_share_a_page_until_expiry(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        assert set(await asyncio.gather(*(scraped.at(0) for _ in range(20)))) == {1}
        assert await scraped.at(0.9 * KEEP_S) == 1
        assert await scraped.at(1.1 * KEEP_S) == 2
        assert await scraped.at(60) == 3

    play(story)


def test_a_slow_page_is_rendered_once(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        scraped.go_on.clear()
        scrapes = [asyncio.create_task(scraped.at(second)) for second in range(3)]
        await asyncio.sleep(0)
        scrapes[0].cancel()  # a client that disconnects does not cancel the page of the others
        await asyncio.sleep(0)
        scraped.go_on.set()
        assert await asyncio.gather(*scrapes[1:]) == [1, 1]

    play(story)


def test_render_error_reaches_waiting_clients_and_is_not_cached(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        scraped.broken = True
        for _ in range(2):
            with pytest.raises(ValueError, match="broken"):
                await scraped.at(0)
        scraped.broken = False
        assert await scraped.at(0) == 3

    play(story)


def test_cache_keeps_the_page_in_use(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        for number in range(40):
            assert await scraped.at(0) == 1
            await scraped.pages.get(number, lambda: (b"", "text/plain"))

    play(story)


def test_invalidated_page_is_rendered_again(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        await scraped.at(0)
        scraped.pages.forget()
        assert await scraped.at(0) == 2

    play(story)


def test_compressed_pages_are_cached_separately(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        assert await scraped.at(0) == 1
        body, _ = await scraped.pages.get("page", scraped._render, compressed=True)
        assert gzip.decompress(body) == b"2"
        assert await scraped.at(0) == 1

    play(story)
