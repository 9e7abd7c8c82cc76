"""Asking NCCL RAS on a socket: complete answers, and everything that is none; answers kept in a run."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import pytest
from tests.ras_server import Comm, Speak, answer, listening, ras, text_answer

from rankscope.base.errors import InputError
from rankscope.runs import ras as module
from rankscope.runs.paths import attempt_dir, ras_dir
from rankscope.runs.ras import MOST_ANSWERS, RasAnswer, ask, default_address, keep_answer, read_answers, split_address

ROW = "      0         1         1         8         8         8   RUNNING      OK\n"


def test_ras_client_requests_json_and_returns_the_raw_answer() -> None:
    requests: list[str] = []
    reply = answer(Comm({0: 1, 1: 1}))
    with listening(ras(reply, asked=requests)) as address:
        result = ask(address)
    assert (result.format, result.protocol, result.text) == ("json", 2, reply.decode())
    assert requests == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"]


def test_nccl_without_json_support_answers_in_text() -> None:
    with listening(ras(text_answer(ROW), has_json=False)) as address:
        answer = ask(address)
    assert answer.format == "text"
    assert answer.text.startswith("NCCL version 2.27.3")


def test_other_protocol_version_is_recorded_and_tried() -> None:
    with listening(ras(answer(), protocol=7)) as address:
        assert ask(address).protocol == 7


def test_stopped_process_on_the_shared_port_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GREETING_SECONDS", 0.1)
    connections: list[int] = []
    talking = ras(answer())

    def speak(connection: socket.socket) -> None:
        connections.append(1)
        if len(connections) < 4:
            while connection.recv(1024):
                pass
        else:
            talking(connection)

    with listening(speak) as address:
        assert ask(address).format == "json"
    assert len(connections) == 4


def _greets(then: bytes, *, waits: bool = False) -> Speak:
    """Answer all commands but the last, and that with ``then``. ``waits``: keep the connection until the client ends it."""

    def speak(connection: socket.socket) -> None:
        ras(then)(connection)
        while waits and connection.recv(1024):
            pass

    return speak


def _endless(connection: socket.socket) -> None:
    with_status = ras(b"{")
    with_status(connection)
    while True:
        connection.sendall(b" " * 65536)


def _drips(connection: socket.socket) -> None:
    ras(b"{")(connection)
    stop = threading.Event()
    while not stop.wait(0.01):
        connection.sendall(b" ")


def _says(data: bytes) -> Speak:
    def speak(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(data)

    return speak


@pytest.mark.parametrize(
    ("speak", "reason"),
    [
        (lambda connection: connection.recv(1), "ended|reset"),
        (_says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "not NCCL RAS"),
        (_says(b"SERVER PROTOCOL two\n"), "not NCCL RAS"),
        (_says(b"x" * 5000), "not NCCL RAS"),
        (_says(b"\x1b[2J\xff\n"), "not NCCL RAS"),
        (_says(b"SERVER PROTOCOL 2\n"), "ended|reset"),
        (_endless, "more than 1 MiB"),
        (_drips, "no answer within 1 s"),
        (_greets(b"{", waits=True), "no answer within 1 s"),
    ],
)
def test_incomplete_answer_raises_an_error_with_the_address(speak: Speak, reason: str) -> None:
    with listening(speak) as address, pytest.raises(InputError) as raised:
        ask(address, patience_s=1, most_bytes=1 << 20)
    assert raised.value.path == address
    assert "\x1b" not in str(raised.value)
    assert re.search(reason, raised.value.reason)


def test_refused_connection_reports_that_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(InputError, match="nothing listens"):
        ask(address)


@pytest.mark.parametrize("text", ["", "28028", "localhost", "localhost:", ":28028", "h:0", "h:65536", "::1:5", "h:2x"])
def test_address_without_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("localhost:28028")):
        split_address(text)
    with pytest.raises(InputError, match="not an address"):
        ask(text)


def test_default_address_follows_nccl_ras_addr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
    assert default_address() == "localhost:28028"
    monkeypatch.setenv("NCCL_RAS_ADDR", "[::1]:12345")
    assert split_address(default_address()) == ("::1", 12345)


def test_run_keeps_only_the_newest_ras_answers(tmp_path: Path) -> None:
    attempt_dir(tmp_path, 0).mkdir(parents=True)
    for number in range(MOST_ANSWERS + 2):
        keep_answer(tmp_path, 0, _answer(10**18 + number))
    (ras_dir(tmp_path, 0) / f"{2 * 10**18}.json").write_text("{")
    (ras_dir(tmp_path, 0) / "note").write_text("")
    assert len(list(ras_dir(tmp_path, 0).glob("*.json"))) == MOST_ANSWERS + 1
    assert [read_answer.asked_unix_ns - 10**18 for read_answer in read_answers(tmp_path, 0, most=3)] == [
        MOST_ANSWERS,
        MOST_ANSWERS + 1,
    ]
    assert read_answers(tmp_path, 1, most=3) == []


def _answer(asked_unix_ns: int) -> RasAnswer:
    return RasAnswer(address="h:1", asked_unix_ns=asked_unix_ns, protocol=2, format="json", text="{}")
