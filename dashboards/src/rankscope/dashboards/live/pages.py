"""What is at an address: the blocks of a page, and the page as Dash components. Never raises, whatever the address contains."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.analysis.result.analysis import Kind
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.frame import note
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import NotReadyError, RunSource, UnknownRunError
from rankscope.dashboards.live.components import AGAIN_MS, aria, cancel_button, component, drawn
from rankscope.dashboards.model.drawn import NO_DATA, Drawn
from rankscope.dashboards.model.page import Again, Block, Figure, find
from rankscope.dashboards.model.run_head import about, problem, run_head
from rankscope.dashboards.model.state import PageState, run_of, run_path
from rankscope.dashboards.model.view import SitePage, View
from rankscope.dashboards.registry import SITE, VIEWS, site_page, view_of
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording
from rankscope.dashboards.words.inert import sanitize

_LOG = logging.getLogger(__name__)

OUR_FAULT: Final = "This could not be drawn: an error in rankscope, not in the run. The log of the server says more."

B = TypeVar("B", bound=Block)


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of an app. ``path`` and ``search`` come from a client, which may send any type."""

    source: RunSource
    config: DashboardConfig

    def block(self, path: object, search: object, kind: type[B], name: str) -> B | None:
        """Return a block of the page at an address; ``None`` if there is none. Raises ``RankscopeError``."""
        query = search if isinstance(search, str) else None
        if (page := site_page(path)) is not None:
            blocks = page.blocks(self.source, query, self.config)
        elif (found := self.run_at(path)) is not None:
            run, view = found
            blocks = view.blocks(run, PageState.parse(query))
        else:
            return None
        block: B | None = find(blocks, kind, name)
        return block

    def figure(self, path: object, search: object, name: str, colors: Palette) -> tuple[Drawn, bool] | None:
        """Return a figure, or a note with the error in its place, and whether it is final. If not, it must be requested again.

        ``None``: the page has no such figure.
        """
        try:
            figure = self.block(path, search, Figure, name)
            return None if figure is None else (figure.draw(colors), True)
        except NotReadyError as error:
            return instead(f"{error.progress.sentence} …", colors), False
        except RankscopeError as error:
            return instead(str(error), colors), True
        except Exception:  # noqa: BLE001  other figures must still be drawn; the log has the traceback
            _LOG.exception("figure %s of %s", name, sanitize(str(path)))
            return instead(OUR_FAULT, colors), True

    def page(self, path: object, search: object) -> tuple[Component, str]:
        """Return the page of an address and its name."""
        query = search if isinstance(search, str) else None
        try:
            return self._page(path, query)
        except Exception:  # noqa: BLE001  the user must see an error page; the log has the traceback
            _LOG.exception("page %s", sanitize(str(path)))
            return _stack([problem("This page could not be made", OUR_FAULT)]), "Error"

    def version(self, run: RunData, view: View) -> dict[str, str]:
        """Return the identity of the shown content of a run. Everything is redrawn when it changes."""
        run_id = run.summary.run_id
        return {"path": run_path(run_id, view.slug), "version": run.source.version(run_id), "status": run.summary.status}

    def run_at(self, path: object) -> tuple[RunData, View] | None:
        """Return run and view at a path; ``None`` for another page. Raises ``RankscopeError``."""
        found = _view_at(path)
        return None if found is None else (self._run(found[0]), found[1])

    def _run(self, run_id: str) -> RunData:
        return RunData(self.source, self.source.summary(run_id), self.config.perfetto_url, self.config.token is not None)

    def _page(self, path: object, search: str | None) -> tuple[Component, str]:
        if (page := site_page(path)) is not None:
            return self._site(page, search), page.title
        found = _view_at(path)
        if found is None:
            return _stack([problem("There is no such page", f"Nothing lives at {sanitize(str(path))}.")]), "Not found"
        run_id, view = found
        try:
            run = self._run(run_id)
            if run.summary.problem is not None:
                return _unreadable(run.summary.name, run.summary.problem), run.summary.name
            return self._of_run(run, view, search), run.summary.name
        except UnknownRunError:
            hint = "It may have been moved or removed, or this dashboard was started on another folder."
            reason = f"Nothing here has the run id {sanitize(run_id)!r}."
            return _stack([problem("There is no such run", reason, hint=hint)]), "Not found"
        except RankscopeError as error:
            return _unreadable(run_id, str(error)), run_id

    def _of_run(self, run: RunData, view: View, search: str | None) -> Component:
        """Return a page of a run. It has its own ``Location``, so that its callbacks exist only while the page is shown."""
        state, summary = PageState.parse(search), run.summary
        try:
            version = self.version(run, view)  # read before the content: if the content is newer, the next poll redraws it
        except NotReadyError as error:
            return html.Div(_not_ready(summary.name, error), className="stack")
        poll = dcc.Interval(id="poll", interval=int(self.config.poll_interval_s * 1000), disabled=is_settled(run))
        links = view_links(summary.run_id, view.slug, state)
        return html.Div(
            [
                html.Header(drawn(run_head(summary, verdict_kind(run))), id="run-head", className="run-page-head"),
                html.P(stale_note(run), id="run-away", className="reason", role="status"),
                html.Nav(links, id="views", className="views", **aria(label="Views of the run")),
                html.Div(_content(lambda: view.blocks(run, state), summary.name), className="stack", id="view"),
                *drawn([about(view)]),
                *_stores(version, search),
                poll,
            ],
            className="stack",
        )

    def _site(self, page: SitePage, search: str | None) -> Component:
        try:
            blocks = drawn(page.blocks(self.source, search, self.config))
        except NotReadyError as error:
            return html.Div(_not_ready(page.subject or page.title, error), className="stack")
        except RankscopeError as error:
            return _stack([problem(f"{page.title}: this cannot be shown", str(error))])
        stores = _stores({"path": page.path, "version": ""}, search)
        no_views = html.Nav(id="views", hidden=True)  # callbacks that keep the selection write into it
        return html.Div([*blocks, no_views, *stores], className="stack wide" if page.wide else "stack")


def _view_at(path: object) -> tuple[str, View] | None:
    run_id, slug = (run_of(path) if isinstance(path, str) else None) or ("", "")
    view = view_of(slug)
    return None if not run_id or view is None else (run_id, view)


def _stores(version: dict[str, str], search: str | None) -> list[Component]:
    return [dcc.Location(id="address", refresh="callback-nav", search=search or ""), dcc.Store(id="shown", data=version)]


def _content(make: Callable[[], Sequence[Block]], name: str) -> list[Component]:
    """Return a view's content, or its progress or error: other views may still work."""
    try:
        return drawn(make())
    except NotReadyError as error:
        return [_not_ready(name, error)]
    except RankscopeError as error:
        return [html.Section(html.P(str(error), className="reason"), className="card", role="alert")]


def _stack(blocks: Sequence[Block]) -> Component:
    return html.Div(drawn(blocks), className="stack")


def _unreadable(name: str, reason: str) -> Component:
    return _stack([problem(f"{name} cannot be shown", reason)])


def instead(text: str, colors: Palette) -> Drawn:
    """Return a figure without data that shows ``text`` as the reason."""
    return Drawn(note(text, colors), NO_DATA, text)


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
    return run.summary.status not in wording.LIVE and run.stale is None


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
    here = site_page(pathname)
    return [
        html.Span(
            dcc.Link(page.title, href=page.path, className="site-link current" if page is here else "site-link"),
            **aria(current="page" if page is here else "false"),
        )
        for page in SITE
        if page.in_navigation
    ]


def _not_ready(name: str, error: NotReadyError) -> Component:
    """Return the card of a computation in progress. The page is made again by a timer of type ``AGAIN``."""
    progress = error.progress
    known = progress.of > 0
    return html.Section(
        [
            html.H1(f"{name} is being analysed", className="sentence"),
            html.P(f"{progress.sentence}.", className="reason", **aria(live="polite")),
            dmc.Progress(
                value=100 * progress.done / progress.of if known else 100,
                animated=not known,
                striped=not known,
                **aria(label="Progress of the analysis"),
            ),
            *cancel_button(error, "page"),
            html.P("A run is analysed once, and again when it has changed; then its pages are there at once.", className="help"),
            component(Again(name, AGAIN_MS)),
        ],
        className="card verdict tone-unknown",
    )
