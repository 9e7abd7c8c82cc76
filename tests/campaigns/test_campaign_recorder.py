"""The recorder under every fault around a training job (`make campaign`): one table row per fault.

Every job runs twice, with and without the recorder, and keeps its own log. Exit status and losses must be the same to the last
bit, and every step in the log must be in the run or counted as dropped.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.campaigns.faulty_job import (
    BUDGET,
    GROWTH_KIB,
    STEPS,
    FaultyJob,
    JobOutcome,
    cost_and_wall,
    helpers_of,
    nothing_changed,
    nothing_lost,
    rank_info,
    recorded_steps,
    said_once,
    within_budget,
)
from tests.full_disk import small_disk
from tests.local_http import answering, respond

from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

EXITING = Path(__file__).parent / "jobs" / "exiting.py"
PAIRS = int(os.environ.get("RANKSCOPE_CAMPAIGN_EXITS", "40"))
KILLS = int(os.environ.get("RANKSCOPE_CAMPAIGN_KILLS", "100"))

TABLE: dict[str, dict[str, object]] = {}


def note(name: str, job: FaultyJob, plain: JobOutcome, recorded: JobOutcome, run_dir: Path | None = None) -> None:
    """Add a row to the table that the campaign prints."""
    row: dict[str, object] = {"status": recorded.status}
    for label, outcome in (("plain", plain), ("recorded", recorded)):
        walls = sorted(wall for durations in outcome.walls_us.values() for wall in durations[25:])
        if walls:
            row[f"{label}_step_us_median"] = walls[len(walls) // 2]
            row[f"{label}_step_us_worst"] = walls[-1]
    try:
        infos = [rank_info(run_dir or job.run_dir, rank) for rank in (0, 1)]
        row["steps"] = [len(recorded_steps(run_dir or job.run_dir, rank)) for rank in (0, 1)]
        row["dropped"] = [info.dropped_records for info in infos]
        row["cost_us_per_step"] = [round((info.recorder_cost_us or 0) / max(1, job.steps), 1) for info in infos]
        row["end"] = [info.end_reason for info in infos]
    except Exception as error:  # noqa: BLE001  # the table shows the error
        row["run"] = str(error)
    TABLE[name] = row


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Table of all outcomes, printed as JSON at the end."""
    yield
    path = os.environ.get("RANKSCOPE_CAMPAIGN_TABLE")
    text = json.dumps(TABLE, indent=1)
    if path:
        Path(path).write_text(text, encoding="utf-8")
    print(text)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> JobOutcome:
    """Outcome of the job without a fault and without the recorder."""
    return FaultyJob(tmp_path_factory.mktemp("plain")).run(recorded=False)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """Folder on a separate file system of 600 KiB."""
    with small_disk(tmp_path / "tmpfs", 600) as folder:
        if not os.path.ismount(folder):
            pytest.skip("cannot mount a small file system here: run as root")
        yield folder


@pytest.mark.parametrize(
    "fault", ["none", "exception", "keyboard", "sigterm", "oom", "fork", "profiler_raises", "foreign_profiler"]
)
def test_script_fault_has_the_same_effect_when_recorded(tmp_path: Path, fault: str) -> None:
    job = FaultyJob(tmp_path, fault=fault)
    without = job.run(recorded=False)
    recorded = job.run(recorded=True)
    note(fault, job, without, recorded)
    nothing_changed(without, recorded)
    nothing_lost(job, recorded)
    within_budget(job, recorded)
    if fault in ("none", "oom", "fork"):
        assert [rank_info(job.run_dir, rank).end_reason for rank in (0, 1)] == ["exit", "exit"]
        assert recorded.stderr.count("rankscope:") == 0
    if fault in ("profiler_raises", "foreign_profiler"):
        assert rank_info(job.run_dir, 0).missed_windows >= 1
        said_once(recorded, 0, "window")


def test_full_disk_loses_no_record_and_leaves_training_unchanged(tmp_path: Path, tmpfs: Path, plain: JobOutcome) -> None:
    job = FaultyJob(tmp_path)
    run_dir = tmpfs / "run"

    def fill(_job: FaultyJob) -> None:
        with suppress(OSError), (tmpfs / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        assert shutil.disk_usage(tmpfs).free == 0
        time.sleep(0.5)
        # Room is back before the end: waiting records must be written. The last page of a file may take 18 rows until then.
        threading.Timer(2.5, (tmpfs / "filler").unlink).start()

    recorded = job.run(recorded=True, during=fill, run_dir=run_dir)
    note("disk full", job, plain, recorded, run_dir)
    for rank in (0, 1):
        said_once(recorded, rank, "cannot write")
    nothing_changed(plain, recorded)
    nothing_lost(job, recorded, run_dir)
    within_budget(job, recorded, run_dir)


def test_removed_run_directory_is_logged_once_and_not_recreated(tmp_path: Path, plain: JobOutcome) -> None:
    job = FaultyJob(tmp_path)
    recorded = job.run(recorded=True, during=lambda job: shutil.rmtree(job.run_dir))
    note("folder removed", job, plain, recorded)
    nothing_changed(plain, recorded)
    for rank in (0, 1):
        said_once(recorded, rank, "removed")
    assert not (job.run_dir / "run.json").exists()


def test_read_only_remount_loses_no_record(tmp_path: Path, tmpfs: Path, plain: JobOutcome) -> None:
    job = FaultyJob(tmp_path)
    run_dir = tmpfs / "run"

    def remount(_job: FaultyJob) -> None:
        # Forced, as by a failing server: writable files stay open.
        done = subprocess.run(["mount", "-o", "remount,ro", tmpfs], capture_output=True, check=False)
        if done.returncode:
            subprocess.run(["mount", "--bind", "-o", "ro", tmpfs, tmpfs], check=False)
        time.sleep(0.8)
        threading.Timer(0.5, lambda: subprocess.run(["mount", "-o", "remount,rw", tmpfs], check=False)).start()

    recorded = job.run(recorded=True, during=remount, run_dir=run_dir)
    note("folder read-only", job, plain, recorded, run_dir)
    nothing_changed(plain, recorded)
    nothing_lost(job, recorded, run_dir)
    within_budget(job, recorded, run_dir)


def test_five_seconds_per_write_lose_no_record(tmp_path: Path, shim: Path, plain: JobOutcome) -> None:
    job = FaultyJob(tmp_path, environment={"LD_PRELOAD": str(shim), "SLOW_FOLDER": str(tmp_path / "run")})
    recorded = job.run(recorded=True)
    note("5 s per write", job, plain, recorded)
    nothing_changed(plain, recorded)
    nothing_lost(job, recorded)
    within_budget(job, recorded)


def test_killed_helper_loses_few_steps_and_no_training(tmp_path: Path, plain: JobOutcome) -> None:
    job = FaultyJob(tmp_path)

    def kill(job: FaultyJob) -> None:
        helpers = helpers_of(job.ranks())
        assert len(helpers) == 2
        for helper in helpers:
            os.kill(helper, signal.SIGKILL)

    recorded = job.run(recorded=True, during=kill)
    note("helper killed", job, plain, recorded)
    nothing_changed(plain, recorded)
    for rank in (0, 1):
        said_once(recorded, rank, "helper")
        assert rank_info(job.run_dir, rank).end_reason == "exit"
        numbers = recorded_steps(job.run_dir, rank)
        # those that the killed helper held are lost
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == STEPS - 1
        assert len(numbers) >= STEPS - 40


def test_lost_exporter_leaves_training_and_records_unchanged(tmp_path: Path, plain: JobOutcome) -> None:
    job = FaultyJob(tmp_path)
    with ExitStack() as exporter:
        url = exporter.enter_context(answering(lambda request, _: respond(request, 200, b"# nothing\n")))
        recorded = job.run(recorded=True, during=lambda _: exporter.close(), args=("--exporter-url", f"{url}/metrics"))
    note("exporter gone", job, plain, recorded)
    nothing_changed(plain, recorded)
    nothing_lost(job, recorded)
    within_budget(job, recorded)


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_clock_step_leaves_training_and_durations_unchanged(tmp_path: Path, shim: Path, plain: JobOutcome, seconds: int) -> None:
    (tmp_path / "clock").write_bytes(bytes(8))
    job = FaultyJob(tmp_path, environment={"LD_PRELOAD": str(shim), "CLOCK_STEP": str(tmp_path / "clock")})

    def step(_job: FaultyJob) -> None:
        with (tmp_path / "clock").open("r+b") as file, mmap.mmap(file.fileno(), 8) as clock:
            clock[:8] = struct.pack("<q", seconds)

    recorded = job.run(recorded=True, during=step)
    note(f"clock {seconds:+d} s", job, plain, recorded)
    nothing_changed(plain, recorded)
    nothing_lost(job, recorded)
    within_budget(job, recorded)
    for rank in (0, 1):
        # Durations do not come from the wall clock.
        assert max(record.wall_us for record in RunReader(job.run_dir).steps(0, rank)) < 60e6


def test_rank_killed_at_a_random_moment_leaves_a_readable_run(tmp_path: Path) -> None:
    moments = random.Random(0)  # reproducible
    seen = []
    costs, walls = [], []
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        job = FaultyJob(folder, steps=400, pause=0.02)

        def kill(job: FaultyJob) -> None:
            time.sleep(moments.random() * 3)
            os.kill(job.ranks()[1], signal.SIGKILL)

        recorded = job.run(recorded=True, during=kill)
        nothing_lost(job, recorded)
        for rank in (0, 1):
            cost, wall = cost_and_wall(job, recorded, rank)
            costs.append(cost)
            walls.append(wall)
        info = rank_info(job.run_dir, 1)
        seen.append(info.end_reason)
        assert info.end_reason in ("killed", "exit"), info
        assert info.end_unix_ns is not None
        reader = RunReader(job.run_dir)
        assert sum(1 for rank in (0, 1) for _ in reader.steps(0, rank))
        assert (reader.skipped_lines, reader.unusable) == (0, [])
        shutil.rmtree(folder)
    shares = sorted(cost / wall for cost, wall in zip(costs, walls, strict=True) if wall)
    TABLE["SIGKILL at random moments"] = {
        **{reason or "none": seen.count(reason) for reason in set(seen)},
        "share_of_all": sum(costs) / sum(walls),
        "share_median": shares[len(shares) // 2],
        "share_worst": shares[-1],
    }
    # The sum over all jobs: a job of a few seconds mostly measures other load on the machine.
    assert sum(costs) <= BUDGET * sum(walls)
    assert seen.count("killed") >= 0.9 * KILLS


def test_ten_thousand_steps_keep_memory_bounded(tmp_path: Path) -> None:
    job = FaultyJob(tmp_path, steps=10_000, pause=0.0)
    without = job.run(recorded=False)
    recorded = job.run(recorded=True)
    note("10,000 steps", job, without, recorded)
    nothing_changed(without, recorded)
    for rank in (0, 1):
        # Steps of a millisecond or two have no budget check: the budget is for real work.
        assert len(recorded_steps(job.run_dir, rank)) + rank_info(job.run_dir, rank).dropped_records >= job.steps - 1
    growth = {}
    for label, outcome in (("plain", without), ("recorded", recorded)):
        # Measured after the first windows, when everything is loaded.
        growth[label] = max(sizes[-1] - sizes[2000] for sizes in outcome.resident_kib.values())
    TABLE["10,000 steps"] |= {"growth_kib": growth}
    assert growth["recorded"] - growth["plain"] < GROWTH_KIB
    for rank in (0, 1):
        info = rank_info(job.run_dir, rank)
        total = sum(record.wall_us for record in RunReader(job.run_dir).steps(0, rank))
        assert info.recorder_cost_us is not None
        TABLE["10,000 steps"] |= {f"cost_share_{rank}": info.recorder_cost_us / total}


def statuses(folder: Path, *options: str) -> dict[int, int]:
    """Return the number of processes by exit status."""
    command = [sys.executable, str(EXITING), str(PAIRS), str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return {int(status): count for status, count in json.loads(done.stdout).items()}


def test_exit_statuses_are_no_worse_when_recorded(tmp_path: Path) -> None:
    recorded, plain = statuses(tmp_path / "recorded", "--recorded"), statuses(tmp_path / "plain")
    print(f"statuses of {2 * PAIRS} processes: recorded {recorded}, plain {plain}")
    # torch's own aborts are rare even here; the recorder must not add any.
    assert recorded.get(0, 0) >= plain.get(0, 0), (recorded, plain)
