"""CPU of the exporter's page without each of its caches in turn. Prints one JSON object.

The C library of the tests simulates eight H100s; eight ranks write files. Measured are the CPU of rendering one page, and of one
scrape of a rendered page: a busy machine changes them little.

    python -m benchmarks.exporter.page_caches [--pages 300] [--remove NAME[,NAME…] …]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common.processes import free_port
from benchmarks.common.result import environment
from benchmarks.exporter.exporter import DRIVER_LIBRARY, MeasuredExporter, started
from benchmarks.exporter.page_caches_job import EVERY, write_ranks
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state

ALL_KEPT = "none"
JOB = Path(__file__).with_name("page_caches_job.py")
SCRAPES, BLOCK = 500, 20


def own_cpu_s(pid: int) -> float:
    """Return the CPU time of one process, without the processes that call the driver."""
    return time.clock_gettime(~pid << 3 | 2)


def cpu_us_per_scrape(server: MeasuredExporter, scrapes: int) -> float:
    """Return the CPU microseconds of the serving process per scrape, from the cheapest block of scrapes.

    That block has no sampling in it, and ran on a quiet core.
    """
    blocks = []
    for _ in range(scrapes // BLOCK):
        before = own_cpu_s(server.pid)
        for _ in range(BLOCK):
            server.scrape()
        blocks.append(own_cpu_s(server.pid) - before)
    return 1e6 * min(blocks) / BLOCK


def measure(removed: str, driver: FakeDriver, folder: Path, pages: int) -> dict[str, Any]:
    """Return the CPU of one page and of one scrape with all caches, and without ``removed``."""
    page_cpu_ms: dict[str, Any] = {}
    scrape_cpu_us: dict[str, float] = {}
    with ExitStack() as stack:
        for number, name in enumerate((ALL_KEPT, removed)):
            caches, port = "" if name == ALL_KEPT else name, free_port()
            page_cpu_ms[name] = json.loads(subprocess.check_output([sys.executable, JOB, caches, "page", str(pages)]))
            own = folder / f"{removed}-{number}"
            places = ["--spool", folder / "spool", "--state-dir", own / "state", "--control.socket", own / "control.sock"]
            own.mkdir()
            command = [sys.executable, JOB, caches, "exporter", "--listen", f"127.0.0.1:{port}", "--interval", "1s", *places]
            server = stack.enter_context(started([str(part) for part in command], port, driver.env))
            scrape_cpu_us[name] = round(cpu_us_per_scrape(server, SCRAPES), 1)
    return {"page_cpu_ms": page_cpu_ms, "scrape_cpu_us": scrape_cpu_us}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=300, help="pages rendered for the CPU of one")
    parser.add_argument("--remove", action="append", help=f"caches to remove together; by default each alone: {', '.join(EVERY)}")
    args = parser.parse_args()
    removals: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = FakeDriver(folder / "driver", build_library(), [h100_state(index) for index in range(8)])
        (folder / "spool").mkdir()
        write_ranks(folder / "spool", 1)
        for removed in args.remove or EVERY:
            removals[removed] = measure(removed, driver, folder, args.pages)
            print(removed, json.dumps(removals[removed]), file=sys.stderr, flush=True)
    about = environment("rankscope", "nvidia-ml-py", driver_library=DRIVER_LIBRARY)
    print(json.dumps({"removals": removals, "environment": about}, indent=1))


if __name__ == "__main__":
    main()
