"""Child processes of a demonstration: started in groups of their own, logged to files, and gone at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rankscope.base.errors import RankscopeError
from rankscope.base.process import end_with_parent

HOST: Final = "127.0.0.1"
_STOP_GRACE_S: Final = 8.0

# The demo talks to itself only: a proxy configured for the world has no business in between.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def rankscope_command(*args: str | Path) -> list[str]:
    """The command line of a verb in this interpreter."""
    return [sys.executable, "-m", "rankscope", *map(str, args)]


def free_port(preferred: int) -> int:
    """``preferred``, or the next free port above it."""
    for port in range(preferred, preferred + 100):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RankscopeError(f"no free port from {preferred} to {preferred + 99} on {HOST}")


def get(url: str, *, timeout: float = 10.0) -> str:
    """Body of a GET. Raises ``OSError`` (``urllib.error.URLError``) on any failure."""
    with _opener.open(url, timeout=timeout) as response:
        body: bytes = response.read()
        return body.decode()


class Services:
    """Context manager over child processes; leaving it ends them all. Their output goes to files in ``logs``."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def log(self, name: str) -> Path:
        """Where the output of a child goes."""
        return self.logs / f"{name}.log"

    def start(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a child with its output in ``log(name)``."""
        with self.log(name).open("wb") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509  # there are no threads here
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            )
        self._children[name] = child
        return child

    def wait(self, name: str, *, timeout: float) -> int | None:
        """Exit status of a child once it has ended, or ``None`` when it still runs after ``timeout`` seconds."""
        try:
            return self._children[name].wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def wait_for(self, name: str, url: str, *, timeout: float = 60.0) -> None:
        """Wait until ``url`` answers. Raises ``RankscopeError`` with the child's last line when it does not."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                get(url, timeout=5)
            except OSError as error:
                if self._children[name].poll() is not None or time.monotonic() > deadline:
                    raise RankscopeError(f"{name} does not answer at {url} ({error}); it said: {self.last_line(name)}") from error
                time.sleep(0.1)
            else:
                return

    def last_line(self, name: str) -> str:
        """The last line a child printed."""
        lines = self.log(name).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"

    def stop(self) -> None:
        """End all children, youngest first: SIGTERM, then SIGKILL to whatever is left of their groups."""
        for child in reversed(self._children.values()):
            _signal_group(child, signal.SIGTERM)
        for child in reversed(self._children.values()):
            with suppress(subprocess.TimeoutExpired):
                child.wait(_STOP_GRACE_S)
            _signal_group(child, signal.SIGKILL)
            child.wait()
        self._children.clear()


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        return
