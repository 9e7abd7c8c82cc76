"""Addresses, secrets and certificates that the sender reads for each attempt."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import certifi
import pytest
from standardwebhooks import Webhook as Reference
from tests.alerts.deliver.sender_world import SECRET, SenderWorld
from tests.webhook_receiver import WebhookReceiver, about, answer_with, notice

from rankscope.alerts.deliver.secret import Secret


def test_every_attempt_is_signed_anew_with_all_secrets(world: SenderWorld, tmp_path: Path) -> None:
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
            Reference(key).verify(world.receiver.bodies[0], headers)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_secret_that_is_rotated_loses_no_message(world: SenderWorld, tmp_path: Path, status: int) -> None:
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


def test_a_secret_that_cannot_be_read_is_waited_for(world: SenderWorld, tmp_path: Path) -> None:
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
def test_an_address_that_is_none_is_waited_for(world: SenderWorld, tmp_path: Path, text: str) -> None:
    (tmp_path / "url").write_text(text)
    world.restarted(url=Secret(file=tmp_path / "url"))
    world.box.put(about(notice(1)))
    world.after(0)
    [report] = world.reports
    assert f"{tmp_path}/url: expected an address" in report
    (tmp_path / "url").write_text(world.receiver.url)
    world.after(5)
    assert world.states() == {"delivered": 1}


def test_authorities_that_come_back_are_used_again(world: SenderWorld, tmp_path: Path) -> None:
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


def test_no_secret_is_in_the_file_or_in_a_message(receiver: WebhookReceiver, tmp_path: Path) -> None:
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
