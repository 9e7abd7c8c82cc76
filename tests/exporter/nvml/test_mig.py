"""MIG devices, and processes on them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.exporter.fake_driver import GIB, MIB, NO_PROCESS, FakeDriver, a100_state, build_library, h100_state, mig_state, uuid_of
from tests.exporter.nvml.gpu_process import ALL, Sample, opened, sample_of

SEVEN = [(1, "1g.10gb")] * 7


def uuid(device: int) -> str:
    return f"MIG-0{device}000000-aaaa-bbbb-cccc-000000000000"


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    state = mig_state(0, SEVEN) | {
        "process.0": f"compute {NO_PROCESS} {5 * MIB} 2 0",
        "process.1": f"compute {NO_PROCESS + 1} - 7 0",
        "process.2": f"mps {NO_PROCESS + 2} {6 * MIB} 7 0",
    }
    return sample_of(FakeDriver(tmp_path_factory.mktemp("driver"), build_library(), [state]), 0, ALL)


def test_seven_mig_devices_are_named_with_profile_and_parent(seven: Sample) -> None:
    assert seven.value("gpu_mig_enabled") == 1
    assert seven.value("gpu_mig_instances") == 7
    infos = {mig_device: labels for (metric, labels, mig_device) in seven.series if metric == "gpu_mig_info"}
    assert len(infos) == 7
    assert dict(infos[uuid(2)]) == {"parent_uuid": uuid_of(0), "gpu_instance": "3", "compute_instance": "0", "profile": "1g.10gb"}
    assert [(mig_device.uuid, mig_device.gpu_instance, mig_device.profile) for mig_device in seven.raw.mig_devices][:1] == [
        (uuid(0), 1, "1g.10gb")
    ]


def test_each_mig_device_has_memory_and_activity(seven: Sample) -> None:
    assert seven.value("gpu_mig_memory_total_bytes", uuid(0)) == 10 * GIB
    assert [seven.value("gpu_mig_memory_used_bytes", uuid(device)) / MIB for device in range(7)] == [1, 2, 3, 4, 5, 6, 7]
    sm_active = [seven.value("gpu_mig_sm_active_ratio", uuid(device)) for device in range(7)]
    assert sm_active == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert seven.value("gpu_mig_graphics_active_ratio", uuid(6)) == 0.56
    assert seven.value("gpu_mig_sm_active_seconds_total", uuid(6)) > 0


def test_processes_are_assigned_to_mig_devices(seven: Sample) -> None:
    assert [(process.pid, process.kind, process.used_bytes, process.uuid) for process in seven.processes or ()] == [
        (NO_PROCESS, "compute", 5 * MIB, uuid(1)),
        (NO_PROCESS + 1, "compute", None, uuid(6)),
        (NO_PROCESS + 2, "mps", 6 * MIB, uuid(6)),
    ]
    labels = {"pid": str(NO_PROCESS), "process": ""}
    assert seven.value("gpu_process_memory_used_bytes", uuid(1), **labels) == 5 * MIB


def test_whole_gpu_utilization_is_absent_in_mig_mode(seven: Sample) -> None:
    assert seven.absent["gpu_utilization_ratio",] == "mig_enabled"
    assert seven.absent["gpu_busy_seconds_total",] == "mig_enabled"
    assert seven.value("gpu_power_watts") == 251.25
    assert seven.errors == {}


def test_mig_reconfiguration_is_followed(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path, build_library(), [mig_state(0, SEVEN)])
    with opened(fake) as gpu_process:
        before = gpu_process.sample()
        fake.gpus[0] = mig_state(0, [(3, "3g.40gb")])
        fake.write()
        time.sleep(0.11)
        changed = gpu_process.sample()
        fake.gpus[0] = h100_state(0)
        fake.write()
        after = gpu_process.sample()
        gpu_process.close()

    assert before.value("gpu_mig_instances") == 7
    assert [device.profile for device in changed.raw.mig_devices] == ["3g.40gb"]
    assert changed.value("gpu_mig_memory_total_bytes", uuid(0)) == 40 * GIB
    assert (after.value("gpu_mig_enabled"), after.raw.mig_devices) == (0, ())
    # Samples of removed devices were freed with them.
    assert fake.counts()["nvmlGpmSampleFree"] == fake.counts()["nvmlGpmSampleAlloc"]


def test_processes_are_read_again_after_mig_reconfiguration(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path, build_library(), [h100_state(0) | {"process.0": f"compute {NO_PROCESS} {5 * MIB} 0 0"}])
    with opened(fake) as gpu_process:
        whole, kept = gpu_process.sample(), gpu_process.sample()
        fake.gpus[0] = mig_state(0, SEVEN) | {"process.0": f"compute {NO_PROCESS} {5 * MIB} 2 0"}
        fake.write()
        divided = gpu_process.sample()
        gpu_process.close()

    assert [process.uuid for sample in (whole, divided) for process in sample.processes or ()] == ["", uuid(1)]
    assert kept.raw.processes_s == whole.raw.processes_s
    assert (divided.raw.processes_s or 0) > (whole.raw.processes_s or 0)


def test_newly_divided_gpu_is_detected_in_the_first_pass(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path, build_library(), [h100_state(0)])
    with opened(fake) as gpu_process:
        assert gpu_process.sample().value("gpu_mig_enabled") == 0
        fake.gpus[0] = mig_state(0, SEVEN)
        fake.write()
        divided = gpu_process.sample()
        gpu_process.close()

    assert divided.value("gpu_mig_enabled") == 1
    assert divided.absent["gpu_utilization_ratio",] == "mig_enabled"


def test_compute_instances_sharing_a_gpu_instance_have_no_activity(tmp_path: Path) -> None:
    state = mig_state(0, [(1, "1c.2g.20gb"), (1, "1c.2g.20gb"), (1, "1g.10gb")])
    state |= {"mig.1.gi": 1, "mig.1.ci": 1}
    fake = FakeDriver(tmp_path, build_library(), [state])

    sample = sample_of(fake)

    assert sample.absent["gpu_mig_sm_active_ratio",] == "shared_gpu_instance"
    assert {item for (metric, _, item) in sample.series if metric == "gpu_mig_sm_active_ratio"} == {uuid(2)}
    assert {item for (metric, _, item) in sample.series if metric == "gpu_mig_memory_used_bytes"} == {uuid(0), uuid(1), uuid(2)}


def test_mig_devices_before_hopper_have_memory_but_no_activity(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path, build_library(), [mig_state(0, [(1, "1g.5gb")] * 7, of=a100_state(0))])

    sample = sample_of(fake)

    assert sample.absent["gpu_mig_sm_active_ratio",] == "before_hopper"
    assert sample.value("gpu_mig_memory_total_bytes", uuid(3)) == 5 * GIB
    assert sample.errors == {}


def test_unnamed_profile_is_derived_from_the_slices(tmp_path: Path) -> None:
    state = mig_state(0, [(2, "2g.20gb")])
    state |= {"mig.0.name": "NVIDIA H100 80GB HBM3", "mig.0.compute_slices": 1}
    fake = FakeDriver(tmp_path, build_library(), [state])

    assert [device.profile for device in sample_of(fake).raw.mig_devices] == ["1c.2g.20gb"]
