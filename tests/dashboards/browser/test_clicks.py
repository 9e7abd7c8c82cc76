"""Drags over a figure and clicks into a table, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from tests.dashboards.browser.pages import Opened, caption, drag, drawn, figure, region
from tests.dashboards.gpu_samples import uuid

pytestmark = pytest.mark.slow


@pytest.mark.full
def test_a_drag_over_the_trend_is_in_the_address(run_url: str, opened: Opened) -> None:
    with opened(run_url) as page:
        trend = figure(page, "Lines of the step time over the steps")
        drawn(page, "Bars of the parts of a step", "Lines of the step time", "Line of what is done per second")
        expect(caption(trend)).to_contain_text("Over 60 steps the median step takes")
        # When a range of steps is dragged over
        drag(trend, 0.25, 0.5)
        # Then the address has the range, and the figure shows only these steps
        expect(page).to_have_url(re.compile(r"steps=1[0-9]-[23][0-9]$"))
        expect(caption(trend)).not_to_contain_text("Over 60 steps")
        page.go_back()
        expect(caption(trend)).to_contain_text("Over 60 steps")

        page.get_by_role("link", name="Overlap", exact=True).click()
        waits = "Stacked bars of transfer and waiting per collective"
        drawn(page, "Stacked bars of compute, overlap", waits, "Bars of bus bandwidth")
        expect(caption(figure(page, waits))).to_contain_text("all_reduce · default_pg (4 ranks)")


def test_a_click_on_a_row_of_the_table_shows_its_gpu(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/hardware") as page:
        lines = "Temperature, power, SM clock and use of the picked GPU"
        drawn(page, lines)
        region(page, "All GPUs").get_by_role("row", name=re.compile("^3 ")).get_by_role("gridcell").first.click()
        expect(page).to_have_url(re.compile(f"rank=3&gpu={uuid(3)}"))
        expect(caption(figure(page, lines))).to_contain_text("rank 3")
        expect(figure(page, lines).get_by_role("img").filter(has_text="node-1 · GPU 1, rank 3")).to_be_visible()
