"""Certificates, configurations and targets that are replaced while a receiver runs as a real process."""

from __future__ import annotations

import contextlib
import signal
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from tests.alerts.receive.receiver_process import (
    CONFIG,
    ListeningTarget,
    ReceiverProcess,
    firing,
    listening_target,
)
from tests.command_line import one_line_error
from tests.local_http import answering, respond
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_receiver_serves_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    issue = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    issue += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    issue += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    subprocess.run(issue, check=True, capture_output=True)
    config = '[receive]\ntls_cert = "cert.pem"\ntls_key = "key.pem"\n'
    receiver = ReceiverProcess(
        tmp_path, config, settings="from rankscope.base import followed_files; followed_files.LOOK_EVERY_S = 0"
    )
    receiver.start(wait=False)
    context = ssl.create_default_context(cafile=str(certificate))

    def healthy() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{receiver.url.replace('http', 'https')}/-/healthy", verify=context).status_code == 200
        return False

    try:
        wait_until(healthy)
        assert "certificate" not in receiver.errors.read_text()
        # a renewed certificate serves the next handshake, an unusable one does not
        good = certificate.read_bytes()
        certificate.write_text("nothing")
        assert healthy()
        wait_until(lambda: str(certificate) in receiver.errors.read_text())
        certificate.write_bytes(good)
        assert healthy()
        subprocess.run(issue, check=True, capture_output=True)
        assert not healthy()
        context = ssl.create_default_context(cafile=str(certificate))
        assert healthy()
    finally:
        receiver.kill()
    # an invalid certificate at the start is a one-line error
    certificate.write_text("nothing")
    completed = subprocess.run(receiver.command, capture_output=True, text=True, check=False)
    assert "no certificate with its key" in one_line_error(completed)


def test_sighup_reloads_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "alerts.toml"
    with (
        listening_target() as first,
        listening_target() as second,
        ReceiverProcess(tmp_path, CONFIG.format(url=first.url)) as receiver,
    ):
        before = file.read_text()
        assert receiver.post(firing(1)).status_code == 200
        wait_until(lambda: first.alerts)
        # an unusable file, or settings that would be unsafe, change nothing
        for wrong in ("[receive", before.replace("sender.token", "nowhere"), CONFIG.format(url=second.url)):
            file.write_text(wrong)
            logged = receiver.errors.read_text().count("stays as it was")
            receiver.signal(signal.SIGHUP)
            wait_until(lambda logged=logged: receiver.errors.read_text().count("stays as it was") > logged)
            assert receiver.count("config_last_reload_successful") == 0
            assert "internal fault" not in receiver.errors.read_text()
        assert receiver.post(firing(2)).status_code == 200
        wait_until(lambda: len(first.alerts) == 2)
        # another target and another token
        (tmp_path / "new.token").write_text("another token of twenty-four")
        file.write_text(before.replace(first.url, second.url).replace("sender.token", "new.token"))
        receiver.signal(signal.SIGHUP)
        wait_until(lambda: receiver.count("config_last_reload_successful") == 1)
        assert receiver.post(firing(3)).status_code == 401
        receiver.headers["Authorization"] = "Bearer another token of twenty-four"
        assert receiver.post(firing(3)).status_code == 200
        wait_until(lambda: second.alerts)
        # what needs a restart is reported
        file.write_text(file.read_text().replace("[receive]", '[receive]\ntls_cert = "cert.pem"\ntls_key = "key.pem"'))
        receiver.signal(signal.SIGHUP)
        wait_until(lambda: "certificate has changed, which needs a restart" in receiver.errors.read_text())
        receiver.signal(signal.SIGTERM)
        assert receiver.wait() == 0
    assert [alert["labels"]["number"] for alert in first.alerts] == ["1", "2"]
    assert [alert["labels"]["number"] for alert in second.alerts] == ["3"]


def test_a_reload_repeats_no_delivery_in_progress(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()
    bodies: list[bytes] = []

    def slow(request: BaseHTTPRequestHandler, body: bytes) -> None:
        bodies.append(body)
        begun.set()
        go.wait(60)
        respond(request, 200)

    with answering(slow) as url, ReceiverProcess(tmp_path, CONFIG.format(url=url)) as receiver:
        assert receiver.post(firing(1)).status_code == 200
        assert begun.wait(60)
        receiver.signal(signal.SIGHUP)
        time.sleep(0.5)
        assert receiver.post(firing(2)).status_code == 200  # accepted meanwhile
        go.set()
        wait_until(lambda: len(bodies) == 2)
        receiver.signal(signal.SIGTERM)
        assert receiver.wait() == 0
    assert len(bodies) == 2


def test_reloads_lose_and_repeat_no_accepted_delivery(receiver: ReceiverProcess, target: ListeningTarget) -> None:
    for number in range(40):
        assert receiver.post(firing(number)).status_code == 200
        if number % 4 == 0:
            receiver.signal(signal.SIGHUP)
    wait_until(lambda: {alert["labels"]["number"] for alert in target.alerts} == set(map(str, range(40))))
    wait_until(lambda: receiver.count("waiting") == 0)
    assert len(target.alerts) == 40
