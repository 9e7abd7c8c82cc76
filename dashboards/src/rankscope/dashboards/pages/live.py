"""Pieces of a page that are drawn anew by callbacks whenever the run, the address or the colour scheme changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.figures.frame import GRAPH_CONFIG
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.pages.problem import AGAIN_MS
from rankscope.dashboards.url_state import PageState

_BLANK: Final[dict[str, Any]] = {"layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}}


def identity(kind: str, name: str) -> dict[str, str]:
    """Identifier of a piece, by which callbacks find it."""
    return {"type": kind, "name": name}


def figure(name: str, label: str, *, height: int = 240, many: bool = False, long: bool = False) -> Component:
    """The place of a view's figure: its picture, what it says in words, and how to take it away.

    ``label`` says what it is a picture of; ``height`` in pixels is kept free until it is drawn. ``many``: it is of many runs, and
    drawn by the callback for these (``callbacks/many.py``). ``long``: its texts are; on a narrow screen it scrolls in its place.
    """
    kind = "many-" if many else ""
    blank = {"layout": {**_BLANK["layout"], "height": height}}
    return html.Figure(
        [
            html.Div(
                dcc.Graph(id=cast("Any", identity(f"{kind}figure", name)), config=cast("Any", GRAPH_CONFIG), figure=blank),
                className="graph long" if long else "graph",
                # Who has no mouse scrolls with the arrow keys.
                **cast("Any", {"tabIndex": 0, "role": "group", **aria(label=label)} if long else {}),
            ),
            html.Figcaption(id=cast("Any", identity(f"{kind}says", name)), className="says"),
            html.Div([_save(name, label, kind) for kind in ("PNG", "SVG", "CSV")], className="saves"),
            dcc.Store(id=cast("Any", identity(f"{kind}zoomed", name))),
            dcc.Interval(id=cast("Any", identity(f"{kind}figure-again", name)), interval=AGAIN_MS, disabled=True),
        ],
        id=name,
        className="figure",
        **aria(label=label),
    )


def _save(name: str, label: str, kind: str) -> Component:
    """What it does when it is clicked is in assets/save.js."""
    data = {"data-save": kind.lower(), "data-figure": name}
    return html.Button(kind, className="save", type="button", **aria(label=f"Save as {kind}: {label}"), **cast("Any", data))


def part(name: str, children: list[Component], *, class_name: str | None = None, **attributes: str) -> Component:
    """The place of a view's text; ``children`` as its maker makes them now."""
    return html.Div(children, id=cast("Any", identity("part", name)), className=class_name, **cast("Any", attributes))


def not_yet(name: str, progress: Progress) -> list[Component]:
    """Instead of a part that is being worked out; it asks again by itself."""
    again = {"type": "part-again", "name": name, "of": name}
    return [
        html.P(f"{progress.sentence} …", className="help", **aria(live="polite")),
        dcc.Interval(id=cast("Any", again), interval=AGAIN_MS),
    ]


def when_there(name: str, make: Callable[[], list[Component]]) -> list[Component]:
    """What a page begins the part ``name`` with: what ``make`` makes, or how far that is, or why there is none."""
    try:
        return make()
    except NotReadyError as error:
        return not_yet(name, error.progress)
    except RankscopeError as error:
        return [html.P(str(error), className="reason")]


def select(
    field: str, label: str, options: list[dict[str, Any]], state: PageState, *, width: int = 190, nothing: str | None = None
) -> Component:
    """A choice among ``options`` (value, label) of a field of the page's state; ``nothing`` is shown where nothing is
    chosen, which can then be gone back to.
    """
    known = {option["value"] for option in options}
    chosen = state.text(field)
    component: Component = dmc.Select(
        id=identity("control", field),
        label=label,
        data=options,
        value=chosen if chosen in known else None,
        allowDeselect=nothing is not None,
        clearable=nothing is not None,
        placeholder=nothing,
        searchable=len(options) > 8,
        size="xs",
        w=width,
        comboboxProps={"withinPortal": True},
    )
    return component


def rank_choice(state: PageState) -> Component:
    """The rank picked out in every view."""
    component: Component = dmc.NumberInput(
        id=identity("control", "rank"),
        label="Picked rank",
        value="" if state.rank is None else state.rank,
        min=0,
        allowDecimal=False,
        allowNegative=False,
        placeholder="none",
        debounce=400,
        size="xs",
        w=110,
    )
    return component
