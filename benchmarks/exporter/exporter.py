"""The exporter against nvitop-exporter, on the same driver library in the same run. Prints one JSON object.

The C library of the tests simulates eight full H100s. Its calls cost about a microsecond, so the cost of the exporters dominates.
Both exporters run side by side, because the speed of a machine changes from one moment to the next. Both sample once a second and
are scraped once a second. CPU is that of all processes, and ratios are medians over the rounds. Most values of the library are
constant, unlike the power, clocks and temperatures of a real GPU.

    python -m benchmarks.exporter.exporter [--rounds 5] [--seconds 10]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import re
import select
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from benchmarks.common.processes import cpu_seconds, free_port, pss_bytes
from benchmarks.common.result import budget, environment, finish
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state, mig_state

CPU_RATIO_BUDGET = 0.6
SCRAPE_P99_MS_BUDGET = 10.0
SCRAPE_P99_HUNG_MS_BUDGET = 20.0
PSS_MIB_BUDGET = 120.0
GROWTH_MIB_BUDGET = 1.0
STALLED = 1000
"""Number of clients that stop in the middle of a request."""
STALLED_MIB_BUDGET = 29.0
STALLED_LIMIT_S = 60.0
"""Time limit for closing their connections; the deadline of a request is 10 s."""
HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "
DRIVER_LIBRARY = "tests/exporter/fake_nvml (no GPU)"
LINEAR_BUDGET = 1.2
"""Limit for the CPU per GPU (or MIG instance) of the larger node over that of the smaller one."""

SCRAPERS = 20


@dataclass(frozen=True)
class MeasuredExporter:
    """One exporter under measurement."""

    pid: int
    port: int
    connection: http.client.HTTPConnection

    def scrape(self) -> bytes:
        """Scrape like Prometheus: compressed, and over one connection for as long as the exporter keeps it."""
        try:
            answer = self._ask()
        except ConnectionError:  # idle for longer than the exporter keeps a connection
            answer = self._ask()
        body = answer.read()
        assert answer.status == HTTPStatus.OK, body
        return body

    def _ask(self) -> http.client.HTTPResponse:
        try:
            self.connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            return self.connection.getresponse()
        except OSError:
            self.connection.close()
            raise

    def count(self, pattern: bytes) -> int:
        """Return the number of matches of a pattern in the page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return len(re.findall(pattern, answer.read(), re.MULTILINE))

    def series(self) -> int:
        return self.count(rb"^[a-zA-Z]")

    def pss_mib(self) -> float:
        return pss_bytes(self.pid) / 2**20


def cpu_side_by_side(exporters: list[MeasuredExporter], *, rounds: int, seconds: int) -> list[list[float]]:
    """Return the CPU seconds per second of each exporter in each round, while all are scraped once a second, in turn."""
    collected: list[list[float]] = [[] for _ in exporters]
    for _ in range(rounds):
        before, began = [cpu_seconds(exporter.pid) for exporter in exporters], time.monotonic()
        for step in range(seconds * len(exporters)):
            exporters[step % len(exporters)].scrape()
            time.sleep(max(0.0, began + (step + 1) / len(exporters) - time.monotonic()))
        elapsed_s = time.monotonic() - began
        for exporter, cpu_s, results in zip(exporters, before, collected, strict=True):
            results.append((cpu_seconds(exporter.pid) - cpu_s) / elapsed_s)
    return collected


@contextlib.contextmanager
def started(command: list[str], port: int, env: dict[str, str]) -> Iterator[MeasuredExporter]:
    """Start an exporter. Yields it after its first samples."""
    process = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = MeasuredExporter(process.pid, port, http.client.HTTPConnection("127.0.0.1", port, timeout=10))
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                running.scrape()
                break
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"it did not start: {' '.join(command)}")
            time.sleep(0.2)
        time.sleep(5)  # until it has its first samples
        yield running
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rankscope(env: dict[str, str], folder: Path, *extra: str) -> contextlib.AbstractContextManager[MeasuredExporter]:
    port = free_port()
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "rankscope", "exporter", "--listen", f"127.0.0.1:{port}", "--interval", "1s"]
    places = {"--spool": "spool", "--state-dir": "state", "--control.socket": "control.sock"}
    command += [word for option, name in places.items() for word in (option, str(folder / name))]
    return started([*command, *extra], port, env)


def nvitop(env: dict[str, str]) -> contextlib.AbstractContextManager[MeasuredExporter]:
    port = free_port()
    command = [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(port), "--interval", "1"]
    return started(command, port, env)


class Scraper:
    """One client on a plain socket, so that the measurement itself costs little."""

    _REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._began = 0.0
        self._page = b""

    def ask(self) -> None:
        self._page, self._began = b"", time.perf_counter()
        self.socket.sendall(self._REQUEST)

    def hear(self) -> float | None:
        """Read a part of the page. Returns the seconds since the request once the page is complete, else ``None``."""
        piece = self.socket.recv(1 << 20)
        assert piece, "the exporter hung up"
        self._page += piece
        head, _, body = self._page.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if length is None or len(body) < int(length[1]):
            return None
        assert head.startswith(b"HTTP/1.1 200"), head
        return time.perf_counter() - self._began


def burst(scrapers: list[Scraper], spread_s: float) -> list[float]:
    """Return the seconds of one scrape by each client: all at the same moment, or spread over ``spread_s``."""
    began = time.monotonic()
    due = [(began + spread_s * place / len(scrapers), scraper) for place, scraper in enumerate(scrapers)]
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        for scraper in scrapers:
            selector.register(scraper.socket, selectors.EVENT_READ, scraper)
        while len(latencies) < len(scrapers):
            while due and due[0][0] <= time.monotonic():
                due.pop(0)[1].ask()
            for key, _ in selector.select(max(0.0, due[0][0] - time.monotonic()) if due else 10):
                took = key.data.hear()
                if took is not None:
                    latencies.append(took)
    return latencies


def latencies_ms(port: int, rounds: int, *, pause_s: float = 0.9, spread_s: float = 0) -> dict[str, float]:
    """Measure the latencies of ``SCRAPERS`` clients that scrape after every pause, or a little later, over open connections.

    In the first two rounds the exporter cannot predict the next scrape yet, and renders the page while the clients wait. The
    worst latency of these rounds is a figure of its own, as is the worst of all others.
    """
    scrapers = [Scraper(port) for _ in range(SCRAPERS)]
    latencies: list[list[float]] = []
    for index in range(rounds + 2):
        time.sleep(pause_s + 0.13 * (index % 4))  # at every phase of the sampling
        latencies.append(burst(scrapers, spread_s))
    for scraper in scrapers:
        scraper.socket.close()
    unexpected = [item for round_ in latencies[:2] for item in round_]
    every = [item for round_ in latencies[2:] for item in round_]
    quantiles = statistics.quantiles(every, n=100)
    figures = {"p50": quantiles[49], "p99": quantiles[98], "worst": max(every), "worst_unexpected": max(unexpected)}
    return {name: round(1e3 * value, 2) for name, value in figures.items()}


def drivers(folder: Path) -> dict[str, FakeDriver]:
    """Return the simulated nodes: 8 and 16 whole GPUs, and 4 and 8 GPUs divided into seven MIG devices each."""
    library = build_library()
    seven = [(1, "1g.10gb")] * 7
    kinds = {
        "8 GPUs": [h100_state(index) for index in range(8)],
        "8 GPUs again": [h100_state(index) for index in range(8)],
        "16 GPUs": [h100_state(index) for index in range(16)],
        "28 MIG devices": [mig_state(index, seven) for index in range(4)],
        "56 MIG devices": [mig_state(index, seven) for index in range(8)],
    }
    return {kind: FakeDriver(folder / kind.replace(" ", "-"), library, gpus) for kind, gpus in kinds.items()}


def stalled(server: MeasuredExporter) -> dict[str, float]:
    """Measure the cost of half requests: memory, the time of a health check among them, and the connections left open."""
    before = server.pss_mib()
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        poll = select.poll()
        for _ in range(STALLED):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            with contextlib.suppress(ConnectionError):
                connection.sendall(HALF_A_REQUEST)
            poll.register(connection, select.POLLRDHUP)
        grown = server.pss_mib() - before
        begin_s = time.perf_counter()
        probe = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        probe.request("GET", "/-/healthy")
        status = probe.getresponse().status
        health_ms = 1e3 * (time.perf_counter() - begin_s)
        probe.close()
        open_connections = STALLED
        while open_connections and time.monotonic() - began < STALLED_LIMIT_S:
            for descriptor, _ in poll.poll(1000):
                poll.unregister(descriptor)
                open_connections -= 1
        ended_s = time.monotonic() - began
    return {
        "memory_mib": round(grown, 1),
        "healthy_status": status,
        "healthy_ms": round(health_ms, 1),
        "left_open": open_connections,
        "all_closed_after_s": round(ended_s, 1),
    }


def calls_per_second(driver: FakeDriver, seconds: float) -> float:
    """Return the calls into the library per second, by all processes."""
    driver.forget_counts()
    time.sleep(seconds)
    calls: int = sum(driver.counts().values())
    return calls / seconds


def versus(driver: FakeDriver, twin: FakeDriver, folder: Path, *, rounds: int, seconds: int) -> dict[str, Any]:
    """Measure the CPU of both exporters, each on a library of its own with the same GPUs, and the series on each page."""
    with rankscope(driver.env, folder / "versus") as ours, nvitop(twin.env) as theirs:
        cpu = cpu_side_by_side([ours, theirs], rounds=rounds, seconds=seconds)
        calls = [calls_per_second(item, 5) for item in (driver, twin)]
        series = [item.series() for item in (ours, theirs)]
    ratios = [own / other for own, other in zip(*cpu, strict=True)]
    names = ("rankscope", "nvitop_exporter")
    return {
        "cpu_percent_of_a_core": {name: round(100 * statistics.median(item), 2) for name, item in zip(names, cpu, strict=True)},
        "cpu_ratio": round(statistics.median(ratios), 3),
        "cpu_ratios": [round(ratio, 3) for ratio in ratios],
        "series": dict(zip(names, series, strict=True)),
        "nvml_calls_per_gpu_and_second": {
            name: round(count / len(driver.gpus), 1) for name, count in zip(names, calls, strict=True)
        },
    }


def serving(driver: FakeDriver, folder: Path, *, bursts: int, scrapes: int) -> dict[str, Any]:
    """Measure the latency of bursts, with all GPUs healthy and with one that hangs; also memory and stalled clients."""
    figures: dict[str, Any] = {}
    with rankscope(driver.env, folder / "serving") as running:
        figures["scrape_ms"] = latencies_ms(running.port, bursts)
        figures["scrape_every_5_s_ms"] = latencies_ms(running.port, bursts // 4, pause_s=5)
        figures["scrape_spread_over_the_second_ms"] = latencies_ms(running.port, bursts, spread_s=0.8)
        figures["page_bytes_gzip"] = len(running.scrape())
        for _ in range(1000):
            running.scrape()
        before = figures["pss_mib"] = round(running.pss_mib(), 1)
        for _ in range(scrapes):
            running.scrape()
        figures["pss_growth_mib"] = round(running.pss_mib() - before, 2)
        figures[f"stalled_{STALLED}"] = stalled(running)
        driver.hang("nvmlDeviceGetTemperature", gpu=3)
        figures["scrape_one_gpu_hangs_ms"] = latencies_ms(running.port, bursts)
        figures["gpus_up_while_one_hangs"] = running.count(rb"^gpu_up\{.*\} 1")
        driver.heal()
    return figures


def linear(small: FakeDriver, large: FakeDriver, folder: Path, *, rounds: int, seconds: int) -> dict[str, Any]:
    """Measure the CPU of a node with twice the hardware over twice the CPU of the smaller node."""
    places = [folder / f"linear-{driver.folder.name}" for driver in (small, large)]
    with rankscope(small.env, places[0]) as small_node, rankscope(large.env, places[1]) as large_node:
        cpu = cpu_side_by_side([small_node, large_node], rounds=rounds, seconds=seconds)
    ratios = [twice / (2 * once) for once, twice in zip(*cpu, strict=True)]
    return {"cpu_per_unit_ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}


def measure(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[dict[str, object]]]:
    """Return all figures and budgets."""
    kinds = drivers(folder)
    turns = {"rounds": args.rounds, "seconds": args.seconds}
    figures = {
        "versus_nvitop_exporter": versus(kinds["8 GPUs"], kinds["8 GPUs again"], folder, **turns),
        "serving": serving(kinds["8 GPUs"], folder, bursts=args.bursts, scrapes=args.scrapes),
        "16_over_8_gpus": linear(kinds["8 GPUs"], kinds["16 GPUs"], folder, **turns),
        "56_over_28_mig_devices": linear(kinds["28 MIG devices"], kinds["56 MIG devices"], folder, **turns),
    }
    served = figures["serving"]
    stalled_clients = served[f"stalled_{STALLED}"]
    return figures, [
        budget("CPU over nvitop-exporter's", figures["versus_nvitop_exporter"]["cpu_ratio"], CPU_RATIO_BUDGET),
        budget(f"scrape p99 of {SCRAPERS} at once, every second (ms)", served["scrape_ms"]["p99"], SCRAPE_P99_MS_BUDGET),
        budget("the same every 5 seconds (ms)", served["scrape_every_5_s_ms"]["p99"], SCRAPE_P99_MS_BUDGET),
        budget("every second, while one GPU hangs (ms)", served["scrape_one_gpu_hangs_ms"]["p99"], SCRAPE_P99_HUNG_MS_BUDGET),
        budget("PSS of all processes, 8 GPUs (MiB)", served["pss_mib"], PSS_MIB_BUDGET),
        budget(f"growth over {args.scrapes} scrapes (MiB)", served["pss_growth_mib"], GROWTH_MIB_BUDGET),
        budget(f"memory of {STALLED} stalled connections (MiB)", stalled_clients["memory_mib"], STALLED_MIB_BUDGET),
        budget("stalled connections that stay open", stalled_clients["left_open"], 0),
        budget("health checks refused among them", float(stalled_clients["healthy_status"] != HTTPStatus.OK), 0),
        budget("CPU per GPU, 16 over 8", figures["16_over_8_gpus"]["cpu_per_unit_ratio"], LINEAR_BUDGET),
        budget("CPU per MIG device, 56 over 28", figures["56_over_28_mig_devices"]["cpu_per_unit_ratio"], LINEAR_BUDGET),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each comparison is measured")
    parser.add_argument("--seconds", type=int, default=10, help="how long each round lasts")
    parser.add_argument("--bursts", type=int, default=40, help=f"bursts of {SCRAPERS} scrapes for the latencies")
    parser.add_argument("--scrapes", type=int, default=10_000, help="scrapes for the growth of memory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures, budgets = measure(args, Path(folder))
    finish(figures, budgets, environment("rankscope", "nvitop-exporter", "nvidia-ml-py", driver_library=DRIVER_LIBRARY))


if __name__ == "__main__":
    main()
