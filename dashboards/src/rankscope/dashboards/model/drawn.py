"""Parts of a figure: the picture, the numbers behind it, and its summary in words."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.words.inert import safe_cell

Cell = str | int | float | None
"""Value of a table cell; ``None`` is unknown."""


def cell(value: float | np.floating[Any]) -> float | None:
    """Return ``value`` as a float, or ``None`` if it is not finite (NaN is unknown)."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class FigureData:
    """Numbers of a figure, for export. Headers have the unit: ``own time [us]``."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


NO_DATA: Final = FigureData((), ())


@dataclass(frozen=True, slots=True)
class DrawnFigure:
    """Figure with its numbers. ``sentence`` is its content in one sentence, for screen readers."""

    figure: go.Figure
    table: FigureData
    sentence: str


def csv_of(table: FigureData) -> str:
    """Return header and rows as CSV. Unknown values are empty; cells that a spreadsheet would run as a formula are defused."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([safe_cell(cell) for cell in row] for row in (table.columns, *table.rows))
    return text.getvalue()
