"""Incremental analysis of a growing run gives the same result as reading it at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.analysis.breakdowns import breakdown
from tests.analysis.conftest import plan_for
from tests.step_files import CountedReads, add_damaged, append, keep_rows, load, save, steps_file

from rankscope.analysis.online import OnlineAnalysis
from rankscope.analysis.run_analysis import analyze_run
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import AttemptInfo, CollectiveRecord, RankInfo, StepBreakdown, StepEvent
from rankscope.runs.small_files import create_attempt, write_record

RANKS, STEPS = 3, 40


def slow_rank(rank: int, step: int) -> dict[str, Any] | None:
    return {"us": 30_000.0, "phase": "forward"} if rank == 1 and step < 30 else None


@pytest.fixture
def whole(synthetic: Callable[..., Any], add_windows: Callable[..., None]) -> Path:
    """A run that is over: steps, and a window of three steps."""
    run: Path = synthetic(ranks=RANKS, steps=STEPS, plan=slow_rank).write()
    for rank in range(RANKS):
        breakdowns, collectives = zip(*(window(rank, step) for step in (5, 6, 20)), strict=True)
        add_windows(run, rank, list(breakdowns), list(collectives))
    return run


def window(rank: int, step: int) -> tuple[StepBreakdown, CollectiveRecord]:
    start = 10**18 + step * 10**8
    row = breakdown(step, compute=8e4, exposed=1e4, idle=1e4, communication_us=2e4, overlap_us=1e4, start_unix_ns=start)
    begin = start + rank * 10**6
    return row, CollectiveRecord(
        step=step,
        group="default_pg",
        group_size=RANKS,
        index=0,
        sequence=step,
        op="all_reduce",
        bytes=4,
        enqueue_unix_ns=begin,
        start_unix_ns=begin,
        end_unix_ns=start + 10**7,
        stream=7,
    )


class Growing:
    """Copy of a run whose files grow bit by bit, cut in the middle of rows and lines, as their writers leave them."""

    def __init__(self, whole: Path, copy: Path) -> None:
        self.path = copy
        self._left: dict[Path, bytes] = {}
        for file in whole.rglob("*"):
            if file.is_file():
                target = copy / file.relative_to(whole)
                target.parent.mkdir(parents=True, exist_ok=True)
                if file.suffix in {".jsonl", ".npy"}:
                    self._left[target] = file.read_bytes()
                else:
                    target.write_bytes(file.read_bytes())

    def grow(self, share: float, *, only: int | None = None) -> None:
        """Append this share of the rest of every file, or of the files of rank ``only``; a cut may be inside a line."""
        for file, remaining in self._left.items():
            if only is None or file.parent.name == f"{only:05d}":
                cut = round(share * len(remaining))
                with file.open("ab") as out:
                    out.write(remaining[:cut])
                self._left[file] = remaining[cut:]


@pytest.fixture
def copies(tmp_path: Path, whole: Path) -> Callable[[], Growing]:
    made: list[Growing] = []

    def make() -> Growing:
        made.append(Growing(whole, tmp_path / f"copy-{len(made)}"))
        return made[-1]

    return make


cuts = st.lists(st.tuples(st.floats(0, 1), st.none() | st.integers(0, RANKS - 1)), max_size=3)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=cuts)
def test_incremental_reads_give_the_result_of_one_read(
    copies: Callable[[], Growing], cuts: list[tuple[float, int | None]]
) -> None:
    # Given a run that grows, its ranks at different paces, with lines half written when it is read
    run = copies()
    online = OnlineAnalysis(run.path)
    for share, only in cuts:
        run.grow(share, only=only)
        # Then every intermediate result equals the one from reading all data at once
        assert online.update() == analyze_run(run.path)
    run.grow(1.0)
    assert online.update() == analyze_run(run.path)
    assert online.update().verdict.rank == 1


@pytest.mark.parametrize("dropped", [{}, {1: {3}}], ids=["ranks with the same steps", "other steps on a rank"])
def test_measured_activity_times_count_as_in_one_read(synthetic: Callable[..., Any], dropped: dict[int, set[int]]) -> None:
    # Given a rank that sleeps in the steps in which it also writes a checkpoint, which took 0.1 ms
    run = synthetic(
        steps=STEPS,
        device_kind="cpu",
        plan=plan_for(0, phase="between_steps", us=60_000, tags=["checkpoint"]),
        fields=lambda rank, _step: {"sections_us": {"checkpoint": 100.0}} if rank == 0 else {},
        dropped=dropped,
    ).write()
    analysis = OnlineAnalysis(run).update()
    assert (analysis.verdict.rank, analysis.verdict.cause) == (0, "host")
    assert analysis == analyze_run(run)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=cuts)
def test_increments_do_not_matter_for_a_long_run(copies: Callable[[], Growing], cuts: list[tuple[float, int | None]]) -> None:
    # Given one run that is followed from its beginning, and one that is read once complete
    run, late = copies(), copies()
    followed, once = (OnlineAnalysis(rank.path, recent_steps=12, recent_windows=2) for rank in (run, late))
    for share, only in cuts:
        run.grow(share, only=only)
        followed.update()
    run.grow(1.0)
    late.grow(1.0)
    ours, theirs = followed.update(), once.update()
    # Then both agree: the verdict of the last steps, the numbers of the whole run
    assert msgspec.structs.replace(ours.source, path="") == msgspec.structs.replace(theirs.source, path="")
    assert (ours.ranks, ours.verdict.kind, ours.collectives) == (theirs.ranks, theirs.verdict.kind, theirs.collectives)
    assert ours.verdict.rank is None  # it was slow earlier
    assert ours.verdict.steps == (STEPS - 12, STEPS)
    assert (ours.source.steps, ours.source.coverage) == (STEPS, 1.0)
    assert [rank.steps for rank in ours.ranks] == [STEPS] * RANKS
    assert "judged by the last 12 of 40 steps" in ours.source.warnings
    assert ours.collectives.matched == 2


def test_update_reads_only_new_data(copies: Callable[[], Growing], monkeypatch: pytest.MonkeyPatch) -> None:
    reads = CountedReads(monkeypatch)
    run = copies()
    online = OnlineAnalysis(run.path)
    run.grow(0.9)
    online.update()
    size = sum(file.stat().st_size for file in run.path.rglob("*-*.*"))
    assert reads.bytes > size / 2
    reads.bytes = 0
    online.update()
    # The only new bytes are the end of a record that was half written.
    assert (torn := reads.bytes) < 600 * 3 * RANKS
    run.grow(1.0)
    reads.bytes = 0
    online.update()
    grown = sum(file.stat().st_size for file in run.path.rglob("*-*.*")) - size
    assert grown - 600 * 3 * RANKS < reads.bytes <= grown + torn + 600 * 3 * RANKS


def test_rank_that_appears_late_is_included(copies: Callable[[], Growing], tmp_path: Path) -> None:
    run = copies()
    folder = rank_dir(run.path, 0, 2)
    folder.rename(tmp_path / "elsewhere")
    online = OnlineAnalysis(run.path)
    assert len(online.update().ranks) == RANKS - 1
    (tmp_path / "elsewhere").rename(folder)
    run.grow(1.0)
    assert online.update() == analyze_run(run.path)


def test_new_attempt_resets_the_analysis(copies: Callable[[], Growing]) -> None:
    run = copies()
    run.grow(1.0)
    online = OnlineAnalysis(run.path)
    assert online.update().source.steps == STEPS
    create_attempt(run.path, AttemptInfo(attempt=1, start_unix_ns=10**18, world_size=1))
    info = RankInfo(rank=0, world_size=1, host="n", pid=1, start_unix_ns=10**18)
    write_record(rank_dir(run.path, 1, 0) / "rank.json", info)
    assert online.update() == analyze_run(run.path)
    assert online.update().source.steps == 0


def test_damaged_records_are_counted_once_over_repeated_updates(copies: Callable[[], Growing]) -> None:
    run = copies()
    run.grow(1.0)
    online = OnlineAnalysis(run.path)
    online.update()
    add_damaged(steps_file(run.path, 1), 2)
    for _ in range(2):
        analysis = online.update()
        assert analysis == analyze_run(run.path)
        assert any(warning.startswith("2 damaged lines skipped") for warning in analysis.source.warnings)
    assert analysis.ranks[1].steps == STEPS


def test_tags_that_precede_their_steps_are_kept(copies: Callable[[], Growing]) -> None:
    # Given a rank whose events arrive before the rows of their steps
    run = copies()
    run.grow(0.5)
    append(rank_dir(run.path, 0, 1), "events", StepEvent(step=STEPS - 1, end_unix_ns=1, tags=["checkpoint"]))
    online = OnlineAnalysis(run.path)
    online.update()
    run.grow(1.0)
    table = online.read().table
    assert [table.steps[at] for at in np.flatnonzero(table.tagged("checkpoint")[1])] == [STEPS - 1]
    assert online.update() == analyze_run(run.path)


def test_segment_that_shrank_is_read_again(copies: Callable[[], Growing]) -> None:
    run = copies()
    run.grow(1.0)
    online = OnlineAnalysis(run.path)
    online.update()
    keep_rows(steps_file(run.path, 0), STEPS - 5)
    assert online.update() == analyze_run(run.path)
    assert online.update().ranks[0].steps == STEPS - 5


def test_files_removed_by_retention_are_no_error(copies: Callable[[], Growing]) -> None:
    run = copies()
    run.grow(1.0)
    online = OnlineAnalysis(run.path)
    online.update()
    last = load(steps_file(run.path, 0))[-1:]
    steps_file(run.path, 0).unlink()
    last["step"] = STEPS
    save(rank_dir(run.path, 0, 0) / "steps-000001.npy", last)
    analysis = online.update()
    assert analysis.ranks[0].steps == STEPS + 1
    assert not analysis.source.warnings
    # A new reader does not see removed records.
    assert len(list(RunReader(run.path).steps(0, 0))) == 1
