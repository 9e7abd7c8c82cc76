"""Signatures, checked both ways with the reference implementation of Standard Webhooks; secrets read for each attempt."""

from __future__ import annotations

import base64
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import certifi
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError
from tests.alerts.deliver.sender_world import SECRET, SenderWorld
from tests.webhook_receiver import WebhookReceiver, about, answer_with, notice

from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.signing import SecretError, SignatureError, parse_secret, sign, verify

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))


def whsec(key: bytes) -> str:
    return "whsec_" + base64.b64encode(key).decode()


@given(body=st.text(), key=st.binary(min_size=24, max_size=64))
def test_standard_webhooks_library_verifies_our_signature(body: str, key: bytes) -> None:
    headers = sign([key], message_id="msg_1", timestamp_s=int(time.time()), body=body.encode())
    Webhook(whsec(key)).verify(body.encode(), headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(whsec(key)).verify(body.encode() + b" ", headers, json_parse=False)


@given(body=st.text(), key=st.binary(min_size=24, max_size=64))
def test_signature_of_standard_webhooks_library_is_verified(body: str, key: bytes) -> None:
    now = int(time.time())
    signature = Webhook(whsec(key)).sign("msg_1", datetime.fromtimestamp(now, UTC), body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": f"v1a,zzz v1,AAAA {signature}"}
    assert verify([OTHER, key], headers, body.encode(), now_s=now) == "msg_1"
    for changed in (
        {**headers, "webhook-id": "msg_2"},
        {**headers, "webhook-timestamp": str(now + 1)},
        {**headers, "webhook-signature": signature[:-2]},
    ):
        with pytest.raises(SignatureError, match="no signature"):
            verify([key], changed, body.encode(), now_s=now)


def test_both_secrets_are_valid_during_rotation() -> None:
    now = int(time.time())
    headers = sign([KEY, OTHER], message_id="msg_1", timestamp_s=now, body=b"{}")
    for key in (KEY, OTHER):
        Webhook(whsec(key)).verify(b"{}", headers)
        assert verify([key], headers, b"{}", now_s=now) == "msg_1"


@pytest.mark.parametrize("away_s", [-301, 301, 10**10])
def test_signature_more_than_300_s_old_or_early_is_refused(away_s: int) -> None:
    headers = sign([KEY], message_id="msg_1", timestamp_s=10**9, body=b"{}")
    with pytest.raises(SignatureError, match="300 s from our clock"):
        verify([KEY], headers, b"{}", now_s=10**9 + away_s)
    assert verify([KEY], headers, b"{}", now_s=10**9 + (300 if away_s > 0 else -300)) == "msg_1"


@pytest.mark.parametrize("timestamp", ["", "now", "-5", "1e9", "١٢٣", "9" * 40, "NaN"])
def test_invalid_signature_timestamp_is_refused(timestamp: str) -> None:
    headers = {**sign([KEY], message_id="msg_1", timestamp_s=10**9, body=b"{}"), "webhook-timestamp": timestamp}
    with pytest.raises(SignatureError):
        verify([KEY], headers, b"{}", now_s=10**9)


def test_missing_secrets_or_headers_fail_verification() -> None:
    headers = sign([KEY], message_id="msg_1", timestamp_s=10**9, body=b"{}")
    with pytest.raises(SignatureError, match="no signature"):
        verify([], headers, b"{}", now_s=10**9)
    with pytest.raises(SignatureError, match="are required"):
        verify([KEY], {}, b"{}", now_s=10**9)


@pytest.mark.parametrize("prefix", ["whsec_", ""])
def test_secrets_are_read_with_and_without_their_prefix(prefix: str) -> None:
    assert parse_secret(prefix + base64.b64encode(KEY).decode() + "\n") == KEY


@pytest.mark.parametrize(
    ("secret", "why"),
    [*((whsec(os.urandom(size)), "24 to 64 bytes") for size in (0, 23, 65)), ("whsec_hunter2!!", "base64")],
    ids=["empty", "too short", "too long", "no base64"],
)
def test_invalid_secret_is_refused_and_not_quoted(secret: str, why: str) -> None:
    with pytest.raises(SecretError, match=why) as caught:
        parse_secret(secret)
    assert secret == "whsec_" or secret[6:] not in str(caught.value)


def test_each_attempt_is_signed_with_all_current_secrets(world: SenderWorld, tmp_path: Path) -> None:
    keys = ["whsec_" + base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2, 3)]
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text(keys[0])
    new.write_text(keys[1])
    world.restarted(secrets=(Secret(file=old), Secret(file=new)))
    world.receiver.behaviour = 503
    world.box.put(about(notice(1)))
    world.after(0)
    world.receiver.behaviour = 200
    # one of the keys is replaced between two attempts
    old.write_text(keys[2])
    world.after(5)
    first, second = world.receiver.headers
    assert first["webhook-id"] == second["webhook-id"]
    for headers, signers in ((first, keys[:2]), (second, keys[1:])):
        for key in signers:
            Webhook(key).verify(world.receiver.bodies[0], headers)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_token_rotation_loses_no_message(world: SenderWorld, tmp_path: Path, status: int) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    world.restarted(bearer=Secret(file=token))

    def rotated(request: BaseHTTPRequestHandler, accept: Callable[[], None]) -> None:
        answer_with(200 if request.headers["authorization"] == "Bearer new" else status)(request, accept)

    # Given a receiver that already expects the new token
    world.receiver.behaviour = rotated
    world.box.put(about(*(notice(1, run=str(run)) for run in range(20))))
    world.after(0)
    world.after(600)
    assert world.states() == {"waiting": 20}
    # then only one message at a time is tried
    assert len(world.receiver.tried) <= 5
    # and all are delivered once the sender's token is replaced, too
    token.write_text("new")
    world.after(121)
    world.after(1)
    assert world.states() == {"delivered": 20}


def test_unreadable_secret_is_retried(world: SenderWorld, tmp_path: Path) -> None:
    world.restarted(bearer=Secret(file=tmp_path / "token"))
    world.box.put(about(notice(1)))
    world.after(0)
    assert world.receiver.tried == []
    [report] = world.reports
    assert f"{tmp_path}/token: No such file or directory" in report
    (tmp_path / "token").write_text(f"{SECRET}\n")
    world.after(5)
    assert world.receiver.headers[0]["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("text", [f"ftp://h/{SECRET}", SECRET, f"http://[::1/{SECRET}", "http://"])
def test_invalid_address_is_retried(world: SenderWorld, tmp_path: Path, text: str) -> None:
    (tmp_path / "url").write_text(text)
    world.restarted(url=Secret(file=tmp_path / "url"))
    world.box.put(about(notice(1)))
    world.after(0)
    [report] = world.reports
    assert f"{tmp_path}/url: expected an address" in report
    (tmp_path / "url").write_text(world.receiver.url)
    world.after(5)
    assert world.states() == {"delivered": 1}


def test_restored_ca_file_is_used_again(world: SenderWorld, tmp_path: Path) -> None:
    authorities, aside = tmp_path / "ca.pem", tmp_path / "ca.bak"
    shutil.copy(certifi.where(), authorities)
    world.restarted(ca_file=authorities)
    world.box.put(about(notice(1)))
    world.after(0)
    # Given a file of authorities that is replaced by an invalid one, and then restored
    authorities.rename(aside)
    authorities.write_text("no certificate")
    world.box.put(about(notice(2)))
    world.after(0)
    aside.replace(authorities)
    world.after(5)
    assert world.states() == {"delivered": 2}


def test_store_and_reports_contain_no_secret(receiver: WebhookReceiver, tmp_path: Path) -> None:
    world = SenderWorld(receiver, tmp_path / "state")
    key = "whsec_" + base64.b64encode(SECRET.encode() * 3).decode()
    world.restarted(basic=Secret(value=f"me:{SECRET}"), secrets=(Secret(value=key),))
    world.receiver.behaviour = 500
    world.box.put(about(notice(1)))
    world.after(0)
    written = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert SECRET.encode() not in written
    assert key.encode()[6:] not in written
    assert SECRET not in "".join(world.reports) + repr(world.target)
