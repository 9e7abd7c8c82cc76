"""Jobs, pods and users that share a GPU: each has its own series."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.exporter.jobs.job_node import (
    CONTAINER,
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
from rankscope.exporter.jobs.names import PodNames, UserNames
from rankscope.exporter.jobs.party import Allocation, PartyIdentity, SchedulerDevice
from rankscope.exporter.jobs.tenants import MAX_TENANTS
from rankscope.exporter.source import GpuProcess, Series

GIB = 2**30
UIDS = {name: f"6f1b2c3d-0000-4444-8888-abcdefabcde{index}" for index, name in enumerate(("a", "b", "c"))}
Values = dict[str, tuple[float | None, float | None]]


def in_pod(name: str) -> str:
    return f"0::/kubepods.slice/kubepods-pod{UIDS[name].replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n"


def process(pid: int, gib: float | None = 1, sm: float | None = None, uuid: str = "") -> GpuProcess:
    return GpuProcess(pid, "compute", None if gib is None else int(gib * GIB), uuid, sm)


def held(*names: str, device: SchedulerDevice | None = None) -> list[Allocation]:
    """Return what the kubelet reports of pods that share a device by time slicing."""
    devices = (device or SchedulerDevice(uuid=gpu_uuid(0)),)
    return [Allocation(PartyIdentity(namespace="ml", pod=name, container="train"), devices) for name in names]


def tenants(series: Iterable[Series], label: str = "pod_k8s", uuid: str = gpu_uuid(0)) -> Values:
    """Return memory in GiB and share of the SMs by the value of a label."""
    by_key: dict[str, dict[str, float]] = {}
    for sample in series:
        labels = dict(sample.labels)
        if sample.metric.startswith("gpu_tenant_") and labels["uuid"] == uuid:
            values = by_key.setdefault(labels[label], {})
            assert sample.metric not in values, "a series twice"
            values[sample.metric] = sample.value
    assert all(values["gpu_tenant_info"] == 1 for values in by_key.values())
    return {
        name: (
            values["gpu_tenant_memory_used_bytes"] / GIB if "gpu_tenant_memory_used_bytes" in values else None,
            values.get("gpu_tenant_sm_utilization_ratio"),
        )
        for name, values in by_key.items()
    }


@pytest.fixture
def pod_logs(tmp_path: Path) -> Path:
    """The folder of the kubelet with the logs of the pods a, b and c."""
    folder = tmp_path / "pods"
    for name, uid in UIDS.items():
        (folder / f"ml_{name}_{uid}").mkdir(parents=True)
    return folder


@pytest.fixture
def node(node: Callable[..., JobsCollector], pod_logs: Path) -> Callable[..., JobsCollector]:
    """The factory, with the names of the pods."""
    return functools.partial(node, pod_names=PodNames(pod_logs))


def test_pods_of_a_time_sliced_gpu_have_memory_and_sm_share(node: Callable[..., JobsCollector], proc: Proc) -> None:
    for pid, name in {10: "a", 11: "a", 12: "b"}.items():
        proc.process(pid, uid=0, cgroup=in_pod(name))

    series = node(*held("a", "b", "c")).read(
        fleet(gpu(0, pids=[process(10, 2, 0.25), process(11, 1, 0.125), process(12, 4, 0.5)]))
    )

    assert tenants(series) == {"a": (3, 0.375), "b": (4, 0.5), "c": (0, 0)}
    assert {dict(sample.labels)["container_k8s"] for sample in series if sample.metric == "gpu_tenant_info"} == {"train"}
    # the series for joins stays one
    assert labels_of(series, gpu_uuid(0)) == {"namespace_k8s": "ml", "pod_k8s": "multiple", "container_k8s": "train"}
    assert value_of(series, "gpu_jobs", gpu_uuid(0)) == 3


def test_a_pod_with_the_gpu_in_several_containers_is_one_tenant(node: Callable[..., JobsCollector], proc: Proc) -> None:
    proc.process(10, uid=0, cgroup=in_pod("a"))
    [train, other] = held("a", "b")
    side = Allocation(PartyIdentity(namespace="ml", pod="a", container="side"), train.devices)

    series = node(train, side, train, other).read(fleet(gpu(0, pids=[process(10, 2, 0.25)])))

    assert tenants(series) == {"a": (2, 0.25), "b": (0, 0)}
    containers = {dict(sample.labels).get("container_k8s") for sample in series if sample.metric == "gpu_tenant_info"}
    assert containers == {None, "train"}


def test_pods_on_an_idle_shared_gpu_have_zero_usage(node: Callable[..., JobsCollector]) -> None:
    series = node(*held("a", "b")).read(fleet(gpu(0, pids=[])))

    assert tenants(series) == {"a": (0, 0), "b": (0, 0)}


def test_pods_stay_listed_while_the_gpu_is_down(node: Callable[..., JobsCollector]) -> None:
    series = node(*held("a", "b")).read(fleet(gpu(0, up=False)))

    assert tenants(series) == {"a": (None, None), "b": (None, None)}


def test_gpu_with_one_tenant_has_no_tenant_series(node: Callable[..., JobsCollector], proc: Proc) -> None:
    proc.process(10, cgroup=in_pod("a"))
    jobs = node(*held("a"))

    series = jobs.read(fleet(gpu(0, pids=[process(10)]), gpu(1)))

    assert tenants(series) == tenants(series, uuid=gpu_uuid(1)) == {}
    assert (labels_of(series, gpu_uuid(0)) or {})["pod_k8s"] == "a"


def test_values_hidden_by_the_driver_are_absent(node: Callable[..., JobsCollector], proc: Proc) -> None:
    proc.process(10, cgroup=in_pod("a"))
    proc.process(11, cgroup=in_pod("b"))

    series = node(*held("a", "b")).read(fleet(gpu(0, pids=[process(10, None, 0.5), process(11, 2, None)])))

    assert tenants(series) == {"a": (None, 0.5), "b": (2, None)}


def test_holders_without_pod_names_have_no_values(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    proc.process(10, cgroup=in_pod("a"))
    proc.process(11, cgroup=in_pod("b"))
    jobs = node(*held("a", "b"), pod_names=PodNames(tmp_path / "none"))

    series = jobs.read(fleet(gpu(0, pids=[process(10), process(11)])))

    assert tenants(series) == {"a": (None, None), "b": (None, None)}
    assert value_of(series, "gpu_jobs", gpu_uuid(0)) == 2


def test_invisible_processes_leave_tenant_values_unknown(node: Callable[..., JobsCollector], tmp_path: Path) -> None:
    elsewhere = Proc(tmp_path / "container", first_namespace=False)

    series = node(*held("a", "b"), proc=elsewhere.path).read(fleet(gpu(0, pids=[process(10), process(11)])))

    assert tenants(series) == {"a": (None, None), "b": (None, None)}


def test_pod_is_named_by_processes_without_the_kubelet(node: Callable[..., JobsCollector], proc: Proc) -> None:
    proc.process(10, cgroup=in_pod("a"))
    proc.process(11, cgroup=in_pod("b"))

    series = node().read(fleet(gpu(0, pids=[process(10), process(11)]), gpu(1, pids=[process(10)])))

    assert tenants(series) == {"a": (1, None), "b": (1, None)}
    assert labels_of(series, gpu_uuid(1)) == {"namespace_k8s": "ml", "pod_k8s": "a"}


def test_pod_beside_the_holder_is_a_tenant_and_adds_no_rank(node: Callable[..., JobsCollector], proc: Proc) -> None:
    proc.process(10, cgroup=in_pod("a"), environ={"RANK": "3"})
    proc.process(11, cgroup=in_pod("b"), environ={"RANK": "7"})

    series = node(*held("a")).read(fleet(gpu(0, pids=[process(10), process(11)])))

    assert tenants(series) == {"a": (1, None), "b": (1, None)}
    labels = labels_of(series, gpu_uuid(0)) or {}
    assert (labels["pod_k8s"], labels["rank"]) == ("a", "3")


def test_slurm_jobs_and_users_sharing_a_gpu_are_tenants(node: Callable[..., JobsCollector], proc: Proc, tmp_path: Path) -> None:
    # two shards of a GPU, and a process outside of all jobs
    slurm_folder(
        tmp_path / "jobs",
        job_7={"CUDA_VISIBLE_DEVICES": "0"},
        job_8={"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_USER": "bob", "SLURM_JOB_UID": "1001"},
    )
    proc.process(10, cgroup=in_job(7))
    proc.process(11, uid=1001, cgroup=in_job(8))
    proc.process(12, uid=1002)

    series = node().read(fleet(gpu(0, pids=[process(10, 1), process(11, 2), process(12, 4)])))

    infos = [dict(sample.labels) for sample in series if sample.metric == "gpu_tenant_info"]
    assert sorted((sample.get("job_id", ""), sample["user"]) for sample in infos) == [("", "carl"), ("7", "ann"), ("8", "bob")]
    memory = {sample.labels: sample.value / GIB for sample in series if sample.metric == "gpu_tenant_memory_used_bytes"}
    assert sorted(memory.values()) == [1, 2, 4]


def test_each_mig_device_has_separate_tenants(node: Callable[..., JobsCollector], proc: Proc) -> None:
    migs = (mig(1, 1), mig(2, 2))
    pods = [*held("a", "b", device=SchedulerDevice(uuid=mig_uuid(1))), *held("c", device=SchedulerDevice(uuid=mig_uuid(2)))]
    for pid, name in {10: "a", 11: "b", 12: "c"}.items():
        proc.process(pid, cgroup=in_pod(name))
    pids = [process(10, 1, uuid=mig_uuid(1)), process(11, 2, uuid=mig_uuid(1)), process(12, 4, uuid=mig_uuid(2))]

    series = node(*pods).read(fleet(gpu(0, pids=pids, migs=migs)))

    assert tenants(series, uuid=mig_uuid(1)) == {"a": (1, None), "b": (2, None)}
    assert tenants(series, uuid=mig_uuid(2)) == tenants(series) == {}


def test_tenants_are_limited_to_those_with_the_most_memory(node: Callable[..., JobsCollector], proc: Proc) -> None:
    many = range(MAX_TENANTS + 40)
    for number in many:
        proc.process(100 + number, uid=2000 + number)
    names = UserNames(lambda uid: f"user{uid - 2000}")

    series = node(user_names=names).read(fleet(gpu(0, pids=[process(100 + number, number) for number in many])))

    shown = tenants(series, "user")
    assert len(shown) == MAX_TENANTS
    assert f"user{many[-1]}" in shown
    assert "user0" not in shown
    assert value_of(series, "gpu_jobs", gpu_uuid(0)) == len(many)


@pytest.mark.parametrize(
    ("hide", "remaining"),
    [("show_pods", {"user": {"ann", "bob"}, "pod_k8s": set()}), ("show_users", {"user": set(), "pod_k8s": {"a", "b"}})],
)
def test_hidden_tenants_have_no_series(
    node: Callable[..., JobsCollector], proc: Proc, hide: str, remaining: dict[str, set[str]]
) -> None:
    for pid, name in {10: "a", 11: "b"}.items():
        proc.process(pid, cgroup=in_pod(name))
    for pid, uid in {12: 1000, 13: 1001}.items():
        proc.process(pid, uid=uid)

    series = node(*held("a", "b"), **{hide: False}).read(fleet(gpu(0, pids=[process(pid) for pid in range(10, 14)])))

    shown = [dict(sample.labels) for sample in series if sample.metric == "gpu_tenant_info"]
    assert {name: {sample[name] for sample in shown if name in sample} for name in remaining} == remaining


def test_untrusted_pod_log_folder_is_ignored(pod_logs: Path, tmp_path: Path) -> None:
    uids = set(UIDS.values())
    assert PodNames(pod_logs).names(uids) == {uid: ("ml", name) for name, uid in UIDS.items()}

    pod_logs.chmod(0o777)
    assert PodNames(pod_logs).names(uids) == {}
    pod_logs.chmod(0o755)
    (tmp_path / "link").symlink_to(pod_logs)
    assert PodNames(tmp_path / "link").names(uids) == {}
    if os.getuid() == 0:
        os.chown(pod_logs, 65534, 65534)
        assert PodNames(pod_logs).names(uids) == {}


def test_pod_started_later_is_named(pod_logs: Path) -> None:
    names = PodNames(pod_logs)
    uid = "a" * 32  # a static pod has a hash
    assert names.names([uid]) == {}

    (pod_logs / f"kube-system_late-node1_{uid}").mkdir()
    (pod_logs / "no-pod").mkdir()
    (pod_logs / "ml_x y_1").mkdir()

    assert names.names([uid, UIDS["a"]]) == {uid: ("kube-system", "late-node1"), UIDS["a"]: ("ml", "a")}
