"""What is news, what is asked of runs, and where alerts go on to; nobody is asked, and nothing is sent."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from rankscope.alerts.alert import fingerprint, rfc3339, unix_ns
from rankscope.alerts.outbox import Outbox
from rankscope.alerts.receiver_config import ActionRule, ReceiverConfig, ReceiveSection, Route, action_rate, load_config
from rankscope.alerts.receiving import inbox as inbox_module
from rankscope.alerts.receiving.counters import Counters
from rankscope.alerts.receiving.episodes import Episode, next_episode
from rankscope.alerts.receiving.facts import Facts
from rankscope.alerts.receiving.forwarding import Forwarding
from rankscope.alerts.receiving.inbox import Inbox
from rankscope.alerts.receiving.known_runs import KnownRuns, RunName, UnknownRunError
from rankscope.alerts.receiving.notification import MAX_ALERTS, read_notification
from rankscope.alerts.receiving.running import ways
from rankscope.alerts.receiving.worker import Policy, Worker
from rankscope.alerts.retrying import Judgement
from rankscope.alerts.sender import Sender
from rankscope.alerts.target import TemplateName, webhook_target
from rankscope.alerts.targets import load_targets
from rankscope.alerts.templates import TEMPLATES
from rankscope.analysis.result import Verdict
from rankscope.runs.errors import InputError
from rankscope.runs.records import RunInfo
from rankscope.runs.writer import create_run

S = 10**9
STRAGGLER = {"alertname": "TrainingStraggler", "severity": "warning", "run_id": "r1", "run": "llama", "rank": "1"}


class Heard:
    """A worker over an inbox and an outbox in memory, at a time that the test says."""

    def __init__(self, *rules: ActionRule) -> None:
        self.inbox = Inbox(None, report=lambda _: None)
        self.delivered: list[bytes] = []
        outbox = Outbox(None)
        chat = webhook_target("http://127.0.0.1:1/")
        self.sender = Sender(outbox, [chat], report=pytest.fail, courier=lambda _: self)
        self.now_s = 1_000_000.0
        self.worker = Worker(
            self.inbox,
            policy=Policy(repeat_after_s=4 * 3600, rules=rules),
            counters=Counters(),
            report=pytest.fail,
            forwarding=Forwarding(outbox, targets={chat.name: 16}, routes=()),
            clock=lambda: int(self.now_s * S),
        )

    def alert(self, status: str = "firing", *, starts: int = 900_000, **labels: str) -> dict[str, Any]:
        return {"status": status, "labels": STRAGGLER | labels, "startsAt": rfc3339(starts * S)}

    def hear(self, *alerts: dict[str, Any], after_s: float = 0) -> list[tuple[str, dict[str, str]]]:
        """Status and annotations of the messages that ``chat`` gets because of a delivery."""
        self.now_s += after_s
        body = msgspec.json.encode({"version": "4", "status": "firing", "alerts": alerts})
        assert self.inbox.accept(body, key=None, now_unix_ns=int(self.now_s * S))
        while self.worker.run_due():
            pass
        self.delivered.clear()
        self.sender.run_due()
        payloads = [msgspec.json.decode(body) for body in self.delivered]
        return [(one["status"], one["annotations"]) for payload in payloads for one in payload["alerts"]]

    def attempt(self, message_id: str, payload: bytes) -> Judgement:
        """Deliver a message, as a courier."""
        self.delivered.append(payload)
        return Judgement(kind="delivered")


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_a_change_is_news_and_a_repetition_is_not(heard: Heard) -> None:
    firing, resolved = heard.alert(), heard.alert("resolved")
    assert len(heard.hear(firing)) == 1
    assert heard.hear(firing, after_s=60) == []
    assert heard.hear(firing, after_s=3600) == []
    assert [status for status, _ in heard.hear(resolved, after_s=60)] == ["resolved"]
    assert heard.hear(resolved, after_s=60) == []


def test_why_an_alert_ended_goes_on(heard: Heard) -> None:
    heard.hear(heard.alert())
    over = {**heard.alert("resolved"), "annotations": {"ended_because": "the run is over"}}
    assert heard.hear(over, after_s=60) == [("resolved", {"ended_because": "the run is over"})]


def test_what_still_fires_is_told_again_after_hours(heard: Heard) -> None:
    heard.hear(heard.alert())
    (again,) = heard.hear(heard.alert(), after_s=4 * 3600 + 1)
    assert again == ("firing", {"reminder": "1", "updated_at": "1970-01-12T17:46:41.000Z"})
    assert heard.hear(heard.alert(), after_s=60) == []
    assert len(heard.hear(heard.alert(), after_s=4 * 3600 + 1)) == 1


def test_two_alertmanagers_say_everything_twice_and_not_quite_alike(heard: Heard) -> None:
    assert len(heard.hear(heard.alert(starts=900_010))) == 1
    assert heard.hear(heard.alert(starts=900_000), after_s=1) == []
    assert len(heard.hear(heard.alert("resolved", starts=900_000), after_s=60)) == 1
    assert heard.hear(heard.alert("resolved", starts=900_010), after_s=1) == []
    # a copy of the beginning that comes after the end
    assert heard.hear(heard.alert(starts=900_000), after_s=1) == []


def test_an_alert_that_comes_back_is_news_also_with_the_time_it_had(heard: Heard) -> None:
    told = []
    for number, starts in enumerate((900_000, 950_000, 950_000)):
        told += heard.hear(heard.alert(starts=starts), after_s=3600)
        told += heard.hear(heard.alert("resolved", starts=starts), after_s=3600)
        assert len(told) == 2 * (number + 1)


def test_the_end_of_what_nobody_heard_of_is_not_told(heard: Heard) -> None:
    assert heard.hear(heard.alert("resolved")) == []


def test_of_one_delivery_with_an_alert_twice_the_last_counts(heard: Heard) -> None:
    heard.hear(heard.alert(), heard.alert("resolved", starts=900_001))
    episode = heard.inbox.episode(fingerprint(STRAGGLER))
    assert episode is not None
    assert episode.status == "resolved"


@given(
    some.lists(some.tuples(some.sampled_from(["firing", "resolved"]), some.integers(0, 3), some.integers(0, 7200)), max_size=20)
)
def test_nothing_is_told_twice_and_no_end_without_a_beginning(deliveries: list[tuple[Any, int, int]]) -> None:
    known: Episode | None = None
    now = 10**9
    told: list[str] = []
    for status, starts, pause in deliveries:
        now += pause
        known, what = next_episode(
            known, fingerprint="f", status=status, starts_unix_ns=starts * S, now_unix_ns=now * S, repeat_after_s=1e9
        )
        if what is not None:
            told.append(status)
    assert told == ["firing", "resolved"] * (len(told) // 2) + ["firing"] * (len(told) % 2)


def test_an_alert_waits_for_a_verdict_and_not_for_long(heard: Heard) -> None:
    heard.worker._analyst = SimpleNamespace(facts=lambda _: None)  # type: ignore[assignment]
    # given more alerts than are looked at in one round, about runs that nobody has analysed yet, and one about none
    for number in range(70):
        assert heard.hear(heard.alert(run_id=str(number))) == []
    # then that one is told at once
    assert len(heard.hear(heard.alert(run_id="", run="", alertname="GpuDown"))) == 1
    assert heard.hear(heard.alert("resolved", run_id="0"), after_s=10) == []  # it does not overtake its beginning
    # when the time for a verdict is over
    heard.now_s += 10.0
    while heard.worker.run_due():
        pass
    heard.sender.run_due()
    # then all of them go out without
    told = [alert for body in heard.delivered for alert in msgspec.json.decode(body)["alerts"]]
    without = [alert for alert in told if alert["annotations"].get("no_verdict") == "the run was not analysed within 20 s"]
    # the first ended before anybody heard of it
    assert {alert["labels"]["run_id"] for alert in without} == {str(number) for number in range(1, 70)}


@pytest.mark.parametrize("name", ["slack", "teams", "pagerduty"])
def test_people_are_told_the_verdict_and_what_was_asked(name: TemplateName) -> None:
    heard = Heard(CAPTURE)
    verdict = Verdict(
        kind="straggler", rank=1, cause="input", summary="Rank 1 on host n1 waits for its data.", next=["look there"]
    )
    facts = Facts(run_id="r1", simulated=True, coverage=1.0, verdict=verdict, hosts={1: "n1"}, gpu_uuids={1: "GPU-1"})
    heard.worker._analyst = SimpleNamespace(facts=lambda _: facts)  # type: ignore[assignment]
    heard.hear(heard.alert())
    said = TEMPLATES[name](heard.delivered[0], "key").decode()
    for words in (
        "[simulated GPUs] Rank 1 on host n1 waits for its data.",
        "n1",
        "GPU-1",
        "input",
        "look there",
        "what it shows follows",
    ):
        assert words in said, words


CAPTURE = ActionRule(alert="TrainingStraggler", do="capture", at_most="1/10min per run", at_most_overall="2/1h")


def test_a_capture_is_wanted_once_in_an_episode() -> None:
    heard = Heard(CAPTURE)
    ((_, words),) = heard.hear(heard.alert())
    assert "3 of its next steps" in words["capture_asked"]
    (action,) = heard.inbox.actions("wanted")
    assert (action.kind, action.run_id, action.steps) == ("capture", "r1", 3)
    heard.hear(heard.alert(), after_s=5 * 3600)
    assert len(heard.inbox.actions("wanted")) == 1
    # and again when it comes back
    heard.hear(heard.alert("resolved"), after_s=60)
    heard.hear(heard.alert(starts=990_000), after_s=7200)
    assert len(heard.inbox.actions("wanted")) == 2


def test_captures_are_so_many_per_run_and_in_all() -> None:
    heard = Heard(CAPTURE)
    told = heard.hear(*(heard.alert(rank=str(rank)) for rank in range(3)))
    assert sum("follows" in words["capture_asked"] for _, words in told) == 1
    assert sum("at most 1/10min per run" in words["capture_asked"] for _, words in told) == 2
    asked = [words["capture_asked"] for run in "bcd" for _, words in heard.hear(heard.alert(run_id=run))]
    assert ["follows" in one for one in asked] == [True, False, False]
    assert asked[1].endswith("at most 2/1h")
    # later there is room again
    ((_, words),) = heard.hear(heard.alert(run_id="e"), after_s=3601)
    assert "follows" in words["capture_asked"]


def test_nothing_is_asked_for_other_alerts_nor_without_a_run() -> None:
    heard = Heard(CAPTURE)
    assert len(heard.hear(heard.alert(alertname="GpuDown"), heard.alert(run_id="", run=""))) == 2
    assert heard.inbox.actions("wanted") == []


def test_routes_say_who_is_told() -> None:
    routes = (
        Route(match={"severity": "critical"}, targets=["pager", "chat"]),
        Route(match={"alertname": ["TrainingStraggler", "Other"], "team": ""}, targets=["chat"]),
        Route(match={"alertname": "Quiet"}, targets=[]),
    )
    forwarding = Forwarding(Outbox(None), targets={"chat": 16, "pager": 1}, routes=routes)
    assert forwarding.targets_of({"severity": "critical"}) == ["pager", "chat"]
    assert forwarding.targets_of(STRAGGLER) == ["chat"]
    assert forwarding.targets_of(STRAGGLER | {"team": "a"}) == ["chat", "pager"]
    assert forwarding.targets_of({"alertname": "Quiet"}) == []


def test_a_thousand_alerts_at_once_are_all_told(heard: Heard) -> None:
    told = heard.hear(*(heard.alert(rank=str(rank)) for rank in range(1000)))
    assert len(told) == 1000


GRAFANA = {
    "receiver": "hooks", "status": "firing", "orgId": 1, "version": "1", "groupKey": "{}:{}", "truncatedAlerts": 2, "title": "t",
    "state": "alerting", "message": "m", "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {},
    "externalURL": "http://grafana/",
    "alerts": [{
        "status": "firing", "labels": {"alertname": "Hot", "grafana_folder": "gpu"}, "annotations": {"summary": "85 °C"},
        "startsAt": "2024-05-01T12:00:00+02:00", "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://grafana/a",
        "fingerprint": "c6eadffa33fcdf37", "silenceURL": "http://grafana/s", "dashboardURL": "http://grafana/d", "panelURL": "",
        "values": {"B": 85.0, "C": None}, "valueString": "[ var='B' value=85 ]", "imageURL": "http://grafana/i",
    }],
}  # fmt: skip


def test_what_grafana_sends_has_the_same_shape() -> None:
    said = read_notification(msgspec.json.encode(GRAFANA))
    assert (said.source, said.truncated_alerts) == ("grafana", 2)
    (alert,) = said.alerts
    assert alert.starts_unix_ns == 1_714_557_600 * S
    assert alert.annotations == {
        "summary": "85 °C",
        "values": "[ var='B' value=85 ]",
        "silence_url": "http://grafana/s",
        "dashboard_url": "http://grafana/d",
    }


def test_what_a_sender_leaves_out_is_tolerated() -> None:
    body = {"version": "4", "status": "firing", "alerts": [{"status": "firing", "labels": {}, "annotations": None}]}
    (alert,) = read_notification(msgspec.json.encode(body)).alerts
    assert (alert.annotations, alert.starts_unix_ns) == ({}, 0)
    many = {**body, "alerts": body["alerts"] * (MAX_ALERTS + 5)}  # type: ignore[operator]
    assert read_notification(msgspec.json.encode(many)).truncated_alerts == 5


@pytest.mark.parametrize(
    "text", ["", "now", "9" * 5000, "2024-13-01T00:00:00Z", "\x00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"]
)
def test_a_moment_that_is_none_is_unknown(heard: Heard, text: str) -> None:
    assert unix_ns(text) == 0
    # and harms nobody
    assert len(heard.hear({**heard.alert(), "startsAt": text})) == 1


def test_runs_are_found_by_what_they_say_and_not_by_path(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name, start in (("a", 1), ("b", 2)):
        create_run(root / name, RunInfo(run_id=f"id-{name}", name="llama", start_unix_ns=start))
    create_run(tmp_path / "outside", RunInfo(run_id="outside", name="outside", start_unix_ns=1))
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "inside").symlink_to(root / "a")
    (root / "circle").symlink_to(root / "circle")
    (root / "damaged").mkdir()
    (root / "damaged" / "run.json").write_bytes(b"{")
    runs = KnownRuns([root])
    assert runs.find(RunName("id-a", "")).path == root / "a"
    assert runs.find(RunName("", "llama")).path == root / "b"  # the last started
    for name in ("outside", "../outside", str(root / "a"), "a", "link", "\x00", "id-a/../id-b"):
        with pytest.raises(UnknownRunError, match="not under"):
            runs.find(RunName(name, ""))
    # a copy that says to be the same run: neither is believed
    create_run(root / "c", RunInfo(run_id="id-a", name="llama", start_unix_ns=1))
    with pytest.raises(UnknownRunError, match="2 folders"):
        runs.find(RunName("id-a", ""))


GOOD = """
[receive]
listen = "0.0.0.0:9099"
repeat_after = "1h"
bearer = [{ env = "TOKEN" }]

[[target]]
name = "pager"
url = "http://127.0.0.1:1/"

[[route]]
match = { severity = "critical" }
targets = ["pager"]

[[action]]
alert = "TrainingStraggler"
do = "capture"
steps = 5
"""


def load(tmp_path: Path, text: str) -> ReceiverConfig:
    (tmp_path / "alerts.toml").write_text(text)
    return load_config(tmp_path / "alerts.toml")


def test_a_file_is_understood(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert config.receive.listen == "0.0.0.0:9099"
    assert config.targets == ["pager"]
    assert config.routes[0].matches({"severity": "critical"})
    assert config.actions[0].steps == 5


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[receive]", "[recieve]", "no such section: recieve"),
        ("listen =", "listne =", "receive: no such setting: listne; did you mean listen?"),
        ('{ env = "TOKEN" }', '"secret"', "receive.bearer[0]: expected a table with env, file, found a text in quotes"),
        ("[[route]]", "[route]", "route: expected a list, found a table; begin each with [[route]]"),
        ('{ env = "TOKEN" }', '{ env = "TOKEN", file = "x" }', "receive.bearer[0]"),
        ('"1h"', '"soon"', "receive: 'soon' is not a duration"),
        ('do = "capture"', 'do = "rm -rf"', "action[0].do: 'rm -rf' is none of capture, dump"),
        ("steps = 5", "steps = 5000", "action[0].steps"),
        ("steps = 5", 'at_most = "often"', "action[0]: 'often' is not a rate"),
        ('targets = ["pager"]', 'targets = ["nobody"]', "route[0].targets: there is no [[target]] of the name 'nobody'"),
        ("steps = 5", "steps = [", "not TOML"),
        ("[receive]", '[receive]\ntls_cert = "x"', "tls_cert and tls_key"),
        ("0.0.0.0:9099", "9099", "receive: '9099' is not HOST:PORT"),
        ("[receive]", '[receive]\ndashboard_url = "ftp://x"', "https://host:port"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "alerts.toml" in str(caught.value)


def test_a_file_that_is_none_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alerts.toml")
    for path in (tmp_path / "alerts.toml", tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError):
            load_config(path)


def test_the_file_of_the_documentation_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "receiver.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    monkeypatch.setenv("RANKSCOPE_WEBHOOK_SECRET", "whsec_" + "c2VjcmV0" * 6)
    for name, secret in (("receiver.token", "t"), ("chat.url", "https://chat.example/hook"), ("pager.key", "k")):
        (tmp_path / name).write_text(secret)
    config = load(tmp_path, text)
    assert [rule.do for rule in config.actions] == ["capture", "dump"]
    assert ways(config.receive, folder=tmp_path, report=pytest.fail).any
    assert [target.name for target in load_targets(tmp_path / "alerts.toml")] == config.targets
    # and it says of every field of the receiver's own sections what it is for
    for section in (ReceiveSection, ActionRule):
        for name in section.__struct_fields__:
            assert re.search(rf"\b{name}\b", page), name


def test_rates() -> None:
    assert [action_rate(text) for text in ("1/10min per run", "30/h", "2/1h", "5/s")] == [(1, 600), (30, 3600), (2, 3600), (5, 1)]
    for text in ("", "1", "1/0s", "-1/s", "1/10", "1/10min per day"):
        with pytest.raises(ValueError, match="is not a rate"):
            action_rate(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_an_inbox_has_one_receiver_and_outlives_it(folder: Path) -> None:
    with Inbox(folder, report=pytest.fail) as inbox:
        inbox.accept(b"{}", key="k", now_unix_ns=1)
        with pytest.raises(InputError, match="another receiver"):
            Inbox(folder, report=pytest.fail)
        assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o600"}
    with Inbox(folder, report=pytest.fail) as inbox:
        assert [one.body for one in inbox.waiting(9)] == [b"{}"]
        assert not inbox.accept(b"{}", key="k", now_unix_ns=2)


def test_a_damaged_inbox_is_set_aside_and_a_newer_one_left_alone(folder: Path) -> None:
    said: list[str] = []
    Inbox(folder, report=said.append).close()
    (folder / "inbox.sqlite").write_bytes(b"no database at all" * 1000)
    with Inbox(folder, report=said.append) as inbox:
        assert inbox.kept() == (0, [])
        with inbox.transaction() as db:
            db.execute("PRAGMA user_version = 9")
    assert len(said) == 1
    assert "damaged" in said[0]
    assert (folder / "inbox.sqlite.bad").read_bytes().startswith(b"no database")
    with pytest.raises(InputError, match="newer version"):
        Inbox(folder, report=said.append)


def test_an_inbox_forgets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_KEPT", 5)
    monkeypatch.setattr(inbox_module, "MAX_KNOWN", 8)
    with Inbox(folder, report=pytest.fail) as inbox:
        for number in range(1, 13):
            inbox.accept(b"x" * 1000, key=str(number), now_unix_ns=number)
        with inbox.transaction() as db:
            db.execute("UPDATE delivery SET done_unix_ns = 0 WHERE number < 12")
        inbox.prune(now_unix_ns=1)
        # bodies of the last five, ids of the last eight
        assert [one.number for one in inbox.kept()[1]] == [8, 9, 10, 11, 12]
        assert [inbox.accept(b"x", key=str(number), now_unix_ns=1) for number in (4, 5)] == [True, False]
        inbox.prune(now_unix_ns=2 * 86400 * S)
        assert inbox.accept(b"x", key="6", now_unix_ns=1)  # known for a day only
        assert [one.number for one in inbox.waiting(9)] == [12, 13, 14]
