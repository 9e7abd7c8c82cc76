"""The pages in a real browser, served by the real command."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from playwright.sync_api import TimeoutError as NotInTimeError

pytestmark = pytest.mark.slow

Opened = Callable[..., AbstractContextManager[Page]]
PATIENCE_MS = 60_000


def ready(page: Page) -> None:
    """Wait until the map and the table of ranks are drawn."""
    expect(page.locator("#step-heatmap .main-svg").first).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".ag-row").first).to_be_attached(timeout=PATIENCE_MS)


def heat(page: Page) -> dict[str, Any]:
    """What the heat map shows now."""
    script = (
        "() => { const g = document.querySelector('#step-heatmap .js-plotly-plot');"
        " return JSON.stringify({hover: g.data[0].hovertemplate, scale: g.data[0].colorscale, ticks: g.layout.yaxis.ticktext}); }"
    )
    shown: dict[str, Any] = json.loads(page.evaluate(script))
    return shown


def wait_for_heat(page: Page, text: str) -> None:
    # While it is drawn anew it may have no data for a moment.
    script = (
        "text => { const g = document.querySelector('#step-heatmap .js-plotly-plot');"
        " return JSON.stringify([g?.layout?.yaxis?.ticktext, g?.data?.[0]?.hovertemplate]).includes(text); }"
    )
    page.wait_for_function(script, arg=text, timeout=PATIENCE_MS)


def test_the_page_names_the_rank_and_bothers_nobody_else(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    url = serve(write_run(tmp_path / "run"))
    with opened(url) as page:
        expect(page).to_have_url(f"{url}/run/run-1")
        expect(page).to_have_title("bert-base · rankscope", timeout=PATIENCE_MS)
        expect(page.locator("#verdict-sentence")).to_contain_text("Rank 2", timeout=PATIENCE_MS)
        expect(page.locator("#verdict")).to_contain_text("Straggler")
        page.get_by_role("link", name="Ranks × steps").click()
        ready(page)
        wait_for_heat(page, "<b>⚑ 2</b>")
        assert page.locator("#table-section").inner_text().count("node-1") == 2

        with page.expect_download() as download:
            page.get_by_role("button", name="Save as CSV", exact=True).click()
        with download.value.path().open(encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        assert download.value.suggested_filename == "rankscope-run-1.csv"
        assert [row["Rank"] for row in rows] == ["0", "1", "2", "3"]
        assert float(rows[2]["Own ms"]) > 2 * float(rows[1]["Own ms"])


def test_selections_live_in_the_address_and_the_back_button_undoes_them(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    url = serve(write_run(tmp_path / "run"))
    with opened(f"{url}/run/run-1/ranks?rank=1") as page:
        ready(page)
        wait_for_heat(page, "▸ 1")
        assert "own time" in heat(page)["hover"]

        page.get_by_role("textbox", name="Metric").click()
        page.get_by_role("option", name="Step time", exact=True).click()
        wait_for_heat(page, "step time")
        expect(page).to_have_url(f"{url}/run/run-1/ranks?rank=1&metric=wall_us")

        page.go_back()
        wait_for_heat(page, "own time")
        expect(page).to_have_url(f"{url}/run/run-1/ranks?rank=1")
        expect(page.get_by_role("textbox", name="Metric")).to_have_value("Own time")

        page.reload()
        ready(page)
        wait_for_heat(page, "▸ 1")

        # A double click is two clicks on a cell, too; what counts is that it shows all steps again. On a busy machine the page
        # may see two single clicks.
        page.goto(f"{url}/run/run-1/ranks?steps=4-9")
        ready(page)
        deadline = time.monotonic() + 60
        while "steps=" in page.url:
            assert time.monotonic() < deadline
            page.locator("#step-heatmap .nsewdrag").first.dblclick(position={"x": 60, "y": 10})
            with suppress(NotInTimeError):
                page.wait_for_url(lambda address: "steps=" not in address, timeout=3000)


def test_the_colour_scheme_is_chosen_and_remembered(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    url = serve(write_run(tmp_path / "run"))
    with opened(f"{url}/run/run-1/ranks", color_scheme="light") as page:
        ready(page)
        assert page.locator("html").get_attribute("data-mantine-color-scheme") == "light"
        light = heat(page)["scale"]

        page.get_by_text("Dark", exact=True).click()

        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "dark")
        changed = "scale => JSON.stringify(document.querySelector('#step-heatmap .js-plotly-plot').data[0].colorscale) !== scale"
        page.wait_for_function(changed, arg=json.dumps(light, separators=(",", ":")))
        page.reload()
        ready(page)
        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "dark")
        expect(page.get_by_role("radio", name="Dark")).to_be_checked()

        page.get_by_text("System", exact=True).click()
        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "light")
        page.emulate_media(color_scheme="dark")
        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "dark")


def test_a_narrow_screen_does_not_scroll_sideways(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    write_run(tmp_path / "a", run_id="a")
    write_run(tmp_path / "b", run_id="b")
    url = serve(tmp_path)
    with opened(url, viewport={"width": 360, "height": 740}) as page:
        expect(page.locator(".run-link")).to_have_count(2)
        expect(page.locator("#runs-grid")).to_contain_text("Finished", timeout=PATIENCE_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator("a.run-link").first.click()
        expect(page.locator("#verdict-sentence")).to_be_visible(timeout=PATIENCE_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator(".brand").click()
        expect(page.locator(".run-link")).to_have_count(2)


def test_a_live_run_shows_new_steps_by_itself(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    run = write_run(tmp_path / "run", ranks=0)
    url = serve(run)
    with opened(url) as page:
        expect(page.locator("#verdict")).to_contain_text("Not enough data", timeout=PATIENCE_MS)

        write_run(run)

        expect(page.locator("#verdict-sentence")).to_contain_text("Rank 2", timeout=PATIENCE_MS)
        expect(page.locator("#run-head")).to_contain_text("Finished", timeout=PATIENCE_MS)
        page.get_by_role("link", name="Ranks × steps").click()
        ready(page)
        wait_for_heat(page, "<b>⚑ 2</b>")


def test_the_keyboard_reaches_everything_that_can_be_chosen(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    url = serve(write_run(tmp_path / "run"))
    with opened(f"{url}/run/run-1/ranks") as page:
        ready(page)
        reached: set[str] = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            name = "document.activeElement.id || document.activeElement.className || document.activeElement.name"
            reached.add(str(page.evaluate(name)))
        for wanted in ("skip", "brand", "view-link", "metric", "control", "save", "save-grid"):
            assert any(wanted in name for name in reached), (wanted, reached)
