"""Drags over a figure and clicks into a table, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from tests.dashboards.browser.pages import Opened, drawn
from tests.dashboards.gpu_samples import uuid

pytestmark = pytest.mark.slow


def test_a_drag_over_the_trend_is_in_the_address(run_url: str, opened: Opened) -> None:
    with opened(run_url) as page:
        drawn(page, "waterfall", "trend", "rate")
        expect(page.locator("#trend figcaption")).to_contain_text("Over 60 steps the median step takes")
        # When a range of steps is dragged over
        page.locator("#trend").scroll_into_view_if_needed()
        box = page.locator("#trend .nsewdrag").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50, steps=5)
        page.mouse.up()
        # Then the address has the range, and the figure shows only these steps
        expect(page).to_have_url(re.compile(r"steps=1[0-9]-[23][0-9]$"))
        expect(page.locator("#trend figcaption")).not_to_contain_text("Over 60 steps")
        page.go_back()
        expect(page.locator("#trend figcaption")).to_contain_text("Over 60 steps")

        page.get_by_role("link", name="Overlap", exact=True).click()
        drawn(page, "breakdown-bars", "overlap-spread", "collective-waits", "collective-bandwidth")
        expect(page.locator("#collective-waits figcaption")).to_contain_text("all_reduce · default_pg (4 ranks)")


def test_a_click_on_a_row_of_the_table_shows_its_gpu(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/hardware") as page:
        drawn(page, "gpu-lines")
        page.locator("#gpu-table-section .ag-row [col-id=ranks]").nth(1).click()
        expect(page).to_have_url(re.compile(f"rank=3&gpu={uuid(3)}"))
        expect(page.locator("#gpu-lines figcaption")).to_contain_text("rank 3")
        title = page.evaluate("document.querySelector('#gpu-lines .js-plotly-plot').layout.title.text")
        assert title == "node-1 · GPU 1, rank 3"
