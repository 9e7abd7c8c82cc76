"""Pages for objects that are missing, not ready or unreadable."""

from __future__ import annotations

from typing import Final

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.words.inert import shown


def problem_page(title: str, reason: str, *, hint: str | None = None) -> Component:
    """Return a page with the error's reason and a link to the list of runs."""
    return html.Div(
        html.Section(
            [
                html.H1(title, className="sentence"),
                html.P(reason, className="reason"),
                *([html.P(hint, className="help")] if hint else []),
                dcc.Link("See all runs", href="/", className="button"),
            ],
            className="card verdict tone-unknown",
            role="alert",
        ),
        className="stack",
    )


def not_ready(name: str, progress: Progress) -> Component:
    """Return the page of an analysis in progress. It polls for the result by a timer of type ``AGAIN``."""
    known = progress.of > 0
    return html.Div(
        html.Section(
            [
                html.H1(f"{name} is being analysed", className="sentence"),
                html.P(f"{progress.sentence}.", className="reason", **aria(live="polite")),
                dmc.Progress(
                    value=100 * progress.done / progress.of if known else 100,
                    animated=not known,
                    striped=not known,
                    **aria(label="Progress of the analysis"),
                ),
                html.P(
                    "A run is analysed once, and again when it has changed; then its pages are there at once.", className="help"
                ),
                dcc.Interval(id={"type": AGAIN, "of": name}, interval=AGAIN_MS),
            ],
            className="card verdict tone-unknown",
        ),
        className="stack",
    )


AGAIN: Final = "again"
AGAIN_MS: Final = 700


def unknown_run(run_id: str) -> Component:
    """Return the page for a run id that does not exist here."""
    return problem_page(
        "There is no such run",
        f"Nothing here has the run id {shown(run_id)!r}.",
        hint="It may have been moved or removed, or this dashboard was started on another folder.",
    )


def unknown_page(pathname: str) -> Component:
    """Return the page for an address without a page."""
    return problem_page("There is no such page", f"Nothing lives at {shown(pathname)}.")


def unreadable_run(name: str, reason: str) -> Component:
    """Return the page for a run that exists but cannot be read."""
    return problem_page(f"{name} cannot be read", reason)
