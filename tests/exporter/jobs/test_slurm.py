"""Slurm's prolog and epilog: run as Slurm runs them, and under a real one-node Slurm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state, uuid_of
from tests.exporter.jobs.job_node import ROOT, slurm_folder
from tests.slurm_node import Slurm, started

from rankscope.exporter.jobs import slurm
from rankscope.exporter.jobs.party import PartyIdentity, SchedulerDevice
from rankscope.exporter.jobs.slurm import SlurmError, SlurmFolder, devices_of
from rankscope.exporter.spool.file import read_regular
from rankscope.exporter.spool.series import RejectedError

RunScript = Callable[..., subprocess.CompletedProcess[str]]

SCRIPTS = ROOT / "exporter" / "slurm"
GPU = "GPU-10000000-aaaa-bbbb-cccc-000000000000"
MIG = "MIG-20000000-aaaa-bbbb-cccc-000000000000"
ANN = {"SLURM_JOB_USER": "ann", "SLURM_JOB_UID": "1000", "SLURM_JOB_ACCOUNT": "physics", "SLURM_JOB_PARTITION": "a100"}


@pytest.fixture(params=["sh", "bash"])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> RunScript:
    """Function ``script("prolog", SLURM_JOB_ID="7")`` that runs a script with no other variables, as Slurm does."""

    def run(name: str, *, folder: Path = tmp_path / "run" / "jobs", **variables: str) -> subprocess.CompletedProcess[str]:
        env = {"RANKSCOPE_JOBS_DIR": str(folder), **variables}
        command = [f"/bin/{request.param}", str(SCRIPTS / f"{name}.sh")]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)

    return run


def _read(folder: Path) -> SlurmFolder:
    return SlurmFolder(folder, explicit=False)


def test_job_is_listed_from_prolog_to_epilog(script: RunScript, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "jobs"
    assert _read(folder).read() is None

    completed = script("prolog", SLURM_JOB_ID="123", SLURM_JOB_GPUS="0,2", **ANN)

    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    assert folder.stat().st_mode & 0o7777 == 0o755
    (allocation,) = _read(folder).read() or ()
    assert allocation.identity == PartyIdentity(job_id="123", user="ann", uid=1000, account="physics", partition="a100")
    assert allocation.devices == (SchedulerDevice(number=0), SchedulerDevice(number=2))

    assert script("epilog", SLURM_JOB_ID="123").returncode == 0

    # then no job holds a GPU, and this is known because Slurm's folder exists
    assert _read(folder).read() == ()
    assert [path.name for path in folder.iterdir()] == [".slurm"]


def test_all_kinds_of_jobs_are_read_together(script: RunScript, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "jobs"
    # given a task of an array, the two parts of a heterogeneous job, sharing by MPS, MIG, and a job without GPUs
    script("prolog", SLURM_JOB_ID="20", SLURM_ARRAY_JOB_ID="18", SLURM_ARRAY_TASK_ID="2", SLURM_JOB_GPUS="1", **ANN)
    script("prolog", SLURM_JOB_ID="21", SLURM_HET_JOB_ID="21", SLURM_JOB_GPUS="2", **ANN)
    script("prolog", SLURM_JOB_ID="22", SLURM_HET_JOB_ID="21", SLURM_JOB_GPUS="3", **ANN)
    script("prolog", SLURM_JOB_ID="23", CUDA_VISIBLE_DEVICES="4", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50", **ANN)
    script("prolog", SLURM_JOB_ID="24", SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES=MIG, **ANN)
    script("prolog", SLURM_JOB_ID="25", SLURM_JOB_GPUS="NoDevFiles", **ANN)

    allocations = {allocation.identity.job_id: allocation.devices for allocation in _read(folder).read() or ()}

    assert allocations == {
        "20": (SchedulerDevice(number=1),),
        "21": (SchedulerDevice(number=2),),
        "22": (SchedulerDevice(number=3),),
        "23": (SchedulerDevice(number=4),),
        "24": (SchedulerDevice(uuid=MIG),),
        "25": (),
    }


def test_prolog_records_the_sluid(script: RunScript, tmp_path: Path) -> None:
    script("prolog", SLURM_JOB_ID="7", SLURM_JOB_SLUID="s5K1KKYAYG5D00", SLURM_JOB_GPUS="0")

    (allocation,) = _read(tmp_path / "run" / "jobs").read() or ()

    assert allocation.identity == PartyIdentity(job_id="7", sluid="s5K1KKYAYG5D00")


@pytest.mark.parametrize(
    "variables",
    [{}, {"SLURM_JOB_ID": ""}, {"SLURM_JOB_ID": "../../etc/passwd"}, {"SLURM_JOB_ID": "7 8"}, {"SLURM_JOB_ID": "7\n8"}],
)
def test_scripts_write_nothing_without_a_job(script: RunScript, variables: dict[str, str], tmp_path: Path) -> None:
    for name in ("prolog", "epilog"):
        assert script(name, **variables).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_scripts_always_exit_with_status_0(script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "job-7").mkdir()  # a folder in place of the file: mv would move into it
    for folder in (tmp_path / "file", Path("/proc/none"), tmp_path / "folder", Path("/dev/full")):
        for name in ("prolog", "epilog"):
            assert script(name, folder=folder, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0").returncode == 0


def test_value_with_line_breaks_injects_no_line(script: RunScript, tmp_path: Path) -> None:
    script(
        "prolog", SLURM_JOB_ID="7", SLURM_JOB_ACCOUNT="a\nSLURM_JOB_USER=root", SLURM_JOB_PARTITION='p"=\\', SLURM_JOB_GPUS="0"
    )

    (allocation,) = _read(tmp_path / "run" / "jobs").read() or ()

    assert allocation.identity == PartyIdentity(job_id="7")


def test_file_of_another_boot_is_ignored(tmp_path: Path) -> None:
    folder = slurm_folder(tmp_path / "jobs", job_7={"BOOT_ID": "0000", "SLURM_JOB_GPUS": "0"}, job_8={"SLURM_JOB_GPUS": "1"})

    assert [allocation.identity.job_id for allocation in _read(folder).read() or ()] == ["8"]


def test_folder_without_a_prolog_run_is_no_slurm_source(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir(mode=0o755)

    assert _read(tmp_path / "jobs").read() is None


def test_only_regular_files_of_the_folder_owner_are_read(tmp_path: Path) -> None:
    folder = slurm_folder(tmp_path / "jobs", job_1={"SLURM_JOB_GPUS": "0"})
    (tmp_path / "elsewhere").write_text("SLURM_JOB_ID=2\nSLURM_JOB_GPUS=0\n")
    (folder / "job-2").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "job-3")
    (folder / "job-4").write_bytes(b"SLURM_JOB_ID=4\n" + b"#" * 20_000)
    (folder / "job-5").write_text("SLURM_JOB_ID=6\n")  # file name and content differ
    (folder / "job-8").mkdir()
    (folder / "job-9").write_bytes(b"\xff\xfe\0\n")
    if os.getuid() == 0:
        (folder / "job-7").write_text("SLURM_JOB_ID=7\nSLURM_JOB_GPUS=0\n")
        os.chown(folder / "job-7", 4242, 4242)

    assert [allocation.identity.job_id for allocation in _read(folder).read() or ()] == ["1"]


def test_unreadable_file_hides_no_job_and_frees_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = slurm_folder(tmp_path / "jobs", job_1={"SLURM_JOB_GPUS": "0"}, job_2={"SLURM_JOB_GPUS": "1"})

    def unreadable(name: str, folder_fd: int, max_bytes: int) -> Any:
        if name == "job-2":
            raise RejectedError("unreadable")
        return read_regular(name, folder_fd, max_bytes)

    monkeypatch.setattr(slurm, "read_regular", unreadable)

    assert {allocation.identity.job_id: allocation.devices for allocation in _read(folder).read() or ()} == {
        "1": (SchedulerDevice(number=0),),
        "2": (SchedulerDevice(),),
    }


def test_folder_writable_by_other_users_is_refused(tmp_path: Path) -> None:
    folder = slurm_folder(tmp_path / "jobs", job_1={})
    folder.chmod(0o777)

    with pytest.raises(SlurmError, match="can be written by others"):
        _read(folder).read()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_trusted_only_if_configured(tmp_path: Path) -> None:
    folder = slurm_folder(tmp_path / "jobs", job_1={})
    for path in (folder, folder / "job-1"):
        os.chown(path, 4242, 4242)

    with pytest.raises(SlurmError, match="uid 4242"):
        _read(folder).read()
    assert len(SlurmFolder(folder, explicit=True).read() or ()) == 1


def test_symlink_to_the_folder_is_refused(tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_1={})
    (tmp_path / "link").symlink_to(tmp_path / "jobs")

    with pytest.raises(SlurmError, match="link"):
        _read(tmp_path / "link").read()


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("0", [SchedulerDevice(number=0)]),
        ("0,2-4,3", [SchedulerDevice(number=0), SchedulerDevice(number=2), SchedulerDevice(number=3), SchedulerDevice(number=4)]),
        (f"{GPU}, {MIG}", [SchedulerDevice(uuid=GPU), SchedulerDevice(uuid=MIG)]),
        (f"MIG-{GPU}/3/0", [SchedulerDevice(uuid=GPU, gpu_instance=3, compute_instance=0)]),
        ("", []),
        ("NoDevFiles", []),
        ("card0", [SchedulerDevice()]),
    ],
)
def test_device_lists_are_parsed_in_every_notation(text: str, devices: list[SchedulerDevice]) -> None:
    assert devices_of(text) == tuple(devices)


GPUS = 4


class JobNode:
    """A node with GPUs; ``jobs`` is the folder of the prolog's files."""

    def __init__(self, folder: Path, real_slurm: Slurm) -> None:
        self.jobs = folder / "jobs"
        self.run = real_slurm.run

    def submit(self, *options: str) -> str:
        printed = self.run("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "sleep 600")
        return printed.strip()


@pytest.fixture
def real_slurm(require_program: Callable[[str], str], free_port: Callable[[], int], tmp_path: Path) -> Iterator[JobNode]:
    for script in ("prolog", "epilog"):
        # Slurm builds the prolog's environment itself, so the script must set the folder.
        file = tmp_path / script
        file.write_text(f"#!/bin/sh\nRANKSCOPE_JOBS_DIR={tmp_path}/jobs exec {SCRIPTS}/{script}.sh\n")
        file.chmod(0o755)
    for index in range(GPUS):
        os.mknod(tmp_path / f"nvidia{index}", 0o20644, os.makedev(1, 3))  # Slurm takes the number from the name
    (tmp_path / "gres.conf").write_text(f"Name=gpu File={tmp_path}/nvidia[0-{GPUS - 1}]\n")
    settings = f"GresTypes=gpu\nProlog={tmp_path}/prolog\nEpilog={tmp_path}/epilog\nPrologFlags=Alloc"
    with started(tmp_path, require_program, free_port, settings=settings, node=f"Gres=gpu:{GPUS}") as node:
        jobs = JobNode(tmp_path, node)
        yield jobs
        node.run("scancel", "--user=root")
        node.wait_until(lambda: list(jobs.jobs.glob("job-*")) == [])


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.skipif(os.getuid() != 0, reason="slurmd runs as root, as the prolog does")
def test_job_of_a_gpu_is_published_from_allocation_to_end(
    real_slurm: JobNode, start_exporter: StartExporter, tmp_path: Path
) -> None:
    states = [{name: value for name, value in h100_state(index).items() if "process" not in name} for index in range(GPUS)]
    driver = FakeDriver(tmp_path / "driver", build_library(), states)
    exporter = start_exporter("--jobs.slurm-dir", real_slurm.jobs, env=driver.env)

    # given a job with two GPUs, and an array of two jobs with one each
    first = real_slurm.submit("--gres=gpu:2")
    exporter.wait_until(lambda: len(exporter.values("gpu_job_info", job_id=first, partition="night")) == 2)
    array = real_slurm.submit("--gres=gpu:1", "--array=1-2")
    exporter.wait_until(lambda: len(exporter.values("gpu_job_info")) == GPUS)

    # then every GPU is held, by three jobs, and used by none
    jobs = {dict(labels)["job_id"] for name, labels in exporter.page() if name == "gpu_job_info"}
    assert first in jobs
    assert len(jobs) == 3
    assert [exporter.values("gpu_allocated", uuid=uuid_of(index)) for index in range(GPUS)] == [[1]] * GPUS
    assert exporter.values("gpu_in_use") == [0] * GPUS

    # when the array ends, its GPUs are free
    real_slurm.run("scancel", array)
    exporter.wait_until(lambda: sorted(exporter.values("gpu_allocated")) == [0, 0, 1, 1])
    assert len(exporter.values("gpu_job_info", job_id=first)) == 2
