"""A report file opened in a real browser."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.dashboards.browser.pages import HEAT_MAP, PATIENCE_MS, expect_scheme, figure, fits, lightest, region
from tests.dashboards.memory_runs import MemoryRuns
from tests.dashboards.straggler import straggler_analysis, straggler_table
from tests.waiting import wait_until

from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.report.document import Report, report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plain() -> Report:
    """The report of the straggler run."""
    source = MemoryRuns()
    source.put(straggler_analysis(), straggler_table())
    run = RunData(source, source.summary("run-1"))
    return report(run, PageState(), made_unix_ns=1_795_000_000_000_000_000, on_progress=lambda _: None)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path, plain: Report) -> Iterator[Callable[..., Page]]:
    """Function ``opened(**context)`` that opens the straggler run's report; no errors and no requests but the file itself."""
    file = tmp_path / "report.html"
    file.write_bytes(plain.file)
    complaints: list[str] = []
    sessions = []

    def open_(**context: Any) -> Page:
        session = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **context})
        sessions.append(session)
        page = session.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(error.stack or str(error)))
        page.on("request", lambda request: complaints.append(request.url) if not _own(request.url, file) else None)
        page.goto(file.as_uri())
        return page

    yield open_
    for session in sessions:
        session.close()
    assert complaints == []


def _own(url: str, file: Path) -> bool:
    return url.partition("#")[0] == file.as_uri() or url.startswith(("data:", "blob:"))


def drawn(page: Page) -> None:
    """Wait until the last figure is drawn, which only the report's script knows."""
    page.wait_for_selector(":root.drawn", state="attached")


def test_report_opens_offline_and_draws_every_figure(opened: Callable[..., Page]) -> None:
    page = opened(offline=True)
    drawn(page)
    expect(page.get_by_role("heading", name="Rank 2 on host node-1")).to_be_visible()
    for name in (HEAT_MAP, "Stacked bars of compute", "Bars of the wait each rank imposed"):
        expect(figure(page, name).get_by_role("img").first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    # links stay within the file
    page.get_by_role("link", name="Delays").click()
    expect(page).to_have_url(re.compile("#view-delays$"))


@pytest.mark.full
def test_figures_follow_the_system_and_the_chosen_colour_scheme(opened: Callable[..., Page]) -> None:
    page = opened(color_scheme="dark")
    drawn(page)
    heat = figure(page, HEAT_MAP)
    dark = lightest(heat)
    page.get_by_role("button", name="Light").click()
    expect_scheme(page, "light")
    wait_until(lambda: lightest(heat) != dark)
    light = lightest(heat)
    page.get_by_role("button", name="System").click()
    expect_scheme(page, "dark")
    wait_until(lambda: lightest(heat) == dark)
    # in print it is light, with all details open
    page.emulate_media(color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_until(lambda: lightest(heat) == light)
    expect(page.locator("details:not([open])")).to_have_count(0)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    wait_until(lambda: lightest(heat) == dark)
    expect(page.locator("details[open]")).to_have_count(0)


@pytest.mark.full
def test_report_fits_a_narrow_screen(opened: Callable[..., Page]) -> None:
    page = opened(viewport={"width": 390, "height": 800})
    drawn(page)
    assert fits(page)


def test_report_tables_sort_and_figures_and_tables_can_be_saved(opened: Callable[..., Page]) -> None:
    page = opened(accept_downloads=True)
    drawn(page)
    table = region(page, "All ranks").get_by_role("table")

    def column(index: int) -> list[str]:
        cells = [row.get_by_role("cell").all_inner_texts() for row in table.get_by_role("row").all()]
        return [row[index] for row in cells if row]  # the head has no cells

    assert column(0) == ["0", "1", "2", "3"]
    sort = table.get_by_role("button", name="Own ms, median")
    sort.click()
    sort.click()
    wait_until(lambda: column(0)[0] == "2")
    expect(table.get_by_role("columnheader", name="Own ms, median")).to_have_attribute("aria-sort", "descending")
    # given a column with unknown values: they are last in both directions
    sort = table.get_by_role("button", name="Imposed %")
    for _ in range(2):
        sort.click()
        assert column(4)[-1] == "-"

    for kind, beginning in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"\xef\xbb\xbfrank,imposed wait [us]")):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save as {kind}: imposed bars").click()
        assert download.value.path().read_bytes().startswith(beginning)
        assert download.value.suggested_filename == f"rankscope-run-1-imposed-bars.{kind.lower()}"
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV: rank table").click()
    with download.value.path().open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["Rank"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[3]["Imposed %"] == ""


def test_report_without_javascript_shows_text_instead_of_figures(opened: Callable[..., Page]) -> None:
    page = opened(java_script_enabled=False)
    expect(page.locator("noscript p")).to_be_visible()  # Playwright passes over its text
    expect(page.get_by_text("Rank 2 made the others wait most")).to_be_visible()


def test_too_old_browser_shows_a_warning_and_the_text(
    opened: Callable[..., Page], browser: Browser, tmp_path: Path, plain: Report
) -> None:
    del opened
    file = tmp_path / "old.html"
    file.write_bytes(plain.file)
    with browser.new_context() as session:
        page = session.new_page()
        page.add_init_script("delete window.DecompressionStream")
        page.goto(file.as_uri())
        expect(page.get_by_role("alert")).to_contain_text("this browser is too old")
        expect(page.get_by_text("Rank 2 made the others wait most")).to_be_visible()
