"""A node as the job join sees it: a ``/proc`` made of files, a snapshot of the fleet, jobs of Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from rankscope.exporter.jobs.party import Allocation, PartyIdentity, SchedulerDevice
from rankscope.exporter.source import FleetState, GpuIdentity, GpuProcess, GpuSample, GpuState, Labels, MigDevice, Series

ROOT = Path(__file__).resolve().parents[3]
USERS = {0: "root", 1000: "ann", 1001: "bob", 1002: "carl"}
ANN_7 = {"job_id": "7", "user": "ann"}
"""The labels of job 7 of ``slurm_folder``."""
CONTAINER = "0123456789abcdef" * 4
POD_UID = "6f1b2c3d-0000-4444-8888-abcdefabcdef"
IN_POD = f"0::/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n"


def gpu_uuid(index: int) -> str:
    return f"GPU-{index:x}0000000-aaaa-bbbb-cccc-000000000000"


def mig_uuid(index: int) -> str:
    return f"MIG-{index:x}0000000-aaaa-bbbb-cccc-111111111111"


def in_job(job_id: int) -> str:
    return f"0::/system.slice/slurmstepd.scope/job_{job_id}/step_0/user/task_0\n"


class Proc:
    """``/proc`` in a folder. ``start_ticks`` is a process's start time; the default name breaks naive splitting of fields."""

    def __init__(self, path: Path, *, first_namespace: bool = True) -> None:
        self.path = path
        (path / "self" / "ns").mkdir(parents=True)
        (path / "self" / "ns" / "pid").symlink_to(f"pid:[{4026531836 if first_namespace else 4026532000}]")

    def process(
        self,
        pid: int,
        *,
        uid: int = 1000,
        cgroup: str = "0::/user.slice/user-1000.slice/session-1.scope\n",
        environ: Mapping[str, str] | None = None,
        name: str = "py) (th 1 2",
        start_ticks: int = 100,
    ) -> Path:
        folder = self.path / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} ({name}) S {' '.join(['0'] * 18)} {start_ticks} 0 0\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t0\t{uid}\t{uid}\t{uid}\n")
        (folder / "cgroup").write_text(cgroup)
        content = "".join(f"{key}={value}\0" for key, value in (environ or {}).items())
        (folder / "environ").write_bytes(content.encode())
        return folder

    def minors(self, numbers: Mapping[str, int]) -> None:
        """Set the minor numbers of the device files by PCI bus id with a domain of four digits."""
        for bus_id, number in numbers.items():
            folder = self.path / "driver" / "nvidia" / "gpus" / bus_id
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "information").write_text(f"Model: \t\t Test GPU\nBus Location: \t {bus_id}\nDevice Minor: \t {number}\n")


def gpu(
    index: int,
    *,
    pids: Iterable[int | tuple[int, str] | GpuProcess] | None = (),
    migs: tuple[MigDevice, ...] = (),
    up: bool = True,
) -> GpuState:
    """Return a GPU with processes, given whole, by pid or (pid, MIG uuid)."""
    identity = GpuIdentity(gpu_uuid(index), index, "Test GPU", f"00000000:{0x1A + index:02x}:00.0")
    if not up:
        return GpuState(identity, up=False, reason="hung")
    processes = None if pids is None else tuple(map(_process, pids))
    sample = GpuSample(identity, time.time(), time.monotonic(), processes=processes, mig_devices=migs)
    return GpuState(identity, up=True, sample=sample, age_s=0.0)


def _process(process: int | tuple[int, str] | GpuProcess) -> GpuProcess:
    if isinstance(process, GpuProcess):
        return process
    pid, uuid = process if isinstance(process, tuple) else (process, "")
    return GpuProcess(pid, "compute", None, uuid)


def fleet(*gpus: GpuState) -> FleetState:
    return FleetState(gpus, None, {}, 0, 0, None, None)


def mig(index: int, gpu_instance: int) -> MigDevice:
    return MigDevice(mig_uuid(index), gpu_instance, 0, "1g.10gb")


def slurm_folder(folder: Path, **jobs: Mapping[str, str]) -> Path:
    """Write the folder of Slurm's job files: ``slurm_folder(path, job_7={"SLURM_JOB_GPUS": "0"})``."""
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)
    (folder / ".slurm").touch()
    for name, variables in jobs.items():
        job_id = name.removeprefix("job_")
        lines = {"SLURM_JOB_ID": job_id, "SLURM_JOB_USER": "ann", "SLURM_JOB_UID": "1000", **variables}
        (folder / f"job-{job_id}").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return folder


def labels_of(series: Iterable[Series], uuid: str) -> dict[str, str] | None:
    """Return the labels of the only ``gpu_job_info`` of a uuid, without the uuid; ``None`` if there is none."""
    collected: list[Labels] = [
        sample.labels for sample in series if sample.metric == "gpu_job_info" and ("uuid", uuid) in sample.labels
    ]
    assert len(collected) <= 1
    return {name: value for name, value in collected[0] if name != "uuid"} if collected else None


def value_of(series: Iterable[Series], metric: str, uuid: str) -> float | None:
    values = [sample.value for sample in series if sample.metric == metric and sample.labels == (("uuid", uuid),)]
    assert len(values) <= 1
    return values[0] if values else None


def facts_of(series: tuple[Series, ...], uuid: str) -> tuple[float | None, float | None, float | None]:
    """Return ``gpu_allocated``, ``gpu_in_use`` and ``gpu_jobs`` of a device; ``None`` where there is no series."""
    allocated, in_use, jobs = (value_of(series, metric, uuid) for metric in ("gpu_allocated", "gpu_in_use", "gpu_jobs"))
    return allocated, in_use, jobs


def pod(name: str, device: SchedulerDevice) -> Allocation:
    return Allocation(PartyIdentity(namespace="ml", pod=name, container="train"), (device,))
