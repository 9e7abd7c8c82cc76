"""The exporter, scraped once a second during every fault of a node (`make campaign`): one table row per fault.

The fake driver's power readings change every second, so that every value on a page shows when it was written.
"""

from __future__ import annotations

import contextlib
import http.client
import mmap
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from benchmarks.common.processes import tree
from prometheus_client.parser import text_string_to_metric_families
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state, mig_state, uuid_of
from tests.full_disk import small_disk
from tests.waiting import wait_until

pytestmark = [pytest.mark.campaign, pytest.mark.slow]

GPUS = 8
INTERVAL_S = 1.0
QUIET_S, HOLD_S, RECOVERY_S = 3.0, 12.0, 90.0
# five intervals, one second between two changes of the readings, and one for a busy machine
FRESH_S = 5 * INTERVAL_S + 2
BASE_WATTS = 100


@dataclass
class Page:
    """One scrape. ``watts`` and ``up`` by index of the GPU."""

    at: float
    status: int
    took_s: float
    series: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)

    def values(self, metric: str, /, **labels: str) -> list[float]:
        wanted = set(labels.items())
        return [value for (name, have), value in self.series.items() if name == metric and wanted <= have]


@dataclass
class Scene:
    """The exporter, its driver, and all pages scraped so far."""

    driver: FakeDriver
    process: subprocess.Popen[bytes]
    host: str
    port: int
    folder: Path
    log: Path
    clock: mmap.mmap
    pages: list[Page] = field(default_factory=list)
    written_at: list[float] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def get(self) -> Page:
        began = time.monotonic()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            body = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return Page(began, 0, time.monotonic() - began)
        finally:
            connection.close()
        took_s = time.monotonic() - began
        page = Page(began, answer.status, took_s)
        if answer.status == 200:
            for family in text_string_to_metric_families(body):
                page.series |= {(sample.name, frozenset(sample.labels.items())): sample.value for sample in family.samples}
        return page

    def tick(self) -> None:
        """Change the driver's power readings and note the time."""
        with self.lock:
            for gpu in self.driver.gpus:
                gpu["power"] = 1000 * (BASE_WATTS + len(self.written_at))
            self.written_at.append(time.monotonic())
            self.driver.write()

    def change(self, what: Callable[[Any], None]) -> None:
        with self.lock:
            what(self.driver)

    def stale(self, page: Page) -> int:
        """Return the number of values on the page that are older than ``FRESH_S``."""
        return sum(page.at - self.written_at[int(watts) - BASE_WATTS] > FRESH_S for watts in page.values("gpu_power_watts"))

    def healthy(self, page: Page, index: int) -> bool:
        uuid = uuid_of(index)
        return page.values("gpu_up", uuid=uuid) == [1.0] and len(page.values("gpu_power_watts", uuid=uuid)) == 1


@dataclass(frozen=True)
class Fault:
    """A fault. ``plant`` returns the function that ends it; ``touches``: GPUs that may be down; ``seen``: a page shows it."""

    name: str
    plant: Callable[[Scene], Callable[[], None]]
    touches: frozenset[int] = frozenset()
    seen: Callable[[Page], bool] = lambda _page: True


def _down(*indexes: int) -> Callable[[Page], bool]:
    return lambda page: all(page.values("gpu_up", uuid=uuid_of(index)) == [0.0] for index in indexes)


def _on_driver(begin: Callable[[Any], None]) -> Callable[[Scene], Callable[[], None]]:
    def plant(scene: Scene) -> Callable[[], None]:
        scene.change(begin)
        return lambda: scene.change(lambda driver: driver.heal())

    return plant


def _kill_worker(scene: Scene) -> Callable[[], None]:
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in tree(scene.process.pid)}
    os.kill(next(pid for pid, name in names.items() if name == "rs-gpu-1d:00.0"), signal.SIGKILL)
    return lambda: None


def _fill_disk(scene: Scene) -> Callable[[], None]:
    """Fill the tiny file system of the state folder, and cause more Xid errors than fit into its last page."""
    filler = scene.folder / "state" / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    scene.change(lambda driver: driver.xid(3, *([79, 48] * 100)))
    return filler.unlink


def _idle_connections(scene: Scene) -> Callable[[], None]:
    connections = [socket.create_connection((scene.host, scene.port), timeout=10) for _ in range(1000)]
    for number, connection in enumerate(connections):
        if number % 2:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")

    def end() -> None:
        for connection in connections:
            connection.close()

    return end


def _many_scrapers(scene: Scene) -> Callable[[], None]:
    enough = threading.Event()
    failed: list[int] = []

    def scrape() -> None:
        while not enough.wait(1):
            connection = http.client.HTTPConnection(scene.host, scene.port, timeout=10)
            with contextlib.closing(connection):
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    failed.append(answer.status)

    threads = [threading.Thread(target=scrape) for _ in range(100)]
    for thread in threads:
        thread.start()

    def end() -> None:
        enough.set()
        for thread in threads:
            thread.join()
        assert failed == []

    return end


def _hostile_spool(scene: Scene) -> Callable[[], None]:
    spool = scene.folder / "spool"
    os.mkfifo(spool / "fifo.prom")
    (spool / "link.prom").symlink_to("/etc/passwd")
    (spool / "huge.prom").write_bytes(b"rank_steps_total 1\n" * 100_000)
    (spool / "torn.prom").write_text('rank_steps_total{run="r",rank="0"')
    (spool / "spoofed.prom").write_text('gpu_up{uuid="GPU-00000000-aaaa-bbbb-cccc-000000000000"} 0\n')
    (spool / "binary.prom").write_bytes(bytes(range(256)))
    (spool / "folder.prom").mkdir()

    def end() -> None:
        for path in spool.iterdir():
            path.rmdir() if path.name == "folder.prom" else path.unlink()

    return end


def _step_clock(seconds: int) -> Callable[[Scene], Callable[[], None]]:
    def plant(scene: Scene) -> Callable[[], None]:
        scene.clock[:8] = struct.pack("q", seconds)
        return lambda: scene.clock.__setitem__(slice(0, 8), struct.pack("q", 0))

    return plant


def _become(state: dict[str, object]) -> Callable[[Any], None]:
    def change(driver: Any) -> None:
        driver.gpus[3] = {**state, "power": driver.gpus[3]["power"]}
        driver.write()

    return change


def _change_mig(scene: Scene) -> Callable[[], None]:
    scene.change(_become(mig_state(3, [(1, "1g.10gb"), (2, "2g.20gb")])))
    return lambda: scene.change(_become(h100_state(3)))


ALL = frozenset(range(GPUS))
FAULTS = [
    Fault("GPU lost", _on_driver(lambda driver: driver.lose(3)), frozenset({3}), _down(3)),
    Fault("hung call", _on_driver(lambda driver: driver.hang("nvmlDeviceGetPowerUsage", gpu=3)), frozenset({3}), _down(3)),
    Fault(
        "hung call holding the library's lock",
        _on_driver(lambda driver: driver.hang("nvmlDeviceGetPowerUsage", gpu=3, hold_lock=True)),
        frozenset({3}),
        _down(3),
    ),
    Fault("slow call", _on_driver(lambda driver: driver.slow("nvmlDeviceGetPowerUsage", 700, gpu=3))),
    Fault("NVML vanishes", _on_driver(lambda driver: driver.vanish()), ALL, _down(*ALL)),
    Fault(
        "driver reload",
        _on_driver(lambda driver: driver.reload("590.44.01")),
        ALL,
        lambda page: bool(page.values("rankscope_exporter_driver_info", driver_version="590.44.01")),
    ),
    Fault(
        "child SIGKILLed",
        _kill_worker,
        frozenset({3}),
        lambda page: page.values("rankscope_exporter_gpu_process_restarts_total", uuid=uuid_of(3)) == [1.0],
    ),
    Fault("disk full", _fill_disk, seen=lambda page: page.values("rankscope_exporter_xid_journal_durable") == [0.0]),
    Fault("1,000 idle connections", _idle_connections),
    Fault("100 scrapers", _many_scrapers),
    Fault("hostile spool", _hostile_spool, seen=lambda page: sum(page.values("rankscope_exporter_spool_rejected_files")) >= 6),
    Fault("clock steps an hour forward", _step_clock(3600)),
    Fault("clock steps an hour back", _step_clock(-3600)),
    Fault("MIG change", _change_mig, frozenset({3}), lambda page: bool(page.values("gpu_mig_info"))),
]


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Iterator[list[dict[str, object]]]:
    """Rows of a Markdown table, printed after the last fault."""
    rows: list[dict[str, object]] = []
    yield rows
    if not rows:
        return
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
        print("\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))


@pytest.fixture
def scene(tmp_path: Path, shim: Path) -> Iterator[Scene]:
    driver = FakeDriver(tmp_path / "driver", build_library(), [h100_state(index) for index in range(GPUS)])
    for gpu in driver.gpus:
        gpu["power"] = 1000 * BASE_WATTS
    driver.write()
    (tmp_path / "step").write_bytes(bytes(8))
    log = tmp_path / "log"
    options = ["--web.listen-address", "127.0.0.1:0", "--interval", f"{INTERVAL_S}s"]
    folders = ["--state-dir", str(tmp_path / "state"), "--spool", str(tmp_path / "spool")]
    command = [sys.executable, "-m", "rankscope", "exporter", *options, *folders]
    environment = {**os.environ, **driver.env, "LD_PRELOAD": str(shim), "CLOCK_STEP": str(tmp_path / "step")}
    with small_disk(tmp_path / "state", 256), (tmp_path / "step").open("r+b") as step, log.open("wb") as sink:
        clock, began = mmap.mmap(step.fileno(), 8), time.monotonic()
        with subprocess.Popen(command, stderr=sink, env=environment) as process:
            try:
                host, port = _listening(process, log)
                yield Scene(driver, process, host, port, tmp_path, log, clock, written_at=[began])
            finally:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
        clock.close()


def _listening(process: subprocess.Popen[bytes], log: Path) -> tuple[str, int]:
    address = re.compile(r"http://([^\s:/]+):(\d+)")
    match = wait_until(lambda: address.search(log.read_text()), process=process, details=log.read_text)
    return match[1], int(match[2])


def _watch(scene: Scene, seconds: float, until: Callable[[Page], bool] | None = None) -> bool:
    """Scrape once a second for ``seconds``, or until ``until`` holds for a page; return False if it never held."""
    ends = time.monotonic() + seconds
    while (now := time.monotonic()) < ends:
        scene.tick()
        page = scene.get()
        scene.pages.append(page)
        if until is not None and until(page):
            return True
        time.sleep(max(0.0, 1 - (time.monotonic() - now)))
    return until is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_every_scrape_succeeds_without_stale_values_during_a_fault(
    scene: Scene, fault: Fault, table: list[dict[str, object]]
) -> None:
    def all_well(page: Page) -> bool:
        return all(scene.healthy(page, index) for index in range(GPUS)) and not scene.stale(page)

    if fault.name == "disk full" and not os.path.ismount(scene.folder / "state"):
        pytest.skip("this user may not mount a small disk to be filled")
    assert _watch(scene, RECOVERY_S, all_well), scene.log.read_text()
    scene.pages.clear()
    _watch(scene, QUIET_S)
    planted_at = len(scene.pages)
    end = fault.plant(scene)
    _watch(scene, HOLD_S)
    end()
    ended = time.monotonic()
    recovered = _watch(scene, RECOVERY_S, all_well)
    recovery_s = time.monotonic() - ended
    _watch(scene, QUIET_S)

    good = [page for page in scene.pages if page.status == 200]
    row = {
        "fault": fault.name,
        "scrapes": len(scene.pages),
        "failed": len(scene.pages) - len(good),
        "slowest_ms": round(1000 * max(page.took_s for page in scene.pages)),
        "old_values_shown": sum(scene.stale(page) for page in good),
        "healthy_gpus_missing": sum(
            not scene.healthy(page, index) for page in good for index in range(GPUS) if index not in fault.touches
        ),
        "seen": any(fault.seen(page) for page in good[planted_at:]),
        "recovered_s": round(recovery_s, 1) if recovered else None,
        "restarted": scene.process.poll() is not None,
    }
    table.append(row)
    assert (row["failed"], row["old_values_shown"], row["healthy_gpus_missing"], row["restarted"]) == (0, 0, 0, False), row
    assert row["seen"], row
    assert recovered, scene.log.read_text()
