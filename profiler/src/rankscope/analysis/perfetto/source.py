"""What there is to export, whatever it is read from."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from rankscope.analysis.clock import Clocks
from rankscope.analysis.matching import Matching
from rankscope.analysis.perfetto.chrome_json import TraceWriter
from rankscope.analysis.perfetto.result import ExportClock
from rankscope.runs.records import CollectiveRecord

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many of its parts are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is exported, known before anything is written."""

    kind: Literal["run", "traces"]
    about: dict[str, object]
    """Identity, for the file's metadata."""
    steps: tuple[int, int] | None
    names: dict[int, str]
    """Rank, ascending, to the name of its process."""
    collectives: dict[int, list[CollectiveRecord]]
    matching: Matching
    clocks: Clocks
    clock: ExportClock
    """What to say of them."""
    base_ns: int
    """Not later than anything that is exported, on the common clock."""
    step_times: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Step to its first start and last end on the common clock; may be completed while ranks are written."""
    left_out: list[str] = field(default_factory=list)

    def on_common_clock(self, rank: int) -> Callable[[int], int]:
        """Takes times of ``rank`` to the common clock."""
        return partial(self.clocks.correct, rank)


class Source(Protocol):
    """A run or traces."""

    plan: Plan

    def write_rank(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """The tracks of a rank above its collectives."""

    def write_raw(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """Those below them."""

    def write_hosts(self, writer: TraceWriter) -> None:
        """Processes of hosts."""

    def finish(self) -> None:
        """After all has been written: say in the plan what has gone meanwhile. Raises ``InputError`` where that is too much."""


def clock_of(clocks: Clocks, matches: int, ranks: Collection[int], *, fitted_to: str | None = None) -> ExportClock:
    """What to say of ``clocks``, fitted to so many matches."""
    return ExportClock(
        method="none" if clocks.residual_ns is None else "collective_ends",
        residual_us=None if clocks.residual_ns is None else clocks.residual_ns / 1000,
        matched=matches,
        fitted_to=fitted_to,
        offset_us={rank: clocks.offset_ns[rank] / 1000 for rank in ranks if rank in clocks.offset_ns},
        drift_ppm={rank: found.drift_ppm for rank in ranks if (found := clocks.found.get(rank)) and found.drift_ppm is not None},
        changing=[rank for rank in ranks if rank in clocks.courses],
    )


def process_name(rank: int, host: str | None, gpu: str | None, *, simulated: bool) -> str:
    """``rank 5 · host node-3 · GPU-8a…``."""
    parts = [f"rank {rank}", f"host {host}" if host else None, gpu, "simulated" if simulated else None]
    return " · ".join(part for part in parts if part)


def none_of_these(ranks: Collection[int]) -> str:
    """What to say when nobody is left of the ranks that there are."""
    return f"none of these ranks: there are {len(ranks)}, from {min(ranks)} to {max(ranks)}"


def step_range(steps: tuple[int, int]) -> str:
    """``steps 3 to 7``, both of them included."""
    first, past = steps
    return f"step {first}" if past == first + 1 else f"steps {first} to {past - 1}"
