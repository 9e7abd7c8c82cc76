"""Every view of a run in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, ViewportSize, expect
from tests.dashboards.browser.pages import Opened, all_drawn, current, expect_scheme, fits, region, serious, view_drawn

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
def test_a_view_is_drawn_accessible_and_reached_by_keyboard(site: str, opened: Opened, view: View) -> None:
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


def test_what_draws_the_figures_is_loaded_once(run_url: str, opened: Opened) -> None:
    with opened(run_url) as page:
        view_drawn(page)
        loaded = page.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
        assert sum("plotly.v" in name for name in loaded) == 1, loaded
        assert not any("plotly.min" in name for name in loaded), loaded


@pytest.mark.full
@by_slug
def test_a_view_is_accessible_in_the_dark_and_on_a_narrow_screen(site: str, opened: Opened, view: View) -> None:
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
def test_a_page_of_the_site_is_accessible_and_fits_a_narrow_screen(site: str, opened: Opened, where: str) -> None:
    with opened(f"{site}{where}", color_scheme="light") as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(SITE[where])
        all_drawn(page)
        assert serious(page) == []
        page.set_viewport_size(NARROW)
        all_drawn(page)
        assert fits(page)


@pytest.mark.full
@pytest.mark.parametrize("where", SITE)
def test_a_page_of_the_site_is_accessible_in_the_dark_and_on_a_narrow_screen(site: str, opened: Opened, where: str) -> None:
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
def test_a_choice_is_in_the_address_survives_reloading_and_is_undone_by_going_back(site: str, opened: Opened, slug: str) -> None:
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
