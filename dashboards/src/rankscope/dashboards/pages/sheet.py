"""Table of a view, which can be sorted, filtered and saved."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag  # type: ignore[import-untyped]
import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash.development.base_component import Component

from rankscope.dashboards.pages.grid import DEFAULT_COLUMN, OPTIONS, csv_params, grid_style
from rankscope.dashboards.pages.live import identity


def sheet(name: str, columns: list[dict[str, Any]], rows: list[dict[str, Any]], *, file_name: str) -> Component:
    """Return the table ``name`` of ``View.grids``. Every row has an ``id``."""
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
    """Return the button that saves the table ``name`` as CSV."""
    button: Component = dmc.Button("Save as CSV", id=identity("save-grid", name), size="compact-sm", variant="default")
    return button
