"""One run directory, several users: different uids, umasks, and unreadable or unwritable folders."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.profiler.handovers import handover_of
from tests.ring_step import put_step, ring_in
from tests.step_files import append

from rankscope.profiler.handover import HANDOVER_FILE, RING_FILE
from rankscope.profiler.helper.writing.store import RunStore
from rankscope.profiler.ring import EndState
from rankscope.runs.paths import rank_dir, segment
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RunInfo, StepRecord
from rankscope.runs.small_files import create_run, make_folder

ALICE, BOB, STRANGER, TEAM = 41001, 41002, 41003, 41100

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture
def shared() -> Iterator[Path]:
    """Folder that every user can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def become(user: int, groups: list[int] | None = None, umask: int = 0o022) -> str:
    """Return code that switches its process to this user.

    It switches after all imports: the interpreter may be in a folder that only root may read.
    """
    return (
        "import encodings.idna, json, os, sys; from pathlib import Path; "
        "import numpy, rankscope.runs.step_segments; "
        "from rankscope.profiler.helper import __main__ as helper; from rankscope.profiler.helper.writing import writer_thread; "
        "from rankscope.runs.reader import RunReader; "
        f"os.setgroups({groups or []}); os.setgid({user}); os.setuid({user}); os.umask({umask})"
    )


class Rank:
    """Helper process of a given user, with the records of one rank waiting in its ring."""

    def __init__(self, place: Path, run: Path, rank: int, *, user: int, umask: int, groups: list[int] | None = None) -> None:
        self.scratch = place / f"scratch{rank}"
        self.scratch.mkdir()
        self.ring = ring_in(self.scratch / RING_FILE)
        handover = handover_of(run, rank=rank, pid=rank, world_size=2, settings={"window_steps": 0})
        (self.scratch / HANDOVER_FILE).write_bytes(msgspec.json.encode(handover))
        for path in (self.scratch, *self.scratch.iterdir()):
            os.chown(path, user, user)
        for number in range(20):
            assert put_step(self.ring, number)
        self.ring.set_end(EndState.EXIT)
        # At the end, a disk that refuses writes is retried for a shorter time.
        main = "helper.main(Path(sys.argv[1]), int(sys.argv[2]))"
        code = f"{become(user, groups, umask)}; writer_thread.LAST_TRY_SECONDS = 0.5; {main}"
        with (self.scratch / RING_FILE).open("r+b") as file:
            memory = file.fileno()
            command = [sys.executable, "-P", "-c", code, str(self.scratch), str(memory)]
            self.helper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/", pass_fds=[memory]
            )

    def end(self) -> str:
        """End the rank and return the output of its helper."""
        _, output = self.helper.communicate()
        self.ring.close()
        assert self.helper.returncode == 0, output
        return output


def read_as(user: int, run: Path, *, groups: list[int] | None = None) -> dict[str, object]:
    """Return steps per rank and names of unusable files, as this user sees the run."""
    code = f"""{become(user, groups)}
reader = RunReader(Path(sys.argv[1]))
steps = {{rank: len(list(reader.steps(0, rank))) for rank in reader.ranks(0)}}
infos = [rank for rank in reader.ranks(0) if reader.rank(0, rank)]
print(json.dumps(dict(steps=steps, infos=infos, unusable=[path.name for path in reader.unusable])))
"""
    command = [sys.executable, "-P", "-c", code, str(run)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    read: dict[str, object] = msgspec.json.decode(completed.stdout)
    return read


@pytest.mark.full
@as_root
@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o077, *(pytest.param(umask, marks=pytest.mark.full) for umask in (0o022, 0o027))])
def test_users_of_a_group_share_a_run_regardless_of_umask(shared: Path, umask: int) -> None:
    # given a folder made for a group
    run = shared / "run"
    run.mkdir()
    os.chown(run, ALICE, TEAM)
    run.chmod(0o2770)
    # when ranks of two users record into it, at once
    ranks = [Rank(shared, run, number, user=user, umask=umask, groups=[TEAM]) for number, user in ((0, ALICE), (1, BOB))]
    assert [rank.end() for rank in ranks] == ["", ""]
    # then both are there, each user can read everything, and other users cannot even list it
    for user in (ALICE, BOB):
        assert read_as(user, run, groups=[TEAM]) == {"steps": {"0": 20, "1": 20}, "infos": [0, 1], "unusable": []}
    with pytest.raises(subprocess.CalledProcessError):
        read_as(STRANGER, run)
    assert {path.stat().st_gid for path in run.rglob("*")} == {TEAM}
    assert {stat.S_IMODE(path.stat().st_mode) for path in run.rglob("*") if path.is_file()} == {0o640}


@as_root
@pytest.mark.slow
def test_rank_without_write_permission_logs_once_and_others_record(
    shared: Path,
) -> None:
    run = shared / "run"
    run.mkdir()
    os.chown(run, ALICE, ALICE)
    run.chmod(0o755)
    assert Rank(shared, run, 0, user=ALICE, umask=0o077).end() == ""
    output = Rank(shared, run, 1, user=BOB, umask=0o022).end()
    assert output.count("cannot write to") == 1
    assert "gave up writing the last 20 steps (Permission denied)" in output
    assert "rank 1: cannot write to" in output
    # Every reader of the folder may read its files, despite the umask of their writer.
    assert read_as(STRANGER, run) == {"steps": {"0": 20}, "infos": [0], "unusable": []}


@as_root
@pytest.mark.slow
def test_unreadable_rank_is_listed_and_the_others_are_read(shared: Path) -> None:
    run = shared / "run"
    for rank in range(4):
        append(rank_dir(run, 0, rank), "steps", StepRecord(step=0, start_unix_ns=1, wall_us=1.0))
    create_run(run, RunInfo(run_id="r", name="test", start_unix_ns=1))
    rank_dir(run, 0, 1).chmod(0o700)
    segment(rank_dir(run, 0, 2), "steps", 0).chmod(0o600)
    read = read_as(STRANGER, run)
    assert read["steps"] == {"0": 1, "1": 0, "2": 0, "3": 1}
    assert read["unusable"] == ["00001", "steps-000000.npy", "rank.json"]


def test_ranks_of_two_jobs_are_not_mixed_in_one_attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given a job of two ranks that goes on, and one of four that uses the same folder; the places of its last ranks are free
    def joins(rank: int, world_size: int) -> bool:
        handover = handover_of(tmp_path, rank=rank, pid=os.getpid(), world_size=world_size)
        living = msgspec.structs.replace(handover.rank, start_unix_ns=time.time_ns())
        store = RunStore(msgspec.structs.replace(handover, rank=living))
        store.flush()
        store.close()
        return store.begun

    assert [joins(rank, 2) for rank in range(2)] == [True, True]
    assert [joins(rank, 4) for rank in range(4)] == [False] * 4
    assert capsys.readouterr().err.count("is that of another job, of 2 rank(s), and this process is one of 4") == 4
    assert RunReader(tmp_path).ranks(0) == [0, 1]


def test_run_is_recorded_when_permissions_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def squashed(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    # As where root is mapped to nobody (NFS root_squash), or the filesystem has no modes.
    monkeypatch.setattr(Path, "chmod", squashed)
    monkeypatch.setattr(os, "fchmod", squashed)
    create_run(tmp_path / "run", RunInfo(run_id="r", name="test", start_unix_ns=1))
    append(rank_dir(tmp_path / "run", 0, 0), "steps", StepRecord(step=0, start_unix_ns=1, wall_us=1.0))
    assert len(list(RunReader(tmp_path / "run").steps(0, 0))) == 1


def test_run_folder_follows_the_umask_and_contents_follow_the_run_folder(tmp_path: Path) -> None:
    # given a folder in which every user may create files, like /tmp
    tmp_path.chmod(0o1777)
    before = os.umask(0o027)
    try:
        create_run(tmp_path / "run", RunInfo(run_id="r", name="test", start_unix_ns=1))
        os.umask(0o077)
        make_folder(rank_dir(tmp_path / "run", 0, 0))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run", *(tmp_path / "run").rglob("*"))}
    assert modes == {"run": 0o750, "run.json": 0o640, "attempts": 0o750, "000": 0o750, "ranks": 0o750, "00000": 0o750}


@pytest.mark.parametrize("what", ["dangling link", "file"])
def test_invalid_rank_folder_is_listed_and_the_others_are_read(tmp_path: Path, what: str) -> None:
    create_run(tmp_path, RunInfo(run_id="r", name="test", start_unix_ns=1))
    append(rank_dir(tmp_path, 0, 1), "steps", StepRecord(step=0, start_unix_ns=1, wall_us=1.0))
    broken = rank_dir(tmp_path, 0, 0)
    if what == "file":
        broken.touch()
    else:
        broken.symlink_to(tmp_path / "nowhere")
    reader = RunReader(tmp_path)
    assert {rank: len(list(reader.steps(0, rank))) for rank in reader.ranks(0)} == {0: 0, 1: 1}
    assert reader.unusable == [broken]
