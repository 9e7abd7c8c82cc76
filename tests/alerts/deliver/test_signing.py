"""Signatures, checked both ways with the reference implementation of Standard Webhooks."""

from __future__ import annotations

import base64
import os
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from rankscope.alerts.deliver.signing import SecretError, SignatureError, parse_secret, sign, verify

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))


def whsec(key: bytes) -> str:
    return "whsec_" + base64.b64encode(key).decode()


@given(body=st.text(), key=st.binary(min_size=24, max_size=64))
def test_others_can_verify_what_we_sign(body: str, key: bytes) -> None:
    headers = sign([key], message_id="msg_1", timestamp_s=int(time.time()), body=body.encode())
    Webhook(whsec(key)).verify(body.encode(), headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(whsec(key)).verify(body.encode() + b" ", headers, json_parse=False)


@given(body=st.text(), key=st.binary(min_size=24, max_size=64))
def test_we_can_verify_what_others_sign(body: str, key: bytes) -> None:
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


def test_while_a_secret_is_replaced_both_are_good() -> None:
    now = int(time.time())
    headers = sign([KEY, OTHER], message_id="msg_1", timestamp_s=now, body=b"{}")
    for key in (KEY, OTHER):
        Webhook(whsec(key)).verify(b"{}", headers)
        assert verify([key], headers, b"{}", now_s=now) == "msg_1"


@pytest.mark.parametrize("away_s", [-301, 301, 10**10])
def test_what_was_signed_long_ago_or_is_from_the_future_is_refused(away_s: int) -> None:
    headers = sign([KEY], message_id="msg_1", timestamp_s=10**9, body=b"{}")
    with pytest.raises(SignatureError, match="300 s from our clock"):
        verify([KEY], headers, b"{}", now_s=10**9 + away_s)
    assert verify([KEY], headers, b"{}", now_s=10**9 + (300 if away_s > 0 else -300)) == "msg_1"


@pytest.mark.parametrize("timestamp", ["", "now", "-5", "1e9", "١٢٣", "9" * 40, "NaN"])
def test_a_time_that_is_none_is_refused(timestamp: str) -> None:
    headers = {**sign([KEY], message_id="msg_1", timestamp_s=10**9, body=b"{}"), "webhook-timestamp": timestamp}
    with pytest.raises(SignatureError):
        verify([KEY], headers, b"{}", now_s=10**9)


def test_nothing_is_signed_by_nobody() -> None:
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
def test_what_is_no_secret_is_refused_unrepeated(secret: str, why: str) -> None:
    with pytest.raises(SecretError, match=why) as caught:
        parse_secret(secret)
    assert secret == "whsec_" or secret[6:] not in str(caught.value)
