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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.waiting import wait_until

from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

JOB = Path(__file__).parent / "jobs" / "faulty_training.py"
STEPS, AT = 200, 100
BUDGET = 0.01
GROWTH_KIB = 5 * 1024
SETTLED = 40
"""Step by which the first window is over and everything is loaded."""
KILLS = int(os.environ.get("RANKSCOPE_CAMPAIGN_KILLS", "100"))

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *step;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("CLOCK_STEP");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) step = map;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int code = (int)syscall(SYS_clock_gettime, id, at);
    if (!code && id == CLOCK_REALTIME && step) at->tv_sec += *step;
    return code;
}

static void crawl(int fd) {
    const char *slow = getenv("SLOW_FOLDER");
    char link[64], path[4096];
    if (!slow) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    if (!strncmp(path, slow, strlen(slow))) sleep(5);
}

ssize_t write(int fd, const void *data, size_t size) {
    crawl(fd);
    return syscall(SYS_write, fd, data, size);
}
"""


@dataclass
class Outcome:
    """Outcome of a job, from its own log."""

    status: int
    losses: dict[int, list[str]]
    walls_us: dict[int, list[int]]
    resident_kib: dict[int, list[int]]
    stderr: str


@dataclass
class Job:
    """Settings of the job of one test."""

    folder: Path
    steps: int = STEPS
    pause: float = 0.05
    fault: str = "none"
    environment: dict[str, str] | None = None

    def run(
        self,
        *,
        recorded: bool,
        during: Callable[[Job], None] | None = None,
        run_dir: Path | None = None,
        args: tuple[str, ...] = (),
    ) -> Outcome:
        """Run the job to its end; ``during`` is called once both ranks have done half of their steps."""
        log = self.log(recorded=recorded)
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir()
        job = [str(JOB), "--journal", str(log), "--steps", str(self.steps), "--pause", str(self.pause)]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [*job, "--fault", self.fault, "--at", str(AT)]
        if recorded:
            options = ["--run-dir", str(run_dir or self.run_dir), "--no-verdict", "--window-first", "20", *args]
            command = [sys.executable, "-m", "rankscope", "run", *options, "--", *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(self.environment or {})}
        with (self.folder / "stderr").open("w+", encoding="utf-8") as stderr:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
            if during is not None:
                self._at_half(log, process)
                during(self)
            stdout, _ = process.communicate(timeout=900)
            stderr.seek(0)
            output = stderr.read()
        assert "rankscope" not in stdout
        rows = {rank: _rows(log / f"rank-{rank}") for rank in (0, 1)}
        return Outcome(
            process.returncode,
            {rank: [row[1] for row in rank_rows] for rank, rank_rows in rows.items()},
            {rank: [int(row[2]) for row in rank_rows] for rank, rank_rows in rows.items()},
            {rank: [int(row[3]) for row in rank_rows] for rank, rank_rows in rows.items()},
            output,
        )

    def _at_half(self, log: Path, process: subprocess.Popen[str]) -> None:
        half = self.steps // 2
        wait_until(lambda: all(len(_rows(log / f"rank-{rank}")) > half for rank in (0, 1)), timeout=300, process=process)

    def log(self, *, recorded: bool) -> Path:
        """Return the folder of the ranks' logs."""
        return self.folder / ("recorded" if recorded else "plain")

    @property
    def run_dir(self) -> Path:
        """Run directory of the recorder."""
        return self.folder / "run"

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks of the recorded job."""
        return [int(_rows(self.log(recorded=True) / f"rank-{rank}")[-1][4]) for rank in (0, 1)]


def _rows(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    return [line.split() for line in path.read_text(encoding="ascii").splitlines() if line.count(" ") == 4]


def _helpers(parents: list[int]) -> list[int]:
    helpers = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if b"rankscope.profiler.helper" in command and parent in parents:
            helpers.append(int(entry.name))
    return helpers


def rank_info(run_dir: Path, rank: int) -> RankInfo:
    """Return the rank.json of a rank of the first attempt."""
    info = RunReader(run_dir).rank(0, rank)
    assert info is not None
    return info


def recorded_steps(run_dir: Path, rank: int) -> list[int]:
    """Return the numbers of a rank's steps in the run."""
    return [record.step for record in RunReader(run_dir).steps(0, rank)]


def nothing_changed(plain: Outcome, recorded: Outcome) -> None:
    """Check that the recorder made no difference to training."""
    assert recorded.status == plain.status, recorded.stderr
    for rank in (0, 1):
        both = min(len(plain.losses[rank]), len(recorded.losses[rank]))
        assert both
        assert recorded.losses[rank][:both] == plain.losses[rank][:both]
        assert abs(len(plain.losses[rank]) - len(recorded.losses[rank])) <= 1
        growth = [
            sizes[-1] - sizes[SETTLED]
            for sizes in (plain.resident_kib[rank], recorded.resident_kib[rank])
            if len(sizes) > SETTLED
        ]
        assert len(growth) < 2 or growth[1] - growth[0] < GROWTH_KIB


def cost_and_wall(job: Job, outcome: Outcome, rank: int, run_dir: Path | None = None) -> tuple[float, float]:
    """Return the recorder's cost in a rank and the total time of the rank's steps, in microseconds."""
    info = rank_info(run_dir or job.run_dir, rank)
    assert info.recorder_cost_us is not None
    # The first window opens at any cost; a job that ends soon after has not amortized it.
    unpaid = (info.window_cost_us or 0) if info.windows == 1 else 0
    return info.recorder_cost_us - unpaid, sum(outcome.walls_us[rank])


def within_budget(job: Job, outcome: Outcome, run_dir: Path | None = None) -> None:
    """Check that the recorder's cost is within its budget on every rank."""
    for rank in (0, 1):
        cost, wall = cost_and_wall(job, outcome, rank, run_dir)
        assert cost <= BUDGET * wall


def nothing_lost(job: Job, outcome: Outcome, run_dir: Path | None = None) -> None:
    """Check that every step that ended is in the run once, or counted as dropped."""
    for rank in (0, 1):
        numbers = recorded_steps(run_dir or job.run_dir, rank)
        assert len(set(numbers)) == len(numbers)
        dropped = rank_info(run_dir or job.run_dir, rank).dropped_records
        # The log is written after the step's end; the first step may have a number and no record.
        assert len(numbers) + dropped >= len(outcome.losses[rank]) - 1


def said_once(outcome: Outcome, rank: int, words: str) -> None:
    """Check that the reason is on stderr once for the rank."""
    lines = [line for line in outcome.stderr.splitlines() if f"rankscope: rank {rank}:" in line and words in line]
    assert len(lines) == 1, outcome.stderr


TABLE: dict[str, dict[str, object]] = {}


def note(name: str, job: Job, plain: Outcome, recorded: Outcome, run_dir: Path | None = None) -> None:
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
def shim(tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]) -> Path:
    """Path of a preloaded C library that makes writes to a folder slow and the wall clock wrong."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM, encoding="utf-8")
    command = [require_program("gcc"), "-shared", "-fPIC", "-O1", "-o", str(folder / "shim.so"), str(folder / "shim.c")]
    subprocess.run(command, check=True)
    return folder / "shim.so"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Outcome of the job without a fault and without the recorder."""
    return Job(tmp_path_factory.mktemp("plain")).run(recorded=False)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """Folder on a separate file system of 600 KiB."""
    folder = tmp_path / "tmpfs"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("cannot mount a small file system here: run as root")
    yield folder
    # A test may have mounted it again, read-only.
    while subprocess.run(["umount", "-l", folder], capture_output=True, check=False).returncode == 0:
        pass


@pytest.mark.parametrize(
    "fault", ["none", "exception", "keyboard", "sigterm", "oom", "fork", "profiler_raises", "foreign_profiler"]
)
def test_what_the_script_does_to_itself(tmp_path: Path, fault: str) -> None:
    job = Job(tmp_path, fault=fault)
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


def test_a_full_disk(tmp_path: Path, tmpfs: Path, plain: Outcome) -> None:
    job = Job(tmp_path)
    run_dir = tmpfs / "run"

    def fill(_job: Job) -> None:
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


def test_a_folder_that_is_removed(tmp_path: Path, plain: Outcome) -> None:
    job = Job(tmp_path)
    recorded = job.run(recorded=True, during=lambda job: shutil.rmtree(job.run_dir))
    note("folder removed", job, plain, recorded)
    nothing_changed(plain, recorded)
    for rank in (0, 1):
        said_once(recorded, rank, "removed")
    assert not (job.run_dir / "run.json").exists()


def test_a_folder_that_becomes_read_only(tmp_path: Path, tmpfs: Path, plain: Outcome) -> None:
    job = Job(tmp_path)
    run_dir = tmpfs / "run"

    def remount(_job: Job) -> None:
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


def test_a_file_system_that_takes_five_seconds_per_write(tmp_path: Path, shim: Path, plain: Outcome) -> None:
    job = Job(tmp_path, environment={"LD_PRELOAD": str(shim), "SLOW_FOLDER": str(tmp_path / "run")})
    recorded = job.run(recorded=True)
    note("5 s per write", job, plain, recorded)
    nothing_changed(plain, recorded)
    nothing_lost(job, recorded)
    within_budget(job, recorded)


def test_a_helper_that_is_killed(tmp_path: Path, plain: Outcome) -> None:
    job = Job(tmp_path)

    def kill(job: Job) -> None:
        helpers = _helpers(job.ranks())
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


def test_an_exporter_that_goes(tmp_path: Path, plain: Outcome) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# nothing\n")

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    job = Job(tmp_path)

    def stop(_job: Job) -> None:
        server.shutdown()
        server.server_close()

    recorded = job.run(recorded=True, during=stop, args=("--exporter-url", f"http://127.0.0.1:{server.server_port}/metrics"))
    note("exporter gone", job, plain, recorded)
    nothing_changed(plain, recorded)
    nothing_lost(job, recorded)
    within_budget(job, recorded)


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_clock_that_steps(tmp_path: Path, shim: Path, plain: Outcome, seconds: int) -> None:
    (tmp_path / "clock").write_bytes(bytes(8))
    job = Job(tmp_path, environment={"LD_PRELOAD": str(shim), "CLOCK_STEP": str(tmp_path / "clock")})

    def step(_job: Job) -> None:
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


def test_a_rank_that_is_killed_at_any_moment(tmp_path: Path) -> None:
    moments = random.Random(0)  # reproducible
    seen = []
    costs, walls = [], []
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        job = Job(folder, steps=400, pause=0.02)

        def kill(job: Job) -> None:
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


def test_ten_thousand_steps(tmp_path: Path) -> None:
    job = Job(tmp_path, steps=10_000, pause=0.0)
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
