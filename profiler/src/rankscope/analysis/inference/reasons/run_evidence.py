"""Evidence read from an attempt of a run before the verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankscope.analysis.collectives.matched import MatchedCollectives
from rankscope.analysis.collectives.matching import Matching
from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.evidence.compared import StepOwnTimes
from rankscope.analysis.evidence.liveness import Liveness
from rankscope.analysis.evidence.step_table.recent import EarlierTotals
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.evidence.typical import TypicalSteps
from rankscope.analysis.hang.activity import Activities
from rankscope.analysis.result.costs import PipelineResult
from rankscope.runs.durations import DurationBlock
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """All evidence read from an attempt."""

    reader: RunReader
    table: StepTable
    typical: TypicalSteps
    """Its typical and its rare steps."""
    compared: list[StepOwnTimes]
    """Typical steps that can be judged, for each group of ranks that do the same work."""
    infos: dict[int, RankInfo]
    windows: dict[int, Reduction]
    world_size: int | None
    matched: MatchedCollectives
    """Collectives of the profiled steps."""
    damaged: Mapping[int, int]
    """Rank to the number of its records with impossible times, which are left out."""
    pipeline: PipelineResult | None
    """Pipeline of the run; ``None`` if there is none or it was not detected."""
    liveness: Liveness
    """State of the attempt: live, silent or over."""
    silent_s: float
    """Seconds from its last step until it was read."""
    activities: Activities | None = None
    """What its ranks do while they stand still."""
    earlier: EarlierTotals = field(default_factory=EarlierTotals)
    durations: Mapping[int, Sequence[DurationBlock]] = field(default_factory=dict)
    """Durations of collectives by rank; only read where no own times can be compared."""

    @property
    def matching(self) -> Matching:
        """Matched collectives of the profiled steps."""
        return self.matched.matching

    @property
    def blame(self) -> Blame:
        """Waits in the profiled steps, charged to the ranks that caused them."""
        return self.matched.blame

    @property
    def path(self) -> str:
        """Path of the run directory."""
        return os.fspath(self.reader.path)

    @property
    def hosts(self) -> dict[int, str]:
        """Host of each rank."""
        return {rank: info.host for rank, info in self.infos.items()}

    @property
    def accelerated(self) -> bool:
        """Whether any rank has an accelerator."""
        return any(info.device_kind != "cpu" for info in self.infos.values())

    @property
    def ranks(self) -> list[int]:
        """Ranks with a folder in the run directory, ascending."""
        return [int(rank) for rank in self.table.ranks]
