"""The pages about many runs, and the alerts of all runs, in a real browser, served by the real command."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.dashboards.alert_records import write_finding
from tests.dashboards.browser.conftest import HOSTS
from tests.dashboards.browser.pages import (
    Opened,
    figure,
    fits,
    ranks_drawn,
    region,
    rows,
    saved_rows,
    verdict_comes_during_a_selection,
    view_drawn,
)

pytestmark = pytest.mark.slow


def runs(page: Page) -> Locator:
    """Return the links of the list to its runs."""
    return region(page, "All runs").get_by_role("grid").get_by_role("link")


def row_of(page: Page, run_id: str) -> Locator:
    """Return the row of a run, without its name: ARIA has no name for the row of a table whose first column stays in place."""
    return page.locator(f'.ag-center-cols-container [row-id="{run_id}"]')


def box_of(page: Page, run_id: str) -> Locator:
    """Return the box that marks a run (``row_of`` says why by its id)."""
    return page.locator(f'[row-id="{run_id}"]').get_by_role("checkbox")


def ticked(page: Page) -> Locator:
    """Return the ticked boxes."""
    return page.get_by_role("checkbox", checked=True)


def write_many(root: Path, write_run: Callable[..., Path], count: int) -> None:
    """Write ``count`` runs that share their record files by hard links."""
    first = write_run(root / "run-0000", run_id="id-0000", name="job-0", steps=12, ranks=2, slow_rank=1, windows=False)
    result = json.loads((first / "run.json").read_text())
    for number in range(1, count):
        run = root / f"run-{number:04}"
        shutil.copytree(first, run, copy_function=os.link)
        (run / "run.json").unlink()
        begun = result["start_unix_ns"] - number * 10**9
        (run / "run.json").write_text(
            json.dumps({**result, "run_id": f"id-{number:04}", "name": f"job-{number}", "start_unix_ns": begun})
        )


@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.full)])
def test_many_runs_can_be_searched_sorted_selected_and_compared(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str], count: int
) -> None:
    write_many(tmp_path, write_run, count)
    last = count - 1
    some = last // 10
    search = f"job-{some}"  # one run has this name, ten names begin with it
    picked = (f"id-{some:04}", f"id-{some * 10:04}")
    url = serve(tmp_path)
    with opened(url) as page:
        expect(page.get_by_text(f"{count:,} runs", exact=True)).to_be_visible()
        expect(row_of(page, "id-0000")).to_contain_text("Straggler")
        assert runs(page).count() < 100, "only what is in view is in the page"

        page.get_by_label("Search runs").fill(search)
        expect(runs(page)).to_have_count(11)
        expect(page).to_have_url(f"{url}/?q={search}")
        name = page.get_by_role("columnheader", name="Run")
        name.click()
        name.click()
        expect(runs(page).first).to_have_text(f"job-{last}")
        row_of(page, f"id-{last:04}").get_by_role("gridcell", name="Finished").click()
        expect(page).to_have_url(f"{url}/?q={search}&picked=id-{last:04}")
        expect(region(page, "The selected run")).to_contain_text(f"run-{last:04}")
        page.go_back()
        expect(page).to_have_url(f"{url}/?q={search}")
        expect(region(page, "The selected run")).to_contain_text("run-0000")

        for item in picked:
            box_of(page, item).check()
        page.get_by_role("link", name="Compare 2 runs").click()
        expect(page.get_by_text("Not enough data").first).to_be_visible()
        expect(page).to_have_url(f"{url}/compare?runs={','.join(picked)}")  # in the order in which they were marked
        page.go_back()
        expect(runs(page)).to_have_count(11)
        expect(ticked(page)).to_have_count(2)
        expect(runs(page).first).to_have_text(f"job-{last}")
        expect(page.get_by_role("link", name="Compare 2 runs")).to_be_visible()
        page.get_by_label("Search runs").fill("")
        expect(page).to_have_url(f"{url}/")
        page.get_by_role("link", name="Alerts").click()
        expect(page.get_by_text("No alert is known")).to_be_visible()


@pytest.mark.full
def test_run_list_shows_new_runs_and_verdicts_and_keeps_the_selection(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, run_id=name, name=name, steps=12)
    url = serve(tmp_path)
    with opened(url) as page:
        # given a list with all verdicts
        for run in ("a", "b"):
            expect(row_of(page, run)).to_contain_text("Straggler")
        # when a verdict arrives at the moment of a selection
        verdict_comes_during_a_selection(box_of(page, "a"), "b", "late")
        # then it is shown and searchable, and the selection stays
        expect(row_of(page, "b")).to_contain_text("Told")
        expect(ticked(page)).to_have_count(1)
        page.get_by_label("Search runs").fill("late")
        expect(runs(page)).to_have_text(["b"])
        page.get_by_label("Search runs").fill("")
        expect(runs(page)).to_have_count(2)
        expect(ticked(page)).to_have_count(1)
        # and a new run does not undo the selection either
        write_run(tmp_path / "c", run_id="c", name="c", steps=12, finished=False, start_unix_ns=1_790_000_100_000_000_000)
        expect(runs(page)).to_have_count(3)
        expect(runs(page).first).to_have_text("c")
        expect(row_of(page, "c")).to_contain_text("Live")
        expect(ticked(page)).to_have_count(1)


@pytest.mark.full
def test_comparison_shows_figures_and_saves_their_numbers(site: str, opened: Opened) -> None:
    address = f"{site}/compare?runs=a,b"
    with opened(address) as page:
        verdict = page.get_by_role("heading", name="sound</b>")
        expect(verdict).to_be_visible()
        expect(figure(page, "Curves of the distribution of step times")).to_contain_text("<b>sound</b>")
        _, saved = saved_rows(page, "Save as CSV: Differences of the parts")
        assert saved[0]["quantity"] == "step time"
        page.get_by_role("textbox", name="Shown by").click()
        page.get_by_role("option", name="Ranks").click()
        expect(page).to_have_url(f"{address}&by=rank")
        expect(figure(page, "Changes of own time")).to_contain_text(re.compile(r"rank \d"))
        page.get_by_role("link", name="Lost GPU-hours").click()
        expect(region(page, "GPU time lost, by host and cause")).to_contain_text("Runs counted")
        page.go_back()
        expect(verdict).to_be_visible()


@pytest.mark.full
def test_run_table_can_be_operated_and_left_by_keyboard(site: str, opened: Opened) -> None:
    with opened(site) as page:
        for run, verdict in {"run-1": "Straggler", "a": "Compute bound", "b": "Straggler"}.items():
            expect(row_of(page, run)).to_contain_text(verdict)
        focused = page.get_by_role("grid").locator(":focus")
        page.get_by_role("button", name="Save as CSV: all runs").focus()
        page.keyboard.press("Tab")
        expect(focused).to_have_count(1)
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        expect(page.get_by_role("gridcell").and_(page.locator(":focus"))).to_have_count(1)
        page.keyboard.press("Tab")
        expect(focused).to_have_count(0)  # one key leads out of it
        row_of(page, "run-1").get_by_role("gridcell", name="Straggler").focus()
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{site}/run/run-1")
        view_drawn(page)


def test_health_is_in_view_beside_simulated_runs(site: str, opened: Opened) -> None:
    with opened(site, viewport={"width": 1280, "height": 900}) as page:
        grid = page.get_by_role("grid")
        expect(grid).to_contain_text("Simulated")
        sides = "header => [header, header.closest('[role=grid]')].map(part => part.getBoundingClientRect().right)"
        right, edge = grid.get_by_role("columnheader", name="Health").evaluate(sides)
        assert right <= edge
        outside = """badges => badges.filter(badge => {
            const [inner, outer] = [badge, badge.closest('[role=row]')].map(part => part.getBoundingClientRect());
            return inner.top < outer.top || inner.bottom > outer.bottom;
        }).length"""
        assert grid.locator(".badge").evaluate_all(outside) == 0, "both badges are whole"


def test_hostile_run_names_are_inert_on_a_narrow_screen(site: str, opened: Opened) -> None:
    with opened(site, viewport={"width": 360, "height": 740}) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        expect(runs(page)).to_have_count(3)
        expect(page.get_by_role("grid")).to_contain_text("Compute bound")
        expect(page.get_by_role("grid")).to_contain_text("simulated · rank 2 · slow input")
        edge = "badge.closest('[role=grid]').getBoundingClientRect().right"
        cut = f"badges => badges.filter(badge => badge.getBoundingClientRect().right > {edge}).length"
        assert page.get_by_role("grid").locator(".badge").evaluate_all(cut) == 0, "badges are whole"
        assert fits(page)
        runs(page).filter(has_text="<img").click()
        expect(page.get_by_role("heading", name=r"\u202e\u2067gnp.exe")).to_be_visible()
        assert fits(page)
        page.get_by_role("link", name="Ranks × steps").click()
        ranks_drawn(page)
        assert fits(page)
        expect(page.locator("img[src=x]")).to_have_count(0)
        expect(page.locator("a[href*=evil]")).to_have_count(0)
        assert "\u202e" not in page.content()

        _, saved = saved_rows(page, "Save as CSV: All ranks")
        assert len(saved) == 4
        assert saved[0]["Host"] == "'" + HOSTS[0]
        assert saved[1]["Host"] == HOSTS[1]
        assert saved[2]["Host"] == r"\u202e\u2067gnp.exe\u200b"
        assert saved[3]["Host"].startswith("'+1WWW")
        assert all(row["GPU"].startswith("'@") for row in saved)
        assert float(saved[2]["Own ms, median"]) > 2 * float(saved[1]["Own ms, median"])
        page.get_by_role("link", name="rankscope", exact=True).click()
        expect(runs(page)).to_have_count(3)


@pytest.fixture(scope="module")
def alerting_runs(tmp_path_factory: pytest.TempPathFactory, write_run: Callable[..., Path]) -> Path:
    """Folder with an ended run and a live run with a firing alert."""
    root = tmp_path_factory.mktemp("runs")
    over = write_run(root / "a", run_id="a", name="over")
    live = write_run(root / "b", run_id="b", name="live", finished=False)
    write_findings(over, "a", 3, "firing", "resolved")
    write_findings(live, "b", 2, "firing")
    return root


@pytest.fixture(scope="module")
def alerts_url(alerting_runs: Path, serve: Callable[[Path], str]) -> str:
    """Address of the server of these runs."""
    return serve(alerting_runs)


def write_findings(run: Path, run_id: str, rank: int, *statuses: str) -> None:
    """Write an alert about a rank into a run."""
    texts = {"summary": f"=Rank {rank} <b>is slow</b>.", "evidence": "imposed wait 39 ms"}
    for number, status in enumerate(statuses):
        write_finding(run, status, rank * 100 + number * 60, texts, run_id=run_id, rank=str(rank))


@pytest.mark.full
def test_alerts_of_all_runs_can_be_searched_read_saved_and_followed(alerting_runs: Path, alerts_url: str, opened: Opened) -> None:
    with opened(f"{alerts_url}/alerts") as page:
        # Then the firing alert comes first, although the other one is newer
        alerts, selected = rows(region(page, "All alerts")), region(page, "The selected alert")
        expect(alerts).to_have_count(2)
        expect(alerts.first).to_contain_text("Fires")
        expect(page.get_by_text("2 alerts, 1 firing", exact=True)).to_be_visible()
        expect(figure(page, "Bars of how many alerts began")).to_contain_text("2 alerts, 1 of them firing")

        # And its text and runbook can be opened, also by keyboard
        alerts.first.get_by_role("gridcell", name="warning").click()
        expect(selected).to_contain_text("=Rank 2 <b>is slow</b>.")
        expect(selected.get_by_text("Runbook", exact=True)).to_be_visible()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(selected).to_contain_text("=Rank 3")

        # And it can be saved with formulas escaped for spreadsheets
        _, saved = saved_rows(page, "Save as CSV: all alerts")
        assert [row["In words"] for row in saved] == ["'=Rank 2 <b>is slow</b>.", "'=Rank 3 <b>is slow</b>."]

        # And the search works
        page.get_by_label("Search alerts").fill("over")
        expect(alerts).to_have_count(1)
        expect(page).to_have_url(re.compile(r"/alerts\?q=over&picked=[0-9a-f]{18}$"))
        page.reload()
        expect(alerts).to_have_count(1)
        expect(selected).to_contain_text("=Rank 3")
        page.get_by_label("Search alerts").fill("")
        expect(alerts).to_have_count(2)

        # And a new alert appears without a reload
        write_findings(alerting_runs / "a", "a", 1, "firing", "resolved")
        expect(alerts).to_have_count(3)

        # And the run's page opens with the rank selected
        page.get_by_role("link", name="live").click()
        expect(page).to_have_url(f"{alerts_url}/run/b?rank=2")
