"""Durations of a job as every source of them hands them over, and the readers of the sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from rankscope.analysis.collectives.arrivals import Numbers
from rankscope.analysis.durations.duration_calls import DurationCalls, RankCalls
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.parallel.workers import Engine
from rankscope.runs.durations import DURATION_SOURCES, DurationSource, SourceOfDurations


@dataclass(frozen=True, slots=True)
class Durations:
    """Operations of all ranks with their durations, and what their source knows beside them."""

    source: SourceOfDurations
    calls: DurationCalls
    world_size: int
    steps_of: Callable[[DurationCalls], Numbers]
    """Function that infers the step of each operation; ``NONE`` outside of steps, and where nothing repeats."""
    warnings: list[str]
    is_timed: bool = True
    """Whether the host's times of the operations are known."""
    hidden: Mapping[int, int] = field(default_factory=dict)
    """Number of collectives per rank that the source left out, where known."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Process of each rank, where ranks are numbers that only this analysis gives."""
    stages: Mapping[int, int | None] = field(default_factory=dict)
    """Pipeline stage of each rank, where the source shows that from all sends and receives; empty otherwise."""
    hang: HangReport | None = None
    """Report on a hang, or on long waits whose reason the source does not show."""


class Reader(Protocol):
    """Reader of a source: the module of its name in this folder."""

    def holds(self, files: Sequence[Path]) -> bool:
        """Return whether some of ``files`` are of this source."""

    def read_durations(self, paths: Sequence[Path], engine: Engine) -> Durations:
        """Read the files of a job, one per rank. Raises ``InputError`` for input without durations."""

    def stored_durations(self, ranks: Mapping[int, RankCalls], world_size: int) -> Durations:
        """Return the durations that were stored with a run. Raises ``InputError`` if there are none."""


def reader(kind: DurationSource) -> Reader:
    """Return the reader of a source."""
    # Imported on demand: imports are a large part of the time that the analysis of a trace takes.
    return cast("Reader", import_module(f"{__package__}.{kind}"))


def source_of(files: Sequence[Path]) -> DurationSource | None:
    """Return the source of durations that ``files`` are of; ``None`` for traces."""
    return next((kind for kind in DURATION_SOURCES if reader(kind).holds(files)), None)
