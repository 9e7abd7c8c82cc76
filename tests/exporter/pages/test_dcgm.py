"""The DCGM-compatible page, for boards and rules written for dcgm-exporter."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.exporter.pages import golden_node
from tests.exporter.pages.golden_node import DIVIDED, GOLDEN, H100, HUNG

from rankscope.base.errors import InputError
from rankscope.exporter.catalogue import CATALOGUE, COLLECTORS, DEFAULT_COLLECTORS
from rankscope.exporter.loop import CollectorState
from rankscope.exporter.pages.dcgm import DcgmPage
from rankscope.exporter.pages.dcgm_counters import counters_of, default_counters, read_counters, with_collectors
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.settings import ExporterSettings
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.source import Absent, FleetState, GpuSample, Reading, Series

ALL = frozenset(COLLECTORS)

# Names, types and label order of dcgm-exporter 3 and 4 without a counters file.
DEFAULT_SET = {
    "DEV_SM_CLOCK": "gauge",
    "DEV_MEM_CLOCK": "gauge",
    "DEV_MEMORY_TEMP": "gauge",
    "DEV_GPU_TEMP": "gauge",
    "DEV_POWER_USAGE": "gauge",
    "DEV_TOTAL_ENERGY_CONSUMPTION": "counter",
    "DEV_PCIE_REPLAY_COUNTER": "counter",
    "DEV_GPU_UTIL": "gauge",
    "DEV_MEM_COPY_UTIL": "gauge",
    "DEV_ENC_UTIL": "gauge",
    "DEV_DEC_UTIL": "gauge",
    "DEV_XID_ERRORS": "gauge",
    "DEV_FB_FREE": "gauge",
    "DEV_FB_USED": "gauge",
    "DEV_FB_RESERVED": "gauge",
    "DEV_NVLINK_BANDWIDTH_TOTAL": "counter",
    "DEV_VGPU_LICENSE_STATUS": "gauge",
    "DEV_CORRECTABLE_REMAPPED_ROWS": "counter",
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": "counter",
    "DEV_ROW_REMAP_FAILURE": "gauge",
    "PROF_GR_ENGINE_ACTIVE": "gauge",
    "PROF_PIPE_TENSOR_ACTIVE": "gauge",
    "PROF_DRAM_ACTIVE": "gauge",
    "PROF_PCIE_TX_BYTES": "gauge",
    "PROF_PCIE_RX_BYTES": "gauge",
}
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
    state = golden_node.node()
    first, *others = state.gpus
    assert first.sample is not None
    video = (Reading("gpu_encoder_utilization_ratio", 0.57), Reading("gpu_decoder_utilization_ratio", 0.0))
    first = msgspec.structs.replace(
        first, sample=msgspec.structs.replace(first.sample, readings=(*first.sample.readings, *video))
    )
    return msgspec.structs.replace(state, gpus=(first, *others))


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


class SampledTwice:
    """A fleet whose first state is four seconds old, because DCGM's rates need two samples."""

    simulated = False

    def __init__(self, state: FleetState) -> None:
        gpus = (
            msgspec.structs.replace(gpu, sample=_earlier(gpu.sample, 4)) if gpu.sample is not None else gpu for gpu in state.gpus
        )
        self._states = [state, msgspec.structs.replace(state, gpus=tuple(gpus))]

    def state(self) -> FleetState:
        return self._states.pop() if len(self._states) > 1 else self._states[0]


def page_of(state: FleetState, *, collectors: frozenset[str] = ALL, jobs: tuple[Series, ...] = JOBS) -> MetricsPage:
    def loop(name: str, last: tuple[Series, ...]) -> Any:
        return SimpleNamespace(
            name=name, latest=lambda: CollectorState(last, fresh=True, ok=True, age_s=0, duration_s=0, reason=None)
        )

    fleet: Any = SampledTwice(state)
    return MetricsPage("node1", fleet, jobs=loop("jobs", jobs), xid=loop("xid", XIDS), collectors=collectors)


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


def test_the_page_is_the_golden_one(page: MetricsPage) -> None:
    assert text(page) == (GOLDEN / "node.dcgm.txt").read_text(), f"if that is meant: python {__file__}"


def test_the_default_set_has_the_names_and_types_of_dcgm_exporter(page: MetricsPage) -> None:
    assert {counter.name.removeprefix("DCGM_FI_"): counter.type for counter in default_counters().metrics} == DEFAULT_SET

    shown = {line.split()[2]: line.split()[3] for line in text(page).splitlines() if line.startswith("# TYPE")}

    # a metric that no GPU of this node has is named in a comment
    assert {name.removeprefix("DCGM_FI_") for name in shown} == DEFAULT_SET.keys() - {"DEV_VGPU_LICENSE_STATUS"}
    assert all(kind == DEFAULT_SET[name.removeprefix("DCGM_FI_")] for name, kind in shown.items())


def test_units_are_those_of_dcgm(page: MetricsPage) -> None:
    body = text(page)
    readings = {(reading.metric, reading.labels): reading.value for reading in node().gpus[0].sample.readings}  # type: ignore[union-attr]

    def of_first(name: str) -> float:
        (value,) = values(body, name, UUID=H100)
        return value

    assert of_first("DEV_FB_RESERVED") == 600
    assert of_first("DEV_SM_CLOCK") == readings["gpu_clock_hertz", (("clock", "sm"),)] / 1e6
    assert of_first("DEV_ENC_UTIL") == 57
    assert of_first("DEV_TOTAL_ENERGY_CONSUMPTION") == pytest.approx(1000 * readings["gpu_energy_joules_total", ()])
    assert of_first("PROF_DRAM_ACTIVE") == readings["gpu_dram_active_ratio", ()]
    assert 0 < of_first("PROF_PIPE_TENSOR_ACTIVE") < 1


def test_where_there_is_no_vgpu_none_is_licensed() -> None:
    state = node()
    first = state.gpus[0]
    assert first.sample is not None
    sample = msgspec.structs.replace(first.sample, absent=(Absent("gpu_vgpu_license_status", "no_vgpu_guest"),))
    page = page_of(msgspec.structs.replace(state, gpus=(msgspec.structs.replace(first, sample=sample),)))

    body = text(page)

    assert values(body, "DEV_VGPU_LICENSE_STATUS", UUID=H100) == [0]
    assert "DEV_VGPU_LICENSE_STATUS not available" not in body
    # on the native page the metric stays absent
    assert not [family for family in page.families() if family.name == "gpu_vgpu_license_status"]


def test_labels_come_in_dcgms_order(page: MetricsPage) -> None:
    body = text(page)

    assert (
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="{H100}",pci_bus_id="00000000:1A:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",Hostname="node1",DCGM_FI_DRIVER_VERSION="570.86.15",'
        'container="main",namespace="ml",pod="train-0"} 66\n'
    ) in body
    assert 'modelName="NVIDIA \\"A100\\"-SXM4-80GB"' in body
    assert 'Hostname="node1"' not in text(page, hostname_label="hostname")
    assert ',hostname="node1",' in text(page, hostname_label="hostname")


def test_a_divided_gpu_is_told_by_its_instances_and_never_twice(page: MetricsPage) -> None:
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
        Series(
            "gpu_job_info",
            1,
            (("uuid", uuid), ("namespace_k8s", "ml"), ("pod_k8s", "multiple"), ("container_k8s", "main")),
        ),
        *(Series("gpu_tenant_info", 1, tenant(pod)) for pod in pods),
        *(Series("gpu_tenant_memory_used_bytes", value * 2**20, tenant(pod)) for pod, value in (memory or {}).items()),
        *(Series("gpu_tenant_sm_utilization_ratio", value, tenant(pod)) for pod, value in (sm or {}).items()),
    ]


def test_pods_that_share_a_gpu_have_series_of_their_own() -> None:
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


def test_several_containers_of_a_pod_are_one_pod() -> None:
    labels = (("uuid", H100), ("namespace_k8s", "ml"), ("pod_k8s", "a"), ("container_k8s", "multiple"))

    body = text(page_of(node(), jobs=(Series("gpu_job_info", 1, labels),)))

    assert values(body, "DEV_GPU_TEMP", UUID=H100, namespace="ml", pod="a") == [66]
    assert "container=" not in body


def test_a_mig_instance_that_several_pods_divide_has_the_pod_of_none() -> None:
    state = node()
    divided = next(gpu for gpu in state.gpus if gpu.identity.uuid == DIVIDED)
    assert divided.sample is not None
    first = divided.sample.mig_devices[0]
    second = msgspec.structs.replace(first, uuid="MIG-other", compute_instance=1)
    sample = msgspec.structs.replace(divided.sample, mig_devices=(first, second))
    state = msgspec.structs.replace(state, gpus=(msgspec.structs.replace(divided, sample=sample),))
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


def test_rates_are_those_of_the_counters_between_two_samples() -> None:
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
    state = node()
    sample = state.gpus[0].sample
    assert sample is not None
    zeroed = tuple(
        msgspec.structs.replace(reading, value=0.0) if reading.metric == "gpu_pcie_transmit_bytes_total" else reading
        for reading in sample.readings
    )
    later = msgspec.structs.replace(sample, monotonic_s=sample.monotonic_s + 1, readings=zeroed)
    states = [
        msgspec.structs.replace(state, gpus=(msgspec.structs.replace(state.gpus[0], sample=reading),))
        for reading in (later, sample)
    ]
    fleet: Any = SimpleNamespace(simulated=False, state=states.pop)
    page = DcgmPage(MetricsPage("node1", fleet))
    page.render()

    body = page.render()[0].decode()

    assert values(body, "PROF_PCIE_TX_BYTES") == []
    assert values(body, "PROF_PCIE_RX_BYTES") == [0]


def test_what_only_one_gpu_cannot_give_is_said_of_that_gpu(page: MetricsPage) -> None:
    # given two H100s, of which the one with MIG has no utilisation
    assert f"# DCGM_FI_DEV_GPU_UTIL not available on {DIVIDED}: not_supported\n" in text(page)


def test_what_a_generation_cannot_give_is_said_once_per_model(page: MetricsPage) -> None:
    comments = [line for line in text(page).splitlines() if "A100" in line and line.startswith("# DCGM")]

    assert '# DCGM_FI_PROF_DRAM_ACTIVE not available on NVIDIA "A100"-SXM4-80GB: before_hopper' in comments
    assert '# DCGM_FI_DEV_SM_CLOCK not available on NVIDIA "A100"-SXM4-80GB: no_permission' in comments
    assert not any("MEM_CLOCK" in line for line in comments)
    eight = DcgmPage(MetricsPage("node1", SimulatedFleet("8xA100"))).render()[0].decode()
    assert eight.count("DCGM_FI_PROF_DRAM_ACTIVE not available") == 1


def test_a_collector_that_is_off_is_named() -> None:
    body = text(page_of(node(), collectors=ALL - {"encoder"}))

    assert "# DCGM_FI_DEV_ENC_UTIL not available: it needs --collector.encoder\n" in body
    assert default_counters().collectors >= {"encoder", "gpm", "power", "xid"}


def test_counters_switch_no_collector_on_that_the_user_switched_off() -> None:
    asked = ExporterSettings(
        collectors=DEFAULT_COLLECTORS - {"gpm"}, collectors_off=frozenset({"gpm"}), host="node1", compat_dcgm=True
    )

    collectors = with_collectors(asked, counters_of(asked)).collectors

    assert "encoder" in collectors
    assert "gpm" not in collectors


COUNTERS = """\
# my counters
DCGM_FI_DEV_GPU_TEMP, gauge, Heat, in degrees.

  # and more
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, counter, "Corrected, ""all"" kinds."
DCGM_FI_PROF_SM_ACTIVE, gauge, SMs.
DCGM_FI_PROF_PIPE_FP64_ACTIVE, gauge
DCGM_FI_DEV_NO_SUCH_THING, gauge, Nobody knows.
DCGM_EXP_P2P_STATUS, gauge, Computed by the other one.
DCGM_FI_DRIVER_VERSION, label, Driver.
DCGM_FI_DEV_SERIAL, label, Serial.
DCGM_FI_DEV_BRAND, label, Brand.
"""


def test_a_file_of_counters_decides_on_names_types_and_help(
    page: MetricsPage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "counters.csv"
    file.write_text(COUNTERS, encoding="utf-8-sig")  # with a byte order mark, as some editors save it
    served = DcgmPage(page, read_counters(file))
    body = served.render()[0].decode()

    assert served.render()[0].decode() == body
    families = {family.name: family for family in parse_text(body)}
    assert families.keys() == {
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    }
    assert "# HELP DCGM_FI_DEV_GPU_TEMP Heat, in degrees.\n" in body
    assert '# HELP DCGM_FI_DEV_ECC_SBE_VOL_TOTAL Corrected, "all" kinds.\n' in body
    assert 'Hostname="node1",DCGM_FI_DEV_SERIAL="165000",DCGM_FI_DRIVER_VERSION="570.86.15",container=' in body
    refused = ("DCGM_FI_DEV_NO_SUCH_THING", "DCGM_EXP_P2P_STATUS", "DCGM_FI_DEV_BRAND")
    for name in refused:
        assert body.count(f"# {name} not available: ") == 1
        assert sum(name in record.getMessage() for record in caplog.records) == 1  # not once per page


def served(page: MetricsPage, tmp_path: Path, *names: str) -> str:
    file = tmp_path / "counters.csv"
    file.write_text("".join(f"{name}, {'gauge' if 'REASONS' in name or 'PROF' in name else 'counter'}, x\n" for name in names))
    return text(page, file)


def test_xids_have_dcgms_labels(page: MetricsPage, tmp_path: Path) -> None:
    body = text(page)
    assert values(body, "DEV_XID_ERRORS", UUID=HUNG, err_code="79", err_msg="The GPU no longer answers over PCIe.") == [79]
    assert values(body, "DEV_XID_ERRORS", UUID=H100, err_code="0", err_msg="no error") == [0]

    body = served(page, tmp_path, "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL")
    assert values(body, "DCGM_EXP_XID_ERRORS_COUNT", UUID=HUNG, xid="79", window_size_in_ms="300000") == [1]
    # a GPU without an error has 0, without a code
    assert values(body, "DCGM_EXP_XID_ERRORS_COUNT", UUID=H100, window_size_in_ms="300000") == [0]
    assert values(body, "DCGM_EXP_XID_ERRORS_TOTAL", UUID=HUNG, xid="149") == [7]
    assert values(body, "DCGM_EXP_XID_ERRORS_TOTAL", UUID=H100, xid="79") == [0]


def with_readings(*readings: Reading) -> FleetState:
    state = node()
    sample = state.gpus[0].sample
    assert sample is not None
    gpu = msgspec.structs.replace(state.gpus[0], sample=msgspec.structs.replace(sample, readings=readings, absent=()))
    return msgspec.structs.replace(state, gpus=(gpu,))


def test_throttling_is_served_as_times_and_as_a_mask(tmp_path: Path) -> None:
    seconds = {"sw_power_cap": 1.5, "sync_boost": 2, "board_limit": 3, "reliability": 4, "sw_thermal": 5, "hw_thermal": 6}
    active = {"gpu_idle": 0, "sw_power_cap": 1, "sw_thermal": 1, "hw_power_brake": 1, "display_clocks": 0}
    state = with_readings(
        *(Reading("gpu_throttle_seconds_total", value, (("reason", reason),)) for reason, value in seconds.items()),
        *(Reading("gpu_throttle_active", value, (("reason", reason),)) for reason, value in active.items()),
    )
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
    readings = {reading.metric: reading.value for reading in state.gpus[0].sample.readings}  # type: ignore[union-attr]

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
    state = with_readings(*(Reading(metric, n, ((label, kind),)) for n, (metric, label, kind) in enumerate(ours, 1)))

    body = served(page_of(state), tmp_path, *(f"DCGM_FI_{name}" for names in ours.values() for name in names))

    for number, names in enumerate(ours.values(), 1):
        assert [values(body, name) for name in names] == [[number]] * len(names), names


def test_several_of_our_series_may_be_one_there(page: MetricsPage, tmp_path: Path) -> None:
    # given errors in both kinds of memory
    state = node()
    sample = state.gpus[0].sample
    assert sample is not None
    errors = tuple(
        Reading("gpu_ecc_errors_total", value, (("error", "corrected"), ("memory", memory)))
        for memory, value in (("dram", 3), ("sram", 4))
    )
    gpu = msgspec.structs.replace(state.gpus[0], sample=msgspec.structs.replace(sample, readings=errors, absent=()))
    (tmp_path / "counters.csv").write_text("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL,counter,Corrected.\n")

    body = text(page_of(msgspec.structs.replace(state, gpus=(gpu,))), tmp_path / "counters.csv")

    assert values(body, "DEV_ECC_SBE_VOL_TOTAL") == [7]


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        ("# fine\nDCGM_FI_DEV_GPU_TEMP gauge help\n", ": line 2:", "NAME, type, help"),
        ("DCGM_FI_DEV_GPU_TEMP, histogram, x\n", ": line 1:", "'histogram'"),
        ("DCGM_FI_DEV_GPU_TEMP\n", ": line 1:", "gauge, counter, label"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, "open\n', ": line 1:", "NAME, type, help"),
        ("\nnode_cpu, gauge, x\n", ": line 2:", "'node_cpu'"),
        ("# nothing\n", ":", "no line names a metric"),
        ("DCGM_FI_DEV_NO_SUCH_THING, gauge, x\n", ":", "no line names a metric"),
        (b"DCGM_FI_DEV_GPU_TEMP, gauge, \xff\n", ":", "UTF-8"),
        (b"#" * (1 << 21), ":", "1 MiB"),
        (None, ":", "No such file"),
    ],
)
def test_a_malformed_file_is_named_with_the_line(tmp_path: Path, content: str | bytes | None, where: str, what: str) -> None:
    file = tmp_path / "counters.csv"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(InputError) as refusal:
        read_counters(file)

    assert str(refusal.value).startswith(f"{file}{where}")
    assert what in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_dcgm_name_of_the_catalogue_is_one_thing() -> None:
    kinds: dict[str, set[tuple[str, str, bool]]] = {}
    for row in CATALOGUE:
        for entry in row.dcgm:
            kinds.setdefault(entry.full_name, set()).add((entry.type, entry.help, entry.default_on))
            assert entry.help.endswith(".")
    assert {name for name, kind in kinds.items() if len(kind) != 1} == set()


def test_absent_metrics_without_a_dcgm_name_are_no_remark() -> None:
    state = node()
    sample = state.gpus[0].sample
    assert sample is not None
    absent = (Absent("gpu_fan_speed_ratio", "not_supported"),)
    gpu = msgspec.structs.replace(state.gpus[0], sample=msgspec.structs.replace(sample, absent=absent))

    assert "not available" not in text(page_of(msgspec.structs.replace(state, gpus=(gpu,))))


def test_promtool_reads_it(page: MetricsPage, require_program: Callable[[str], str]) -> None:
    # DCGM sets names and help texts, so promtool's remarks about them are ignored
    checked = subprocess.run(
        [require_program("promtool"), "check", "metrics"], input=text(page).encode(), capture_output=True, check=False
    )

    assert b"error while linting" not in checked.stderr
    assert checked.returncode in (0, 3)


if __name__ == "__main__":
    (GOLDEN / "node.dcgm.txt").write_text(text(page_of(node())))
