"""What the pages need to know about runs, whoever has them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rankscope.alerts.replay.result import Replay
from rankscope.analysis.result import Analysis
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.alert_record import AlertsFound
from rankscope.dashboards.data.blame import BlameBook
from rankscope.dashboards.data.brief import Brief
from rankscope.dashboards.data.comparing import Compared
from rankscope.dashboards.data.events import Events
from rankscope.dashboards.data.hardware import Hardware
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.scenarios import Scenarios
from rankscope.dashboards.data.topology import Topology
from rankscope.dashboards.data.window_data import WindowData
from rankscope.dashboards.data.windows import Window, Windows
from rankscope.runs.records import StepRecord

if TYPE_CHECKING:
    from rankscope.dashboards.data.trend import Trend

Status = Literal["starting", "live", "silent", "finished", "failed", "unreadable"]
"""``starting``: no rank has shown up; ``silent``: ranks have not ended, yet nothing was written for a while; ``finished``: all
ranks have ended; ``failed``: so they have, and some of them crashed or were killed."""


class UnknownRunError(RankscopeError):
    """There is no run of that id here."""


class NotReadyError(RankscopeError):
    """What is asked for is being worked out; asking again gets it, in the end."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        super().__init__(progress.sentence)


@dataclass(frozen=True, slots=True)
class Stale:
    """Of a run that goes on, nothing newer can be shown."""

    as_of_unix_ns: int
    """When what is shown was worked out."""
    why: str
    """Why it could not be done since; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What is known of a run without analysing it."""

    run_id: str
    """Unique within its source; an unreadable run goes by its folder's name, or by its path where that is the id of another."""
    name: str
    path: str
    copy_of: str | None = None
    """Its URL where ``path`` is a copy."""
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


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a metric's matrix."""

    values: NDArray[np.float32]
    """[ranks, columns], NaN where nothing is known."""
    first: int
    """Column of the whole matrix at which it begins."""
    steps_per_column: int
    """1; or more, then each value is the worst of so many (``metrics``)."""


class StepMatrices(Protocol):
    """Per-step values of a run: metrics of ``rankscope.dashboards.data.metrics.METRICS`` in their units."""

    @property
    def ranks(self) -> Sequence[int] | NDArray[np.int64]:
        """Rank numbers, ascending: the rows."""

    @property
    def steps(self) -> Sequence[int] | NDArray[np.int64]:
        """Step numbers, ascending: the columns."""

    @property
    def metrics(self) -> Collection[str]:
        """Those of which anything is known."""

    def part(self, metric: str, first: int = 0, last: int | None = None, *, most_columns: int = 4096) -> Part:
        """Columns ``first`` to ``last`` (exclusive): each step where they are at most ``most_columns``, else coarser ones that
        overlap them. Raises ``RankscopeError``.
        """


class RunSource(Protocol):
    """Runs to show. Every method may be called from several threads at once."""

    def runs(self) -> list[RunSummary]:
        """All runs: those that are live, then the others, the newest first.

        Raises ``RankscopeError`` when the place itself cannot be read.
        """

    def summary(self, run_id: str) -> RunSummary:
        """One run as it is now. Raises ``UnknownRunError``."""

    def version(self, run_id: str) -> str:
        """Changes when ``analysis`` and ``steps`` answer something else than before; of a run that goes on that is a while after
        its files changed. Raises ``RankscopeError``.
        """

    def stale(self, run_id: str) -> Stale | None:
        """Whether what is shown of a run is older than it should be; does not wait for it. Raises ``RankscopeError``."""

    def analysis(self, run_id: str) -> Analysis:
        """The verdict and its evidence. Raises ``RankscopeError``."""

    def brief(self, run_id: str) -> Brief:
        """The line about a run; does not wait for it. Raises ``RankscopeError``."""

    def known_brief(self, run: RunSummary) -> Brief | None:
        """The same if it has been worked out; nothing is begun. Raises ``RankscopeError``."""

    def compared(self, run_ids: Sequence[str], at: int | None = None) -> Compared:
        """Runs compared with the first of them, or one run's steps from ``at`` on with those before.

        Of runs that go on: as they were a while ago. Raises ``RankscopeError``.
        """

    def blame(self, run_id: str) -> BlameBook:
        """Who delayed whom and why. Raises ``RankscopeError``."""

    def scenarios(self, run_id: str) -> Scenarios:
        """What-if; of a run that goes on as it was some minutes ago. Raises ``RankscopeError``."""

    def replay(self, run_id: str) -> Replay:
        """All alerts over the run; of one that goes on as it was at most an hour ago. Raises ``RankscopeError``."""

    def windows(self, run: RunSummary) -> Windows:
        """Captured windows of a run as it was when it was summed up. Raises ``RankscopeError``."""

    def window(self, run: RunSummary, window: Window) -> WindowData:
        """One of them. Raises ``RankscopeError``."""

    def window_steps(self, run: RunSummary, window: Window, rank: int) -> list[StepRecord]:
        """Step records of a rank in it. Raises ``RankscopeError``."""

    def perfetto(self, run: RunSummary, window: Window) -> Path:
        """It as a file for Perfetto; does not wait for it. Raises ``RankscopeError``."""

    def steps(self, run_id: str) -> StepMatrices:
        """Per-step values. Raises ``RankscopeError``."""

    def trend(self, run_id: str) -> Trend:
        """All ranks together, step by step. Raises ``RankscopeError``."""

    def topology(self, run_id: str) -> Topology:
        """Where the ranks are. Raises ``RankscopeError``."""

    def hardware(self, run_id: str) -> Hardware:
        """GPUs of the run's hosts and their samples; empty, with the reason, where there are none. Raises ``RankscopeError``."""

    def events(self, run_id: str) -> Events:
        """What happened to these GPUs. Raises ``RankscopeError``."""

    def alerts(self, run_id: str) -> AlertsFound:
        """Alerts from when the run began until an hour after its last record. Raises ``UnknownRunError``."""

    def all_alerts(self) -> AlertsFound:
        """Alerts of all runs, and what else a Prometheus tells of. Raises ``RankscopeError`` when the place itself cannot be
        read.
        """
