"""Pods and their GPUs, from a real gRPC server that speaks PodResources."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state, uuid_of

from rankscope.base.errors import MissingError
from rankscope.exporter.jobs import kubelet as kubelet_module
from rankscope.exporter.jobs.allocation_source import KEEP_S, AllocationSource
from rankscope.exporter.jobs.kubelet import Kubelet, KubeletError
from rankscope.exporter.jobs.party import Allocation, PartyIdentity, SchedulerDevice

FAKE = Path(__file__).with_name("fake_kubelet.py")
GPU = "GPU-10000000-aaaa-bbbb-cccc-000000000000"
OTHER = "GPU-20000000-aaaa-bbbb-cccc-000000000000"
MIG = "MIG-10000000-aaaa-bbbb-cccc-111111111111"


class FakeKubelet:
    """The fake kubelet's process. Its folder must be short: the path of a Unix socket has at most 107 bytes."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "kubelet.sock"
        self._state = folder / "state.json"
        self._process: subprocess.Popen[str] | None = None
        self.says()

    def says(self, *, allocatable: dict[str, list[str]] | None = None, **state: Any) -> None:
        replacement = self._state.with_suffix(".new")
        replacement.write_text(json.dumps({"allocatable": allocatable, **state}))
        replacement.replace(self._state)

    def start(self) -> None:
        command = [sys.executable, str(FAKE), str(self.socket), str(self._state)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def stop(self) -> None:
        """Kill the kubelet, which leaves its socket behind, and remove the socket."""
        if self._process is not None:
            with self._process:
                self._process.kill()
        self.socket.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def process() -> Iterator[FakeKubelet]:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder, contextlib.ExitStack() as stack:
        fake = FakeKubelet(Path(folder))
        stack.callback(fake.stop)
        yield fake


@pytest.fixture
def fake(process: FakeKubelet) -> FakeKubelet:
    process.says()
    if not process.socket.exists():
        process.start()
    return process


@pytest.fixture
def kubelet(fake: FakeKubelet) -> Iterator[Kubelet]:
    kubelet = Kubelet(fake.socket, explicit=True)
    yield kubelet
    kubelet.close()


def _pod(pod: str, *devices: SchedulerDevice, container: str = "train", namespace: str = "ml") -> Allocation:
    return Allocation(PartyIdentity(namespace=namespace, pod=pod, container=container), devices)


def test_container_devices_are_read_in_every_spelling(fake: FakeKubelet, kubelet: Kubelet) -> None:
    fake.says(
        pods=[
            ["ml", "whole", {"train": {"nvidia.com/gpu": [GPU, OTHER]}, "sidecar": {}}],
            [
                "ml",
                "sliced",
                {"a": {"nvidia.com/gpu": [f"{GPU}::3", f"{GPU}::0"]}, "b": {"nvidia.com/gpu.shared": [f"{GPU}::1"]}},
            ],
            ["ml", "part", {"train": {"nvidia.com/mig-1g.10gb": [MIG]}}],
            ["ml", "old-part", {"train": {"nvidia.com/mig-1g.5gb": [f"MIG-{GPU}/3/0"]}}],
            ["ml", "gke", {"train": {"nvidia.com/gpu": ["nvidia2", "nvidia3/gi4", "nvidia1/vgpu0"]}}],
            ["ml", "strange", {"train": {"nvidia.com/gpu": ["card-one"]}}],
            ["ml", "another-plugin", {"train": {"example.com/vgpu": [f"{GPU}-7"]}}],
            ["ml", "network", {"train": {"nvidia.com/hostdev": ["0000:1a:00.0"], "intel.com/nic": ["eth0"]}}],
            ["kube-system", "dns", {"dns": {}}],
        ],
        claims=[
            ["ml", "claims", "train", "gpu.nvidia.com", "gpu-4", "k8s.gpu.nvidia.com/claim=1-gpu-4"],
            ["ml", "claims-uuid", "train", "gpu.nvidia.com", "gpu-4", f"k8s.gpu.nvidia.com/device={OTHER.lower()}"],
            ["ml", "claims-part", "train", "gpu.nvidia.com", "gpu-0-mig-1g.10gb-19-1", "k8s.gpu.nvidia.com/claim=2"],
            ["ml", "claims-nic", "train", "dra.net", "gpu-0", "eth0"],
        ],
    )

    assert kubelet.read() == (
        _pod("whole", SchedulerDevice(uuid=GPU), SchedulerDevice(uuid=OTHER)),
        _pod("sliced", SchedulerDevice(uuid=GPU), container="a"),
        _pod("sliced", SchedulerDevice(uuid=GPU), container="b"),
        _pod("part", SchedulerDevice(uuid=MIG)),
        _pod("old-part", SchedulerDevice(uuid=GPU, gpu_instance=3, compute_instance=0)),
        _pod("gke", SchedulerDevice(number=2), SchedulerDevice(number=3, gpu_instance=4), SchedulerDevice(number=1)),
        _pod("strange", SchedulerDevice()),
        _pod("another-plugin", SchedulerDevice(uuid=GPU)),
        _pod("claims", SchedulerDevice(number=4)),
        _pod("claims-uuid", SchedulerDevice(uuid=OTHER.lower())),
        _pod("claims-part", SchedulerDevice()),
    )


@pytest.mark.slow
def test_pods_sharing_a_gpu_are_published(fake: FakeKubelet, start_exporter: StartExporter, tmp_path: Path) -> None:
    gpu = {name: value for name, value in h100_state(0).items() if "process" not in name}
    driver = FakeDriver(tmp_path, build_library(), [gpu])
    slots = {pod: [f"{uuid_of(0)}::{slot}"] for slot, pod in enumerate("ab")}
    fake.says(pods=[["ml", pod, {"train": {"nvidia.com/gpu.shared": ids}}] for pod, ids in slots.items()])

    exporter = start_exporter("--jobs.podresources-socket", fake.socket, "--compat", "dcgm", env=driver.env)
    exporter.wait_until(lambda: exporter.values("gpu_jobs") == [2])
    compatible = exporter.get("/dcgm/metrics").text

    for pod in "ab":
        labels = {"uuid": uuid_of(0), "namespace_k8s": "ml", "pod_k8s": pod}
        assert exporter.values("gpu_tenant_info", **labels) == [1]
        assert exporter.values("gpu_tenant_memory_used_bytes", **labels) == [0]  # no process runs on it
        assert exporter.values("gpu_tenant_sm_utilization_ratio", **labels) == [0]
        for name in ("FB_USED", "GPU_UTIL"):
            (line,) = (line for line in compatible.splitlines() if f'pod="{pod}"' in line and f"DEV_{name}{{" in line)
            assert line.endswith(f'namespace="ml",pod="{pod}"}} 0')
    assert exporter.values("gpu_job_info", pod_k8s="multiple") == [1]
    assert "multiple" not in compatible
    # a part of the jobs that does not work would be reported
    assert exporter.values("rankscope_exporter_jobs_source_ok", source="kubelet") == [1]


def test_kubelet_without_allocatable_gpus_reports_no_allocation(fake: FakeKubelet, kubelet: Kubelet) -> None:
    fake.says(allocatable={"intel.com/nic": ["eth0"]})
    assert kubelet.read() is None

    fake.says(allocatable={"nvidia.com/gpu": [GPU]})  # its device plugin has registered
    assert kubelet.read() == ()


def test_old_kubelet_without_allocatable_list_is_trusted(fake: FakeKubelet, kubelet: Kubelet) -> None:
    fake.says(allocatable=None)

    assert kubelet.read() == ()


def test_restarted_kubelet_is_reconnected(fake: FakeKubelet, kubelet: Kubelet) -> None:
    fake.says(pods=[["ml", "a", {"train": {"nvidia.com/gpu": [GPU]}}]])
    source = AllocationSource("kubelet", kubelet.read)
    first = source.read(0.0)
    assert (first, source.ok) == ((_pod("a", SchedulerDevice(uuid=GPU)),), True)

    fake.stop()

    # then its last answer is used for ``KEEP_S``, and no longer
    assert (source.read(KEEP_S), source.ok, source.is_valid) == (first, False, True)
    assert (source.read(KEEP_S + 1), source.ok, source.is_valid) == (None, False, False)

    fake.says(pods=[["ml", "b", {"train": {"nvidia.com/gpu": [OTHER]}}]])
    fake.start()

    assert source.read(KEEP_S + 2) == (_pod("b", SchedulerDevice(uuid=OTHER)),)
    assert (source.ok, source.is_valid) == (True, True)


def test_answer_of_a_removed_default_socket_is_kept_for_a_limited_time(fake: FakeKubelet) -> None:
    fake.says(pods=[["ml", "a", {"train": {"nvidia.com/gpu": [GPU]}}]])
    kubelet = Kubelet(fake.socket, explicit=False)
    source = AllocationSource("kubelet", kubelet.read)
    first = source.read(0.0)

    fake.stop()

    assert source.read(KEEP_S) == first
    assert (source.read(KEEP_S + 1), source.ok, source.is_valid) == (None, None, None)


@pytest.mark.parametrize(
    ("how", "reason"), [("hang", "deadline_exceeded"), ("garbage", "not a kubelet"), ("refuse", "resource_exhausted")]
)
def test_kubelet_failure_is_logged_once(
    fake: FakeKubelet,
    kubelet: Kubelet,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    how: str,
    reason: str,
) -> None:
    fake.says(how=how)
    source = AllocationSource("kubelet", kubelet.read)

    with caplog.at_level(logging.INFO), monkeypatch.context() as patch:
        if how == "hang":
            patch.setattr(kubelet_module, "_TIMEOUT_S", 0.2)
        assert source.read(0.0) is None
        assert source.read(1.0) is None

    assert [reason in record.getMessage() for record in caplog.records] == [True]

    fake.says(allocatable={"nvidia.com/gpu": [GPU]})
    assert source.read(2.0) == ()


def test_unresponsive_or_invalid_socket_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_module, "_TIMEOUT_S", 0.2)
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{folder}/kubelet.sock")
        silent.listen()
        with pytest.raises(KubeletError, match=r"deadline_exceeded|unavailable"):
            Kubelet(Path(folder) / "kubelet.sock", explicit=False).read()
    (tmp_path / "file").touch()
    with pytest.raises(KubeletError, match="not a socket"):
        Kubelet(tmp_path / "file", explicit=False).read()


def test_missing_kubelet_is_an_error_only_if_configured(tmp_path: Path) -> None:
    assert Kubelet(tmp_path / "kubelet.sock", explicit=False).read() is None
    with pytest.raises(KubeletError, match="no such socket"):
        Kubelet(tmp_path / "kubelet.sock", explicit=True).read()


def test_missing_grpc_is_an_error_only_if_the_kubelet_is_configured(fake: FakeKubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_module, "find_spec", lambda name: None)

    assert Kubelet(fake.socket, explicit=False).read() is None
    with pytest.raises(MissingError, match=r"pip install 'rankscope\[kubernetes\]'"):
        Kubelet(fake.socket, explicit=True)


@pytest.mark.parametrize("missing", ["grpc", "google", "google.protobuf"])
def test_kubelet_is_skipped_if_a_package_is_missing(missing: str, tmp_path: Path) -> None:
    script = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from pathlib import Path
from rankscope.base.errors import MissingError
from rankscope.exporter.jobs.kubelet import Kubelet
socket = Path(sys.argv[1])
print(Kubelet(socket, explicit=False).read())
try:
    Kubelet(socket, explicit=True)
except MissingError as error:
    print(error)
"""
    completed = subprocess.run([sys.executable, "-c", script, tmp_path / "none"], capture_output=True, text=True, check=True)

    assert completed.stdout.splitlines()[0] == "None"
    assert "rankscope[kubernetes]" in completed.stdout.splitlines()[1]
