"""Liveness of a run, judged by its own records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from rankscope.runs.records import RankInfo

if TYPE_CHECKING:
    from rankscope.analysis.evidence.steps import StepTable  # not needed for traces, and half of all imports depend on it

SILENT_SECONDS: Final = 300.0
"""Time without a new record after which a run counts as silent."""
_RECENT_STEPS: Final = 1000
SILENT_STEPS: Final = 10
"""A run counts as silent only after this many typical steps without a new record, too."""

Liveness = Literal["live", "silent", "over"]
"""``silent``: ranks neither recorded their end nor new data: the job hangs, or disappeared with its nodes."""


def liveness(table: StepTable, infos: Mapping[int, RankInfo], *, start_unix_ns: int, now: float) -> Liveness:
    """Return the liveness at ``now`` (seconds since 1970) of an attempt that began at ``start_unix_ns``.

    The hosts' clocks are assumed to be right within minutes.
    """
    if infos and all(info.end_reason is not None or info.end_unix_ns is not None for info in infos.values()):
        return "over"
    last = max([table.last_end_unix_ns, start_unix_ns, *(info.start_unix_ns for info in infos.values())])
    walls = table.some("wall_us", slice(-_RECENT_STEPS, None))
    walls = walls[np.isfinite(walls)]
    usual_s = float(np.median(walls)) / 1e6 if len(walls) else 0.0
    silent_s = now - last / 1e9
    return "silent" if silent_s > max(SILENT_SECONDS, SILENT_STEPS * usual_s) else "live"
