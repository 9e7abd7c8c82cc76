"""Incremental analysis of a run in progress: the cost of an update depends on the new data, not on the length of the run.

The verdict, the findings and the ranks' typical times cover the last ``recent_steps`` steps. Results from windows cover the last
``recent_windows`` profiled steps. These limits show the current state of the run and bound memory. The numbers of steps and
records, the coverage, the recorder's cost and the counts of damaged data cover the whole run. For runs within these limits the
result equals that of ``analyze``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.matched import MatchedCollectives, match_windows
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.collectives.world import least_ranks
from rankscope.analysis.evidence.compared import own_times_of_groups
from rankscope.analysis.evidence.peers import peer_groups
from rankscope.analysis.evidence.step_table.rank_columns import RankColumns
from rankscope.analysis.evidence.step_table.recent import EarlierTotals
from rankscope.analysis.evidence.step_table.simultaneous import find_step_numbers
from rankscope.analysis.evidence.step_table.step_numbers import ALL_ALIKE, StepNumbers
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.evidence.step_table.table_builder import StepRanges, StepTableBuilder
from rankscope.analysis.followed_rank import FollowedRank
from rankscope.analysis.inference.judging.job_judgement import judge
from rankscope.analysis.inference.judging.moving_wait import moving_waits
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.run_analysis import analysis_of, evidence_of, read_evidence, world_size_of
from rankscope.analysis.trace.possible import is_possible_breakdown, is_possible_collective
from rankscope.analysis.verdict.run_verdict import pipeline_bound
from rankscope.base.errors import InputError
from rankscope.runs.follow import Segments, StartOverError
from rankscope.runs.reader import RunReader
from rankscope.runs.step_segments import BLOCK_ROWS, Rows, joined_rows

RECENT_STEPS: Final = 500
"""Steps that are kept: some minutes of most runs, judged within a second for a thousand ranks."""

RECENT_CALLS: Final = 30_000
"""Operations of all ranks whose durations are kept, where they are judged: comparing them takes a second."""

RECENT_WINDOWS: Final = 24
"""Profiled steps that are kept: more than a capture needs for a clear verdict."""


class RowReceiver(Protocol):
    """Receiver of every step record that is read, including those that the analysis drops later."""

    def begin(self, attempt: int) -> None:
        """Start an attempt: the records that follow are those of this attempt, from its first one on."""

    def has_ranks(self, ranks: Sequence[int]) -> None:
        """Announce ranks that have a folder, before their first records."""

    def needs(self, rank: int) -> bool:
        """Return whether ``add`` must be called for records of a rank."""

    def add(self, rank: int, columns: RankColumns) -> None:
        """Add records of a rank; a new record of a step replaces the previous one."""


@dataclass(frozen=True, slots=True)
class NewSteps:
    """Judgement of the steps from a given one on, without the steps before it."""

    steps: int
    """Number of these steps that are kept."""
    slow: list[SlowRanks]
    """Slow ranks of each group of ranks that has any."""


class OnlineAnalysis:
    """Incremental analysis of the last attempt of a run. ``rows`` receives its step records as they are read."""

    def __init__(
        self,
        path: Path,
        *,
        recent_steps: int = RECENT_STEPS,
        recent_windows: int = RECENT_WINDOWS,
        clock: Callable[[], float] = time.time,
        rows: RowReceiver | None = None,
    ) -> None:
        self._path = path
        self._rows = rows
        self._recent_steps = recent_steps
        self._recent_windows = recent_windows
        self._clock = clock
        self._followed: _Attempt | None = None
        self._evidence: RunEvidence | None = None
        """Evidence of the last update."""

    def update(self) -> Analysis:
        """Read new data and return the analysis. Raises ``InputError``."""
        return analysis_of(self.read())

    def read(self) -> RunEvidence:
        """Read new data and return the evidence. Raises ``InputError``.

        The evidence shares memory with this object and is valid only until the next call.
        """
        self._evidence = None
        reader = RunReader(self._path)
        attempts = reader.attempts()
        if not attempts:
            self._followed = None
            return read_evidence(self._path)
        try:
            return self._read(reader, attempts[-1])
        except StartOverError:
            self._followed = None
            return self._read(RunReader(self._path), attempts[-1])
        except OSError as error:
            self._followed = None  # a part of the new data may have been added
            raise InputError(error.filename or self._path, error.strerror or str(error)) from error

    def _read(self, reader: RunReader, attempt: int) -> RunEvidence:
        ranks = reader.ranks(attempt)
        followed = self._followed
        if followed is None or followed.attempt != attempt or not set(followed.ranks) <= set(ranks):
            followed = self._followed = _Attempt(reader.path, attempt, self._recent_steps, self._recent_windows, self._rows)
            if self._rows is not None:
                self._rows.begin(attempt)
        followed.read(reader, ranks)
        self._evidence = followed.evidence(reader, now=self._clock())
        return self._evidence

    def judge_since(self, step: int, *, at_least: int) -> NewSteps | None:
        """Judge the steps from ``step`` on, as read by the last update; ``None`` for fewer than ``at_least`` of them."""
        run = self._evidence
        if run is None:
            return None
        table = run.typical.table
        keep = table.steps >= step
        count = int(keep.sum())
        if count < at_least:
            return None
        compared = own_times_of_groups(table.columns(keep), peer_groups(table.numbers.comparable(run.ranks), run.infos))
        judgement = judge(compared, hosts=run.hosts, at_most_us=pipeline_bound(run))
        slow = [straggler.slow for straggler in judgement.stragglers]
        moving = [] if slow or run.pipeline is not None else [(group, moving_waits(group)) for group in compared]
        slow += [waits.as_slow(group) for group, waits in moving if waits.stands_out]
        return NewSteps(count, slow)


class _Attempt:
    """State of the followed attempt."""

    def __init__(self, path: Path, attempt: int, recent_steps: int, recent_windows: int, rows: RowReceiver | None) -> None:
        self.attempt = attempt
        self._rows = rows
        self.ranks: dict[int, FollowedRank] = {}
        self._path = path
        self._recent_steps = recent_steps
        self._recent_windows = recent_windows
        self._builder = StepTableBuilder()
        self._first = 0
        """First step that is kept. The fields below count the steps before it."""
        self._passed = StepRanges()
        self._records: dict[int, int] = {}
        self._wall_us: dict[int, float] = {}
        self._damaged: Counter[int] = Counter()
        self._matched_cache: tuple[object, MatchedCollectives] | None = None
        self._numbers: StepNumbers = ALL_ALIKE
        self._has_own_times = False
        """True if step records could be judged at the last update: durations of collectives are not read then."""

    def read(self, reader: RunReader, ranks: list[int]) -> None:
        """Read and add new data. Raises ``StartOverError``."""
        for rank in ranks:
            if rank not in self.ranks:
                self.ranks[rank] = FollowedRank(self._path, self.attempt, rank)
        self._builder.add_ranks(ranks)
        if self._rows is not None:
            self._rows.has_ranks(ranks)
        segments = {rank: self.ranks[rank].segments(reader) for rank in ranks}
        waiting: dict[int, Rows] = {}
        count = 0
        for rank in ranks:
            blocks = [rows for rows in self.ranks[rank].steps.new(reader, segments[rank]) if len(rows)]
            self.ranks[rank].read_tags(reader, segments[rank])
            if len(blocks) > 1:
                self._take(rank, RankColumns.of(blocks))
            elif blocks:
                waiting[rank] = blocks[0]
                count += len(blocks[0])
            if count >= BLOCK_ROWS:
                self._take_rows(waiting)
                count = 0
        self._take_rows(waiting)
        self._forget_steps()
        for rank in () if self._has_own_times else ranks:
            self.ranks[rank].read_durations(reader, segments[rank], RECENT_CALLS // len(ranks))
        news = [rank for rank in ranks if self._read_windows(reader, rank, segments[rank])]
        if news:
            self._forget_windows()
            self._matched_cache = None

    def _take_rows(self, rows: dict[int, Rows]) -> None:
        """Add the rows of several ranks together and clear ``rows``: few long columns cost less than many short ones."""
        if not rows:
            return
        joined = joined_rows(list(rows.values()))
        counts = [len(row) for row in rows.values()]
        if not self._take_alike(list(rows), joined, counts[0] if len(set(counts)) == 1 else 0):
            for rank, columns in zip(rows, RankColumns.of_each(joined, counts), strict=True):
                self._take(rank, columns)
        rows.clear()

    def _take_alike(self, ranks: list[int], joined: Rows, count: int) -> bool:
        """Add ``count`` rows of each rank at once if all ranks have the same new steps. Return whether they were added."""
        if not 0 < count <= self._recent_steps:
            return False
        steps = joined["step"].reshape(len(ranks), count)
        if (steps != steps[0]).any() or (np.diff(steps[0]) <= 0).any() or steps[0, 0] < self._first:
            return False
        columns = RankColumns.of([joined])
        if columns.damaged:
            return False
        tags: dict[str, list[NDArray[np.intp]]] = {}
        times: dict[str, NDArray[np.float32]] = {}
        for number, rank in enumerate(ranks):
            entries_of_rank, times_of_rank = self.ranks[rank].take_tags(steps[0])
            for tag, entries in entries_of_rank.items():
                tags.setdefault(tag, []).append(entries + number * count)
            for metric, column in times_of_rank.items():
                times.setdefault(metric, np.full(len(joined), np.nan, np.float32))[number * count :][:count] = column
        columns = replace(
            columns, tags={tag: np.concatenate(entries) for tag, entries in tags.items()}, values=columns.values | times
        )
        if self._rows is not None:
            for first, rank in zip(range(0, len(joined), count), ranks, strict=True):
                if self._rows.needs(rank):
                    self._rows.add(rank, columns.part(first, first + count))
        self._builder.add_alike(ranks, columns, count)
        return True

    def _take(self, rank: int, columns: RankColumns) -> None:
        columns = self.ranks[rank].tagged(columns)
        if self._rows is not None and self._rows.needs(rank):
            self._rows.add(rank, columns)
        if len(columns.step) > self._recent_steps and len(steps := np.unique(columns.step)) > self._recent_steps:
            self._first = max(self._first, int(steps[-self._recent_steps]))
        late = columns.step < self._first
        if late.any():
            self._passed.add(columns.step[late])
            walls = columns.values["wall_us"][late]
            self._count(rank, int(np.isfinite(walls).sum()), float(np.nansum(walls, dtype=np.float64)))
            columns = columns.where(~late)
        self._builder.add(rank, columns)

    def _count(self, rank: int, records: int, wall_us: float) -> None:
        """Count records that are no longer kept, and their wall time."""
        self._records[rank] = self._records.get(rank, 0) + records
        self._wall_us[rank] = self._wall_us.get(rank, 0.0) + wall_us

    def _forget_steps(self) -> None:
        steps = self._builder.steps
        over = max(len(steps) - self._recent_steps, int(np.searchsorted(steps, self._first)))
        if over:
            self._passed.add(steps[:over])
            walls = self._builder.metrics["wall_us"][:, :over]
            are_known = np.isfinite(walls)
            records: list[int] = are_known.sum(axis=1).tolist()
            sums_us: list[float] = np.where(are_known, walls, 0).sum(axis=1, dtype=np.float64).tolist()
            for rank, count, wall_us in zip(self._builder.ranks, records, sums_us, strict=True):
                self._count(rank, count, wall_us)
            self._builder.drop_before(over)
            self._first = int(self._builder.steps[0])

    def _read_windows(self, reader: RunReader, rank: int, segments: Segments) -> bool:
        """Read new windows of a rank. Return whether there were any."""
        rank_state = self.ranks[rank]
        breakdowns = [row for rows in rank_state.windows.new(reader, segments) for row in rows]
        collectives = [row for rows in rank_state.collectives.new(reader, segments) for row in rows]
        if not breakdowns and not collectives:
            return False
        possible = Reduction(list(filter(is_possible_breakdown, breakdowns)), list(filter(is_possible_collective, collectives)))
        self._damaged[rank] += len(breakdowns) - len(possible.breakdowns) + len(collectives) - len(possible.collectives)
        rank_state.reduction.breakdowns.extend(possible.breakdowns)
        rank_state.reduction.collectives.extend(possible.collectives)
        rank_state.least_ranks = max(rank_state.least_ranks, least_ranks(rank, possible.collectives))
        return True

    def _forget_windows(self) -> None:
        everything = [rank_state.reduction for rank_state in self.ranks.values()]
        steps = sorted(
            {row.step for reduction in everything for row in reduction.breakdowns}
            | {row.step for reduction in everything for row in reduction.collectives}
        )
        first = steps[-self._recent_windows :][0] if steps else 0
        for reduction in everything:
            reduction.breakdowns[:] = [row for row in reduction.breakdowns if row.step >= first]
            reduction.collectives[:] = [row for row in reduction.collectives if row.step >= first]

    def evidence(self, reader: RunReader, *, now: float) -> RunEvidence:
        """Return the current evidence; it shares memory with this object and is valid only until the next update."""
        table = StepTable.from_builder(self.attempt, self._builder)
        infos = {rank: info for rank in self._builder.ranks if (info := self.ranks[rank].info(reader)) is not None}
        least = max((self.ranks[rank].least_ranks for rank in self._builder.ranks), default=0)
        world_size = world_size_of(reader, table, infos, least)
        numbers = find_step_numbers(table, infos)
        table = table.renumbered(numbers)
        windows = {
            rank: Reduction(numbers.breakdowns(rank, rows.breakdowns), numbers.collectives(rank, rows.collectives))
            for rank, rows in ((rank, self.ranks[rank].reduction) for rank in self._builder.ranks)
        }
        if numbers is not ALL_ALIKE or self._numbers is not ALL_ALIKE:
            self._matched_cache, self._numbers = None, numbers
        by = (world_size, {rank: info.clock_name for rank, info in infos.items()}, list(windows))
        if self._matched_cache is None or self._matched_cache[0] != by:
            self._matched_cache = (by, match_windows(windows, infos, world_size))
        for rank_state in self.ranks.values():
            reader.take_over(rank_state.skipped)
        evidence = evidence_of(
            reader,
            table,
            infos,
            windows,
            self._matched_cache[1],
            world_size=world_size,
            damaged=self._damaged + Counter(table.damaged),
            now=now,
            earlier=EarlierTotals(self._passed.count, self._records, self._wall_us),
            durations=lambda: {rank: list(rank_state.recent) for rank, rank_state in self.ranks.items() if rank_state.recent},
        )
        self._has_own_times = bool(evidence.compared)
        return evidence
