"""The pages about many runs in a real browser, served by the real command."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.slow

PATIENCE_MS = 60_000
Open = Callable[..., AbstractContextManager[Page]]


def write_many(root: Path, write_run: Callable[..., Path], count: int) -> None:
    """So many runs, the records of which are the same files."""
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


def test_two_thousand_runs_are_searched_sorted_selected_and_compared(
    tmp_path: Path, write_run: Callable[..., Path], opened: Open, serve: Callable[[Path], str]
) -> None:
    write_many(tmp_path, write_run, 2_000)
    url = serve(tmp_path)
    with opened(url) as page:
        expect(page.locator("#runs-count")).to_have_text("2,000 runs")
        rows = page.locator(".ag-center-cols-container .ag-row")
        expect(rows.first).to_contain_text("Straggler", timeout=PATIENCE_MS)
        assert rows.count() < 100, "only what is in view is in the page"

        page.get_by_label("Search runs").fill("job-199")
        expect(rows).to_have_count(11)
        expect(page).to_have_url(f"{url}/?q=job-199")
        name = page.locator(".ag-header-cell-text", has_text="Run")
        name.click()
        expect(page).to_have_url(f"{url}/?q=job-199&sort=name")
        name.click()
        expect(page).to_have_url(f"{url}/?q=job-199&sort=-name")
        expect(page.locator(".run-link").first).to_have_text("job-1999")

        page.go_back()
        expect(page).to_have_url(f"{url}/?q=job-199&sort=name")
        expect(page.locator(".run-link").first).to_have_text("job-199")
        for number, run in enumerate(("id-0199", "id-1990"), start=1):  # by name: sorting may still move rows
            page.locator(f".ag-row[row-id='{run}'] .ag-checkbox-input").check()
            expect(page).to_have_url(re.compile(f"sort=name&picked=((id-0199|id-1990),?){{{number}}}$"))
        page.get_by_role("link", name="Compare 2 runs").click()
        expect(page.locator("#compare-verdict")).to_contain_text("Not enough data", timeout=PATIENCE_MS)
        assert "/compare?runs=id-" in page.url
        page.go_back()
        expect(rows).to_have_count(11)
        selected = page.locator(".ag-center-cols-container .ag-row-selected")
        expect(selected).to_have_count(2)
        expect(page.get_by_role("link", name="Compare 2 runs")).to_be_visible()
        page.go_back()
        expect(selected).to_have_count(1)
        expect(page.locator("#runs-compare")).to_have_text("Select two runs to compare")
    with opened(f"{url}/?q=job-199&picked=id-1990,id-0199") as page:
        expect(page.locator(".ag-center-cols-container .ag-row-selected")).to_have_count(2)
        page.locator(".ag-row[row-id='id-1991'] .ag-checkbox-input").check()
        expect(page).to_have_url(re.compile("picked=(id-0199|id-1990|id-1991|,){5}$"))
        page.go_back()
        expect(page.locator(".ag-center-cols-container .ag-row-selected")).to_have_count(2)
        expect(page).to_have_url(f"{url}/?q=job-199&picked=id-1990,id-0199")


def test_the_list_follows_runs_as_they_come_without_losing_what_is_selected(
    tmp_path: Path, write_run: Callable[..., Path], opened: Open, serve: Callable[[Path], str]
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, run_id=name, name=name, steps=12)
    url = serve(tmp_path)
    with opened(url) as page:
        expect(page.locator(".run-link")).to_have_count(2)
        # Rows are drawn again when their verdicts come; the key must not fall between.
        expect(page.locator(".ag-center-cols-container .ag-row").nth(1)).to_contain_text("Straggler", timeout=PATIENCE_MS)
        page.locator(".ag-row .ag-checkbox-input").first.press("Space")
        expect(page.locator(".ag-row-selected").first).to_be_attached()

        write_run(tmp_path / "c", run_id="c", name="c", steps=12, finished=False, start_unix_ns=1_790_000_100_000_000_000)

        expect(page.locator(".run-link")).to_have_count(3, timeout=PATIENCE_MS)
        expect(page.locator(".run-link").first).to_have_text("c")
        expect(page.locator(".ag-center-cols-container .ag-row").first).to_contain_text("Live")
        expect(page.locator(".ag-pinned-left-cols-container .ag-row-selected")).to_have_count(1)


TOLD = """() => {
    document.querySelector(".ag-row[row-id='a'] .ag-checkbox-input").click();
    dash_clientside.set_props("runs-answer", {data: {number: 0, rows: [{id: "b", name: "b", kind: "Told", verdict: "late"}]}});
}"""


def test_a_verdict_that_comes_at_the_moment_of_a_choice_does_not_undo_it(
    tmp_path: Path, write_run: Callable[..., Path], opened: Open, serve: Callable[[Path], str]
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, run_id=name, name=name, steps=12)
    url = serve(tmp_path)
    with opened(url) as page:
        expect(page.locator(".ag-center-cols-container .ag-row").nth(1)).to_contain_text("Straggler", timeout=PATIENCE_MS)
        page.evaluate(TOLD)
        expect(page.locator(".ag-center-cols-container .ag-row[row-id='b']")).to_contain_text("late")
        expect(page).to_have_url(f"{url}/?picked=a")
        expect(page.locator(".ag-pinned-left-cols-container .ag-row-selected")).to_have_count(1)
        # Also searching knows what was told
        page.get_by_label("Search runs").fill("late")
        expect(page.locator(".ag-center-cols-container .ag-row")).to_have_count(1)
        expect(page.locator(".run-link")).to_have_text("b")


def test_a_comparison_shows_its_figures_and_gives_their_numbers_away(
    tmp_path: Path, write_run: Callable[..., Path], opened: Open, serve: Callable[[Path], str]
) -> None:
    write_run(tmp_path / "a", run_id="a", name="<b>sound</b>", slow_rank=None)
    write_run(tmp_path / "b", run_id="b", name="=slow")
    url = serve(tmp_path)
    with opened(f"{url}/compare?runs=a,b") as page:
        expect(page.locator("#compare-verdict")).to_contain_text("B is slower than A", timeout=PATIENCE_MS)
        expect(page.locator("#compare-steps .legendtext").first).to_have_text("A: <b>sound</b>", timeout=PATIENCE_MS)
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as CSV: Differences of the parts").click()
        with download.value.path().open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert rows[0]["quantity"] == "step time"
        page.get_by_text("Ranks", exact=True).last.click()
        expect(page).to_have_url(f"{url}/compare?runs=a,b&by=rank")
        expect(page.locator("#compare-ranks .ytick").first).to_contain_text("rank")
        page.get_by_role("link", name="Ledger").click()
        expect(page.locator("#ledger-body")).to_contain_text("Runs counted")
        page.go_back()
        expect(page.locator("#compare-verdict")).to_be_visible()
