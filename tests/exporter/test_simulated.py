"""Simulated GPUs: plausible, reproducible for the same clock, and marked as simulated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankscope.exporter.catalogue import BY_NAME, CATALOGUE, COLLECTORS
from rankscope.exporter.simulated import SimulatedFleet, parse_simulation
from rankscope.exporter.source import FleetState, GpuSample


def _at(seconds: float, spec: str = "4") -> FleetState:
    times = iter([0.0, seconds])
    return SimulatedFleet(spec, clock=lambda: next(times), now=lambda: 0.0).state()


def _samples(state: FleetState) -> list[GpuSample]:
    samples = [gpu.sample for gpu in state.gpus if gpu.sample is not None]
    assert len(samples) == len(state.gpus)
    return samples


def test_simulated_gpus_are_deterministic_and_vary_slowly() -> None:
    assert _at(10) == _at(10)
    assert _samples(_at(10)) != _samples(_at(30))
    before, after = (
        {(gpu.identity.uuid, row.metric, row.labels): row.value for gpu in _samples(_at(seconds)) for row in gpu.readings}
        for seconds in (100, 101)
    )
    assert before.keys() == after.keys()
    for key, value in before.items():
        uuid, metric, labels = key
        if metric == "gpu_energy_joules_total":
            # the energy of one second equals the power, within the change of the power
            assert after[key] - value == pytest.approx(before[uuid, "gpu_power_watts", ()], rel=0.1)
        elif metric.endswith("_active_seconds_total"):
            ratio = before[uuid, metric.replace("_seconds_total", "_ratio"), labels]
            assert after[key] - value == pytest.approx(ratio, rel=0.1)
        elif metric.endswith("_total"):
            assert after[key] >= value
        else:
            assert after[key] == pytest.approx(value, rel=0.1)


@pytest.mark.parametrize("spec", ["2", "1xA100", "1xH100", "1xH200"])
def test_simulated_gpus_are_plausible(spec: str) -> None:
    for gpu in _samples(_at(5, spec)):
        values = {reading.metric: reading.value for reading in gpu.readings if not reading.labels}
        parts = ("used", "free", "reserved")
        assert sum(values[f"gpu_memory_{part}_bytes"] for part in parts) == values["gpu_memory_total_bytes"]
        assert values["gpu_power_watts"] <= values["gpu_power_limit_watts"]
        for name, value in values.items():
            if name.endswith("_ratio"):
                assert 0 <= value <= 1, name
        for part in ("utilization", "sm_active", "tensor_active", "dram_active"):
            if f"gpu_{part}_min_ratio" in values:
                assert values[f"gpu_{part}_min_ratio"] <= values[f"gpu_{part}_ratio"] <= values[f"gpu_{part}_max_ratio"]


def test_simulated_h100_has_or_lists_as_absent_every_default_metric() -> None:
    default = {
        row.name
        for row in CATALOGUE
        if row.group == "gpu" and COLLECTORS[row.collector].default_on and row.collector not in ("gpu", "xid")
    }
    divided_only = {name for name in default if name.startswith("gpu_mig_")} - {"gpu_mig_enabled", "gpu_mig_instances"}
    (gpu,) = _samples(_at(5, "1xH100"))
    metrics, absent = {reading.metric for reading in gpu.readings}, {reading.metric for reading in gpu.absent}

    assert metrics | absent == default - divided_only
    assert metrics & absent == set()
    for reading in gpu.readings:
        assert ("uuid", *(name for name, _ in reading.labels)) == BY_NAME[reading.metric].labels


def test_simulated_gpu_before_hopper_has_no_gpm_activity() -> None:
    (gpu,) = _samples(_at(5, "1xA100"))

    absent = {reading.metric for reading in gpu.absent if reading.reason == "before_hopper"}
    assert absent >= {"gpu_sm_active_ratio", "gpu_pipe_active_ratio", "gpu_dram_active_ratio"}
    assert not absent & {reading.metric for reading in gpu.readings}
    assert {reading.metric for reading in gpu.readings} >= {"gpu_utilization_ratio", "gpu_pcie_transmit_bytes_total"}


def test_only_the_enabled_collectors_are_simulated() -> None:
    fleet = SimulatedFleet("1", collectors=frozenset({"gpu", "power", "encoder"}))
    (gpu,) = _samples(fleet.state())

    assert {BY_NAME[reading.metric].collector for reading in gpu.readings} == {"power", "encoder"}
    assert [run.collector for run in gpu.runs] == ["encoder", "gpu", "power"]


def test_values_change_each_interval_and_have_an_age() -> None:
    times = iter([0.0, 10.0, 10.4, 11.0])
    fleet = SimulatedFleet("1", clock=lambda: next(times))
    first, second, third = fleet.state(), fleet.state(), fleet.state()

    assert first.gpus[0].age_s == 0
    assert second.gpus[0].age_s == pytest.approx(0.4)
    assert first.gpus[0].sample is second.gpus[0].sample
    assert second.gpus[0].sample is not third.gpus[0].sample


@pytest.mark.parametrize("name", [lambda gpu: gpu.uuid, lambda gpu: gpu.pci_bus_id, lambda gpu: str(gpu.index)])
def test_a_simulated_gpu_can_be_released(name: Callable[..., str]) -> None:
    now = [0.0]
    fleet = SimulatedFleet("2", clock=lambda: now[0], now=lambda: 1000.0)
    gpu = fleet.state().gpus[1].identity
    now[0] = 3.0
    fleet.release(name(gpu), ttl_s=60)

    first, second = fleet.state().gpus
    assert first.up
    assert (second.up, second.sample, second.reason, second.since_unix_s) == (False, None, "released", 1003.0)
    now[0] = 62.9
    assert not fleet.state().gpus[1].up
    now[0] = 63.0
    assert fleet.state().gpus[1].up
    fleet.release(name(gpu), ttl_s=60)
    fleet.resume(name(gpu))
    assert fleet.state().gpus[1].up
    fleet.release("all", ttl_s=60)
    assert not any(item.up for item in fleet.state().gpus)
    fleet.resume("all")
    assert all(item.up for item in fleet.state().gpus)
    with pytest.raises(KeyError):
        fleet.release("GPU-unknown", ttl_s=1)


def test_model_name_is_case_insensitive() -> None:
    assert parse_simulation("8xh100") == parse_simulation("8xH100")


@pytest.mark.parametrize("text", ["", "0", "65", "8x", "8xB9000", "xH100", "-1", "8 x H100", "1e3"])
def test_unknown_simulation_is_refused_with_the_valid_models(text: str) -> None:
    with pytest.raises(ValueError, match=r"8xH100|known are A100, H100, H200"):
        parse_simulation(text)
