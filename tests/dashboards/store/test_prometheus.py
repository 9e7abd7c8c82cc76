"""Data that a Prometheus adds to the pages: hardware of runs without their own samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.remembering_prometheus import remembering

from rankscope.analysis.result.analysis import Analysis
from rankscope.dashboards.alerts.prometheus import Prometheus, Server
from rankscope.dashboards.data.hardware import nothing
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.prometheus_hardware import scraped_hardware

BEGAN_S = 1_790_000_000
NOW_S = BEGAN_S + 3_600
OF_RANK_0 = "GPU-00000000-5d1f-4a52-9c3e-0123456789ab"


def samples(name: str, labels: str, value: float = 1) -> list[str]:
    return [f"{name}{{{labels}}} {value} {BEGAN_S + second}" for second in range(0, 3_601, 60)]


def past() -> str:
    families = {
        "gpu_info": samples("gpu_info", f'uuid="{OF_RANK_0}",host="node-0",simulated="true"'),
        "gpu_temperature_celsius": samples("gpu_temperature_celsius", f'uuid="{OF_RANK_0}"', 71),
        "gpu_memory_used_bytes": samples("gpu_memory_used_bytes", f'uuid="{OF_RANK_0}"', 2**30),
        "gpu_clock_max_hertz": samples("gpu_clock_max_hertz", f'uuid="{OF_RANK_0}",clock="sm"', 2e9)
        + samples("gpu_clock_max_hertz", f'uuid="{OF_RANK_0}",clock="memory"', 9e9),
    }
    return "".join(f"# TYPE {name} gauge\n" + "\n".join(lines) + "\n" for name, lines in families.items())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]) -> Iterator[Prometheus]:
    with remembering(tmp_path_factory.mktemp("prometheus"), past(), program=require_program) as url:
        yield Prometheus(Server(url=url))


@pytest.fixture
def down() -> Prometheus:
    return Prometheus(Server(url="http://127.0.0.1:9"))


@pytest.mark.slow
def test_hardware_of_a_run_without_samples_is_that_of_the_exporters(
    tmp_path: Path, write_run: Callable[..., Path], real: Prometheus, until_ready: Callable[..., Any]
) -> None:
    # Given a run whose last record is ten minutes after its first
    run = write_run(tmp_path / "run", run_id="r")
    for path in run.rglob("*"):
        os.utime(path, (BEGAN_S + 600, BEGAN_S + 600))

    source = DiskRuns(tmp_path, prometheus=real)
    hardware = until_ready(lambda: source.part("r", "hardware"))

    # Then the GPU of one rank has readings, and their source and the ranks without readings are named
    [gpu] = hardware.gpus
    assert (gpu.gpu_uuid, gpu.host, gpu.ranks, gpu.simulated) == (OF_RANK_0, "node-0", [0], True)
    assert hardware.index.prometheus == real.name
    assert hardware.index.step_s == 5.0
    assert hardware.index.unsampled_ranks == [1, 2, 3]
    [missing] = hardware.index.missing
    assert missing.count("GPU-") == 3
    assert hardware.index.why_none is None
    series = hardware.series(OF_RANK_0)
    assert set(series.values["temperature_celsius"]) == {71.0}
    assert set(series.values["memory_used_bytes"]) == {2.0**30}
    assert set(series.values["sm_clock_max_hertz"]) == {2e9}
    assert np.isnan(series.values["power_watts"]).all()
    assert set(gpu.gauges) == {"temperature_celsius", "memory_used_bytes", "sm_clock_max_hertz"}


def test_without_any_gpu_in_the_run_nobody_is_asked(down: Prometheus, analysis: Analysis) -> None:
    on_cpus = [msgspec.structs.replace(rank, gpu_uuid=None) for rank in analysis.ranks]
    recorded = nothing("no samples")

    assert scraped_hardware(down, msgspec.structs.replace(analysis, ranks=on_cpus), (0, 10**9), recorded) is recorded


def test_a_prometheus_that_is_down_is_said_beside_why_the_run_has_no_samples(
    tmp_path: Path, write_run: Callable[..., Path], down: Prometheus, until_ready: Callable[..., Any]
) -> None:
    write_run(tmp_path / "run", run_id="r")

    source = DiskRuns(tmp_path, prometheus=down)
    index = until_ready(lambda: source.part("r", "hardware")).index

    assert index.gpus == []
    assert index.prometheus is None
    assert index.why_none is not None
    assert f"; {down.name}: cannot be reached" in index.why_none
