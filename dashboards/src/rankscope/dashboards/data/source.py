"""Interface through which the pages get data of runs, independent of its implementation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from rankscope.analysis.whatif.step_scenarios import Combinations
    from rankscope.dashboards.alerts.record import CollectedAlerts
    from rankscope.dashboards.compare.data import ComparedRuns
    from rankscope.dashboards.data.brief import Brief, StoredBrief
    from rankscope.dashboards.timeline.data import WindowData
    from rankscope.dashboards.timeline.windows import Window, Windows
    from rankscope.dashboards.whatif.data import WhatIfAnswer
    from rankscope.runs.records import KernelRecord, StepRecord

Status = Literal["starting", "live", "silent", "finished", "failed", "unreadable"]
"""``starting``: no rank has started; ``silent``: ranks have not ended, but nothing was written for a while; ``finished``: all
ranks have ended; ``failed``: all ranks have ended, and some of them crashed or were killed."""

BEING_WRITTEN: Final[frozenset[Status]] = frozenset({"starting", "live"})
"""Statuses of runs that are being written."""
GOING_ON: Final = BEING_WRITTEN | {"silent"}
"""Statuses of runs that may have running ranks."""
MAY_CHANGE: Final = GOING_ON | {"failed"}
"""Statuses of runs that may still change. A failed elastic job may start its next attempt."""


class UnknownRunError(RankscopeError):
    """The source has no run with that id."""


class NotReadyError(RankscopeError):
    """The requested data are being computed; the caller should retry. ``job``: what ``RunSource.cancel`` can end."""

    def __init__(self, progress: Progress, job: str | None = None) -> None:
        self.progress = progress
        self.job = job
        super().__init__(progress.sentence)


@dataclass(frozen=True, slots=True)
class Stale:
    """Age of data that cannot be updated at present, and the reason."""

    as_of_unix_ns: int
    """Time at which the shown data were computed."""
    why: str
    """Reason why no newer data could be computed, or what is being computed; one line."""
    is_pending: bool = False
    """True if newer data are being computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """State of a run that is known without an analysis."""

    run_id: str
    """Unique within its source; for an unreadable run its folder's name, or its path if that name is the id of another run."""
    name: str
    path: str
    revision: str
    """Revision that changes with any change in the run."""
    status: Status
    start_unix_ns: int | None = None
    last_write_unix_ns: int | None = None
    size_bytes: int = 0
    """Size of its files, without raw traces."""
    world_size: int | None = None
    ranks: int = 0
    """Number of ranks that left a folder in the last attempt."""
    hosts: int = 0
    attempts: int = 0
    simulated: bool = False
    losses: str | None = None
    """Ranks of the last attempt that crashed or were killed, as text; ``None``: there are none."""
    unrecorded: str | None = None
    """Ranks whose recorder switched itself off, as text; how they ended is not known."""
    trackers: tuple[tuple[str, str], ...] = ()
    """Names and web addresses of the run at experiment trackers."""
    problem: str | None = None
    """Reason why the run cannot be read, one line; ``None``: it can."""

    @property
    def may_be_well(self) -> bool:
        """True if the run is not silent and has lost no rank; otherwise a good verdict does not mean that the run is well."""
        return self.losses is None and self.status != "silent"


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a metric's matrix."""

    values: NDArray[np.float32]
    """[ranks, columns], NaN where not known."""
    first: int
    """Column of the whole matrix at which the part begins."""
    steps_per_column: int
    """Number of steps per column; if more than 1, each value is the worst of them (``metrics``)."""


class StepMatrices(Protocol):
    """Per-step values of a run: metrics of ``rankscope.dashboards.data.metrics.METRICS`` in their units."""

    @property
    def ranks(self) -> Sequence[int] | NDArray[np.int64]:
        """Rank numbers of the rows, ascending."""

    @property
    def steps(self) -> Sequence[int] | NDArray[np.int64]:
        """Step numbers of the columns, ascending."""

    @property
    def metrics(self) -> Collection[str]:
        """Metrics that have any value."""

    def part(self, metric: str, first: int = 0, last: int | None = None, *, most_columns: int = 4096) -> StepPart:
        """Return columns ``first`` to ``last`` (exclusive): one per step if they are at most ``most_columns``, else coarser ones
        that overlap them. Raises ``RankscopeError``.
        """


class RunSource(Protocol):
    """Runs to show. Every method may be called from several threads at once.

    They raise ``RankscopeError``, and ``NotReadyError`` while the data are being computed: none waits for another process or a
    network.
    """

    def runs(self) -> list[RunSummary]:
        """Return all runs: the live ones, then the others, newest first."""

    def summary(self, run_id: str) -> RunSummary:
        """Return one run as it is now. Raises ``UnknownRunError``."""

    def cancel(self, job: str) -> bool:
        """Stop the waiting of the current viewer (``VIEWER``) for what a ``NotReadyError`` names.

        Return whether its computation ends; another viewer may still wait for it.
        """

    def version(self, run_id: str) -> str:
        """Return a version that changes whenever a part changes; for a live run that is some time after its files changed."""

    def stale(self, run_id: str) -> Stale | None:
        """Return age and reason if the data of a run are older than they should be."""

    def part(self, run_id: str, name: str) -> Any:
        """Return a part of the derived data of a run, by its name in ``RunData``, which has its type."""

    def brief(self, run_id: str) -> Brief:
        """Return the summary of a run for lists."""

    def analyse(self, run_ids: Iterable[str]) -> None:
        """Start the analyses of runs in the background, a few at a time; returns at once."""

    @property
    def backlog(self) -> Progress:
        """Number of analyses by ``analyse`` that have ended, of all that were requested."""

    def known_brief(self, run: RunSummary) -> Brief | None:
        """Return the summary of a run if it has been computed; starts nothing."""

    def stored_brief(self, run: RunSummary) -> StoredBrief | None:
        """Return the summary by the verdict in the run directory of a run that has ended; ``None`` if there is none."""

    def compared(self, run_ids: Sequence[str], at: int | None = None) -> ComparedRuns:
        """Return the comparison of runs with the first of them, or of one run's steps from ``at`` on with those before.

        Live runs are compared as of some minutes ago.
        """

    def whatif(self, run_id: str) -> WhatIfAnswer:
        """Return the what-if answer; for a live run as of some minutes ago."""

    def combinations(self, run_id: str) -> Combinations | None:
        """Return the combinations of parts in the what-if, ``None`` if the run allows none; for a live run as ``whatif``."""

    def windows(self, run: RunSummary) -> Windows:
        """Return the captured windows of a run as of its summary."""

    def window(self, run: RunSummary, window: Window) -> WindowData:
        """Return the data of one captured window."""

    def window_steps(self, run: RunSummary, window: Window, rank: int) -> list[StepRecord]:
        """Return the step records of a rank in a window."""

    def window_kernels(self, run: RunSummary, window: Window, rank: int) -> list[KernelRecord]:
        """Return the costliest kernels of a rank in a window."""

    def perfetto(self, run: RunSummary, window: Window) -> Path:
        """Return the file of a window for Perfetto."""

    def alerts(self, run_id: str) -> CollectedAlerts:
        """Return alerts from the start of the run until an hour after its last record. Raises ``UnknownRunError``."""

    def all_alerts(self) -> CollectedAlerts:
        """Return alerts of all runs, and other alerts of a Prometheus."""
