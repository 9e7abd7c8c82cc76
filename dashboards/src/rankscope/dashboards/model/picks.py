"""Selection by a click on a figure or table, or by dragging over a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rankscope.dashboards.model.state import PageState


def rank_of_bar(state: PageState, texts: Mapping[str, int], point: Mapping[str, Any]) -> PageState:
    """Select the rank of a bar by its hover text; for the bar of a mean, clear the rank."""
    return replace(state, rank=texts.get(str(point["hovertext"])))


def rank_of_row(state: PageState, row: str) -> PageState:
    """Select the rank of the clicked row of a table."""
    return replace(state, rank=int(row))


def steps_of_drag(state: PageState, across: tuple[float, float] | None) -> PageState:
    """Select the steps that were dragged over, or all of them after a double click."""
    if across is None:
        return replace(state, steps=None)
    first, last = max(0, math.ceil(across[0])), max(0, math.floor(across[1]))
    return replace(state, steps=(first, max(first, last)))
