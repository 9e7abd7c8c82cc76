"""Pages for what is not there or cannot be read."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component


def problem_page(title: str, reason: str, *, hint: str | None = None) -> Component:
    """A page that says what is wrong, in the words of the error, and leads back to the list."""
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


def unknown_run(run_id: str) -> Component:
    """There is no run of that id here."""
    return problem_page(
        "There is no such run",
        f"Nothing here has the run id {run_id!r}.",
        hint="It may have been moved or removed, or this dashboard was started on another folder.",
    )


def unknown_page(pathname: str) -> Component:
    """The address belongs to no page."""
    return problem_page("There is no such page", f"Nothing lives at {pathname}.")


def unreadable_run(name: str, reason: str) -> Component:
    """The run is there, but cannot be read."""
    return problem_page(f"{name} cannot be read", reason)
