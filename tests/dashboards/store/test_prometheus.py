"""Data that a Prometheus adds to the pages: idle GPUs by holder, and hardware of runs without their own samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.dashboards.blocks import text_of
from tests.remembering_prometheus import remembering

from rankscope.alerts.prometheus import Prometheus, Server
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.hardware import nothing
from rankscope.dashboards.lost_hours.data import by_holder
from rankscope.dashboards.lost_hours.prometheus import IdleNow, idle_gpus
from rankscope.dashboards.lost_hours.view import PAGE
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.prometheus_hardware import scraped_hardware
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.exporter.catalogue import BY_NAME

BEGAN_S = 1_790_000_000
NOW_S = BEGAN_S + 3_600
OF_RANK_0 = "GPU-00000000-5d1f-4a52-9c3e-0123456789ab"


def samples(name: str, labels: str, value: float = 1, *, first_s: int = 0, last_s: int = 3_600) -> list[str]:
    return [f"{name}{{{labels}}} {value} {BEGAN_S + second}" for second in range(first_s, last_s + 1, 60)]


def held(uuid: str, *, allocated: int | None, in_use: int, job: str = "") -> dict[str, list[str]]:
    told = {
        "gpu_in_use": samples("gpu_in_use", f'uuid="{uuid}"', in_use),
        "gpu_job_info": samples("gpu_job_info", f'uuid="{uuid}",{job}') if job else [],
    }
    if allocated is not None:
        told["gpu_allocated"] = samples("gpu_allocated", f'uuid="{uuid}"', allocated)
    return told


def past() -> str:
    ann, bob = 'user="ann",account="ml",job_id="7"', 'user="bob",account="ml",job_id="8"'
    parts = [
        held("GPU-1", allocated=1, in_use=0, job=ann),
        # The exporter is scraped by a second job of Prometheus
        {"gpu_job_info": samples("gpu_job_info", f'uuid="GPU-1",{ann},job="b"')},
        {"gpu_info": samples("gpu_info", 'uuid="GPU-1",host="n1"') + samples("gpu_info", 'uuid="GPU-3",host="n3"')},
        # Idle all the time, but under another job until half an hour ago
        held("GPU-2", allocated=1, in_use=0),
        {
            "gpu_job_info": samples("gpu_job_info", f'uuid="GPU-2",{ann}', last_s=1_740)
            + samples("gpu_job_info", f'uuid="GPU-2",{bob}', first_s=1_800)
        },
        held("GPU-3", allocated=1, in_use=1, job=ann),
        held("GPU-4", allocated=0, in_use=0),
        held("GPU-5", allocated=None, in_use=0),
        held("MIG-9", allocated=1, in_use=0, job='namespace_k8s="nlp",pod_k8s="tune-0"'),
        {"gpu_mig_info": samples("gpu_mig_info", 'uuid="MIG-9",parent_uuid="GPU-3"')},
        {
            "gpu_info": samples("gpu_info", f'uuid="{OF_RANK_0}",host="node-0",simulated="true"'),
            "gpu_temperature_celsius": samples("gpu_temperature_celsius", f'uuid="{OF_RANK_0}"', 71),
            "gpu_memory_used_bytes": samples("gpu_memory_used_bytes", f'uuid="{OF_RANK_0}"', 2**30),
            "gpu_clock_max_hertz": samples("gpu_clock_max_hertz", f'uuid="{OF_RANK_0}",clock="sm"', 2e9)
            + samples("gpu_clock_max_hertz", f'uuid="{OF_RANK_0}",clock="memory"', 9e9),
        },
    ]
    families: dict[str, list[str]] = {}
    for part in parts:
        for name, lines in part.items():
            families.setdefault(name, []).extend(lines)
    return "".join(f"# TYPE {name} gauge\n" + "\n".join(lines) + "\n" for name, lines in families.items() if lines)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]) -> Iterator[Prometheus]:
    with remembering(tmp_path_factory.mktemp("prometheus"), past(), program=require_program) as url:
        yield Prometheus(Server(url=url))


@pytest.fixture
def down() -> Prometheus:
    return Prometheus(Server(url="http://127.0.0.1:9"))


def test_what_is_asked_for_is_in_the_exporters_catalogue() -> None:
    for metric in ("gpu_allocated", "gpu_in_use", "gpu_info", "gpu_mig_info"):
        assert metric in BY_NAME
    assert {"uuid", "user", "account", "job_id", "namespace_k8s", "pod_k8s"} <= set(BY_NAME["gpu_job_info"].labels)


@pytest.mark.slow
def test_idle_gpus_are_those_that_somebody_holds_and_no_process_has_open(real: Prometheus) -> None:
    first, second, mig = idle_gpus(real, clock_ns=lambda: NOW_S * 10**9)

    assert (first.uuid, first.host, first.user, first.account, first.job_id) == ("GPU-1", "n1", "ann", "ml", "7")
    assert first.idle_hours == pytest.approx(1.0, abs=0.1)

    # Only the hours under its current job count; an unreported host stays unknown
    assert (second.uuid, second.host, second.user, second.job_id) == ("GPU-2", None, "bob", "8")
    assert second.idle_hours == pytest.approx(0.5, abs=0.1)

    # A MIG device has its GPU's host; a pod counts as a job; an unreported user stays unknown
    assert (mig.uuid, mig.host, mig.user, mig.job_id) == ("MIG-9", "n3", None, "nlp/tune-0")
    assert [holder.user for holder in by_holder([first, second, mig])] == [None, "ann", "bob"]


@pytest.mark.slow
def test_that_no_exporter_tells_is_not_that_no_gpu_is_idle(real: Prometheus) -> None:
    with pytest.raises(RankscopeError, match="has no gpu_allocated now: it scrapes no rankscope exporter"):
        idle_gpus(real, clock_ns=lambda: (BEGAN_S - 86_400) * 10**9)


@pytest.mark.slow
def test_hardware_of_a_run_without_samples_is_that_of_the_exporters(
    tmp_path: Path, write_run: Callable[..., Path], real: Prometheus
) -> None:
    # Given a run whose last record is ten minutes after its first
    run = write_run(tmp_path / "run", run_id="r")
    for path in run.rglob("*"):
        os.utime(path, (BEGAN_S + 600, BEGAN_S + 600))

    hardware = DiskRuns(tmp_path, prometheus=real).hardware("r")

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
    tmp_path: Path, write_run: Callable[..., Path], down: Prometheus
) -> None:
    write_run(tmp_path / "run", run_id="r")

    index = DiskRuns(tmp_path, prometheus=down).hardware("r").index

    assert index.gpus == []
    assert index.prometheus is None
    assert index.why_none is not None
    assert f"; {down.name}: cannot be reached" in index.why_none


def test_the_ledger_says_that_the_prometheus_is_down_and_shows_the_rest(memory_runs: Any, down: Prometheus) -> None:
    shown = text_of(PAGE.blocks(memory_runs, "", DashboardConfig(idle_gpus=IdleNow(down))))

    assert "cannot be reached" in shown
    assert "Runs counted" in shown


def test_a_prometheus_that_is_down_is_not_asked_by_everybody(down: Prometheus, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = Prometheus.query

    def counted(self: Prometheus, expression: str, *, at_unix_ns: int) -> Any:
        asked.append(expression)
        return ask(self, expression, at_unix_ns=at_unix_ns)

    monkeypatch.setattr(Prometheus, "query", counted)
    now = IdleNow(down)

    for _ in range(2):
        with pytest.raises(RankscopeError, match="cannot be reached"):
            now()

    assert len(asked) == 1
