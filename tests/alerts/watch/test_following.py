"""Live runs are followed incrementally; ended runs are released."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.dumped_job import DumpedJob
from tests.flight_dump_files import write
from tests.step_files import CountedReads

from rankscope.alerts.watch.followed_runs import FollowedRuns
from rankscope.alerts.watch.run_snapshots import RunObserver
from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.run_analysis import analyze_run
from rankscope.analysis.verdict import hung_run
from rankscope.base.errors import InputError
from rankscope.runs.paths import flight_dir, rank_dir, segment

START_NS = 1_700_000_000_000_000_000


def test_growing_run_is_read_incrementally(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = CountedReads(monkeypatch)
    run = make_run()
    following = FollowedRuns()
    following.update(run.path)
    first, reads.bytes = reads.bytes, 0
    run.grow(5)
    following.update(run.path)
    assert 0 < reads.bytes < first / 2
    assert following.update(run.path) == analyze_run(run.path)
    # Once released, the run is read as new.
    reads.bytes = 0
    following.keep([run.path])
    following.update(run.path)
    assert reads.bytes == 0
    following.keep([])
    following.update(run.path)
    assert reads.bytes > first


def test_history_of_an_unfollowed_run_is_read_from_files(make_run: Any) -> None:
    run = make_run()
    following = FollowedRuns()
    assert following.past(run.path) is None
    read = following.past(run.path, read=True)
    following.update(run.path)
    followed = following.past(run.path)
    assert read is not None
    assert followed is not None
    assert len(read) == len(followed) == run.steps
    assert read.walls_us().tolist() == followed.walls_us().tolist()


def test_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        FollowedRuns().update(tmp_path)


def test_dumps_are_read_once_per_change(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a run that hangs, with dumps: rank 2 is missing in a collective
    run = make_run(slow=None)
    write(flight_dir(run.path, 0), DumpedJob.of_events({"0": (0, 1, 2, 3)}, ["0"] * 3, stops={2: 1}).dumps())
    read: list[Any] = []

    def reading(paths: Any) -> HangReport:
        read.append(paths)
        return analyze_hang(paths)

    monkeypatch.setattr(hung_run, "analyze_hang", reading)
    following = FollowedRuns()
    # When the run is evaluated repeatedly
    for _ in range(3):
        report = following.hang(run.path, True)
        assert report is not None
        assert report.culprits == [2]
        following.update(run.path)
    # Then the dumps are read once, and again when a new dump arrives
    assert len(read) == 1
    (flight_dir(run.path, 0) / "rank-00002-end-nccl.pickle").write_bytes(b"no dump")
    following.hang(run.path, True)
    assert len(read) == 2


def test_run_that_continued_after_the_dumps_is_not_hung(make_run: Any) -> None:
    run = make_run(slow=None)
    write(flight_dir(run.path, 0), DumpedJob.of_events({"0": (0, 1, 2, 3)}, ["0"] * 3, stops={2: 1}).dumps(), waited_s=None)
    following = FollowedRuns(clock=lambda: START_NS / 1e9 + 6)
    assert following.hang(run.path, False) is None
    assert following.hang(run.path, True) is not None


def test_history_of_a_run_comes_from_any_recorded_rank(make_run: Any) -> None:
    run = make_run(slow=None)
    shutil.rmtree(rank_dir(run.path, 0, 0))
    rank_dir(run.path, 0, 0).mkdir()
    following = FollowedRuns()
    assert following.past(run.path) is None
    following.update(run.path)
    run.grow(5, ranks=[1, 2, 3])
    following.update(run.path)
    past = following.past(run.path)
    assert past is not None
    assert past.steps.tolist() == list(range(65))
    assert past.usual_us() == pytest.approx(41_000, rel=0.05)
    assert past.longest_us() == pytest.approx(100_000)


def test_new_file_is_found_despite_unchanged_folder_mtime(make_run: Any) -> None:
    run, observer = make_run(), RunObserver()
    folder = rank_dir(run.path, 0, 0)
    observer.snapshot(run.path, now_unix_ns=START_NS, elapsed_s=0.0)
    before = folder.stat()
    segment(folder, "steps", 1).write_bytes(b"x" * 100)
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    snapshot = observer.snapshot(run.path, now_unix_ns=START_NS, elapsed_s=1.0)
    assert snapshot.ranks[0].steps == ("steps-000001.npy", 100)
