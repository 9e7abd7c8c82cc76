"""Diagnosis of a straggler: the ranks, with their cause and cost, as evidence of steps or of windows shows them."""

from __future__ import annotations

from dataclasses import dataclass, field

from rankscope.analysis.causes import Explanation
from rankscope.analysis.result.analysis import Evidence, Pattern
from rankscope.runs.records import Phase


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Ranks to be named as stragglers, with cause, cost and evidence."""

    ranks: list[int]
    pattern: Pattern
    cause: Explanation
    phase: Phase | None
    gain_us: float
    """Time that healing them saves, per step (or window)."""
    wait_us: float
    """Time that the others waited because of them, per step (or window) and victim."""
    step_us: float
    confidence: float
    """Confidence that these are the ranks."""
    hosts: list[str] = field(default_factory=list)
    """Hosts at fault as a whole; their slow ranks are among ``ranks``."""
    saves_us: tuple[float, float] | None = None
    """Interval of ``gain_us``; ``None``: not estimated."""
    cause_confidence: float | None = None
    """Confidence in the cause, if they are; ``None``: unknown."""
    group: str | None = None
    stage: int | None = None
    """Pipeline stage of the worst rank."""
    evidence: list[Evidence] = field(default_factory=list)
    at_hand: str = ""
    """Phrase for the steps observed, if there are only a few, such as "in the one step at hand"; else empty."""
    note: str = ""
    """Additional sentence for the summary; may be empty."""
