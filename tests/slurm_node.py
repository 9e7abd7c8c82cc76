"""A real Slurm of one node, for tests: munge, a controller, and this machine as its only node."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "sinfo", "squeue", "srun")


class Slurm:
    """Controller and one node of Slurm. ``environ`` is the environment for its commands."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ

    def run(self, *command: str) -> str:
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, check=True, timeout=30).stdout

    def wait_until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, poll_s=0.1, details=lambda: self.run("squeue") + self.run("sinfo", "-R"))


def _configuration(folder: Path, ports: tuple[int, int], settings: str, node: str) -> str:
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
MpiDefault=none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
{settings}
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} {node} State=UNKNOWN
PartitionName=night Nodes={host} Default=YES OverSubscribe=FORCE:8 State=UP
"""


@contextmanager
def started(
    folder: Path, program: Callable[[str], str], free_port: Callable[[], int], *, settings: str = "", node: str = ""
) -> Iterator[Slurm]:
    """Run Slurm with these additional ``settings``, and those of its ``node``; all jobs end with it.

    ``program`` finds a program or skips the test. Slurm has to be started by root, as slurmd runs as root.
    """
    munged, controller, slurmd = (program(name) for name in PROGRAMS[:3])
    for name in PROGRAMS[3:]:
        program(name)
    for name in ("controller", "node"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(_configuration(folder, (free_port(), free_port()), settings, node))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = [f"--{kind}={folder}/munge.{kind.partition('-')[0]}" for kind in ("key-file", "pid-file", "log-file", "seed-file")]
    commands = (
        [munged, "--foreground", "--force", f"--socket={folder}/munge.sock", *munge],
        [controller, "-D", "-i"],
        [slurmd, "-D"],
    )
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            wait_until((folder / "munge.sock").exists, process=processes[0])
        slurm = Slurm(environ)
        slurm.wait_until(
            lambda: "idle" in subprocess.run(["sinfo"], env=environ, capture_output=True, text=True, check=False).stdout
        )
        yield slurm
        slurm.run("scancel", "--user=root")
        slurm.wait_until(lambda: slurm.run("squeue", "--noheader") == "")
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(20)
