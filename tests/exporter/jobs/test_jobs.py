"""The jobs collector: from a node's files, sockets and processes to its series and Prometheus joins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state, uuid_of
from tests.exporter.jobs.job_node import (
    IN_POD,
    Proc,
    fleet,
    gpu,
    gpu_uuid,
    in_job,
    labels_of,
    mig,
    mig_uuid,
    slurm_folder,
    value_of,
)

from rankscope.exporter.jobs.collector import JobsCollector
from rankscope.exporter.jobs.join import claims_of
from rankscope.exporter.jobs.party import Allocation, Identity, SchedulerDevice
from rankscope.exporter.jobs.processes import ProcessTable
from rankscope.exporter.jobs.users import UserNames
from rankscope.exporter.source import FleetState, Series
from rankscope.exporter.spool.reading import SpoolSample, empty_sample
from rankscope.exporter.spool.series import RankKey, SpoolFamily, SpoolSeries

NAMES = {0: "root", 1000: "ann", 1001: "bob"}
ANN_7 = {"job_id": "7", "user": "ann"}


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


@pytest.fixture
def node(tmp_path: Path, proc: Proc) -> Callable[..., JobsCollector]:
    """Factory ``node(pods=[Allocation…])`` of a collector that reads the folder ``jobs`` and these pods."""

    def make(*, pods: list[Allocation] | None = None, **options: Any) -> JobsCollector:
        names = UserNames(lambda uid: NAMES[uid])
        options = {"slurm_dir": tmp_path / "jobs", "proc": proc.path, "user_names": names, **options}
        collector = JobsCollector(**options)
        if pods is not None:
            collector._sources[1]._call = lambda: tuple(pods)
        return collector

    return make


def _pod(name: str, *devices: SchedulerDevice) -> Allocation:
    return Allocation(Identity(namespace="ml", pod=name, container="train"), devices)


def _facts(series: tuple[Series, ...], uuid: str) -> tuple[float | None, float | None, float | None]:
    """Return ``gpu_allocated``, ``gpu_in_use`` and ``gpu_jobs`` of a device; ``None`` where there is no series."""
    allocated, in_use, jobs = (value_of(series, metric, uuid) for metric in ("gpu_allocated", "gpu_in_use", "gpu_jobs"))
    return allocated, in_use, jobs


def test_held_and_used_held_only_used_only_and_free(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0,1", "SLURM_JOB_ACCOUNT": "physics"})
    proc.process(10, cgroup=in_job(7), environ={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "RANKSCOPE_RUN_ID": "r1"})
    proc.process(11, uid=1001)
    jobs = node()

    series = jobs.read(fleet(gpu(0, pids=[10]), gpu(1), gpu(2, pids=[11]), gpu(3)))

    assert labels_of(series, gpu_uuid(0)) == ANN_7 | {
        "account": "physics",
        "rank": "0",
        "local_rank": "0",
        "world_size": "2",
        "run_id": "r1",
    }
    assert labels_of(series, gpu_uuid(1)) == ANN_7 | {"account": "physics"}
    assert labels_of(series, gpu_uuid(2)) == {"user": "bob"}
    assert labels_of(series, gpu_uuid(3)) is None
    assert [_facts(series, gpu_uuid(index)) for index in range(4)] == [(1, 1, 1), (1, 0, 1), (0, 1, 1), (0, 0, 0)]
    assert [jobs.job_at(gpu_uuid(index)) for index in range(5)] == ["7", "7", None, None, None]


def test_jobs_whose_cgroups_have_sluids(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    sluids = {7: "s5K1KKYAYG5D00", 8: "s5K1KKYAYG5D01"}
    scope = "0::/system.slice/slurmstepd.scope"
    slurm_folder(
        tmp_path / "jobs",
        job_7={"SLURM_JOB_GPUS": "0", "SLURM_JOB_SLUID": sluids[7]},
        job_8={"SLURM_JOB_GPUS": "0", "SLURM_JOB_SLUID": sluids[8]},
    )
    # Both jobs are of one user, share the GPU, and job 8 pretends to be job 7.
    proc.process(10, cgroup=f"{scope}/{sluids[7]}/step_0/user/task_0\n", environ={"RANK": "3"})
    proc.process(11, cgroup=f"{scope}/{sluids[8]}/step_0/user/task_0\n", environ={"SLURM_JOB_ID": "7"})
    jobs = node()

    shared = labels_of(jobs.read(fleet(gpu(0, pids=[10, 11]))), gpu_uuid(0)) or {}
    assert (shared["job_id"], shared["rank"]) == ("multiple", "multiple")

    # after the end of job 8, a process of its cgroup is not taken for one of job 7
    (tmp_path / "jobs" / "job-8").unlink()
    series = jobs.read(fleet(gpu(0, pids=[10]), gpu(1, pids=[11])))
    assert labels_of(series, gpu_uuid(0)) == ANN_7 | {"rank": "3"}
    assert labels_of(series, gpu_uuid(1)) == {"user": "ann"}


def test_without_the_prolog_a_sluid_cgroup_defers_to_the_environment(node: Callable[..., JobsCollector], proc: Proc) -> None:
    cgroup = "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0\n"
    proc.process(10, cgroup=cgroup, environ={"SLURM_JOB_ID": "7"})
    proc.process(11, cgroup=cgroup)

    series = node().read(fleet(gpu(0, pids=[10]), gpu(1, pids=[11])))

    assert labels_of(series, gpu_uuid(0)) == ANN_7
    assert labels_of(series, gpu_uuid(1)) == {"user": "ann"}


def test_where_no_scheduler_can_be_asked_nothing_is_said_about_allocation(node: Callable[..., JobsCollector], proc: Proc) -> None:
    proc.process(10)

    series = node().read(fleet(gpu(0, pids=[10]), gpu(1), gpu(2, pids=None), gpu(3, up=False)))

    assert [_facts(series, gpu_uuid(index)) for index in range(4)] == [
        (None, 1, 1),
        (None, 0, 0),
        (None, None, None),
        (None, None, None),
    ]


def test_a_gpu_that_hangs_still_has_its_holder(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0"})

    series = node().read(fleet(gpu(0, up=False), gpu(1)))

    assert labels_of(series, gpu_uuid(0)) == ANN_7
    assert _facts(series, gpu_uuid(0)) == (1, None, 1)


def test_a_process_nobody_can_tell_about_is_not_nobodys(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs")
    elsewhere = Proc(tmp_path / "container", first_namespace=False)
    elsewhere.process(10)  # a different process with pid 10

    series = node(proc=elsewhere.path).read(fleet(gpu(0, pids=[10])))

    assert labels_of(series, gpu_uuid(0)) is None
    assert _facts(series, gpu_uuid(0)) == (0, 1, None)


def test_numbers_of_slurm_are_those_of_the_device_files(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
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


def test_a_driver_that_renumbers_its_gpus_moves_the_jobs(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
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


def test_a_device_that_cannot_be_told_could_be_any(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0,9"})

    series = node().read(fleet(gpu(0), gpu(1)))

    assert [_facts(series, gpu_uuid(index)) for index in range(2)] == [(1, 0, 1), (None, 0, 0)]


def test_a_device_that_cannot_be_identified_is_logged_once_for_each_job(
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


def test_mig_devices_have_holders_of_their_own(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
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
    assert [_facts(series, mig_uuid(index)) for index in range(3)] == [(1, 1, 1), (1, 0, 1), (0, 0, 0)]
    # no job holds the whole GPU
    assert (labels_of(series, gpu_uuid(0)), _facts(series, gpu_uuid(0))) == (None, (None, None, None))
    assert [jobs.job_at(uuid) for uuid in (mig_uuid(0), mig_uuid(1), gpu_uuid(0))] == ["7", "8", "multiple"]

    # and when the GPU hangs, the jobs still hold its MIG devices
    series = jobs.read(fleet(gpu(0, up=False), gpu(1)))
    assert [_facts(series, mig_uuid(index)) for index in range(3)] == [(1, None, 1), (1, None, 1), (0, None, None)]


def test_who_has_the_whole_has_its_parts(node: Callable[..., JobsCollector]) -> None:
    pods = [_pod("a", SchedulerDevice(uuid=gpu_uuid(0))), _pod("b", SchedulerDevice(uuid=mig_uuid(1)))]

    series = node(pods=pods).read(fleet(gpu(0, migs=(mig(0, 1), mig(1, 2)))))

    by_key = {uuid: (labels_of(series, uuid) or {}).get("pod_k8s") for uuid in (gpu_uuid(0), mig_uuid(0), mig_uuid(1))}
    assert by_key == {gpu_uuid(0): "a", mig_uuid(0): "a", mig_uuid(1): "b"}


def test_where_a_gpu_is_divided_a_number_is_an_undivided_one_or_unknown(
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
    assert [_facts(series, uuid)[0] for uuid in (gpu_uuid(1), gpu_uuid(2), mig_uuid(0))] == [1, None, None]
    (record,) = caplog.records
    assert ("job 8" in record.message, "number 0" in record.message) == (True, True)


def test_what_is_private_is_not_shown(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0", "SLURM_JOB_ACCOUNT": "physics"})
    proc.process(11, uid=1001)
    jobs = node(pods=[_pod("secret", SchedulerDevice(uuid=gpu_uuid(1)))], show_users=False, show_pods=False)

    series = jobs.read(fleet(gpu(0), gpu(1), gpu(2, pids=[11])))

    assert [labels_of(series, gpu_uuid(index)) for index in range(3)] == [{"job_id": "7", "account": "physics"}, {}, {}]
    assert not [value for sample in series for _, value in sample.labels if value in {"ann", "bob", "ml", "secret", "train"}]


def test_ranks_of_the_spool(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0"})
    labels = {"gpu_uuid": gpu_uuid(0), "host": "n", "local_rank": "1", "rank": "5", "run": "r", "slot": "1"}
    labels |= {"run_id": "r1", "world_size": "8"}
    family = SpoolFamily("rank_info", "gauge", "", (SpoolSeries("rank_info", tuple(labels.items()), 1.0),))
    sample = SpoolSample((family,), {RankKey("r", "5", "1"): "running"}, 1, 0, {}, 0, {"r1": 1000})

    by_key = {"rank": "5", "local_rank": "1", "world_size": "8", "run_id": "r1"}
    state = fleet(gpu(0, pids=None))
    assert labels_of(node(ranks=lambda: sample).read(state), gpu_uuid(0)) == ANN_7 | by_key
    assert labels_of(node(ranks=empty_sample).read(state), gpu_uuid(0)) == ANN_7
    assert labels_of(node(ranks=lambda: None).read(state), gpu_uuid(0)) == ANN_7


def test_a_rank_with_its_recorder_off_is_on_its_gpu_all_the_same() -> None:
    labels = {"run": "r", "slot": "0", "run_id": "r1"}
    ranks = {"0": "running", "1": "disabled", "2": "silent"}
    series = [
        SpoolSeries("rank_info", tuple({**labels, "rank": rank, "gpu_uuid": gpu_uuid(int(rank))}.items()), 1) for rank in ranks
    ]
    states: Any = {RankKey("r", rank, "0"): state for rank, state in ranks.items()}
    sample = SpoolSample((SpoolFamily("rank_info", "gauge", "", tuple(series)),), states, 3, 0, {}, 0, {"r1": 1000})

    assert [claim.silent for claims in claims_of(sample).values() for claim in claims] == [False, False, True]


def test_a_source_that_hangs_or_fails_costs_what_it_alone_knows(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    released = threading.Event()
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0"})
    jobs = node()
    jobs._sources[1]._bounded_calls._seconds = 0.01

    def hang() -> None:
        released.wait()

    def fail() -> None:
        raise RuntimeError("the kubelet is confused")

    for trouble in (hang, fail):
        jobs._sources[1]._call = trouble
        for _ in range(2):
            series = jobs.read(fleet(gpu(0), gpu(1)))
            # GPU 1 may be allocated: only the kubelet knows the pod
            assert [_facts(series, gpu_uuid(index)) for index in range(2)] == [(1, 0, 1), (None, 0, 0)]
            asked = {
                sample.labels[0][1]: sample.value for sample in series if sample.metric == "rankscope_exporter_jobs_source_ok"
            }
            assert asked == {"slurm": 1, "kubelet": 0}
        released.set()


JOIN = "gpu_temperature_celsius * on (uuid) group_left (job_id, user, rank, run_id) gpu_job_info"


def _sharing(proc: Proc, folder: Path, node: Callable[..., JobsCollector]) -> tuple[JobsCollector, FleetState, dict[str, str]]:
    """Set up MPS on GPU 0, time slicing on 1, MIG on 2, a stray process and many ranks on 3; return also the expected jobs."""
    slurm_folder(
        folder,
        job_7={"SLURM_JOB_GPUS": "", "CUDA_VISIBLE_DEVICES": gpu_uuid(0)},
        job_8={"CUDA_VISIBLE_DEVICES": gpu_uuid(0), "SLURM_JOB_USER": "bob", "SLURM_JOB_UID": "1001"},
        job_9={"CUDA_VISIBLE_DEVICES": f"{mig_uuid(0)},{gpu_uuid(3)}"},
        job_10={"CUDA_VISIBLE_DEVICES": mig_uuid(1), "SLURM_JOB_USER": "bob", "SLURM_JOB_UID": "1001"},
    )
    proc.process(10, cgroup=in_job(7), environ={"RANK": "0"})
    proc.process(11, uid=1001, cgroup=in_job(8), environ={"RANK": "0"})
    proc.process(12, uid=0, name="nvidia-cuda-mps")
    proc.process(13, uid=0, cgroup=IN_POD, environ={"RANK": "1"})
    proc.process(14, uid=0, cgroup=IN_POD.replace("6f1b", "7f1b"), environ={"RANK": "2"})
    for rank in range(4):
        proc.process(20 + rank, cgroup=in_job(9), environ={"RANK": str(rank)})
    proc.process(30, uid=1001)
    pods = [_pod(name, SchedulerDevice(uuid=gpu_uuid(1))) for name in ("a", "b", "c")]
    state = fleet(
        gpu(0, pids=[10, 11, 12]),
        gpu(1, pids=[13, 14]),
        gpu(2, pids=[(20, mig_uuid(0)), (30, mig_uuid(1))], migs=(mig(0, 1), mig(1, 2), mig(2, 3))),
        gpu(3, pids=[20, 21, 22, 23, 30]),
    )
    expected = {gpu_uuid(0): "multiple", mig_uuid(0): "9", mig_uuid(1): "10", gpu_uuid(3): "9"}
    return node(pods=pods), state, expected


def test_what_is_shared_is_multiple_and_counted(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    jobs, state, expected = _sharing(proc, tmp_path / "jobs", node)

    series = jobs.read(state)

    assert {uuid: (labels_of(series, uuid) or {}).get("job_id") for uuid in expected} == expected
    assert labels_of(series, gpu_uuid(0)) == {"job_id": "multiple", "user": "multiple", "rank": "0"}
    assert labels_of(series, gpu_uuid(1)) == {
        "rank": "multiple",
        "namespace_k8s": "ml",
        "pod_k8s": "multiple",
        "container_k8s": "train",
    }
    counts = {
        uuid: value_of(series, "gpu_jobs", uuid) for uuid in (gpu_uuid(0), gpu_uuid(1), mig_uuid(0), mig_uuid(1), gpu_uuid(3))
    }
    # a process of the holder's user without a job's cgroup counts as the holder's
    assert counts == {gpu_uuid(0): 2, gpu_uuid(1): 3, mig_uuid(0): 1, mig_uuid(1): 1, gpu_uuid(3): 2}


def test_the_join_never_becomes_many_to_many(
    node: Callable[..., JobsCollector], proc: Proc, require_program: Callable[[str], str], tmp_path: Path
) -> None:
    jobs, state, expected = _sharing(proc, tmp_path / "jobs", node)
    series = jobs.read(state)
    uuids = [uuid for gpu in state.gpus for uuid in (gpu.identity.uuid, *(mig.uuid for mig in gpu.sample.mig_devices))]  # type: ignore[union-attr]
    uuids += uuids[:1]  # a second metric of the same device, with another label
    lines = [f'      - {{series: "{_text(sample)}", values: "{sample.value:g}x4"}}' for sample in series]
    lines += [
        f"      - {{series: \"gpu_temperature_celsius{{uuid='{uuid}', sensor='{index}'}}\", values: \"{40 + index}x4\"}}"
        for index, uuid in enumerate(uuids)
    ]
    wanted = []
    for index, uuid in enumerate(uuids):
        info = labels_of(series, uuid)
        if info is not None:
            joined = {name: value for name, value in info.items() if name in {"job_id", "user", "rank", "run_id"}}
            labels = ", ".join(f"{name}='{value}'" for name, value in {"uuid": uuid, "sensor": index, **joined}.items())
            wanted.append(f'          - {{labels: "{{{labels}}}", value: {40 + index}}}')
    assert len(wanted) == len(expected) + 2  # plus the pods', and the second metric of GPU 0
    test = tmp_path / "join.yaml"
    test.write_text(
        "\n".join(
            [
                "rule_files: []",
                "evaluation_interval: 1m",
                "tests:",
                "  - interval: 1m",
                "    input_series:",
                *lines,
                "    promql_expr_test:",
                f"      - expr: {JOIN}",
                "        eval_time: 2m",
                "        exp_samples:",
                *wanted,
                "",
            ]
        )
    )

    checked = subprocess.run(
        [require_program("promtool"), "test", "rules", str(test)], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    # and the test can fail: with a second series for a device Prometheus refuses the join
    test.write_text(
        test.read_text().replace("    promql_expr_test:", f"{lines[0].replace('job_id=', 'odd=')}\n    promql_expr_test:")
    )
    refused = subprocess.run(
        [require_program("promtool"), "test", "rules", str(test)], capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert "many-to-many" in refused.stdout + refused.stderr


def _text(series: Series) -> str:
    labels = ", ".join(f"{name}='{value}'" for name, value in series.labels)
    return f"{series.metric}{{{labels}}}"


def test_two_gpus_that_say_they_are_one_have_one_answer(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0"})

    series = node().read(fleet(gpu(0, up=False), gpu(0)))

    assert labels_of(series, gpu_uuid(0)) == ANN_7


@pytest.mark.slow
def test_the_real_exporter_tells_who_holds_and_who_uses_a_gpu(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0", "SLURM_JOB_UID": str(os.getuid())})
    environ = {"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "SLURM_JOB_ID": "7"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ) as user:
        try:
            states = [{name: value for name, value in h100_state(index).items() if "process" not in name} for index in range(2)]
            states[0]["process.0"] = f"compute {user.pid} 1048576 0 0"
            driver = FakeDriver(tmp_path / "driver", build_library(), states)

            exporter = start_exporter("--jobs.slurm-dir", tmp_path / "jobs", env=driver.env)
            exporter.wait_until(lambda: exporter.values("gpu_in_use", uuid=uuid_of(0)) == [1])

            assert exporter.values("gpu_job_info", uuid=uuid_of(0), job_id="7", user="ann") == [1]
            # the fake driver lists pids of this namespace, a real one those of the node
            ranks = {"rank": "3", "local_rank": "0", "world_size": "8"} if ProcessTable().sees_all() else {}
            assert exporter.values("gpu_job_info", **ranks) == [1]
            assert [exporter.values("gpu_allocated", uuid=uuid_of(index)) for index in range(2)] == [[1], [0]]
            assert exporter.values("gpu_in_use", uuid=uuid_of(1)) == [0]
            assert exporter.values("rankscope_exporter_collector_success", collector="jobs") == [1]
        finally:
            user.kill()
