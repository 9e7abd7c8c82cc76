"""Processes, read from ``/proc``: real, exited, foreign, and stuck ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exporter.jobs.job_node import CONTAINER, IN_POD, POD_UID, Proc, in_job
from tests.waiting import wait_until

from rankscope.exporter.jobs import processes
from rankscope.exporter.jobs.bounded_calls import BoundedCalls
from rankscope.exporter.jobs.names import UserNames
from rankscope.exporter.jobs.party import GpuUse, Ranks
from rankscope.exporter.jobs.processes import ProcessTable


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    env = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "RANKSCOPE_RUN_ID": "r1", "SLURM_JOB_ID": "77"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as process:
        yield process
        process.kill()


def _now(*pids: int) -> dict[int, float]:
    return dict.fromkeys(pids, time.monotonic())


def test_live_process_is_read(sleeper: subprocess.Popen[bytes]) -> None:
    uses = ProcessTable().read(_now(sleeper.pid, 2**22 + 1))  # no process has the second pid

    assert list(uses) == [sleeper.pid]
    use = uses[sleeper.pid]
    assert (use.uid, use.claimed_job_id, use.environ_read, use.service) == (os.getuid(), "77", True, False)
    assert use.ranks == Ranks(rank="3", local_rank="1", world_size="8", run_id="r1")


def test_processes_in_a_job_and_in_a_pod_are_identified(proc: Proc) -> None:
    proc.process(
        10, uid=1000, cgroup=in_job(7), environ={"RANK": "0", "SLURM_JOB_ACCOUNT": "physics", "SLURM_JOB_PARTITION": "a100"}
    )
    proc.process(11, uid=0, cgroup=IN_POD)
    proc.process(12, uid=0, name="nvidia-cuda-mps-server"[:15])

    assert ProcessTable(proc.path).read(_now(10, 11, 12, 13)) == {
        10: GpuUse(pid=10, uid=1000, job_id="7", account="physics", partition="a100", ranks=Ranks(rank="0"), environ_read=True),
        11: GpuUse(pid=11, uid=0, pod_uid=POD_UID, container_id=CONTAINER),
        12: GpuUse(pid=12, uid=0, service=True),
    }


def test_reused_pid_is_detected(proc: Proc) -> None:
    table = ProcessTable(proc.path)
    proc.process(10, uid=1000, start_ticks=100)
    assert table.read({10: 1000.0}, now_s=1000.0)[10].uid == 1000

    proc.process(10, uid=2000, start_ticks=100)
    assert table.read({10: 1001.0}, now_s=1001.0)[10].uid == 1000  # cached: read again only after a while

    proc.process(10, uid=2000, start_ticks=200)
    assert table.read({10: 1002.0}, now_s=1002.0)[10].uid == 2000

    # and a process that began after the driver listed its pid is a different process
    proc.process(10, uid=2000, start_ticks=os.sysconf("SC_CLK_TCK") * 2**31)
    assert table.read({10: 1003.0}, now_s=2.0**40) == {}


def test_changed_process_is_read_again_after_the_cache_expires(proc: Proc) -> None:
    table = ProcessTable(proc.path)
    proc.process(10, environ={"RANK": "0"})
    assert table.read({10: 1000.0}, now_s=1000.0)[10].ranks == Ranks(rank="0")

    proc.process(10, environ={"RANK": "5"}, cgroup=in_job(9))

    assert table.read({10: 1060.0}, now_s=1060.0)[10].ranks == Ranks(rank="5")


def test_malformed_process_files_do_not_hide_other_processes(proc: Proc) -> None:
    proc.process(10)
    (proc.process(11) / "status").write_text("Name:\tx\n")
    (proc.process(12) / "stat").write_text("12 (x) S 1\n")
    (proc.process(13) / "cgroup").unlink()
    (proc.process(14) / "environ").write_bytes(b"RANK=4\0" + b"X" * 10_000_000)
    (proc.process(15) / "environ").unlink()
    (proc.path / "16").write_text("not a folder")

    uses = ProcessTable(proc.path).read(_now(*range(10, 17)))

    assert sorted(uses) == [10, 14, 15]
    assert uses[14].ranks == Ranks(rank="4")
    assert not uses[15].environ_read


def test_unreadable_environment_is_marked_unread(proc: Proc, tmp_path: Path, without_privilege: list[str]) -> None:
    folder = proc.process(10, uid=1000, cgroup=in_job(7), environ={"RANK": "1"})
    (folder / "environ").chmod(0)
    script = (
        "import sys, pathlib; from rankscope.exporter.jobs.processes import ProcessTable; "
        "use = ProcessTable(pathlib.Path(sys.argv[1])).read({10: 1e9})[10]; "
        "print(use.job_id, use.uid, use.environ_read, use.ranks.rank)"
    )

    command = [*without_privilege, sys.executable, "-c", script, str(proc.path)]

    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7 1000 False None\n"


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[set[str], list[str]]]:
    """Pids whose environments are not read until the test ends, and those that were asked for theirs."""
    pids: set[str] = set()
    asked: list[str] = []
    released = threading.Event()
    read = processes._bytes

    def read_or_hang(name: str, process_fd: int) -> bytes:
        pid = Path(f"/proc/self/fd/{process_fd}").readlink().name
        if name == "environ" and pid in pids:
            asked.append(pid)
            released.wait()
        return read(name, process_fd)

    monkeypatch.setattr(processes, "_bytes", read_or_hang)
    yield pids, asked
    released.set()


def test_process_stuck_in_the_kernel_hides_no_other_process(proc: Proc, stuck: tuple[set[str], list[str]]) -> None:
    pids, asked = stuck
    pids.add("10")
    proc.process(10, uid=1000, cgroup=in_job(7))
    proc.process(11, uid=1001, environ={"RANK": "1"})

    table = ProcessTable(proc.path)
    for now_s in (1000.0, 1001.0, 1100.0):
        uses = table.read({10: now_s, 11: now_s}, now_s=now_s)
        assert (uses[10].job_id, uses[10].environ_read, uses[11].ranks.rank) == ("7", False, "1")
    assert asked == ["10"]


def test_many_stuck_processes_leave_no_descriptors_behind(proc: Proc, stuck: tuple[set[str], list[str]]) -> None:
    for pid in range(10, 20):
        proc.process(pid)
        stuck[0].add(str(pid))
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert len(ProcessTable(proc.path).read(_now(*range(10, 20)))) == 10
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def test_pids_are_trusted_only_in_the_initial_pid_namespace(tmp_path: Path) -> None:
    assert ProcessTable(Proc(tmp_path / "node").path).sees_all()
    assert not ProcessTable(Proc(tmp_path / "container", first_namespace=False).path).sees_all()
    assert not ProcessTable(tmp_path / "nothing").sees_all()


def test_number_of_hung_calls_is_bounded() -> None:
    released, begun = threading.Event(), []
    calls = BoundedCalls(0.01, max_stuck=2)

    def hang() -> None:
        begun.append(1)
        released.wait()

    for _ in range(5):
        with pytest.raises(TimeoutError):
            calls.call(hang)
    assert len(begun) == 2

    released.set()
    assert BoundedCalls(30).call(lambda: 7) == 7

    def answers() -> bool:
        try:
            return calls.call(lambda: 8) == 8
        except TimeoutError:
            return False

    wait_until(answers)
    with pytest.raises(ZeroDivisionError):
        BoundedCalls(30).call(lambda: 1 // 0)


def test_process_is_read_without_a_thread_for_the_environment(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.process(10, uid=1000, cgroup=in_job(7), environ={"RANK": "1"})

    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)

    use = ProcessTable(proc.path).read(_now(10))[10]

    assert (use.job_id, use.environ_read, use.ranks.rank) == ("7", False, None)


def test_users_are_named_and_a_hanging_directory_misnames_no_user() -> None:
    released = threading.Event()

    def look_up(uid: int) -> str:
        if uid == 1:
            released.wait()
        if uid == 2:
            raise KeyError(uid)
        if uid == 4:
            raise OverflowError("a fault of the directory service")
        return {0: "root", 1: "slow", 3: 'o"dd'}[uid]

    names = UserNames(look_up, wait_s=0.05)
    try:
        assert UserNames(look_up, wait_s=30).names([4, 0, 2, 3]) == {0: "root", 2: "2", 3: "3", 4: "4"}
        assert names.names([1]) == {}
        assert names.names([0, 1]) == {}
    finally:
        released.set()
    wait_until(lambda: names.names([0, 1]) == {0: "root", 1: "slow"})
