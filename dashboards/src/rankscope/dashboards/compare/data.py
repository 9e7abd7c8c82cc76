"""Comparison of runs in a process beside the server, with the distribution of each side's step times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.compare.comparable_steps import ComparableSteps
from rankscope.analysis.compare.compare_result import CompareResult
from rankscope.analysis.compare.compare_runs import compare_sides, read_sides
from rankscope.analysis.compare.recording import Recording, read_recording
from rankscope.dashboards.data.cached_files import read_json
from rankscope.dashboards.data.progress import OnProgress, Progress
from rankscope.dashboards.words.inert import inert_record

COMPARISON: Final = "comparison.json"

PERCENTS: Final = tuple(range(101))
"""Stored percentiles of each side's step times."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of one side, over the compared steps."""

    label: str
    percentiles_us: list[float]
    """At ``PERCENTS``, mean over the ranks; empty without a usable step."""


class ComparedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison and the step-time distributions of its sides."""

    result: CompareResult
    distributions: list[Distribution]


def compare_runs(runs: Sequence[Path], at: int | None, folder: Path, on_progress: OnProgress) -> None:
    """Compare ``runs`` and write the result into ``folder``. Raises ``RankscopeError``, and ``OSError`` if it cannot write."""
    count = 0

    def read(path: Path) -> Recording:
        nonlocal count
        on_progress(Progress("reading the runs", count, len(runs)))
        count += 1
        return read_recording(path)

    sides = read_sides(runs, at=at, read=read)
    on_progress(Progress("comparing them"))
    compared = ComparedRuns(result=compare_sides(sides), distributions=[distribution(side) for side in sides])
    (folder / COMPARISON).write_bytes(msgspec.json.encode(inert_record(compared)))


def distribution(side: ComparableSteps) -> Distribution:
    """Return the distribution of one side's step times."""
    walls = side.walls
    return Distribution(label=side.label, percentiles_us=np.percentile(walls, PERCENTS).tolist() if len(walls) else [])


def read_comparison(folder: Path) -> ComparedRuns:
    """Read the comparison that ``compare_runs`` wrote. Raises ``InputError``."""
    return read_json(folder / COMPARISON, ComparedRuns, "the cached comparison")
