"""Metrics and tags that the training script reported, step by step, of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.possible import LAST_STEP
from rankscope.dashboards.data.cached_files import read_arrays, write_arrays
from rankscope.dashboards.words.inert import sanitize
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepEvent

MOST_METRICS: Final = 6
MOST_TAGS: Final = 8
MOST_RANKS: Final = 16
"""Most ranks in which metrics are looked for: the loss is known on the first, or in a pipeline on the last."""


@dataclass(frozen=True, slots=True)
class Script:
    """Reports of one rank; names are inert."""

    rank: int | None = None
    """``None``: there is no rank."""
    metrics: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = field(default_factory=dict)
    """Steps, ascending, and values of each metric."""
    tags: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Steps of each tag, ascending."""


def script_of(reader: RunReader, attempt: int, ranks: Sequence[int]) -> Script:
    """Return the reports of the first rank that reported metrics, else the tags of the first rank."""
    first: Script | None = None
    ends = dict.fromkeys([*ranks[:1], *ranks[-1:], *ranks[:: max(1, len(ranks) // MOST_RANKS)]])
    for rank in list(ends)[:MOST_RANKS]:
        script = _of_rank(rank, [event for event in reader.events(attempt, rank) if 0 <= event.step <= LAST_STEP])
        if script.metrics:
            return script
        first = first or script
    return first or Script()


def _of_rank(rank: int, events: list[StepEvent]) -> Script:
    values: dict[str, dict[int, float]] = {}
    tags: dict[str, set[int]] = {}
    for event in events:
        for name, value in event.metrics.items():
            if name in values or len(values) < MOST_METRICS:
                values.setdefault(name, {})[event.step] = value
        for tag in event.tags:
            if tag in tags or len(tags) < MOST_TAGS:
                tags.setdefault(tag, set()).add(event.step)
    metrics = {}
    for name, by_step in values.items():
        steps = sorted(by_step)
        metrics[sanitize(name)] = np.array(steps, np.int64), np.array([by_step[step] for step in steps])
    return Script(rank, metrics, {sanitize(tag): np.array(sorted(steps), np.int64) for tag, steps in tags.items()})


def write_script(script: Script, file: Path) -> None:
    """Write the reports, replacing the file. Raises ``OSError``."""
    arrays: dict[str, NDArray[Any]] = {"rank": np.array(-1 if script.rank is None else script.rank)}
    arrays |= {f"steps {name}": steps for name, (steps, _) in script.metrics.items()}
    arrays |= {f"values {name}": values for name, (_, values) in script.metrics.items()}
    arrays |= {f"tag {name}": steps for name, steps in script.tags.items()}
    write_arrays(file, arrays)


def read_script(file: Path) -> Script:
    """Read the reports that ``write_script`` wrote. Raises ``InputError``."""
    arrays = read_arrays(file, "the cached reports of the script")
    rank = int(arrays.pop("rank"))
    names = [name.removeprefix("steps ") for name in arrays if name.startswith("steps ")]
    return Script(
        None if rank < 0 else rank,
        {name: (arrays[f"steps {name}"], arrays[f"values {name}"]) for name in names},
        {name.removeprefix("tag "): steps for name, steps in arrays.items() if name.startswith("tag ")},
    )
