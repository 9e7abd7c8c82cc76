"""Everything about every rank, to sort, filter and take away."""

from __future__ import annotations

from typing import Any, Final

import dash_ag_grid as dag  # type: ignore[import-untyped]
from dash.development.base_component import Component

from rankscope.analysis.result import Analysis
from rankscope.dashboards.pages.wording import milliseconds

_THEME: Final = (
    "themeQuartz.withParams({accentColor: 'var(--accent)', backgroundColor: 'var(--surface)', foregroundColor: 'var(--text)',"
    " borderColor: 'var(--line)', headerBackgroundColor: 'var(--raised)', headerTextColor: 'var(--muted)', fontFamily: 'inherit',"
    " fontSize: 13, spacing: 6, wrapperBorderRadius: 8, browserColorScheme: 'inherit', oddRowBackgroundColor: 'var(--surface)'})"
)
"""The grid takes its colours from the page's variables, and so follows its scheme."""


def _number(field: str, name: str, tooltip: str, *, digits: int = 2, width: int = 116) -> dict[str, Any]:
    return {
        "field": field,
        "headerName": name,
        "headerTooltip": tooltip,
        "type": "rightAligned",
        "filter": "agNumberColumnFilter",
        "valueFormatter": {"function": f"params.value == null ? '-' : d3.format(',.{digits}f')(params.value)"},
        "width": width,
    }


def _text(field: str, name: str, *, width: int = 130) -> dict[str, Any]:
    return {
        "field": field,
        "headerName": name,
        "filter": "agTextColumnFilter",
        "valueFormatter": {"function": "params.value == null ? '-' : params.value"},
        "width": width,
    }


COLUMNS: Final[list[dict[str, Any]]] = [
    {**_number("rank", "Rank", "Global rank", digits=0, width=92), "pinned": "left"},
    _number("own_ms", "Own ms", "Median per step: wall time minus time blocked on other ranks"),
    _number("blocked_ms", "Blocked ms", "Median per step: time spent waiting for other ranks", width=124),
    _number("wall_ms", "Wall ms", "Median wall time per step"),
    _number("imposed_ms", "Imposed ms", "How long the other ranks waited for this one, summed over them", width=124),
    _text("host", "Host"),
    {**_text("gpu", "GPU"), "tooltipField": "gpu"},
    _number("steps", "Steps", "Steps with evidence", digits=0, width=92),
    _number("compute_ms", "Compute ms", "Over the profiled steps, communication at the same time included", width=124),
    _number(
        "exposed_communication_ms", "Exposed comm. ms", "Communication that no compute hid, over the profiled steps", width=150
    ),
    _number("overlap_percent", "Overlap %", "Share of communication hidden behind compute", digits=1, width=116),
    _number("idle_ms", "Idle ms", "Neither compute, communication nor copies, over the profiled steps"),
    _number("wait_ms", "Wait ms", "Time in matched collectives beyond the transfer itself"),
    _text("end", "Ended", width=110),
]


def rank_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """One row per rank; times in milliseconds, ``None`` where not known."""
    imposed = {row.rank: row.imposed_us for row in analysis.imposed_wait}
    return [
        {
            "id": str(rank.rank),
            "rank": rank.rank,
            "host": rank.host,
            "gpu": rank.gpu_uuid,
            "steps": rank.steps,
            "own_ms": milliseconds(rank.own_us),
            "blocked_ms": milliseconds(rank.blocked_us),
            "wall_ms": milliseconds(rank.wall_us),
            "imposed_ms": milliseconds(imposed.get(rank.rank)),
            "compute_ms": milliseconds(rank.compute_us),
            "exposed_communication_ms": milliseconds(rank.exposed_communication_us),
            "overlap_percent": None if rank.overlap_ratio is None else 100 * rank.overlap_ratio,
            "idle_ms": milliseconds(rank.idle_us),
            "wait_ms": milliseconds(rank.wait_us),
            "end": rank.end_reason,
        }
        for rank in analysis.ranks
    ]


def grid_style(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Size of the table: as high as its rows, up to about fourteen."""
    lines = len(rows) or 2  # without any, room for a line that says so
    return {"height": f"{min(110 + 38 * lines, 640)}px", "width": "100%"}


def rank_grid(rows: list[dict[str, Any]], *, file_name: str) -> Component:
    """The table; what does not fit scrolls, and only rows in view are in the page."""
    grid: Component = dag.AgGrid(
        id="rank-table",
        rowData=rows,
        columnDefs=COLUMNS,
        defaultColDef={
            "sortable": True,
            "resizable": True,
            "suppressHeaderMenuButton": True,
            "suppressHeaderFilterButton": True,
            "floatingFilter": True,
            "suppressFloatingFilterButton": True,
        },
        getRowId="params.data.id",
        csvExportParams={"fileName": f"{file_name}.csv"},
        dashGridOptions={
            "theme": {"function": _THEME},
            "animateRows": False,
            "tooltipShowDelay": 300,
            "enableCellTextSelection": True,
        },
        style=grid_style(rows),
    )
    return grid
