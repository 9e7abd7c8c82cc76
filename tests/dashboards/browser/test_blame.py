"""Who delayed whom, and what-if, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.slow

Opened = Callable[..., AbstractContextManager[Page]]
PATIENCE_MS = 60_000


@pytest.fixture
def address(tmp_path: Path, write_run: Callable[..., Path], serve: Callable[[Path], str]) -> str:
    """Of a run whose rank 2 is slow, served by the real command."""
    return f"{serve(write_run(tmp_path / 'run'))}/run/run-1"


def drawn(page: Page, name: str) -> None:
    expect(page.locator(f"#{name} .main-svg").first).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(f"#{name} .says")).not_to_be_empty(timeout=PATIENCE_MS)


def test_from_who_delayed_whom_to_what_it_would_gain(address: str, opened: Opened) -> None:
    """Given a straggler, when its cell and then its bar are clicked, then the address has it, and the page says what it gains."""
    with opened(f"{address}/blame") as page:
        for name in ("imposed-bars", "wait-matrix", "cause-bars", "cause-timeline"):
            drawn(page, name)
        expect(page.locator("#ledger-section")).to_contain_text("node-1", timeout=PATIENCE_MS)
        area = page.locator("#wait-matrix .nsewdrag").first.bounding_box()
        assert area is not None
        page.mouse.click(area["x"] + 0.62 * area["width"], area["y"] + 0.1 * area["height"])  # rank 0 waited for rank 2
        page.wait_for_url(re.compile(r"rank=2"), timeout=PATIENCE_MS)

        page.get_by_role("link", name="What-if").click()
        drawn(page, "whatif-ranks")
        drawn(page, "whatif-parts")
        assert "rank=2" in page.url
        bars = page.locator("#whatif-ranks .nsewdrag").first.bounding_box()
        assert bars is not None
        page.mouse.click(bars["x"] + 0.1 * bars["width"], bars["y"] + 0.25 * bars["height"])  # the second bar: without rank 2
        page.wait_for_url(re.compile(r"without=rank:2"), timeout=PATIENCE_MS)
        expect(page.locator(".whatif-sentence")).to_contain_text("Without rank 2 a step would be", timeout=PATIENCE_MS)
        expect(page.locator("#whatif-section")).to_contain_text("as recorded with the run", timeout=PATIENCE_MS)

        page.get_by_label("Price of a GPU-hour").fill("5")
        page.wait_for_url(re.compile(r"price=5"), timeout=PATIENCE_MS)
        expect(page.locator("#whatif-section")).to_contain_text("at 5.00 USD per GPU-hour, as given above", timeout=PATIENCE_MS)
        page.go_back()
        expect(page.locator("#whatif-section")).to_contain_text("as recorded with the run", timeout=PATIENCE_MS)


def test_a_rank_is_picked_without_a_mouse(address: str, opened: Opened) -> None:
    """Given the matrix and the table below it, when a number is given or Enter pressed in a row, then that rank is picked."""
    with opened(f"{address}/blame") as page:
        page.get_by_label("Picked rank").fill("1")
        page.wait_for_url(re.compile(r"rank=1"), timeout=PATIENCE_MS)
        page.locator('#ledger-section .ag-row[row-id="2"] .ag-cell[col-id="rank"]').focus(timeout=PATIENCE_MS)
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"rank=2"), timeout=PATIENCE_MS)


def test_a_link_brings_everything_back(address: str, opened: Opened) -> None:
    """Given an address with a choice, when it is opened, then the control and the sentence have it."""
    with opened(f"{address}/whatif?without=rank:2,cause:input&price=3&currency=EUR") as page:
        drawn(page, "whatif-ranks")
        expect(page.locator(".whatif-sentence")).to_contain_text("Without rank 2 and slow input", timeout=PATIENCE_MS)
        expect(page.locator("#whatif-section")).to_contain_text("EUR", timeout=PATIENCE_MS)
        expect(page.locator("#whatif-section .mantine-Pill-root")).to_have_count(2, timeout=PATIENCE_MS)
