"""Side channel between helpers: rank 0's is the server, the others are clients. JSON Lines over TCP, one exchange a connection.

Training takes no part in it. A client finds the server through ``side.json`` in the attempt's folder. Only users with write
access to the run can read that file. The request is one line (a token and the rank's report), and so is the reply (the rank's
upcoming windows).
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from rankscope.profiler.plan import MAX_STEPS, RankReport
from rankscope.runs.records import PlannedWindow
from rankscope.runs.segments import open_regular

MAX_REQUEST_BYTES: Final = 4096
MAX_REPLY_BYTES: Final = 16 * 1024
MAX_WINDOWS: Final = 8
"""Largest number of windows in one reply; no more are planned ahead."""
MAX_OPEN: Final = 256
"""Largest number of connections served at once; more wait in the kernel's backlog."""
DEADLINE_SECONDS: Final = 5.0
"""Longest duration of a connection."""
_BACKLOG: Final = 4096
_CONNECT_SECONDS: Final = 2.0
_ANY_ADDRESS: Final = "192.0.2.1"  # for documentation, RFC 5737; nothing is sent there

_Step = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class SideAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``side.json``: address of the server of an attempt, with all names under which its host may be reachable."""

    hosts: Annotated[list[str], msgspec.Meta(max_length=16)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    token: str

    def write(self, path: Path) -> None:
        """Write the file atomically, readable only with write access to the folder, because it holds the token.

        Raises ``OSError``; makes no folder.
        """
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                _admit(file.fileno(), path.parent)
                file.write(msgspec.json.encode(self) + b"\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _admit(handle: int, folder: Path) -> None:
    """Make the file readable for all users with write access to ``folder``: other ranks may run as other users."""
    here = folder.stat()
    mode = 0o600
    if here.st_mode & stat.S_IWGRP and here.st_gid == os.fstat(handle).st_gid:
        mode |= stat.S_IRGRP
    if here.st_mode & stat.S_IWOTH and not here.st_mode & stat.S_ISVTX:
        mode |= stat.S_IROTH
    with suppress(OSError):
        os.fchmod(handle, mode)


class SideWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Window as sent to a rank that profiles it."""

    first: _Step
    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)]
    keep_trace: bool = False
    capture: bool = False
    """True if the window was requested."""


def side_window(window: PlannedWindow) -> SideWindow:
    """Return the part of ``window`` that matters to a rank that profiles it."""
    return SideWindow(window.first, window.steps, window.keep_trace, window.reason == "capture")


def concerns(window: PlannedWindow, rank: int) -> bool:
    """Return whether ``rank`` profiles ``window``."""
    return window.ranks is None or rank in window.ranks


class _Request(msgspec.Struct, frozen=True):
    token: str
    report: RankReport


class _Reply(msgspec.Struct, frozen=True):
    windows: Annotated[list[SideWindow], msgspec.Meta(max_length=MAX_WINDOWS)]


@dataclass(slots=True)
class _Connection:
    deadline: float
    asked: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None


class SideServer:
    """Server of rank 0, on a thread of its own. Raises ``OSError`` only from the constructor.

    ``answer`` gets a report and returns the windows for that rank. ``local``: all ranks are on this host, so it listens on
    127.0.0.1 only.
    """

    def __init__(self, answer: Callable[[RankReport], Sequence[SideWindow]], *, local: bool) -> None:
        self._answer = answer
        self._token = secrets.token_urlsafe(24)
        self._listener = _listen(local=local)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._accepting = True
        self._wake_reader, wake = os.pipe()
        self._wake: int | None = wake
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._open: dict[socket.socket, _Connection] = {}
        self._decoder = msgspec.json.Decoder(_Request)
        self._local = local
        self._thread = threading.Thread(target=self._serve, name="side store", daemon=True)

    def start(self) -> None:
        """Serve until ``close``."""
        self._thread.start()

    def address(self) -> SideAddress:
        """Return the address of the server. May query the resolver, which may take long."""
        port = self._listener.getsockname()[1]
        return SideAddress(hosts=["127.0.0.1"] if self._local else _own_names(), port=port, token=self._token)

    def close(self) -> None:
        """Stop serving."""
        if self._wake is not None:
            wake, self._wake = self._wake, None
            os.close(wake)
        if self._thread.ident is not None:
            self._thread.join(DEADLINE_SECONDS)

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            for connection in [*self._open]:
                self._drop(connection)
            self._listener.close()
            self._selector.close()
            os.close(self._wake_reader)

    def _turn(self) -> bool:
        for key, _ in self._selector.select(1.0):
            if key.fileobj == self._wake_reader:
                return False
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                # Any misbehaviour of a peer (deeply nested JSON raises RecursionError) costs only its own connection.
                try:
                    done = self._advance(key.fileobj, self._open[key.fileobj])
                except Exception:  # noqa: BLE001  # the thread must go on serving the other connections
                    done = True
                if done:
                    self._drop(key.fileobj)
        self._drop_late()
        return True

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            # Also at the limit of open files: existing connections close by their deadlines.
            self._pause()
            return
        client.setblocking(False)
        self._open[client] = _Connection(time.monotonic() + DEADLINE_SECONDS)
        self._selector.register(client, selectors.EVENT_READ)
        if len(self._open) >= MAX_OPEN:
            self._pause()

    def _pause(self) -> None:
        if not self._open:
            time.sleep(0.1)  # no connection whose end would resume accepting
        elif self._accepting:
            self._accepting = False
            self._selector.unregister(self._listener)

    def _advance(self, client: socket.socket, connection: _Connection) -> bool:
        """Read or write without blocking. Return whether the connection is done. Raises any error that a peer can cause."""
        if connection.answer is None:
            data = client.recv(MAX_REQUEST_BYTES)
            connection.asked += data
            line, newline, _ = connection.asked.partition(b"\n")
            if not newline:
                return not data or len(connection.asked) >= MAX_REQUEST_BYTES
            request = self._decoder.decode(line)
            if not hmac.compare_digest(request.token.encode(), self._token.encode()):
                return True
            reply = _Reply(list(self._answer(request.report))[:MAX_WINDOWS])
            connection.answer = memoryview(msgspec.json.encode(reply) + b"\n")
            self._selector.modify(client, selectors.EVENT_WRITE)
        if len(connection.answer):
            connection.answer = connection.answer[client.send(connection.answer) :]
            if not len(connection.answer):
                # The client closes first, so that TIME_WAIT stays on its side.
                self._selector.modify(client, selectors.EVENT_READ)
            return False
        return True

    def _drop(self, client: socket.socket) -> None:
        del self._open[client]
        self._selector.unregister(client)
        client.close()
        if not self._accepting:
            self._accepting = True
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _drop_late(self) -> None:
        now = time.monotonic()
        # The connections are ordered by their deadlines.
        while self._open and next(iter(self._open.values())).deadline < now:
            self._drop(next(iter(self._open)))


class SideClient:
    """Client of another rank: one exchange at a time, each within ``DEADLINE_SECONDS`` per name of the host."""

    def __init__(self, address: SideAddress) -> None:
        self._address = address
        self._hosts = list(address.hosts)

    def exchange(self, report: RankReport) -> list[SideWindow]:
        """Send a report and return this rank's windows. Raises ``OSError``, and ``ValueError`` for an invalid reply."""
        failure: OSError = ConnectionError("the store has no address")
        for host in tuple(self._hosts):
            try:
                with socket.create_connection((host, self._address.port), _CONNECT_SECONDS) as connection:
                    windows = self._ask(connection, report)
            except OSError as error:
                failure = error
            else:
                # Try the name that worked first next time.
                self._hosts.remove(host)
                self._hosts.insert(0, host)
                return windows
        raise failure

    def _ask(self, connection: socket.socket, report: RankReport) -> list[SideWindow]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        connection.sendall(msgspec.json.encode(_Request(self._address.token, report)) + b"\n")
        reply = bytearray()
        while not reply.endswith(b"\n"):
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            data = connection.recv(MAX_REPLY_BYTES)
            if not data:
                raise ConnectionError("the store closed the connection")
            reply += data
            if len(reply) > MAX_REPLY_BYTES:
                raise ValueError("the store answers too much")
        try:
            return msgspec.json.decode(reply, type=_Reply).windows
        except RecursionError as error:
            raise ValueError("the store's answer is nested too deeply") from error


def address_file(attempt: Path) -> Path:
    """Return the path of ``side.json`` in an attempt's folder."""
    return attempt / "side.json"


def read_address(path: Path) -> SideAddress:
    """Read the address that rank 0 wrote. Raises ``OSError``, and ``ValueError`` if the file is damaged."""
    with open_regular(path, links=False) as file:
        try:
            return msgspec.json.decode(file.read(MAX_REPLY_BYTES), type=SideAddress)
        except RecursionError as error:
            raise ValueError("the file is nested too deeply") from error


def _listen(*, local: bool) -> socket.socket:
    if local:
        return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=_BACKLOG)


def _own_names() -> list[str]:
    """Return names and addresses under which other hosts may reach this one, the most likely first."""
    names: list[str] = []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_ANY_ADDRESS, 9))  # selects the address of the outgoing route
        names.append(probe.getsockname()[0])
    with suppress(OSError):
        for *_, where in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            names.append(str(where[0]))
    names.append(socket.gethostname())
    # The launcher's rendezvous is often on the host of rank 0, under a name that all hosts know.
    names.append(os.environ.get("MASTER_ADDR", ""))
    own = [
        name for name in dict.fromkeys(names) if name and not name.startswith(("127.", "::1", "fe80:")) and name != "localhost"
    ]
    return own[:16]
