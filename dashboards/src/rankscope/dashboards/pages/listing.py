"""A table that is a page: its search box, how many rows there are, its order from the address, the button that saves it."""

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
    """What stands above the list ``table``: search, ``counted``, and at the right ``others`` and saving it."""
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
    """The list ``table``; rows have an ``id``. ``callbacks/listing.py`` keeps its search and order. ``options``: of its grid."""
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
            "ensureDomOrder": True,  # as screen readers go through it
            "rowHeight": 40,
            "quickFilterText": state.q,
            "localeText": {"noRowsToShow": f"No {table.removesuffix('s')} matches"},
            **options,
        },
        style={"width": "100%", "height": height},
    )
    return grid
