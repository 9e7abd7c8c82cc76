"""Comparison of runs in a process beside the server, with the distribution of each side's step times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.compare.engine import compare_sides, read_sides
from rankscope.analysis.compare.recording import Recording, read_recording
from rankscope.analysis.compare.result import CompareResult
from rankscope.analysis.compare.usable import Usable
from rankscope.base.text import shortened
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.data.whole import read_json
from rankscope.dashboards.words.inert import inert_record

COMPARISON: Final = "comparison.json"

PERCENTS: Final = tuple(range(101))
"""Stored percentiles of each side's step times."""


_LONGEST_LABEL: Final = 36


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of one side, over the compared steps."""

    label: str
    percentiles_us: list[float]
    """At ``PERCENTS``, mean over the ranks; empty without a usable step."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison and the step-time distributions of its sides."""

    result: CompareResult
    distributions: list[Distribution]


def compare_runs(runs: Sequence[Path], at: int | None, folder: Path, tell: Tell) -> None:
    """Compare ``runs`` and write the result into ``folder``. Raises ``RankscopeError``, and ``OSError`` if it cannot write."""
    count = 0

    def read(path: Path) -> Recording:
        nonlocal count
        tell(Progress("reading the runs", count, len(runs)))
        count += 1
        return read_recording(path)

    sides = named_sides(read_sides(runs, at=at, read=read))
    tell(Progress("comparing them"))
    compared = Compared(result=compare_sides(sides), distributions=[distribution(side) for side in sides])
    (folder / COMPARISON).write_bytes(msgspec.json.encode(inert_record(compared)))


def named_sides(sides: Sequence[Usable]) -> list[Usable]:
    """Return the sides with the names of their runs as labels; runs of one name have their folders, too.

    Two parts of one run stay *before* and *after*.
    """
    if sides[0].recording.identity == sides[-1].recording.identity:
        return list(sides)
    names = Counter(side.recording.info.name for side in sides)
    labels = []
    for side in sides:
        name = shortened(side.recording.info.name, _LONGEST_LABEL)
        several = names[side.recording.info.name] > 1
        labels.append(f"{name} in {shortened(Path(side.recording.path).name, _LONGEST_LABEL)}" if several else name)
    apart = Counter(labels)
    return [
        replace(side, label=label if apart[label] == 1 else f"{label} ({side.label})")
        for side, label in zip(sides, labels, strict=True)
    ]


def distribution(side: Usable) -> Distribution:
    """Return the distribution of one side's step times."""
    walls = side.walls
    return Distribution(label=side.label, percentiles_us=np.percentile(walls, PERCENTS).tolist() if len(walls) else [])


def read_comparison(folder: Path) -> Compared:
    """Read the comparison that ``compare_runs`` wrote. Raises ``InputError``."""
    return read_json(folder / COMPARISON, Compared, "the cached comparison")
