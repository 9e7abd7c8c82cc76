"""Looks of the bars of each cause."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.charts.bars import BarStyle
from rankscope.dashboards.words.causes import CAUSES

CAUSE_STYLES: Final[dict[str, BarStyle]] = {cause: BarStyle(*shown) for cause, shown in CAUSES.items()}
