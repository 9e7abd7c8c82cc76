"""Causes of ``rankscope.analysis.causes`` as the pages show them: one label and one look each, as in the waterfall of a step."""

from __future__ import annotations

from typing import Final, NamedTuple


class ShownCause(NamedTuple):
    """Label of a cause, the role of its colour, and a hatching that identifies it without colour."""

    label: str
    color: str
    hatch: str = ""


CAUSES: Final[dict[str, ShownCause]] = {
    "input": ShownCause("slow input", "input", "/"),
    "checkpoint": ShownCause("checkpoint", "exposed_memcpy", "\\"),
    "evaluation": ShownCause("evaluation", "exposed_memcpy", "-"),
    "host": ShownCause("slow host", "idle", "-"),
    "gc": ShownCause("garbage collection", "overlap", "x"),
    "cpu_contention": ShownCause("waiting for a CPU", "exposed_communication", "/"),
    "compute": ShownCause("slow compute", "compute"),
    "imbalance": ShownCause("more work than others", "compute", "|"),
    "communication": ShownCause("communication", "exposed_communication", "x"),
    "forward": ShownCause("longer forward", "compute", "+"),
    "backward": ShownCause("longer backward", "overlap"),
    "optimizer": ShownCause("longer optimizer", "compute", "/"),
    "between_steps": ShownCause("longer between steps", "overlap", "|"),
    "unknown": ShownCause("cause unknown", "missing", "+"),
}
"""Causes of a verdict, of the what-if (``cpu_contention``), and phases in which own time is longer, in stacking order."""
