"""The views of wait attribution and what-if in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from tests.dashboards.browser.pages import Opened, drawn, figure, pick, region

pytestmark = pytest.mark.slow

WAITS = "Heat map of who waited how long for whom"
BARS = "Bars of the step time without each rank"


def test_from_who_delayed_whom_to_what_it_would_gain(run_url: str, opened: Opened) -> None:
    """Given a straggler, when it is selected by keyboard, cell and bar, then the address has it, and the page its gain."""
    with opened(f"{run_url}/delays") as page:
        drawn(page, "Bars of the wait", WAITS, "Stacked bars of the wait", "Stacked bars of the imposed wait")
        costs = region(page, "What every rank cost")
        expect(costs.get_by_role("gridcell", name="node-1").first).to_be_visible()
        # by keyboard
        costs.get_by_role("row", name="2", exact=True).get_by_role("gridcell").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"rank=2"))
        page.get_by_label("Picked rank").fill("1")
        page.wait_for_url(re.compile(r"rank=1"))
        # by mouse
        pick(figure(page, WAITS), 0.1, 0.62, re.compile(r"rank=2"))  # rank 0 waited for rank 2

        page.get_by_role("link", name="What-if").click()
        drawn(page, BARS, "Bars of the step time without each cause")
        expect(page).to_have_url(re.compile(r"rank=2"))
        pick(figure(page, BARS), 0.1, 0.5, re.compile(r"without=rank:2"))  # the second of three bars: without rank 2
        answer = region(page, "What if it were not slow")
        expect(answer).to_contain_text("Without rank 2 a typical step would be")
        expect(answer).to_contain_text("as recorded with the run")

        page.get_by_label("Price of a GPU-hour").fill("5")
        page.wait_for_url(re.compile(r"price=5"))
        expect(answer).to_contain_text("at 5.00 USD per GPU-hour, as entered above")
        page.go_back()
        expect(answer).to_contain_text("as recorded with the run")


@pytest.mark.full
def test_a_link_brings_everything_back(run_url: str, opened: Opened) -> None:
    """Given an address with a selection, when it is opened, then the control and the sentence show it."""
    with opened(f"{run_url}/whatif?without=rank:2,cause:input&price=3&currency=EUR") as page:
        drawn(page, BARS)
        answer = region(page, "What if it were not slow")
        expect(answer).to_contain_text("Without rank 2 and slow input")
        expect(answer).to_contain_text("EUR")
        for chosen in ("rank 2", "slow input"):
            expect(answer.get_by_text(chosen, exact=True)).to_be_visible()
