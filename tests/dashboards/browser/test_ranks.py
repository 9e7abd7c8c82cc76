"""The map and table of ranks, the colour scheme and a live run, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import TimeoutError as NotInTimeError
from playwright.sync_api import expect
from tests.dashboards.browser.pages import (
    HEAT_MAP,
    Opened,
    area,
    brightness,
    caption,
    expect_scheme,
    figure,
    lightest,
    pick,
    ranks_drawn,
    region,
    saved_rows,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_live_run_page_updates_and_saves_its_table(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    # given a folder with one run without steps
    run = write_run(tmp_path / "run", ranks=0)
    url = serve(run)
    with opened(url) as page:
        expect(page).to_have_url(f"{url}/run/run-1")
        expect(page).to_have_title("bert-base · rankscope")
        expect(page.get_by_role("region", name="Not enough data")).to_be_visible()
        # when the run has steps
        write_run(run)
        # then the page names the rank
        expect(page.get_by_role("region", name="Rank 2")).to_contain_text("Straggler")
        expect(page.get_by_text("Finished", exact=True)).to_be_visible()
        page.get_by_role("link", name="Ranks × steps").click()
        ranks_drawn(page)
        expect(figure(page, HEAT_MAP)).to_contain_text("⚑ 2")
        expect(region(page, "All ranks").get_by_role("gridcell", name="node-1")).to_have_count(2)

        name, rows = saved_rows(page, "Save as CSV: All ranks")
        assert name == "rankscope-run-1.csv"
        assert [row["Rank"] for row in rows] == ["0", "1", "2", "3"]
        assert float(rows[2]["Own ms, median"]) > 2 * float(rows[1]["Own ms, median"])


@pytest.mark.full
def test_heat_map_and_table_can_have_a_row_per_host(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/ranks") as page:
        ranks_drawn(page)
        table, heat = region(page, "All ranks"), figure(page, HEAT_MAP)
        page.get_by_role("textbox", name="One row per").click()
        page.get_by_role("option", name="Host", exact=True).click()
        expect(page).to_have_url(f"{run_url}/ranks?rows=host")
        expect(heat).to_contain_text("⚑ node-1")
        expect(table.get_by_role("columnheader", name="Worst rank")).to_be_visible()
        expect(table.get_by_role("gridcell", name="node-1")).to_have_count(1)
        # A click on the row of a host picks its worst rank.
        table.get_by_role("gridcell", name="node-1").click()
        expect(page).to_have_url(f"{run_url}/ranks?rank=2&rows=host")
        page.go_back()
        page.go_back()
        expect(table.get_by_role("columnheader", name="Worst rank")).to_have_count(0)
        expect(table.get_by_role("gridcell", name="node-1")).to_have_count(2)


@pytest.mark.full
def test_selections_are_in_the_url_and_undone_by_the_back_button(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/ranks?rank=1") as page:
        ranks_drawn(page)
        heat = figure(page, HEAT_MAP)
        expect(heat).to_contain_text("▸ 1")
        expect(caption(heat)).to_contain_text("own time")

        page.get_by_role("textbox", name="Metric").click()
        page.get_by_role("option", name="Step time", exact=True).click()
        expect(caption(heat)).to_contain_text("step time")
        expect(page).to_have_url(f"{run_url}/ranks?rank=1&metric=wall_us")
        page.reload()
        ranks_drawn(page)
        expect(heat).to_contain_text("▸ 1")
        expect(page.get_by_role("textbox", name="Metric")).to_have_value("Step time")

        page.go_back()
        expect(caption(heat)).to_contain_text("own time")
        expect(page).to_have_url(f"{run_url}/ranks?rank=1")
        expect(page.get_by_role("textbox", name="Metric")).to_have_value("Own time")

        # A click on a cell shows its step in numbers.
        pick(heat, 0.5, 0.6, re.compile("rank=2&step="))
        expect(page.get_by_role("region", name="Rank 2 in step")).to_contain_text("own time")

        # A double click also clicks the cell twice; the test requires only that all steps are shown again. On a busy machine
        # the page may see two single clicks.
        page.goto(f"{run_url}/ranks?steps=4-9")
        ranks_drawn(page)

        def shows_all_steps() -> bool:
            area(heat).dblclick(position={"x": 60, "y": 10})
            with suppress(NotInTimeError):
                page.wait_for_url(lambda address: "steps=" not in address, timeout=3000)
            return "steps=" not in page.url

        wait_until(shows_all_steps)


@pytest.mark.full
def test_chosen_colour_scheme_survives_a_reload(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/ranks", color_scheme="light") as page:
        ranks_drawn(page)
        expect_scheme(page, "light")
        heat = figure(page, HEAT_MAP)
        light = lightest(heat)

        page.get_by_text("Dark", exact=True).click()

        expect_scheme(page, "dark")
        page.reload()
        ranks_drawn(page)
        assert lightest(heat) != light
        expect_scheme(page, "dark")
        expect(page.get_by_role("radio", name="Dark")).to_be_checked()

        page.emulate_media(media="print")  # browsers print texts, but no backgrounds
        assert brightness(page.get_by_text("A slow rank is a line"), "color") < 128
        assert brightness(heat.get_by_text("20", exact=True), "fill") < 128
        page.emulate_media(media="screen")

        page.get_by_text("System", exact=True).click()
        expect_scheme(page, "light")
        page.emulate_media(color_scheme="dark")
        expect_scheme(page, "dark")
