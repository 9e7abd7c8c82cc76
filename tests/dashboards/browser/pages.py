"""Waits and checks of browser pages, shared by the tests."""

from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import AbstractContextManager

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

Opened = Callable[..., AbstractContextManager[Page]]
PATIENCE_MS = 60_000


def drawn(page: Page, *names: str) -> None:
    """Wait until these figures and their captions are drawn."""
    for name in names:
        expect(page.locator(f"#{name} .main-svg").first).to_be_visible()
        expect(page.locator(f"#{name} .says")).not_to_be_empty()


def all_drawn(page: Page) -> None:
    """Wait until all figures and tables of a page are drawn."""
    for graph in page.locator("figure.figure").all():
        expect(graph.locator(".main-svg").first).to_be_visible()
        expect(graph.locator("figcaption")).not_to_be_empty()
    page.wait_for_load_state("networkidle")
    # A table creates its header rows before their cells.
    page.wait_for_function("() => [...document.querySelectorAll('.ag-header-row')].every(row => row.childElementCount)")


def view_drawn(page: Page) -> None:
    """Wait until a view is completely drawn."""
    expect(page.locator("#view")).to_be_visible()
    expect(page.locator("#page h1")).to_have_count(1)  # during the analysis there is a second heading
    all_drawn(page)


def ranks_drawn(page: Page) -> None:
    """Wait until the map and the table of ranks are drawn."""
    expect(page.locator("#step-heatmap .main-svg").first).to_be_visible()
    expect(page.locator(".ag-row").first).to_be_attached()


def fits(page: Page) -> bool:
    """Return whether nothing is wider than the screen."""
    found: bool = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return found


def saved_rows(page: Page, button: str, *, exact: bool = False) -> tuple[str, list[dict[str, str]]]:
    """Click a button; return name and rows of the CSV file that it saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button, exact=exact).click()
    with download.value.path().open(encoding="utf-8-sig", newline="") as file:
        return download.value.suggested_filename, list(csv.DictReader(file))


def serious(page: Page) -> list[str]:
    """Return axe-core's serious and critical violations."""
    return [
        f"{found['id']}: {node['html'][:160]} {node['any'][:1]}"
        for found in Axe().run(page).response["violations"]
        if found["impact"] in {"serious", "critical"}
        for node in found["nodes"]
    ]
