"""Table that fills a page, with its search box, row count, sort order from the address, and save button."""

from __future__ import annotations

from typing import Any, cast

import dash_ag_grid as dag  # type: ignore[import-untyped]
import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.dashboards.live.grid import DEFAULT_COLUMN, OPTIONS, column_def
from rankscope.dashboards.model.columns import known_columns
from rankscope.dashboards.model.list_state import ListState
from rankscope.dashboards.model.page import Listing


def listing(block: Listing, tools: list[Component]) -> Component:
    """Return the table; ``live.listing`` maintains its search, sort order and selection."""
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
    save = dmc.Button("Save as CSV", id=f"{name}-csv", size="compact-sm", variant="default")
    head = [
        search,
        dcc.Store(id=f"{name}-search"),
        dcc.Store(id=f"{name}-agreed", data=state.search),
        html.Span(block.count, id=f"{name}-count", className="help", **cast("Any", {"aria-live": "polite"})),
        html.Div([*tools, save], className="tools"),
    ]
    grid = dag.AgGrid(
        id=f"{name}-grid",
        rowData=block.rows,
        columnDefs=[{**column, "sort": order} if column["field"] == state.sort else column for column in columns],
        defaultColDef={**DEFAULT_COLUMN, "floatingFilter": False},
        getRowId="params.data.id",
        selectedRows={"ids": state.picked} if state.picked else [],
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
    address = dcc.Location(id=f"{name}-address", refresh="callback-nav", search=block.search or "")
    return html.Div([html.Div(head, className="runs-tools"), grid, address], className="card", id=f"{name}-list")
