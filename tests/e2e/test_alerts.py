"""From a real job with a planted straggler to a webhook of the user: every link of the chain is the real program."""

from __future__ import annotations

import base64
import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook
from tests.e2e.monitoring import Monitoring
from tests.waiting import wait_until
from tests.webhook_receiver import WebhookReceiver, receiving

from rankscope.cli.demo.services import Services, rankscope_command

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.usefixtures("require_torch"), pytest.mark.timeout(600)]

TRAIN = find_spec("rankscope.cli.demo.train")
"""Not imported: it would import torch."""
PATIENCE_S = 240.0
SLOW_RANK = 2
TOKEN = "s3cret-of-alertmanager"


class Chain:
    """Exporter, training, watcher, Alertmanager and receiver, all on free ports of this machine."""

    def __init__(self, folder: Path, sink: WebhookReceiver, free_port: Callable[[], int], alertmanager: str) -> None:
        self.folder = folder
        self.sink = sink
        self.secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        ports = {name: free_port() for name in ("exporter", "alertmanager", "receiver")}
        self.monitoring = Monitoring(folder, ports, {"prometheus-alertmanager": alertmanager})
        self.run = folder / "runs" / "job"
        self.state = folder / "receiver"

    def url(self, name: str, path: str = "") -> str:
        return self.monitoring.url(name, path)

    def start(self, services: Services) -> None:
        """Start everything but the training; the receiver first, so that it can accept every alert."""
        self._configure()
        env = {"WEBHOOK_SECRET": self.secret, "ALERTMANAGER_TOKEN": TOKEN}
        self.monitoring.start_receiver(services, "--config", self.folder / "alerts.toml", env=env)
        self.monitoring.start_alertmanager(services)
        address = self.monitoring.address("exporter")
        services.start(
            "exporter", rankscope_command("exporter", "--listen", address, "--spool", self.folder / "spool", "--simulate", "4")
        )
        self.monitoring.wait(services, ("receiver", "alertmanager"))
        services.wait_for("exporter", self.url("exporter", "/"))
        watched = (self.folder / "runs", "--alertmanager", self.url("alertmanager"), "--state", self.folder / "watcher.json")
        services.start("watcher", rankscope_command("alerts", "watch", *watched, "--interval", "1s", "--least-firing", "1s"))

    def train(self, services: Services) -> subprocess.Popen[bytes]:
        """Train on four ranks, one of which pauses in its forward pass, until they are ended."""
        fault = ("--fault", f"host:{SLOW_RANK}", "--steps", "100000")
        recorded = (
            "--no-verdict",
            "--simulated",
            "--spool-dir",
            self.folder / "spool",
            "--run-dir",
            self.run,
            "--price-per-gpu-hour",
            "2",
        )
        assert TRAIN is not None
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(TRAIN.origin))
        page = ("--exporter-url", self.url("exporter", "/metrics"))
        command = rankscope_command("run", *recorded, *page, "--window-steps", "3", "--", *torchrun, *fault)
        return services.start("training", command, env={"OMP_NUM_THREADS": "1"})

    def _configure(self) -> None:
        (self.folder / "spool").mkdir()
        (self.folder / "runs").mkdir()
        authorization = {"http_config": {"authorization": {"credentials": TOKEN}}}
        self.monitoring.configure_alertmanager(authorization, matchers=["alertname=TrainingStraggler"])
        (self.folder / "alerts.toml").write_text(
            f"""
[receive]
runs = ["runs"]
state = "{self.state}"
dashboard_url = "https://rankscope.example"
bearer = [{{ env = "ALERTMANAGER_TOKEN" }}]

[[target]]
name = "sink"
url = "{self.sink.url}/hook"
secrets = [{{ env = "WEBHOOK_SECRET" }}]

[[action]]
alert = "TrainingStraggler"
do = "capture"
steps = 12
"""
        )


@pytest.fixture
def chain(
    tmp_path: Path, free_port: Callable[[], int], require_program: Callable[[str], str]
) -> Iterator[tuple[Chain, Services]]:
    """The chain, running, without any training yet."""
    with receiving() as sink, Services(tmp_path) as services:
        chain = Chain(tmp_path, sink, free_port, require_program("prometheus-alertmanager"))
        chain.start(services)
        yield chain, services


def first(chain: Chain, services: Services, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first accepted alert that meets ``condition``; fail with the processes' output if there is none in time."""

    def accepted() -> dict[str, Any] | None:
        alerts = (alert for _, payload in list(chain.sink.accepted) for alert in payload["alerts"])
        return next(filter(condition, alerts), None)

    def details() -> str:
        programs = ("training", "exporter", "watcher", "alertmanager", "receiver")
        lines = (f"{name}: {services.last_line(name)}" for name in programs)
        return "\n".join([f"accepted: {chain.sink.accepted}", *lines])

    alert: dict[str, Any] = wait_until(accepted, timeout=PATIENCE_S, poll_s=0.2, details=details)
    return alert


@pytest.mark.alone  # beside other tests the few steps of a capture may show no straggler, or another cause
def test_straggler_is_measured_alerted_captured_and_delivered_with_cause(
    chain: tuple[Chain, Services], capsys: pytest.CaptureFixture[str]
) -> None:
    links, services = chain
    began = time.monotonic()
    training = links.train(services)
    seconds: dict[str, float] = {}

    def note(what: str) -> None:
        seconds[what] = round(time.monotonic() - began, 1)

    # The watcher fires, Alertmanager sends, the receiver adds the run's verdict
    enriched = first(links, services, lambda alert: alert["status"] == "firing")
    note("told")
    assert enriched["labels"]["alertname"] == "TrainingStraggler"
    assert enriched["labels"]["rank"] == str(SLOW_RANK)
    annotations = enriched["annotations"]
    assert (annotations["verdict_rank"], annotations["cause"], annotations["phase"], annotations["simulated"]) == (
        str(SLOW_RANK),
        "host",
        "forward",
        "true",
    )

    # And the result of a profile of the next steps, under the same alert
    shown = first(links, services, lambda alert: "capture_outcome" in alert["annotations"])
    note("told what the capture showed")
    notes = shown["annotations"]
    assert shown["labels"] == enriched["labels"]
    assert shown["startsAt"] == enriched["startsAt"]
    assert notes["capture_outcome"] == "shown", notes
    assert (notes["verdict_rank"], notes["cause"]) == (str(SLOW_RANK), "host"), notes
    assert notes["dashboard_url"].startswith("https://rankscope.example/run/")

    # The webhook is signed as any library for Standard Webhooks verifies it
    webhook = Webhook(links.secret)
    for headers, body in zip(links.sink.headers, links.sink.bodies, strict=True):
        webhook.verify(body, headers)

    # And when the job is ended, so is the alert
    training.send_signal(signal.SIGTERM)
    ended = first(links, services, lambda alert: alert["status"] == "resolved")
    note("told that it is over")
    assert ended["labels"] == enriched["labels"]
    counts = httpx.get(links.url("receiver", "/metrics")).text
    assert 'outcome="shown"' in counts
    with capsys.disabled():
        print(json.dumps({"seconds from the start of the job": seconds}))
