"""How an open page is kept up to date, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, Request, Route, expect
from tests.dashboards.browser.pages import Opened, caption, figure, ranks_drawn, view_drawn
from tests.dashboards.recorded_run import append_steps
from tests.waiting import wait_until

from rankscope.runs.paths import rank_dir

pytestmark = pytest.mark.full

UPDATES = re.compile("/_dash-update-component")


def asked(page: Page) -> list[str]:
    """Return a list to which the outputs of all further callbacks of the server are added."""
    outputs: list[str] = []

    def note(request: Request) -> None:
        if "/_dash-update-component" in request.url:
            outputs.append(json.dumps(json.loads(request.post_data or "{}")["outputs"]))

    page.on("request", note)
    return outputs


def test_selection_redraws_only_dependent_figures_without_polling(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/overlap") as page:
        view_drawn(page)
        outputs = asked(page)
        page.get_by_label("Picked rank").fill("1")
        expect(page).to_have_url(f"{run_url}/overlap?rank=1")
        # a call to the browser takes in its events
        wait_until(lambda: page.evaluate("true") and any("breakdown-bars" in output for output in outputs))
        page.wait_for_timeout(5_000)
        assert sum("breakdown-bars" in output for output in outputs) == 1, outputs
        assert not any(name in output for output in outputs for name in ("collective-waits", "overlap-hidden", "answer"))


def test_live_page_follows_its_run_and_polls_when_shown_again(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    run = write_run(tmp_path / "x", run_id="x", name="x", steps=40, finished=False, windows=False)
    write_run(tmp_path / "y", run_id="y", name="y", steps=12)
    with opened(f"{serve(tmp_path)}/run/x/ranks") as page:
        ranks_drawn(page)
        heat_map = caption(figure(page, "Heat map"))
        expect(heat_map).to_contain_text("40 steps")
        expect(page.get_by_text("step 39, written")).to_be_visible()
        for rank in range(4):
            more = np.random.default_rng(rank)
            append_steps(rank_dir(run, 0, rank), rank, range(40, 50), slow_rank=2, windows=False, random=more)
        expect(page.get_by_text("step 49, written")).to_be_visible()
        expect(heat_map).to_contain_text("50 steps")

        with page.expect_request(lambda item: '"asked"' in (item.post_data or ""), timeout=600):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

        for rank in range(4):
            about = rank_dir(run, 0, rank) / "rank.json"
            ended = {**json.loads(about.read_text()), "end_reason": "exit", "end_unix_ns": 1_790_000_100_000_000_000}
            about.write_text(json.dumps(ended))
        expect(page.get_by_text("Finished", exact=True)).to_be_visible()
        expect(heat_map).to_contain_text("50 steps")
        expect(page.get_by_text("written")).to_be_hidden()


def test_pending_request_is_not_sent_again(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/overlap") as page:
        view_drawn(page)
        waiting: list[Route] = []

        def hold(route: Route) -> None:
            waiting.append(route)

        page.route(UPDATES, hold)
        page.locator("figcaption[data-draws]").first.evaluate(
            """caption => {
                caption.setAttribute("data-waits", "1");
                dash_clientside.set_props(JSON.parse(caption.id), {"data-draw": "again"});
            }"""
        )
        wait_until(lambda: page.evaluate("true") and waiting)
        page.wait_for_timeout(3_000)
        assert len(waiting) == 1
        page.unroute(UPDATES)
        page.wait_for_timeout(1_000)
