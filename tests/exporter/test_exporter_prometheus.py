"""Prometheus's own programs and the page."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

RANK = """\
# HELP rank_steps_total Training steps completed.
# TYPE rank_steps_total counter
rank_steps_total{run_id="r1",rank="2"} 40
"""


def test_promtool_finds_nothing_to_object_to(
    start_exporter: Callable[..., Any], fake_nvml: Any, require_program: Callable[[str], str], tmp_path: Path
) -> None:
    promtool = require_program("promtool")
    fake_nvml.gpus[1]["power"] = "err:3"
    fake_nvml.write()
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "a.prom").write_text(RANK)

    for arguments, env in (((), fake_nvml.env), (("--simulate", "2"), {})):
        page = start_exporter(*arguments, env=env).get("/metrics").body
        checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.fixture
def prometheus(
    require_program: Callable[[str], str], free_port: Callable[[], int], tmp_path: Path
) -> Iterator[Callable[[int], str]]:
    """``prometheus(port)`` starts a Prometheus that scrapes the port of this machine, and returns its URL."""
    program = require_program("prometheus")
    processes: list[subprocess.Popen[bytes]] = []

    def start(target: int) -> str:
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 500ms}\n"
            f"scrape_configs: [{{job_name: rankscope, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
        )
        url = f"127.0.0.1:{free_port()}"
        command = [program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={url}"]
        with (tmp_path / "prometheus.log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return f"http://{url}"

    yield start
    for process in processes:
        process.terminate()
        process.wait(20)


def _query(url: str, expression: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(expression)}", timeout=10) as response:
        result: list[dict[str, Any]] = json.load(response)["data"]["result"]
    return result


def _wait_for(url: str, expression: str, series: int) -> list[dict[str, Any]]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            found = _query(url, expression)
        except (urllib.error.URLError, ConnectionError):  # it is still starting
            found = []
        if len(found) == series:
            return found
        time.sleep(0.2)
    pytest.fail(f"{expression} never had {series} series")


@pytest.mark.slow
def test_prometheus_scrapes_the_exporter_and_answers_questions(
    start_exporter: Callable[..., Any], fake_nvml: Any, prometheus: Callable[[int], str], tmp_path: Path
) -> None:
    # given two GPUs, and two files whose metrics are the same one to OpenMetrics, which Prometheus asks for
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "a.prom").write_text(RANK)
    (tmp_path / "spool" / "b.prom").write_text('# TYPE rank_steps gauge\nrank_steps{run_id="r2",rank="0"} 7\n')
    exporter = start_exporter(env=fake_nvml.env)

    url = prometheus(exporter.port)

    # then the join by uuid names the node, and the ranks' series arrive
    joined = _wait_for(url, "gpu_power_watts * on (uuid) group_left (host, index) gpu_info", 2)
    assert {(one["metric"]["host"], one["metric"]["index"], one["value"][1]) for one in joined} == {
        ("node1", "0", "251.25"),
        ("node1", "1", "251.25"),
    }
    assert _wait_for(url, 'rank_steps_total{run_id="r1",rank="2"}', 1)[0]["value"][1] == "40"
    assert _wait_for(url, "rank_steps", 1)[0]["value"][1] == "7"
    assert _wait_for(url, "up", 1)[0]["value"][1] == "1"
    assert _query(url, "rankscope_exporter_simulated")[0]["value"][1] == "0"

    # and when a GPU is lost, then its readings end while the other's go on
    fake_nvml.gpus[0]["lost"] = 1
    fake_nvml.write()
    (down,) = _wait_for(url, "gpu_up == 0", 1)
    assert down["metric"]["uuid"].startswith("GPU-0")
    assert _wait_for(url, "gpu_power_watts", 1)[0]["metric"]["uuid"].startswith("GPU-1")
