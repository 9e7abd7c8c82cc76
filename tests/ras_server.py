"""NCCL RAS of a simulated job: its protocol on a local socket, and answers in both formats, written from NCCL's documentation."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Speak = Callable[[socket.socket], None]
KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


@dataclass
class Comm:
    """Communicator: the counts of its members by rank, and its missing ranks."""

    counts: Mapping[int, Mapping[str, int] | int]
    """Launched collectives by rank; a number is one of AllReduce."""
    places: Sequence[int] | None = None
    """Global rank of each rank."""
    unresponsive: Sequence[int] = ()
    dead: Sequence[int] = ()
    left: Sequence[int] = ()
    """Ranks whose process answers, but not about this communicator."""
    status: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    name: int = 0xCF264AF53EDBE986

    def document(self) -> dict[str, Any]:
        """Return the JSON of the communicator."""
        missing = [*self.unresponsive, *self.dead, *self.left]
        return {
            "hash": f"0x{self.name:x}",
            "secondary_hash": "0x1:0x2",
            "size": len(self.counts) + len(missing),
            "ranks_count": len(self.counts),
            "missing_ranks_count": len(missing),
            "ranks": [
                {
                    **self._who(rank),
                    "status": {
                        "init_state": 0,
                        "async_error": 0,
                        "finalize_called": False,
                        "destroy_flag": False,
                        "abort_flag": False,
                        **self.status.get(rank, {}),
                    },
                    "collective_counts": dict.fromkeys(KINDS, 0)
                    | ({"AllReduce": count} if isinstance(count, int) else dict(count)),
                }
                for rank, count in self.counts.items()
            ],
            "missing_ranks": [
                {
                    **self._who(rank),
                    "status": {"unresponsive": rank not in self.left, "considered_dead": rank in self.dead},
                }
                for rank in missing
            ],
        }

    def _who(self, rank: int) -> dict[str, Any]:
        place = rank if self.places is None else self.places[rank]
        host = f"10.0.0.{place // 8}"
        return {"rank": rank, "host": host, "pid": 1000 + place, "cuda_dev": place % 8, "nvml_dev": place % 8}


def answer(*comms: Comm) -> bytes:
    """Return the answer in JSON of NCCL 2.28.7 and later."""
    document = {
        "nccl_version": "2.28.9",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-27 12:00:00",
        "communicators_count": len(comms),
        "communicators": [comm.document() for comm in comms],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def text_answer(rows: str, errors: str = "", warnings: str = "", *, gpus: int = 8, version: str = "2.27.3") -> bytes:
    """Return the answer in text of NCCL 2.24 and later. ``rows``: those of the table of communicators."""
    return f"""NCCL version {version} compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1  {gpus:9d}            1  {gpus:9d}  {gpus:7d}

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
{rows}
Errors
======

{errors}Warnings
========

{warnings}""".encode()


@contextmanager
def listening(speak: Speak) -> Iterator[str]:
    """Yield the address of a socket on which ``speak`` is called for each connection, on a thread of its own."""
    ended = threading.Event()
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    thread = threading.Thread(target=handle, args=(connection,))
                    thread.start()
                    threads.append(thread)

        def handle(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.settimeout(60)
                speak(connection)

        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            accepting.join()
            for thread in threads:
                thread.join()


def ras(*answers: bytes, has_json: bool = True, protocol: int = 2, asked: list[str] | None = None) -> Speak:
    """Return the server's side: the first connection that asks for the status gets the first answer, the last repeats."""
    remaining = list(answers)

    def speak(connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                command = line.decode().strip()
                if asked is not None:
                    asked.append(command)
                upper = command.upper()
                if upper.startswith("CLIENT PROTOCOL "):
                    connection.sendall(f"SERVER PROTOCOL {protocol}\n".encode())
                elif upper.startswith("TIMEOUT ") or (upper == "SET FORMAT JSON" and has_json):
                    connection.sendall(b"OK\n")
                elif upper == "VERBOSE STATUS":
                    connection.sendall(remaining.pop(0) if len(remaining) > 1 else remaining[0])
                    return
                else:
                    connection.sendall(f"ERROR: Unknown command {command}\n".encode())

    return speak
