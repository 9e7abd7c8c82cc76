"""A part of ``alerts.py``: cost of delivering 10,000 alerts to a webhook through the outbox. Prints one JSON object.

Every alert is a message of its own. Each message is on disk before it is sent, and is kept until it is accepted. The peer is a
plain loop of httpx that posts the same bodies and stores nothing. The receiver is a process of its own on this machine.

    python -m benchmarks.alerts.sender_job [--alerts 10000] [--paced 500]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from benchmarks.common.result import budget, environment, finish

from rankscope.alerts.alert import Alert
from rankscope.alerts.deliver.message import Message, messages_about
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.sender import Sender
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.payload import Notice, payload_alert
from rankscope.alerts.store.database import AlertStore
from rankscope.alerts.store.folders import STORE_FILE

DELIVERIES_BUDGET = 50.0
"""Minimum deliveries per second: a thousand messages at once are delivered within twenty seconds, also on a busy machine."""
PEER_BUDGET = 5.0
"""Time of a delivery over that of the plain loop, which keeps its connection and stores nothing."""
LATENCY_BUDGET_MS = 1000.0
"""99th percentile of the time from put to accepted, when alerts come one by one."""
MEMORY_BUDGET_MIB = 150.0
PAUSE_S = 0.02
PUT_AT_ONCE = 100
TARGET = "hook"


def receive(path: Path) -> None:
    """Accept all requests until standard input ends, then write one line per request to ``path``: its id and acceptance time."""
    accepted: list[tuple[str, int]] = []
    asyncio.run(accept_until_input_ends(accepted))
    path.write_text("".join(f"{name} {when}\n" for name, when in accepted))


async def accept_until_input_ends(accepted: list[tuple[str, int]]) -> None:
    """Accept all requests until standard input ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                headers = {
                    name.lower(): text.strip() for name, _, text in (line.partition(":") for line in head.split("\r\n")[1:])
                }
                await reader.readexactly(int(headers["content-length"]))
                accepted.append((headers["webhook-id"], time.monotonic_ns()))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


class AcceptedRequests:
    """Accepted requests: id to the time of the first acceptance, in monotonic nanoseconds."""

    def __init__(self) -> None:
        self.first: dict[str, int] = {}
        self.count = 0

    def read(self, path: Path) -> None:
        for line in path.read_text().splitlines():
            name, when = line.split()
            self.first.setdefault(name, int(when))
            self.count += 1


@contextmanager
def receiver(folder: Path) -> Iterator[tuple[str, AcceptedRequests]]:
    """Start a receiver and yield its address; what it received is filled in when the context ends."""
    path, received = folder / "received", AcceptedRequests()
    command = [sys.executable, "-m", "benchmarks.alerts.sender_job", "--receive", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/hook", received
        process.stdin.close()
        process.wait(30)
    received.read(path)


def messages(count: int, name: str) -> list[Message]:
    """Return a message per alert, of the size of the watcher's messages."""
    batch: list[Message] = []
    for number in range(count):
        labels = {"alertname": "TrainingStraggler", "severity": "warning", "run_id": f"{name}-{number}", "rank": str(number % 64)}
        annotations = {"summary": "Rank 5 makes the others wait.", "evidence": "x" * 400, "next": "look at the data loader"}
        alert = payload_alert(Alert(labels=labels, annotations=annotations), starts_at_unix_ns=1_790_000_000_000_000_000)
        batch += messages_about(TARGET, [Notice(alert=alert)])
    return batch


def figures_of(received: AcceptedRequests, put: Mapping[str, int], began: int, cpu_s: float) -> dict[str, float]:
    """Return the rate of deliveries and their latencies. ``put``: times of the messages; times are monotonic nanoseconds."""
    ordered = sorted((received.first[name] - when) / 1e6 for name, when in put.items())
    return {
        "messages": len(put),
        "deliveries_per_s": round(len(put) * 1e9 / (max(received.first.values()) - began), 1),
        "cpu_s": round(cpu_s, 2),
        "p50_ms": round(statistics.median(ordered), 2),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)], 2),
        "most_ms": round(ordered[-1], 2),
    }


def through_outbox(folder: Path, batch: Sequence[Message], *, at_once: int, pause_s: float) -> dict[str, float]:
    """Put the messages into the outbox, ``at_once`` at a time, while the sender delivers them."""
    with receiver(folder) as (url, received):
        outbox = Outbox(AlertStore(folder / "state"))
        sender = Sender(outbox, [Target(name=TARGET, label=TARGET, url=Secret(value=url))], report=print)
        sender.start()
        cpu, began = time.process_time(), time.monotonic_ns()
        put: dict[str, int] = {}
        for first in range(0, len(batch), at_once):
            part = batch[first : first + at_once]
            now = time.monotonic_ns()
            put |= {message.id: now for message in part}
            outbox.put(part)
            sender.wake()
            time.sleep(pause_s)
        unidentified = sender.drain(600.0)
        cpu = time.process_time() - cpu
        sender.stop()
        assert not unidentified, unidentified
    assert set(received.first) == set(put), "something was lost"
    return figures_of(received, put, began, cpu) | {
        "requests": received.count,
        "file_mib": round((folder / "state" / STORE_FILE).stat().st_size / 2**20, 1),
    }


def plain_loop(folder: Path, batch: Sequence[Message]) -> dict[str, float]:
    """Post the same bodies in a loop that keeps its connection and stores nothing."""
    with receiver(folder) as (url, received), httpx.Client() as client:
        cpu, began = time.process_time(), time.monotonic_ns()
        put: dict[str, int] = {}
        for message in batch:
            put[message.id] = time.monotonic_ns()
            client.post(url, content=message.body, headers={"webhook-id": message.id}).raise_for_status()
        cpu = time.process_time() - cpu
    return figures_of(received, put, began, cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alerts", type=int, default=10_000)
    parser.add_argument("--paced", type=int, default=500)
    parser.add_argument("--receive", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive is not None:
        receive(options.receive)
        return
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / part for part in ("burst", "paced", "peer")]
        for folder in folders:
            folder.mkdir()
        batch = messages(options.alerts, "burst")
        peer = plain_loop(folders[2], batch)
        burst = through_outbox(folders[0], batch, at_once=PUT_AT_ONCE, pause_s=0.0)
        paced = through_outbox(folders[1], messages(options.paced, "paced"), at_once=1, pause_s=PAUSE_S)
    peak_mib = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    figures = {"burst": burst, "one_by_one": paced, "plain_httpx_loop": peer, "peak_mib": peak_mib}
    ratio = round(peer["deliveries_per_s"] / burst["deliveries_per_s"], 2)
    budgets = [
        budget("deliveries per second, at least", burst["deliveries_per_s"], DELIVERIES_BUDGET, at_least=True),
        budget("time of a delivery over that of a plain loop", ratio, PEER_BUDGET),
        budget("from put to accepted, p99, one by one, ms", paced["p99_ms"], LATENCY_BUDGET_MS),
        budget("peak memory, MiB", peak_mib, MEMORY_BUDGET_MIB),
    ]
    finish(figures, budgets, environment("rankscope", "httpx"))


if __name__ == "__main__":
    main()
