"""Every view of a run in a real browser, and the selections in it: by control, click, drag and key."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, ViewportSize, expect
from tests.dashboards.browser.pages import (
    Opened,
    all_drawn,
    caption,
    current,
    drag,
    drawn,
    expect_scheme,
    figure,
    fits,
    pick,
    region,
    serious,
    view_drawn,
)
from tests.dashboards.gpu_samples import uuid

from rankscope.dashboards.model.state import run_path
from rankscope.dashboards.model.view import View
from rankscope.dashboards.registry import VIEWS

pytestmark = pytest.mark.slow


NARROW: ViewportSize = {"width": 360, "height": 740}
by_slug = pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.slug or "overview")


def darken(page: Page) -> None:
    """Switch the system to the dark scheme and wait until the page has followed."""
    page.emulate_media(color_scheme="dark")
    expect_scheme(page, "dark")
    page.wait_for_function(FADED)


FADED = """() => document.getAnimations().every(one =>
    one.playState === 'finished' || one.effect.getComputedTiming().iterations === Infinity)"""
"""Script that returns true once all colour transitions have finished."""


@pytest.mark.parametrize(
    "view",
    [pytest.param(view, marks=() if view.slug in ("", "timeline") else pytest.mark.full) for view in VIEWS],
    ids=lambda view: view.slug or "overview",
)
def test_view_is_drawn_accessible_and_operable_by_keyboard(site: str, opened: Opened, view: View) -> None:
    address = f"{site}{run_path('run-1', view.slug)}?rank=1"
    with opened(address, color_scheme="light", reduced_motion="reduce") as page:
        view_drawn(page)
        expect(page).to_have_url(address)
        expect(current(page.get_by_role("navigation", name="Views of the run"))).to_have_text(view.label)
        expect(page.get_by_role("heading", level=1)).to_have_text("bert-base")
        assert serious(page) == []

        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to the page")
        expect(skip).to_be_focused()
        expect(skip).to_be_in_viewport()
        page.keyboard.press("Enter")
        wanted = page.evaluate(CONTROLS)
        reached, unseen = [], []
        for _ in range(wanted + 60):
            page.keyboard.press("Tab")
            number, seen = page.evaluate(FOCUSED)
            reached.append(number)
            if not seen:
                unseen.append(page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
            if number == wanted - 1:
                break
        assert unseen == []
        assert [number for number in reached if number >= 0] == list(range(wanted)), "in the order in which they stand"

        page.set_viewport_size(NARROW)
        view_drawn(page)
        assert fits(page)


@pytest.mark.full
def test_plotly_is_loaded_once(run_url: str, opened: Opened) -> None:
    with opened(run_url) as page:
        view_drawn(page)
        page.reload()  # the page of a run that is analysed begins with its figures
        view_drawn(page)
        loaded = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
        assert sum("plotly.v" in name for name in loaded) == 1, loaded
        assert not any("plotly.min" in name for name in loaded), loaded
        early = page.evaluate("[...document.querySelectorAll('link[rel=preload][as=script]')].map(link => link.href)")
        assert len(early) == len(set(early) & set(loaded)) == 2, early


@pytest.mark.full
@by_slug
def test_view_is_accessible_in_dark_scheme_and_on_a_narrow_screen(site: str, opened: Opened, view: View) -> None:
    address = site + run_path("run-1", view.slug)
    with opened(address, color_scheme="light") as page:
        view_drawn(page)
        darken(page)
        view_drawn(page)
        assert serious(page) == []
    with opened(address, viewport=NARROW) as page:
        view_drawn(page)
        assert fits(page)
        assert serious(page) == []


SITE = {
    "/": "Runs",
    "/compare?runs=a,b": "Compare",
    "/lost-hours": "Lost GPU-hours",
    "/alerts": "Alerts",
    "/login": "No login here",
    "/run/a/hardware": "<b>sound</b>",
}
"""Headings by path: pages about many runs, and the page of a run without samples."""


@pytest.mark.parametrize("where", ["/", *(pytest.param(where, marks=pytest.mark.full) for where in SITE if where != "/")])
def test_site_page_is_accessible_and_fits_a_narrow_screen(site: str, opened: Opened, where: str) -> None:
    with opened(f"{site}{where}", color_scheme="light") as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(SITE[where])
        all_drawn(page)
        assert serious(page) == []
        page.set_viewport_size(NARROW)
        all_drawn(page)
        assert fits(page)


@pytest.mark.full
@pytest.mark.parametrize("where", SITE)
def test_site_page_is_accessible_in_dark_scheme_and_on_a_narrow_screen(site: str, opened: Opened, where: str) -> None:
    with opened(f"{site}{where}", color_scheme="light") as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(SITE[where])
        all_drawn(page)
        darken(page)
        all_drawn(page)
        assert serious(page) == []
    with opened(f"{site}{where}", color_scheme="light", viewport=NARROW) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(SITE[where])
        all_drawn(page)
        assert fits(page)
        assert serious(page) == []


CONTROLS = """() => {
    const kinds = ['a[href]', 'button:not([disabled])', 'input:not([disabled]):not([type=hidden])', 'summary'];
    const all = [...document.querySelectorAll(kinds.map(kind => `main ${kind}`).join(','))];
    const mine = all.filter(one => one.checkVisibility({visibilityProperty: true}) && one.tabIndex >= 0
        && !one.closest('[role=grid], [role=toolbar], [aria-hidden=true]'));
    mine.forEach((one, number) => { one.dataset.number = number; });
    return mine.length;
}"""
"""Script that numbers the focusable controls and returns their count; cells of tables are reached by arrow keys."""

FOCUSED = """() => {
    const one = document.activeElement;
    const framed = [one, one.parentElement].some(each => {
        const style = getComputedStyle(each);
        return (style.outlineStyle !== 'none' && style.outlineWidth !== '0px') || style.boxShadow !== 'none';
    });
    return [Number(one.dataset.number ?? -1), framed || one === document.body || one.matches('input')];
}"""
"""Script that returns the number of the focused control, and whether its focus is visible (outline, or an input's caret)."""


CHOICES: dict[str, tuple[str, str, str]] = {
    "ranks": ("Metric", "Step time", "metric=wall_us"),
    "overlap": ("Picked rank", "1", "rank=1"),
    "timeline": ("Picked rank", "1", "rank=1"),
    "whatif": ("Compare without", "rank 2", "without=rank:2"),
}
"""By view: a control, the option to choose in it, and the resulting query of the address."""


@pytest.mark.parametrize("slug", ["ranks", *(pytest.param(slug, marks=pytest.mark.full) for slug in CHOICES if slug != "ranks")])
def test_choice_is_in_the_url_and_undone_by_the_back_button(site: str, opened: Opened, slug: str) -> None:
    label, choice, query = CHOICES[slug]
    address = site + run_path("run-1", slug)
    with opened(address) as page:
        view_drawn(page)
        control = page.get_by_role("textbox", name=label)
        before = control.input_value()
        control.click()
        if label == "Picked rank":
            control.fill(choice)
        else:
            page.get_by_role("option", name=choice).first.click()
        expect(page).to_have_url(f"{address}?{query}")
        page.reload()
        view_drawn(page)
        expect(page).to_have_url(f"{address}?{query}")
        if slug == "whatif":
            expect(region(page, "What if it were not slow")).to_contain_text("Without rank 2")
        else:
            expect(control).not_to_have_value(before)
        page.go_back()
        expect(page).to_have_url(address)
        expect(control).to_have_value(before)


@pytest.mark.full
def test_step_range_dragged_over_the_trend_is_in_the_url(run_url: str, opened: Opened) -> None:
    with opened(run_url) as page:
        trend = figure(page, "Lines of the step time over the steps")
        drawn(page, "Bars of the parts of a step", "Lines of the step time", "Line of what is done per second")
        expect(caption(trend)).to_contain_text("Over 60 steps the median step takes")
        # When a range of steps is dragged over
        drag(trend, 0.25, 0.5)
        # Then the address has the range, and the figure shows only these steps
        expect(page).to_have_url(re.compile(r"steps=1[0-9]-[23][0-9]$"))
        expect(caption(trend)).not_to_contain_text("Over 60 steps")
        page.go_back()
        expect(caption(trend)).to_contain_text("Over 60 steps")

        page.get_by_role("link", name="Overlap", exact=True).click()
        waits = "Stacked bars of transfer and waiting per collective"
        drawn(page, "Stacked bars of compute, overlap", waits, "Bars of bus bandwidth")
        expect(caption(figure(page, waits))).to_contain_text("all_reduce · default_pg (4 ranks)")


@pytest.mark.full
def test_click_on_a_table_row_shows_the_gpu(run_url: str, opened: Opened) -> None:
    with opened(f"{run_url}/hardware") as page:
        lines = "Temperature, power, SM clock and use of the picked GPU"
        drawn(page, lines)
        region(page, "All GPUs").get_by_role("row", name=re.compile("^3 ")).get_by_role("gridcell").first.click()
        expect(page).to_have_url(re.compile(f"rank=3&gpu={uuid(3)}"))
        expect(caption(figure(page, lines))).to_contain_text("rank 3")
        expect(figure(page, lines).get_by_role("img").filter(has_text="node-1 · GPU 1, rank 3")).to_be_visible()


WAITS = "Heat map of who waited how long for whom"
BARS = "Bars of the step time without each rank"


@pytest.mark.full
def test_selected_straggler_is_carried_from_delays_to_what_if(run_url: str, opened: Opened) -> None:
    """Given a straggler, when it is selected by keyboard, cell and bar, then the address has it, and the page its gain."""
    with opened(f"{run_url}/delays") as page:
        drawn(page, "Bars of the wait", WAITS, "Stacked bars of the wait", "Stacked bars of the imposed wait")
        costs = region(page, "What every rank cost")
        expect(costs.get_by_role("gridcell", name="node-1").first).to_be_visible()
        # by keyboard
        costs.get_by_role("row", name="2", exact=True).get_by_role("gridcell").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"rank=2"))
        page.get_by_label("Picked rank").fill("1")
        page.wait_for_url(re.compile(r"rank=1"))
        # by mouse
        pick(figure(page, WAITS), 0.1, 0.62, re.compile(r"rank=2"))  # rank 0 waited for rank 2

        page.get_by_role("link", name="What-if").click()
        drawn(page, BARS, "Bars of the step time without each cause")
        expect(page).to_have_url(re.compile(r"rank=2"))
        pick(figure(page, BARS), 0.1, 0.5, re.compile(r"without=rank:2"))  # the second of three bars: without rank 2
        answer = region(page, "What if it were not slow")
        expect(answer).to_contain_text("Without rank 2 a typical step would be")
        expect(answer).to_contain_text("as recorded with the run")

        page.get_by_label("Price of a GPU-hour").fill("5")
        page.wait_for_url(re.compile(r"price=5"))
        expect(answer).to_contain_text("at 5.00 USD per GPU-hour, as entered above")
        page.go_back()
        expect(answer).to_contain_text("as recorded with the run")


@pytest.mark.full
def test_whatif_url_restores_the_selection(run_url: str, opened: Opened) -> None:
    """Given an address with a selection, when it is opened, then the control and the sentence show it."""
    with opened(f"{run_url}/whatif?without=rank:2,cause:input&price=3&currency=EUR") as page:
        drawn(page, BARS)
        answer = region(page, "What if it were not slow")
        expect(answer).to_contain_text("Without rank 2 and slow input")
        expect(answer).to_contain_text("EUR")
        for chosen in ("rank 2", "slow input"):
            expect(answer.get_by_text(chosen, exact=True)).to_be_visible()
