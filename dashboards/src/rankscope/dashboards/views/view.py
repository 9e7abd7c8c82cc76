"""Parts of a view. Its functions are called whenever the run, the address or the colour scheme changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dash.development.base_component import Component

from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.drawn import Drawn
from rankscope.dashboards.model.state import PageState

Layout = Callable[[RunData, PageState], list[Component]]
FigureMaker = Callable[[RunData, PageState, Palette], Drawn]
"""Function that draws a figure. ``RankscopeError`` becomes a note in its place; after ``NotReadyError`` it is called again."""
PartMaker = Callable[[RunData, PageState], list[Component]]
GridMaker = Callable[[RunData, PageState], list[dict[str, Any]]]
"""Function that returns the rows of a table."""
Pick = Callable[[RunData, PageState, Mapping[str, Any]], PageState]
"""Function that returns the selection after a click on a point (in Plotly's format)."""
Zoom = Callable[[PageState, tuple[float, float] | None], PageState]
"""Function that returns the selection after dragging over a range of the x axis; ``None`` resets it to all."""

RowPick = Callable[[RunData, PageState, str], PageState]
"""Function that returns the selection after a click on the table row with that ``id``."""


@dataclass(frozen=True, slots=True)
class Help:
    """Help of a view: its content, its formula, and its use, in one or two sentences each."""

    shows: str
    formula: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page of a run. Names of figures, parts and grids are unique among all views."""

    slug: str
    """Last part of the address; ``""`` for the first view."""
    label: str
    help: Help
    layout: Layout
    figures: Mapping[str, FigureMaker] = field(default_factory=dict)
    parts: Mapping[str, PartMaker] = field(default_factory=dict)
    grids: Mapping[str, GridMaker] = field(default_factory=dict)
    picks: Mapping[str, Pick] = field(default_factory=dict)
    """Name of the figure to its function."""
    zooms: Mapping[str, Zoom] = field(default_factory=dict)
    row_picks: Mapping[str, RowPick] = field(default_factory=dict)
    """Name of the grid to its function."""
