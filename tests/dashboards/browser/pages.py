"""Waits and checks of browser pages, shared by the tests.

Tests find things by role and name. What follows after ``Things without a role`` is found otherwise, each for the reason given.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Literal

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Locator, Page, expect
from playwright.sync_api import TimeoutError as NotInTimeError
from tests.local_http import answering, respond
from tests.waiting import wait_until

Opened = Callable[..., AbstractContextManager[Page]]
PATIENCE_MS = 60_000
HEAT_MAP = "Heat map of the chosen metric by rank and step"


def figure(page: Page, name: str) -> Locator:
    """Return the figure whose description begins with ``name``."""
    return page.get_by_role("figure", name=re.compile(f"^{re.escape(name)}"))


def region(page: Page, name: str) -> Locator:
    """Return the section with that title."""
    return page.get_by_role("region", name=name, exact=True)


def rows(within: Locator) -> Locator:
    """Return the rows of a table, without its head. Those of columns that stay in place count separately."""
    return within.get_by_role("row").filter(has=within.page.get_by_role("gridcell"))


def drawn(page: Page, *names: str) -> None:
    """Wait until these figures and their captions are drawn."""
    for name in names:
        _is_drawn(figure(page, name))


def _is_drawn(picture: Locator) -> None:
    expect(picture.get_by_role("img").first).to_be_visible()
    expect(caption(picture)).not_to_be_empty()


def all_drawn(page: Page) -> None:
    """Wait until all figures and tables of a page are drawn."""
    for item in page.get_by_role("figure").all():
        _is_drawn(item)
    page.wait_for_load_state("networkidle")
    # A table creates its header rows before their cells.
    page.wait_for_function("() => [...document.querySelectorAll('[role=row]')].every(row => row.childElementCount)")


def view_drawn(page: Page) -> None:
    """Wait until a view is completely drawn."""
    expect(page.get_by_role("navigation", name="Views of the run")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_have_count(1)  # during the analysis there is a second
    all_drawn(page)


def ranks_drawn(page: Page) -> None:
    """Wait until the map and the table of ranks are drawn."""
    drawn(page, HEAT_MAP)
    expect(region(page, "All ranks").get_by_role("row", name="0", exact=True)).to_be_attached()


def fits(page: Page) -> bool:
    """Return whether nothing is wider than the screen."""
    result: bool = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return result


def saved_rows(page: Page, button: str) -> tuple[str, list[dict[str, str]]]:
    """Click a button; return name and rows of the CSV file that it saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    with download.value.path().open(encoding="utf-8-sig", newline="") as file:
        return download.value.suggested_filename, list(csv.DictReader(file))


def serious(page: Page) -> list[str]:
    """Return axe-core's serious and critical violations."""
    return [
        f"{item['id']}: {node['html'][:160]} {node['any'][:1]}"
        for item in Axe().run(page).response["violations"]
        if item["impact"] in {"serious", "critical"}
        for node in item["nodes"]
    ]


@contextmanager
def another_site(content: str) -> Iterator[str]:
    """Serve a page under another host name; yield its address."""

    with answering(lambda request, _body: respond(request, 200, content.encode(), Content_Type="text/html")) as url:
        yield f"{url.replace('127.0.0.1', 'localhost')}/"


# Things without a role ----------------------------------------------------------------------------------------------------------


def caption(picture: Locator) -> Locator:
    """Return a figure's summary in words: Playwright gives the element of a caption no role."""
    return picture.locator("figcaption")


def current(navigation: Locator) -> Locator:
    """Return the link of the page that is open: Playwright cannot ask for ``aria-current``."""
    return navigation.locator("[aria-current=page]")


def place(picture: Locator, x: float, y: float) -> tuple[float, float]:
    """Return a place on the screen in the area of a picture; ``x`` and ``y`` are fractions of it.

    Plotly draws a picture without roles, and takes clicks and drags in an invisible layer above it.
    """
    box = area(picture).bounding_box()
    assert box is not None
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def area(picture: Locator) -> Locator:
    """Return the layer of a picture that takes clicks and drags (``place`` says why)."""
    return picture.locator(".nsewdrag").first


def pick(picture: Locator, x: float, y: float, address: re.Pattern[str]) -> None:
    """Click at a place of a picture until the page has the address: a click while the picture is drawn is lost."""

    def picked() -> bool:
        picture.scroll_into_view_if_needed()
        picture.page.mouse.click(*place(picture, x, y))
        with suppress(NotInTimeError):
            picture.page.wait_for_url(address, timeout=3_000)
        return address.search(picture.page.url) is not None

    wait_until(picked)


def drag(picture: Locator, first: float, last: float) -> None:
    """Drag over a range of a picture's x axis, given as fractions of its width."""
    picture.scroll_into_view_if_needed()
    mouse = picture.page.mouse
    mouse.move(*place(picture, first, 0.2))
    mouse.down()
    mouse.move(*place(picture, last, 0.2), steps=5)
    mouse.up()


def lightest(picture: Locator) -> str:
    """Return the first colour of a heat map's scale: the map itself is pixels of an image."""
    color: str = picture.locator(".js-plotly-plot").evaluate("plot => plot.data[0].colorscale[0][1]")
    return color


def expect_scheme(page: Page, scheme: Literal["light", "dark"]) -> None:
    """Wait until the page is light or dark: a colour has no role."""
    bright = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((sum, one) => sum + +one, 0)"
    page.wait_for_function(f"scheme => ({bright} >= 384 ? 'light' : 'dark') === scheme", arg=scheme)


def brightness(text: Locator, of: Literal["color", "fill"]) -> float:
    """Return the brightness of a text, 0 to 255; figures of the dark scheme are inverted on paper."""
    result, inverted = text.evaluate(
        """(one, name) => {
            const around = [];
            for (let at = one; at; at = at.parentElement) around.push(getComputedStyle(at).filter);
            return [getComputedStyle(one)[name], around.some(filter => filter.includes("invert(1)"))];
        }""",
        of,
    )
    bright = sum(map(int, re.findall(r"\d+", result)[:3])) / 3
    return 255 - bright if inverted else bright


def verdict_comes_during_a_selection(box: Locator, run: str, verdict: str) -> None:
    """Tick a box and give the table the verdict of another run in one moment of the browser, which no user can time."""
    box.evaluate(
        """(box, row) => {
            box.click();
            dash_clientside.set_props("answer", {data: {number: 0, path: "/", rows: [row]}});
        }""",
        {"id": run, "name": run, "folder": run, "href": f"/run/{run}", "kind": "Told", "sentence": verdict},
    )
