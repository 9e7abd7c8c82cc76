"""A receiver as a real process: killed while senders send, with a full disk, and with hostile input."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import socket
import subprocess
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.alerts.receive.receiver_process import (
    CONFIG,
    TOKEN,
    ListeningTarget,
    ReceiverProcess,
    firing,
    send_while_killed,
    straggler,
)
from tests.alerts.receive.test_refusals import largest_alert
from tests.command_line import Cli
from tests.monitoring_servers import alertmanager_server
from tests.waiting import wait_until

from rankscope.alerts.receive.web.bodies import MAX_BODY_BYTES

pytestmark = pytest.mark.slow


def test_acknowledged_alerts_are_delivered_once_despite_kills(receiver: ReceiverProcess, target: ListeningTarget) -> None:
    course = send_while_killed(receiver, target, deliveries=20, senders=4, kills=2, pause_s=lambda: random.uniform(0.05, 0.4))
    assert course.acknowledged == 20
    assert course.ids_of_alerts == {str(number): 1 for number in range(20)}


HOSTILE = [
    b"",
    b"\x00" * 1000,
    b"[" * 200_000,
    b'{"a":' * 50_000,
    b"\xff\xfe\x00{}",
    b'{"version":"4","status":"firing","alerts":[{"status":"firing","labels":{"a":"\\ud800"}}]}',
    b'{"version":"4","status":"firing","alerts":null}',
    b'{"version":4,"status":"firing","alerts":[]}',
    msgspec.json.encode({"version": "4", "status": "firing", "alerts": [{"status": "firing", "labels": {"a": {"b": "c"}}}]}),
    b"1e999999999",
]
STRANGE_LABELS = [
    {"alertname": "<script>alert(1)</script>", "run_id": "../../../etc/passwd"},
    {"alertname": "\x00\x1b[2J\r\n", "rank": "-1", "run": "a\x00b"},
    {"alertname": "x" * 200_000},
    {f"label{number}": "y" * 100 for number in range(5_000)},
    {"": "", "run_id": "%00", "rank": "9" * 5_000},
    {"alertname": "\u202egnp.exe", "host": "'; DROP TABLE delivery; --"},
]


def test_hostile_payloads_are_refused_or_forwarded_without_harm(
    receiver: ReceiverProcess, target: ListeningTarget, tmp_path: Path
) -> None:
    for body in HOSTILE:
        assert receiver.send(body).status_code == 400, body[:50]
    assert receiver.send(b" " * (MAX_BODY_BYTES + 1)).status_code == 413
    for labels in STRANGE_LABELS:
        alert = {"status": "firing", "labels": labels, "startsAt": "0001-01-01T00:00:00Z", "annotations": {"verdict": "<b>"}}
        assert receiver.post(alert).status_code == 200
    bomb = [{"status": "firing", "labels": {"n": str(number)}} for number in range(10_000)]
    assert receiver.post(*bomb).status_code == 200
    # then it still serves, forwards at most 2,000 alerts of one delivery, and counts those beyond
    assert receiver.post(straggler("r1")).status_code == 200
    wait_until(lambda: any(alert["labels"].get("run_id") == "r1" for alert in target.alerts))
    assert receiver.count("truncated_alerts_total") == 8_000
    wait_until(lambda: len(target.alerts) == len(STRANGE_LABELS) + 2_000 + 1)
    shown = receiver.shown.read_text()
    assert "\x1b" not in shown
    assert "\x00" not in shown
    listing = receiver.deliveries()
    assert listing["total"] == len(STRANGE_LABELS) + 2
    assert "Traceback" not in receiver.errors.read_text()


def test_full_disk_refuses_deliveries_and_loses_none_accepted(tmp_path: Path, target: ListeningTarget) -> None:
    # given a process whose files cannot grow beyond 600 kB
    receiver = ReceiverProcess(tmp_path, CONFIG.format(url=target.url))
    receiver.limit_files(600_000)
    receiver.start()
    accepted = []
    try:
        for number in range(200):
            alert = firing(number) | {"annotations": {"text": "x" * 20_000}}
            answer = receiver.post(alert)
            if answer.status_code == 200:
                accepted.append(str(number))
            else:
                assert answer.status_code == 503
                assert "retry-after" in answer.headers
                break
        else:
            pytest.fail("it never was full")
        assert httpx.get(f"{receiver.url}/-/ready").status_code == 503
        assert httpx.get(f"{receiver.url}/-/healthy").status_code == 200
    finally:
        receiver.kill()
    errors = receiver.errors.read_text()
    assert all(fact in errors for fact in ("alerts.sqlite: cannot be used", "503", "not_stored"))
    # when there is room again, everything that was accepted is forwarded
    receiver.limit_files(None)
    receiver.start()
    try:
        wait_until(lambda: {alert["labels"]["number"] for alert in target.alerts} == set(accepted))
        assert receiver.post(firing(1000)).status_code == 200
    finally:
        receiver.kill()


@pytest.mark.parametrize("sent", [b"", b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["idle", "slow heads"])
def test_many_connections_block_neither_alerts_nor_probes(receiver: ReceiverProcess, sent: bytes) -> None:
    with contextlib.ExitStack() as crowd:
        for _ in range(200):
            crowd.enter_context(socket.create_connection(("127.0.0.1", receiver.port))).sendall(sent)
        assert httpx.get(f"{receiver.url}/-/healthy", timeout=120).status_code == 200
        assert receiver.post(firing(1)).status_code == 200


def test_rankscope_sender_is_authenticated_by_signature(tmp_path: Path, target: ListeningTarget, cli: Cli) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"whsec_{base64.b64encode(bytes(32)).decode()}")
    config = '[receive]\nwebhook_secrets = [{ file = "secret" }]\n'
    sender = tmp_path / "sender.toml"
    with ReceiverProcess(tmp_path, config + CONFIG.format(url=target.url)) as receiver:
        sender.write_text(CONFIG.format(url=f"{receiver.url}/webhook") + 'secrets = [{ file = "secret" }]\n')
        completed = cli("alerts", "test-webhook", "--config", sender)
        assert completed.returncode == 0, completed.stderr
        assert receiver.count("deliveries_total") == 2
        secret.write_text(f"whsec_{base64.b64encode(b'x' * 32).decode()}")
        assert receiver.post(firing(1)).status_code == 401
        assert httpx.get(f"{receiver.url}/deliveries").status_code == 401


def test_a_missing_share_and_secret_do_not_stop_the_other_targets(tmp_path: Path, target: ListeningTarget) -> None:
    late = '[[target]]\nname = "late"\nurl_file = "away/url"\n'
    receive = '[receive]\nruns = ["away"]\n[[action]]\nalert = "TrainingStragler"\ndo = "dump"\n'
    config = receive + CONFIG.format(url=target.url) + late
    settings = "import rankscope.alerts.deliver.retrying as retrying; retrying.FIRST_PAUSE_S = 0.1"
    with ReceiverProcess(tmp_path, config, settings=settings) as receiver:
        receiver.post(straggler("r1"))
        wait_until(lambda: target.alerts)
        (alerts,) = target.alerts
        assert f"{tmp_path.name}/away" in alerts["annotations"]["no_verdict"]
        # then a missing file is used once it exists
        (tmp_path / "away").mkdir()
        (tmp_path / "away" / "url").write_text(target.url)
        wait_until(lambda: len(target.alerts) == 2)
    # and all problems of the configuration were reported at the start
    doubts = [
        ("alerts.toml", "action[0].alert", "TrainingStragler", "TrainingStraggler?"),
        (f"{tmp_path}/away", "No such file or directory"),
        ("late", f"{tmp_path}/away/url", "No such file or directory"),
    ]
    for line, facts in zip(receiver.errors.read_text().splitlines(), doubts, strict=False):
        assert all(fact in line for fact in facts), line
    # a mistake that waiting cannot fix is an error
    receiver.arguments += ["--runs", str(tmp_path / "alerts.toml" / "runs")]
    completed = subprocess.run(receiver.command, capture_output=True, text=True, check=False)
    assert (completed.returncode, len(completed.stderr.splitlines())) == (3, 1)


LOOKED_THROUGH = """
import os, sys, threading
import msgspec

def below(kind):
    return [kind, *(two for one in kind.__subclasses__() for two in below(one))]

def start(thread, begin=threading.Thread.start):
    if thread.name != name:
        return begin(thread)
    looked = []
    sys.setprofile(lambda frame, *_: looked.append(frame.f_code.co_name))
    for kind in below(msgspec.Struct):
        if kind.__module__.startswith("rankscope."):
            msgspec.json.Decoder(kind)  # of each that the receiver knows
    sys.setprofile(None)
    # it asks for the annotations of a type the first time only
    os._exit("get_class_annotations" in looked)

name = os.environ["NAME"]
import rankscope.cli.main
threading.Thread.start = start
rankscope.cli.main.main()
"""


@pytest.mark.parametrize(("config", "thread"), [(CONFIG, "rankscope-send-chat"), ("", "worker")])
def test_message_types_are_inspected_before_threads_decode(tmp_path: Path, config: str, thread: str) -> None:
    # msgspec inspects types at their first use; two threads doing so at once crashed the process
    receiver = ReceiverProcess(tmp_path, config.format(url="http://127.0.0.1:1/"))
    receiver.launch = ["-c", LOOKED_THROUGH]
    completed = subprocess.run(receiver.command, capture_output=True, text=True, check=False, env={**os.environ, "NAME": thread})
    assert (completed.returncode, completed.stderr) == (0, "")


ALERTMANAGER = """
route: {{receiver: rankscope, group_by: [alertname], group_wait: 100ms, group_interval: 100ms, repeat_interval: 1h}}
receivers:
  - name: rankscope
    webhook_configs:
      - url: {url}/webhook
        http_config: {{authorization: {{credentials: a token of Alertmanager}}}}
"""


@pytest.mark.full
def test_alert_from_two_alertmanagers_is_forwarded_once(tmp_path: Path, target: ListeningTarget) -> None:
    (tmp_path / "token").write_text("a token of Alertmanager")
    config = '[receive]\nbearer = [{ file = "token" }]\n'
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(ReceiverProcess(tmp_path, config + CONFIG.format(url=target.url)))
        settings = tmp_path / "alertmanager.yml"
        settings.write_text(ALERTMANAGER.format(url=receiver.url))
        managers = [stack.enter_context(alertmanager_server(tmp_path / name, settings)) for name in ("one", "two")]

        def tell(ends: str | None) -> None:
            alert = {"labels": {"alertname": "GpuDown", "gpu": "3"}, "startsAt": "2026-01-01T00:00:00Z"}
            for url in managers:
                alerts = [alert if ends is None else alert | {"endsAt": ends}]
                assert httpx.post(f"{url}/api/v2/alerts", json=alerts).is_success

        tell(None)
        wait_until(lambda: receiver.count("deliveries_total") >= 2)
        tell("2026-01-01T01:00:00Z")
        wait_until(lambda: receiver.count("deliveries_total") >= 4)
        wait_until(lambda: len(target.alerts) >= 2)
        assert receiver.count('alerts_total{what="repeated"}') >= 2
    assert [alert["status"] for alert in target.alerts] == ["firing", "resolved"]


INCIDENT = """
route: {{receiver: rankscope, group_by: [run_id], group_wait: 5s, group_interval: 5s, repeat_interval: 1h}}
receivers:
  - name: rankscope
    webhook_configs:
      - url: {url}/webhook
        max_alerts: 2000
        http_config: {{authorization: {{credentials: {token}}}}}
"""


@pytest.mark.full
def test_a_thousand_critical_alerts_of_one_run_are_all_delivered(tmp_path: Path, target: ListeningTarget) -> None:
    alert = largest_alert()
    alerts = [
        {
            "labels": alert["labels"] | {"rank": str(rank), "severity": "critical"},
            "annotations": alert["annotations"],
            "generatorURL": alert["generatorURL"],
        }
        for rank in range(1000)
    ]
    with ReceiverProcess(tmp_path, CONFIG.format(url=target.url)) as receiver:
        settings = tmp_path / "alertmanager.yml"
        settings.write_text(INCIDENT.format(url=receiver.url, token=TOKEN))
        with alertmanager_server(tmp_path / "one", settings) as url:
            assert httpx.post(f"{url}/api/v2/alerts", json=alerts, timeout=60).is_success
            wait_until(lambda: len({alert["labels"]["rank"] for alert in target.alerts}) == 1000)
        assert receiver.count("deliveries_total") == 1
        assert receiver.count("refused_total") == 0
    assert len(target.alerts) == 1000
    assert "refused" not in receiver.errors.read_text()


def test_receiver_serves_many_connections_with_few_descriptors(tmp_path: Path, target: ListeningTarget) -> None:
    settings = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    with contextlib.ExitStack() as crowd, ReceiverProcess(tmp_path, CONFIG.format(url=target.url), settings=settings) as receiver:
        for _ in range(200):
            crowd.enter_context(socket.create_connection(("127.0.0.1", receiver.port)))
        for number in range(5):
            wait_until(lambda number=number: receiver.post(firing(number)).status_code == 200)
        wait_until(lambda: {alert["labels"]["number"] for alert in target.alerts} == set("01234"))
        assert receiver.count("writable") == 1
