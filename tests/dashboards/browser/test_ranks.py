"""The map and table of ranks, the colour scheme and a live run, in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from playwright.sync_api import TimeoutError as NotInTimeError
from tests.dashboards.browser.pages import Opened, ranks_drawn, saved_rows

pytestmark = pytest.mark.slow


def heat(page: Page) -> dict[str, Any]:
    """Return hover template, colour scale and tick labels of the heat map."""
    script = (
        "() => { const g = document.querySelector('#step-heatmap .js-plotly-plot');"
        " return JSON.stringify({hover: g.data[0].hovertemplate, scale: g.data[0].colorscale, ticks: g.layout.yaxis.ticktext}); }"
    )
    shown: dict[str, Any] = json.loads(page.evaluate(script))
    return shown


def wait_for_heat(page: Page, text: str) -> None:
    # It may have no data for a moment while it is redrawn.
    script = (
        "text => { const g = document.querySelector('#step-heatmap .js-plotly-plot');"
        " return JSON.stringify([g?.layout?.yaxis?.ticktext, g?.data?.[0]?.hovertemplate]).includes(text); }"
    )
    page.wait_for_function(script, arg=text)


def test_a_live_run_shows_new_steps_by_itself_and_saves_its_table(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    # given a folder with one run without steps
    run = write_run(tmp_path / "run", ranks=0)
    url = serve(run)
    with opened(url) as page:
        expect(page).to_have_url(f"{url}/run/run-1")
        expect(page).to_have_title("bert-base · rankscope")
        expect(page.locator("#verdict")).to_contain_text("Not enough data")
        # when the run has steps
        write_run(run)
        # then the page names the rank
        expect(page.locator("#verdict-sentence")).to_contain_text("Rank 2")
        expect(page.locator("#verdict")).to_contain_text("Straggler")
        expect(page.locator("#run-head")).to_contain_text("Finished")
        page.get_by_role("link", name="Ranks × steps").click()
        ranks_drawn(page)
        wait_for_heat(page, "<b>⚑ 2</b>")
        assert page.locator("#table-section").inner_text().count("node-1") == 2

        name, rows = saved_rows(page, "Save as CSV", exact=True)
        assert name == "rankscope-run-1.csv"
        assert [row["Rank"] for row in rows] == ["0", "1", "2", "3"]
        assert float(rows[2]["Own ms, median"]) > 2 * float(rows[1]["Own ms, median"])


def test_selections_live_in_the_address_and_the_back_button_undoes_them(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/ranks?rank=1") as page:
        ranks_drawn(page)
        wait_for_heat(page, "▸ 1")
        assert "own time" in heat(page)["hover"]

        page.get_by_role("textbox", name="Metric").click()
        page.get_by_role("option", name="Step time", exact=True).click()
        wait_for_heat(page, "step time")
        expect(page).to_have_url(f"{run_url}/ranks?rank=1&metric=wall_us")
        page.reload()
        ranks_drawn(page)
        wait_for_heat(page, "▸ 1")
        expect(page.get_by_role("textbox", name="Metric")).to_have_value("Step time")

        page.go_back()
        wait_for_heat(page, "own time")
        expect(page).to_have_url(f"{run_url}/ranks?rank=1")
        expect(page.get_by_role("textbox", name="Metric")).to_have_value("Own time")

        # A click on a cell shows its step in numbers.
        layer = page.locator("#step-heatmap .nsewdrag").first
        box = layer.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6)
        expect(page.locator("#step-title")).to_contain_text("Rank 2 in step")
        expect(page.locator("#step-section")).to_contain_text("own time")
        expect(page).to_have_url(re.compile("rank=2&step="))

        # A double click also clicks the cell twice; the test requires only that all steps are shown again. On a busy machine
        # the page may see two single clicks.
        page.goto(f"{run_url}/ranks?steps=4-9")
        ranks_drawn(page)
        deadline = time.monotonic() + 120
        while "steps=" in page.url:
            assert time.monotonic() < deadline
            layer.dblclick(position={"x": 60, "y": 10})
            with suppress(NotInTimeError):
                page.wait_for_url(lambda address: "steps=" not in address, timeout=3000)


def test_the_colour_scheme_is_chosen_and_remembered(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/ranks", color_scheme="light") as page:
        ranks_drawn(page)
        assert page.locator("html").get_attribute("data-mantine-color-scheme") == "light"
        light = heat(page)["scale"]

        page.get_by_text("Dark", exact=True).click()

        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "dark")
        changed = "scale => JSON.stringify(document.querySelector('#step-heatmap .js-plotly-plot').data[0].colorscale) !== scale"
        page.wait_for_function(changed, arg=json.dumps(light, separators=(",", ":")))
        page.reload()
        ranks_drawn(page)
        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "dark")
        expect(page.get_by_role("radio", name="Dark")).to_be_checked()

        page.emulate_media(media="print")  # browsers print texts, but no backgrounds
        for text, property_ in ((".help", "color"), ("#step-heatmap .xtick text", "fill")):
            found = page.evaluate("([one, name]) => getComputedStyle(document.querySelector(one))[name]", [text, property_])
            assert sum(map(int, re.findall(r"\d+", found)[:3])) < 3 * 128, f"{text} is {found} on white"
        page.emulate_media(media="screen")

        page.get_by_text("System", exact=True).click()
        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "light")
        page.emulate_media(color_scheme="dark")
        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "dark")
