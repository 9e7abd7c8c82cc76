"""The page checked with Prometheus's own programs."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import NOT_SUPPORTED, FakeDriver, mixed_gpus, uuid_of
from tests.rank_file import rank_text
from tests.waiting import wait_until

from rankscope.exporter.catalogue import COLLECTORS

RANK = rank_text(40, run="r1", run_id="id-r1", rank=2)


@pytest.fixture
def node(fake_nvml_library: Path, tmp_path: Path) -> FakeDriver:
    """Fake driver with an H100, an A100, and an H100 divided by MIG."""
    return FakeDriver(tmp_path / "full-driver", fake_nvml_library, mixed_gpus()[:3])


EVERY_COLLECTOR = tuple(f"--collector.{name}" for name in COLLECTORS)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--simulate", "2xH100"), EVERY_COLLECTOR])
def test_page_passes_promtool(
    arguments: tuple[str, ...],
    start_exporter: StartExporter,
    node: FakeDriver,
    require_program: Callable[[str], str],
    tmp_path: Path,
) -> None:
    node.change(1, {"power": NOT_SUPPORTED})
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "a.prom").write_text(RANK)
    (tmp_path / "spool" / "b.prom").write_text("no metrics")
    exporter = start_exporter(*arguments, env=node.env)
    exporter.wait_until(lambda: len(exporter.values("gpu_temperature_celsius")) >= 2)
    exporter.wait_until(lambda: exporter.values("rankscope_exporter_spool_rejected_files") == [1])

    # Not the DCGM-compatible page: boards and rules for dcgm-exporter need its names and labels, to which promlint objects
    # (counters without _total, camelCase labels).
    page = exporter.get("/metrics").body

    checked = subprocess.run([require_program("promtool"), "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.fixture
def prometheus(
    require_program: Callable[[str], str], free_port: Callable[[], int], tmp_path: Path
) -> Iterator[Callable[[int], str]]:
    """Function ``prometheus(port)`` that starts a Prometheus scraping both pages of a local port and returns its URL."""
    program = require_program("prometheus")
    processes: list[subprocess.Popen[bytes]] = []

    def start(target: int) -> str:
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 200ms}\n"
            "scrape_configs:\n"
            f"  - {{job_name: rankscope, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}\n"
            f"  - {{job_name: dcgm, metrics_path: /dcgm/metrics, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}\n"
        )
        url = f"127.0.0.1:{free_port()}"
        command = [program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={url}"]
        with (tmp_path / "prometheus.log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return f"http://{url}"

    yield start
    for process in processes:
        process.terminate()
        process.wait(60)


def _query(url: str, expression: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(expression)}", timeout=60) as response:
        result: list[dict[str, Any]] = json.load(response)["data"]["result"]
    return result


def _wait_for(url: str, expression: str, series: int) -> list[dict[str, Any]]:
    def samples() -> list[dict[str, Any]]:
        try:
            result = _query(url, expression)
        except (urllib.error.URLError, ConnectionError):  # it is still starting
            return []
        return result if len(result) == series else []

    answer: list[dict[str, Any]] = wait_until(samples, details=lambda: f"{expression} never had {series} series")
    return answer


# Joins that operators use, and the number of series that each returns for the node.
JOINS = {
    "gpu_power_watts * on (uuid) group_left (host, index, model) gpu_info": 3,
    "rate(gpu_energy_joules_total[1m]) * on (uuid) group_left (index) gpu_info": 3,
    "gpu_sm_active_ratio * on (uuid) group_left (model) gpu_info": 2,
    "sum by (uuid) (gpu_xid_errors_total * on (uuid) group_left (model) gpu_info)": 3,
    "gpu_mig_memory_used_bytes * on (uuid) group_left (parent_uuid, profile) gpu_mig_info": 2,
    "label_replace(gpu_mig_info, 'uuid', '$1', 'parent_uuid', '(.*)') * on (uuid) group_left (model) gpu_info": 2,
    "gpu_metric_absent_info{reason='before_hopper',metric='gpu_sm_active_ratio'} * on (uuid) group_left (model) gpu_info": 1,
    # native and DCGM-compatible metrics agree
    "label_replace(DCGM_FI_DEV_POWER_USAGE, 'uuid', '$1', 'UUID', '(.*)') - on (uuid) gpu_power_watts == 0": 3,
    "sum by (UUID, GPU_I_ID) (DCGM_FI_DEV_FB_USED{GPU_I_ID!=''})": 2,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{GPU_I_ID=''} < 1": 1,
}


@pytest.mark.slow
def test_prometheus_scrapes_and_queries_both_pages(
    start_exporter: StartExporter, node: FakeDriver, prometheus: Callable[[int], str], tmp_path: Path
) -> None:
    # given three GPUs, and two ranks with two metrics that are the same one in OpenMetrics, the format Prometheus requests
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "a.prom").write_text(RANK)
    (tmp_path / "spool" / "b.prom").write_text(
        '# TYPE rank_info gauge\nrank_info{run="r2",rank="0",slot="0",run_id="id-r2"} 1\n'
        '# TYPE rank_steps gauge\nrank_steps{run="r2",rank="0",slot="0"} 7\n'
    )
    exporter = start_exporter("--compat", "dcgm", env=node.env)

    url = prometheus(exporter.port)

    # then the joins name the hardware, and the ranks' series arrive
    for question, series in JOINS.items():
        assert len(_wait_for(url, question, series)) == series
    joined = _query(url, "gpu_power_watts * on (uuid) group_left (host, index) gpu_info")
    assert {(item["metric"]["host"], item["metric"]["index"]) for item in joined} == {
        ("node1", "0"),
        ("node1", "1"),
        ("node1", "2"),
    }
    assert _wait_for(url, 'rank_steps_total{run="r1",rank="2"}', 1)[0]["value"][1] == "40"
    assert _wait_for(url, "rank_steps", 1)[0]["value"][1] == "7"
    joined = _query(url, "rank_steps_total * on (run, rank, slot) group_left (run_id, host) rank_info")
    assert {(item["metric"]["run_id"], item["metric"]["host"], item["value"][1]) for item in joined} == {("id-r1", "node1", "40")}
    (median,) = _query(url, "histogram_quantile(0.5, sum by (le) (rank_step_duration_seconds_bucket))")
    assert float(median["value"][1]) == 0.75  # all 40 steps took between 0.5 s and 1 s
    assert _query(url, "rank_step_duration_seconds_sum / rank_step_duration_seconds_count")[0]["value"][1] == "1"
    assert {item["metric"]["job"] for item in _wait_for(url, "up == 1", 2)} == {"rankscope", "dcgm"}
    assert _query(url, "rankscope_exporter_simulated")[0]["value"][1] == "0"

    # and when a GPU is lost, then its readings end and the others' continue
    node.lose(0)
    (down,) = _wait_for(url, "gpu_up == 0", 1)
    assert down["metric"]["uuid"] == uuid_of(0)
    assert {item["metric"]["uuid"] for item in _wait_for(url, "gpu_power_watts", 2)} == {uuid_of(1), uuid_of(2)}
    assert {item["metric"]["UUID"] for item in _wait_for(url, "DCGM_FI_DEV_POWER_USAGE", 2)} == {uuid_of(1), uuid_of(2)}
    (reason,) = _query(url, "(gpu_up == 0) * on (uuid) group_left (reason) gpu_down_info")
    assert reason["metric"]["reason"] == "lost"
