"""Alerts about hardware after the repair, and on nodes that are wired in another way than their neighbours.

Node n1 has GPU-0. A fault begins after 10 minutes or later. The node is in maintenance from 30 to 60 minutes and repaired at 50.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.alerts.rules.test_cases import run_promtool

from rankscope.alerts.rules.rule_file import rules_text
from rankscope.alerts.rules.thresholds import DEFAULTS, SEVERITY_OF, duration_seconds, load_thresholds

Cases = Mapping[str, Mapping[str, str]]

MINUTES: Final = 150
GPU: Final = 'instance="n1:9838", uuid="GPU-0"'
NODE: Final = 'instance="n1:9838"'
PORT: Final = 'instance="n1:9100", device="mlx5_0", port="1"'
HARDWARE: Final = re.compile("(Gpu|Nv|Pcie|Infiniband|Exporter|Driver).+|NodeDown")
OF_JOBS: Final = {"GpuAllocatedIdle", "GpuAllocatedIdleLong", "GpuHangSuspected"}
"""Alerts about a GPU that end with the job."""
CRITICAL: Final = {name for name, severity in SEVERITY_OF.items() if severity == "critical"}


def steps(*phases: tuple[int, str]) -> str:
    """Return promtool's values, two a minute: each value from its minute on. ``stale`` is written once."""
    parts = []
    for (minute, value), (end, _) in zip(phases, [*phases[1:], (MINUTES + 1, "")], strict=True):
        count = 2 * (end - minute)
        parts += [value if count == 1 else f"{value}x{count - 1}"] if value != "stale" else [f"stale _x{count - 1}"]
    return " ".join(parts)


def fault(healthy: str, faulty: str, *, begins: int = 10) -> str:
    return steps((0, healthy), (begins, faulty), (50, healthy))


def ramp(per_minute: int) -> str:
    """Return a counter of errors that come from 10 to 50 minutes, and that the repair sets to zero."""
    half = per_minute // 2
    return f"0x19 {half}+{half}x79 0x200"


STATES: Final[Cases] = {
    "GpuDown": {
        f"gpu_up{{{GPU}}}": fault("1", "0"),
        f'gpu_down_info{{{GPU}, reason="lost"}}': steps((0, "_"), (10, "1"), (50, "stale")),
    },
    "GpuMissing": {f"rankscope_exporter_unidentified_gpus{{{NODE}}}": fault("0", "1")},
    "GpuRecoveryAction": {f'gpu_recovery_action{{{GPU}, action="gpu_reset"}}': fault("0", "1")},
    "GpuEccUncorrected": {f'gpu_ecc_errors_total{{{GPU}, error="uncorrected", memory="dram"}}': fault("0", "2")},
    "GpuRowRemapFailure": {f"gpu_row_remap_failure{{{GPU}}}": fault("0", "1")},
    "GpuRowRemapPending": {f"gpu_row_remap_pending{{{GPU}}}": fault("0", "1")},
    "GpuRetiredPagesPending": {f"gpu_retired_pages_pending{{{GPU}}}": fault("0", "1")},
    "GpuRetiredPagesMany": {f'gpu_retired_pages{{{GPU}, cause="double_bit"}}': fault("0", "60")},
    "GpuThermalSlowdown": {f'gpu_throttle_active{{{GPU}, reason="hw_thermal"}}': fault("0", "1")},
    "GpuPowerBrake": {f'gpu_throttle_active{{{GPU}, reason="hw_power_brake"}}': fault("0", "1")},
    "GpuThrottleFlapping": {f'gpu_throttle_active{{{GPU}, reason="hw_slowdown"}}': f"0x19 {'1 0 ' * 40} 0x200"},
    "GpuTooHot": {f"gpu_temperature_margin_celsius{{{GPU}}}": fault("30", "2")},
    "NvlinkInactive": {
        f'gpu_nvlink_links{{{GPU}, state="up"}}': fault("18", "17", begins=20),
        f'gpu_nvlink_links{{{GPU}, state="down"}}': fault("0", "1", begins=20),
    },
    "NvlinkCrcErrors": {f'gpu_nvlink_errors_total{{{GPU}, error="crc_flit"}}': ramp(12_000)},
    "GpuFabricUnhealthy": {f"gpu_fabric_healthy{{{GPU}}}": fault("1", "0")},
    "PcieReplays": {f"gpu_pcie_replays_total{{{GPU}}}": ramp(60)},
    "PcieDegraded": {
        f"gpu_pcie_link_max_width{{{GPU}}}": steps((0, "16")),
        f"gpu_pcie_link_width{{{GPU}}}": fault("16", "8"),
        f"gpu_utilization_ratio{{{GPU}}}": steps((0, "1")),
    },
    "InfinibandSymbolErrors": {f"node_infiniband_symbol_error_total{{{PORT}}}": ramp(60)},
    "InfinibandReceiveErrors": {f"node_infiniband_port_errors_received_total{{{PORT}}}": ramp(1_200)},
    "InfinibandDiscards": {f"node_infiniband_port_discards_transmitted_total{{{PORT}}}": ramp(12_000)},
    "ExporterCollectorFailing": {f'rankscope_exporter_collector_success{{{NODE}, collector="power"}}': fault("1", "0")},
    "ExporterStale": {f'rankscope_exporter_sample_age_seconds{{{NODE}, collector="jobs"}}': fault("1", "400")},
    "ExporterSlow": {f'rankscope_exporter_collector_duration_seconds{{{NODE}, collector="gpu"}}': fault("0.1", "9")},
    "ExporterAbsent": {f"rankscope_exporter_build_info{{{NODE}}}": steps((0, "1"), (10, "stale"), (50, "1"))},
    "ExporterPartial": {f"rankscope_exporter_kernel_log_readable{{{NODE}}}": fault("1", "0")},
    "DriverSilent": {f"rankscope_exporter_driver_answers{{{NODE}}}": fault("1", "0")},
    "NodeDown": {'kube_node_status_condition{node="n1", condition="Ready", status="true"}': fault("1", "0")},
}


def xid(code: int, *minutes: int, uuid: str = "GPU-0") -> dict[str, str]:
    """Return the series of one code whose errors come at these minutes."""
    labels = f'instance="n1:9838", uuid="{uuid}", xid="{code}"'
    return {
        f"gpu_xid_errors_total{{{labels}}}": steps((0, "0"), *((minute, str(count)) for count, minute in enumerate(minutes, 1))),
        f"gpu_xid_last_timestamp_seconds{{{labels}}}": steps((0, "_"), *((minute, str(60 * minute)) for minute in minutes)),
    }


def sxid(*minutes: int) -> dict[str, str]:
    labels = f'{NODE}, pci_bus_id="0000:05:00.0", sxid="20034", severity="fatal"'
    return {
        f"nvswitch_sxid_errors_total{{{labels}}}": steps(
            (0, "_"), *((minute, str(count)) for count, minute in enumerate(minutes, 1))
        ),
        f"nvswitch_sxid_last_timestamp_seconds{{{labels}}}": steps((0, "_"), *((minute, str(60 * minute)) for minute in minutes)),
    }


def counted(name: str, *minutes: int) -> dict[str, str]:
    """Return a counter that a reset of the hardware does not set to zero."""
    return {name: steps((0, "0"), *((minute, str(count)) for count, minute in enumerate(minutes, 1)))}


EVENTS: Final[Mapping[str, Callable[..., dict[str, str]]]] = {
    "GpuXidCritical": lambda *again: xid(62, 10, *again),
    "GpuXidWarning": lambda *again: xid(54, 10, *again),
    "GpuXidRepeated": lambda *again: xid(32, 2, 7, 12, 17, 22, *again),
    "GpuXidOneUnit": lambda *again: xid(31, 2, 12, *again),
    "GpuXidManyUnits": lambda *again: xid(31, 2, 12, *again) | xid(31, 12, *again, uuid="GPU-1"),
    "NvswitchFatalError": lambda *again: sxid(10, *again),
    "NvlinkRecoveries": lambda *again: counted(f'gpu_nvlink_errors_total{{{GPU}, error="recovery"}}', 25, *again),
    "InfinibandLinkDowned": lambda *again: counted(f"node_infiniband_link_downed_total{{{PORT}}}", 25, *again),
}


def node(series: Mapping[str, str], *, maintenance: bool, reset: bool) -> dict[str, str]:
    """Return the series of node n1, of its repair, and ``series``."""
    common = {
        f"rankscope_exporter_build_info{{{NODE}}}": steps((0, "1")),
        'kube_node_spec_unschedulable{node="n1"}': steps((0, "0"), (30, "1"), (60, "0")) if maintenance else steps((0, "0")),
        'node_uname_info{instance="n1:9100", nodename="n1"}': steps((0, "1")),
        'node_boot_time_seconds{instance="n1:9100"}': steps((0, "-86400"), (50, "3000")) if reset else steps((0, "-86400")),
    }
    for uuid, index in (("GPU-0", "0"), ("GPU-1", "1")):
        gpu = f'instance="n1:9838", uuid="{uuid}"'
        common |= {
            f'gpu_info{{{gpu}, index="{index}", model="H100", host="n1", simulated="false"}}': steps((0, "1")),
            f"gpu_up{{{gpu}}}": steps((0, "1")),
            f"gpu_last_reset_timestamp_seconds{{{gpu}}}": steps((0, "-86400"), (50, "3000")) if reset else steps((0, "-86400")),
        }
    return common | dict(series)


def firing(alert: str) -> str:
    return f'ALERTS{{alertname="{alert}", alertstate="firing"}}'


def paging(alert: str, since: int) -> dict[str, Any]:
    """Return the expectation that the alert, unless maintenance inhibits it, does not fire from this minute on."""
    reaching = f"{firing(alert)} unless on (host) {firing('NodeMaintenance')}"
    return {"expr": f"count_over_time(({reaching})[{MINUTES - since}m:30s])", "eval_time": f"{MINUTES}m", "exp_samples": []}


def at(minute: int, alert: str, *, fires: bool) -> dict[str, Any]:
    samples = [{"labels": "{}", "value": 1}] if fires else []
    return {"expr": f"min({firing(alert)})", "eval_time": f"{minute}m", "exp_samples": samples}


def case(series: Mapping[str, str], *expected: dict[str, Any]) -> dict[str, Any]:
    return {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": list(expected),
    }


@pytest.fixture
def check_cases(tmp_path: Path) -> Callable[..., None]:
    """Function that runs promtool on cases, with the shipped rules or those of a text."""

    def check(cases: Iterable[dict[str, Any]], text: str | None = None) -> None:
        run_promtool(tmp_path, cases, yaml.safe_load(text or rules_text())["groups"], interval="30s")

    return check


def test_repair_cases_cover_every_hardware_alert() -> None:
    hardware = {name for name in DEFAULTS if HARDWARE.fullmatch(name)}
    assert STATES.keys() | EVENTS.keys() == hardware - OF_JOBS
    assert not STATES.keys() & EVENTS.keys()


def test_maintenance_alert_outlasts_critical_alerts() -> None:
    kept = {name: duration_seconds(str(DEFAULTS[name]["keep_firing_for"])) or 0 for name in {*STATES, *EVENTS, "NodeMaintenance"}}
    assert kept["NodeMaintenance"] > max(kept[name] for name in kept.keys() & CRITICAL)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("maintenance", [True, False], ids=["maintenance", "reset only"])
def test_alerts_stop_paging_after_the_repair(check_cases: Callable[..., None], maintenance: bool) -> None:
    # Given a fault on a node that is taken out of service, or only reset: critical alerts page no more, others end in 20 minutes
    everything = {**STATES, **{alert: series() for alert, series in EVENTS.items()}}
    check_cases(
        case(
            node(series, maintenance=maintenance, reset=True),
            at(29, alert, fires=True),
            paging(alert, 80 if alert not in CRITICAL else 35 if maintenance else 56),
        )
        for alert, series in everything.items()
    )


@pytest.mark.slow
def test_event_alert_ends_with_maintenance_even_without_a_reset(check_cases: Callable[..., None]) -> None:
    check_cases(
        case(
            node(series(), maintenance=True, reset=False),
            at(59, alert, fires=True),  # a drain is no repair
            paging(alert, 35 if alert in CRITICAL else 67),
        )
        for alert, series in EVENTS.items()
    )


@pytest.mark.slow
def test_an_event_after_the_repair_fires_again(check_cases: Callable[..., None]) -> None:
    check_cases(
        case(node(series(75), maintenance=True, reset=True), at(74, alert, fires=False), at(77, alert, fires=True))
        for alert, series in EVENTS.items()
    )


LINKS: Final = 'instance="n1:9838", uuid="GPU-{}", state="{}"'


def links(gpu: int, up: str, down: str) -> dict[str, str]:
    return {f"gpu_nvlink_links{{{LINKS.format(gpu, 'up')}}}": up, f"gpu_nvlink_links{{{LINKS.format(gpu, 'down')}}}": down}


WIRED: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "a bridge over two of four boards": ("NvlinkInactive", links(0, "4x300", "8x300") | links(1, "0x300", "12x300")),
    "a GPU that is divided by MIG": (
        "NvlinkInactive",
        links(0, steps((0, "12"), (70, "0")), steps((0, "0"), (70, "12")))
        | links(1, "12x300", "0x300")
        | {f"gpu_mig_enabled{{{GPU}}}": steps((0, "0"), (70, "1"))},
    ),
    "a driver that lists fewer links": ("NvlinkInactive", links(0, steps((0, "18"), (70, "8")), "0x300")),
    "a slot of eight lanes": (
        "PcieDegraded",
        {f"gpu_pcie_link_{what}{{{GPU}}}": "8x300" for what in ("max_width", "width")}
        | {f"gpu_pcie_link_{what}{{{GPU.replace('0', '1', 1)}}}": "16x300" for what in ("max_width", "width")}
        | {f"gpu_utilization_ratio{{{GPU}}}": "1x300"},
    ),
    "a board without a switch": ("GpuFabricUnhealthy", {f'gpu_fabric_state{{{GPU}, state="not_supported"}}': "1x300"}),
    "a board with a lower limit": (
        "GpuTooHot",
        {f"gpu_temperature_celsius{{{GPU}}}": "60x300", f"gpu_temperature_margin_celsius{{{GPU}}}": "8x300"},
    ),
    "a GPU that was taken out in maintenance": (
        "GpuMissing",
        {
            'gpu_info{instance="n1:9838", uuid="GPU-1", index="1", model="H100", host="n1", simulated="false"}': "1x80 stale",
            f"rankscope_exporter_unidentified_gpus{{{NODE}}}": "0x300",
        },
    ),
}


@pytest.mark.full
@pytest.mark.slow
def test_nodes_with_different_wiring_do_not_page(check_cases: Callable[..., None]) -> None:
    check_cases(
        case(node(series, maintenance=alert == "GpuMissing", reset=False), paging(alert, 0)) for alert, series in WIRED.values()
    )


@pytest.mark.slow
def test_excepted_models_and_hosts_do_not_fire(check_cases: Callable[..., None], tmp_path: Path) -> None:
    lost = node(links(0, steps((0, "18"), (70, "17")), steps((0, "0"), (70, "1"))), maintenance=False, reset=False)
    down = node(STATES["GpuDown"], maintenance=False, reset=False)
    check_cases([case(lost, at(80, "NvlinkInactive", fires=True)), case(down, at(29, "GpuDown", fires=True))])
    for setting in ('except_hosts = "n[1-3]|lab-.*"', 'except_models = "A100|H100"'):
        ours = tmp_path / "ours.toml"
        ours.write_text(f"[NvlinkInactive]\n{setting}\n[GpuDown]\n{setting}\n")
        text = rules_text(settings=load_thresholds(ours))
        check_cases([case(lost, at(80, "NvlinkInactive", fires=False)), case(down, at(29, "GpuDown", fires=False))], text)


@pytest.mark.slow
def test_contained_ecc_error_fires_a_warning_without_a_critical_page(check_cases: Callable[..., None]) -> None:
    # Given a contained memory error, and another with an error that every program may be affected by; a reset clears both counts
    ecc = {f'gpu_ecc_errors_total{{{GPU}, error="uncorrected", memory="dram"}}': fault("0", "1")}
    kept = dict.fromkeys(ecc, steps((0, "0"), (10, "1")))
    contained = node(ecc | xid(94, 10), maintenance=False, reset=True)
    spread = node(ecc | xid(94, 10) | xid(95, 20), maintenance=False, reset=True)
    check_cases(
        [
            case(contained, at(29, "GpuXidWarning", fires=True), paging("GpuEccUncorrected", 0)),
            case(spread, at(29, "GpuXidWarning", fires=True), at(29, "GpuEccUncorrected", fires=True)),
            # Maintenance without a reset clears no count, and is no reason to page
            case(node(kept | xid(94, 10), maintenance=True, reset=False), paging("GpuEccUncorrected", 0)),
        ]
    )


@pytest.mark.slow
def test_library_version_mismatch_fires_one_alert(check_cases: Callable[..., None]) -> None:
    # Given a driver that nothing can open, on a node with two GPUs and the collectors that read them
    series = {f"rankscope_exporter_driver_answers{{{NODE}}}": "0x300", f"rankscope_exporter_unidentified_gpus{{{NODE}}}": "0x300"}
    series |= {f'rankscope_exporter_driver_problem_info{{{NODE}, reason="library_mismatch"}}': "1x300"}
    for uuid in ("GPU-0", "GPU-1"):
        gpu = f'instance="n1:9838", uuid="{uuid}"'
        series |= {f"gpu_up{{{gpu}}}": "0x300", f'gpu_down_info{{{gpu}, reason="library_mismatch"}}': "1x300"}
    for collector, works in (("gpu", "0"), ("ecc", "0"), ("nvlink", "0"), ("xid", "0"), ("spool", "1")):
        series |= {f'rankscope_exporter_collector_success{{{NODE}, collector="{collector}"}}': f"{works}x300"}
    silent = ("GpuDown", "GpuMissing", "ExporterCollectorFailing", "ExporterStale", "ExporterSlow", "ExporterAbsent")
    test = case(
        node(series, maintenance=False, reset=False),
        at(60, "DriverSilent", fires=True),
        *(at(60, alert, fires=False) for alert in silent),
    )
    check_cases([test])
    assert ": its library and the loaded driver are of different versions" in rules_text().partition("- alert: DriverSilent")[2]
