"""Names of causes, and the excess of work that is one; ``rankscope.analysis.causes`` has the rule of each."""

from __future__ import annotations

from typing import Final, Literal

Cause = Literal["input", "host", "gc", "checkpoint", "evaluation", "compute", "imbalance", "communication", "unknown"]

MORE_WORK: Final = 0.1
"""Relative excess of work from which a rank has more of it than its peers."""
