"""Alerts of all runs in a real browser, served by the real command."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.dashboards.browser.pages import Opened, figure, region, rows, saved_rows

from rankscope.alerts.alert import fingerprint
from rankscope.alerts.watch.announcements import FINDING_SCHEMA, FindingRecord, append_finding

pytestmark = pytest.mark.slow

AT = 1_790_000_000_000_000_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, write_run: Callable[..., Path]) -> Path:
    """Folder with an ended run and a live run with a firing alert."""
    root = tmp_path_factory.mktemp("runs")
    over = write_run(root / "a", run_id="a", name="over")
    live = write_run(root / "b", run_id="b", name="live", finished=False)
    found_in(over, "a", 3, ended=True)
    found_in(live, "b", 2, ended=False)
    return root


@pytest.fixture(scope="module")
def url(runs: Path, serve: Callable[[Path], str]) -> str:
    """Address of the server of these runs."""
    return serve(runs)


def found_in(run: Path, run_id: str, rank: int, *, ended: bool, name: str = "TrainingStraggler") -> None:
    labels = {"alertname": name, "severity": "warning", "run_id": run_id, "rank": str(rank), "host": "node-1"}
    for status, seconds in (("firing", 0), *((("resolved", 60),) if ended else ())):
        append_finding(
            run,
            FindingRecord(
                schema=FINDING_SCHEMA,
                time_unix_ns=AT + (rank * 100 + seconds) * 10**9,
                status=status,
                fingerprint=fingerprint(labels),
                labels=labels,
                annotations={"summary": f"=Rank {rank} <b>is slow</b>.", "evidence": "imposed wait 39 ms"},
            ),
        )


def test_alerts_of_all_runs_are_searched_read_saved_and_followed(runs: Path, url: str, opened: Opened) -> None:
    with opened(f"{url}/alerts") as page:
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
        found_in(runs / "a", "a", 1, ended=True)
        expect(alerts).to_have_count(3)

        # And the run's page opens with the rank selected
        page.get_by_role("link", name="live").click()
        expect(page).to_have_url(f"{url}/run/b?rank=2")
