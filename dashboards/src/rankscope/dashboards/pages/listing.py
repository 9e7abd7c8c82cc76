"""Table that fills a page, with its search box, row count, sort order from the address, and save button."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag  # type: ignore[import-untyped]
import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.dashboards.many_state import ListState
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.pages.grid import DEFAULT_COLUMN, OPTIONS, csv_params


def listing_tools(table: str, counted: str, state: ListState, others: list[Component]) -> Component:
    """Return the tools above the list ``table``: search box, ``counted``, and at the right ``others`` and the save button."""
    return html.Div(
        [
            dmc.TextInput(
                id=f"{table}-q",
                value=state.q,
                placeholder="Search in all columns",
                debounce=300,
                size="sm",
                className="runs-q",
                **aria(label=f"Search {table}"),
            ),
            dcc.Store(id=f"{table}-search"),
            dcc.Store(id=f"{table}-agreed", data=state.search),
            html.Span(counted, id=f"{table}-count", className="help", **aria(live="polite")),
            html.Div(
                [*others, dmc.Button("Save as CSV", id=f"{table}-csv", size="compact-sm", variant="default")], className="tools"
            ),
        ],
        className="runs-tools",
    )


def listing_grid(
    table: str, columns: list[dict[str, Any]], rows: list[dict[str, Any]], state: ListState, *, height: str, **options: Any
) -> Component:
    """Return the grid of the list ``table``. Every row has an ``id``.

    ``callbacks/listing.py`` maintains its search and sort order. ``options``: further grid options.
    """
    order = "desc" if state.descending else "asc"
    grid: Component = dag.AgGrid(
        id=f"{table}-grid",
        rowData=rows,
        columnDefs=[{**column, "sort": order} if column["field"] == state.sort else column for column in columns],
        defaultColDef={**DEFAULT_COLUMN, "floatingFilter": False},
        getRowId="params.data.id",
        selectedRows={"ids": state.picked} if state.picked else [],
        csvExportParams=csv_params(f"rankscope-{table}"),
        dashGridOptions={
            **OPTIONS,
            "ensureDomOrder": True,  # the order in which screen readers read
            "rowHeight": 40,
            "quickFilterText": state.q,
            "localeText": {"noRowsToShow": f"No {table.removesuffix('s')} matches"},
            **options,
        },
        style={"width": "100%", "height": height},
    )
    return grid
