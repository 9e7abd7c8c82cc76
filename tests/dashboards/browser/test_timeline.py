"""The timeline in a real browser, served by the real command."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import TimeoutError as NotInTimeError
from playwright.sync_api import expect
from tests.dashboards.browser.pages import Opened, area, caption, drag, figure, region

pytestmark = pytest.mark.slow


def test_a_window_is_zoomed_chosen_saved_and_asked_for(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    """A live run with a captured window: zoom, click, deep link, export, a refused capture."""
    host = serve(write_run(tmp_path / "run", finished=False))
    with opened(f"{host}/run/run-1/timeline?span=0-60000", may_fail="/capture", viewport={"width": 1440, "height": 1000}) as page:
        lanes = figure(page, "Lanes of all ranks over the time of the window")
        says = caption(lanes)
        expect(says).to_contain_text("from 0.00 to 60.00 ms")
        expect(caption(figure(page, "Bars of every rank in the collective"))).to_contain_text("last: rank 2")
        expect(page.get_by_text("3 collectives matched")).to_be_visible()

        # Dragging over a range zooms into it and changes the address.
        drag(lanes, 0.5, 0.75)
        page.wait_for_function("() => !location.search.includes('span=0-60000') && location.search.includes('span=')")
        expect(says).not_to_contain_text("from 0.00")

        # A click on a collective selects it. A click during the drawing of the figure is lost, so the test repeats it.
        box = area(lanes).bounding_box()
        assert box is not None
        for _ in range(20):
            area(lanes).click(position={"x": box["width"] * 0.5, "y": 12})
            with suppress(NotInTimeError):
                page.wait_for_url(re.compile("collective="), timeout=3_000)
                break
        assert "collective=default_pg:2" in page.url  # 20, or its neighbour if the figure is one pixel wider

        page.go_back()
        page.wait_for_function("() => !location.search.includes('collective=')")

        with page.expect_download() as saved:
            page.get_by_role("button", name="Save the window").click()
        assert saved.value.suggested_filename == "run-1-step-20.json.gz"
        expect(region(page, "Open in Perfetto").get_by_role("status")).to_contain_text("Saved:")

        page.get_by_role("button", name="Request a capture").click()
        expect(region(page, "Request a capture").get_by_role("status")).not_to_have_text(re.compile("^(|Asking …)$"))
