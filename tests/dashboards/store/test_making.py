"""Results are computed in processes beside the server, once for all clients."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.step_files import steps_file

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.store.cache import Store, cache_folder, key_of
from rankscope.dashboards.store.derive import Derived
from rankscope.dashboards.store.footprint import footprint
from rankscope.dashboards.store.jobs import SLOTS, TASKS, WAITING, Jobs, take
from rankscope.dashboards.store.making import MadeBeside, MadeHere

WriteRun = Callable[..., Path]
UntilReady = Callable[[Callable[[], Any]], Any]
LIMIT_S = 60.0


def hundred_bytes(folder: Path) -> None:
    (folder / "data").write_bytes(b"x" * 100)


def test_it_is_made_once_and_found_after_a_restart(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12)
    revision = footprint(run).revision
    first = MadeHere(Store(tmp_path / "cache")).finished(run, "run-1", revision)
    written = (first.folder / "analysis.json").stat().st_mtime_ns
    again = MadeHere(Store(tmp_path / "cache")).finished(run, "run-1", revision)
    assert again.folder == first.folder
    assert (again.folder / "analysis.json").stat().st_mtime_ns == written
    assert again.analysis().verdict.kind == first.analysis().verdict.kind
    assert again.steps().steps.tolist() == list(range(12))


@pytest.mark.slow
def test_two_live_runs_of_one_id_are_told_apart(tmp_path: Path, write_run: WriteRun, until_ready: UntilReady) -> None:
    """A run with another run's id does not get the other run's verdict."""
    making = MadeBeside(Store(tmp_path / "cache"))
    runs = [write_run(tmp_path / name, slow_rank=slow, finished=False) for name, slow in (("a", 2), ("b", None))]
    verdicts = [until_ready(lambda run=run: making.live(run, "run-1", "-")).analysis().verdict for run in runs]  # type: ignore[misc]
    assert [verdict.rank for verdict in verdicts] == [2, None]


def test_a_run_that_cannot_be_read_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        MadeHere(Store(tmp_path / "cache")).finished(tmp_path / "nothing", "run-1", "1")
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_was_used_last_stays_when_there_is_too_much(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", most_bytes=250)
    for name in "abcd":
        key = key_of(name)
        store.put(key, hundred_bytes)
        os.utime(store.root / key / ".used", ns=(ord(name), ord(name)))
        assert store.find(key_of("a")) is not None, "which makes it the one used last"
    assert [name for name in "abcd" if store.find(key_of(name)) is not None] == ["a", "d"]


def test_the_cache_is_where_the_desktop_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "rankscope" / "dashboard"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/invalid")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "rankscope" / "dashboard"


@pytest.mark.slow
def test_processes_beside_make_it_for_all_who_ask(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=30)
    revision = footprint(run).revision
    making = MadeBeside(Store(tmp_path / "cache"), patience_s=0.0)
    with pytest.raises(NotReadyError, match="Starting"):
        making.finished(run, "run-1", revision)
    other = MadeBeside(Store(tmp_path / "cache"), patience_s=LIMIT_S)
    derived = other.finished(run, "run-1", revision)
    assert derived.analysis().source.steps == 30
    assert making.finished(run, "run-1", revision).folder == derived.folder
    # No partial result and no waiting process is left; the process may run for a moment after its result appears
    deadline = time.monotonic() + LIMIT_S
    while not {path.name.split("-")[0] for path in (tmp_path / "cache").glob(".*")} <= {".lock", ".slot"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_why_it_cannot_be_made_is_said_and_not_tried_again_at_once(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12)
    revision = footprint(run).revision
    (run / "run.json").write_text("{}")
    making = MadeBeside(Store(tmp_path / "cache"), patience_s=LIMIT_S)
    for _ in range(2):
        with pytest.raises(RankscopeError, match="not a rankscope run"):
            making.finished(run, "run-1", revision)


@pytest.mark.slow
def test_a_job_that_is_killed_is_begun_again(tmp_path: Path, write_run: WriteRun, until_ready: UntilReady) -> None:
    run = write_run(tmp_path / "run", steps=12)
    revision = footprint(run).revision
    store = Store(tmp_path / "cache")
    making = MadeBeside(store, patience_s=0.0)
    with pytest.raises(NotReadyError):
        making.finished(run, "run-1", revision)
    found = subprocess.run(
        ["pgrep", "-f", f"{store.root} .*{key_of('run-1', str(run), revision)}"], capture_output=True, text=True, check=True
    )
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    assert until_ready(lambda: making.finished(run, "run-1", revision)).is_there


@pytest.mark.slow
def test_a_live_run_is_followed_while_somebody_looks(tmp_path: Path, write_run: WriteRun, until_ready: UntilReady) -> None:
    run = write_run(tmp_path / "run", steps=12, finished=False)
    making = MadeBeside(Store(tmp_path / "cache"))

    def look() -> Derived:
        return making.live(run, "run-1", "-")

    derived = until_ready(look)
    assert derived.steps().steps.tolist() == list(range(12))
    assert derived.analysis().source.steps == 12
    before = derived.version
    assert look().version == before
    write_run(tmp_path / "more", steps=20, finished=False)
    for rank in range(4):
        steps_file(run, rank).write_bytes(steps_file(tmp_path / "more", rank).read_bytes())
    end = time.monotonic() + LIMIT_S
    while len(look().steps().steps) < 20 or look().analysis().source.steps < 20:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert look().version != before
    (derived.folder / "looked").unlink()  # no client reads the run any more: the process ends


def test_an_error_of_ours_is_said_and_not_tried_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("idle")

    monkeypatch.setitem(cast("dict[str, Any]", TASKS), "analyse", broken)
    jobs = Jobs(Store(tmp_path))
    with pytest.raises(KeyError):
        jobs.work("key", "analyse", ["run"])
    failure = jobs.want("key", "analyse", ["run"]).failure
    assert failure is not None
    assert "an error in rankscope (KeyError)" in failure


def test_a_run_that_was_moved_is_analysed_where_it_is(tmp_path: Path, write_run: WriteRun) -> None:
    """Its analysis names commands with its path."""
    making = MadeHere(Store(tmp_path / "cache"))
    run = write_run(tmp_path / "before", steps=12)
    before = making.finished(run, "run-1", footprint(run).revision)
    moved = run.rename(tmp_path / "after")
    revision = footprint(moved).revision
    assert making.known(moved, "run-1", revision) is None
    after = making.finished(moved, "run-1", revision)
    assert (before.analysis().source.path, after.analysis().source.path) == (str(run), str(moved))


@pytest.mark.slow
def test_a_job_that_needs_more_memory_than_there_is_fails_with_the_reason(tmp_path: Path) -> None:
    """It must not take the memory of the training job or the server beside it."""
    script = (
        "import sys; from rankscope.dashboards.store import jobs; jobs.bound_memory(available_bytes=512 << 20)\n"
        "print(open('/proc/self/oom_score_adj').read().strip())\n"
        "try: held = bytearray(1 << 30)\n"
        "except MemoryError as error: print(jobs.in_words(error))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    score, said = done.stdout.splitlines()
    assert int(score) > 0, "the kernel ends it before others"
    assert "memory" in said


def test_addresses_that_have_to_wait_leave_nothing_in_the_store(tmp_path: Path, write_run: WriteRun) -> None:
    """Any address may ask for a comparison, also while other jobs run."""
    jobs = Jobs(Store(tmp_path / "cache"))
    jobs.store.root.mkdir()
    with contextlib.ExitStack() as held:
        for number in range(SLOTS):
            assert take(jobs.store.root / f".slot-{number}", held) is not None
        for step in range(50):
            assert jobs.want(key_of(str(step)), "compare", [step, tmp_path]) == WAITING
    assert {path.name for path in jobs.store.root.iterdir()} == {f".slot-{number}" for number in range(SLOTS)}
    run = write_run(tmp_path / "run", steps=3)
    jobs.work("key", "analyse", [str(run)])
    assert not list(jobs.store.root.glob(".lock-*"))
