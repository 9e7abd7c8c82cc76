"""Debian's Alertmanager accepts the watcher's alerts, computes the same fingerprints, routes, inhibits and forwards."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml
from tests.alerts.deliver.test_notifiers import endpoint
from tests.alerts.receive.receiver_process import ReceiverProcess
from tests.alerts.watch.watched_world import analysis_of
from tests.monitoring_servers import alertmanager_server
from tests.waiting import wait_until

from rankscope.alerts.alert import Alert, fingerprint, unix_ns
from rankscope.alerts.deliver.notifiers import Alertmanager
from rankscope.alerts.payload import NOT_ENDED, Notice, payload_alert
from rankscope.alerts.rules.rule_file import runbooks
from rankscope.alerts.rules.thresholds import SEVERITY_OF
from rankscope.alerts.watch.conditions.candidate import Subject
from rankscope.alerts.watch.delivery import Delivery
from rankscope.alerts.watch.followed_runs import FollowedRuns
from rankscope.alerts.watch.ledger import AlertLedger, FiringPolicy
from rankscope.alerts.watch.watcher import Watcher
from rankscope.alerts.watch.watcher_settings import WatcherSettings
from rankscope.alerts.watcher_alerts import HANG
from rankscope.analysis.result.analysis import Analysis

CONFIG = Path(__file__).parents[3] / "alerts" / "alertmanager" / "alertmanager.yml"
EXAMPLE = CONFIG.read_text()


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Addresses of a real Alertmanager (example configuration with shorter intervals) and of the real receiver behind it."""
    with ReceiverProcess(tmp_path, "") as receiver:
        quick = EXAMPLE.replace("127.0.0.1:9099", f"127.0.0.1:{receiver.port}")
        for name in ("group_wait: 30s", "group_wait: 10s", "group_interval: 5m"):
            quick = quick.replace(name, f"{name.partition(':')[0]}: 100ms")
        config = tmp_path / "alertmanager.yml"
        config.write_text(quick)
        with alertmanager_server(tmp_path / "manager", config) as url:
            yield url, receiver.url


def test_example_configuration_passes_amtool(require_program: Callable[[str], str]) -> None:
    completed = subprocess.run(
        [require_program("amtool"), "check-config", str(CONFIG)], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_inhibitions_require_the_compared_labels_on_both_alerts() -> None:
    config = yaml.safe_load(EXAMPLE)
    for inhibition in config["inhibit_rules"]:
        for side in ("source_matchers", "target_matchers"):
            # Alertmanager counts a label that both alerts lack as equal
            assert {f'{label}=~".+"' for label in inhibition["equal"]} <= set(inhibition[side])
            for names in re.findall(r'alertname=~?"([^"]*)"', " ".join(inhibition[side])):
                assert any(re.fullmatch(names, name) for name in SEVERITY_OF), names


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["alertname=TrainingStraggler", "severity=warning", "run_id=r1"], "team"),
        (["alertname=RankSilent", "severity=critical", "run_id=r1"], "on-call"),
        (["alertname=TrainingHang", "severity=critical", "run_id=r1"], "on-call"),
        (["alertname=GpuDown", "severity=critical", "host=n1"], "on-call"),
        (["alertname=GpuTooHot", "severity=warning", "host=n1"], "operators"),
        (["alertname=GpuAllocatedIdle", "severity=info", "host=n1"], "operators"),
        (["alertname=NodeMaintenance", "severity=info", "host=n1"], "nobody"),
        (["alertname=WatcherSilent", "severity=critical", "instance=w1:9098"], "operators"),
        (["alertname=ReceiverDown", "severity=critical", "instance=r1:9099"], "operators"),
        (["alertname=GpuDown", "severity=critical", "host=n1", "simulated=true"], "trial"),
        (["alertname=TrainingHangSuspected", "severity=critical", "run_id=r1", "simulated=true"], "trial"),
        (["alertname=GpuDown", "severity=critical", "host=n1", "simulated=false"], "on-call"),
        (["alertname=Other"], "operators"),
    ],
)
def test_alert_labels_select_the_receiver(require_program: Callable[[str], str], labels: list[str], receiver: str) -> None:
    command = [require_program("amtool"), "config", "routes", "test", "--config.file", str(CONFIG), *labels]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.split() == [receiver]


@pytest.mark.slow
def test_watcher_alert_reaches_the_receiver_through_alertmanager(alertmanager: tuple[str, str], make_run: Any) -> None:
    class Straggling(FollowedRuns):
        def update(self, run: Path) -> Analysis:
            del run
            return analysis_of(2)

    manager, receiver = alertmanager
    run = make_run()
    # Given a watcher over a live run whose rank 2 is a straggler
    watcher = Watcher(
        run.path,
        analyse=lambda _: analysis_of(2),
        follow=Straggling(),
        delivery=Delivery(
            alertmanagers=[Alertmanager(endpoint(manager), valid_s=240)],
            interval_s=1,
            report=pytest.fail,
        ),
        ledger=AlertLedger(),
        options=WatcherSettings(policy=FiringPolicy(1, 1), dashboard_url="http://127.0.0.1:8050"),
        report=pytest.fail,
        emit=lambda _: None,
        save=lambda _: None,
    )
    # When it evaluates the run
    watcher.evaluate()
    [entry] = watcher.ledger.entries

    # Then Alertmanager computes the same fingerprint for the alert
    [result] = httpx.get(f"{manager}/api/v2/alerts").json()
    assert result["fingerprint"] == entry.fingerprint
    assert result["labels"] == entry.alert.labels
    assert result["annotations"] == entry.alert.annotations

    # and forwards it as a payload that the receiver accepts
    def arrived(status: str) -> list[Any]:
        listing = httpx.get(f"{receiver}/deliveries").json()["deliveries"]
        return [item["payload"] for item in listing if item["payload"]["status"] == status]

    payload = wait_until(lambda: arrived("firing"))[0]
    assert payload["receiver"] == "team"
    assert payload["groupLabels"] == {"alertname": "TrainingStraggler", "run_id": "llama-1"}
    [alert] = payload["alerts"]
    assert alert["fingerprint"] == entry.fingerprint
    assert alert["annotations"]["cause"] == "input"
    assert alert["generatorURL"] == "http://127.0.0.1:8050/run/llama-1?rank=2"

    # When the run ends, the receiver gets the alert as resolved
    run.end()
    assert watcher.evaluate()
    payload = wait_until(lambda: arrived("resolved"))[0]
    assert payload["alerts"][0]["fingerprint"] == entry.fingerprint
    assert payload["alerts"][0]["endsAt"] != NOT_ENDED


@pytest.mark.slow
def test_restarted_alertmanager_gets_only_firing_alerts(tmp_path: Path) -> None:
    urls = [""]

    class Restarted(Alertmanager):
        """The Alertmanager at its current address."""

        def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
            Alertmanager(endpoint(urls[-1]), valid_s=5).send(notices, now_unix_ns=now_unix_ns)

    reports: list[str] = []
    delivery = Delivery(
        alertmanagers=[Restarted(endpoint("http://127.0.0.1"), valid_s=None)], interval_s=0, report=reports.append
    )
    began = time.time_ns() - 3600 * 10**9
    candidate = Subject(run_id="r1").candidate(HANG, {"summary": "It stands still."})
    ledger = AlertLedger()
    ledger.update("r1", [candidate], now_unix_ns=began, policy=FiringPolicy(1, 1))

    def known() -> list[Any]:
        delivery.deliver(ledger, now_unix_ns=time.time_ns(), wait_s=10)
        alerts: list[Any] = httpx.get(f"{urls[-1]}/api/v2/alerts").json()
        return alerts

    for number in range(2):
        with alertmanager_server(tmp_path / f"manager-{number}", CONFIG) as url:
            urls.append(url)
            [alert] = wait_until(known)
            assert (alert["fingerprint"], unix_ns(alert["startsAt"]) // 10**9) == (candidate.fingerprint, began // 10**9)
            assert delivery.undelivered(ledger) == []
            if number:  # Without posts from the watcher the alert expires
                wait_until(lambda: httpx.get(f"{urls[-1]}/api/v2/alerts").json() == [])
                # When the watcher posts again, it is the same alert
                [again] = wait_until(known)
                assert again["startsAt"] == alert["startsAt"]
        # The Alertmanager at that address has exited
        delivery.deliver(ledger, now_unix_ns=time.time_ns(), wait_s=10)
    assert len([line for line in reports if "not delivered so far" in line]) == 2


@pytest.mark.slow
def test_fingerprints_and_inhibitions_agree_with_alertmanager(
    alertmanager: tuple[str, str], require_program: Callable[[str], str]
) -> None:
    manager, _ = alertmanager
    # Given label sets with unicode, quotes, an empty rank and other orders; causes and their consequences
    critical, warning = {"severity": "critical"}, {"severity": "warning"}
    gpu = {"uuid": "GPU-1", "gpu_uuid": "GPU-1", "host": "n1", "instance": "n1:9838"}
    bus = {"uuid": "GPU-2", "gpu_uuid": "GPU-2", "host": "n2", "instance": "n2:9838"}
    down, drained = {"host": "n3", "instance": "n3:9838"}, {"host": "n4", "instance": "n4:9838"}
    labels: dict[str, dict[str, str]] = {
        "unicode": {"alertname": "Zürich 🚀", "severity": "info", "b": "2", "a": "1"},
        "quotes": {"alertname": 'a"b\\c\n', "severity": "info"},
        "silent": {"alertname": "RankSilent", **critical, "run_id": "r1", "rank": "3"},
        "slow in that run": {"alertname": "TrainingStraggler", **warning, "run_id": "r1", "rank": "2"},
        "slow elsewhere": {"alertname": "TrainingStraggler", **warning, "run_id": "r2", "rank": "2"},
        "hang": {"alertname": "TrainingHangSuspected", **critical, "run_id": "r5"},
        "no steps": {"alertname": "TrainingStalled", **critical, "run_id": "r5"},
        "hang of the watcher": {"alertname": "TrainingHang", **critical, "run_id": "r8"},
        "hang by power": {"alertname": "TrainingHangSuspected", **critical, "run_id": "r8"},
        "no steps, either": {"alertname": "TrainingStalled", **critical, "run_id": "r8"},
        "lost rank": {"alertname": "TrainingRankLost", **critical, "run_id": "r9", "rank": "3"},
        "silent, too": {"alertname": "RankSilent", **critical, "run_id": "r9", "rank": "3"},
        "silent alone": {"alertname": "RankSilent", **critical, "run_id": "r9", "rank": "4"},
        "lost ranks": {"alertname": "TrainingRankLost", **critical, "run_id": "r10"},
        "one of them": {"alertname": "RankSilent", **critical, "run_id": "r10", "rank": "40"},
        "lost GPU": {"alertname": "GpuDown", **critical, **gpu},
        "Xid of it": {"alertname": "GpuXidCritical", **critical, **gpu, "xid": "79"},
        "heat of it": {"alertname": "GpuTooHot", **warning, **gpu},
        "rank on it": {"alertname": "RankSilent", **critical, "run_id": "r3", "rank": "0", "gpu_uuid": "GPU-1"},
        "rank on another": {"alertname": "RankSilent", **critical, "run_id": "r4", "rank": "0", "gpu_uuid": "GPU-3"},
        "heat under that": {"alertname": "GpuTooHot", **warning, "gpu_uuid": "GPU-3", "host": "n9"},
        "off the bus": {"alertname": "GpuXidCritical", **critical, **bus, "xid": "79"},
        "another Xid": {"alertname": "GpuXidCritical", **critical, **bus, "xid": "48"},
        "rank after the Xid": {"alertname": "RankSilent", **critical, "run_id": "r7", "rank": "0", "gpu_uuid": "GPU-2"},
        "wants a reset": {"alertname": "GpuRecoveryAction", **critical, **bus, "action": "gpu_reset"},
        "remap failed": {"alertname": "GpuRowRemapFailure", **critical, "gpu_uuid": "GPU-5", "host": "n5"},
        "remap pending": {"alertname": "GpuRowRemapPending", **warning, "gpu_uuid": "GPU-5", "host": "n5"},
        "node down": {"alertname": "NodeDown", **critical, "host": "n3"},
        "exporter there": {"alertname": "ExporterAbsent", **warning, **down},
        "rank there": {"alertname": "RankSilent", **critical, "run_id": "r6", "rank": "1", "host": "n3"},
        "maintenance": {"alertname": "NodeMaintenance", "severity": "info", "host": "n4"},
        "lost in maintenance": {"alertname": "GpuDown", **critical, **drained, "uuid": "GPU-4", "gpu_uuid": "GPU-4"},
        "down in maintenance": {"alertname": "NodeDown", **critical, "host": "n4"},
        "port in maintenance": {"alertname": "InfinibandDiscards", **warning, "host": "n4", "device": "mlx5_0", "port": "1"},
        "driver hangs": {"alertname": "DriverSilent", **critical, "instance": "n6:9838", "host": "n6"},
        "collector hangs": {"alertname": "ExporterStale", **warning, "instance": "n6:9838", "host": "n6"},
        "switch": {"alertname": "NvswitchFatalError", **critical, "host": "n7"},
        "link to it": {"alertname": "NvlinkInactive", **warning, "gpu_uuid": "GPU-7", "host": "n7"},
        "made-up switch": {"alertname": "NvswitchFatalError", **critical, "host": "n11", "simulated": "true"},
        "real link there": {"alertname": "NvlinkInactive", **warning, "gpu_uuid": "GPU-11", "host": "n11", "simulated": "false"},
        "idle": {"alertname": "GpuAllocatedIdle", "severity": "info", "uuid": "GPU-8", "host": "n8"},
        "idle for long": {"alertname": "GpuAllocatedIdleLong", **warning, "uuid": "GPU-8", "host": "n8"},
        "no host": {"alertname": "ExporterSlow", **warning, "instance": "n10:9838"},
        "two labels": {"alertname": "TrainingStraggler", "rank": "2"},
        "no run": {"alertname": "ExporterCollectorFailing", **warning, "instance": "n1:9838"},
    }
    consequences = {
        *(
            "slow in that run",
            "no steps",
            "hang by power",
            "no steps, either",
            "silent, too",
            "one of them",
            "Xid of it",
            "heat of it",
            "rank on it",
            "another Xid",
            "wants a reset",
            "remap pending",
        ),
        *("exporter there", "rank there", "lost in maintenance", "down in maintenance", "port in maintenance"),
        *("collector hangs", "link to it", "idle"),
    }
    Alertmanager(endpoint(manager), valid_s=240).send(
        [
            Notice(alert=payload_alert(Alert(labels=label, annotations={}), starts_at_unix_ns=1_700_000_000_000_000_000))
            for label in labels.values()
        ],
        now_unix_ns=2_000_000_000_000_000_000,
    )
    result = httpx.get(f"{manager}/api/v2/alerts").json()
    # Then every fingerprint is the same
    assert {msgspec.json.encode(sorted(alert["labels"].items())): alert["fingerprint"] for alert in result} == {
        msgspec.json.encode(sorted(label.items())): fingerprint(label) for label in labels.values()
    }

    # and exactly the consequences are inhibited
    def inhibited() -> set[str]:
        answer = httpx.get(f"{manager}/api/v2/alerts").json()
        by_fingerprint = {fingerprint(label): name for name, label in labels.items()}
        assert {alert["status"]["state"] for alert in answer} <= {"active", "suppressed", "unprocessed"}
        if any(alert["status"]["state"] == "unprocessed" for alert in answer):
            return set()
        return {by_fingerprint[alert["fingerprint"]] for alert in answer if alert["status"]["inhibitedBy"]}

    assert wait_until(inhibited) == consequences

    # A maintenance silence can be set by hand, with the command of the runbook, the documentation and the example
    require_program("amtool")
    [in_runbook] = re.findall(r"`(amtool .*)`", runbooks()["NodeMaintenance"])
    [in_docs] = re.findall(r"^amtool .*", (CONFIG.parents[2] / "docs" / "alerts.md").read_text(), flags=re.MULTILINE)
    in_example = re.sub(r" \\\n  # +", " ", EXAMPLE).split("  #   amtool ")[1].partition("\n")[0]
    command = in_runbook.replace("HOST", "n9").replace("ALERTMANAGER_URL", manager)
    assert in_docs.replace("NODE ", "n9 ").replace("http://127.0.0.1:9093", manager) == command
    assert f"amtool {in_example}".replace("NODE ", "n9 ").replace("http://127.0.0.1:9093", manager) == command
    completed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    by_hand = fingerprint({"alertname": "NodeMaintenance", "severity": "info", "host": "n9"})

    def kept_back() -> bool:
        alerts = httpx.get(f"{manager}/api/v2/alerts").json()
        return any(by_hand in alert["status"]["inhibitedBy"] for alert in alerts if alert["labels"]["alertname"] == "GpuTooHot")

    assert wait_until(kept_back)
