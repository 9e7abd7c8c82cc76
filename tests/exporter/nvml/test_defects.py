"""Errors in the exporter's own code while it reads a GPU: each costs its topic and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.exporter.nvml import gpu as nvml_gpu
from rankscope.exporter.nvml.calls import NvmlCalls
from rankscope.exporter.nvml.fields import FieldBatches
from rankscope.exporter.nvml.gpu import NvmlGpu
from rankscope.exporter.nvml.sample_pass import FieldKey, SamplePass, Topic
from rankscope.exporter.source import GpuSample, SourceError


class Healthy(Topic):
    metrics = ("gpu_power_watts",)
    has_fields = True

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        return [(82, 0)]

    def collect(self, at: SamplePass) -> None:
        at.emit("gpu_power_watts", 250)
        at.emit("gpu_power_limit_watts", 700)


class Broken(Topic):
    """Topic that raises ``error`` in one of its methods, after half of its readings if that is ``collect``."""

    metrics = ("gpu_busy_seconds_total",)
    has_fields = has_activity = True

    def __init__(self, method: str, error: BaseException) -> None:
        self._method = method
        self.error: BaseException | None = error

    def _run(self, method: str) -> None:
        if method == self._method and self.error is not None:
            raise self.error

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        self._run("wants")
        return [(83, 0)]

    def collect(self, at: SamplePass) -> None:
        at.emit("gpu_utilization_min_ratio", 0)
        self._run("collect")
        at.emit("gpu_busy_seconds_total", 1)

    def sample_activity(self, ask: NvmlCalls) -> None:
        self._run("sample_activity")

    def close(self, ask: NvmlCalls) -> None:
        self._run("close")


class NvmlStandInError(Exception):
    value = 999


def stand_in(**replaced: Any) -> SimpleNamespace:
    """Return a driver binding with the calls that opening a GPU makes; field values are not supported."""
    calls: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByPciBusId": lambda _bus: 1,
        "nvmlDeviceGetPciInfo": lambda _gpu: SimpleNamespace(busId="00000000:1A:00.0"),
        "nvmlDeviceGetUUID": lambda _gpu: "GPU-1",
        "nvmlDeviceGetIndex": lambda _gpu: 0,
        "nvmlDeviceGetName": lambda _gpu: "Test GPU",
        "nvmlDeviceGetSerial": lambda _gpu: "165",
        "nvmlDeviceGetVbiosVersion": lambda _gpu: "96",
        "c_nvmlFieldValue_t": type("Field", (), {"__mul__": None}),
    }
    return SimpleNamespace(**{"NVMLError": NvmlStandInError, "nvmlLib": SimpleNamespace(), **calls, **replaced})


def opened(monkeypatch: pytest.MonkeyPatch, broken: Topic, nvml: SimpleNamespace) -> NvmlGpu:
    monkeypatch.setattr(nvml_gpu, "topics_of", lambda _collectors: {"utilization": [broken], "power": [Healthy()]})
    monkeypatch.setattr(FieldBatches, "read", lambda _self, _nvml, keys: dict.fromkeys(keys, 1.0))
    gpu = NvmlGpu(nvml, "00000000:1a:00.0", frozenset(), lambda _call: None)
    gpu.open()
    return gpu


def facts(sample: GpuSample) -> tuple[dict[str, float], dict[str, str], dict[str, str]]:
    """Return the readings, the reasons of what is absent, and the errors of the collectors."""
    return (
        {reading.metric: reading.value for reading in sample.readings},
        {absent.metric: absent.reason for absent in sample.absent},
        {run.collector: run.error for run in sample.runs if run.error},
    )


@pytest.mark.parametrize("method", ["wants", "collect", "sample_activity"])
@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), KeyError(83), AttributeError("x"), MemoryError()])
def test_defect_in_one_topic_affects_no_other(monkeypatch: pytest.MonkeyPatch, method: str, error: Exception) -> None:
    broken = Broken(method, error)
    gpu = opened(monkeypatch, broken, stand_in())
    gpu.sample_activity()

    readings, absent, errors = facts(gpu.sample())

    assert readings == {"gpu_power_watts": 250, "gpu_power_limit_watts": 700}
    assert absent == {"gpu_busy_seconds_total": "exporter_defect"}
    assert set(errors) == {"utilization"}
    assert type(error).__name__ in errors["utilization"]
    assert "test_defects.py" in errors["utilization"]

    broken.error = None
    readings, absent, errors = facts(gpu.sample())
    assert (readings["gpu_busy_seconds_total"], absent, errors) == (1, {}, {})
    gpu.close()


def test_defect_in_field_reading_affects_only_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = opened(monkeypatch, Broken("collect", KeyError()), stand_in())

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(FieldBatches, "read", fail)

    assert facts(gpu.sample())[0]["gpu_power_watts"] == 250


def test_defect_in_closing_still_shuts_nvml_down(monkeypatch: pytest.MonkeyPatch) -> None:
    shut_down: list[bool] = []
    gpu = opened(monkeypatch, Broken("close", KeyError()), stand_in(nvmlShutdown=lambda: shut_down.append(True)))

    gpu.close()

    assert shut_down == [True]


@pytest.mark.parametrize("method", ["collect", "sample_activity"])
def test_lost_gpu_is_not_reported_as_a_topic_defect(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    gpu = opened(monkeypatch, Broken(method, SourceError("lost", "gpu_is_lost")), stand_in())

    with pytest.raises(SourceError, match="gpu_is_lost"):
        gpu.sample() if method == "collect" else gpu.sample_activity()


def test_unreadable_serial_number_does_not_prevent_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    def serial(_gpu: int) -> str:
        return b"\xff".decode()

    gpu = opened(monkeypatch, Broken("", KeyError()), stand_in(nvmlDeviceGetSerial=serial))

    identity = gpu.sample().identity
    assert (identity.serial, identity.vbios_version) == (None, "96")
