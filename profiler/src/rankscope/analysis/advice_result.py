"""Advice: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

import msgspec


class AdviceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that supports an advice."""

    name: str
    value: float
    unit: str
    source: str | None
    """Source of the figure: ``steps``, ``windows`` or ``traces``; ``None`` if it comes from the verdict."""
    stage: int | None = None
    """Pipeline stage of the figure: the stage with the largest value. ``None``: the figure is of the whole job."""
    limit: str
    """Condition that the value meets, such as ``>= 0.05``."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to try."""

    name: str
    evidence: list[AdviceEvidence]
    """Figures that all meet their conditions. Nothing is advised where a figure is missing."""
    action: str
    gain_share_at_most: float | None
    """Largest share of the step that it can save: an upper bound, not a forecast. ``None`` where it saves no time by itself."""
    gain_us_at_most: float | None
    """``gain_share_at_most`` in microseconds per step."""
    gain_formula: str | None
    """Formula of the bound, in names of figures."""
    cost_share_at_most: float | None = None
    """Cost of the advice as a share of the step, where it has one."""
    check: str
    """Way to check that it helped."""
