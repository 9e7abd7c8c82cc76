"""What is at an address: the blocks of a page, and the page as Dash components. Never raises, whatever the address contains."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.analysis.result.analysis import Kind
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.frame import drawn_note
from rankscope.dashboards.charts.palette import PALETTES, Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import GOING_ON, MAY_CHANGE, NotReadyError, RunSource, UnknownRunError
from rankscope.dashboards.live.components import aria, cancel_button, figure_properties, identity, render_blocks
from rankscope.dashboards.model.drawn import DrawnFigure
from rankscope.dashboards.model.page import Block, Control, FigureBlock, Part, RedrawMark, find, walk
from rankscope.dashboards.model.run_head import about, problem, run_head
from rankscope.dashboards.model.state import PageState, run_of, run_path
from rankscope.dashboards.model.view import SitePage, View
from rankscope.dashboards.registry import SITE, VIEWS, site_page, view_of
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording
from rankscope.dashboards.words.inert import sanitize

_LOG = logging.getLogger(__name__)

INTERNAL_ERROR: Final = "This could not be drawn: an error in rankscope, not in the run. The log of the server says more."

STALE_CONTENT: Final = "This cannot be read at the moment; what is shown is as it was before."

B = TypeVar("B", bound=Block)


WAITING_MS: Final = 700
"""Interval at which a page that is being computed is asked for."""


@dataclass(frozen=True, slots=True)
class Page:
    """Page of an address as components; ``shown``: what assets/page.js needs to keep it up to date."""

    content: Component
    name: str
    shown: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of an app. ``path`` and ``search`` come from a client, which may send any type."""

    source: RunSource
    config: DashboardConfig

    def block(self, path: object, search: object, kind: type[B], name: str) -> B | None:
        """Return a block of the page at an address; ``None`` if there is none. Raises ``RankscopeError``."""
        block: B | None = find(self._blocks(path, search if isinstance(search, str) else None), kind, name)
        return block

    def controls(self, path: object, search: str) -> dict[str, Any]:
        """Return the values of the controls of a page, by field, without those inside parts; empty if it cannot be made."""
        try:
            blocks = self._blocks(path, search)
        except RankscopeError:
            return {}
        return {block.field: block.value for block in walk(blocks) if isinstance(block, Control)}

    def _blocks(self, path: object, search: str | None) -> Sequence[Block]:
        if (page := site_page(path)) is not None:
            return page.blocks(self.source, search, self.config)
        if (location := _view_at(path)) is None:
            return []
        run, view = self._run(location[0]), location[1]
        return [_head(run), *view.blocks(run, PageState.parse(search))]

    def figure(self, path: object, search: object, name: str, colors: Palette) -> tuple[DrawnFigure, bool] | None:
        """Return a figure, or a note with the error in its place, and whether it is final. If not, it must be requested again.

        ``None``: the page has no such figure.
        """

        def draw() -> DrawnFigure | None:
            figure = self.block(path, search, FigureBlock, name)
            return None if figure is None else figure.draw(colors)

        drawing, ready = _picture_or_why(draw, colors, f"figure {name} of {sanitize(str(path))}")
        return None if drawing is None else (drawing, ready)

    def page(self, path: object, search: object, colors: Palette = PALETTES["light"]) -> Page:
        """Return the page of an address with its figures."""
        query = search if isinstance(search, str) else None
        try:
            return self._page(path, query, colors)
        except Exception:  # noqa: BLE001  the user must see an error page; the log has the traceback
            _LOG.exception("page %s", sanitize(str(path)))
            return _fixed(path, problem("This page could not be made", INTERNAL_ERROR), "Error")

    def changes(self, path: object, search: object, *, redraw: bool, rows: Sequence[str], work: bool) -> dict[str, Any]:
        """Return the present version of a page, and for a run how it goes on.

        ``redraw``: the page has nothing to show yet. ``rows``: ids of rows of its list to return. ``work``: start its work.
        """
        query = search if isinstance(search, str) else None
        try:
            if redraw:
                self._blocks(path, query)  # raises NotReadyError
            if (page := site_page(path)) is not None:
                return self._site_changes(page, query, rows, work=work)
            if (place := _view_at(path)) is None:
                return {}
            run = self._run(place[0])
            return {**self._shown(run), "note": stale_note(run)}
        except NotReadyError as error:
            return {"version": error.progress.sentence} if redraw else {}  # a page with content keeps it
        except RankscopeError as error:
            # The run or folder is being moved or written: the page keeps its content and polls again.
            return {"note": f"{STALE_CONTENT} {error}"}

    def _site_changes(self, page: SitePage, search: str | None, rows: Sequence[str], *, work: bool) -> dict[str, Any]:
        if work and page.work is not None:
            page.work(self.source, search)
        changes: dict[str, Any] = {"note": "", "version": "" if page.version is None else page.version(self.source, search)}
        if rows and page.rows is not None:
            changes["rows"] = page.rows(self.source, rows)
        return changes

    def _shown(self, run: RunData) -> dict[str, Any]:
        """Return version, polling interval and progress of a run. Everything is drawn again when the version changes."""
        summary = run.summary
        return {
            "version": f"{run.source.version(summary.run_id)} {summary.status}",
            "every_ms": 0 if is_settled(run) else int(self.config.poll_interval_s * 1000),
            "live": live_progress(run),
        }

    def _run(self, run_id: str) -> RunData:
        return RunData(self.source, self.source.summary(run_id), self.config.perfetto_url, self.config.token is not None)

    def _page(self, path: object, search: str | None, colors: Palette) -> Page:
        if (page := site_page(path)) is not None:
            return self._site(page, path, search, colors)
        place = _view_at(path)
        if place is None:
            return _fixed(path, problem("There is no such page", f"Nothing lives at {sanitize(str(path))}."), "Not found")
        run_id, view = place
        try:
            run = self._run(run_id)
            if run.summary.problem is not None:
                return _unreadable(path, run.summary.name, run.summary.problem)
            return self._of_run(run, view, path, search, colors)
        except UnknownRunError:
            hint = "It may have been moved or removed, or this dashboard was started on another folder."
            reason = f"Nothing here has the run id {sanitize(run_id)!r}."
            return _fixed(path, problem("There is no such run", reason, hint=hint), "Not found")
        except RankscopeError as error:
            return _unreadable(path, run_id, str(error))

    def _of_run(self, run: RunData, view: View, path: object, search: str | None, colors: Palette) -> Page:
        """Return a page of a run. It has its own ``Location``, so that its callbacks exist only while the page is shown."""
        state, summary = PageState.parse(search), run.summary
        try:
            now = self._shown(run)  # read before the content: if the content is newer, the next poll redraws it
        except NotReadyError as error:
            return _waiting(path, summary.name, summary.name, error)
        try:
            blocks = view.blocks(run, state)
            content, redraw = _content(blocks, colors), _has_nothing(blocks)
        except NotReadyError as error:
            content, redraw = [_not_ready(summary.name, error)], True
            now |= {"version": error.progress.sentence, "every_ms": WAITING_MS}
        except RankscopeError as error:  # other views may still work
            content, redraw = [html.Section(html.P(str(error), className="reason"), className="card", role="alert")], False
        page = html.Div(
            [
                html.Header(
                    [*render_blocks([_head(run)]), html.P(id="run-live", className="help", hidden=True)],
                    className="run-page-head",
                ),
                html.P(stale_note(run), id="page-note", className="reason", role="status"),
                html.Nav(
                    view_links(summary.run_id, view.slug, state), id="views", className="views", **aria(label="Views of the run")
                ),
                html.Div(content, className="stack", id="view"),
                *render_blocks([about(view)]),
                _address(search),
            ],
            className="stack",
        )
        return Page(page, summary.name, {"path": path, **now, "whole": redraw})

    def _site(self, page: SitePage, path: object, search: str | None, colors: Palette) -> Page:
        every_ms = 0 if page.version is None else int(self.config.poll_interval_s * 1000)
        try:
            version = "" if page.version is None else page.version(self.source, search)
            blocks = page.blocks(self.source, search, self.config)
            content = _content(blocks, colors)
        except NotReadyError as error:
            return _waiting(path, page.title, page.subject or page.title, error)
        except RankscopeError as error:
            return _fixed(path, problem(f"{page.title}: this cannot be shown", str(error)), page.title)
        note = html.P("", id="page-note", className="reason", role="status")
        no_views = html.Nav(id="views", hidden=True)  # callbacks that keep the selection write into it
        page_content = html.Div([*content, note, no_views, _address(search)], className="stack wide" if page.wide else "stack")
        return Page(
            page_content, page.title, {"path": path, "version": version, "every_ms": every_ms, "whole": _has_nothing(blocks)}
        )


def _view_at(path: object) -> tuple[str, View] | None:
    run_id, slug = (run_of(path) if isinstance(path, str) else None) or ("", "")
    view = view_of(slug)
    return None if not run_id or view is None else (run_id, view)


def _head(run: RunData) -> Block:
    return Part("run-head", lambda: run_head(run.summary, verdict_kind(run)), reads=())


def _content(blocks: Sequence[Block], colors: Palette) -> list[Component]:
    """Return blocks as components, the figures drawn."""
    content = html.Div(render_blocks(blocks))
    for block in walk(blocks):
        if isinstance(block, FigureBlock):
            picture, ready = _picture_or_why(partial(block.draw, colors), colors, f"figure {block.name}")
            assert picture is not None
            for kind, properties in zip(("figure", "says"), figure_properties(picture, ready), strict=True):
                for name, value in properties.items():
                    setattr(content[identity(kind, block.name)], name, value)
    return cast("list[Component]", content.children)


def _picture_or_why(draw: Callable[[], DrawnFigure | None], colors: Palette, figure: str) -> tuple[DrawnFigure | None, bool]:
    """Return what ``draw`` returns, or a note with the error in its place, and whether that is final.

    ``figure``: its name, for the log.
    """
    try:
        return draw(), True
    except NotReadyError as error:
        return drawn_note(f"{error.progress.sentence} …", colors), False
    except RankscopeError as error:
        return drawn_note(str(error), colors), True
    except Exception:  # noqa: BLE001  other figures must still be drawn; the log has the traceback
        _LOG.exception("%s", figure)
        return drawn_note(INTERNAL_ERROR, colors), True


def _has_nothing(blocks: Sequence[Block]) -> bool:
    return any(isinstance(block, RedrawMark) for block in walk(blocks))


def live_progress(run: RunData) -> dict[str, Any] | None:
    """Return the last step of a run that goes on and the seconds since it wrote something; ``None`` of other runs."""
    summary = run.summary
    if summary.status not in GOING_ON or summary.last_write_unix_ns is None:
        return None
    try:
        steps = run.steps.steps
    except RankscopeError:
        return None
    age_s = max(0.0, time.time() - summary.last_write_unix_ns / 1e9)
    return {"step": int(steps[-1]) if len(steps) else None, "age_s": round(age_s, 1)}


def _address(search: str | None) -> Component:
    return dcc.Location(id="address", refresh="callback-nav", search=search or "")


def _fixed(path: object, block: Block, name: str) -> Page:
    """Return a page that stays as it is."""
    return Page(
        html.Div(render_blocks([block]), className="stack"), name, {"path": path, "version": "", "every_ms": 0, "whole": False}
    )


def _unreadable(path: object, name: str, reason: str) -> Page:
    return _fixed(path, problem(f"{name} cannot be shown", reason), name)


def _waiting(path: object, name: str, subject: str, error: NotReadyError) -> Page:
    """Return a page that is being computed. It is made again when its progress changes."""
    content = html.Div(_not_ready(subject, error), className="stack")
    return Page(content, name, {"path": path, "version": error.progress.sentence, "every_ms": WAITING_MS, "whole": True})


def verdict_kind(run: RunData) -> Kind | None:
    """Return the kind of the verdict; ``None`` while it is not known."""
    try:
        return run.analysis.verdict.kind
    except RankscopeError:
        return None


def stale_note(run: RunData) -> str:
    """Return why the shown content is outdated; ``""`` if it is not."""
    return "" if run.stale is None else wording.not_renewed(run.stale)


def is_settled(run: RunData) -> bool:
    """Return whether nothing newer is to be expected of a run, so that its page need not poll."""
    return run.summary.status not in MAY_CHANGE and run.stale is None


def view_links(run_id: str, current: str, state: PageState) -> list[Component]:
    """Return links to the views, which keep the selection."""
    return [
        html.Span(
            dcc.Link(view.label, href=run_path(run_id, view.slug) + state.search, className="view-link"),
            className="current" if view.slug == current else "",
            **aria(current="page" if view.slug == current else None),
        )
        for view in VIEWS
    ]


def site_links(pathname: object) -> list[Component]:
    """Return the navigation in the head of every page."""
    current_page = site_page(pathname)
    return [
        html.Span(
            dcc.Link(page.title, href=page.path, className="site-link current" if page is current_page else "site-link"),
            **aria(current="page" if page is current_page else "false"),
        )
        for page in SITE
        if page.in_navigation
    ]


def _not_ready(name: str, error: NotReadyError) -> Component:
    """Return the card of a computation in progress."""
    progress = error.progress
    is_counted = progress.of > 0
    return html.Section(
        [
            html.H1(f"{name} is being analysed", className="sentence"),
            html.P(f"{progress.sentence}.", className="reason", **aria(live="polite")),
            dmc.Progress(
                value=100 * progress.done / progress.of if is_counted else 100,
                animated=not is_counted,
                striped=not is_counted,
                **aria(label="Progress of the analysis"),
            ),
            *cancel_button(error, "page"),
            html.P("A run is analysed once, and again when it has changed; then its pages are there at once.", className="help"),
        ],
        className="card verdict tone-unknown",
    )
