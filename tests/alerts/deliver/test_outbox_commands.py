"""The webhook commands: the test alert, and the listing and replay of waiting and dead messages."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.command_line import Cli, one_line_error
from tests.webhook_receiver import WebhookReceiver, about, notice

from rankscope.alerts.alert import rfc3339
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.store.database import AlertStore
from rankscope.alerts.store.folders import STORE_FILE
from rankscope.alerts.watch import running_watcher

SECRET = "s3cr3t"


@pytest.fixture
def config(tmp_path: Path, receiver: WebhookReceiver) -> Path:
    """Configuration of two targets: a webhook whose address is in a file, and Slack at the same receiver."""
    (tmp_path / "url").write_text(f"{receiver.url}/{SECRET}\n")
    path = tmp_path / "alerts.toml"
    path.write_text(
        '[[target]]\nname = "hook"\nurl_file = "url"\n[[target]]\nname = "chat"\nurl_file = "url"\ntemplate = "slack"\n'
    )
    return path


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """State folder of an outbox with one dead, one delivered and one waiting message."""
    path = tmp_path / "state" / "rankscope" / "watch-1"
    box = Outbox(AlertStore(path))
    box.put(about(*(notice(1, run=f"run\x1b[2J{number}") for number in range(3))))
    for state in ("dead", "delivered"):
        message = box.claim("hook")
        assert message is not None
        box.record(message, state, reason="refused with 404" if state == "dead" else "")
    box.store.close()
    return path


def test_test_alert_is_marked_simulated_and_resolves(cli: Cli, receiver: WebhookReceiver, config: Path) -> None:
    completed = cli("alerts", "test-webhook", "--config", config)
    assert completed.returncode == 0, completed.stderr
    splits = [line.split(": ")[:3] for line in completed.stdout.splitlines()]
    assert splits == [[name, status, "delivered"] for name in ("hook", "chat") for status in ("firing", "resolved")]
    assert SECRET not in completed.stdout + completed.stderr
    firing = msgspec.json.decode(receiver.bodies[0])["alerts"][0]
    assert firing["annotations"]["simulated"] == "true"
    assert "test" in firing["annotations"]["summary"]


def test_refused_test_alert_exits_with_status_1(cli: Cli, receiver: WebhookReceiver, config: Path) -> None:
    receiver.behaviour = 503
    completed = cli("alerts", "test-webhook", "--config", config, "--target", "chat", "--format", "json")
    assert completed.returncode == 1
    trial = msgspec.json.decode(completed.stdout)
    assert (trial["schema"], trial["ok"]) == ("rankscope.test-webhook/1", False)
    assert [(item["target"], item["status"], item["answer"]) for item in trial["results"]] == [("chat", "firing", "answered 503")]
    assert len(receiver.tried) == 1


@pytest.mark.parametrize(
    ("options", "status"),
    [([], 2), (["--target", "x"], 2), (["--webhook", "nonsense"], 2), (["--config", "/nonexistent"], 3)],
)
def test_invalid_test_webhook_options_are_usage_errors(cli: Cli, options: list[str], status: int) -> None:
    completed = cli("alerts", "test-webhook", *options)
    assert completed.returncode == status
    assert "Traceback" not in completed.stderr


def test_missing_apprise_error_names_the_extra(cli_process: Cli, tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "url").write_text("json://127.0.0.1/")
    path = tmp_path / "alerts.toml"
    path.write_text('[[target]]\nname = "chat"\nurl_file = "url"\ntemplate = "apprise"\n')
    (tmp_path / "without" / "sitecustomize.py").write_text("import sys; sys.modules['apprise'] = None\n")
    completed = cli_process("alerts", "test-webhook", "--config", path, env={"PYTHONPATH": str(tmp_path / "without")})
    assert "pip install 'rankscope[apprise]'" in one_line_error(completed, 4)


def test_the_outbox_is_listed_shown_replayed_and_emptied(cli: Cli, box: Path) -> None:
    env = {"XDG_STATE_HOME": str(box.parents[1])}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        completed: subprocess.CompletedProcess[str] = cli("alerts", "outbox", *words, env=env)
        assert "Traceback" not in completed.stderr
        assert "\x1b" not in completed.stdout
        return completed

    listing = msgspec.json.decode(run("list", "--format", "json").stdout)["outboxes"][0]
    assert (listing["path"], listing["counts"]) == (str(box / STORE_FILE), {"dead": 1, "delivered": 1, "waiting": 1})
    dead, delivered, waiting = (message["id"] for message in listing["messages"])
    lines = run("list").stdout.splitlines()
    assert lines[0] == f"{box / STORE_FILE}: 1 dead, 1 delivered, 1 waiting"
    shown = [rfc3339(listing["messages"][0]["created_unix_ns"]), dead, "hook", "FIRING", "TrainingStraggler", "run�[2J0"]
    assert all(fact in lines[1] for fact in (*shown, "rank 1", "2023-11-14T22:13:20.000Z", "1 attempt", "404"))
    assert lines[1].split()[0] == "dead"
    about = listing["messages"][1]
    assert all(fact in about["about"] for fact in ("FIRING", "TrainingStraggler", "run�[2J1", "rank 1"))
    assert about["starts_at"] == "2023-11-14T22:13:20.000Z"
    assert (about["labels"]["alertname"], about["labels"]["rank"]) == ("TrainingStraggler", "1")
    assert waiting not in run("list", "--only", "dead").stdout
    assert '"groupKey"' in run("show", dead).stdout
    assert run("show", "msg_none").returncode == 1
    assert run("replay", delivered).returncode == 1
    assert run("replay", "--dead").stdout.startswith("1 message ")
    assert run("drop").returncode == 2
    assert run("drop", waiting).stdout.startswith("1 message ")
    assert Outbox(AlertStore(box)).counts() == {("hook", "waiting"): 1, ("hook", "delivered"): 1}


@pytest.mark.parametrize(
    "body", [b"{torn \x1b[2J", b"\xff", b"[1]", b'"\xff"', b'{"version":"4","groupKey":"g","status":"firing","alerts":[]}']
)
def test_overwritten_message_body_is_still_shown(cli: Cli, box: Path, body: bytes) -> None:
    with sqlite3.connect(box / STORE_FILE) as database:
        database.execute("UPDATE messages SET body = ?", (body,))
        [(id_,), *_] = database.execute("SELECT id FROM messages").fetchall()
    database.close()
    for form in ("text", "json"):
        for command in (["list"], ["show", id_]):
            completed = cli("alerts", "outbox", *command, "--state", box, "--format", form)
            assert (completed.returncode, completed.stderr) == (0, "")
            assert "\x1b" not in completed.stdout
            if form == "json":
                assert msgspec.json.decode(completed.stdout)


def test_missing_outbox_is_an_error_only_if_named(cli: Cli, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    completed = cli("alerts", "outbox", "list", "--format", "json", env=env)
    assert (completed.returncode, msgspec.json.decode(completed.stdout)["outboxes"]) == (0, [])
    missing = tmp_path / "missing"
    completed = cli("alerts", "outbox", "list", "--state", missing, env=env)
    assert str(missing) in one_line_error(completed)
    assert not missing.exists()


def test_watcher_delivers_replayed_messages_to_configured_targets(
    cli: Cli, make_run: Any, receiver: WebhookReceiver, config: Path, tmp_path: Path
) -> None:
    run = make_run(slow=2, ended=True)
    watch = ("alerts", "watch", run.path, "--once", "--config", config, "--state", tmp_path / "state")
    # Given a receiver that refused every message the first time
    receiver.behaviour = 422
    completed = cli(*watch)
    assert completed.returncode == 1
    assert "hook, chat" in completed.stderr.splitlines()[-1]
    assert SECRET not in completed.stderr
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    # When the messages are replayed, the next watcher sends them and nothing else
    receiver.behaviour = 200
    assert cli("alerts", "outbox", "replay", "--dead", "--state", tmp_path / "state").returncode == 0
    completed = cli(*watch)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert len(receiver.accepted) == 2


@pytest.mark.slow
def test_missing_secret_blocks_no_other_target(
    cli: Cli, make_run: Any, receiver: WebhookReceiver, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_watcher, "ONCE_DRAIN_S", 2.0)
    run = make_run(slow=2, ended=True)
    config.write_text(f'{config.read_text()}[[target]]\nname = "late"\nurl_file = "away"\n')
    completed = cli("alerts", "watch", run.path, "--once", "--config", config)
    assert len(receiver.accepted) == 2
    assert completed.returncode == 1
    first, *_, last = completed.stderr.splitlines()
    assert f"target late: {config.parent}/away: No such file or directory" in first
    assert last.endswith(' late"')
