"""Components that callbacks redraw whenever the run, the address or the colour scheme changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.frame import GRAPH_CONFIG
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.pages.problem import AGAIN_MS

_BLANK: Final[dict[str, Any]] = {"layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}}


def identity(kind: str, name: str) -> dict[str, str]:
    """Return the id of a component, for pattern-matching callbacks."""
    return {"type": kind, "name": name}


def figure(name: str, label: str, *, height: int = 240, many: bool = False, long: bool = False) -> Component:
    """Return the placeholder of a view's figure: picture, summary in words, and save buttons.

    ``label``: description of the picture. ``height``: pixels reserved until it is drawn. ``many``: a figure of many runs, drawn
    by ``callbacks/many.py``. ``long``: a figure with long texts, which scrolls in its place on a narrow screen.
    """
    kind = "many-" if many else ""
    blank = {"layout": {**_BLANK["layout"], "height": height}}
    return html.Figure(
        [
            html.Div(
                dcc.Graph(id=cast("Any", identity(f"{kind}figure", name)), config=cast("Any", GRAPH_CONFIG), figure=blank),
                className="graph long" if long else "graph",
                # Makes it focusable, so that the arrow keys scroll it.
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
    """Return a save button. assets/save.js handles its clicks."""
    data = {"data-save": kind.lower(), "data-figure": name}
    return html.Button(kind, className="save", type="button", **aria(label=f"Save as {kind}: {label}"), **cast("Any", data))


def part(name: str, children: list[Component], *, class_name: str | None = None, **attributes: str) -> Component:
    """Return the container of a view's text, with its current ``children``."""
    return html.Div(children, id=cast("Any", identity("part", name)), className=class_name, **cast("Any", attributes))


def not_yet(name: str, progress: Progress) -> list[Component]:
    """Return the content of a part that is still being computed: its progress, and a polling timer."""
    again = {"type": "part-again", "name": name, "of": name}
    return [
        html.P(f"{progress.sentence} …", className="help", **aria(live="polite")),
        dcc.Interval(id=cast("Any", again), interval=AGAIN_MS),
    ]


def when_there(name: str, make: Callable[[], list[Component]]) -> list[Component]:
    """Return the first content of part ``name``: the result of ``make``, or its progress, or its error."""
    try:
        return make()
    except NotReadyError as error:
        return not_yet(name, error.progress)
    except RankscopeError as error:
        return [html.P(str(error), className="reason")]


def select(
    field: str, label: str, options: list[dict[str, Any]], state: PageState, *, width: int = 190, nothing: str | None = None
) -> Component:
    """Return a choice among ``options`` (value, label) for a field of the page's state.

    ``nothing``: text shown if nothing is chosen; with it the choice can be cleared.
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
    """Return the input for the picked rank, which every view highlights."""
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
