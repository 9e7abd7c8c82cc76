"""Common settings of all tables: colours, and columns of numbers and texts."""

from __future__ import annotations

from typing import Any, Final

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


def number_column(field: str, name: str, tooltip: str, *, digits: int = 2, width: int = 116) -> dict[str, Any]:
    """Return a column of numbers. Unknown ones are shown as a dash; the CSV has all digits."""
    return {
        "field": field,
        "headerName": name,
        "headerTooltip": tooltip,
        "type": "rightAligned",
        "filter": "agNumberColumnFilter",
        "valueFormatter": {"function": f"params.value == null ? '-' : d3.format(',.{digits}f')(params.value)"},
        "useValueFormatterForExport": False,
        "width": width,
    }


def text_column(field: str, name: str, *, width: int = 130) -> dict[str, Any]:
    """Return a column of texts. Unknown ones are shown as a dash."""
    return {
        "field": field,
        "headerName": name,
        "filter": "agTextColumnFilter",
        "valueFormatter": {"function": "params.value == null ? '-' : params.value"},
        "width": width,
    }


def csv_params(file_name: str) -> dict[str, Any]:
    """Return the settings of a table's CSV export."""
    return {"fileName": f"{file_name}.csv"}


def grid_style(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the size of a table: as high as its rows, up to about fourteen rows."""
    lines = len(rows) or 2  # an empty table shows a line of text
    return {"height": f"{min(110 + 38 * lines, 640)}px", "width": "100%"}
