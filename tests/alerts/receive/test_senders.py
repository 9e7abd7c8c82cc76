"""Authentication of senders: tokens, passwords, signatures, their rotation, and limits against guessing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook
from tests.alerts.receive.test_receiver import PAYLOAD, Client

from rankscope.alerts.receive import authentication
from rankscope.alerts.receive.app import ReceiverApp
from rankscope.alerts.receive.config import ReceiveSection
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.receive.setup import load_credentials
from rankscope.base.errors import InputError

BODY = msgspec.json.encode(PAYLOAD)
OLD, NEW = (f"whsec_{base64.b64encode(bytes([number]) * 32).decode()}" for number in (1, 2))


class Asked:
    """A receiver that authenticates senders by the given ``receive`` section."""

    def __init__(self, folder: Path, inbox: Inbox, **receive: Any) -> None:
        self.said: list[str] = []
        section = msgspec.convert(receive, ReceiveSection)
        self.credentials = load_credentials(section, folder=folder, report=self.said.append)
        self.client = Client(ReceiverApp(inbox, show=lambda _: None, report=self.said.append, credentials=self.credentials))

    def post(self, headers: dict[str, str], body: bytes = BODY) -> int:
        return self.client.request("POST", "/webhook", body, headers).status_code

    def list(self, headers: dict[str, str]) -> int:
        return self.client.request("GET", "/deliveries", headers=headers).status_code


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def basic(text: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def signed(secret: str, body: bytes = BODY, *, age_s: float = 0, id_: str = "msg_1") -> dict[str, str]:
    """Return the headers of a delivery signed with the reference implementation of Standard Webhooks."""
    at = datetime.now(tz=UTC) - timedelta(seconds=age_s)
    signature = Webhook(secret).sign(msg_id=id_, timestamp=at, data=body.decode())
    return {"webhook-id": id_, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}


def grafana(secret: bytes, body: bytes = BODY, *, at: str | None = None) -> dict[str, str]:
    covered = body if at is None else f"{at}:".encode() + body
    headers = {"X-Grafana-Alerting-Signature": hmac.new(secret, covered, hashlib.sha256).hexdigest()}
    return headers if at is None else headers | {"X-Grafana-Time": at}


def test_a_token_lets_in_and_nothing_else_does(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "token").write_text("right\n")
    asked = Asked(tmp_path, inbox, bearer=[{"file": "token"}])
    assert asked.post(bearer("right")) == 200
    wrong = [
        {},
        bearer("wrong"),
        bearer(""),
        bearer("right " + "x"),
        basic("right:right"),
        basic(":right"),
        {"Authorization": "right"},
    ]
    assert [asked.post(headers) for headers in wrong] == [401] * len(wrong)
    assert asked.list({}) == 401
    assert asked.list(bearer("right")) == 200
    # health and metrics need no authentication
    for path in ("/-/healthy", "/-/ready", "/metrics"):
        assert asked.client.request("GET", path).status_code == 200
    # and only the first failure is reported, without the secret
    assert len(asked.said) == 1
    assert "wrong" not in asked.said[0]
    assert inbox.kept()[0] == 1


def test_passwords_are_looked_up_with_their_users(tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "pass:word")
    monkeypatch.setenv("TWO", "other")
    users = [{"user": "am", "password": {"env": "ONE"}}, {"user": "grafana", "password": {"env": "TWO"}}]
    asked = Asked(tmp_path, inbox, basic=users)
    given = ["am:pass:word", "grafana:other", "am:other", "grafana:pass:word", "am", "", "am:"]
    assert [asked.post(basic(text)) for text in given] == [200, 200, *[401] * 5]
    strange: Any = {"Authorization": b"Basic \xe9\xe9"}
    assert asked.post(strange) == 401


def test_signatures_of_standard_webhooks(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "old").write_text(OLD)
    (tmp_path / "new").write_text(NEW)
    asked = Asked(tmp_path, inbox, webhook_secrets=[{"file": "old"}, {"file": "new"}])
    assert asked.post(signed(OLD)) == 200
    assert asked.post(signed(NEW, id_="msg_2")) == 200
    assert asked.post(signed(NEW, BODY + b" ")) == 401  # another body
    assert asked.post(signed(NEW, age_s=400)) == 401  # a replay attack
    assert asked.post(signed(NEW) | {"webhook-id": "msg_3"}) == 401
    assert asked.post({}) == 401
    # a repeated delivery counts once
    assert asked.post(signed(OLD)) == 200
    assert inbox.kept()[0] == 2
    # and while one secret is being replaced the other one is valid
    (tmp_path / "new").write_text("whsec_")
    assert [asked.post(signed(secret)) for secret in (OLD, NEW)] == [200, 401]


def test_signatures_of_grafana(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "secret").write_text("g")
    asked = Asked(tmp_path, inbox, grafana_secrets=[{"file": "secret"}])
    assert asked.post(grafana(b"g")) == 200
    assert asked.post(grafana(b"h")) == 401
    assert asked.post(grafana(b"g", b"{}")) == 401
    # with a timestamp, an old signature is refused
    timed = Asked(tmp_path, inbox, grafana_secrets=[{"file": "secret"}], grafana_timestamp_header="X-Grafana-Time")
    now = int(time.time())
    given = [grafana(b"g", at=str(now)), grafana(b"g", at=str(now - 400)), grafana(b"g", at="soon"), grafana(b"g")]
    assert [timed.post(headers) for headers in given] == [200, 401, 401, 401]


def test_a_secret_is_changed_without_a_restart(tmp_path: Path, inbox: Inbox) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    asked = Asked(tmp_path, inbox, bearer=[{"file": "token"}])
    token.write_text("second")
    assert [asked.post(bearer(one)) for one in ("first", "second")] == [401, 200]
    # while the file is missing, the last token stays valid
    token.unlink()
    assert asked.post(bearer("second")) == 200
    assert "stays in use" in asked.said[-1]


@pytest.mark.parametrize(
    ("receive", "why"),
    [
        ({"bearer": [{"file": "nowhere"}]}, "No such file"),
        ({"bearer": [{"env": "NOT_SET_ANYWHERE"}]}, "not set"),
        ({"webhook_secrets": [{"file": "short"}]}, "24 to 64 bytes"),
        ({"basic": [{"user": "a", "password": {"file": "empty"}}]}, "empty"),
    ],
)
def test_a_secret_that_is_none_is_an_error_at_the_start(tmp_path: Path, receive: dict[str, Any], why: str) -> None:
    (tmp_path / "short").write_text("whsec_c2hvcnQ=")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InputError, match=why) as caught:
        load_credentials(msgspec.convert(receive, ReceiveSection), folder=tmp_path, report=lambda _: None)
    assert "c2hvcnQ" not in str(caught.value)


def test_a_header_that_comes_twice_names_nobody(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "token").write_text("right")
    asked = Asked(tmp_path, inbox, bearer=[{"file": "token"}])
    twice: Any = [("Authorization", "Bearer wrong"), ("Authorization", "Bearer right")]
    assert asked.post(twice) == 401


def test_who_guesses_is_not_heard_for_a_while_and_told_to_come_again(
    tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("right")
    asked = Asked(tmp_path, inbox, bearer=[{"file": "token"}])
    now = [100.0]
    failures = authentication.Failures(asked.said.append, clock=lambda: now[0])
    monkeypatch.setattr(asked.client.app, "_failures", failures)
    given = [asked.post(bearer("wrong")) for _ in range(25)]
    assert given == [401] * 20 + [503] * 5
    # a correct token gets 503 as well, so that the sender retries
    assert asked.post(bearer("right")) == 503
    now[0] += 61.0
    assert asked.post(bearer("right")) == 200
    assert len(asked.said) == 2
    # but a sender with an unguessable secret is accepted, even from the same proxy's address
    for _ in range(20):
        asked.post(bearer("wrong"))
    (tmp_path / "long").write_text("r" * 24)
    (tmp_path / "signed").write_text(NEW)
    long = [{"file": "long"}]
    proxied = Asked(
        tmp_path,
        inbox,
        bearer=[{"file": "token"}, *long],
        basic=[{"user": "am", "password": one} for one in ({"file": "token"}, *long)],
        webhook_secrets=[{"file": "signed"}],
        grafana_secrets=[{"file": "token"}, *long],
    )
    monkeypatch.setattr(proxied.client.app, "_failures", failures)
    assert proxied.credentials.guessable == [str(tmp_path / "token")]
    heard = (bearer("r" * 24), basic(f"am:{'r' * 24}"), signed(NEW), grafana(b"r" * 24))
    assert [proxied.post(headers) for headers in heard] == [200] * 4
    guessed: tuple[dict[str, str], ...] = (
        bearer("right"),
        basic("am:right"),
        grafana(b"right"),
        bearer("wrong"),
        signed(OLD),
        {},
    )
    assert [proxied.post(headers) for headers in guessed] == [503] * 6
    # the number of addresses that are remembered is bounded
    for number in range(3000):
        failures.failed(str(number))
    assert len(failures._counted) == authentication.MAX_ADDRESSES
