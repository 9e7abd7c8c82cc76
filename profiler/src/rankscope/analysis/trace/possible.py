"""Limits of the numbers in a record: damaged or fabricated files may contain any value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rankscope.runs.records import CollectiveRecord, StepBreakdown

if TYPE_CHECKING:  # `rankscope hang` needs a limit of this module and no arrays
    import numpy as np
    from numpy.typing import NDArray

MAX_US: Final = 366 * 86_400 * 1e6
"""Limit of durations: nothing in training takes a year, so a longer time is damage."""

LAST_STEP: Final = 2**53
"""Largest possible step number; a larger one is damage."""

LATEST_NS: Final = 2**62
"""Limit of timestamps: no clock shows a later time."""

MOST_BYTES: Final = 2**62
"""Limit of sizes: no memory and no message is larger."""


def are_possible_steps(rows: NDArray[Any] | Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return which rows, or columns, of ``step_columns`` have possible times and step numbers, [rows]."""
    step, start, wall = rows["step"], rows["start_unix_ns"], rows["wall_us"]
    possible: NDArray[np.bool_] = (step >= 0) & (step <= LAST_STEP) & (start >= 0) & (start < LATEST_NS)
    return possible & (wall >= 0) & (wall < MAX_US)


def is_possible_breakdown(row: StepBreakdown) -> bool:
    """Return whether the times and the step number of a breakdown are possible."""
    times = (
        row.compute_us,
        row.communication_us,
        row.overlap_us,
        row.exposed_communication_us,
        row.exposed_memcpy_us,
        row.idle_us,
    )
    return (
        0 < row.window_us < MAX_US
        and 0 <= row.step <= LAST_STEP
        and 0 <= row.start_unix_ns < LATEST_NS
        and all(0 <= time < MAX_US for time in times)
    )


def is_possible_collective(row: CollectiveRecord) -> bool:
    """Return whether the times and the step number of a collective are possible."""
    return 0 <= row.enqueue_unix_ns <= row.start_unix_ns <= row.end_unix_ns < LATEST_NS and 0 <= row.step <= LAST_STEP
