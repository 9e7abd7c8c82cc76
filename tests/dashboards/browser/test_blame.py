"""The views of wait attribution and what-if in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from tests.dashboards.browser.pages import Opened, drawn

pytestmark = pytest.mark.slow


def test_from_who_delayed_whom_to_what_it_would_gain(run_url: str, opened: Opened) -> None:
    """Given a straggler, when it is selected by keyboard, cell and bar, then the address has it, and the page its gain."""
    with opened(f"{run_url}/blame") as page:
        drawn(page, "imposed-bars", "wait-matrix", "cause-bars", "cause-timeline")
        expect(page.locator("#rank-costs-section")).to_contain_text("node-1")
        # by keyboard
        page.locator('#rank-costs-section .ag-row[row-id="2"] .ag-cell[col-id="rank"]').focus()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"rank=2"))
        page.get_by_label("Picked rank").fill("1")
        page.wait_for_url(re.compile(r"rank=1"))
        # by mouse
        area = page.locator("#wait-matrix .nsewdrag").first.bounding_box()
        assert area is not None
        page.mouse.click(area["x"] + 0.1 * area["width"], area["y"] + 0.62 * area["height"])  # rank 0 waited for rank 2
        page.wait_for_url(re.compile(r"rank=2"))

        page.get_by_role("link", name="What-if").click()
        drawn(page, "whatif-ranks", "whatif-parts")
        assert "rank=2" in page.url
        bars = page.locator("#whatif-ranks .nsewdrag").first.bounding_box()
        assert bars is not None
        page.mouse.click(bars["x"] + 0.1 * bars["width"], bars["y"] + 0.25 * bars["height"])  # the second bar: without rank 2
        page.wait_for_url(re.compile(r"without=rank:2"))
        expect(page.locator(".whatif-sentence")).to_contain_text("Without rank 2 a step would be")
        expect(page.locator("#whatif-section")).to_contain_text("as recorded with the run")

        page.get_by_label("Price of a GPU-hour").fill("5")
        page.wait_for_url(re.compile(r"price=5"))
        expect(page.locator("#whatif-section")).to_contain_text("at 5.00 USD per GPU-hour, as given above")
        page.go_back()
        expect(page.locator("#whatif-section")).to_contain_text("as recorded with the run")


def test_a_link_brings_everything_back(run_url: str, opened: Opened) -> None:
    """Given an address with a selection, when it is opened, then the control and the sentence show it."""
    with opened(f"{run_url}/whatif?without=rank:2,cause:input&price=3&currency=EUR") as page:
        drawn(page, "whatif-ranks")
        expect(page.locator(".whatif-sentence")).to_contain_text("Without rank 2 and slow input")
        expect(page.locator("#whatif-section")).to_contain_text("EUR")
        expect(page.locator("#whatif-section .mantine-Pill-root")).to_have_count(2)
