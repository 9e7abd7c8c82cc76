"""Causes of ``rankscope.analysis.causes`` as the pages show them: one label and one style each, as in the waterfall of a step."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.charts.palette import BarStyle

CAUSES: Final[dict[str, BarStyle]] = {
    "input": BarStyle("slow input", "input", "/"),
    "checkpoint": BarStyle("checkpoint", "exposed_memcpy", "\\"),
    "evaluation": BarStyle("evaluation", "exposed_memcpy", "-"),
    "host": BarStyle("slow host", "idle", "-"),
    "gc": BarStyle("garbage collection", "overlap", "x"),
    "cpu_contention": BarStyle("waiting for a CPU", "exposed_communication", "/"),
    "compute": BarStyle("slow compute", "compute"),
    "imbalance": BarStyle("more work than others", "compute", "|"),
    "communication": BarStyle("communication", "exposed_communication", "x"),
    "forward": BarStyle("longer forward", "compute", "+"),
    "backward": BarStyle("longer backward", "overlap"),
    "optimizer": BarStyle("longer optimizer", "compute", "/"),
    "between_steps": BarStyle("longer between steps", "overlap", "|"),
    "unknown": BarStyle("cause unknown", "missing", "+"),
}
"""Causes of a verdict, of the what-if (``cpu_contention``), and phases in which own time is longer, in stacking order."""
