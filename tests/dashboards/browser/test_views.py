"""Every view of a run in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect

from rankscope.dashboards.url_state import run_path
from rankscope.dashboards.views.registry import VIEWS
from rankscope.dashboards.views.view import View

Opened = Callable[..., AbstractContextManager[Page]]
PATIENCE_MS = 60_000


def names_of(pieces: str) -> list[str]:
    return [name for view in VIEWS for name in getattr(view, pieces)]


@pytest.mark.parametrize("pieces", ["figures", "parts", "grids"])
def test_no_two_views_have_a_piece_of_the_same_name(pieces: str) -> None:
    names = names_of(pieces)
    assert len(names) == len(set(names))


def test_what_can_be_clicked_or_zoomed_is_a_figure_of_the_view() -> None:
    for view in VIEWS:
        assert {*view.picks, *view.zooms} <= set(view.figures)


def drawn(page: Page) -> None:
    """Wait until all of the view is there."""
    expect(page.locator("#view")).to_be_visible(timeout=PATIENCE_MS)
    all_there(page)


def all_there(page: Page) -> None:
    """Wait until all figures of a page are drawn."""
    for graph in page.locator("figure.figure").all():
        expect(graph.locator(".main-svg").first).to_be_visible(timeout=PATIENCE_MS)
        expect(graph.locator("figcaption")).not_to_be_empty()
    page.wait_for_load_state("networkidle")
    # A table makes the rows of its head before what is in them.
    page.wait_for_function("() => [...document.querySelectorAll('.ag-header-row')].every(row => row.childElementCount)")


def darken(page: Page) -> None:
    """The system turns dark, and everything follows."""
    page.emulate_media(color_scheme="dark")
    scheme = "document.documentElement.getAttribute('data-mantine-color-scheme')"
    page.wait_for_function(f"() => [null, 'dark'].includes({scheme})")  # the form for logging in is not part of the app
    page.wait_for_timeout(300)  # colours fade over; what is drawn anew has been asked for by then


def serious(page: Page) -> list[str]:
    """What axe-core finds serious or critical."""
    return [
        f"{found['id']}: {node['html'][:160]} {node['any'][:1]}"
        for found in Axe().run(page).response["violations"]
        if found["impact"] in {"serious", "critical"}
        for node in found["nodes"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.slug or "overview")
def test_a_view_is_drawn_and_accessible_in_both_schemes_and_on_a_narrow_screen(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str], view: View
) -> None:
    address = serve(write_run(tmp_path / "run")) + run_path("run-1", view.slug)
    with opened(f"{address}?rank=1", color_scheme="light") as page:
        drawn(page)
        expect(page).to_have_url(f"{address}?rank=1")
        expect(page.locator("#views .current")).to_have_text(view.label)
        expect(page.locator("h1")).to_have_text("bert-base")
        assert serious(page) == []
        darken(page)
        drawn(page)
        assert serious(page) == []
    with opened(address, viewport={"width": 360, "height": 740}) as page:
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert serious(page) == []


SITE = {"/": "Runs", "/compare?runs=a,b": "Compare", "/ledger": "Ledger", "/alerts": "Alerts", "/login": "No login here"}
"""Pages about many runs, and their titles."""


@pytest.mark.slow
def test_the_pages_about_many_runs_are_accessible_in_both_schemes_and_on_a_narrow_screen(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    write_run(tmp_path / "a", run_id="a", name="slow", simulated=True)
    write_run(tmp_path / "b", run_id="b", name="W" * 300, slow_rank=None)
    address = serve(tmp_path)
    for where, title in SITE.items():
        for width in (1440, 360):
            with opened(f"{address}{where}", color_scheme="light", viewport={"width": width, "height": 740}) as page:
                expect(page.locator("h1")).to_have_text(title, timeout=PATIENCE_MS)
                all_there(page)
                assert serious(page) == [], (where, width)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (where, width)
                if width == 1440:
                    darken(page)
                    all_there(page)
                    assert serious(page) == [], where


@pytest.mark.slow
def test_the_form_for_logging_in_is_accessible(
    tmp_path: Path,
    write_run: Callable[..., Path],
    browser: Browser,
    serve: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANKSCOPE_DASHBOARD_TOKEN", "0123456789abcdef0123456789abcdef")
    address = serve(write_run(tmp_path / "run"))
    for scheme in ("light", "dark"):
        with browser.new_context(color_scheme=scheme, viewport={"width": 360, "height": 740}) as session:
            page = session.new_page()
            page.goto(address)
            page.get_by_label("Token").fill("a wrong one")
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_be_visible()
            assert serious(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.slug or "overview")
def test_the_keyboard_reaches_all_controls_of_a_view_and_shows_where_it_is(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str], view: View
) -> None:
    address = serve(write_run(tmp_path / "run")) + run_path("run-1", view.slug)
    with opened(address, reduced_motion="reduce") as page:
        drawn(page)
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        expect(page.locator(".skip")).to_be_in_viewport()
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


CONTROLS = """() => {
    const kinds = ['a[href]', 'button:not([disabled])', 'input:not([disabled]):not([type=hidden])', 'summary'];
    const all = [...document.querySelectorAll(kinds.map(kind => `#page ${kind}`).join(','))];
    const mine = all.filter(one => one.checkVisibility({visibilityProperty: true}) && one.tabIndex >= 0
        && !one.closest('.ag-root, .modebar, [aria-hidden=true]'));
    mine.forEach((one, number) => { one.dataset.number = number; });
    return mine.length;
}"""
"""Numbers them; those inside a table have keys of their own: the arrows."""

FOCUSED = """() => {
    const one = document.activeElement;
    const framed = [one, one.parentElement].some(each => {
        const style = getComputedStyle(each);
        return (style.outlineStyle !== 'none' && style.outlineWidth !== '0px') || style.boxShadow !== 'none';
    });
    return [Number(one.dataset.number ?? -1), framed || one === document.body || one.matches('input')];
}"""
"""Its number, and whether one sees that it has the focus: a frame, or the caret of an input."""


@pytest.mark.slow
def test_runs_are_opened_and_their_table_is_left_by_keyboard(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str]
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, run_id=name, name=name)
    url = serve(tmp_path)
    with opened(url) as page:
        expect(page.locator(".run-link")).to_have_count(2)
        page.locator("#runs-csv").focus()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('#runs-grid') !== null")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        name = page.locator(".ag-cell-focus").inner_text()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('#runs-grid') === null"), "one key leads out of it"
        page.keyboard.press("Shift+Tab")
        page.locator(".ag-cell-focus").focus()
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{url}/run/{name}")
        drawn(page)


CHOICES: dict[str, tuple[str, str, str]] = {
    "ranks": ("Metric", "Step time", "metric=wall_us"),
    "overlap": ("Picked rank", "1", "rank=1"),
    "timeline": ("Picked rank", "1", "rank=1"),
    "whatif": ("Think away", "rank 2", "without=rank:2"),
}
"""A control of a view, what is chosen in it, and what the address then has."""


@pytest.mark.slow
@pytest.mark.parametrize("slug", CHOICES)
def test_a_choice_is_in_the_address_survives_reloading_and_is_undone_by_going_back(
    tmp_path: Path, write_run: Callable[..., Path], opened: Opened, serve: Callable[[Path], str], slug: str
) -> None:
    label, choice, query = CHOICES[slug]
    address = serve(write_run(tmp_path / "run")) + run_path("run-1", slug)
    with opened(address) as page:
        drawn(page)
        control = page.get_by_role("textbox", name=label)
        before = control.input_value()
        control.click()
        if label == "Picked rank":
            control.fill(choice)
        else:
            page.get_by_role("option", name=choice).first.click()
        expect(page).to_have_url(f"{address}?{query}")
        page.reload()
        drawn(page)
        expect(page).to_have_url(f"{address}?{query}")
        if slug == "whatif":
            expect(page.locator("#whatif-section")).to_contain_text("rank 2")
        else:
            expect(control).not_to_have_value(before)
        page.go_back()
        expect(page).to_have_url(address)
        expect(control).to_have_value(before)
