"""The exporter against nvitop-exporter, on the same driver library in the same run: prints one JSON object.

Eight full H100s are answered by the C library of the tests, whose calls cost about a microsecond, so that what is measured is the
exporters. Both sample once a second and are scraped once a second, in turns. CPU is that of all processes together.

    python benchmarks/exporter.py [--rounds 3] [--seconds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "exporter"))

from fake_driver import FakeDriver, build_library, h100_state, mig_state

CPU_RATIO_BUDGET = 0.5
SCRAPE_P99_MS_BUDGET = 10.0
SCRAPE_P99_HUNG_MS_BUDGET = 20.0
PSS_MIB_BUDGET = 120.0
GROWTH_MIB_BUDGET = 1.0
LINEAR_BUDGET = 1.2
"""CPU per GPU (or MIG instance) of the larger node over that of the smaller one."""

SCRAPERS = 20
TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of the tree, and of its children that ended."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def pss_mib(pid: int) -> float:
    """Proportional set size of the tree: shared pages count once."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{one}/smaps_rollup").read_text(), re.MULTILINE)
            total += int(match[1]) if match else 0
    return total / 1024


@dataclass(frozen=True)
class Running:
    """One exporter under measurement."""

    pid: int
    port: int

    def scrape(self) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            body: bytes = answer.read()
        return body

    def count(self, pattern: bytes) -> int:
        """Lines of the page that match."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return len(re.findall(pattern, answer.read(), re.MULTILINE))

    def series(self) -> int:
        return self.count(rb"^[a-zA-Z]")

    def pss_mib(self) -> float:
        return pss_mib(self.pid)

    def cpu_while_scraped(self, seconds: float) -> float:
        """CPU seconds per second while it samples and is scraped once a second."""
        before, began = cpu_seconds(self.pid), time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            self.scrape()
            time.sleep(max(0.0, min(1.0, began + seconds - now)))
        return (cpu_seconds(self.pid) - before) / (time.monotonic() - began)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port


@contextlib.contextmanager
def started(command: list[str], port: int, env: dict[str, str]) -> Iterator[Running]:
    """The command, as soon as it can be scraped."""
    process = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = Running(process.pid, port)
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                running.scrape()
                break
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"it did not start: {' '.join(command)}")
            time.sleep(0.2)
        time.sleep(5)  # past its first samples
        yield running
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rankscope(env: dict[str, str], folder: Path, *extra: str) -> contextlib.AbstractContextManager[Running]:
    port = free_port()
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "rankscope", "exporter", "--listen", f"127.0.0.1:{port}", "--interval", "1s"]
    return started(
        [
            *command,
            "--spool",
            str(folder / "spool"),
            "--state-dir",
            str(folder / "state"),
            "--control.socket",
            str(folder / "control.sock"),
            *extra,
        ],
        port,
        env,
    )


def nvitop(env: dict[str, str]) -> contextlib.AbstractContextManager[Running]:
    port = free_port()
    command = [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(port), "--interval", "1"]
    return started(command, port, env)


async def _scrape_for_ever(port: int, rounds: int, starts: list[asyncio.Event], latencies: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for start in starts[:rounds]:
            await start.wait()
            began = time.perf_counter()
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert head.startswith(b"HTTP/1.1 200"), head
            assert length, head
            await reader.readexactly(int(length[1]))
            latencies.append(time.perf_counter() - began)
    finally:
        writer.close()


async def burst_latencies(port: int, rounds: int) -> list[float]:
    """Seconds per scrape when ``SCRAPERS`` clients ask at the same moment, once a second."""
    starts = [asyncio.Event() for _ in range(rounds)]
    latencies: list[float] = []
    tasks = [asyncio.create_task(_scrape_for_ever(port, rounds, starts, latencies)) for _ in range(SCRAPERS)]
    for index, start in enumerate(starts):
        await asyncio.sleep(0.9 + 0.13 * (index % 4))  # at every phase of the sampling
        start.set()
    await asyncio.gather(*tasks)
    return latencies


def p99_ms(port: int, rounds: int) -> float:
    return statistics.quantiles(asyncio.run(burst_latencies(port, rounds)), n=100)[98] * 1e3


async def many_scrapes(port: int, count: int) -> None:
    started_at = asyncio.Event()
    started_at.set()
    await _scrape_for_ever(port, count, [started_at] * count, [])


def drivers(folder: Path) -> dict[str, FakeDriver]:
    """What the library answers for: 8 and 16 whole GPUs, and 4 and 8 GPUs cut into seven MIG devices each."""
    library = build_library()
    seven = [(1, "1g.10gb")] * 7
    kinds = {
        "8 GPUs": [h100_state(index) for index in range(8)],
        "16 GPUs": [h100_state(index) for index in range(16)],
        "28 MIG devices": [mig_state(index, seven) for index in range(4)],
        "56 MIG devices": [mig_state(index, seven) for index in range(8)],
    }
    return {kind: FakeDriver(folder / kind.replace(" ", "-"), library, gpus) for kind, gpus in kinds.items()}


def calls_per_second(driver: FakeDriver, seconds: float) -> float:
    """Calls into the library, by whoever runs."""
    driver.forget_counts()
    time.sleep(seconds)
    return sum(driver.counts().values()) / seconds


def versus(driver: FakeDriver, folder: Path, *, rounds: int, seconds: float) -> dict[str, Any]:
    """CPU of both exporters in turns, and what each page has."""
    ours, theirs, ratios = [], [], []
    pages: dict[str, int] = {}
    calls: dict[str, float] = {}
    for turn in range(rounds):
        with rankscope(driver.env, folder / f"turn{turn}") as running:
            ours.append(running.cpu_while_scraped(seconds))
            calls["rankscope"] = calls_per_second(driver, 5)
            pages["rankscope"] = running.series()
        with nvitop(driver.env) as running:
            theirs.append(running.cpu_while_scraped(seconds))
            calls["nvitop_exporter"] = calls_per_second(driver, 5)
            pages["nvitop_exporter"] = running.series()
        ratios.append(ours[-1] / theirs[-1])
    return {
        "cpu_percent_of_a_core": {
            "rankscope": round(100 * statistics.median(ours), 2),
            "nvitop_exporter": round(100 * statistics.median(theirs), 2),
        },
        "cpu_ratio": round(statistics.median(ratios), 3),
        "cpu_ratios": [round(ratio, 3) for ratio in ratios],
        "series": pages,
        "nvml_calls_per_gpu_and_second": {name: round(count / len(driver.gpus), 1) for name, count in calls.items()},
    }


def serving(driver: FakeDriver, folder: Path, *, bursts: int, scrapes: int) -> dict[str, Any]:
    """Latency of bursts, with all GPUs well and with one that hangs; memory, and its growth."""
    figures: dict[str, Any] = {}
    with rankscope(driver.env, folder / "serving") as running:
        figures["scrape_p99_ms"] = round(p99_ms(running.port, bursts), 2)
        figures["page_bytes_gzip"] = len(running.scrape())
        asyncio.run(many_scrapes(running.port, 1000))
        before = figures["pss_mib"] = round(running.pss_mib(), 1)
        asyncio.run(many_scrapes(running.port, scrapes))
        figures["pss_growth_mib"] = round(running.pss_mib() - before, 2)
        driver.hang("nvmlDeviceGetTemperature", gpu=3)
        figures["scrape_p99_one_gpu_hangs_ms"] = round(p99_ms(running.port, bursts), 2)
        figures["gpus_up_while_one_hangs"] = running.count(rb"^gpu_up\{.*\} 1")
        driver.heal()
    return figures


def linear(small: FakeDriver, large: FakeDriver, folder: Path, *, rounds: int, seconds: float) -> dict[str, Any]:
    """CPU of twice the hardware over twice the CPU of the smaller node, in turns."""
    ratios = []
    for turn in range(rounds):
        cpu = []
        for driver in (small, large):
            with rankscope(driver.env, folder / f"{driver.folder.name}-{turn}") as running:
                cpu.append(running.cpu_while_scraped(seconds))
        ratios.append(cpu[1] / (2 * cpu[0]))
    return {"cpu_per_unit_ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures, and whether they keep within their limits."""
    kinds = drivers(folder)
    turns = {"rounds": args.rounds, "seconds": args.seconds}
    figures = {
        "versus_nvitop_exporter": versus(kinds["8 GPUs"], folder, **turns),
        "serving": serving(kinds["8 GPUs"], folder, bursts=args.bursts, scrapes=args.scrapes),
        "16_over_8_gpus": linear(kinds["8 GPUs"], kinds["16 GPUs"], folder, **turns),
        "56_over_28_mig_devices": linear(kinds["28 MIG devices"], kinds["56 MIG devices"], folder, **turns),
    }
    served = figures["serving"]
    return {
        "figures": figures,
        "budgets": [
            budget("CPU over nvitop-exporter's", figures["versus_nvitop_exporter"]["cpu_ratio"], CPU_RATIO_BUDGET),
            budget(f"scrape p99 of {SCRAPERS} at once (ms)", served["scrape_p99_ms"], SCRAPE_P99_MS_BUDGET),
            budget("the same while one GPU hangs (ms)", served["scrape_p99_one_gpu_hangs_ms"], SCRAPE_P99_HUNG_MS_BUDGET),
            budget("PSS of all processes, 8 GPUs (MiB)", served["pss_mib"], PSS_MIB_BUDGET),
            budget(f"growth over {args.scrapes} scrapes (MiB)", served["pss_growth_mib"], GROWTH_MIB_BUDGET),
            budget("CPU per GPU, 16 over 8", figures["16_over_8_gpus"]["cpu_per_unit_ratio"], LINEAR_BUDGET),
            budget("CPU per MIG device, 56 over 28", figures["56_over_28_mig_devices"]["cpu_per_unit_ratio"], LINEAR_BUDGET),
        ],
        "environment": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "driver_library": "tests/exporter/fake_nvml (no GPU)",
            **{name: version(name) for name in ("rankscope", "nvitop-exporter", "nvidia-ml-py")},
        },
    }


def budget(name: str, value: float, limit: float) -> dict[str, Any]:
    return {"name": name, "value": value, "limit": limit, "ok": value <= limit}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often the two exporters take turns")
    parser.add_argument("--seconds", type=float, default=20, help="how long each is measured each time")
    parser.add_argument("--bursts", type=int, default=60, help=f"bursts of {SCRAPERS} scrapes for the latencies")
    parser.add_argument("--scrapes", type=int, default=10_000, help="scrapes for the growth of memory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(args, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
