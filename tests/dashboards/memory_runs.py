"""A source of runs in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tests.dashboards.recorded_run import START_NS

from rankscope.analysis.evidence.step_table.steps import METRICS, StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.whatif.step_scenarios import Combinations
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.alerts.record import CollectedAlerts
from rankscope.dashboards.compare.data import ComparedRuns
from rankscope.dashboards.data.brief import Brief, StoredBrief, brief_of
from rankscope.dashboards.data.events import HardwareEvents
from rankscope.dashboards.data.hardware import Hardware, no_hardware
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.script import Script
from rankscope.dashboards.data.source import RunSummary, Stale, StepMatrices, StepPart, UnknownRunError
from rankscope.dashboards.data.topology import RankPlace, Topology
from rankscope.dashboards.data.trend import Trend, trend_of
from rankscope.dashboards.delays.data import Delays
from rankscope.dashboards.timeline.data import WindowData
from rankscope.dashboards.timeline.windows import Window, Windows
from rankscope.dashboards.whatif.data import WhatIfAnswer
from rankscope.runs.records import KernelRecord, StepRecord

T = TypeVar("T")


class Matrices:
    """A step table in memory, with the interface that the pages use."""

    def __init__(self, table: StepTable) -> None:
        self._table = table
        self.ranks, self.steps = table.ranks, table.steps
        self.profiled = table.steps[table.profiled.any(axis=0)]
        self.metrics = [metric for metric in METRICS if np.isfinite(table.matrix(metric)).any()]

    def part(self, metric: str, first: int = 0, last: int | None = None, *, most_columns: int = 4096) -> StepPart:
        """Return every step of the range, without a limit of columns."""
        del most_columns
        shape = (len(self.ranks), len(self.steps))
        matrix = self._table.matrix(metric) if metric in METRICS else np.full(shape, np.nan)
        return StepPart(matrix[:, first:last].astype(np.float32), first, 1)


class MemoryRuns:
    """``RunSource`` over the runs that the test put in; ``problems`` are raised instead of an answer."""

    def __init__(self) -> None:
        self.summaries: dict[str, RunSummary] = {}
        self.analyses: dict[str, Analysis] = {}
        self.tables: dict[str, Matrices] = {}
        self.delays_of_run: dict[str, Delays] = {}
        self.whatifs: dict[str, WhatIfAnswer] = {}
        self.topologies: dict[str, Topology] = {}
        self.scripts: dict[str, Script] = {}
        self.samples: dict[str, Hardware] = {}
        self.happened: dict[str, HardwareEvents] = {}
        self.versions: dict[str, str] = {}
        """Version of a run's analysis by run id, where it differs from the revision of the files."""
        self.stales: dict[str, Stale] = {}
        self.problems: dict[str, Exception] = {}
        self.collected: dict[str, CollectedAlerts] = {}
        self.analysed = 0
        self.cached: set[str] = set()
        """Ids of runs that have been analysed before."""
        self.stored: dict[str, StoredBrief] = {}
        """Verdicts in the run directories."""
        self.comparison: ComparedRuns | None = None
        self.cancelled: list[str] = []
        self.requested: list[str] = []
        """Runs whose analysis was started in the background."""

    def put(self, analysis: Analysis, table: StepTable | Matrices, **summary: Any) -> None:
        """Add or replace the run ``run_id`` (default ``run-1``)."""
        run = replace(
            RunSummary(
                run_id="run-1", name="bert-base", path="runs/bert", revision="a", status="finished", world_size=4, ranks=4,
                hosts=2, attempts=1, start_unix_ns=START_NS,
            ),
            **summary,
        )  # fmt: skip
        self.summaries[run.run_id] = run
        self.analyses[run.run_id] = analysis
        self.tables[run.run_id] = table if isinstance(table, Matrices) else Matrices(table)
        nothing_told = Delays(matrix_source=None, matrix_steps=0, groups=[], groups_left_out=0, ranks=[], timeline=None)
        self.delays_of_run.setdefault(run.run_id, nothing_told)

    def runs(self) -> list[RunSummary]:
        return list(self.summaries.values())

    def summary(self, run_id: str) -> RunSummary:
        if run_id not in self.summaries:
            raise UnknownRunError(run_id)
        return self.summaries[run_id]

    def cancel(self, job: str) -> bool:
        self.cancelled.append(job)
        return True

    def part(self, run_id: str, name: str) -> Any:
        return getattr(self, name)(run_id)

    def version(self, run_id: str) -> str:
        if run_id in self.problems:
            raise self.problems[run_id]
        return self.versions.get(run_id, self.summary(run_id).revision)

    def stale(self, run_id: str) -> Stale | None:
        return self.stales.get(run_id)

    def analysis(self, run_id: str) -> Analysis:
        self.analysed += 1
        if run_id in self.problems:
            raise self.problems[run_id]
        return self.analyses[run_id]

    def brief(self, run_id: str) -> Brief:
        return brief_of(self.analysis(run_id))

    def analyse(self, run_ids: Iterable[str]) -> None:
        self.requested += run_ids

    @property
    def backlog(self) -> Progress:
        return Progress("analysing runs", 0, len(self.requested))

    def alerts(self, run_id: str) -> CollectedAlerts:
        return self.collected.get(run_id, CollectedAlerts([], []))

    def all_alerts(self) -> CollectedAlerts:
        if "alerts" in self.problems:
            raise self.problems["alerts"]
        result = list(self.collected.values())
        return CollectedAlerts(
            [alert for item in result for alert in item.alerts], [problem for item in result for problem in item.problems]
        )

    def known_brief(self, run: RunSummary) -> Brief | None:
        return brief_of(self.analyses[run.run_id]) if run.run_id in self.cached else None

    def stored_brief(self, run: RunSummary) -> StoredBrief | None:
        return self.stored.get(run.run_id)

    def compared(self, run_ids: Sequence[str], at: int | None = None) -> ComparedRuns:
        for run_id in run_ids:
            self.summary(run_id)
        del at
        if "compare" in self.problems:
            raise self.problems["compare"]
        assert self.comparison is not None
        return self.comparison

    def delays(self, run_id: str) -> Delays:
        return self._or_problem(self.delays_of_run, run_id)

    def whatif(self, run_id: str) -> WhatIfAnswer:
        return self._or_problem(self.whatifs, run_id)

    def combinations(self, run_id: str) -> Combinations | None:
        raise RankscopeError(f"the test has not put combinations of {run_id} in")

    def _or_problem(self, of: Mapping[str, T], run_id: str) -> T:
        if run_id in self.problems:
            raise self.problems[run_id]
        if run_id not in of:
            raise RankscopeError("the test has not put this in")
        return of[run_id]

    def windows(self, run: RunSummary) -> Windows:
        del run
        return Windows(recorded=0)

    def window(self, run: RunSummary, window: Window) -> WindowData:
        raise UnknownRunError(f"{run.run_id}: {window}")

    def window_kernels(self, run: RunSummary, window: Window, rank: int) -> list[KernelRecord]:
        del run, window, rank
        return []

    def window_steps(self, run: RunSummary, window: Window, rank: int) -> list[StepRecord]:
        raise UnknownRunError(f"{run.run_id}: {window} of {rank}")

    def perfetto(self, run: RunSummary, window: Window) -> Path:
        raise UnknownRunError(f"{run.run_id}: {window}")

    def steps(self, run_id: str) -> StepMatrices:
        if run_id in self.problems:
            raise self.problems[run_id]
        return self.tables[run_id]

    def trend(self, run_id: str) -> Trend:
        if run_id in self.problems:
            raise self.problems[run_id]
        return trend_of(self.tables[run_id], self.tables[run_id].profiled)

    def script(self, run_id: str) -> Script:
        return self.scripts.get(run_id, Script())

    def topology(self, run_id: str) -> Topology:
        return self.topologies.get(run_id, Topology([RankPlace(int(rank)) for rank in self.tables[run_id].ranks]))

    def hardware(self, run_id: str) -> Hardware:
        return self.samples.get(run_id, no_hardware("there are no hardware samples"))

    def events(self, run_id: str) -> HardwareEvents:
        return self.happened.get(run_id, HardwareEvents(why_none="there are no hardware samples"))
