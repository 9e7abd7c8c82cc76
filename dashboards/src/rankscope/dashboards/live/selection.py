"""Callbacks that synchronize the selection with the address. On a conflict the address wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.live.components import identity
from rankscope.dashboards.live.pages import Pages, view_links
from rankscope.dashboards.model.page import FigureBlock, Table
from rankscope.dashboards.model.state import PageState, run_of


def register(app: Dash, pages: Pages) -> None:
    """Add the callbacks that synchronize controls, clicks in figures and the address."""
    each: Any = MATCH
    every: Any = ALL

    @app.callback(
        Output("address", "search"),
        Output(identity("control", every), "value"),
        Output("views", "children"),
        Input(identity("control", every), "value"),
        Input(identity("figure", every), "clickData"),
        Input(identity("zoomed", every), "data"),
        Input(identity("grid", every), "cellClicked"),
        Input("address", "search"),
        State(identity("control", every), "id"),
        State("shown", "data"),
        prevent_initial_call=True,
    )
    def select(
        values: list[Any],
        _clicks: list[Any],
        _zooms: list[Any],
        _rows: list[Any],
        search: str | None,
        controls: list[dict[str, str]],
        page: dict[str, str] | None,
    ) -> tuple[Any, list[Any], Any]:
        if page is None:
            return no_update, [no_update] * len(values), no_update
        now = PageState.parse(search)
        wanted = _wanted(now, pages, page["path"], search)
        names = [control["name"] for control in controls]
        return (
            no_update if wanted == now else wanted.search,
            _shown(pages, page["path"], wanted, names, values),
            no_update if (at := run_of(page["path"])) is None else view_links(*at, wanted),
        )

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "zoomed"),
        Output(identity("zoomed", each), "data"),
        Input(identity("figure", each), "relayoutData"),
        prevent_initial_call=True,
    )


def _wanted(now: PageState, pages: Pages, path: str, search: str | None) -> PageState:
    """Return the selection after the event that triggered the callback."""
    happened = [(ctx.triggered_prop_ids[each["prop_id"]], each["value"]) for each in ctx.triggered if each["prop_id"] != "."]
    # A double click arrives together with its single clicks: its zoom takes precedence.
    happened.sort(key=lambda each: isinstance(each[0], dict) and each[0]["type"] != "zoomed")
    triggered: Any
    triggered, value = happened[0] if happened else (None, None)
    if not isinstance(triggered, dict):
        return now
    name, kind = triggered["name"], triggered["type"]
    if kind == "control":
        return now.with_field(name, text_of(value))
    try:
        return (_picked(pages, path, search, kind, name, value) if value else None) or now
    except (KeyError, IndexError, TypeError, ValueError, RankscopeError):
        return now  # a mark without an object, or a run that disappeared


def _picked(  # noqa: PLR0917
    pages: Pages, path: str, search: str | None, kind: str, name: str, value: Any
) -> PageState | None:
    """Return the selection after a click or drag; ``None`` if it selects nothing."""
    if kind == "grid":
        table = pages.block(path, search, Table, name)
        if (
            table is None
            or table.pick is None
            or value.get("colId") in {column.field for column in table.columns if column.is_link}
        ):
            return None
        return table.pick(str(value["rowId"]))
    figure = pages.block(path, search, FigureBlock, name)
    if figure is not None and kind == "figure" and figure.pick is not None:
        return figure.pick(value["points"][0])
    if figure is not None and kind == "zoomed" and figure.zoom is not None:
        return figure.zoom(None if value == "all" else (float(value[0]), float(value[1])))
    return None


def text_of(value: Any) -> str | None:
    """Return a control's value as text for the address; ``None`` if nothing is chosen."""
    if value is None or value in ("", []):
        return None
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _shown(pages: Pages, path: str, state: PageState, names: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """Return the values of controls for a state; ``no_update`` for those that show it already. ``values``: the present ones."""
    changed = [state.text(name) != text_of(value) for name, value in zip(names, values, strict=True)]
    # The page decides what a control shows: of no choice a default, of a step inside a window its first one.
    of_page = pages.controls(path, state.search) if any(changed) else {}
    shown = []
    for name, value, is_changed in zip(names, values, changed, strict=True):
        wanted = of_page.get(name, _value(state, name, value)) if is_changed else value
        shown.append(no_update if text_of(wanted) == text_of(value) else wanted)
    return shown


def _value(state: PageState, name: str, value: Any) -> Any:
    """Return the value of a control that a part of the page makes; ``value``: the present one."""
    text = state.text(name)
    if isinstance(value, list):
        return [] if text is None else text.split(",")
    return "" if text is None and (isinstance(value, int) or name == "q") else text
