"""Cached pages, and pages that are pre-rendered before a scrape."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from rankscope.exporter.web import rendered
from rankscope.exporter.web.rendered import AHEAD_INTERVALS, KEEP_S, RenderedPages


class Scraped:
    """A page whose content is the number of its renderings, and a client with a clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.made = 0
        self.broken = False
        self.go_on = threading.Event()
        self.go_on.set()
        self.pages = RenderedPages(1)

    def _render(self) -> tuple[bytes, str]:
        self.go_on.wait()
        self.made += 1
        if self.broken:
            raise ValueError("broken")
        return str(self.made).encode(), "text/plain"

    async def at(self, now_s: float) -> int:
        """Scrape at a time and return the number of the page that is served."""
        self.now_s = 1000 + now_s
        body, _ = await self.pages.get("page", self._render, ahead=True)
        return int(body)

    async def news(self, now_s: float) -> None:
        """Announce new data at a time and wait until the resulting renderings are done."""
        self.now_s = 1000 + now_s
        self.pages.news()
        await asyncio.sleep(0)  # let immediate tasks run
        await asyncio.sleep(0)
        making = [kept.making for kept in self.pages._kept.values() if kept.making is not None]
        if making and self.go_on.is_set():
            await asyncio.wait(making)


Story = Callable[[Scraped], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    def run(story: Story) -> None:
        async def main() -> None:
            scraped = Scraped()
            monkeypatch.setattr(rendered, "time", SimpleNamespace(monotonic=lambda: scraped.now_s))
            monkeypatch.setattr(rendered, "_SETTLE_S", 0)
            await story(scraped)

        asyncio.run(main())

    return run


def test_those_who_come_together_get_one_page(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        assert set(await asyncio.gather(*(scraped.at(0) for _ in range(20)))) == {1}
        assert await scraped.at(0.9 * KEEP_S) == 1
        assert await scraped.at(1.1 * KEEP_S) == 2

    play(story)


def test_who_asks_often_finds_the_page_ready(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        await scraped.at(0)
        await scraped.at(1)
        await scraped.news(1.5)
        assert scraped.made == 3  # before any scrape
        assert await scraped.at(2.4) == 3
        # without news the page is served until its ages are too old
        assert await scraped.at(1.5 + 1.1 * AHEAD_INTERVALS) == 4

    play(story)


def test_news_end_a_page_that_does_not_have_them(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        await scraped.at(0)
        await scraped.at(1)
        await scraped.news(1.5)
        scraped.broken = True
        await scraped.news(2)  # pre-rendering failed: the cached page is still served for a moment
        assert await scraped.at(2 + 0.9 * KEEP_S) == 3
        with pytest.raises(ValueError, match="broken"):
            await scraped.at(2 + 1.1 * KEEP_S)

    play(story)


def test_who_asks_rarely_but_regularly_finds_the_page_ready_too(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        await scraped.at(0)
        await scraped.at(15)
        await scraped.news(29.5)
        assert scraped.made == 3
        assert await scraped.at(30) == 3

    play(story)


def test_a_scrape_that_comes_a_little_early_finds_the_page_ready_too(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        await scraped.at(0)
        await scraped.at(5.4)
        await scraped.news(9.4)  # 1.4 s before the next one is due
        assert await scraped.at(10.4) == 3
        assert scraped.made == 3

    play(story)


def test_a_page_is_made_once_however_slow_and_however_much_news_there_is(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        await scraped.at(0)
        await scraped.at(1)
        scraped.go_on.clear()
        await scraped.news(1.5)
        await scraped.news(2.5)
        late = asyncio.create_task(scraped.at(2.6))
        await asyncio.sleep(0)
        scraped.go_on.set()
        assert await late == 3  # the page whose rendering was in progress
        assert scraped.made == 3
        await scraped.news(3.5)
        await scraped.news(3.51)  # news that follows this soon waits
        assert scraped.made == 4

    play(story)


def test_a_crowd_of_other_pages_does_not_push_out_the_one_that_is_asked_for(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        for number in range(40):
            assert await scraped.at(0) == 1
            await scraped.pages.get(number, lambda: (b"", "text/plain"))

    play(story)


def test_a_page_that_has_to_be_of_now_is_not_made_ahead(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        for second in range(3):
            scraped.now_s = 1000 + second
            await scraped.pages.get("ready", scraped._render)
        await scraped.news(2.5)
        assert scraped.made == 3

    play(story)


def test_for_those_who_ask_once_or_together_nothing_is_made_ahead(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        await asyncio.gather(*(scraped.at(0) for _ in range(20)))
        await scraped.news(0.5)
        await scraped.at(15)
        await scraped.news(15.5)
        await scraped.news(28)
        assert scraped.made == 2
        # and then the scrapes end
        await scraped.at(16)
        await scraped.news(30)
        assert scraped.made == 3

    play(story)


def test_what_has_to_be_shown_at_once_is(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        await scraped.at(0)
        scraped.pages.forget()
        assert await scraped.at(0) == 2

    play(story)


def test_a_page_taken_without_waiting_counts_as_a_request(play: Callable[[Story], None]) -> None:
    async def story(scraped: Scraped) -> None:
        assert scraped.pages.rendered("page") is None
        await scraped.at(0)
        await scraped.at(1)
        for second in range(1, 5):
            await scraped.news(second + 0.5)
            scraped.now_s = 1000 + second + 1
            assert scraped.pages.rendered("page") == (str(second + 2).encode(), "text/plain")
        # too old
        scraped.now_s += 2 * AHEAD_INTERVALS
        assert scraped.pages.rendered("page") is None

    play(story)
