"""What to try: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

import msgspec


class AdviceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that speaks for an advice."""

    name: str
    value: float
    unit: str
    source: str | None
    """What it was read from: ``steps``, ``windows``, ``traces``; ``None`` for what the verdict says."""
    stage: int | None = None
    """The pipeline stage that it is of: that which has most of it. ``None``: of the job."""
    limit: str
    """The condition it meets: ``>= 0.05``."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to try."""

    name: str
    evidence: list[AdviceEvidence]
    """All of it is met: nothing is advised where a figure is missing."""
    action: str
    gain_share_at_most: float | None
    """Share of the step that it can save: an upper bound, no forecast. ``None`` where it saves no time by itself."""
    gain_us_at_most: float | None
    """The same in microseconds per step."""
    gain_formula: str | None
    """How the bound was computed, from the names of figures."""
    cost_share_at_most: float | None = None
    """What it costs, as a share of the step, where it costs any."""
    check: str
    """How to see whether it helped."""
