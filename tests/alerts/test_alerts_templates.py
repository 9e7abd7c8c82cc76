"""What Slack, Teams, PagerDuty and others are told: everything that matters, and nothing that a hostile text could do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.local_http import answering, respond
from tests.webhook_receiver import about, notice

from rankscope.alerts.alert import Notice
from rankscope.alerts.apprise_courier import AppriseCourier, text_message
from rankscope.alerts.secret import Secret
from rankscope.alerts.target import Target
from rankscope.alerts.templates import TEMPLATES

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
    """Every string in it, keys left out."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", ["slack", "teams", "pagerduty"])
def test_each_says_what_matters(name: Any) -> None:
    body = msgspec.json.decode(TEMPLATES[name](payload(notice(2, more=FULL)), "key"))
    everything = "\n".join(texts(body)) + str(body.get("payload", {}).get("custom_details", ""))
    assert everything.count("Two & <three>") + everything.count("Two &amp; &lt;three&gt;") == (2 if name == "pagerduty" else 1)
    missing = [word for word in SAID if word not in everything.replace("'rank': '2'", "rank 2")]
    assert missing == []
    assert "rankscope.example/run/r1?rank=2" in everything
    assert "https://wiki.example/TrainingStraggler.md" in everything


@pytest.mark.parametrize("name", ["slack", "teams", "pagerduty"])
def test_an_end_is_told_as_such(name: Any) -> None:
    firing, ended = (TEMPLATES[name](payload(notice(2, ended=ended)), "key") for ended in (False, True))
    assert firing != ended
    assert b"resolve" in ended.lower()
    assert b"resolve" not in firing.lower()


def test_slack_takes_no_markup_from_an_alert() -> None:
    body = msgspec.json.decode(TEMPLATES["slack"](payload(notice(2, more=dict.fromkeys(FULL, HOSTILE))), ""))
    for block in body["blocks"]:
        assert len(block["text"]["text"]) <= 3000
        if block["text"]["type"] == "mrkdwn":
            # No angle bracket, so no link and no mention; the only code is ours.
            assert not set("<>") & set(block["text"]["text"])
            assert all("`" not in code.strip("`") for code in re.findall(r"next: (.*)", block["text"]["text"]))
    assert "<" not in body["text"]


def test_teams_reads_no_text_of_an_alert_as_markdown() -> None:
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
    # what is no address is no link
    assert card["actions"] == []


def test_pagerduty_joins_beginning_and_end_by_the_fingerprint() -> None:
    one = notice(2, more=FULL)
    began, ended = (
        msgspec.json.decode(TEMPLATES["pagerduty"](payload(told), "r0uting")) for told in (one, notice(2, ended=True))
    )
    assert (began["event_action"], ended["event_action"]) == ("trigger", "resolve")
    assert began["dedup_key"] == ended["dedup_key"] == one.fingerprint
    assert began["routing_key"] == ended["routing_key"] == "r0uting"
    assert began["payload"]["severity"] == "warning"
    assert began["payload"]["timestamp"] == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize("name", ["slack", "teams"])
@given(text=st.text(max_size=4000), names=st.lists(st.sampled_from(sorted(FULL)), max_size=10), count=st.integers(1, 16))
@settings(max_examples=15)
def test_no_body_is_too_large_and_every_body_is_json(name: Any, text: str, names: list[str], count: int) -> None:
    for message in about(*(notice(rank, more=dict.fromkeys(names, text * 20)) for rank in range(count))):
        body = TEMPLATES[name](message.body, "")
        assert len(body) <= 20_000
        decoded = msgspec.json.decode(body)
        if name == "slack":
            assert len(decoded["blocks"]) <= 50
            assert all(0 < len(block["text"]["text"]) <= 3000 for block in decoded["blocks"])


def test_sixteen_full_alerts_fit_everywhere() -> None:
    full = [notice(rank, more={**FULL, "evidence": "x" * 300}) for rank in range(16)]
    for message in about(*full):
        for name in ("slack", "teams"):
            assert len(TEMPLATES[name](message.body, "")) <= 20_000
        assert len(text_message(message.body)["body"].encode()) <= 20_000


def apprise_target(url: str) -> Target:
    return Target(name="chat", key="target-chat", label="chat", url=Secret(value=url), template="apprise", timeout_s=20.0)


@pytest.mark.slow
def test_apprise_speaks_to_the_rest(tmp_path: Path) -> None:
    taken: list[Any] = []

    def take(request: Any, body: bytes) -> None:
        taken.append(msgspec.json.decode(body))
        respond(request, 200)

    with answering(take) as url:
        courier = AppriseCourier(apprise_target(url.replace("http://", "json://")))
        assert courier.attempt("msg_1", payload(notice(2, more=FULL))).kind == "delivered"
    [told] = taken
    assert "warning TrainingStraggler" in told["title"]
    assert all(word in told["message"] for word in SAID)
    refused = AppriseCourier(apprise_target("nosuchservice://s3cr3t")).attempt("msg_1", payload(notice(2)))
    assert (refused.kind, "s3cr3t" in refused.reason) == ("dead", False)
