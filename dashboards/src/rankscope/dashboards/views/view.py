"""What a view is made of. Its makers are called whenever the run, the address or the colour scheme has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dash.development.base_component import Component

from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.figures.drawn import Drawn
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.url_state import PageState

Layout = Callable[[RunData, PageState], list[Component]]
FigureMaker = Callable[[RunData, PageState, Palette], Drawn]
"""``RankscopeError`` becomes a note in the figure's place; after ``NotReadyError`` it is asked for again by itself."""
PartMaker = Callable[[RunData, PageState], list[Component]]
GridMaker = Callable[[RunData, PageState], list[dict[str, Any]]]
"""Rows of a table."""
Pick = Callable[[RunData, PageState, Mapping[str, Any]], PageState]
"""What is selected after a click on a point (as Plotly tells it)."""
Zoom = Callable[[PageState, tuple[float, float] | None], PageState]
"""What is selected after dragging over a part of the x axis; ``None``: all of it again."""

RowPick = Callable[[RunData, PageState, str], PageState]
"""What is selected after a click on the row of a table with that ``id``."""


@dataclass(frozen=True, slots=True)
class Help:
    """What a view shows, how its numbers come about, and what to do with it: one or two sentences each."""

    shows: str
    formula: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page of a run. Names of figures, parts and grids are unique among all views."""

    slug: str
    """Last part of the address; ``""`` for the first page."""
    label: str
    help: Help
    layout: Layout
    figures: Mapping[str, FigureMaker] = field(default_factory=dict)
    parts: Mapping[str, PartMaker] = field(default_factory=dict)
    grids: Mapping[str, GridMaker] = field(default_factory=dict)
    picks: Mapping[str, Pick] = field(default_factory=dict)
    """By the name of the figure."""
    zooms: Mapping[str, Zoom] = field(default_factory=dict)
    row_picks: Mapping[str, RowPick] = field(default_factory=dict)
    """By the name of the grid."""
