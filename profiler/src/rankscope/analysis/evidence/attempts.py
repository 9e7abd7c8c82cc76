"""Step times of the attempts of a run, so that a slow program among several, such as one fold, is seen."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np

from rankscope.base.text import format_duration
from rankscope.runs.follow import last_rows
from rankscope.runs.paths import attempt_dir, rank_dir
from rankscope.runs.reader import RunReader

_ATTEMPTS: Final = 20
"""Number of last attempts that are compared."""
_STEPS: Final = 1000
"""Number of last steps whose median is the step time of an attempt."""
_LEAST_STEPS: Final = 5
_SLOWER: Final = 1.25
"""Least factor between the step times of the slowest attempt and of the others."""


def slowest_attempt(reader: RunReader) -> str | None:
    """Return the sentence that one attempt had clearly slower steps than the others, if it had."""
    times = {attempt: usual for attempt in reader.attempts()[-_ATTEMPTS:] if (usual := _usual_us(reader, attempt)) is not None}
    if len(times) < 2:
        return None
    slowest = max(times, key=lambda attempt: times[attempt])
    others_us = float(np.median([usual for attempt, usual in times.items() if attempt != slowest]))
    if times[slowest] < _SLOWER * others_us:
        return None
    step_times = f"{format_duration(times[slowest])} per step, the others {format_duration(others_us)}"
    return f"attempt {slowest} was the slowest of {len(times)}: {step_times}; analyse {attempt_dir(reader.path, slowest)}"


def _usual_us(reader: RunReader, attempt: int) -> float | None:
    """Return the median step time of the first rank with records; ``None``: of too few steps."""
    for rank in reader.ranks(attempt)[:1]:
        with suppress(OSError):
            walls = last_rows(rank_dir(reader.path, attempt, rank), _STEPS)["wall_us"]
            walls = walls[np.isfinite(walls)]
            return float(np.median(walls)) if len(walls) >= _LEAST_STEPS else None
    return None
