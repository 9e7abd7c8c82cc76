"""What all tables have in common: their colours, and columns of numbers and texts."""

from __future__ import annotations

from typing import Any, Final

THEME: Final = (
    "themeQuartz.withParams({accentColor: 'var(--accent)', backgroundColor: 'var(--surface)', foregroundColor: 'var(--text)',"
    " borderColor: 'var(--line)', headerBackgroundColor: 'var(--raised)', headerTextColor: 'var(--muted)', fontFamily: 'inherit',"
    " fontSize: 13, spacing: 6, wrapperBorderRadius: 8, browserColorScheme: 'inherit', oddRowBackgroundColor: 'var(--surface)'})"
)
"""The grid takes its colours from the page's variables, and so follows its scheme."""

OPTIONS: Final[dict[str, Any]] = {
    "theme": {"function": THEME},
    "animateRows": False,
    "tooltipShowDelay": 300,
    # The tabulator key leaves the table, the arrow keys move in it: else one would have to go through every cell of it.
    "tabToNextCell": {"function": "false"},
    "tabToNextHeader": {"function": "false"},
    # What a spreadsheet would take for a formula is marked as text.
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
    """Numbers, with a dash where they are not known. As CSV they have all their digits."""
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
    """Texts, with a dash where they are not known."""
    return {
        "field": field,
        "headerName": name,
        "filter": "agTextColumnFilter",
        "valueFormatter": {"function": "params.value == null ? '-' : params.value"},
        "width": width,
    }


def csv_params(file_name: str) -> dict[str, Any]:
    """How a table is saved."""
    return {"fileName": f"{file_name}.csv"}


def grid_style(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Size of a table: as high as its rows, up to about fourteen."""
    lines = len(rows) or 2  # without any, room for a line that says so
    return {"height": f"{min(110 + 38 * lines, 640)}px", "width": "100%"}
