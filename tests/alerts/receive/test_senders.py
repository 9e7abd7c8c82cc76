"""Authentication of senders: tokens, passwords, signatures, their rotation, and limits against guessing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec
import pytest
from standardwebhooks import Webhook
from tests.alerts.receive.test_receiver import PAYLOAD, Client, typed

from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.receive.config import ReceiveSection
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.receive.receiver_settings import accepted_credentials, load_credentials, receiver_settings
from rankscope.alerts.receive.web.app import ReceiverApp
from rankscope.alerts.receive.web.authentication import Credentials
from rankscope.base import followed_files
from rankscope.base.errors import InputError

BODY = msgspec.json.encode(PAYLOAD)
G = b"a secret of Grafana"
RIGHT, WRONG = "the right token of a sender", "another token of a sender"
OLD, NEW = (f"whsec_{base64.b64encode(bytes([number]) * 32).decode()}" for number in (1, 2))


@pytest.fixture
def client(inbox: Inbox) -> Client:
    return Client(ReceiverApp(inbox, show=lambda _: None, report=lambda _: None))


class GuardedReceiver:
    """A receiver that authenticates senders by the given ``receive`` section."""

    def __init__(self, folder: Path, inbox: Inbox, **receive: Any) -> None:
        self.reports: list[str] = []
        section = msgspec.convert(receive, ReceiveSection)
        self.credentials = load_credentials(section, folder=folder, report=self.reports.append)
        self.client = Client(ReceiverApp(inbox, show=lambda _: None, report=self.reports.append, credentials=self.credentials))

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


def test_only_the_bearer_token_authenticates(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "token").write_text(f"{RIGHT}\n")
    guarded = GuardedReceiver(tmp_path, inbox, bearer=[{"file": "token"}])
    assert guarded.post(bearer(RIGHT)) == 200
    wrong = [
        {},
        bearer(WRONG),
        bearer(""),
        bearer(f"{RIGHT} x"),
        basic(f"{RIGHT}:{RIGHT}"),
        basic(f":{RIGHT}"),
        {"Authorization": RIGHT},
    ]
    assert [guarded.post(headers) for headers in wrong] == [401] * len(wrong)
    assert guarded.list({}) == 401
    assert guarded.list(bearer(RIGHT)) == 200
    # health and metrics need no authentication
    for path in ("/-/healthy", "/-/ready", "/metrics"):
        assert guarded.client.request("GET", path).status_code == 200
    # and only the first failure is reported, without the secret
    assert len(guarded.reports) == 1
    assert WRONG not in guarded.reports[0]
    assert inbox.kept_deliveries()[0] == 1


def test_password_is_valid_only_for_its_user(tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = "a pass:word of a sender", "another password"
    monkeypatch.setenv("ONE", first)
    monkeypatch.setenv("TWO", second)
    users = [{"user": "am", "password": {"env": "ONE"}}, {"user": "grafana", "password": {"env": "TWO"}}]
    guarded = GuardedReceiver(tmp_path, inbox, basic=users)
    requests = [f"am:{first}", f"grafana:{second}", f"am:{second}", f"grafana:{first}", "am", "", "am:"]
    assert [guarded.post(basic(text)) for text in requests] == [200, 200, *[401] * 5]
    strange: Any = {"Authorization": b"Basic \xe9\xe9"}
    assert guarded.post(strange) == 401


def test_standard_webhooks_signatures_are_verified(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "old").write_text(OLD)
    (tmp_path / "new").write_text(NEW)
    guarded = GuardedReceiver(tmp_path, inbox, webhook_secrets=[{"file": "old"}, {"file": "new"}])
    assert guarded.post(signed(OLD)) == 200
    assert guarded.post(signed(NEW, id_="msg_2")) == 200
    assert guarded.post(signed(NEW, BODY + b" ")) == 401  # another body
    assert guarded.post(signed(NEW, age_s=400)) == 401  # a replay attack
    assert guarded.post(signed(NEW) | {"webhook-id": "msg_3"}) == 401
    assert guarded.post({}) == 401
    # a repeated delivery counts once
    assert guarded.post(signed(OLD)) == 200
    assert inbox.kept_deliveries()[0] == 2
    # and while one secret is being replaced its last value is valid
    (tmp_path / "new").write_text("whsec_")
    assert [guarded.post(signed(secret)) for secret in (OLD, NEW)] == [200, 200]
    assert "stays in use" in guarded.reports[-1]


def test_grafana_signatures_are_verified(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "secret").write_text(G.decode())
    guarded = GuardedReceiver(tmp_path, inbox, grafana_secrets=[{"file": "secret"}])
    assert guarded.post(grafana(G)) == 200
    assert guarded.post(grafana(b"h" * 16)) == 401
    assert guarded.post(grafana(G, b"{}")) == 401
    # with a timestamp, an old signature is refused
    timed = GuardedReceiver(tmp_path, inbox, grafana_secrets=[{"file": "secret"}], grafana_timestamp_header="X-Grafana-Time")
    now = int(time.time())
    requests = [grafana(G, at=str(now)), grafana(G, at=str(now - 400)), grafana(G, at="soon"), grafana(G)]
    assert [timed.post(headers) for headers in requests] == [200, 401, 401, 401]


def test_a_secret_is_changed_without_a_restart(tmp_path: Path, inbox: Inbox) -> None:
    token = tmp_path / "token"
    token.write_text("the first token of a sender")
    guarded = GuardedReceiver(tmp_path, inbox, bearer=[{"file": "token"}])
    token.write_text("the second token of a sender")
    assert [guarded.post(bearer(item)) for item in ("the first token of a sender", "the second token of a sender")] == [401, 200]
    # while the file is missing, the last token stays valid
    token.unlink()
    assert guarded.post(bearer("the second token of a sender")) == 200
    assert "stays in use" in guarded.reports[-1]


@pytest.mark.parametrize(
    ("receive", "why"),
    [
        ({"bearer": [{"file": "nowhere"}]}, "No such file"),
        ({"bearer": [{"env": "NOT_SET_ANYWHERE"}]}, "not set"),
        ({"webhook_secrets": [{"file": "short"}]}, "24 to 64 bytes"),
        ({"basic": [{"user": "a", "password": {"file": "empty"}}]}, "empty"),
        ({"bearer": [{"file": "guessed"}]}, "shorter than 16"),
        ({"basic": [{"user": "a", "password": {"file": "guessed"}}]}, "shorter than 16"),
        ({"grafana_secrets": [{"file": "guessed"}]}, "shorter than 16"),
    ],
)
def test_invalid_secret_is_a_startup_error(tmp_path: Path, receive: dict[str, Any], why: str) -> None:
    (tmp_path / "short").write_text("whsec_c2hvcnQ=")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "guessed").write_text("fifteen letters")
    with pytest.raises(InputError, match=why) as caught:
        load_credentials(msgspec.convert(receive, ReceiveSection), folder=tmp_path, report=lambda _: None)
    assert not any(secret in str(caught.value) for secret in ("c2hvcnQ", "fifteen"))


def test_duplicate_authorization_header_is_refused(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "token").write_text(RIGHT)
    guarded = GuardedReceiver(tmp_path, inbox, bearer=[{"file": "token"}])
    twice: Any = [("Authorization", f"Bearer {WRONG}"), ("Authorization", f"Bearer {RIGHT}")]
    assert guarded.post(twice) == 401


@pytest.mark.slow
def test_guesses_never_lock_out_the_right_token(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "token").write_text(RIGHT)
    (tmp_path / "grafana").write_text(G.decode())
    guarded = GuardedReceiver(tmp_path, inbox, bearer=[{"file": "token"}], grafana_secrets=[{"file": "grafana"}])
    for _ in range(50):
        assert guarded.post(bearer(WRONG)) == guarded.post(grafana(b"h" * 16)) == guarded.post({}) == 401
        assert guarded.post(bearer(RIGHT)) == guarded.post(grafana(G)) == guarded.list(bearer(RIGHT)) == 200
    # and guesses do not fill the log
    assert len(guarded.reports) == 1


def test_body_is_read_only_from_senders_with_valid_looking_credentials(tmp_path: Path, inbox: Inbox) -> None:
    for name, secret in (("token", RIGHT), ("signed", NEW), ("grafana", G.decode())):
        (tmp_path / name).write_text(secret)
    guarded = GuardedReceiver(
        tmp_path,
        inbox,
        bearer=[{"file": "token"}],
        webhook_secrets=[{"file": "signed"}],
        grafana_secrets=[{"file": "grafana"}],
        grafana_timestamp_header="X-Grafana-Time",
    )
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        read.append(BODY)
        yield BODY

    now = int(time.time())
    strangers = [
        {},
        bearer(WRONG),
        signed(OLD, age_s=400),
        signed(OLD) | {"webhook-signature": "v1,none"},
        signed(OLD) | {"webhook-timestamp": ""},
        grafana(b"h" * 16),
        grafana(b"h" * 16, at=str(now - 400)),
        grafana(b"h" * 16, at=str(now)) | {"X-Grafana-Alerting-Signature": "none"},
    ]
    for headers in strangers:
        assert guarded.client.request("POST", "/webhook", body(), headers).status_code == 401
        assert guarded.client.request("GET", "/deliveries", body(), headers).status_code == 401
    assert read == []
    for headers, status in ((signed(OLD), 401), (grafana(b"h" * 16, at=str(now)), 401), (signed(NEW), 200)):
        assert guarded.client.request("POST", "/webhook", body(), headers).status_code == status
    assert read == [BODY] * 3


def test_a_hung_file_system_blocks_neither_health_checks_nor_senders(
    tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(RIGHT)
    guarded = GuardedReceiver(tmp_path, inbox, bearer=[{"file": "token"}])
    monkeypatch.setattr(followed_files, "PATIENCE_S", 0.05)
    answers = threading.Event()
    read_again = Secret.read

    def hang(secret: Secret) -> str:
        answers.wait(60)
        return read_again(secret)

    monkeypatch.setattr(Secret, "read", hang)

    async def course() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded.client.app), base_url="http://127.0.0.1") as client:
            posts = [
                asyncio.create_task(client.post("/webhook", content=BODY, headers=typed(bearer(token))))
                for token in (RIGHT, WRONG)
            ]
            healthy = await client.get("/-/healthy")
            status_codes = [(await post).status_code for post in posts]
            answers.set()
            return [healthy.status_code, *status_codes]

    assert asyncio.run(course()) == [200, 200, 401]


@pytest.mark.parametrize(
    ("listen", "receive", "file", "why"),
    [
        ("0.0.0.0:9099", "", "", "where anyone could send"),
        ("127.0.0.1:9099", "", '[[target]]\nname = "chat"\nurl = "http://h/"\n', "every user of this machine"),
        ("127.0.0.1:9099", 'runs = ["."]', '[[action]]\nalert = "TrainingHang"\ndo = "dump"\n', "every user of this machine"),
        ("0.0.0.0:9099", 'bearer = [{ file = "token" }]', "", "unencrypted"),
        (":9099", 'basic = [{ user = "a", password = { file = "token" } }]', "", "unencrypted"),
    ],
)
def test_unsafe_settings_are_refused(tmp_path: Path, listen: str, receive: str, file: str, why: str) -> None:
    (tmp_path / "token").write_text(RIGHT)
    with pytest.raises(click.UsageError, match=why):
        accepted(tmp_path, f'[receive]\nlisten = "{listen}"\n{receive}\n{file}')


@pytest.mark.parametrize(
    "receive",
    [
        'listen = "127.0.0.1:9099"\nbearer = [{ file = "token" }]',
        'listen = ":9099"\nbearer = [{ file = "token" }]\ntls_cert = "cert.pem"\ntls_key = "key.pem"',
        'listen = ":9099"\ngrafana_secrets = [{ file = "token" }]',
    ],
)
def test_settings_with_protected_credentials_are_accepted(tmp_path: Path, receive: str) -> None:
    (tmp_path / "token").write_text(RIGHT)
    assert accepted(tmp_path, f'[receive]\n{receive}\n[[target]]\nname = "chat"\nurl = "http://h/"\n').required


def accepted(folder: Path, text: str) -> Credentials:
    (folder / "alerts.toml").write_text(text)
    chosen = receiver_settings(folder / "alerts.toml", listen=None, runs=(), dashboard_url=None, state=None, out=None)
    return accepted_credentials(chosen, report=pytest.fail)


def test_receiver_without_credentials_refuses_requests_of_web_pages(client: Client) -> None:
    body = msgspec.json.encode(PAYLOAD)
    refused: list[tuple[dict[str, str], int]] = [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:9099"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:9099"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=application/json"}, 415),
    ]
    for headers, status in refused:
        assert client.request("POST", "/webhook", body, headers).status_code == status, headers
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        assert client.request("GET", "/deliveries", headers=headers).status_code == 403
    for headers in ({"Host": "localhost:9099"}, {"Host": "[::1]:9099"}, {"Content-Type": "Application/JSON; charset=utf-8"}):
        assert client.request("POST", "/webhook", body, headers).status_code == 200
    assert client.request("GET", "/deliveries").json()["total"] == 3


def test_receiver_with_credentials_accepts_any_host_but_no_web_page(tmp_path: Path, inbox: Inbox) -> None:
    (tmp_path / "token").write_text(RIGHT)
    guarded = GuardedReceiver(tmp_path, inbox, bearer=[{"file": "token"}])
    assert guarded.post(bearer(RIGHT) | {"Host": "receiver.example"}) == 200
    assert guarded.post(bearer(RIGHT) | {"Origin": "https://receiver.example"}) == 403
    assert guarded.post(bearer(RIGHT) | {"Content-Type": "text/plain"}) == 415
