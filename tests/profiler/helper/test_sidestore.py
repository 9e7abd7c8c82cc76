"""Side store of the ranks, over real connections: quick for correct clients, robust against all others."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from rankscope.profiler.helper.coordination import sidestore
from rankscope.profiler.helper.coordination.sidestore import (
    MAX_REQUEST_BYTES,
    MAX_WINDOWS,
    SideAddress,
    SideClient,
    SideServer,
    SideWindow,
    read_address,
)
from rankscope.profiler.plan import RankReport

WINDOW = SideWindow(500, 3, keep_trace=True)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until another thread has met a condition."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


class Store:
    """Server that records the reports it received."""

    def __init__(self) -> None:
        self.reports: list[RankReport] = []
        self.server = SideServer(self._answer, local=True)
        self.server.start()
        self.address = self.server.address()

    def _answer(self, report: RankReport) -> list[SideWindow]:
        self.reports.append(report)
        return [WINDOW] * (MAX_WINDOWS + 1)

    def connect(self) -> socket.socket:
        """Open a bare connection."""
        return socket.create_connection(("127.0.0.1", self.address.port), timeout=30)

    def request(self, **changes: object) -> bytes:
        """Return a request line as a client sends it."""
        report = msgspec.to_builtins(RankReport(rank=1, step=2)) | changes
        return json.dumps({"token": self.address.token, "report": report}).encode() + b"\n"


@pytest.fixture
def store() -> Iterator[Store]:
    """Running store."""
    store = Store()
    yield store
    store.server.close()


def test_a_report_is_answered_with_the_windows_ahead(store: Store) -> None:
    client = SideClient(store.address)
    for step in (5, 6):
        report = RankReport(rank=3, step=step, step_us=1000.0, window_us=None)
        assert client.exchange(report) == [WINDOW] * MAX_WINDOWS
        assert store.reports[-1] == report


def test_hundreds_of_ranks_are_answered_at_once(store: Store) -> None:
    ranks, failed = 400, []

    def ask(rank: int) -> None:
        try:
            SideClient(store.address).exchange(RankReport(rank=rank, step=1))
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert {report.rank for report in store.reports} == set(range(ranks))


def test_connections_that_say_nothing_do_not_keep_others_from_being_answered(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given more connections than are served at once, half of them in the middle of a request
    monkeypatch.setattr(sidestore, "MAX_OPEN", 20)
    monkeypatch.setattr(sidestore, "DEADLINE_SECONDS", 0.5)
    with ExitStack() as leaving:
        idle = [leaving.enter_context(store.connect()) for _ in range(30)]
        for connection in idle[::2]:
            connection.sendall(b'{"token"')
        # Then a rank waits for a moment, and is answered
        with store.connect() as asking:
            asking.sendall(store.request())
            assert b"500" in asking.recv(1000)
        # And the other connections have been closed
        assert all(connection.recv(1) == b"" for connection in idle[:10])


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"[" * 4000 + b"\n",
        b'{"x":' + b"[" * 3000 + b"\n",
        b"x" * (MAX_REQUEST_BYTES + 10),
        b'{"token": "guess", "report": {"rank": 1, "step": 2}}\n',
        b'{"token": "guess\xc3\xa9", "report": {"rank": 1, "step": 2}}\n',
    ],
    ids=["empty", "http", "bytes", "nested", "nested in a field", "long", "another token", "an odd token"],
)
def test_who_says_something_else_hears_nothing_and_the_store_goes_on(store: Store, said: bytes) -> None:
    with store.connect() as connection:
        connection.sendall(said)
        # Reset where it was closed before all of it was read.
        with suppress(ConnectionResetError):
            assert connection.recv(1000) == b""
    assert store.reports == []
    assert SideClient(store.address).exchange(RankReport(rank=1, step=1))


@pytest.mark.parametrize("changes", [{"step": -1}, {"rank": 2**40}, {"step_us": 0}, {"spent_us": -1.0}, {"step": 1e300}])
def test_a_report_of_what_cannot_be_is_not_believed(store: Store, changes: dict[str, object]) -> None:
    with store.connect() as connection:
        connection.sendall(store.request(**changes))
        assert connection.recv(1000) == b""
    assert store.reports == []


def test_a_request_may_come_in_pieces(store: Store) -> None:
    with store.connect() as connection:
        for byte in store.request():
            connection.sendall(bytes([byte]))
        assert b"500" in connection.recv(1000)


def test_only_its_own_user_can_read_where_it_is(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "side.json"
    store.address.write(path)
    assert path.stat().st_mode & 0o077 == 0
    assert read_address(path) == store.address
    assert [entry.name for entry in tmp_path.iterdir()] == ["side.json"]
    with pytest.raises(FileNotFoundError):
        store.address.write(tmp_path / "removed" / "side.json")
    path.write_text('{"hosts": [], "port": 0, "token": ""}')
    with pytest.raises(ValueError, match="port"):
        read_address(path)


def test_who_may_add_ranks_to_the_run_can_read_where_it_is_and_nobody_else(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "side.json"
    for folder, file in ((0o755, 0o600), (0o2770, 0o640), (0o777, 0o644), (0o1777, 0o640)):
        tmp_path.chmod(folder)
        store.address.write(path)
        assert path.stat().st_mode & 0o777 == file
    # Links and FIFOs of other users are neither followed nor waited for
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(OSError, match=r".*"):
            read_address(tmp_path / name)


def test_a_client_finds_the_name_that_works_and_says_when_none_does(store: Store) -> None:
    hosts = ["no-such-host.invalid", "127.0.0.1"]
    client = SideClient(SideAddress(hosts=hosts, port=store.address.port, token=store.address.token))
    assert client.exchange(RankReport(rank=1, step=1))
    store.server.close()
    with pytest.raises(OSError):  # noqa: PT011  # whichever it is
        client.exchange(RankReport(rank=1, step=2))


@pytest.mark.parametrize(
    "said", [b"", b"nonsense\n", b"x" * 100_000, b'{"windows": [[5, 1000000]]}\n', b'{"x":' + b"[" * 3000 + b"\n"]
)
def test_a_client_believes_no_other_server(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                try:
                    connection.sendall(said)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        address = SideAddress(hosts=["127.0.0.1"], port=listener.getsockname()[1], token="t")
        with pytest.raises((OSError, ValueError)):
            SideClient(address).exchange(RankReport(rank=1, step=1))
        thread.join()
