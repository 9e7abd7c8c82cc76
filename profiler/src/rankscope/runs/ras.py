"""NCCL RAS: asking a running NCCL job for the state of its communicators, and the answers kept in a run.

Each NCCL process (2.24 and later) listens on ``NCCL_RAS_ADDR``, by default ``localhost:28028``, and answers for the whole job.
The protocol is lines of text (NCCL's docs, "RAS", and ``src/ras/client_support.cc`` of its public source):

- ``CLIENT PROTOCOL 2`` is answered with ``SERVER PROTOCOL n``;
- ``TIMEOUT seconds`` and, from 2.28.7 on, ``SET FORMAT json`` with ``OK``; unknown commands with ``ERROR: …``;
- ``VERBOSE STATUS`` with the state of the job, which ends with the connection.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from rankscope.base.errors import InputError
from rankscope.base.text import one_line, shortened
from rankscope.runs.paths import ras_dir
from rankscope.runs.run_files import open_run_file
from rankscope.runs.segments import UNDECODABLE
from rankscope.runs.small_files import write_shared

RAS_SCHEMA: Final = "rankscope.ras/1"
DEFAULT_ADDRESS: Final = "localhost:28028"
ADDRESS_VARIABLE: Final = "NCCL_RAS_ADDR"

LEG_SECONDS: Final = 5
"""Time that NCCL's processes wait for each other, as of ``ncclras``; the answering one waits for the same time again."""
PATIENCE_SECONDS: Final = 30.0
"""Most time for one question, connecting and retries included."""
GREETING_SECONDS: Final = 1.0
"""Most time for the first line. A stopped process accepts connections and never greets; the processes of a host share the port,
so another try may reach another one."""
MAX_BYTES: Final = 128 * 1024 * 1024
"""Maximum size of an answer: 600 bytes per rank and communicator in JSON."""
MOST_ANSWERS: Final = 8
"""Number of answers kept per attempt; the oldest are removed."""
_MAX_LINE: Final = 1024
_NAME: Final = re.compile(r"(\d{19})\.json")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class RasAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """``attempts/NNN/ras/TIME.json``: an answer of NCCL RAS as it came."""

    schema: Literal["rankscope.ras/1"] = RAS_SCHEMA
    address: str
    asked_unix_ns: Count
    protocol: int
    """Version of the protocol that the job speaks."""
    format: Literal["json", "text"]
    """``text``: of an NCCL before 2.28.7, which has no JSON."""
    text: str


def default_address() -> str:
    """Return the address of ``NCCL_RAS_ADDR``, else NCCL's default."""
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``[IPV6]:PORT``. Raises ``ValueError``."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise ValueError(f"{address!r} is not an address such as {DEFAULT_ADDRESS}")
    return host, int(port)


def ask(address: str, *, patience_s: float = PATIENCE_SECONDS, most_bytes: int = MAX_BYTES) -> RasAnswer:
    """Ask the job that listens on ``address``. Bounded in time and size; never interprets the answer.

    Raises ``InputError`` with the address and the reason for having no complete answer.
    """
    until = time.monotonic() + patience_s
    asked_unix_ns = time.time_ns()
    try:
        place = split_address(address)
        while True:
            with socket.create_connection(place, timeout=min(GREETING_SECONDS, _remaining_s(until))) as connection:
                talk = _RasConnection(connection, until, most_bytes)
                if (greeting := talk.greeted()) is None:
                    continue
                return _query_job(talk, address, asked_unix_ns, greeting)
    except ValueError as error:
        raise InputError(address, str(error)) from error
    except ConnectionRefusedError as error:
        raise InputError(address, "no NCCL job answers here: nothing listens") from error
    except TimeoutError as error:
        reason = f"no answer within {patience_s:.0f} s; its process may be stopped, or it is not NCCL RAS"
        raise InputError(address, reason) from error
    except OSError as error:
        raise InputError(address, (error.strerror or str(error)).lower()) from error


def _query_job(connection: _RasConnection, address: str, asked_unix_ns: int, greeting: str) -> RasAnswer:
    match = re.fullmatch(r"SERVER PROTOCOL ([0-9]{1,9})", greeting, re.IGNORECASE)
    if match is None:
        raise InputError(address, f"not NCCL RAS: its first line is {shortened(one_line(greeting), 60)!r}")
    connection.answer_to(f"TIMEOUT {LEG_SECONDS}")
    has_json = connection.answer_to("SET FORMAT json").upper() == "OK"
    connection.send("VERBOSE STATUS")
    data = connection.read_to_end()
    if data is None:
        raise InputError(address, f"an answer of more than {connection.most_bytes // 1024**2} MiB")
    return RasAnswer(
        address=address,
        asked_unix_ns=asked_unix_ns,
        protocol=int(match[1]),
        format="json" if has_json else "text",
        text=data.decode("utf-8", "replace"),
    )


class _RasConnection:
    """A connection, read by lines and then to its end. Raises ``OSError``, of which ``TimeoutError`` at ``until``."""

    def __init__(self, connection: socket.socket, until: float, most_bytes: int) -> None:
        self._connection, self._until, self.most_bytes = connection, until, most_bytes
        self._read = b""

    def greeted(self) -> str | None:
        """Exchange greetings; ``None``: silence for ``GREETING_SECONDS``."""
        until, self._until = self._until, min(self._until, time.monotonic() + GREETING_SECONDS)
        try:
            return self.answer_to("CLIENT PROTOCOL 2")
        except TimeoutError:
            return None
        finally:
            self._until = until

    def send(self, line: str) -> None:
        """Send a line."""
        self._connection.settimeout(_remaining_s(self._until))
        self._connection.sendall(line.encode() + b"\n")

    def answer_to(self, line: str) -> str:
        """Send a line and return the line that comes back, at most its first part."""
        self.send(line)
        while b"\n" not in self._read and len(self._read) <= _MAX_LINE:
            if not (data := self._received(_MAX_LINE)):
                raise ConnectionAbortedError(0, "the connection ended in the middle of the conversation")
            self._read += data
        answer_line, _, self._read = self._read.partition(b"\n")
        return answer_line.decode("utf-8", "replace").strip()

    def read_to_end(self) -> bytes | None:
        """Return everything up to the end of the connection; ``None``: it is too large."""
        blocks, size = [self._read], len(self._read)
        while size <= self.most_bytes:
            if not (data := self._received(1 << 16)):
                return b"".join(blocks)
            blocks.append(data)
            size += len(data)
        return None

    def _received(self, most: int) -> bytes:
        self._connection.settimeout(_remaining_s(self._until))
        return self._connection.recv(most)


def _remaining_s(until: float) -> float:
    remaining_s = until - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


def keep_answer(run: Path, attempt: int, answer: RasAnswer) -> None:
    """Write an answer into the run, and remove the oldest but ``MOST_ANSWERS``. Raises ``OSError``."""
    folder = ras_dir(run, attempt)
    write_shared(folder / f"{answer.asked_unix_ns:019d}.json", msgspec.json.encode(answer))
    for path in _kept_files(folder)[:-MOST_ANSWERS]:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def read_answers(run: Path, attempt: int, *, most: int) -> list[RasAnswer]:
    """Return the newest answers in the run, oldest first; unreadable ones are left out."""
    answers = []
    for path in _kept_files(ras_dir(run, attempt))[-most:]:
        with suppress(OSError, *UNDECODABLE), open_run_file(path) as file:
            # JSON escapes line breaks and quotes, so a file is larger than its answer.
            if len(data := file.read(2 * MAX_BYTES + 1)) <= 2 * MAX_BYTES:
                answers.append(msgspec.json.decode(data, type=RasAnswer))
    return answers


def _kept_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return []
