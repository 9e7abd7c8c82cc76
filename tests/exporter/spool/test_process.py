"""The spool of a pod without a shared folder: found through its processes, with no further trust in its content."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.exporter.source import FleetState, GpuIdentity, GpuProcess, GpuSample, GpuState
from rankscope.exporter.spool.folder import SpoolFolder
from rankscope.exporter.spool.process_folders import ProcessFolders, pids_on_gpus
from rankscope.exporter.spool.reading import Spool, SpoolError, SpoolSample
from rankscope.exporter.spool.series import RankKey

MOUNTS = "22 1 0:21 / / rw,relatime shared:1 - overlay overlay rw\n23 22 0:5 / /proc rw - proc proc rw\n"


def rank_file(run_id: str) -> str:
    return f'# TYPE rank_info gauge\nrank_info{{run="{run_id}",rank="0",slot="0",run_id="{run_id}"}} 1\n'


class Host:
    """A host with the spool ``…/spool``, and processes with their own roots, in which the spool has the same path."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        self.spool.mkdir()
        self.proc = folder / "proc"
        self.folder = folder
        self.pids: list[int] = []

    def pod(self, pid: int, *, mounts: str = MOUNTS, uid: int | None = None, root: Path | None = None) -> Path:
        """Add a process and return the spool folder that it sees."""
        process = self.proc / str(pid)
        process.mkdir(parents=True)
        uid = os.getuid() if uid is None else uid
        (process / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (process / "mountinfo").write_text(mounts)
        root = self.folder / f"root-{pid}" if root is None else root
        (process / "root").symlink_to(root)
        self.pids.append(pid)
        inside = root / self.spool.relative_to("/")
        inside.mkdir(parents=True, exist_ok=True)
        return inside

    def read(self, pids: Callable[[], list[int]] | None = None) -> SpoolSample:
        processes = ProcessFolders(pids or (lambda: self.pids), proc=self.proc)
        return Spool(SpoolFolder(self.spool), stale_s=300.0, forget_s=86400.0, processes=processes).read()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_ranks_in_pods_are_found_beside_those_of_the_host(host: Host) -> None:
    (host.spool / "a.prom").write_text(rank_file("host"))
    (host.pod(11) / "a.prom").write_text(rank_file("pod-1"))
    (host.pod(12) / "a.prom").write_text(rank_file("pod-2"))

    sample = host.read()

    assert sample.states == {
        RankKey("host", "0", "0"): "running",
        RankKey("pod-1", "0", "0"): "running",
        RankKey("pod-2", "0", "0"): "running",
    }
    assert (sample.rejected, sample.duplicates) == ({}, 0)


def test_a_folder_that_several_processes_see_is_read_once(host: Host) -> None:
    (host.spool / "a.prom").write_text(rank_file("host"))
    (host.pod(11) / "a.prom").write_text(rank_file("pod"))
    host.pod(12, root=host.folder / "root-11")
    host.pod(13, root=Path("/"))  # a process of the host

    sample = host.read()

    assert (sample.ok_files, sample.duplicates) == (2, 0)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_link_leads_nowhere(depth: int, host: Host) -> None:
    secret = host.folder / "elsewhere" / host.spool.name
    secret.mkdir(parents=True)
    (secret / "a.prom").write_text(rank_file("stolen"))
    inside = host.pod(11)
    inside.rmdir()
    if depth == 1:
        inside.symlink_to(secret)
    else:
        inside.parent.rmdir()
        inside.parent.symlink_to(secret.parent)

    sample = host.read()

    assert sample.states == {}
    assert sample.rejected == {"process_unreadable": 1}


def test_only_files_of_the_user_the_process_runs_as_count(host: Host) -> None:
    (host.pod(11, uid=os.getuid() + 1) / "a.prom").write_text(rank_file("pod"))

    sample = host.read()

    assert sample.states == {}
    assert sample.rejected == {"foreign_owner": 1}


@pytest.mark.parametrize(
    "mount",
    [
        "24 22 0:40 / {spool} rw - fuse.sshfs x rw\n",
        "24 22 0:40 / {parent} rw - nfs4 server:/export rw\n",
        "24 22 0:40 / {escaped} rw - 9p x rw\n",
        "nonsense\n",
    ],
)
def test_a_file_system_that_can_hang_is_not_entered(mount: str, host: Host) -> None:
    escaped = "".join(rf"\{ord(character):03o}" if character != "/" else "/" for character in str(host.spool))
    (
        host.pod(11, mounts=MOUNTS + mount.format(spool=host.spool, parent=host.spool.parent, escaped=escaped)) / "a.prom"
    ).write_text(rank_file("pod"))

    sample = host.read()

    assert sample.states == {}
    assert sample.rejected == {"process_not_local": 1}


def test_other_mounts_do_not_matter(host: Host) -> None:
    mounts = MOUNTS + f"24 22 0:40 / {host.spool}-of-another rw - nfs4 x rw\n25 22 0:41 / {host.spool.parent} rw - tmpfs x rw\n"
    (host.pod(11, mounts=mounts) / "a.prom").write_text(rank_file("pod"))

    assert host.read().states == {RankKey("pod", "0", "0"): "running"}


def test_a_process_that_ended_or_has_no_spool_is_no_problem(host: Host) -> None:
    host.pod(11).rmdir()

    sample = host.read(lambda: [11, 999_999])

    assert sample.rejected == {}


def test_a_relative_spool_is_the_same_one_in_processes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.pod(11) / "a.prom").write_text(rank_file("pod"))
    monkeypatch.chdir(host.folder)
    host.spool = Path("spool")

    assert host.read().states == {RankKey("pod", "0", "0"): "running"}


def test_no_descriptor_is_left_open(host: Host) -> None:
    for pid in range(11, 15):
        (host.pod(pid) / "a.prom").write_text(rank_file(f"pod-{pid}"))
    host.read()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        host.read()

    assert len(list(Path("/proc/self/fd").iterdir())) == before


@contextlib.contextmanager
def process_with_root(root: Path, uid: int) -> Iterator[int]:
    script = (
        "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.setuid(int(sys.argv[2])); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(root), str(uid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for a process with a root of its own")
def test_a_real_process_with_a_root_and_a_user_of_its_own(host: Host) -> None:
    root = host.folder / "container"
    inside = root / host.spool.relative_to("/")
    inside.mkdir(parents=True)
    for name, uid in (("mine", 1001), ("foreign", 1002)):
        (inside / f"{name}.prom").write_text(rank_file(name))
        os.chown(inside / f"{name}.prom", uid, uid)
    with process_with_root(root, 1001) as pid:
        sample = Spool(
            SpoolFolder(host.spool), stale_s=300.0, forget_s=86400.0, processes=ProcessFolders(lambda: [pid, os.getpid()])
        ).read()

    assert sample.states == {RankKey("mine", "0", "0"): "running"}
    assert sample.owners == {"mine": 1001}
    assert sample.rejected == {"foreign_owner": 1}


def _failing(number: int, *, inode: int | None = None, name: str = "") -> Callable[..., Any]:
    """Return ``os.scandir`` that fails for the folder with this inode, or ``os.stat`` that fails for the file of this name."""
    call = os.scandir if inode is not None else os.stat

    def fails(path: Any, *args: Any, **options: Any) -> Any:
        if path == name if inode is None else isinstance(path, int) and os.fstat(path).st_ino == inode:
            raise OSError(number, os.strerror(number))
        return call(path, *args, **options)

    return fails


def test_a_folder_that_cannot_be_read_costs_only_its_own_ranks(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.spool / "a.prom").write_text(rank_file("host"))
    (host.pod(11) / "a.prom").write_text(rank_file("pod-1"))
    broken = host.pod(12)
    monkeypatch.setattr(os, "scandir", _failing(errno.EIO, inode=broken.stat().st_ino))

    sample = host.read()

    assert {key.run for key in sample.states} == {"host", "pod-1"}
    assert sample.rejected == {"process_unreadable": 1}


def test_a_spool_that_cannot_be_read_is_an_error_that_names_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "scandir", _failing(errno.EIO, inode=host.spool.stat().st_ino))

    with pytest.raises(SpoolError, match=re.escape(str(host.spool))):
        host.read()


def test_a_file_that_cannot_be_read_costs_only_its_own_rank(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.spool / "a.prom").write_text(rank_file("good"))
    (host.spool / "b.prom").write_text(rank_file("bad"))
    monkeypatch.setattr(os, "stat", _failing(errno.EIO, name="b.prom"))

    sample = host.read()

    assert {key.run for key in sample.states} == {"good"}
    assert sample.rejected == {"unreadable": 1}


def test_the_processes_are_those_that_have_a_gpu_open() -> None:
    def gpu(index: int, processes: tuple[GpuProcess, ...] | None) -> GpuState:
        identity = GpuIdentity(uuid=f"GPU-{index}", index=index, model="H100", pci_bus_id="")
        return GpuState(identity, up=True, sample=GpuSample(identity, 0.0, 0.0, processes=processes))

    down = GpuState(GpuIdentity(uuid="GPU-9", index=9, model="H100", pci_bus_id=""), up=False)
    gpus = (
        gpu(0, (GpuProcess(5, "compute", 1), GpuProcess(6, "compute", None))),
        gpu(1, None),
        gpu(2, (GpuProcess(5, "mps", 1),)),
        down,
    )

    assert pids_on_gpus(FleetState(gpus, None, {}, 0, 0, None, None)) == {5, 6}
