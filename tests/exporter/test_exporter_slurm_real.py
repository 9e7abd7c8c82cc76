"""The prolog and epilog under a real Slurm of one node: what it tells them, and what the exporter makes of it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state, uuid_of

SCRIPTS = Path(__file__).resolve().parents[2] / "exporter" / "slurm"
GPUS = 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd runs as root, as the prolog does"),
]


class Slurm:
    """A controller and one node with GPUs; ``jobs`` is where the prolog leaves its files."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.jobs = folder / "jobs"
        self._environ = environ

    def run(self, *command: str) -> str:
        return subprocess.run(command, env=self._environ, capture_output=True, text=True, check=True, timeout=30).stdout

    def submit(self, *options: str) -> str:
        printed = self.run("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "sleep 600")
        return printed.strip()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < until, self.run("squeue") + self.run("sinfo", "-R")
            time.sleep(0.1)


def _configuration(folder: Path, ports: tuple[int, int]) -> str:
    host = socket.gethostname().partition(".")[0]
    return f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/node
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
Prolog={folder}/prolog
Epilog={folder}/epilog
PrologFlags=Alloc
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} Gres=gpu:{GPUS} State=UNKNOWN
PartitionName=night Nodes={host} Default=YES OverSubscribe=FORCE:8 State=UP
"""


@pytest.fixture
def slurm(require_program: Callable[[str], str], free_port: Callable[[], int], tmp_path: Path) -> Iterator[Slurm]:
    munged, controller, node = (require_program(name) for name in ("munged", "slurmctld", "slurmd"))
    for name in ("sbatch", "scancel", "sinfo", "squeue"):
        require_program(name)
    for script in ("prolog", "epilog"):
        # Slurm gives its prolog an environment of its own making, so that the folder has to be said inside.
        started = tmp_path / script
        started.write_text(f"#!/bin/sh\nRANKSCOPE_JOBS_DIR={tmp_path}/jobs exec {SCRIPTS}/{script}.sh\n")
        started.chmod(0o755)
    for name in ("controller", "node"):
        (tmp_path / name).mkdir()
    for index in range(GPUS):
        os.mknod(tmp_path / f"nvidia{index}", 0o20644, os.makedev(1, 3))  # Slurm takes the number from the name
    (tmp_path / "gres.conf").write_text(f"Name=gpu File={tmp_path}/nvidia[0-{GPUS - 1}]\n")
    (tmp_path / "slurm.conf").write_text(_configuration(tmp_path, (free_port(), free_port())))
    (tmp_path / "munge.key").write_bytes(os.urandom(1024))
    (tmp_path / "munge.key").chmod(0o400)
    environ = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    munge = [f"--{kind}={tmp_path}/munge.{kind.partition('-')[0]}" for kind in ("key-file", "pid-file", "log-file", "seed-file")]
    commands = (
        [munged, "--foreground", "--force", f"--socket={tmp_path}/munge.sock", *munge],
        [controller, "-D", "-i"],
        [node, "-D"],
    )
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(0.5)
        slurm = Slurm(tmp_path, environ)
        slurm.wait_until(
            lambda: "idle" in subprocess.run(["sinfo"], env=environ, capture_output=True, text=True, check=False).stdout
        )
        yield slurm
        slurm.run("scancel", "--user=root")
        slurm.wait_until(lambda: list(slurm.jobs.glob("job-*")) == [])
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(20)


def test_who_holds_a_gpu_is_known_before_its_first_process_and_until_the_job_ends(
    slurm: Slurm, start_exporter: Callable[..., Any], tmp_path: Path
) -> None:
    states = [{name: value for name, value in h100_state(index).items() if "process" not in name} for index in range(GPUS)]
    driver = FakeDriver(tmp_path / "driver", build_library(), states)
    exporter = start_exporter("--jobs.slurm-dir", slurm.jobs, env=driver.env)

    def holder(index: int) -> list[float]:
        found: list[float] = exporter.values("gpu_allocated", uuid=uuid_of(index))
        return found

    # given a job with two GPUs, and an array of two jobs with one each
    first = slurm.submit("--gres=gpu:2")
    exporter.wait_until(lambda: len(exporter.values("gpu_job_info", job_id=first, partition="night")) == 2)
    array = slurm.submit("--gres=gpu:1", "--array=1-2")
    exporter.wait_until(lambda: len(exporter.values("gpu_job_info")) == GPUS)

    # then every GPU is held, by three jobs, and used by nobody
    jobs = {dict(labels)["job_id"] for name, labels in exporter.page() if name == "gpu_job_info"}
    assert first in jobs
    assert len(jobs) == 3
    assert [holder(index) for index in range(GPUS)] == [[1]] * GPUS
    assert exporter.values("gpu_in_use") == [0] * GPUS

    # when the array ends, its GPUs are free
    slurm.run("scancel", array)
    exporter.wait_until(lambda: sorted(exporter.values("gpu_allocated")) == [0, 0, 1, 1])
    assert len(exporter.values("gpu_job_info", job_id=first)) == 2
