"""A table of a view, to sort, filter and take away."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag  # type: ignore[import-untyped]
import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash.development.base_component import Component

from rankscope.dashboards.pages.grid import DEFAULT_COLUMN, OPTIONS, csv_params, grid_style
from rankscope.dashboards.pages.live import identity


def sheet(name: str, columns: list[dict[str, Any]], rows: list[dict[str, Any]], *, file_name: str) -> Component:
    """The table ``name`` of ``View.grids``; rows have an ``id``."""
    grid: Component = dag.AgGrid(
        id=identity("grid", name),
        rowData=rows,
        columnDefs=columns,
        defaultColDef=DEFAULT_COLUMN,
        getRowId="params.data.id",
        csvExportParams=csv_params(file_name),
        dashGridOptions={**OPTIONS, "enableCellTextSelection": True},
        style=grid_style(rows),
    )
    return grid


def save_sheet(name: str) -> Component:
    """The button that saves it."""
    button: Component = dmc.Button("Save as CSV", id=identity("save-grid", name), size="compact-sm", variant="default")
    return button
