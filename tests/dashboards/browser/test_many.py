"""The pages about many runs in a real browser, served by the real command."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.dashboards.browser.conftest import HOSTS
from tests.dashboards.browser.pages import Opened, fits, ranks_drawn, saved_rows, view_drawn

pytestmark = pytest.mark.slow

ROWS = ".ag-center-cols-container .ag-row"


def write_many(root: Path, write_run: Callable[..., Path], count: int) -> None:
    """Write ``count`` runs that share their record files by hard links."""
    first = write_run(root / "run-0000", run_id="id-0000", name="job-0", steps=12, ranks=2, slow_rank=1, windows=False)
    told = json.loads((first / "run.json").read_text())
    for number in range(1, count):
        run = root / f"run-{number:04}"
        shutil.copytree(first, run, copy_function=os.link)
        (run / "run.json").unlink()
        begun = told["start_unix_ns"] - number * 10**9
        (run / "run.json").write_text(
            json.dumps({**told, "run_id": f"id-{number:04}", "name": f"job-{number}", "start_unix_ns": begun})
        )


@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.full)])
def test_many_runs_are_searched_sorted_selected_and_compared(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str], count: int
) -> None:
    write_many(tmp_path, write_run, count)
    last = count - 1
    some = last // 10
    search = f"job-{some}"  # one run has this name, ten names begin with it
    picked = (f"id-{some:04}", f"id-{some * 10:04}")
    either = "|".join(picked)
    url = serve(tmp_path)
    with opened(url) as page:
        expect(page.locator("#runs-count")).to_have_text(f"{count:,} runs")
        rows = page.locator(ROWS)
        expect(rows.first).to_contain_text("Straggler")
        assert rows.count() < 100, "only what is in view is in the page"

        page.get_by_label("Search runs").fill(search)
        expect(rows).to_have_count(11)
        expect(page).to_have_url(f"{url}/?q={search}")
        name = page.locator(".ag-header-cell-text", has_text="Run")
        name.click()
        expect(page).to_have_url(f"{url}/?q={search}&sort=name")
        name.click()
        expect(page).to_have_url(f"{url}/?q={search}&sort=-name")
        expect(page.locator(".run-link").first).to_have_text(f"job-{last}")

        page.go_back()
        expect(page).to_have_url(f"{url}/?q={search}&sort=name")
        expect(page.locator(".run-link").first).to_have_text(search)
        for number, run in enumerate(picked, start=1):  # rows are addressed by id: sorting may still move them
            page.locator(f".ag-row[row-id='{run}'] .ag-checkbox-input").check()
            expect(page).to_have_url(re.compile(f"sort=name&picked=(({either}),?){{{number}}}$"))
        page.get_by_role("link", name="Compare 2 runs").click()
        expect(page.locator("#compare-verdict")).to_contain_text("Not enough data")
        assert "/compare?runs=id-" in page.url
        page.go_back()
        expect(rows).to_have_count(11)
        selected = page.locator(".ag-center-cols-container .ag-row-selected")
        expect(selected).to_have_count(2)
        expect(page.get_by_role("link", name="Compare 2 runs")).to_be_visible()
        page.go_back()
        expect(selected).to_have_count(1)
        expect(page.locator("#runs-compare")).to_have_text("Select two runs to compare")
    address = f"{url}/?q={search}&picked={picked[1]},{picked[0]}"
    with opened(address) as page:
        selected = page.locator(".ag-center-cols-container .ag-row-selected")
        expect(selected).to_have_count(2)
        page.locator(f".ag-row[row-id='id-{last:04}'] .ag-checkbox-input").check()
        expect(page).to_have_url(re.compile(f"picked=({either}|id-{last:04}|,){{5}}$"))
        page.go_back()
        expect(selected).to_have_count(2)
        expect(page).to_have_url(address)


TOLD = """() => {
    document.querySelector(".ag-row[row-id='a'] .ag-checkbox-input").click();
    dash_clientside.set_props("runs-answer", {data: {number: 0, rows: [{id: "b", name: "b", kind: "Told", verdict: "late"}]}});
}"""


def test_the_list_follows_runs_and_verdicts_as_they_come_without_losing_what_is_selected(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, run_id=name, name=name, steps=12)
    url = serve(tmp_path)
    with opened(url) as page:
        selected = page.locator(".ag-pinned-left-cols-container .ag-row-selected")
        # given a list with all verdicts
        for run in ("a", "b"):
            expect(page.locator(f"{ROWS}[row-id='{run}']")).to_contain_text("Straggler")
        # when a verdict arrives at the moment of a selection
        page.evaluate(TOLD)
        # then it is shown and searchable, and the selection stays
        expect(page.locator(f"{ROWS}[row-id='b']")).to_contain_text("late")
        expect(page).to_have_url(f"{url}/?picked=a")
        expect(selected).to_have_count(1)
        page.get_by_label("Search runs").fill("late")
        expect(page.locator(ROWS)).to_have_count(1)
        expect(page.locator(".run-link")).to_have_text("b")
        page.get_by_label("Search runs").fill("")
        expect(page.locator(ROWS)).to_have_count(2)
        expect(selected).to_have_count(1)
        # and a new run does not undo the selection either
        write_run(tmp_path / "c", run_id="c", name="c", steps=12, finished=False, start_unix_ns=1_790_000_100_000_000_000)
        expect(page.locator(".run-link")).to_have_count(3)
        expect(page.locator(".run-link").first).to_have_text("c")
        expect(page.locator(ROWS).first).to_contain_text("Live")
        expect(selected).to_have_count(1)


def test_a_comparison_shows_its_figures_and_gives_their_numbers_away(site: str, opened: Opened) -> None:
    address = f"{site}/compare?runs=a,b"
    with opened(address) as page:
        expect(page.locator("#compare-verdict")).to_contain_text("B is slower than A")
        expect(page.locator("#compare-steps .legendtext").first).to_have_text("A: <b>sound</b>")
        _, rows = saved_rows(page, "Save as CSV: Differences of the parts")
        assert rows[0]["quantity"] == "step time"
        page.get_by_role("textbox", name="Shown by").click()
        page.get_by_role("option", name="Ranks").click()
        expect(page).to_have_url(f"{address}&by=rank")
        expect(page.locator("#compare-ranks .ytick").first).to_contain_text("rank")
        page.get_by_role("link", name="Lost GPU-hours").click()
        expect(page.locator("#lost-hours-section")).to_contain_text("Runs counted")
        page.go_back()
        expect(page.locator("#compare-verdict")).to_be_visible()


def test_runs_are_opened_and_their_table_is_left_by_keyboard(site: str, opened: Opened) -> None:
    with opened(site) as page:
        for run, verdict in {"run-1": "Straggler", "a": "Compute bound", "b": "Straggler"}.items():
            expect(page.locator(f"{ROWS}[row-id='{run}']")).to_contain_text(verdict)
        page.locator("#runs-csv").focus()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('#runs-grid') !== null")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('#runs-grid') === null"), "one key leads out of it"
        page.keyboard.press("Shift+Tab")
        page.locator(".ag-cell-focus").focus()
        focused = page.evaluate("document.activeElement.closest('.ag-row').getAttribute('row-id')")
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{site}/run/{focused}")
        view_drawn(page)


def test_a_hostile_run_does_nothing_on_a_narrow_screen(site: str, opened: Opened) -> None:
    with opened(site, viewport={"width": 360, "height": 740}) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        expect(page.locator(".run-link")).to_have_count(3)
        expect(page.locator("#runs-grid")).to_contain_text("Finished")
        assert fits(page)
        page.locator(".run-link").filter(has_text="<img").click()
        expect(page.locator("#verdict-sentence")).to_contain_text(r"\u202e\u2067gnp.exe")
        assert fits(page)
        page.get_by_role("link", name="Ranks × steps").click()
        ranks_drawn(page)
        assert fits(page)
        assert page.locator("img[src=x]").count() == 0
        assert page.locator("a[href*=evil]").count() == 0
        assert "\u202e" not in page.content()

        _, rows = saved_rows(page, "Save as CSV", exact=True)
        assert len(rows) == 4
        assert rows[0]["Host"] == "'" + HOSTS[0]
        assert rows[1]["Host"] == HOSTS[1]
        assert rows[2]["Host"] == r"\u202e\u2067gnp.exe\u200b"
        assert rows[3]["Host"].startswith("'+1WWW")
        assert all(row["GPU"].startswith("'@") for row in rows)
        assert float(rows[2]["Own ms, median"]) > 2 * float(rows[1]["Own ms, median"])
        page.locator(".brand").click()
        expect(page.locator(".run-link")).to_have_count(3)
