"""Runs on disk: discovery, status, and caching of computed results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.step_files import add_rows, load, steps_file

from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.memory_cache import MemoryCache, size_bytes
from rankscope.dashboards.data.source import UnknownRunError
from rankscope.dashboards.ranks.tables import rank_table
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.footprint import footprint
from rankscope.runs.paths import activity_file, findings_file, inspector_dir, rank_dir, reports_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import KernelRecord, RankActivity
from rankscope.runs.silence import SILENT_SECONDS
from rankscope.runs.small_files import write_record

WriteRun = Callable[..., Path]


def test_runs_are_listed_newest_first(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "a", run_id="old", start_unix_ns=1_000)
    write_run(tmp_path / "b", run_id="new", start_unix_ns=2_000, simulated=True)
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "notes.txt").write_text("hello")

    new, old = DiskRuns(tmp_path).runs()

    assert (new.run_id, old.run_id) == ("new", "old")
    assert new.simulated
    assert not old.simulated
    assert (old.status, old.world_size, old.ranks, old.hosts, old.attempts) == ("finished", 4, 4, 2, 1)


def test_run_directory_is_served_as_a_list_of_one_run(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run")
    source = DiskRuns(run)
    assert [summary.run_id for summary in source.runs()] == ["run-1"]
    assert source.part("run-1", "analysis").verdict.rank == 2
    assert source.part("run-1", "steps").part("own_us").values.shape == (4, 60)


def test_new_run_appears_in_an_empty_folder(tmp_path: Path, write_run: WriteRun) -> None:
    source = DiskRuns(tmp_path)
    assert source.runs() == []
    write_run(tmp_path / "first")
    assert [summary.run_id for summary in source.runs()] == ["run-1"]


def test_private_folder_of_another_user_does_not_hide_other_runs(
    tmp_path: Path, write_run: WriteRun, without_privilege: list[str]
) -> None:
    write_run(tmp_path / "open", steps=12)
    (tmp_path / "private").mkdir(mode=0)
    script = (
        "import sys; from pathlib import Path; from rankscope.dashboards.store.disk import DiskRuns; "
        "source = DiskRuns(Path(sys.argv[1])); print([run.run_id for run in source.runs()])"
    )
    command = [*without_privilege, sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "['run-1']\n"


def test_an_unknown_run_id_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownRunError):
        DiskRuns(tmp_path).summary("nope")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": "rankscope.run/9", "run_id": "x"}', b'{"x": ' + b"[" * 100_000]
)
def test_unreadable_run_is_listed_with_the_reason(tmp_path: Path, content: bytes, write_run: WriteRun) -> None:
    write_run(tmp_path / "good")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_bytes(content)
    source = DiskRuns(tmp_path)

    broken = source.summary("broken")

    assert broken.status == "unreadable"
    assert str(tmp_path / "broken") in (broken.problem or "")
    with pytest.raises(RankscopeError, match="broken"):
        source.part("broken", "analysis")
    assert source.summary("run-1").problem is None, "the other runs are not affected"


def test_deeply_nested_json_affects_only_its_own_file(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "runs" / "run")
    nested = '{"x": ' + "[" * 100_000 + "\n"
    for name in ("attempt.json", "ranks/00000/rank.json"):
        (run / "attempts/000" / name).write_text(nested)
    with next((run / "attempts/000/ranks/00001").glob("windows-*.jsonl")).open("a") as file:
        file.write(nested)
    (listed,) = DiskRuns(tmp_path / "runs").runs()
    assert (listed.run_id, listed.problem) == ("run-1", None)
    reader = RunReader(run)
    assert list(reader.windows(0, 1))
    assert reader.skipped_lines == 1


def test_two_folders_with_one_run_id_are_both_listed(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "copy", steps=12)
    write_run(tmp_path / "a", steps=12)
    source = DiskRuns(tmp_path)
    by_id = {summary.run_id: summary for summary in source.runs()}
    assert by_id["run-1"].path.endswith("/a")
    assert "same run id" in (by_id["copy"].problem or "")


def test_copy_does_not_hide_the_run_whose_folder_is_named_by_its_id(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "run-1", run_id="run-1")
    write_run(tmp_path / "backup", run_id="run-1")
    source = DiskRuns(tmp_path)
    problems = {Path(run.path).name: run.problem for run in source.runs()}
    assert problems["backup"] is None
    assert "has the same run id (run-1)" in str(problems["run-1"])
    assert source.part("run-1", "analysis").verdict.rank == 2

    # Nor does an unreadable copy hide the run
    (tmp_path / "run-1" / "run.json").write_text("{")
    problems = {Path(run.path).name: run.problem for run in source.runs()}
    assert problems["backup"] is None
    assert "run.json" in str(problems["run-1"])
    assert source.summary("run-1").problem is None


def test_run_status_is_starting_live_silent_or_finished(tmp_path: Path, write_run: WriteRun) -> None:
    now = [0.0]
    source = DiskRuns(tmp_path, clock_s=lambda: now[0])
    write_run(tmp_path / "starting", run_id="starting", ranks=0)
    live = write_run(tmp_path / "live", run_id="live", finished=False, steps=12)
    write_run(tmp_path / "finished", run_id="finished", steps=12)

    now[0] = footprint(live).newest_unix_ns / 1e9 + 1
    assert {run.run_id: run.status for run in source.runs()} == {"starting": "starting", "live": "live", "finished": "finished"}
    now[0] += SILENT_SECONDS
    assert source.summary("live").status == "silent"
    assert source.summary("finished").status == "finished", "a finished run may be old"


@pytest.mark.parametrize(
    ("ends", "losses"),
    [
        ({1: "killed"}, "rank 1 killed"),
        ({1: "crash", 0: "killed", 2: "killed"}, "rank 1 crashed, ranks 0, 2 killed"),
        (dict.fromkeys(range(4), "killed"), "all 4 ranks killed"),
    ],
)
def test_run_that_lost_ranks_has_failed_and_names_the_ranks(
    tmp_path: Path, write_run: WriteRun, ends: dict[int, str], losses: str
) -> None:
    write_run(tmp_path / "over", run_id="over", steps=12, ends=ends)
    write_run(tmp_path / "going-on", run_id="going-on", steps=12, finished=False, ends={3: "killed"})
    source = DiskRuns(tmp_path)

    assert (source.summary("over").status, source.summary("over").losses) == ("failed", losses)
    # the other ranks have not ended yet, even if they wait for the killed one
    assert (source.summary("going-on").status, source.summary("going-on").losses) == ("live", "rank 3 killed")


def test_many_lost_ranks_are_counted(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path, steps=1, ranks=12, ends=dict.fromkeys(range(10), "killed"))
    assert DiskRuns(tmp_path).summary("run-1").losses == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more killed"


def test_disabled_recorder_is_not_a_failure_of_the_job(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path, steps=12, ends={2: "disabled"})
    summary = DiskRuns(tmp_path).summary("run-1")
    assert (summary.status, summary.losses, summary.unrecorded) == ("finished", None, "rank 2")


def test_live_runs_are_listed_before_newer_finished_ones(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "a", run_id="live", start_unix_ns=1_000, finished=False, steps=12)
    write_run(tmp_path / "b", run_id="old", start_unix_ns=2_000, steps=12)
    write_run(tmp_path / "c", run_id="new", start_unix_ns=3_000, steps=12)
    assert [run.run_id for run in DiskRuns(tmp_path).runs()] == ["live", "new", "old"]


def test_revision_changes_only_with_recorded_evidence(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12)
    before = footprint(run)
    (run / "control").mkdir()
    (run / "control" / "request").write_text("x")
    (run / ".run.json.tmp").write_text("x")
    inspector_dir(run).mkdir()
    (inspector_dir(run) / "h-pid1.log").write_text("x")
    assert footprint(run).revision == before.revision
    steps = steps_file(run, 1)
    add_rows(steps, load(steps)[-1:])
    assert footprint(run).revision != before.revision
    assert footprint(run).standing == before.standing, "who takes part is the same"


def test_rank_activity_changes_the_revision_but_is_not_progress(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12, finished=False)
    file = activity_file(run, 0, 1)
    before = footprint(run)
    file.write_text("{}")
    appeared = footprint(run)
    file.write_text("{} ")
    refreshed = footprint(run)
    assert len({before.revision, appeared.revision, refreshed.revision}) == 3
    assert before.newest_unix_ns == appeared.newest_unix_ns == refreshed.newest_unix_ns, "the run is as silent as before"
    assert appeared.standing == refreshed.standing
    (rank_dir(run, 0, 1) / "stacks-000000.jsonl").write_text("{}\n")
    assert footprint(run).newest_unix_ns == before.newest_unix_ns, "a hung rank is sampled, too"
    findings_file(run).write_text("{}\n")
    assert footprint(run).newest_unix_ns == before.newest_unix_ns, "a watcher reports the hang"
    now = footprint(run)
    reports_dir(run, 0).mkdir()
    (reports_dir(run, 0) / "00001.json").write_text("{}")
    assert footprint(run) == now, "and reports to the planner of windows"


def test_rank_table_shows_the_activity_of_a_silent_rank(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12, finished=False)
    now = time.time_ns()  # what was seen minutes ago is no longer shown
    activity = RankActivity(
        attempt=0, rank=1, step=12, phase="backward", waiting=False, since_unix_ns=now - 41 * 10**9, updated_unix_ns=now
    )
    write_record(activity_file(run, 0, 1), activity)
    rows = rank_table(DiskRuns(run).part("run-1", "analysis"))
    assert rows[0]["doing"] is None
    assert re.fullmatch(r"in backward of step 12 for 4\d s, not waiting for other ranks", rows[1]["doing"])


def test_an_unchanged_run_is_analysed_once(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12)
    source = DiskRuns(run)
    analysis, table = source.part("run-1", "analysis"), source.part("run-1", "steps")

    assert source.part("run-1", "analysis") is analysis
    assert source.part("run-1", "steps") is table

    os.utime(run / "run.json", ns=(1, 1))
    assert source.part("run-1", "analysis") is not analysis, "what changed is analysed again"
    assert source.part("run-1", "steps") is not table


def test_new_window_record_files_are_read(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run")
    source = DiskRuns(run)
    (window, *_) = source.windows(source.summary("run-1")).windows
    before = source.window_kernels(source.summary("run-1"), window, 0)
    kernel = KernelRecord(step=window.first, name="late", kind="compute", total_us=1.0, calls=1)
    (rank_dir(run, 0, 0) / "kernels-000009.jsonl").write_bytes(msgspec.json.encode(kernel) + b"\n")
    assert source.window_kernels(source.summary("run-1"), window, 0) == [*before, kernel]


def test_concurrent_callers_share_one_cached_computation() -> None:
    cache = MemoryCache()
    made: list[int] = []
    together = threading.Barrier(4)

    def make() -> int:
        made.append(1)
        return 42

    def ask() -> None:
        together.wait()
        assert cache.get("kind", "key", "1", make) == 42

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_memory_cache_is_bounded_in_bytes_and_does_not_cache_failures() -> None:
    cache = MemoryCache(10_000)
    for key in ("a", "b", "c"):
        cache.get("kind", key, "1", lambda: np.zeros(500))
        assert cache.used_bytes <= 10_000
    assert cache.last("kind", "a") is None, "the oldest was evicted"
    assert cache.last("kind", "c") is not None
    assert cache.last("another kind", "c") is None
    assert cache.get("kind", "too large", "1", lambda: np.zeros(5_000)).shape == (5_000,)
    assert cache.last("kind", "too large") is None
    assert cache.last("kind", "c") is not None, "it would not have helped"

    def fail() -> str:
        raise InputError("x", "broken")

    with pytest.raises(InputError):
        cache.get("kind", "d", "1", fail)
    assert cache.get("kind", "d", "1", lambda: "mended") == "mended"


def test_memory_sizes_of_long_lists_are_estimated(analysis: Analysis) -> None:
    ranks = 10_000 * analysis.ranks[:1]
    result = size_bytes(analysis.ranks[0])
    assert 10_000 * result <= size_bytes(msgspec.structs.replace(analysis, ranks=ranks)) <= 11_000 * (result + 8)
    assert size_bytes({"values": np.zeros(1_000_000)}) > 8_000_000


def test_most_recently_written_folder_with_one_run_id_is_the_run(tmp_path: Path, write_run: WriteRun) -> None:
    """A backup beside the run may come first in the alphabet."""
    backup = write_run(tmp_path / "a-backup", steps=12)
    write_run(tmp_path / "run", steps=12)
    for file in backup.rglob("*"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    problems = {Path(run.path).name: run.problem for run in DiskRuns(tmp_path).runs()}
    assert problems["run"] is None
    assert "same run id" in str(problems["a-backup"])


def test_moved_run_folder_is_found_at_its_new_path(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "a", run_id="one", steps=1)
    source = DiskRuns(tmp_path)
    assert source.summary("one").path == str(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    write_run(tmp_path / "a", run_id="two", steps=1)
    assert [source.summary(run_id).path for run_id in ("one", "two")] == [str(tmp_path / "b"), str(tmp_path / "a")]
