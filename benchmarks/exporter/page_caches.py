"""The caches between a reading and the bytes of /metrics, each removed in turn. Prints one JSON object.

The C library of the tests simulates eight H100s whose values change every second; eight ranks write files. An exporter without a
cache, one with all caches, and nvitop-exporter run side by side, because the speed of a machine changes all the time. A cache is
needed if its removal breaks a budget of benchmarks/exporter/exporter.py that holds with all caches.

    python -m benchmarks.exporter.page_caches [--cpu] [--rounds 3] [--seconds 8] [--remove NAME[,NAME…] …]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.exporter.exporter import (
    CPU_RATIO_BUDGET,
    SCRAPE_P99_HUNG_MS_BUDGET,
    SCRAPE_P99_MS_BUDGET,
    RunningExporter,
    cpu_seconds,
    free_port,
    latencies_ms,
    nvitop,
    started,
)
from benchmarks.exporter.http_server import cpu_us_per_scrape
from benchmarks.exporter.page_caches_job import EVERY, write_ranks
from tests.exporter.fake_driver import MIB, FakeDriver, build_library, h100_state

ALL_KEPT = "none"
PEER = "nvitop_exporter"
JOB = Path(__file__).with_name("page_caches_job.py")


def exporter(
    driver: FakeDriver, folder: Path, removed: str, *, ranks: bool = True
) -> contextlib.AbstractContextManager[RunningExporter]:
    """Run the exporter without the ``removed`` caches."""
    port, own = free_port(), Path(tempfile.mkdtemp(dir=folder))
    places = [
        "--spool",
        (folder if ranks else own) / "spool",
        "--state-dir",
        own / "state",
        "--control.socket",
        own / "control.sock",
    ]
    names = "" if removed == ALL_KEPT else removed
    command = [sys.executable, JOB, names, "exporter", "--listen", f"127.0.0.1:{port}", "--interval", "1s", *places]
    return started([str(part) for part in command], port, driver.env)


@contextlib.contextmanager
def living(driver: FakeDriver, spool: Path) -> Iterator[threading.Lock]:
    """Change the values of the GPUs and the files of the ranks every second. Yields the lock that guards the driver."""
    ended, lock = threading.Event(), threading.Lock()

    def once(second: int) -> None:
        for index, gpu in enumerate(driver.gpus):
            noise = (second * 7 + index * 3) % 11
            gpu.update(
                {
                    "power": 600_000 + 1000 * noise,
                    "temperature": 60 + noise,
                    "memory_temperature": 70 + noise,
                    "memory_used": (60_000 + noise) * MIB,
                    "clock_graphics": 1700 + 15 * noise,
                    "clock_sm": 1700 + 15 * noise,
                    "field.83": f"{123456789 + 600_000 * second} ull",
                }
            )
        with lock:
            driver.write()
        write_ranks(spool, second)

    def live() -> None:
        second = 1
        while not ended.wait(1):
            second += 1
            once(second)

    spool.mkdir()
    once(1)
    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    yield lock
    ended.set()
    thread.join()


def cpu_per_second(exporters: dict[str, RunningExporter], *, rounds: int, seconds: int, scrapers: int) -> dict[str, list[float]]:
    """Return the CPU seconds per second of each exporter in each round, scraped ``scrapers`` times a second."""
    by_key: dict[str, list[float]] = {name: [] for name in exporters}
    for _ in range(rounds):
        before, began = {name: cpu_seconds(value.pid) for name, value in exporters.items()}, time.monotonic()
        steps = seconds * scrapers * len(exporters)
        for step in range(steps):
            [*exporters.values()][step % len(exporters)].scrape()
            time.sleep(max(0.0, began + (step + 1) * seconds / steps - time.monotonic()))
        elapsed_s = time.monotonic() - began
        for name, value in exporters.items():
            by_key[name].append((cpu_seconds(value.pid) - before[name]) / elapsed_s)
    return by_key


def p99_ms(exporters: dict[str, RunningExporter], *, repeats: int, bursts: int, pause_s: float) -> dict[str, list[float]]:
    """Return the p99 latency of 20 scrapers at once in every repeat; the two exporters are scraped half a pause apart."""
    by_key: dict[str, list[float]] = {name: [] for name in exporters}

    def ask(name: str, after_s: float) -> None:
        time.sleep(after_s)
        by_key[name].append(latencies_ms(exporters[name].port, bursts, pause_s=pause_s)["p99"])

    for _ in range(repeats):
        threads = [
            threading.Thread(target=ask, args=(name, place * pause_s / len(exporters))) for place, name in enumerate(exporters)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return by_key


def measure(removed: str, driver: FakeDriver, lock: threading.Lock, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one removal beside the exporter with all caches and nvitop-exporter, and the budgets that it breaks."""
    cpu: dict[str, dict[str, list[float]]] = {}
    p99: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        measured = {name: stack.enter_context(exporter(driver, folder, name, ranks=False)) for name in (ALL_KEPT, removed)}
        measured[PEER] = stack.enter_context(nvitop(driver.env))
        cpu["no ranks"] = cpu_per_second(measured, rounds=args.rounds, seconds=args.seconds, scrapers=1)
    turns = {"repeats": args.repeats, "bursts": args.bursts}
    with exporter(driver, folder, ALL_KEPT) as cached, exporter(driver, folder, removed) as without, nvitop(driver.env) as peer:
        ours = {ALL_KEPT: cached, removed: without}
        series = cached.series()
        for scrapers in (1, 3):
            key = f"8 ranks, {scrapers} scraper{'s' if scrapers > 1 else ''}"
            measured = {**ours, PEER: peer}
            cpu[key] = cpu_per_second(measured, rounds=args.rounds, seconds=args.seconds, scrapers=scrapers)
        p99["every second"] = p99_ms(ours, **turns, pause_s=0.9)
        p99["every 5 seconds"] = p99_ms(ours, repeats=1, bursts=args.bursts // 2, pause_s=5)
        with lock:
            driver.hang("nvmlDeviceGetTemperature", gpu=3)
        p99["one GPU hangs"] = p99_ms(ours, **turns, pause_s=0.9)
        with lock:
            driver.heal()
    rows = [_cpu_row(key, values, removed) for key, values in cpu.items()]
    rows += [_p99_row(key, values, removed) for key, values in p99.items()]
    return {
        "breaks": [row["budget"] for row in rows if row["kept"] <= row["limit"] < row["removed"]],
        "cpu_over_all_kept": {key: round(_median_ratio(values, removed, ALL_KEPT), 3) for key, values in cpu.items()},
        "cpu_percent_of_a_core": {
            key: {name: round(100 * statistics.median(value), 2) for name, value in values.items()} for key, values in cpu.items()
        },
        "budgets": rows,
        **cpu_of_one(removed, driver, folder, args.pages),
        "series": series,
        "load_average": round(os.getloadavg()[0], 1),
    }


def cpu_of_one(removed: str, driver: FakeDriver, folder: Path, pages: int) -> dict[str, Any]:
    """Return the CPU of rendering one page, and of one scrape of a rendered page. A busy machine changes them little."""
    with exporter(driver, folder, ALL_KEPT) as cached, exporter(driver, folder, removed) as without:
        scrapes = {ALL_KEPT: round(cpu_us_per_scrape(cached, 500), 1), removed: round(cpu_us_per_scrape(without, 500), 1)}
    return {"page_cpu_ms": {name: page_cpu_ms(name, pages) for name in (ALL_KEPT, removed)}, "scrape_cpu_us": scrapes}


def page_cpu_ms(removed: str, pages: int) -> dict[str, float]:
    """Return the CPU of a spool's pass and of pages, measured in a process of its own, without waiting for a busy machine."""
    names = "" if removed == ALL_KEPT else removed
    result: dict[str, float] = json.loads(subprocess.check_output([sys.executable, JOB, names, "page", str(pages)]))
    return result


def _median_ratio(values: dict[str, list[float]], variant: str, other: str) -> float:
    return statistics.median(first / second for first, second in zip(values[variant], values[other], strict=True))


def _cpu_row(scrapers: str, values: dict[str, list[float]], removed: str) -> dict[str, Any]:
    cached, without = (round(_median_ratio(values, name, PEER), 3) for name in (ALL_KEPT, removed))
    return {"budget": f"CPU over nvitop-exporter's, {scrapers}", "kept": cached, "removed": without, "limit": CPU_RATIO_BUDGET}


def _p99_row(kind: str, values: dict[str, list[float]], removed: str) -> dict[str, Any]:
    cached, without = (round(statistics.median(values[name]), 2) for name in (ALL_KEPT, removed))
    limit = SCRAPE_P99_HUNG_MS_BUDGET if "hangs" in kind else SCRAPE_P99_MS_BUDGET
    return {"budget": f"scrape p99, {kind} (ms)", "kept": cached, "removed": without, "limit": limit}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often CPU is compared")
    parser.add_argument("--seconds", type=int, default=8, help="how long each round lasts")
    parser.add_argument("--repeats", type=int, default=2, help="how often the latencies of each exporter are measured")
    parser.add_argument("--bursts", type=int, default=8, help="bursts of 20 scrapes in each repeat")
    parser.add_argument("--pages", type=int, default=300, help="pages rendered for the CPU of one")
    parser.add_argument("--cpu", action="store_true", help="only the CPU of one page and of one scrape")
    parser.add_argument("--remove", action="append", help=f"caches to remove together; by default each alone: {', '.join(EVERY)}")
    args = parser.parse_args()
    removals: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = FakeDriver(folder / "driver", build_library(), [h100_state(index) for index in range(8)])
        with living(driver, folder / "spool") as lock:
            for removed in args.remove or EVERY:
                removals[removed] = (
                    cpu_of_one(removed, driver, folder, args.pages) if args.cpu else measure(removed, driver, lock, folder, args)
                )
                print(removed, json.dumps(removals[removed]), file=sys.stderr, flush=True)
    environment = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "driver_library": "tests/exporter/fake_nvml (no GPU)",
        **{package: version(package) for package in ("rankscope", "nvidia-ml-py", *([] if args.cpu else ["nvitop-exporter"]))},
    }
    print(json.dumps({"removals": removals, "environment": environment}, indent=2))


if __name__ == "__main__":
    main()
