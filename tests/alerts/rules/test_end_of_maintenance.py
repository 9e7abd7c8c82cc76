"""A real exporter, Prometheus and Alertmanager: an Xid pages, and after drain, reset and resume it does not page again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.exporter.conftest import RunningExporter, exporters
from tests.exporter.fake_driver import FakeDriver, build_library, gpu_state
from tests.local_http import answering, respond
from tests.monitoring_servers import alertmanager_server, ask, prometheus_server
from tests.waiting import wait_until

from rankscope.alerts.rules.rule_file import rules_text
from rankscope.alerts.rules.thresholds import load_thresholds

EXAMPLE = Path(__file__).parents[3] / "alerts" / "alertmanager" / "alertmanager.yml"
KEPT_S = 8


class Site:
    """A node with its exporter, the state of the node as a scrape target, and a webhook target that keeps the pages."""

    def __init__(self, gpus: FakeDriver, exporter: RunningExporter) -> None:
        self.gpus = gpus
        self.exporter = exporter
        self.drained = False
        self.pages: list[tuple[str, str]] = []

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        if body:
            self.pages += [(alert["labels"]["alertname"], alert["status"]) for alert in json.loads(body)["alerts"]]
        text = f'# TYPE kube_node_spec_unschedulable gauge\nkube_node_spec_unschedulable{{node="node1"}} {self.drained:d}\n'
        respond(request, 200, text.encode(), Content_Type="text/plain; version=0.0.4")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    gpus = FakeDriver(tmp_path / "driver", build_library(), [gpu_state(0)])
    with exporters(tmp_path) as start:
        yield Site(gpus, start("--no-xid.kernel-log", env=gpus.env))


@pytest.fixture
def firing(tmp_path: Path, site: Site) -> Iterator[Callable[[], set[str]]]:
    """Function that returns the names of the alerts that fire in Prometheus; Alertmanager repeats its pages every second."""
    ours = tmp_path / "ours.toml"
    ours.write_text(f'[NodeMaintenance]\nkeep_firing_for = "{KEPT_S}s"\n')
    (tmp_path / "rules.yaml").write_text(rules_text(settings=load_thresholds(ours)))
    with answering(site.answer) as address:
        quick = EXAMPLE.read_text().replace("http://127.0.0.1:9099/webhook", address)
        for name, value in (("group_wait", "30s"), ("group_wait", "10s"), ("group_interval", "5m")):
            quick = quick.replace(f"{name}: {value}", f"{name}: 200ms")
        for value in ("4h", "1h"):
            quick = quick.replace(f"repeat_interval: {value}", "repeat_interval: 1s")
        (tmp_path / "alertmanager.yml").write_text(quick)
        with alertmanager_server(tmp_path / "manager", tmp_path / "alertmanager.yml") as manager:
            config = f"""
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: [rules.yaml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["{manager.removeprefix("http://")}"]}}]}}]}}
scrape_configs:
  - job_name: rankscope
    static_configs: [{{targets: ["127.0.0.1:{site.exporter.port}"]}}]
  - job_name: kube-state-metrics
    static_configs: [{{targets: ["{address.removeprefix("http://")}"]}}]
"""
            with prometheus_server(tmp_path, config, arguments=["--rules.alert.resend-delay=1s"]) as url:
                yield lambda: {
                    alert["labels"]["alertname"] for alert in ask(url, "alerts")["alerts"] if alert["state"] == "firing"
                }


@pytest.mark.slow
@pytest.mark.full
def test_the_end_of_maintenance_sends_no_page_about_a_repaired_gpu(
    site: Site, firing: Callable[[], set[str]], cli: Cli, tmp_path: Path
) -> None:
    # Given a page about an Xid, again and again
    gpus, exporter = site.gpus, site.exporter
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0])
    gpus.xid(0, 62)
    wait_until(lambda: site.pages.count(("GpuXidCritical", "firing")) >= 2)

    def no_page_for_three_repeats() -> bool:
        site.pages.clear()
        time.sleep(3)
        return site.pages == []

    # When the node is drained, then the alert goes on and soon pages no more
    site.drained = True
    wait_until(lambda: firing() >= {"GpuXidCritical", "NodeMaintenance"})
    wait_until(no_page_for_three_repeats)
    assert "GpuXidCritical" in firing()

    # When the GPU is reset and the maintenance ends, then there is no page about the Xid
    socket = ("--socket", tmp_path / "control.sock")
    assert cli("exporter", "release", "0", *socket).returncode == 0
    assert cli("exporter", "resume", "0", *socket).returncode == 0
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0])
    site.drained = False
    wait_until(lambda: not firing())
    time.sleep(3)
    assert [page for page in site.pages if page[1] == "firing"] == []

    # And a new error pages at once
    gpus.xid(0, 62)
    wait_until(lambda: ("GpuXidCritical", "firing") in site.pages)
