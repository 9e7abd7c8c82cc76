"""X axis of hardware readings: steps above the time of day, or the time of day alone if no step has a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from rankscope.dashboards.data.gpu_columns import TimeColumns

_TICKS: Final = 7


def time_axis(columns: TimeColumns, *, cells: bool = False) -> dict[str, Any]:
    """Return settings of an x axis on which column ``n`` begins at ``columns.at[n]``, or is centred there for ``cells``."""
    count = len(columns.at)
    marks = np.unique(np.linspace(0, count - 1, min(_TICKS, count)).astype(int))
    first, last = columns.span_unix_ns
    half = (columns.along(columns.edges_ns[-1:])[0] - columns.at[-1]) / 2 if cells else 0.0
    return {
        "tickmode": "array",
        "tickvals": columns.at[marks].tolist(),
        "ticktext": [_tick(columns, int(mark), long=last - first > 86_400e9) for mark in marks],
        "range": [float(columns.at[0]) - half, float(columns.along(columns.edges_ns[-1:])[0]) - half],
        "title": {"text": "step, and the time of day in UTC" if columns.steps_each else "time of day, UTC"},
        "showgrid": False,
        "zeroline": False,
    }


def _tick(columns: TimeColumns, mark: int, *, long: bool) -> str:
    at = datetime.fromtimestamp(int(columns.edges_ns[mark]) / 1e9, UTC)
    clock = f"{at:%m-%d %H:%M}" if long else f"{at:%H:%M:%S}"
    return f"{columns.at[mark]:.0f}<br>{clock}" if columns.steps_each else clock
