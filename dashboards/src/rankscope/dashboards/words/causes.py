"""Causes of ``rankscope.analysis.causes`` as the pages show them: one label and one style each, as in the waterfall of a step."""

from __future__ import annotations

from typing import Final, NamedTuple


class CauseStyle(NamedTuple):
    """Label of a cause, the role of its colour, and a hatching that identifies it without colour."""

    label: str
    color: str
    hatch: str = ""


CAUSES: Final[dict[str, CauseStyle]] = {
    "input": CauseStyle("slow input", "input", "/"),
    "checkpoint": CauseStyle("checkpoint", "exposed_memcpy", "\\"),
    "evaluation": CauseStyle("evaluation", "exposed_memcpy", "-"),
    "host": CauseStyle("slow host", "idle", "-"),
    "gc": CauseStyle("garbage collection", "overlap", "x"),
    "cpu_contention": CauseStyle("waiting for a CPU", "exposed_communication", "/"),
    "compute": CauseStyle("slow compute", "compute"),
    "imbalance": CauseStyle("more work than others", "compute", "|"),
    "communication": CauseStyle("communication", "exposed_communication", "x"),
    "forward": CauseStyle("longer forward", "compute", "+"),
    "backward": CauseStyle("longer backward", "overlap"),
    "optimizer": CauseStyle("longer optimizer", "compute", "/"),
    "between_steps": CauseStyle("longer between steps", "overlap", "|"),
    "unknown": CauseStyle("cause unknown", "missing", "+"),
}
"""Causes of a verdict, of the what-if (``cpu_contention``), and phases in which own time is longer, in stacking order."""
