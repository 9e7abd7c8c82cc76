"""Which GPU or MIG device a scheduler means: by uuid, by the number of its device file, or one that cannot be told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.jobs.job_node import (
    ANN_7,
    Proc,
    facts_of,
    fleet,
    gpu,
    gpu_uuid,
    in_job,
    labels_of,
    mig,
    mig_uuid,
    pod,
    slurm_folder,
)

from rankscope.exporter.jobs.collector import JobsCollector
from rankscope.exporter.jobs.party import SchedulerDevice


def test_slurm_gpu_numbers_are_device_minor_numbers(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    proc.minors({"0000:1a:00.0": 1, "0000:1b:00.0": 0})
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0"})

    jobs = node()
    assert labels_of(jobs.read(fleet(gpu(0), gpu(1))), gpu_uuid(1)) == ANN_7

    # also if the driver's information appears only later
    (proc.path / "driver").rename(proc.path / "unloaded")
    jobs = node()
    assert labels_of(jobs.read(fleet(gpu(0), gpu(1))), gpu_uuid(0)) == ANN_7
    (proc.path / "unloaded").rename(proc.path / "driver")
    assert labels_of(jobs.read(fleet(gpu(0), gpu(1))), gpu_uuid(1)) == ANN_7


def test_jobs_follow_renumbered_gpus(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    proc.minors({"0000:1a:00.0": 0, "0000:1b:00.0": 1})
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0"})
    jobs = node()
    assert labels_of(jobs.read(fleet(gpu(0), gpu(1))), gpu_uuid(0)) == ANN_7

    # The driver is loaded again, and finds its GPUs in another order.
    proc.minors({"0000:1a:00.0": 1, "0000:1b:00.0": 0})
    series = jobs.read(fleet(gpu(0), gpu(1)))

    assert labels_of(series, gpu_uuid(1)) == ANN_7
    assert labels_of(series, gpu_uuid(0)) is None
    assert jobs.job_at(gpu_uuid(0)) is None


def test_a_dropped_gpu_keeps_its_job_until_its_number_is_reused(
    node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path
) -> None:
    proc.minors({"0000:1a:00.0": 1, "0000:1b:00.0": 0})
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "1"})
    jobs = node()
    jobs.read(fleet(gpu(0), gpu(1)))

    shutil.rmtree(proc.path / "driver/nvidia/gpus/0000:1a:00.0")
    assert labels_of(jobs.read(fleet(gpu(0, up=False), gpu(1))), gpu_uuid(0)) == ANN_7

    proc.minors({"0000:1b:00.0": 1})
    series = jobs.read(fleet(gpu(0, up=False), gpu(1)))
    assert labels_of(series, gpu_uuid(1)) == ANN_7
    assert labels_of(series, gpu_uuid(0)) is None


def test_unidentified_device_makes_other_allocations_unknown(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0,9"})

    series = node().read(fleet(gpu(0), gpu(1)))

    assert [facts_of(series, gpu_uuid(index)) for index in range(2)] == [(1, 0, 1), (None, 0, 0)]


def test_unidentified_device_is_logged_once_per_job(
    node: Callable[..., JobsCollector], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = node()
    for devices_of_jobs in (
        {"job_7": "9"},
        {"job_7": "9"},
        {"job_7": "9", "job_8": "9"},
        {"job_8": "9"},
        {"job_7": "9", "job_8": "9"},
    ):
        shutil.rmtree(tmp_path / "jobs", ignore_errors=True)
        slurm_folder(tmp_path / "jobs", **{job: {"SLURM_JOB_GPUS": gpus} for job, gpus in devices_of_jobs.items()})
        jobs.read(fleet(gpu(0)))
    assert [record.getMessage().split()[:2] for record in caplog.records] == [["job", job] for job in "787"]


def test_each_mig_device_has_a_separate_holder(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    slurm_folder(
        tmp_path / "jobs",
        job_7={"CUDA_VISIBLE_DEVICES": mig_uuid(0)},
        job_8={"CUDA_VISIBLE_DEVICES": mig_uuid(1), "SLURM_JOB_USER": "bob", "SLURM_JOB_UID": "1001"},
    )
    proc.process(10, cgroup=in_job(7), environ={"RANK": "0"})
    migs = (mig(0, 1), mig(1, 2), mig(2, 3))
    jobs = node()

    series = jobs.read(fleet(gpu(0, pids=[(10, mig_uuid(0))], migs=migs), gpu(1)))

    assert labels_of(series, mig_uuid(0)) == ANN_7 | {"rank": "0"}
    assert labels_of(series, mig_uuid(1)) == {"job_id": "8", "user": "bob"}
    assert [facts_of(series, mig_uuid(index)) for index in range(3)] == [(1, 1, 1), (1, 0, 1), (0, 0, 0)]
    # no job holds the whole GPU
    assert (labels_of(series, gpu_uuid(0)), facts_of(series, gpu_uuid(0))) == (None, (None, None, None))
    assert [jobs.job_at(uuid) for uuid in (mig_uuid(0), mig_uuid(1), gpu_uuid(0))] == ["7", "8", "multiple"]

    # and when the GPU hangs, the jobs still hold its MIG devices
    series = jobs.read(fleet(gpu(0, up=False), gpu(1)))
    assert [facts_of(series, mig_uuid(index)) for index in range(3)] == [(1, None, 1), (1, None, 1), (0, None, None)]


def test_holder_of_a_gpu_holds_the_mig_devices(node: Callable[..., JobsCollector]) -> None:
    pods = [pod("a", SchedulerDevice(uuid=gpu_uuid(0))), pod("b", SchedulerDevice(uuid=mig_uuid(1)))]

    series = node(*pods).read(fleet(gpu(0, migs=(mig(0, 1), mig(1, 2)))))

    by_key = {uuid: (labels_of(series, uuid) or {}).get("pod_k8s") for uuid in (gpu_uuid(0), mig_uuid(0), mig_uuid(1))}
    assert by_key == {gpu_uuid(0): "a", mig_uuid(0): "a", mig_uuid(1): "b"}


def test_gpu_number_on_a_mig_node_means_an_undivided_gpu_or_unknown(
    node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # given a job with a whole GPU, and one whose device number may mean a MIG device
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "1"}, job_8={"SLURM_JOB_GPUS": "0"})
    divided = fleet(gpu(0, migs=(mig(0, 1), mig(1, 2))), gpu(1), gpu(2))

    # when the device numbers are unknown
    series = node().read(divided)
    assert {sample.value for sample in series if sample.metric == "gpu_jobs"} == {0}
    assert not [sample for sample in series if sample.metric == "gpu_allocated"]

    # and when the driver lists the device numbers
    caplog.clear()
    proc.minors({"0000:1a:00.0": 0, "0000:1b:00.0": 1, "0000:1c:00.0": 2})
    jobs = node()
    jobs.read(divided)
    series = jobs.read(divided)
    assert labels_of(series, gpu_uuid(1)) == ANN_7
    assert [facts_of(series, uuid)[0] for uuid in (gpu_uuid(1), gpu_uuid(2), mig_uuid(0))] == [1, None, None]
    (record,) = caplog.records
    assert ("job 8" in record.message, "number 0" in record.message) == (True, True)


def test_duplicate_gpu_uuid_has_one_series(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0"})

    series = node().read(fleet(gpu(0, up=False), gpu(0)))

    assert labels_of(series, gpu_uuid(0)) == ANN_7
