"""The timeline in a real browser, served by the real command."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.dashboards.browser.pages import Opened, another_site, area, caption, drag, figure, pick, region
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef0123456789abcdef"
FAKE_PERFETTO = """<!doctype html><title>Perfetto</title><h1>Perfetto</h1><p id="got">nothing yet</p><script>
if (location.hostname === "127.0.0.1") location.hostname = "localhost";
else addEventListener("message", async event => {
  if (event.source !== opener) return;
  if (event.data === "PING") return event.source.postMessage("PONG", event.origin);
  const {buffer, title, fileName} = event.data.perfetto;
  const text = await new Response(new Blob([buffer]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const names = JSON.parse(text).traceEvents.map(event => event.name);
  document.getElementById("got").textContent = [title, fileName, names.includes("step 21"), names.includes("step 23")].join("; ");
});
</script>"""
"""Page that takes a trace by the protocol of Perfetto's "Deep linking to Perfetto UI", and shows what it got. At
127.0.0.1 it leads to another origin."""


@pytest.mark.full
def test_timeline_window_can_be_zoomed_selected_saved_and_requested(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    """A live run with a captured window: zoom, click, deep link, export."""
    host = serve(write_run(tmp_path / "run", finished=False))
    with opened(f"{host}/run/run-1/timeline?span=0-60000", viewport={"width": 1440, "height": 1000}) as page:
        lanes = figure(page, "Lanes of all ranks over the time of the window")
        says = caption(lanes)
        expect(says).to_contain_text("from 0.00 to 60.00 ms")
        expect(caption(figure(page, "Bars of every rank in the collective"))).to_contain_text("last: rank 2")
        expect(page.get_by_text("3 collectives matched")).to_be_visible()

        # Dragging over a range zooms into it and changes the address.
        drag(lanes, 0.5, 0.75)
        page.wait_for_function("() => !location.search.includes('span=0-60000') && location.search.includes('span=')")
        expect(says).not_to_contain_text("from 0.00")

        # A click on a collective selects it.
        box = area(lanes).bounding_box()
        assert box is not None
        # 20, or its neighbour if the figure is one pixel wider
        pick(lanes, 0.5, 12 / box["height"], re.compile("collective=default_pg:2"))

        page.go_back()
        page.wait_for_function("() => !location.search.includes('collective=')")

        with page.expect_download() as saved:
            page.get_by_role("button", name="Save the window").click()
        assert saved.value.suggested_filename == "run-1-step-20.json.gz"
        expect(region(page, "Open in Perfetto").get_by_role("status")).to_contain_text("Saved:")

        # without a token the server would refuse
        expect(page.get_by_role("heading", name="Request a capture")).to_be_visible()
        expect(page.get_by_role("button", name="Request a capture")).to_have_count(0)


def click_open(page: Page) -> None:
    region(page, "Open in Perfetto").get_by_role("button", name="Open in Perfetto").click()


@pytest.mark.full
def test_window_opens_in_perfetto(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[..., str]
) -> None:
    """The trace arrives in the new tab, named, with the events of the window. A blocked tab and a lost session are reported."""
    with another_site(FAKE_PERFETTO) as perfetto:
        host = serve(write_run(tmp_path / "run"), "--perfetto-url", f"{perfetto}v50/", RANKSCOPE_DASHBOARD_TOKEN=TOKEN)
        with opened(f"{host}/run/run-1/timeline?window=20") as page:
            page.get_by_label("Token").fill(TOKEN)
            page.keyboard.press("Enter")
            status = region(page, "Open in Perfetto").get_by_role("status")
            with page.expect_popup() as tab:
                click_open(page)
            expect(tab.value.locator("#got")).to_have_text(re.compile("steps 20 to 22; run-1-step-20.json.gz; true; false"))
            expect(tab.value).to_have_url(f"{perfetto}v50/")
            expect(status).to_contain_text("Opened")

            page.context.clear_cookies()
            with page.expect_popup() as tab:
                click_open(page)
            expect(status).to_contain_text("Sign in")
            wait_until(lambda: page.evaluate("true") and tab.value.is_closed())  # a call to the browser takes in its events

            page.evaluate("window.open = () => null")
            click_open(page)
            expect(status).to_contain_text("pop-ups")
            expect(page.get_by_role("button", name="Save the window")).to_be_enabled()


@pytest.mark.full
def test_trace_is_not_sent_to_another_origin(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[..., str]
) -> None:
    """A page of another origin answers in the tab: its answers do not count, so nothing is sent, and the page gives up."""
    with another_site(FAKE_PERFETTO) as perfetto:
        host = serve(write_run(tmp_path / "run"), "--perfetto-url", perfetto.replace("localhost", "127.0.0.1"))
        with opened(f"{host}/run/run-1/timeline") as page:
            status = region(page, "Open in Perfetto").get_by_role("status")
            page.clock.install()
            with page.expect_popup() as tab:
                click_open(page)
            expect(status).to_contain_text("Waiting")
            tab.value.wait_for_url(perfetto)
            tab.value.evaluate("() => new Promise(done => addEventListener('message', event => event.data === 'PING' && done()))")
            page.clock.fast_forward("05:00")
            expect(status).to_contain_text("did not answer")
            expect(tab.value.locator("#got")).to_have_text("nothing yet")
            expect(page.get_by_role("button", name="Save the window")).to_be_enabled()
