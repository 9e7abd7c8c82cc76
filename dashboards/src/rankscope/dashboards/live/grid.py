"""Tables: their common settings, and the table that fills a page, with search box, row count, sort order and save button."""

from __future__ import annotations

from typing import Any, Final, cast

import dash_ag_grid as dag  # type: ignore[import-untyped]
import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.dashboards.model.columns import Column, known_columns
from rankscope.dashboards.model.list_state import ListState
from rankscope.dashboards.model.page import Listing

THEME: Final = (
    "themeQuartz.withParams({accentColor: 'var(--accent)', backgroundColor: 'var(--surface)', foregroundColor: 'var(--text)',"
    " borderColor: 'var(--line)', headerBackgroundColor: 'var(--raised)', headerTextColor: 'var(--muted)', fontFamily: 'inherit',"
    " fontSize: 13, spacing: 6, wrapperBorderRadius: 8, browserColorScheme: 'inherit', oddRowBackgroundColor: 'var(--surface)'})"
)
"""Theme of all grids. It uses the page's CSS variables, so that grids follow the colour scheme."""

OPTIONS: Final[dict[str, Any]] = {
    "theme": {"function": THEME},
    "animateRows": False,
    "tooltipShowDelay": 300,
    # Tab leaves the table and the arrow keys move in it; otherwise Tab would stop at every cell.
    "tabToNextCell": {"function": "false"},
    "tabToNextHeader": {"function": "false"},
    # Cells that a spreadsheet would run as a formula are marked as text.
    "defaultCsvExportParams": {"processCellCallback": {"function": "safeCell(params.value)"}},
}
"""``dashGridOptions`` of all tables."""

DEFAULT_COLUMN: Final[dict[str, Any]] = {
    "sortable": True,
    "resizable": True,
    "suppressHeaderMenuButton": True,
    "suppressHeaderFilterButton": True,
    "floatingFilter": True,
    "suppressFloatingFilterButton": True,
}


def column_def(column: Column) -> dict[str, Any]:
    """Return a column in AG grid's format. Unknown values are shown as a dash; the CSV has all digits."""
    about: dict[str, Any] = {"field": column.field, "headerName": column.name, "width": column.width}
    if column.digits is None:
        about |= {"filter": "agTextColumnFilter", "valueFormatter": {"function": "params.value == null ? '-' : params.value"}}
    else:
        unit = f" + ' ' + params.data.{column.unit_field}" if column.unit_field else ""
        number = f"params.value == null ? '-' : d3.format(',.{column.digits}f')(params.value){unit}"
        about |= {"type": "rightAligned", "filter": "agNumberColumnFilter", "valueFormatter": {"function": number}}
        about["useValueFormatterForExport"] = False
    about |= {"headerTooltip": column.tooltip} if column.tooltip else {}
    about |= {"pinned": "left"} if column.pinned else {}
    about |= {"tooltipField": column.field} if column.hover else {}
    about |= {"cellRenderer": column.renderer} if column.renderer else {}
    if column.renderer == "LocalTime":  # filters and the search find what is shown
        local = {"function": f"localTime(params.data.{column.field})"}
        about |= {"filterValueGetter": local, "getQuickFilterText": local}
    about |= {"context": {"ifKnown": True}} if column.if_known else {}
    return about | ({"flex": 1, "minWidth": column.fills} if column.fills else {})


def grid_style(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the size of a table: as high as its rows, up to about fourteen rows."""
    lines = len(rows) or 2  # an empty table shows a line of text
    return {"height": f"{min(110 + 38 * lines, 640)}px", "width": "100%"}


def listing(block: Listing, tools: list[Component]) -> Component:
    """Return the table; ``assets/listing.js`` keeps its search, sort order and selection in the address."""
    name, state = block.name, ListState.parse(block.search)
    order = "desc" if state.descending else "asc"
    known = known_columns(block.columns, block.rows)
    columns = [column_def(column) | ({} if column in known else {"hide": True}) for column in block.columns]
    search = dmc.TextInput(
        id=f"{name}-q",
        value=state.q,
        placeholder="Search in all columns",
        debounce=300,
        size="sm",
        className="runs-q",
        **{"aria-label": f"Search {name}"},
    )
    save = dmc.Button(
        "Save as CSV", id=f"{name}-csv", size="compact-sm", variant="default", **{"aria-label": f"Save as CSV: all {name}"}
    )
    head = [
        search,
        html.Span(block.count, id=f"{name}-count", className="help", **cast("Any", {"aria-live": "polite"})),
        html.Div([*tools, save], className="tools"),
    ]
    grid = dag.AgGrid(
        id=f"{name}-grid",
        rowData=block.rows,
        columnDefs=[{**column, "sort": order} if column["field"] == state.sort else column for column in columns],
        defaultColDef={**DEFAULT_COLUMN, "floatingFilter": False},
        getRowId="params.data.id",
        csvExportParams={"fileName": f"rankscope-{name}.csv"},
        dashGridOptions={
            **OPTIONS,
            "ensureDomOrder": True,  # the order in which screen readers read
            "rowHeight": 40,
            "quickFilterText": state.q,
            "localeText": {"noRowsToShow": f"No {name.removesuffix('s')} matches"},
            **block.selection,
        },
        style={"width": "100%", "height": block.height},
    )
    address = dcc.Location(id=f"{name}-address", refresh=False, search=block.search or "")
    return html.Section(
        [html.Div(head, className="runs-tools"), grid, address],
        className="card",
        id=f"{name}-list",
        **cast("Any", {"aria-label": f"All {name}", "data-path": block.path}),
    )
