"""Callbacks that synchronize the selection with the address. On a conflict the address wins."""

from __future__ import annotations

from typing import Any

from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.pages.live import identity
from rankscope.dashboards.pages.run_page import view_links
from rankscope.dashboards.views.registry import PICKS, ROW_PICKS, ZOOMS


def register(app: Dash, source: RunSource) -> None:
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
        State("run", "data"),
        prevent_initial_call=True,
    )
    def select(
        values: list[Any],
        _clicks: list[Any],
        _zooms: list[Any],
        _rows: list[Any],
        search: str | None,
        controls: list[dict[str, str]],
        run: dict[str, str] | None,
    ) -> tuple[Any, list[Any], Any]:
        if run is None:
            return no_update, [no_update] * len(values), no_update
        now = PageState.parse(search)
        wanted = _wanted(now, source, run)
        shown = [_control(wanted, control["name"], value) for control, value in zip(controls, values, strict=True)]
        return (
            no_update if wanted == now else wanted.search,
            shown,
            view_links(run["run_id"], run["view"], wanted),
        )

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "zoomed"),
        Output(identity("zoomed", each), "data"),
        Input(identity("figure", each), "relayoutData"),
        prevent_initial_call=True,
    )


def _wanted(now: PageState, source: RunSource, run: dict[str, str]) -> PageState:
    """Return the selection after the event that triggered the callback."""
    happened = [(ctx.triggered_prop_ids[each["prop_id"]], each["value"]) for each in ctx.triggered if each["prop_id"] != "."]
    # A double click arrives together with its single clicks: its zoom takes precedence.
    happened.sort(key=lambda each: isinstance(each[0], dict) and each[0]["type"] != "zoomed")
    triggered: Any
    triggered, value = happened[0] if happened else (None, None)
    if not isinstance(triggered, dict):
        return now
    name = triggered["name"]
    try:
        match triggered["type"]:
            case "control":
                return now.having(name, text_of(value))
            case "figure" if name in PICKS and value:
                return PICKS[name](RunData(source, source.summary(run["run_id"])), now, value["points"][0])
            case "zoomed" if name in ZOOMS and value:
                return ZOOMS[name](now, None if value == "all" else (float(value[0]), float(value[1])))
            case "grid" if name in ROW_PICKS and value:
                return ROW_PICKS[name](RunData(source, source.summary(run["run_id"])), now, str(value["rowId"]))
    except (KeyError, IndexError, TypeError, ValueError, RankscopeError):
        pass  # a mark without an object, or a run that disappeared
    return now


def text_of(value: Any) -> str | None:
    """Return a control's value as text for the address; ``None`` if nothing is chosen."""
    if value is None or value in ("", []):
        return None
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _control(state: PageState, name: str, value: Any) -> Any:
    text = state.text(name)
    if text == text_of(value):
        return no_update
    if isinstance(value, list):
        return [] if text is None else text.split(",")
    return "" if text is None and isinstance(value, int) else text
