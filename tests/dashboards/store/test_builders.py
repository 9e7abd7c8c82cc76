"""Results are computed in processes beside the server, once for all clients."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.step_files import steps_file
from tests.waiting import wait_until

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.source import NotReadyError, RunSummary
from rankscope.dashboards.lost_hours.data import cluster_losses, run_losses
from rankscope.dashboards.runs.view import first_row
from rankscope.dashboards.store.builders import InlineBuilder, JobBuilder
from rankscope.dashboards.store.cache import Store, cache_folder, key_of
from rankscope.dashboards.store.derive import DerivedData
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.whatif.data import read_answer

WriteRun = Callable[..., Path]
UntilReady = Callable[[Callable[[], Any]], Any]


def summary(run: Path) -> RunSummary:
    """Return the state of a run's files."""
    return DiskRuns(run).runs()[0]


def hundred_bytes(folder: Path) -> None:
    (folder / "data").write_bytes(b"x" * 100)


def test_derived_data_is_built_once_and_found_after_a_restart(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12)
    first = InlineBuilder(Store(tmp_path / "cache")).derived(summary(run))
    written = (first.folder / "analysis.json").stat().st_mtime_ns
    again = InlineBuilder(Store(tmp_path / "cache")).derived(summary(run))
    assert again.folder == first.folder
    assert (again.folder / "analysis.json").stat().st_mtime_ns == written
    assert again.part("analysis").verdict.kind == first.part("analysis").verdict.kind
    assert again.part("steps").steps.tolist() == list(range(12))


@pytest.mark.slow
def test_two_live_runs_with_one_id_have_separate_verdicts(tmp_path: Path, write_run: WriteRun, until_ready: UntilReady) -> None:
    """A run with another run's id does not get the other run's verdict."""
    builder = JobBuilder(Store(tmp_path / "cache"))
    runs = [write_run(tmp_path / name, slow_rank=slow, finished=False) for name, slow in (("a", 2), ("b", None))]
    verdicts = [until_ready(lambda run=run: builder.derived(summary(run))).part("analysis").verdict for run in runs]  # type: ignore[misc]
    assert [verdict.rank for verdict in verdicts] == [2, None]


def test_unreadable_run_leaves_no_cache_entry(tmp_path: Path, write_run: WriteRun) -> None:
    run = replace(summary(write_run(tmp_path / "run", steps=1)), path=str(tmp_path / "nothing"))
    with pytest.raises(InputError):
        InlineBuilder(Store(tmp_path / "cache")).derived(run)
    assert list((tmp_path / "cache").iterdir()) == []


def test_full_cache_keeps_the_most_recently_used_entries(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", max_bytes=250)
    for name in "abcd":
        key = key_of(name)
        store.put(key, hundred_bytes)
        os.utime(store.root / key / ".used", ns=(ord(name), ord(name)))
        assert store.find(key_of("a")) is not None, "which makes it the one used last"
        for listed in "bc":
            store.peek(key_of(listed))
    assert [name for name in "abcd" if store.peek(key_of(name)) is not None] == ["a", "d"]


def test_run_list_does_not_mark_cache_entries_as_used(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "runs" / "a", steps=12)
    builder = InlineBuilder(Store(tmp_path / "cache"))
    source = DiskRuns(tmp_path / "runs", builder)
    source.part("run-1", "analysis")
    (used,) = (tmp_path / "cache").glob("*/.used")
    os.utime(used, ns=(1, 1))
    assert [first_row(source, run) for run in source.runs()]
    run_losses(source)
    assert used.stat().st_mtime_ns == 1
    source.part("run-1", "steps")
    assert used.stat().st_mtime_ns > 1


def test_installed_version_is_looked_up_once(tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DiskRuns(write_run(tmp_path / "run", steps=12))

    def refused(_name: str) -> str:
        raise AssertionError

    monkeypatch.setattr("importlib.metadata.version", refused)
    monkeypatch.setattr("importlib.metadata.distribution", refused)
    assert [first_row(source, run) for run in source.runs()]


def test_cache_folder_follows_xdg_cache_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "rankscope" / "dashboard"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/invalid")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "rankscope" / "dashboard"


@pytest.mark.slow
def test_two_servers_share_a_cache_and_build_once(tmp_path: Path, write_run: WriteRun, until_ready: UntilReady) -> None:
    run = summary(write_run(tmp_path / "run", steps=30))
    builder, other = (JobBuilder(Store(tmp_path / "cache")) for _ in range(2))
    with pytest.raises(NotReadyError, match="Starting"):
        builder.derived(run)
    derived = until_ready(lambda: other.derived(run))
    assert derived.part("analysis").source.steps == 30
    assert until_ready(lambda: builder.derived(run)).folder == derived.folder
    # Nothing partial is left; a process may run for a moment after its result appears
    wait_until(lambda: not list((tmp_path / "cache").glob(".*")))


@pytest.mark.slow
def test_failed_build_reports_its_reason_and_leaves_no_cache_entry(
    tmp_path: Path, write_run: WriteRun, until_ready: UntilReady
) -> None:
    folder = write_run(tmp_path / "run", steps=12)
    run = summary(folder)
    (folder / "run.json").write_text("{}")
    builder = JobBuilder(Store(tmp_path / "cache"))
    for _ in range(2):
        with pytest.raises(RankscopeError, match="not a rankscope run"):
            until_ready(lambda: builder.derived(run))
    assert not list((tmp_path / "cache").glob("[!.]*"))


@pytest.mark.slow
def test_live_run_is_followed_and_its_final_result_is_kept(tmp_path: Path, write_run: WriteRun, until_ready: UntilReady) -> None:
    run = write_run(tmp_path / "run", steps=12, finished=False)
    builder = JobBuilder(Store(tmp_path / "cache"))
    source = DiskRuns(run, builder)
    assert [len(cluster_losses(run_losses(source)).live), len(cluster_losses(run_losses(source)).not_analysed)] == [1, 0]

    def look() -> DerivedData:
        return builder.derived(summary(run))

    derived = until_ready(look)
    # And lost GPU-hours count it while it is followed
    brief = source.known_brief(summary(run))
    assert brief is not None
    assert brief.steps == 12
    assert cluster_losses(run_losses(source)).live == []
    assert derived.part("steps").steps.tolist() == list(range(12))
    assert derived.part("analysis").source.steps == 12
    before = derived.version
    assert look().version == before
    write_run(tmp_path / "more", steps=20, finished=False)
    for rank in range(4):
        steps_file(run, rank).write_bytes(steps_file(tmp_path / "more", rank).read_bytes())
    wait_until(lambda: len(look().part("steps").steps) == look().part("analysis").source.steps == 20)
    assert look().version != before
    # When it ends, the follower's folder becomes that of the run; nothing is read again
    write_run(tmp_path / "over", steps=20)
    for info in (tmp_path / "over").rglob("rank.json"):
        (run / info.relative_to(tmp_path / "over")).write_bytes(info.read_bytes())

    def handed_over() -> DerivedData | None:
        latest = look()
        assert latest.stale is None or [job.task for job in builder.jobs._jobs.values()] == ["follow"]
        return latest if latest.stale is None else None

    settled = wait_until(handed_over)
    assert settled.part("analysis").source.steps == 20
    assert settled.folder.parent == derived.folder.parent
    assert not derived.folder.exists()
    assert [path.name for path in builder.store.root.iterdir()] == [settled.folder.name]


def test_moved_run_is_analysed_at_its_new_path(tmp_path: Path, write_run: WriteRun) -> None:
    """Its analysis names commands with its path."""
    builder = InlineBuilder(Store(tmp_path / "cache"))
    run = write_run(tmp_path / "before", steps=12)
    before = builder.derived(summary(run))
    moved = run.rename(tmp_path / "after")
    assert builder.cached(summary(moved)) is None
    after = builder.derived(summary(moved))
    assert (before.part("analysis").source.path, after.part("analysis").source.path) == (str(run), str(moved))


def test_whatif_reuses_the_step_records_of_the_analysis(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=40)
    expected = DiskRuns(run).whatif("run-1").result
    source = DiskRuns(run, InlineBuilder(Store(tmp_path / "cache")), look_again_s=math.inf)
    source.part("run-1", "analysis")
    for file in run.rglob("steps-*"):
        file.unlink()
    assert (expected.status, expected.source.evidence) == ("ok", "steps")
    assert source.whatif("run-1").result == expected


def test_whatif_of_a_changed_run_reads_the_run_again(tmp_path: Path, write_run: WriteRun) -> None:
    run, builder = write_run(tmp_path / "run", steps=40), InlineBuilder(Store(tmp_path / "cache"))
    builder.derived(summary(run))
    for file in run.rglob("steps-*"):
        file.unlink()
    folder = builder.result(key_of("changed"), "whatif", [run], [summary(run)])
    assert read_answer(folder).result.source.evidence == "windows"


def test_whatif_after_the_analysis_warns_about_damaged_step_records(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=40)
    with next(run.rglob("steps-*")).open("ab") as file:
        file.write(b"torn")
    source = DiskRuns(run, InlineBuilder(Store(tmp_path / "cache")))
    source.part("run-1", "analysis")
    assert any("1 damaged line" in warning for warning in source.whatif("run-1").result.source.warnings)
