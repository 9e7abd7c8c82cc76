"""Bodies for Slack, Teams, PagerDuty and others: they hold every important fact, and hostile texts have no effect."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.local_http import answering, respond
from tests.webhook_receiver import about, notice

from rankscope.alerts.alert import Alert, host_of
from rankscope.alerts.deliver.apprise_courier import AppriseCourier, text_message
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.deliver.templates import TEMPLATES
from rankscope.alerts.deliver.templates.alert_texts import alert_texts
from rankscope.alerts.payload import Notice, PayloadAlert, payload_alert

FULL = {
    "summary": "[simulated GPUs] Rank 2 makes the others wait.",
    "simulated": "true",
    "gpu_uuid": "GPU-22",
    "cause": "input",
    "explained_by": "cpu_contention",
    "cost": "31.00 USD",
    "gpu_hours_lost": "12.4",
    "next": "look at the data loader\nrankscope capture runs/llama --steps 3",
    "dashboard_url": "https://rankscope.example/run/r1?rank=2&x=1",
    "runbook_url": "https://wiki.example/TrainingStraggler.md",
    "description": "Two & <three>",
}
SAID = ("warning", "rank 2", "GPU-22", "input", "cpu_contention", "31.00 USD", "look at the data loader", "simulated", "r1")
HOSTILE = "<!channel> <https://evil.example|click> *b* `x` <script>alert(1)</script> {{DATE(2020)}} [a](javascript:x) @all &amp;"


def payload(*notices: Notice) -> bytes:
    [message] = about(*notices)
    return message.body


def texts(value: Any) -> list[str]:
    """Return every string in ``value``, without keys."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", ["slack", "teams", "pagerduty"])
def test_every_template_contains_the_key_facts(name: Any) -> None:
    body = msgspec.json.decode(TEMPLATES[name](payload(notice(2, more=FULL)), "key"))
    everything = "\n".join(texts(body)) + str(body.get("payload", {}).get("custom_details", ""))
    assert everything.count("Two & <three>") + everything.count("Two &amp; &lt;three&gt;") == (2 if name == "pagerduty" else 1)
    missing = [word for word in SAID if word not in everything.replace("'rank': '2'", "rank 2")]
    assert missing == []
    assert "rankscope.example/run/r1?rank=2" in everything
    assert "https://wiki.example/TrainingStraggler.md" in everything


@pytest.mark.parametrize(
    ("labels", "host"),
    [
        ({"instance": "n1:9838"}, "n1"),
        ({"instance": "n1"}, "n1"),
        ({"instance": "[fd00::1]:9838"}, "[fd00::1]"),
        ({"instance": "10.0.0.7:9838", "host": "n1"}, "n1"),
    ],
)
def test_host_is_derived_from_instance_with_or_without_port(labels: dict[str, str], host: str) -> None:
    alert = PayloadAlert(
        status="firing", labels={"alertname": "ExporterSlow", **labels}, annotations={}, starts_at="2026-01-01T00:00:00Z"
    )

    assert (host_of(labels), dict(alert_texts(alert, 100).place)["host"]) == (host, host)


@pytest.mark.parametrize("name", ["slack", "teams", "pagerduty"])
def test_resolved_alert_is_marked_resolved(name: Any) -> None:
    firing, ended = (TEMPLATES[name](payload(notice(2, ended=ended)), "key") for ended in (False, True))
    assert b"resolve" in ended.lower()
    assert b"resolve" not in firing.lower()


def rendered(*notices: Notice, template: str = "slack") -> Any:
    """Return the decoded body that a target receives."""
    return msgspec.json.decode(TEMPLATES[template](payload(*notices), "key"))  # type: ignore[index]


def lines_of(body: Any) -> list[str]:
    """Return every line that Slack displays."""
    return [line for block in body["blocks"] for line in block["text"]["text"].splitlines()]


def test_slack_escapes_markup_of_an_alert() -> None:
    texts_of_all = {**dict.fromkeys(FULL, HOSTILE), "next": f"{HOSTILE}\nrankscope {HOSTILE}"}
    body = rendered(notice(2, more=texts_of_all))
    marked_up = [block["text"] for block in body["blocks"] if block["text"]["type"] != "plain_text"]
    # Only the command is markup: a code span that its text cannot close, without mentions or links.
    [markup] = marked_up
    assert (markup["type"], markup["verbatim"]) == ("mrkdwn", True)
    assert re.fullmatch(r"`rankscope [^`<>]*`", markup["text"])
    assert f"next: {HOSTILE}" in lines_of(body)
    assert all(len(block["text"]["text"]) <= 3000 for block in body["blocks"])
    assert body["mrkdwn"] is False
    assert "<" not in body["text"]


def test_commands_are_formatted_as_code_and_prose_as_text() -> None:
    steps = "py-spy dump --pid 7   (rank 2, on node1)\nOn node1: dmesg | grep -i xid\nrankscope hang runs/llama"
    body = rendered(notice(2, more={"next": steps}))
    assert "`py-spy dump --pid 7  # rank 2, on node1`\n`rankscope hang runs/llama`" in texts(body)
    assert "next: On node1: dmesg | grep -i xid" in lines_of(body)
    card = rendered(notice(2, more={"next": steps}), template="teams")["attachments"][0]["content"]
    code = [run["text"] for block in card["body"] for run in block["inlines"] if run.get("fontType") == "monospace"]
    assert code == ["py-spy dump --pid 7  # rank 2, on node1", "rankscope hang runs/llama"]


def test_overlong_commands_are_omitted_whole() -> None:
    body = rendered(notice(2, more={"next": "\n".join(f"rankscope {number}{'&' * 700}" for number in range(8))}))
    assert all(line.endswith("`") for line in lines_of(body) if line.startswith("`"))


@pytest.mark.parametrize("template", ["slack", "teams", "pagerduty"])
def test_run_id_distinguishes_runs_of_one_name(template: str) -> None:
    names = ("train-20231114-221320-7f53a2", "train-20231115-221320-00c3d1")
    first, second = (rendered(notice(2, run=run_id, name="train"), template=template) for run_id in names)
    for body, run_id, not_this in ((first, *names), (second, *reversed(names))):
        output = "\n".join(texts(body))
        assert f"run train ({run_id}), rank 2" in output
        assert not_this not in output


def test_pagerduty_names_alert_and_run() -> None:
    text = rendered(notice(2, run="train-1", name="train"), template="pagerduty")["payload"]
    assert text["summary"] == "TrainingStraggler, run train: rank 2"
    assert text["group"] == "train-1"


def test_hang_headline_names_the_culprit_rank() -> None:
    hang = {
        "culprit": "3",
        "culprit_host": "node2",
        "collective": "all_reduce #17",
        "chain": "rank 0 waits for rank 3 in all_reduce #17",
    }
    stalled = notice(None, alertname="TrainingHang", name="llama", more=hang)
    assert rendered(stalled)["text"] == "FIRING warning TrainingHang: run llama, rank 3, host node2"
    result = rendered(stalled, template="pagerduty")["payload"]
    assert (result["component"], result["source"]) == ("rank 3", "node2")
    for body in (rendered(stalled), result, rendered(stalled, template="teams")):
        assert all(any(words in text for text in texts(body)) for words in ("all_reduce #17", hang["chain"]))
    crowd = notice(None, more={"culprit": ",".join(map(str, range(40)))})
    assert rendered(crowd)["text"] == "FIRING warning TrainingStraggler: run r1, ranks 0, 1, 2, 3 and 36 more"


def test_alert_without_a_run_names_no_run() -> None:
    full = Alert(labels={"alertname": "DiskFull"}, annotations={"summary": "full"})
    disk = Notice(alert=payload_alert(full, starts_at_unix_ns=0))
    assert [line.strip() for line in lines_of(rendered(disk))] == ["⚪ FIRING DiskFull", "full"]
    text = rendered(disk, template="pagerduty")["payload"]
    assert (text["summary"], text["source"]) == ("DiskFull: full", "rankscope")
    assert "component" not in text


@pytest.mark.parametrize(
    ("ended", "more", "begins"),
    [
        (False, {}, "🟠 FIRING warning"),
        (False, {"updated_at": "2023-11-14T22:14:00.000Z"}, "🟠 UPDATE warning"),
        (False, {"capture_outcome": "shown", "updated_at": "2023-11-14T22:14:00.000Z"}, "🟠 FOLLOW-UP warning"),
        (True, {"dump_outcome": "shown"}, "🟠 FOLLOW-UP warning"),
        (False, {"reminder": "1", "updated_at": "2023-11-14T22:14:00.000Z"}, "🟠 STILL FIRING warning"),
        (True, {}, "✅ RESOLVED warning"),
        (True, {"ended_because": "the run ended early"}, "⬜ ENDED (the run ended early) warning"),
    ],
)
def test_heading_shows_the_status_change(ended: bool, more: dict[str, str], begins: str) -> None:
    first_notice = notice(2, ended=ended, more=more)
    assert lines_of(rendered(first_notice))[0].startswith(begins)
    card = rendered(first_notice, template="teams")["attachments"][0]["content"]["body"][0]["inlines"][0]
    assert card["text"].startswith(begins[2:])
    assert (card["color"] == "good") == ("RESOLVED" in begins)


def test_pagerduty_shows_why_an_alert_ended() -> None:
    event = rendered(notice(2, ended=True, more={"ended_because": "the run is over"}), template="pagerduty")
    assert event["event_action"] == "resolve"
    assert event["payload"]["custom_details"]["ended because"] == "the run is over"
    assert "ENDED (the run is over)" in event["payload"]["summary"]


@pytest.mark.parametrize("template", ["slack", "teams", "pagerduty"])
def test_start_time_and_duration_are_shown(template: str) -> None:
    assert any("since 2023-11-14 22:13:20 UTC" in text for text in texts(rendered(notice(2), template=template)))
    ended = texts(rendered(notice(2, ended=True), template=template))
    assert any("2023-11-14 22:13:20 to 2023-11-14 22:14:20 UTC, 60 s" in text for text in ended)


def test_chat_shows_only_the_deciding_evidence() -> None:
    pieces = [f"figure {number} ({'x' * 90})" for number in range(17)]
    more = {"evidence": "; ".join(pieces), "dashboard_url": FULL["dashboard_url"]}
    for template in ("slack", "teams"):
        output = "\n".join(texts(rendered(notice(2, more=more), template=template)))
        assert f"{pieces[2]} … and 14 more figures on the page" in output
        assert pieces[3] not in output
    assert pieces[5] in rendered(notice(2, more=more), template="pagerduty")["payload"]["custom_details"]["evidence"]
    assert msgspec.json.decode(payload(notice(2, more=more)))["alerts"][0]["annotations"]["evidence"] == more["evidence"]


def test_teams_renders_alert_text_as_plain_text() -> None:
    body = msgspec.json.decode(TEMPLATES["teams"](payload(notice(2, more=dict.fromkeys(FULL, HOSTILE))), ""))
    [attachment] = body["attachments"]
    card = attachment["content"]
    assert (body["type"], attachment["contentType"], card["type"]) == (
        "message",
        "application/vnd.microsoft.card.adaptive",
        "AdaptiveCard",
    )
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert {run["type"] for block in card["body"] for run in block["inlines"]} == {"TextRun"}
    assert "{{" not in "".join(texts(card))
    # an invalid address becomes no link
    assert card["actions"] == []


def test_pagerduty_joins_firing_and_resolved_by_fingerprint() -> None:
    first_notice = notice(2, more=FULL)
    began, ended = (
        msgspec.json.decode(TEMPLATES["pagerduty"](payload(what), "r0uting")) for what in (first_notice, notice(2, ended=True))
    )
    assert (began["event_action"], ended["event_action"]) == ("trigger", "resolve")
    assert began["dedup_key"] == ended["dedup_key"] == first_notice.alert.fingerprint
    assert began["routing_key"] == ended["routing_key"] == "r0uting"
    assert began["payload"]["severity"] == "warning"
    assert began["payload"]["timestamp"] == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize("name", ["slack", "teams"])
@given(text=st.text(max_size=4000), names=st.lists(st.sampled_from(sorted(FULL)), max_size=10), count=st.integers(1, 16))
def test_every_body_is_json_within_the_size_limit(name: Any, text: str, names: list[str], count: int) -> None:
    for message in about(*(notice(rank, more=dict.fromkeys(names, text * 20)) for rank in range(count))):
        body = TEMPLATES[name](message.body, "")
        assert len(body) <= 20_000
        decoded = msgspec.json.decode(body)
        if name == "slack":
            assert len(decoded["blocks"]) <= 50
            assert all(0 < len(block["text"]["text"]) <= 3000 for block in decoded["blocks"])


def test_sixteen_full_alerts_fit_every_template() -> None:
    full = [notice(rank, more={**FULL, "evidence": "x" * 300}) for rank in range(16)]
    for message in about(*full):
        for name in ("slack", "teams"):
            assert len(TEMPLATES[name](message.body, "")) <= 20_000
        assert len(text_message(message.body)["body"].encode()) <= 20_000


def apprise_target(url: str) -> Target:
    return Target(name="chat", label="chat", url=Secret(value=url), template="apprise", timeout_s=20.0)


@pytest.mark.slow
@pytest.mark.full
def test_apprise_delivers_to_other_services(tmp_path: Path) -> None:
    taken: list[Any] = []

    def take(request: Any, body: bytes) -> None:
        taken.append(msgspec.json.decode(body))
        respond(request, 200)

    with answering(take) as url:
        courier = AppriseCourier(apprise_target(url.replace("http://", "json://")))
        assert courier.attempt("msg_1", payload(notice(2, more=FULL))).kind == "delivered"
    [message] = taken
    assert "warning TrainingStraggler" in message["title"]
    assert all(word in message["message"] for word in SAID)
    refused = AppriseCourier(apprise_target("nosuchservice://s3cr3t")).attempt("msg_1", payload(notice(2)))
    assert (refused.kind, "s3cr3t" in refused.reason) == ("dead", False)
