"""Looks of the bars of each cause."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.charts.bars import Look
from rankscope.dashboards.words.causes import CAUSES

CAUSE_LOOKS: Final[dict[str, Look]] = {cause: Look(*shown) for cause, shown in CAUSES.items()}
