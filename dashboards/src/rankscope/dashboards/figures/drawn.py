"""What a figure is made of: the picture, the numbers behind it, and what it says in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

Cell = str | int | float | None
"""``None``: not known."""


def cell(value: float | np.floating[Any]) -> float | None:
    """A number, or ``None`` where it is not known: NaN."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Table:
    """The numbers of a figure, for those who want them elsewhere. Headers have the unit: ``own time [us]``."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


NO_TABLE: Final = Table((), ())


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure; ``says`` is the same in one sentence, for those who do not see it."""

    figure: go.Figure
    table: Table
    says: str
