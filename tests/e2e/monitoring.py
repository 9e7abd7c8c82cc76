"""Configuration and start of Prometheus, Alertmanager and the receiver of one test."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankscope.cli.demo.services import Services, rankscope_command

SERVERS = ("receiver", "alertmanager", "prometheus")


class Monitoring:
    """The three servers on 127.0.0.1 of the host on which ``services`` starts processes.

    ``ports``: port of each of ``SERVERS``. ``programs``: paths of prometheus and prometheus-alertmanager.
    """

    def __init__(self, folder: Path, ports: Mapping[str, int], programs: Mapping[str, str]) -> None:
        self.folder = folder
        self.ports = ports
        self.programs = programs

    def url(self, name: str, path: str = "") -> str:
        return f"http://{self.address(name)}{path}"

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def export_rules(self, thresholds: str) -> None:
        """Export the shipped rules, with an operator's thresholds file of this text."""
        file = self.folder / "thresholds.toml"
        file.write_text(thresholds)
        exported = rankscope_command("alerts", "rules", "export", self.folder / "rules", "--thresholds", file)
        subprocess.run(exported, check=True, capture_output=True)

    def configure_prometheus(self, scrape_configs: Sequence[Mapping[str, Any]]) -> None:
        """Scrape and evaluate every second."""
        self._write(
            "prometheus",
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules/*.yaml"],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [self.address("alertmanager")]}]}]},
                "scrape_configs": scrape_configs,
            },
        )

    def configure_alertmanager(self, webhook: Mapping[str, Any], *, matchers: Sequence[str] = ()) -> None:
        """Send the alerts that match, or all without matchers, to the receiver, a second after they arrive."""
        webhook = {"url": self.url("receiver", "/webhook"), "send_resolved": True, **webhook}
        group = {"group_by": ["alertname", "run_id"], "group_wait": "1s", "group_interval": "1s"}
        self._write(
            "alertmanager",
            {
                "route": {"receiver": "none", **group, "routes": [{"receiver": "rankscope", "matchers": matchers}]},
                "receivers": [{"name": "none"}, {"name": "rankscope", "webhook_configs": [webhook]}],
            },
        )

    def start_receiver(self, services: Services, *options: str | Path, env: Mapping[str, str] | None = None) -> None:
        command = rankscope_command("alerts", "serve", *options, "--listen", self.address("receiver"))
        services.start("receiver", command, env=env)

    def start_alertmanager(self, services: Services) -> None:
        services.start(
            "alertmanager",
            [
                self.programs["prometheus-alertmanager"],
                f"--config.file={self.folder / 'alertmanager.json'}",
                f"--storage.path={self.folder / 'alertmanager'}",
                f"--web.listen-address={self.address('alertmanager')}",
                "--cluster.listen-address=",
            ],
        )

    def start_prometheus(self, services: Services) -> subprocess.Popen[bytes]:
        return services.start(
            "prometheus",
            [
                self.programs["prometheus"],
                f"--config.file={self.folder / 'prometheus.json'}",
                f"--storage.tsdb.path={self.folder / 'tsdb'}",
                f"--web.listen-address={self.address('prometheus')}",
            ],
        )

    def wait(self, services: Services, names: Sequence[str] = SERVERS) -> None:
        """Wait until these servers are ready."""
        for name in names:
            services.wait_for(name, self.url(name, "/-/ready"))

    def _write(self, name: str, config: Mapping[str, Any]) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(config))
