"""Everything that is read of an attempt of a run before it is judged."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from rankscope.analysis.blame import Blame
from rankscope.analysis.explained import Witness
from rankscope.analysis.liveness import Liveness
from rankscope.analysis.matched import Matched
from rankscope.analysis.matching import Matching
from rankscope.analysis.own_time import Judged
from rankscope.analysis.pipeline_result import PipelineResult
from rankscope.analysis.reduce import Reduction
from rankscope.analysis.steps import StepTable
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was recorded before the steps of a table that holds only the last ones."""

    steps: int = 0
    records: dict[int, int] = field(default_factory=dict)
    """Per rank."""
    wall_us: dict[int, float] = field(default_factory=dict)
    """Per rank, the sum."""


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """Everything read from an attempt."""

    reader: RunReader
    table: StepTable
    compared: list[Judged]
    """Of each group of ranks that do the same work what can be judged."""
    infos: dict[int, RankInfo]
    windows: dict[int, Reduction]
    world_size: int | None
    matched: Matched
    """The collectives of the profiled steps."""
    damaged: int
    """Records with impossible times, left out."""
    pipeline: PipelineResult | None
    """``None``: there is none, or it is not seen."""
    liveness: Liveness
    """Whether it goes on."""
    earlier: Earlier = field(default_factory=Earlier)

    @property
    def matching(self) -> Matching:
        """The collectives of the profiled steps that match."""
        return self.matched.matching

    @property
    def blame(self) -> Blame:
        """Who was waited for in them."""
        return self.matched.blame

    @property
    def path(self) -> str:
        """The run directory."""
        return os.fspath(self.reader.path)

    @property
    def witness(self) -> Witness:
        """Where the physical reason of a slowness is looked for."""
        return Witness(self.reader, self.table, self.infos)

    @property
    def hosts(self) -> dict[int, str]:
        """Rank to host."""
        return {rank: info.host for rank, info in self.infos.items()}

    @property
    def ranks(self) -> list[int]:
        """Ranks that left a folder, ascending."""
        return [int(rank) for rank in self.table.ranks]
