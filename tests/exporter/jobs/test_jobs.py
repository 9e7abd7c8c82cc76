"""The jobs collector: from a node's files, sockets and processes to its series and Prometheus joins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state, uuid_of
from tests.exporter.jobs.job_node import (
    ANN_7,
    IN_POD,
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
    value_of,
)

from rankscope.exporter.jobs.collector import JobsCollector
from rankscope.exporter.jobs.join import claims_of
from rankscope.exporter.jobs.party import SchedulerDevice
from rankscope.exporter.jobs.processes import ProcessTable
from rankscope.exporter.source import FleetState, Series
from rankscope.exporter.spool.reading import SpoolSample
from rankscope.exporter.spool.series import RankKey, SpoolFamily


def test_allocated_used_and_free_gpus_are_distinguished(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
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
    assert [facts_of(series, gpu_uuid(index)) for index in range(4)] == [(1, 1, 1), (1, 0, 1), (0, 1, 1), (0, 0, 0)]
    assert [jobs.job_at(gpu_uuid(index)) for index in range(5)] == ["7", "7", None, None, None]


def test_jobs_are_identified_by_sluid_cgroups(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
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


def test_sluid_cgroup_without_prolog_uses_the_environment(node: Callable[..., JobsCollector], proc: Proc) -> None:
    cgroup = "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0\n"
    proc.process(10, cgroup=cgroup, environ={"SLURM_JOB_ID": "7"})
    proc.process(11, cgroup=cgroup)

    series = node().read(fleet(gpu(0, pids=[10]), gpu(1, pids=[11])))

    assert labels_of(series, gpu_uuid(0)) == ANN_7
    assert labels_of(series, gpu_uuid(1)) == {"user": "ann"}


def test_allocation_is_absent_without_a_scheduler(node: Callable[..., JobsCollector], proc: Proc) -> None:
    proc.process(10)

    series = node().read(fleet(gpu(0, pids=[10]), gpu(1), gpu(2, pids=None), gpu(3, up=False)))

    assert [facts_of(series, gpu_uuid(index)) for index in range(4)] == [
        (None, 1, 1),
        (None, 0, 0),
        (None, None, None),
        (None, None, None),
    ]


def test_hung_gpu_keeps_the_holder(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0"})

    series = node().read(fleet(gpu(0, up=False), gpu(1)))

    assert labels_of(series, gpu_uuid(0)) == ANN_7
    assert facts_of(series, gpu_uuid(0)) == (1, None, 1)


def test_unidentifiable_process_leaves_the_job_count_unknown(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs")
    elsewhere = Proc(tmp_path / "container", first_namespace=False)
    elsewhere.process(10)  # a different process with pid 10

    series = node(proc=elsewhere.path).read(fleet(gpu(0, pids=[10])))

    assert labels_of(series, gpu_uuid(0)) is None
    assert facts_of(series, gpu_uuid(0)) == (0, 1, None)


def test_hidden_users_and_pods_are_not_published(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0", "SLURM_JOB_ACCOUNT": "physics"})
    proc.process(11, uid=1001)
    jobs = node(pod("secret", SchedulerDevice(uuid=gpu_uuid(1))), show_users=False, show_pods=False)

    series = jobs.read(fleet(gpu(0), gpu(1), gpu(2, pids=[11])))

    assert [labels_of(series, gpu_uuid(index)) for index in range(3)] == [{"job_id": "7", "account": "physics"}, {}, {}]
    assert not [value for sample in series for _, value in sample.labels if value in {"ann", "bob", "ml", "secret", "train"}]


def test_ranks_from_the_spool_are_added_to_the_labels(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    slurm_folder(tmp_path / "jobs", job_7={"SLURM_JOB_GPUS": "0"})
    labels = {"gpu_uuid": gpu_uuid(0), "host": "n", "local_rank": "1", "rank": "5", "run": "r", "slot": "1"}
    labels |= {"run_id": "r1", "world_size": "8"}
    family = SpoolFamily("rank_info", "gauge", "", (Series("rank_info", 1, tuple(labels.items())),))
    sample = SpoolSample((family,), {RankKey("r", "5", "1"): "running"}, 1, 0, {}, 0, {"r1": 1000})

    by_key = {"rank": "5", "local_rank": "1", "world_size": "8", "run_id": "r1"}
    state = fleet(gpu(0, pids=None))
    assert labels_of(node(ranks=lambda: sample).read(state), gpu_uuid(0)) == ANN_7 | by_key
    assert labels_of(node(ranks=SpoolSample).read(state), gpu_uuid(0)) == ANN_7
    assert labels_of(node(ranks=lambda: None).read(state), gpu_uuid(0)) == ANN_7


def test_rank_with_a_disabled_recorder_stays_on_the_gpu() -> None:
    labels = {"run": "r", "slot": "0", "run_id": "r1"}
    ranks = {"0": "running", "1": "disabled", "2": "silent"}
    series = [Series("rank_info", 1, tuple({**labels, "rank": rank, "gpu_uuid": gpu_uuid(int(rank))}.items())) for rank in ranks]
    states: Any = {RankKey("r", rank, "0"): state for rank, state in ranks.items()}
    sample = SpoolSample((SpoolFamily("rank_info", "gauge", "", tuple(series)),), states, 3, 0, {}, 0, {"r1": 1000})

    assert [claim.silent for claims in claims_of(sample).values() for claim in claims] == [False, False, True]


def test_failing_source_affects_only_the_facts_of_that_source(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
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
            assert [facts_of(series, gpu_uuid(index)) for index in range(2)] == [(1, 0, 1), (None, 0, 0)]
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
    pods = [pod(name, SchedulerDevice(uuid=gpu_uuid(1))) for name in ("a", "b", "c")]
    state = fleet(
        gpu(0, pids=[10, 11, 12]),
        gpu(1, pids=[13, 14]),
        gpu(2, pids=[(20, mig_uuid(0)), (30, mig_uuid(1))], migs=(mig(0, 1), mig(1, 2), mig(2, 3))),
        gpu(3, pids=[20, 21, 22, 23, 30]),
    )
    expected = {gpu_uuid(0): "multiple", mig_uuid(0): "9", mig_uuid(1): "10", gpu_uuid(3): "9"}
    return node(*pods), state, expected


def test_shared_labels_are_multiple_and_jobs_are_counted(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
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
    temperatures = [
        Series("gpu_temperature_celsius", 40 + index, (("uuid", uuid), ("sensor", str(index))))
        for index, uuid in enumerate(uuids)
    ]
    joined = []
    for temperature in temperatures:
        uuid = dict(temperature.labels)["uuid"]
        info = labels_of(series, uuid)
        if info is not None:
            labels = {name: value for name, value in info.items() if name in {"job_id", "user", "rank", "run_id"}}
            joined.append(Series("", temperature.value, (*temperature.labels, *labels.items())))
    assert len(joined) == len(expected) + 2  # plus the pods', and the second metric of GPU 0
    (info_series,) = (sample for sample in series if sample.metric == "gpu_job_info" and ("uuid", gpu_uuid(3)) in sample.labels)

    def checked(*more: Series) -> subprocess.CompletedProcess[str]:
        question = {
            "expr": JOIN,
            "eval_time": "2m",
            "exp_samples": [{"labels": _text(item), "value": item.value} for item in joined],
        }
        input_series = [{"series": _text(item), "values": f"{item.value}x4"} for item in (*series, *temperatures, *more)]
        test = tmp_path / "join.json"  # which is YAML too
        test.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": input_series, "promql_expr_test": [question]}]}))
        command = [require_program("promtool"), "test", "rules", str(test)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    completed = checked()
    assert completed.returncode == 0, completed.stdout + completed.stderr
    # and the test can fail: with a second series for a device Prometheus refuses the join
    refused = checked(Series("gpu_job_info", 1, (*info_series.labels, ("odd", "1"))))
    assert refused.returncode != 0
    assert "many-to-many" in refused.stdout + refused.stderr


def _text(series: Series) -> str:
    return f"{series.metric}{{{', '.join(f'{name}={json.dumps(value)}' for name, value in series.labels)}}}"


@pytest.mark.slow
def test_exporter_process_publishes_holder_and_user_of_a_gpu(start_exporter: StartExporter, tmp_path: Path) -> None:
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
