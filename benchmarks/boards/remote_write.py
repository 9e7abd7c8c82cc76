"""A Prometheus that is filled with past data: samples by remote write, recorded series by querying the rules' expressions.

promtool also makes blocks, but it reads a text once for every two hours of data, and does not record from recorded series.
"""

from __future__ import annotations

import re
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import yaml

REQUEST_BYTES = 4 << 20
TIMEOUT_S = 900.0
CONFIG = """
global: {scrape_interval: 30s, evaluation_interval: 1m}
storage: {tsdb: {out_of_order_time_window: 48h}}
"""
"""Configuration that accepts out-of-order samples: recorded series of the past are older than the stored samples."""
QUIET_SHARE = 0.05
"""Share of a core below which Prometheus has no maintenance work left."""
_NAME = re.compile(r"[a-z_]+:[a-z_]+:[A-Za-z0-9_]+")


class _QueriedSeries(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    result: list[_QueriedSeries]


class _ApiAnswer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


def varint(number: int) -> bytes:
    """Encode a number as a varint of protobuf."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def label_bytes(labels: Mapping[str, str]) -> bytes:
    """Encode the labels of a time series for remote write."""
    parts = []
    for name, value in sorted(labels.items()):
        key, text = name.encode(), value.encode()
        pair = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(text)) + text
        parts.append(b"\x0a" + varint(len(pair)) + pair)
    return b"".join(parts)


def sample_bytes(times_ms: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Encode samples of several series at the same times, as bytes (series, times, 18): a value and a time of six bytes."""
    packed = np.empty((*values.shape, 18), np.uint8)
    packed[..., :3] = (0x12, 16, 0x09)
    packed[..., 3:11] = np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(*values.shape, 8)
    packed[..., 11] = 0x10
    assert 1 << 35 <= times_ms[0] < 1 << 42
    for place in range(6):
        packed[..., 12 + place] = (times_ms >> 7 * place) & 0x7F | (0x80 if place < 5 else 0)
    return packed


@dataclass(frozen=True, slots=True)
class FilledPrometheus:
    """A Prometheus at ``url``, of process ``pid``, that accepts remote write."""

    url: str
    client: httpx.Client
    pid: int = 0

    def write(self, labels: Sequence[bytes], times_ms: np.ndarray, values: np.ndarray) -> None:
        """Add samples (series, times) of series of these ``label_bytes``."""
        packed = sample_bytes(times_ms, values)
        self.send(
            b"\x0a" + varint(len(head) + packed[index].size) + head + packed[index].tobytes() for index, head in enumerate(labels)
        )

    def send(self, series: Iterable[bytes]) -> None:
        """Send parts of a remote-write request, in requests of an accepted size."""
        waiting: list[bytes] = []
        size = 0
        for sample in series:
            waiting.append(sample)
            size += len(sample)
            if size > REQUEST_BYTES:
                self._post(waiting)
                waiting, size = [], 0
        if waiting:
            self._post(waiting)

    def _post(self, parts: list[bytes]) -> None:
        body = b"".join(parts)
        # One literal: Snappy without compression.
        compressed = varint(len(body)) + b"\xfc" + struct.pack("<I", len(body) - 1) + body
        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        answer = self.client.post(f"{self.url}/api/v1/write", content=compressed, headers=headers)
        if answer.status_code >= httpx.codes.BAD_REQUEST:
            raise SystemExit(f"Prometheus does not take the samples: {answer.text[:300]}")

    def query(self, path: str, **parameters: str | float) -> tuple[float, bytes]:
        """Send a query. Returns the seconds until the answer was complete, and the answer. Raises ``SystemExit`` on an error."""
        began = time.perf_counter()
        answer = self.client.post(f"{self.url}/api/v1/{path}", data={name: str(value) for name, value in parameters.items()})
        took = time.perf_counter() - began
        if answer.status_code != httpx.codes.OK:
            raise SystemExit(f"Prometheus cannot answer: {answer.text[:300]}\n{parameters}")
        return took, answer.content

    def record(self, expr: str, name: str, labels: Mapping[str, str], *, start_s: int, end_s: int, step_s: int) -> float:
        """Write the series that a recording rule would have recorded. Returns the seconds of its query."""
        took, content = self.query("query_range", query=expr, start=start_s, end=end_s, step=step_s)
        answer = msgspec.json.decode(content, type=_ApiAnswer)
        assert answer.data is not None
        self.send(self._recorded(answer.data.result, {"__name__": name, **labels}))
        return took

    @staticmethod
    def _recorded(series_list: list[_QueriedSeries], more: Mapping[str, str]) -> Iterator[bytes]:
        for item in series_list:
            times = np.array([moment for moment, _ in item.values]) * 1000
            values = np.array([float(value) for _, value in item.values])
            head = label_bytes({**item.metric, **more})
            packed = sample_bytes(times.astype(np.int64), values[None, :])
            yield b"\x0a" + varint(len(head) + packed.size) + head + packed.tobytes()

    def settle(self) -> None:
        """Wait until Prometheus has finished its maintenance of the written data."""
        spent = self.cpu_s()
        for _ in range(60):
            time.sleep(10)
            before, spent = spent, self.cpu_s()
            if spent - before < 10 * QUIET_SHARE:
                return

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process has used so far, to the nanosecond, as Linux counts them by thread."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


@contextmanager
def empty_prometheus(program: str, folder: Path, address: str) -> Iterator[FilledPrometheus]:
    """Run a Prometheus that scrapes nothing and accepts remote write; its data are in ``folder``."""
    config = folder / "prometheus.yml"
    config.write_text(CONFIG)
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
        "--web.enable-remote-write-receiver",
        f"--query.timeout={TIMEOUT_S:.0f}s",
    ]
    with (
        (folder / "prometheus.log").open("wb") as log,
        httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            until = time.monotonic() + 60
            while not _is_ready(client, address):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"Prometheus does not start: {(folder / 'prometheus.log').read_text()[-300:]}")
                time.sleep(0.1)
            yield FilledPrometheus(f"http://{address}", client, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _is_ready(client: httpx.Client, address: str) -> bool:
    try:
        return client.get(f"http://{address}/-/ready").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def rules_in_order(text: str) -> list[dict[str, Any]]:
    """Return the recording rules of a rule file, each after the rules on which it depends."""
    groups = yaml.load(text, yaml.CSafeLoader)["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "record" in rule]
    collected: list[dict[str, Any]] = []
    while rules:
        waiting = {rule["record"] for rule in rules}
        ready = [rule for rule in rules if not (set(_NAME.findall(rule["expr"])) & waiting)]
        assert ready, waiting
        collected += ready
        rules = [rule for rule in rules if rule not in ready]
    return collected


def rests_on(expr: str, rules: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of all recorded series that an expression needs, directly or through others."""
    by_name = {rule["record"]: set(_NAME.findall(rule["expr"])) for rule in rules}
    result: set[str] = set()
    pending = set(_NAME.findall(expr)) & by_name.keys()
    while pending:
        result |= pending
        pending = {name for item in pending for name in by_name[item] & by_name.keys()} - result
    return result
