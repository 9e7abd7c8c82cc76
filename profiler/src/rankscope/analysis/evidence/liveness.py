"""Liveness of a run, judged by its own records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from rankscope.runs.records import RankInfo
from rankscope.runs.silence import SILENT_SECONDS, SILENT_STEPS

if TYPE_CHECKING:
    from rankscope.analysis.evidence.step_table.steps import (
        StepTable,  # not needed for traces, and half of all imports depend on it
    )

_TIMES_LONGEST: Final = 2.0
_USUAL_STEPS: Final = 1000
"""Number of recent steps whose median is the typical step time."""
_LONG_STEPS: Final = 20_000
"""Number of recent steps to search for long steps that may recur."""
LONG_TAGS: Final = ("checkpoint", "eval")

Liveness = Literal["live", "silent", "over"]
"""``silent``: ranks neither recorded their end nor new data: the job hangs, or disappeared with its nodes."""


def patience_s(
    usual_us: float, longest_us: float, *, silent_seconds: float = SILENT_SECONDS, silent_steps: float = SILENT_STEPS
) -> float:
    """Return the seconds without a new step after which a run, or a rank of it, is silent.

    ``usual_us``: typical step time. ``longest_us``: time of the longest step that may recur, such as a checkpoint.
    """
    return max(silent_seconds, silent_steps * usual_us / 1e6, _TIMES_LONGEST * longest_us / 1e6)


def silence_s(table: StepTable, infos: Mapping[int, RankInfo], *, start_unix_ns: int, now: float) -> float:
    """Return the seconds at ``now`` (seconds since 1970) since the last step of an attempt, or since its start.

    The hosts' clocks are assumed to be right within a minute.
    """
    return now - max([table.last_end_unix_ns, start_unix_ns, *(info.start_unix_ns for info in infos.values())]) / 1e9


def liveness(table: StepTable, infos: Mapping[int, RankInfo], silent_s: float) -> Liveness:
    """Return the liveness of an attempt, ``silent_s`` seconds after its last step."""
    if infos and all(info.end_reason is not None or info.end_unix_ns is not None for info in infos.values()):
        return "over"
    walls = table.some("wall_us", slice(-_USUAL_STEPS, None))
    walls = walls[np.isfinite(walls)]
    usual_us = float(np.median(walls)) if len(walls) else 0.0
    return "silent" if silent_s > patience_s(usual_us, _longest_us(table)) else "live"


def _longest_us(table: StepTable) -> float:
    """Return the longest step of the first rank with steps that may recur: a tagged one, or the second longest of all."""
    recent = slice(-_LONG_STEPS, None)
    for row, walls in enumerate(table.some("wall_us", recent)):
        finite = np.isfinite(walls)
        if finite.any():
            tagged = [walls[finite & table.tags[tag][row, recent]] for tag in LONG_TAGS if tag in table.tags]
            return float(max([*np.sort(walls[finite])[-2:-1], *(walls.max() for walls in tagged if len(walls))], default=0.0))
    return 0.0
