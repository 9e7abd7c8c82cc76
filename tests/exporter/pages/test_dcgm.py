"""The DCGM-compatible page, for boards and rules written for dcgm-exporter."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.exporter.pages import golden_node
from tests.exporter.pages.golden_node import DIVIDED, GOLDEN, H100, HUNG, loop, node_with, sample_of

from rankscope.exporter.catalogue import COLLECTORS
from rankscope.exporter.pages.dcgm import DcgmPage
from rankscope.exporter.pages.dcgm_counters import default_counters, read_counters
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.source import Absent, FleetState, GpuSample, Reading, Series

ALL = frozenset(COLLECTORS)

JOBS = (
    Series("gpu_job_info", 1, (("uuid", H100), ("namespace_k8s", "ml"), ("pod_k8s", "train-0"), ("container_k8s", "main"))),
    Series("gpu_job_info", 1, (("uuid", "MIG-20000000-1111-bbbb-cccc-000000000000"), ("pod_k8s", "small-0"))),
)
XIDS = (
    Series("gpu_xid_last_code", 0, (("uuid", H100),)),
    Series("gpu_xid_last_code", 79, (("uuid", HUNG),)),
    Series("gpu_xid_errors_total", 0, (("uuid", H100), ("xid", "79"))),
    Series("gpu_xid_errors_total", 2, (("uuid", HUNG), ("xid", "79"))),
    Series("gpu_xid_errors_total", 3, (("uuid", HUNG), ("xid", "149"), ("severity", "fatal"))),
    Series("gpu_xid_errors_total", 4, (("uuid", HUNG), ("xid", "149"), ("severity", "non_fatal"))),
    Series("gpu_xid_recent_errors", 1, (("uuid", HUNG), ("xid", "79"))),
)


def node() -> FleetState:
    """Return the golden node; its first H100 also has readings of the video encoder and decoder."""
    video = (Reading("gpu_encoder_utilization_ratio", 0.57), Reading("gpu_decoder_utilization_ratio", 0.0))
    (first,) = golden_node.node_with(readings=(*sample_of(0).readings, *video)).gpus
    state = golden_node.node()
    return msgspec.structs.replace(state, gpus=(first, *state.gpus[1:]))


BYTES_PER_SECOND = {
    "gpu_pcie_transmit_bytes_total": 2e9,
    "gpu_pcie_receive_bytes_total": 3e9,
    "gpu_nvlink_transmit_bytes_total": 40 * 2**20,
    "gpu_nvlink_receive_bytes_total": 60 * 2**20,
}


def _earlier(sample: GpuSample, ago_s: float) -> GpuSample:
    readings = tuple(
        msgspec.structs.replace(reading, value=reading.value - BYTES_PER_SECOND.get(reading.metric, 0) * ago_s)
        for reading in sample.readings
    )
    return msgspec.structs.replace(sample, monotonic_s=sample.monotonic_s - ago_s, readings=readings)


def page_of(state: FleetState, *, collectors: frozenset[str] = ALL, jobs: tuple[Series, ...] = JOBS) -> MetricsPage:
    """Return a page whose first GPUs' samples are four seconds old, because DCGM's rates need two samples."""
    gpus = (msgspec.structs.replace(gpu, sample=_earlier(gpu.sample, 4)) if gpu.sample is not None else gpu for gpu in state.gpus)
    states = itertools.chain([msgspec.structs.replace(state, gpus=tuple(gpus))], itertools.repeat(state))
    return golden_node.page_of(lambda: next(states), jobs=loop("jobs", jobs), xid=loop("xid", XIDS), collectors=collectors)


@pytest.fixture
def page() -> MetricsPage:
    return page_of(node())


def text(page: MetricsPage, counters: Path | None = None, **options: Any) -> str:
    dcgm = DcgmPage(page, read_counters(counters) if counters else None, **options)
    dcgm.render()
    body, content_type = dcgm.render()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    return body.decode()


def values(body: str, name: str, **labels: str) -> list[float]:
    name = name if name.startswith("DCGM_") else f"DCGM_FI_{name}"
    lines = (line for line in body.splitlines() if line.startswith(f"{name}{{"))
    return [float(line.split()[-1]) for line in lines if all(f'{key}="{value}"' in line for key, value in labels.items())]


def test_page_matches_the_golden_file(page: MetricsPage) -> None:
    assert text(page) == (GOLDEN / "node.dcgm.txt").read_text(), f"if that is meant: python {__file__}"


def test_units_match_dcgm(page: MetricsPage) -> None:
    body = text(page)
    readings = {(reading.metric, reading.labels): reading.value for reading in sample_of(0).readings}

    def of_first(name: str) -> float:
        (value,) = values(body, name, UUID=H100)
        return value

    assert of_first("DEV_FB_RESERVED") == 600
    assert of_first("DEV_SM_CLOCK") == readings["gpu_clock_hertz", (("clock", "sm"),)] / 1e6
    assert of_first("DEV_ENC_UTIL") == 57
    assert of_first("DEV_TOTAL_ENERGY_CONSUMPTION") == pytest.approx(1000 * readings["gpu_energy_joules_total", ()])
    assert of_first("PROF_DRAM_ACTIVE") == readings["gpu_dram_active_ratio", ()]
    assert 0 < of_first("PROF_PIPE_TENSOR_ACTIVE") < 1


def test_vgpu_license_status_is_zero_without_a_vgpu() -> None:
    page = page_of(node_with(absent=(Absent("gpu_vgpu_license_status", "no_vgpu_guest"),)))

    body = text(page)

    assert values(body, "DEV_VGPU_LICENSE_STATUS", UUID=H100) == [0]
    assert "DEV_VGPU_LICENSE_STATUS not available" not in body
    # on the native page the metric stays absent
    assert not [family for family in page.families() if family.name == "gpu_vgpu_license_status"]


def test_labels_follow_the_dcgm_order(page: MetricsPage) -> None:
    body = text(page)

    assert (
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="{H100}",pci_bus_id="00000000:1A:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",Hostname="node1",DCGM_FI_DRIVER_VERSION="570.86.15",'
        'container="main",namespace="ml",pod="train-0"} 66\n'
    ) in body
    assert 'modelName="NVIDIA \\"A100\\"-SXM4-80GB"' in body
    assert 'Hostname="node1"' not in text(page, hostname_label="hostname")
    assert ',hostname="node1",' in text(page, hostname_label="hostname")


def test_divided_gpu_is_listed_once_per_gpu_instance(page: MetricsPage) -> None:
    body = text(page)

    assert values(body, "DEV_FB_USED", UUID=DIVIDED) == [10 * 1024, 11 * 1024]
    assert values(body, "DEV_FB_USED", UUID=DIVIDED, GPU_I_ID="2", GPU_I_PROFILE="3g.40gb") == [11 * 1024]
    assert values(body, "DEV_FB_USED", GPU_I_ID="1", pod="small-0") == [10 * 1024]
    # with the profile of the GPU instance, if its first device is a compute instance of it
    divided = json.loads((GOLDEN / "node.json").read_bytes().replace(b'"3g.40gb"', b'"1c.3g.40gb"'))
    of_a_part = text(page_of(msgspec.convert(divided, FleetState)))
    assert values(of_a_part, "DEV_FB_USED", UUID=DIVIDED, GPU_I_ID="2", GPU_I_PROFILE="3g.40gb") == [11 * 1024]
    assert len(values(body, "PROF_GR_ENGINE_ACTIVE", UUID=DIVIDED)) == 2
    # readings of the whole GPU have no instance labels
    (line,) = (line for line in body.splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP{") and DIVIDED in line)
    assert "GPU_I_ID" not in line


def shared(uuid: str, *pods: str, memory: dict[str, float] | None = None, sm: dict[str, float] | None = None) -> list[Series]:
    """Return the series of a device that these pods of the namespace ml share."""

    def tenant(pod: str) -> tuple[tuple[str, str], ...]:
        return (("uuid", uuid), ("namespace_k8s", "ml"), ("pod_k8s", pod), ("container_k8s", "main"))

    return [
        Series("gpu_job_info", 1, (("uuid", uuid), ("namespace_k8s", "ml"), ("pod_k8s", "multiple"), ("container_k8s", "main"))),
        *(Series("gpu_tenant_info", 1, tenant(pod)) for pod in pods),
        *(Series("gpu_tenant_memory_used_bytes", value * 2**20, tenant(pod)) for pod, value in (memory or {}).items()),
        *(Series("gpu_tenant_sm_utilization_ratio", value, tenant(pod)) for pod, value in (sm or {}).items()),
    ]


def test_each_pod_sharing_a_gpu_has_separate_series() -> None:
    instance = "MIG-20000000-1111-bbbb-cccc-000000000000"
    of_gpu = shared(H100, "a", "b", "c", memory={"a": 1024, "b": 512}, sm={"a": 0.25, "b": 0.5, "c": 0})
    # a job of Slurm on the same GPU is no pod
    job = Series("gpu_tenant_memory_used_bytes", 2.0**30, (("uuid", H100), ("job_id", "7"), ("user", "ann")))
    of_instance = shared(instance, "d", "e", memory={"d": 1, "e": 2})

    body = text(page_of(node(), jobs=(*of_gpu, job, *of_instance)))

    assert {pod: values(body, "DEV_FB_USED", UUID=H100, namespace="ml", pod=pod) for pod in "abc"} == {
        "a": [1024],
        "b": [512],
        "c": [],
    }
    assert {pod: values(body, "DEV_GPU_UTIL", UUID=H100, pod=pod) for pod in "abc"} == {"a": [25], "b": [50], "c": [0]}
    assert values(body, "DEV_FB_USED", GPU_I_ID="1", pod="e", container="main") == [2]
    assert len(values(body, "DEV_FB_USED", UUID=DIVIDED)) == 4  # two instances, two pods
    # the device has its series once, of no pod
    lines = [line for line in body.splitlines() if H100 in line and not line.startswith("#") and "pod=" not in line]
    assert len([line for line in lines if line.startswith(("DCGM_FI_DEV_FB_USED{", "DCGM_FI_DEV_GPU_UTIL{"))]) == 2
    assert not [line for line in lines if "namespace=" in line or "container=" in line]
    assert "multiple" not in body
    # pods without values are named in a comment
    assert [line for line in body.splitlines() if line.startswith("# DCGM_FI_DEV_FB_USED") and line.endswith(": ml/c")]
    names = [line.rpartition(" ")[0] for line in body.splitlines() if not line.startswith("#")]
    assert len(set(names)) == len(names)


def test_multiple_containers_of_a_pod_are_labelled_as_one_pod() -> None:
    labels = (("uuid", H100), ("namespace_k8s", "ml"), ("pod_k8s", "a"), ("container_k8s", "multiple"))

    body = text(page_of(node(), jobs=(Series("gpu_job_info", 1, labels),)))

    assert values(body, "DEV_GPU_TEMP", UUID=H100, namespace="ml", pod="a") == [66]
    assert "container=" not in body


def test_mig_instance_divided_by_pods_has_no_pod_label() -> None:
    first = sample_of(2).mig_devices[0]
    second = msgspec.structs.replace(first, uuid="MIG-other", compute_instance=1)
    state = node_with(2, mig_devices=(first, second))
    jobs = tuple(
        Series("gpu_job_info", 1, (("uuid", uuid), ("namespace_k8s", "ml"), ("pod_k8s", pod)))
        for uuid, pod in ((first.uuid, "a"), (second.uuid, "b"))
    )

    assert "pod=" in text(page_of(state, jobs=jobs[:1]))
    assert "pod=" not in text(page_of(state, jobs=jobs))


def test_a_gpu_that_is_down_has_no_values_but_its_last_xid(page: MetricsPage) -> None:
    about_it = [line for line in text(page).splitlines() if HUNG in line]

    assert [line.split("{")[0] for line in about_it] == [
        f"# {HUNG} is down: hung in nvmlDeviceGetPowerUsage",
        "DCGM_FI_DEV_XID_ERRORS",
    ]
    assert about_it[1].endswith(" 79")
    assert values(text(page), "DEV_XID_ERRORS", UUID=H100) == [0]


def test_rates_are_computed_from_two_samples() -> None:
    state = node()
    first = text(page_of(state))
    assert values(first, "PROF_PCIE_TX_BYTES", UUID=H100) == [2e9]
    assert values(first, "PROF_PCIE_RX_BYTES", UUID=H100) == [3e9]
    assert values(first, "DEV_NVLINK_BANDWIDTH_TOTAL", UUID=H100) == [pytest.approx(100, abs=0.01)]

    # a second scrape of the same sample gives the same rates
    page = DcgmPage(page_of(state))
    assert values(page.render()[0].decode(), "PROF_PCIE_TX_BYTES") == []
    again = [values(page.render()[0].decode(), "PROF_PCIE_TX_BYTES", UUID=H100) for _ in range(2)]
    assert again == [[2e9], [2e9]]


def test_a_counter_that_was_reset_has_no_rate() -> None:
    sample = sample_of(0)
    zeroed = tuple(
        msgspec.structs.replace(reading, value=0.0) if reading.metric == "gpu_pcie_transmit_bytes_total" else reading
        for reading in sample.readings
    )
    states = [node_with(monotonic_s=sample.monotonic_s + 1, readings=zeroed), node_with()]
    page = DcgmPage(golden_node.page_of(states.pop))
    page.render()

    body = page.render()[0].decode()

    assert values(body, "PROF_PCIE_TX_BYTES") == []
    assert values(body, "PROF_PCIE_RX_BYTES") == [0]


def test_metric_missing_on_one_gpu_is_noted_for_that_gpu(page: MetricsPage) -> None:
    # given two H100s, of which the one with MIG has no utilisation
    assert f"# DCGM_FI_DEV_GPU_UTIL not available on {DIVIDED}: not_supported\n" in text(page)


def test_metric_missing_on_a_generation_is_noted_once_per_model(page: MetricsPage) -> None:
    comments = [line for line in text(page).splitlines() if "A100" in line and line.startswith("# DCGM")]

    assert '# DCGM_FI_PROF_DRAM_ACTIVE not available on NVIDIA "A100"-SXM4-80GB: before_hopper' in comments
    assert '# DCGM_FI_DEV_SM_CLOCK not available on NVIDIA "A100"-SXM4-80GB: no_permission' in comments
    assert not any("MEM_CLOCK" in line for line in comments)
    eight = DcgmPage(MetricsPage("node1", SimulatedFleet("8xA100"))).render()[0].decode()
    assert eight.count("DCGM_FI_PROF_DRAM_ACTIVE not available") == 1


def test_disabled_collector_is_named_in_a_comment() -> None:
    body = text(page_of(node(), collectors=ALL - {"encoder"}))

    assert "# DCGM_FI_DEV_ENC_UTIL not available: it needs --collector.encoder\n" in body
    assert default_counters().collectors >= {"encoder", "gpm", "power", "xid"}


def served(page: MetricsPage, tmp_path: Path, *names: str) -> str:
    file = tmp_path / "counters.csv"
    file.write_text("".join(f"{name}, {'gauge' if 'REASONS' in name or 'PROF' in name else 'counter'}, x\n" for name in names))
    return text(page, file)


def test_xid_series_have_the_dcgm_labels(page: MetricsPage, tmp_path: Path) -> None:
    body = text(page)
    assert values(body, "DEV_XID_ERRORS", UUID=HUNG, err_code="79", err_msg="The GPU no longer answers over PCIe.") == [79]
    assert values(body, "DEV_XID_ERRORS", UUID=H100, err_code="0", err_msg="no error") == [0]

    body = served(page, tmp_path, "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL")
    assert values(body, "DCGM_EXP_XID_ERRORS_COUNT", UUID=HUNG, xid="79", window_size_in_ms="300000") == [1]
    # a GPU without an error has 0, without a code
    assert values(body, "DCGM_EXP_XID_ERRORS_COUNT", UUID=H100, window_size_in_ms="300000") == [0]
    assert values(body, "DCGM_EXP_XID_ERRORS_TOTAL", UUID=HUNG, xid="149") == [7]
    assert values(body, "DCGM_EXP_XID_ERRORS_TOTAL", UUID=H100, xid="79") == [0]


def test_throttling_is_served_as_times_and_as_a_mask(tmp_path: Path) -> None:
    seconds = {"sw_power_cap": 1.5, "sync_boost": 2, "board_limit": 3, "reliability": 4, "sw_thermal": 5, "hw_thermal": 6}
    active = {"gpu_idle": 0, "sw_power_cap": 1, "sw_thermal": 1, "hw_power_brake": 1, "display_clocks": 0}
    readings = [Reading("gpu_throttle_seconds_total", value, (("reason", reason),)) for reason, value in seconds.items()]
    readings += [Reading("gpu_throttle_active", value, (("reason", reason),)) for reason, value in active.items()]
    state = node_with(readings=tuple(readings), absent=())
    times = {"POWER": 1.5e9, "SYNC_BOOST": 2e9, "BOARD_LIMIT": 3e9, "RELIABILITY": 4e9, "THERMAL": 11e9}
    masks = ("DEV_CLOCK_THROTTLE_REASONS", "DEV_CLOCKS_EVENT_REASONS")

    names = [*(f"DEV_{name}_VIOLATION" for name in times), *masks]
    body = served(page_of(state), tmp_path, *(f"DCGM_FI_{name}" for name in names))

    assert {name: values(body, f"DEV_{name}_VIOLATION") for name in times} == {name: [ns] for name, ns in times.items()}
    assert [values(body, name) for name in masks] == [[0x4 | 0x20 | 0x80]] * 2


def test_nvlinks_are_served_as_counters_and_as_rates(tmp_path: Path) -> None:
    state = node()
    counters, rates = ("DEV_NVLINK_COUNT_TX_BYTES", "DEV_NVLINK_COUNT_RX_BYTES"), ("PROF_NVLINK_TX_BYTES", "PROF_NVLINK_RX_BYTES")
    names = [*counters, *rates, "DEV_NVLINK_BANDWIDTH_TOTAL"]
    readings = {reading.metric: reading.value for reading in sample_of(0).readings}

    body = served(page_of(state), tmp_path, *(f"DCGM_FI_{name}" for name in names))

    assert values(body, names[0], UUID=H100) == [readings["gpu_nvlink_transmit_bytes_total"]]
    assert values(body, names[2], UUID=H100) == [pytest.approx(40 * 2**20)]
    assert values(body, names[3], UUID=H100) == [pytest.approx(60 * 2**20)]
    assert values(body, names[4], UUID=H100) == [pytest.approx(100, abs=0.01)]


def test_errors_of_links_are_served_by_kind(tmp_path: Path) -> None:
    ours = {
        ("gpu_nvlink_errors_total", "error", "crc_flit"): ("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DEV_NVLINK_ERROR_DL_CRC"),
        ("gpu_nvlink_errors_total", "error", "crc_data"): ("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",),
        ("gpu_nvlink_errors_total", "error", "replay"): ("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",),
        ("gpu_nvlink_errors_total", "error", "recovery"): (
            "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
            "DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
        ),
        ("gpu_nvlink_errors_total", "error", "receive"): ("DEV_NVLINK_COUNT_RX_ERRORS",),
        ("gpu_nvlink_recoveries_total", "result", "failed"): ("DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",),
        ("gpu_nvlink_physical_errors_total", "error", "symbol"): ("DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS",),
        ("gpu_c2c_errors_total", "error", "replay"): ("DEV_C2C_LINK_ERROR_REPLAY",),
    }
    readings = tuple(Reading(metric, n, ((label, kind),)) for n, (metric, label, kind) in enumerate(ours, 1))
    state = node_with(readings=readings, absent=())

    body = served(page_of(state), tmp_path, *(f"DCGM_FI_{name}" for names in ours.values() for name in names))

    for number, names in enumerate(ours.values(), 1):
        assert [values(body, name) for name in names] == [[number]] * len(names), names


def test_series_are_summed_into_one_dcgm_metric(tmp_path: Path) -> None:
    # given errors in both kinds of memory
    errors = tuple(
        Reading("gpu_ecc_errors_total", value, (("error", "corrected"), ("memory", memory)))
        for memory, value in (("dram", 3), ("sram", 4))
    )

    body = served(page_of(node_with(readings=errors, absent=())), tmp_path, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")

    assert values(body, "DEV_ECC_SBE_VOL_TOTAL") == [7]


def test_absent_metrics_without_a_dcgm_name_cause_no_comment() -> None:
    assert "not available" not in text(page_of(node_with(absent=(Absent("gpu_fan_speed_ratio", "not_supported"),))))


def test_page_is_parsed_by_promtool(page: MetricsPage, require_program: Callable[[str], str]) -> None:
    # DCGM sets names and help texts, so promtool's remarks about them are ignored
    checked = subprocess.run(
        [require_program("promtool"), "check", "metrics"], input=text(page).encode(), capture_output=True, check=False
    )

    assert b"error while linting" not in checked.stderr
    assert checked.returncode in (0, 3)


if __name__ == "__main__":
    (GOLDEN / "node.dcgm.txt").write_text(text(page_of(node())))
