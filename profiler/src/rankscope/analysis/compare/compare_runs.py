"""Entry points of a comparison: read runs and return the whole result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.compare.comparable_steps import ComparableSteps, comparable_steps, cost_per_million, priced
from rankscope.analysis.compare.compare_result import CompareResult, Mode, Side
from rankscope.analysis.compare.outcomes import CONFIDENCE, METHOD
from rankscope.analysis.compare.pair import compare_pair, per_second, step_time, typical_step_time
from rankscope.analysis.compare.recording import Recording, read_recording
from rankscope.analysis.compare.scaling import scaling
from rankscope.analysis.evidence.step_table.chosen_steps import ALL_STEPS, StepRange
from rankscope.analysis.result.analysis import Cost
from rankscope.base.errors import InputError
from rankscope.base.text import shortened

MIN_CHANGE: Final = 0.01
"""Default of the smallest change that matters, as a fraction of the step time."""

_LONGEST_NAME: Final = 36
"""Maximum length of a run's name in a label."""


def compare(
    paths: Sequence[Path],
    *,
    at: int | None = None,
    steps: tuple[int | None, int | None] | None = None,
    min_change: float = MIN_CHANGE,
    gpu_hour: Cost | None = None,
) -> CompareResult:
    """Compare the first run with the others, or one run's steps before ``at`` with those from ``at`` on.

    A path is a run, whose last attempt is compared, or the folder of one of its attempts. Runs of several world sizes are
    judged by their scaling efficiency. The price ``gpu_hour`` defaults to the one recorded with each run.

    ``steps``: first step to compare, and the step after the last; ``None``: no bound.

    Raises ``InputError`` for a path that is no run or has no such steps, for the same run twice, or if there is no step before
    ``at`` or from ``at`` on.
    """
    return compare_sides(read_sides(paths, at=at, steps=StepRange(*(steps or ()))), min_change=min_change, gpu_hour=gpu_hour)


def read_sides(
    paths: Sequence[Path],
    *,
    at: int | None = None,
    steps: StepRange = ALL_STEPS,
    read: Callable[[Path], Recording] = read_recording,
) -> list[ComparableSteps]:
    """Read the sides of a comparison from disk, labelled with the names of their runs; see ``compare``."""
    sides: list[ComparableSteps] = []
    for path in paths:
        recording = _read(path, read, sides)
        chosen = steps.cut(recording.table, path).steps
        if at is not None:
            return _split(recording, at, chosen)
        # Reduced before the next one is read: two large runs would not fit into memory.
        # Warm-up is that of the run, so the whole table is handed on.
        name = recording.info.name.strip() or Path(recording.path).name
        sides.append(comparable_steps(recording, name, first=int(chosen[0]), end=int(chosen[-1]) + 1))
    return _named_apart(sides)


def compare_sides(
    sides: Sequence[ComparableSteps], *, min_change: float = MIN_CHANGE, gpu_hour: Cost | None = None
) -> CompareResult:
    """Compare sides that have been read; see ``compare``. Two sides of one recording are before and after."""
    mode: Mode = "pairs"
    if sides[0].recording.identity == sides[1].recording.identity:
        mode = "before_after"
    elif len({side.recording.world_size for side in sides}) > 1:
        mode = "scaling"
    return CompareResult(
        mode=mode,
        confidence=CONFIDENCE,
        min_change=min_change,
        method=METHOD,
        sides=[_side(side, gpu_hour) for side in sides],
        comparisons=[] if mode == "scaling" else [compare_pair(sides[0], side, min_change=min_change) for side in sides[1:]],
        scaling=scaling(sides, gpu_hour=gpu_hour) if mode == "scaling" else None,
    )


def _read(path: Path, read: Callable[[Path], Recording], sides: Sequence[ComparableSteps]) -> Recording:
    """Read a run that is none of ``sides``."""
    try:
        recording = read(path)
    except OSError as error:
        raise InputError(error.filename or path, error.strerror or str(error)) from error
    same = next((side.recording for side in sides if side.recording.identity == recording.identity), None)
    if same is not None:
        raise InputError(path, f"the same run as {same.path}, attempt {recording.attempt}: it would be compared with itself")
    return recording


def _split(recording: Recording, at: int, chosen: NDArray[np.int64]) -> list[ComparableSteps]:
    first, last = int(chosen[0]), int(chosen[-1])
    if not first < at <= last:
        raise InputError(recording.path, f"step {at} does not divide it: its steps are {first} to {last}")
    return [
        comparable_steps(recording, "before", first=first, end=at),
        comparable_steps(recording, "after", first=at, end=last + 1),
    ]


def _named_apart(sides: Sequence[ComparableSteps]) -> list[ComparableSteps]:
    """Return the sides with different labels: runs of one name have their folder or attempt in it, else their number."""
    names = Counter(side.label for side in sides)
    labels = []
    for side in sides:
        name = shortened(side.label, _LONGEST_NAME)
        labels.append(f"{name} in {_place(side.recording, sides)}" if names[side.label] > 1 else name)
    counts = Counter(labels)
    return [
        replace(side, label=label if counts[label] == 1 else f"{label} ({number})")
        for number, (side, label) in enumerate(zip(sides, labels, strict=True), 1)
    ]


def _place(recording: Recording, sides: Sequence[ComparableSteps]) -> str:
    """Return the folder of a run, or its attempt if several attempts of the run are compared."""
    attempts = sum(side.recording.info.run_id == recording.info.run_id for side in sides)
    return f"attempt {recording.attempt}" if attempts > 1 else shortened(Path(recording.path).name, _LONGEST_NAME)


def _side(side: ComparableSteps, gpu_hour: Cost | None) -> Side:
    recording = side.recording
    price = priced(gpu_hour, recording.info)
    per_s = {unit: per_second(side, unit) for unit in ("samples", "tokens")}
    cost = {unit: cost_per_million(value, recording.world_size, price) for unit, value in per_s.items()}
    compared = len(side.table.ranks)
    missing = recording.world_size - compared
    return Side(
        label=side.label,
        path=recording.path,
        run_id=recording.info.run_id,
        name=recording.info.name,
        attempt=recording.attempt,
        world_size=recording.world_size,
        ranks=compared,
        steps=side.steps,
        used_steps=len(side.table.steps),
        left_out=side.left_out,
        simulated=recording.info.simulated,
        step_us=step_time(side),
        typical_us=typical_step_time(side),
        samples_per_step=side.work["samples"],
        tokens_per_step=side.work["tokens"],
        samples_per_s=per_s["samples"],
        tokens_per_s=per_s["tokens"],
        cost_per_million_samples=cost["samples"],
        cost_per_million_tokens=cost["tokens"],
        warnings=[
            *recording.warnings,
            *([f"{missing} of {recording.world_size} ranks have no, or few, usable steps"] if missing else []),
        ],
    )
