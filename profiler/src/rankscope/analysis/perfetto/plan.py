"""Interface of the sources of an export, and their plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

import msgspec

from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.matching import Matching
from rankscope.analysis.perfetto.chrome_json import TraceWriter
from rankscope.analysis.perfetto.export_result import ExportClock
from rankscope.runs.records import CollectiveRecord

Progress = Callable[[str, int, int], None]
"""Callback with the current activity, the number of parts done, and their total."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Contents of an export, known before the first write."""

    kind: Literal["run", "traces"]
    identity: dict[str, object]
    """Identity of the run or traces, for the file's metadata."""
    steps: tuple[int, int] | None
    names: dict[int, str]
    """Rank, ascending, to the name of its process."""
    collectives: dict[int, list[CollectiveRecord]]
    matching: Matching
    clocks: Clocks
    clock: ExportClock
    """Description of ``clocks`` for the result."""
    base_ns: int
    """Time that is 0 in the file, on the common clock; no exported event is earlier."""
    step_times: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Step to its first start and last end on the common clock; may be completed while ranks are written."""
    left_out: list[str] = field(default_factory=list)

    def on_common_clock(self, rank: int) -> Callable[[int], int]:
        """Return the function that converts times of ``rank`` to the common clock."""
        return partial(self.clocks.correct, rank)


class ExportSource(Protocol):
    """Source of an export: a run or traces."""

    plan: Plan

    def write_rank(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """Write the tracks of a rank above its collectives."""

    def write_raw(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """Write the tracks of a rank below its collectives."""

    def finish(self, writer: TraceWriter, /) -> None:
        """Write the processes of the hosts, and add to the plan what was left out. Raises ``InputError`` for lost input."""


def widen(spans: dict[int, tuple[int, int]], step: int, start: int, end: int) -> None:
    """Widen the span of a step, first start to last end, by another one."""
    first, last = spans.get(step, (start, end))
    spans[step] = (min(first, start), max(last, end))


def clock_of(
    clocks: Clocks, matches: int, ranks: Collection[int], names: Mapping[int, str], *, fitted_to: str | None = None
) -> ExportClock:
    """Return the description of ``clocks`` for ``ranks``.

    ``matches`` is the number of matches that they were fitted to. ``names``: rank to the name of its clock.
    """
    shared = len({names.get(rank, rank) for rank in ranks}) == 1
    return ExportClock(
        method="collective_ends" if clocks.fitted else "one_clock" if shared else "none",
        residual_us=None if clocks.residual_ns is None else clocks.residual_ns / 1000,
        matched=matches,
        fitted_to=fitted_to,
        offset_us={rank: clocks.offset_ns[rank] / 1000 for rank in ranks if rank in clocks.offset_ns},
        drift_ppm={
            rank: clock.drift_ppm for rank in ranks if (clock := clocks.rank_clocks.get(rank)) and clock.drift_ppm is not None
        },
        changing=[rank for rank in ranks if rank in clocks.courses],
    )


def shared_by_names(clocks: Clocks, names: Mapping[int, str]) -> Clocks:
    """Return ``clocks`` extended to ranks without a matched collective: they get the clock of the same name."""
    by_name = {names[rank]: rank for rank in clocks.offset_ns if rank in names}
    same = {rank: by_name[name] for rank, name in names.items() if name in by_name}
    return msgspec.structs.replace(
        clocks,
        offset_ns=clocks.offset_ns | {rank: clocks.offset_ns[twin] for rank, twin in same.items()},
        courses=clocks.courses | {rank: clocks.courses[twin] for rank, twin in same.items() if twin in clocks.courses},
        rank_clocks=clocks.rank_clocks
        | {rank: clocks.rank_clocks[twin] for rank, twin in same.items() if rank not in clocks.rank_clocks},
    )


def process_name(rank: int, host: str | None, gpu: str | None, *, simulated: bool) -> str:
    """Return the display name of a rank's process: ``rank 5 · host node-3 · GPU-8a…``."""
    parts = [f"rank {rank}", f"host {host}" if host else None, gpu, "simulated" if simulated else None]
    return " · ".join(part for part in parts if part)


def none_of_these(ranks: Collection[int]) -> str:
    """Return the message for a selection that excludes all of ``ranks``."""
    return f"none of these ranks: there are {len(ranks)}, from {min(ranks)} to {max(ranks)}"
