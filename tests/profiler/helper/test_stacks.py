"""Task that samples the stack, with scripts in place of py-spy; ``tests/profiler/test_stacks_of_jobs.py`` uses the real one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.profiler.handovers import context_of, handover_of, step
from tests.waiting import wait_until

from rankscope.profiler.helper.sampling import stacks
from rankscope.profiler.helper.sampling.stacks import DENIED, NOT_INSTALLED, StackSampler, stack_error
from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.records import StackSamples

TRACE = (
    '[{"name":"main","ph":"B","tid":7,"ts":0,"args":{"filename":"/job/t.py","line":3}},'
    '{"name":"main","ph":"E","tid":7,"ts":2000000,"args":{"filename":"/job/t.py","line":3}}]'
)
WRITES = f"""while [ "$1" != --output ]; do shift; done
echo '{TRACE}' >"$2"
"""


class Helper:
    """Helper of a rank whose training thread has id 7 and that has taken three steps; the clock runs fast."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, *, interval: float | None = 4.0
    ) -> None:
        self.rows: list[StackSamples] = []
        self.reported: list[str] = []
        self.now = 1_000_000.5
        path = None
        if program is not None:
            path = folder / "py-spy"
            path.write_text(f"#!/bin/sh\n{program}")
            path.chmod(0o755)
        monkeypatch.setattr(stacks, "find_program", lambda: None if path is None else str(path))
        monkeypatch.setattr(time, "time", lambda: self.now)
        handover = handover_of(folder / "run", settings={"stacks_seconds": interval}, pid=os.getpid())
        context = context_of(msgspec.structs.replace(handover, thread=7), folder, self.reported.append)
        self.baseline = context.baseline
        self.task = StackSampler(context, self.rows.append)
        for number in range(3):
            self.step(number)
        self.task.tick()

    def step(self, number: int) -> None:
        """Take a step."""
        self.baseline.add(step(number))
        self.task.step(step(number))

    def series(self) -> bool:
        """Let the time of the next series come; return whether there was one."""
        self.now += 100
        self.task.tick()
        return self.wait()

    def wait(self) -> bool:
        """Wait for the end of the series; return whether there was one."""
        worker: threading.Thread | None = self.task._worker
        if worker is None:
            return False
        worker.join(60)
        assert not worker.is_alive()
        return True


Start = Callable[..., Helper]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Function that starts a helper with a shell script as py-spy."""

    def begin(program: str | None, **more: float | None) -> Helper:
        return Helper(tmp_path, monkeypatch, program, **more)

    return begin


@pytest.mark.slow
def test_sample_series_is_recorded_with_its_steps(start: Start, tmp_path: Path) -> None:
    helper = start(WRITES)
    assert helper.series()
    (row,) = helper.rows
    assert (row.first_step, row.last_step, row.samples, row.missing) == (3, 3, 100, None)
    assert [(line.file, line.line, line.samples) for line in row.lines] == [("/job/t.py", 3, 100)]
    assert not (tmp_path / "stacks.json").exists()
    assert helper.series()
    assert len(helper.rows) == 2
    assert helper.reported == []


@pytest.mark.slow
@pytest.mark.parametrize("profiled", [False, True])
def test_samples_in_a_profiled_step_have_no_phase(start: Start, tmp_path: Path, profiled: bool) -> None:
    helper = start(f"while [ ! -e '{tmp_path}/go' ]; do sleep 0.02; done\n{WRITES}")
    helper.now += 100
    helper.task.tick()
    # Given a step that lasts through the whole series
    now = time.time_ns()
    record = msgspec.structs.replace(step(3), profiled=profiled)
    helper.task.step(record, [PhaseInterval("forward", now - 10**10, now + 10**11, 0)])
    (tmp_path / "go").touch()
    assert helper.wait()
    # Then its samples have its phase unless the profiler slowed it down
    assert [line.phase for line in helper.rows[0].lines] == [None if profiled else "forward"]


@pytest.mark.slow
def test_samples_of_a_slowly_starting_py_spy_have_no_phase(start: Start, tmp_path: Path) -> None:
    starts = f"touch '{tmp_path}/started'; while [ ! -e '{tmp_path}/go' ]; do sleep 0.02; done; sleep 0.1\n"
    helper = start(starts + WRITES.replace("2000000", "20000"))
    helper.now += 100
    began = time.time_ns()
    helper.task.tick()
    wait_until((tmp_path / "started").exists)
    # Given that backward ended while py-spy was starting
    now = time.time_ns()
    intervals = [PhaseInterval("backward", began - 10**10, now, 0), PhaseInterval("data", now, now + 10**11, 0)]
    helper.task.step(step(3), intervals)
    (tmp_path / "go").touch()
    assert helper.wait()
    # Then its samples may be of either phase
    assert [line.phase for line in helper.rows[0].lines] == [None]


@pytest.mark.slow
def test_all_ranks_start_their_series_at_the_same_time(start: Start) -> None:
    helper = start(WRITES, interval=40.0)
    begun = []
    for _ in range(400):
        helper.now += 0.25
        helper.task.tick()
        if helper.wait():
            begun.append(helper.now)
            helper.task.tick()
            helper.task._cpu_seconds = 0.0
    # In the first minute every 10 s, then every 40 s, by the clock
    assert begun[:5] == [1_000_010.0, 1_000_020.0, 1_000_030.0, 1_000_040.0, 1_000_050.0]
    assert begun[-1] == 1_000_080.0


@pytest.mark.slow
def test_capture_request_starts_a_series_immediately(start: Start) -> None:
    helper = start(WRITES)
    helper.task.request()
    helper.task.tick()
    assert helper.wait()
    assert len(helper.rows) == 1


@pytest.mark.slow
def test_series_above_the_budget_is_skipped(start: Start) -> None:
    helper = start(WRITES)
    helper.task._cpu_seconds = 5.0
    assert not helper.series()
    helper.now += 500
    assert helper.series()


def test_missing_py_spy_is_recorded_with_the_reason_and_not_logged(start: Start) -> None:
    helper = start(None)
    assert [row.missing for row in helper.rows] == [NOT_INSTALLED]
    assert not helper.series()
    assert helper.reported == []


@pytest.mark.parametrize("interval", [None])
def test_disabled_sampling_records_nothing(start: Start, interval: None) -> None:
    helper = start(WRITES, interval=interval)
    assert not helper.series()
    assert helper.rows == []


@pytest.mark.slow
def test_permission_denial_is_recorded_and_logged_once(start: Start) -> None:
    helper = start("echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    assert helper.series()
    assert not helper.series()
    assert [row.missing for row in helper.rows] == [DENIED]
    assert len(helper.reported) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    ["echo 'Error: no such version' >&2; exit 1", "exit 0", WRITES.replace(":7", ":8"), "kill -9 $$", f"{WRITES} echo '[{{' >$2"],
)
def test_three_consecutive_failures_disable_sampling(start: Start, program: str) -> None:
    helper = start(program)
    assert [helper.series() for _ in range(4)] == [True, True, True, False]
    (row,) = helper.rows
    assert row.missing
    assert len(helper.reported) == 1


@pytest.mark.slow
def test_hanging_py_spy_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(stacks, "SERIES_SECONDS", (0.1, 0.1))
    monkeypatch.setattr(stacks, "PATIENCE", 1)
    helper = start("exec sleep 1000")
    assert helper.series()
    assert "did not end" in (helper.rows[0].missing or "")


@pytest.mark.slow
def test_end_of_the_rank_does_not_wait_for_a_hanging_py_spy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "END_SECONDS", 0.1)
    helper = start("exec sleep 1000")
    helper.now += 100
    helper.task.tick()
    wait_until(lambda: helper.task._processes)
    helper.task.finish()
    assert helper.wait()
    assert helper.rows == []
    assert helper.reported == []


@pytest.mark.parametrize(
    ("message", "denied"),
    [
        ("Permission Denied: Try running again with elevated permissions by going 'sudo env ...'", True),
        ("Error: Failed to open process\n\nCaused by:\n    Operation not permitted (os error 1)", True),
        ("Error: Failed to find python version from target process", False),
        ("", False),
    ],
)
def test_py_spy_error_is_classified_as_denial_or_other_failure(message: str, denied: bool) -> None:
    error = stack_error(message, 1)
    assert error.lasting == denied
    assert (str(error) == DENIED) == denied
