"""Tables: their columns, common settings, and the two kinds: a table in a section, and a list that fills a page."""

from __future__ import annotations

from typing import Any, Final

import dash_ag_grid as dag  # type: ignore[import-untyped]
from dash.development.base_component import Component

from rankscope.dashboards.model.columns import Column, known_columns
from rankscope.dashboards.model.page import SearchTable, Table

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
    about |= {"tooltipField": column.hover_field or column.field} if column.hover or column.hover_field else {}
    about |= {"cellRenderer": column.renderer} if column.renderer else {}
    if column.renderer == "LocalTime":  # filters and the search find what is shown
        local = {"function": f"localTime(params.data.{column.field})"}
        about |= {"filterValueGetter": local, "getQuickFilterText": local}
    context = {"ifKnown": column.if_known, "narrow": column.narrow}
    about |= {"context": context} if any(context.values()) else {}
    return about | ({"flex": 1, "minWidth": column.fills} if column.fills else {})


def grid_style(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the size of a table: as high as its rows, up to about fourteen rows."""
    lines = len(rows) or 2  # an empty table shows a line of text
    return {"height": f"{min(110 + 38 * lines, 640)}px", "width": "100%"}


def table_grid(block: Table, rows: list[dict[str, Any]]) -> Component:
    """Return a table in a section."""
    grid: Component = dag.AgGrid(
        **_grid(block, rows),
        columnDefs=[column_def(column) for column in known_columns(block.columns, rows)],
        defaultColDef=DEFAULT_COLUMN,
        csvExportParams={"fileName": f"{block.file_name}.csv"},
        dashGridOptions={
            **OPTIONS,
            "enableCellTextSelection": True,
            "localeText": {"noRowsToShow": "No row matches" if rows else block.nothing},
        },
        style=grid_style(rows),
    )
    return grid


def list_grid(block: SearchTable, rows: list[dict[str, Any]]) -> Component:
    """Return the table of a list. The browser keeps its order, filters and marked rows for the tab."""
    shown_columns = known_columns(block.columns, rows)
    columns = [column_def(column) | ({} if column in shown_columns else {"hide": True}) for column in block.columns]
    marks: dict[str, Any] = {
        "rowSelection": {
            "mode": "multiRow",
            "headerCheckbox": False,
            "isRowSelectable": {"function": "params.data != null && !params.data.problem"},
        },
        "selectionColumnDef": {"pinned": "left", "width": 46, "headerName": "✓", "headerTooltip": "Mark runs to compare"},
    }
    grid: Component = dag.AgGrid(
        **_grid(block, rows),
        columnDefs=columns,
        defaultColDef={**DEFAULT_COLUMN, "floatingFilter": False},
        csvExportParams={"fileName": f"{block.file_name}.csv", "allColumns": True},
        persistence=True,
        persistence_type="session",
        persisted_props=["selectedRows", "filterModel", "columnState"],
        eventListeners={"gridSizeChanged": ["fitColumns(params)"], "rowDataUpdated": ["showKnown(params)"]},
        dashGridOptions={
            **OPTIONS,
            "ensureDomOrder": True,  # the order in which screen readers read
            "rowHeight": 44,
            "quickFilterText": block.q or "",
            "includeHiddenColumnsInQuickFilter": True,  # on a narrow screen most are hidden
            "suppressDragLeaveHidesColumns": True,
            "localeText": {"noRowsToShow": f"No {block.name.removesuffix('s')} matches"},
            **(marks if block.several else {}),
        },
        style={"width": "100%", "height": _list_height(rows)},
    )
    return grid


def _grid(block: Table, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": {"type": "grid", "name": block.name}, "rowData": rows, "getRowId": "params.data.id"}


def _list_height(rows: list[dict[str, Any]]) -> str:
    """Return the height of a list: as high as its rows, but so low that the picked row's text below it is in view."""
    return f"max(200px, min({70 + 44 * max(2, len(rows))}px, calc(100dvh - 470px)))"
