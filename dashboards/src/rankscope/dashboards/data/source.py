"""What the pages need to know about runs, whoever has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result import Analysis
from rankscope.runs.errors import RankscopeError

Status = Literal["starting", "live", "silent", "finished", "failed", "unreadable"]
"""``starting``: no rank has shown up; ``silent``: ranks have not ended, yet nothing was written for a while; ``finished``: all
ranks have ended; ``failed``: so they have, and some of them crashed or were killed."""


class UnknownRunError(RankscopeError):
    """There is no run of that id here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What is known of a run without analysing it."""

    run_id: str
    """Unique within its source; an unreadable run goes by its folder's name."""
    name: str
    path: str
    revision: str
    """Changes when anything in the run changed."""
    status: Status
    start_unix_ns: int | None = None
    last_write_unix_ns: int | None = None
    world_size: int | None = None
    ranks: int = 0
    """Ranks that left a folder in the last attempt."""
    hosts: int = 0
    attempts: int = 0
    simulated: bool = False
    losses: str | None = None
    """Ranks of the last attempt that crashed or were killed, in words; ``None`` when there are none."""
    unrecorded: str | None = None
    """Ranks whose recorder switched itself off, in words: how they ended is not known."""
    problem: str | None = None
    """Why it cannot be read: one line; ``None`` when it can."""

    @property
    def may_be_well(self) -> bool:
        """Whether nothing speaks against it: only then a good verdict is good news."""
        return self.losses is None and self.status != "silent"


class StepMatrices(Protocol):
    """Per-step values of a run, as ``rankscope.analysis.steps.StepTable`` has them."""

    @property
    def ranks(self) -> Sequence[int] | NDArray[np.int64]:
        """Rank numbers, ascending: the rows."""

    @property
    def steps(self) -> Sequence[int] | NDArray[np.int64]:
        """Step numbers, ascending: the columns."""

    def matrix(self, metric: str) -> NDArray[np.float64]:
        """Values [ranks, steps] in the metric's unit, NaN where there is no record."""


class RunSource(Protocol):
    """Runs to show. Every method may be called from several threads at once."""

    def runs(self) -> list[RunSummary]:
        """All runs: those that are live, then the others, the newest first.

        Raises ``RankscopeError`` when the place itself cannot be read.
        """

    def summary(self, run_id: str) -> RunSummary:
        """One run as it is now. Raises ``UnknownRunError``."""

    def analysis(self, run_id: str) -> Analysis:
        """The verdict and its evidence. Raises ``RankscopeError``."""

    def steps(self, run_id: str) -> StepMatrices:
        """Per-step values. Raises ``RankscopeError``."""
