"""Many viewers of a captured window that is being made, and of one that is there. Prints one JSON object.

The real command serves a run. Chromium opens the timeline once, and its requests are recorded: while the window is being made
(the process that makes it is stopped meanwhile), and while it is drawn. Then 2 to 20 viewers send these requests, each at the
pace of that browser and with its cookie, while ``/-/healthy`` is asked 20 times a second on connections of its own.

The peer: the same server without a viewer.

    python -m benchmarks.pages.viewers [--ranks 64] [--steps 500] [--seconds 15] [--viewers 2,4,8,20]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from benchmarks.common.make_run import Shape, write_run
from benchmarks.common.processes import children_of
from benchmarks.common.result import budget, environment, finish, report_activity
from benchmarks.pages.browser import CHROMIUM_ARGS, UPDATE, VIEWPORT, chromium_path, percentile, served
from playwright.sync_api import Browser, Request, sync_playwright

from rankscope.runs.reader import RunReader

HEALTHY_P99_S, CALLBACK_P95_S = 0.05, 0.1
COUNTS = "2,4,8,20"
EVERY_S = 0.05
"""Interval of the requests for ``/-/healthy``."""
TASK = b"\0window\0"
WAITING = "() => document.querySelector('#timeline-lanes figcaption')?.textContent.endsWith(' …')"
DRAWN = "() => document.querySelectorAll('#timeline-lanes .main-svg').length > 0 && !document.body.textContent.includes(' …')"


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request of the browser, and the seconds since the recording began."""

    after_s: float
    body: str


@dataclass(frozen=True, slots=True)
class ViewerSeconds:
    """Seconds of the requests of some viewers."""

    healthy: list[float]
    callbacks: list[float]
    failed: int


@contextmanager
def window_stopped(server: int) -> Iterator[None]:
    """Stop the process that makes a window as it appears, until the end."""
    stopped: set[int] = set()
    completed = threading.Event()
    (worker,) = children_of(server)

    def stop() -> None:
        while not completed.wait(0.002):
            for pid in children_of(worker) - stopped:
                with contextlib.suppress(OSError):  # it has ended
                    if TASK in Path("/proc", str(pid), "cmdline").read_bytes():
                        os.kill(pid, signal.SIGSTOP)
                        stopped.add(pid)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        completed.set()
        thread.join()
        for pid in stopped & children_of(worker):
            os.kill(pid, signal.SIGCONT)


def recorded(browser: Browser, address: str, until: str, seconds: float) -> list[SentRequest]:
    """Open an address in a fresh browser; return its requests until some seconds after ``until`` holds."""
    timed_requests: list[tuple[float, Request]] = []
    with browser.new_context(viewport=VIEWPORT) as session:
        page = session.new_page()
        page.on("request", lambda request: timed_requests.append((time.monotonic(), request)))
        began = time.monotonic()
        page.goto(address)
        page.wait_for_function(until, timeout=120_000)
        page.wait_for_timeout(1000 * seconds)
    return [
        SentRequest(at - began, request.post_data)
        for at, request in timed_requests
        if UPDATE in request.url and request.post_data
    ]


def viewed(url: str, sent: Sequence[SentRequest], count: int, seconds: float) -> ViewerSeconds:
    """Let viewers send the requests again and again, each at the recorded pace, beginning at a random one of them."""
    length = max(each.after_s for each in sent) + 1.0
    measured = ViewerSeconds([], [], 0)
    failed: list[str] = []
    until = time.monotonic() + seconds

    def viewer(number: int) -> None:
        draw = random.Random(number)
        headers = {"Content-Type": "application/json", "Origin": url, "Cookie": f"rankscope-viewer={number:022}"}
        with httpx.Client(timeout=120, headers=headers) as client:
            first = draw.randrange(len(sent))
            schedule = [((each.after_s - sent[first].after_s) % length, each.body) for each in (*sent[first:], *sent[:first])]
            while time.monotonic() < until:
                began = time.monotonic()
                for after_s, body in schedule:
                    time.sleep(max(0.0, began + after_s - time.monotonic()))
                    if time.monotonic() >= until:
                        return
                    begin_s = time.perf_counter()
                    answer = client.post(f"{url}{UPDATE}", content=body)
                    measured.callbacks.append(time.perf_counter() - begin_s)
                    if answer.status_code not in (200, 204):
                        failed.append(answer.text)

    threads = [threading.Thread(target=viewer, args=(number,)) for number in range(count)]
    threads.append(threading.Thread(target=ask_health, args=(url, until, measured.healthy)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ViewerSeconds(measured.healthy, measured.callbacks, len(failed))


def ask_health(url: str, until: float, seconds: list[float]) -> None:
    """Ask for ``/-/healthy`` until a moment, each time on a new connection, and append the seconds that it takes."""
    host = url.removeprefix("http://")
    while time.monotonic() < until:
        begin_s = time.perf_counter()
        connection = http.client.HTTPConnection(host, timeout=120)
        connection.request("GET", "/-/healthy")
        assert connection.getresponse().read() == b"ok\n"
        connection.close()
        seconds.append(time.perf_counter() - begin_s)
        time.sleep(EVERY_S)


def row(measured: ViewerSeconds) -> dict[str, float]:
    """Return the figures of a measurement."""
    return {
        "healthy_p50_s": percentile(measured.healthy, 50),
        "healthy_p99_s": percentile(measured.healthy, 99),
        "callback_p50_s": percentile(measured.callbacks, 50),
        "callback_p95_s": percentile(measured.callbacks, 95),
        "callbacks": len(measured.callbacks),
        "failed": measured.failed,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--viewers", default=COUNTS)
    args = parser.parse_args()
    counts = [int(count) for count in args.viewers.split(",")]
    chromium = chromium_path()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        run = write_run(Path(folder) / "runs" / "run", Shape(ranks=args.ranks, steps=args.steps, window_every=100))
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        with served(run, Path(folder) / "cache") as (url, pid):
            address = f"{url}/run/{RunReader(run).info.run_id}"
            recorded(browser, address, "() => document.querySelectorAll('.main-svg').length > 0", 1.0)  # the analysis is there
            idle = viewed(url, [SentRequest(0.0, "{}")], 0, args.seconds)
            with window_stopped(pid):
                sent = recorded(browser, f"{address}/timeline", WAITING, 5.0)
                report_activity(f"{len(sent)} requests while the window is being made")
                waiting = {count: viewed(url, sent, count, args.seconds) for count in counts}
            sent = recorded(browser, f"{address}/timeline", DRAWN, 5.0)
            ready = {count: viewed(url, sent, count, args.seconds) for count in counts}
        browser.close()
    most = waiting[max(counts)]
    figures = {
        "ranks": args.ranks,
        "steps": args.steps,
        "idle_healthy_p99_s": percentile(idle.healthy, 99),
        "being_made": {count: row(measured) for count, measured in waiting.items()},
        "there": {count: row(measured) for count, measured in ready.items()},
    }
    budgets = [
        budget("healthy_p99_s", percentile(most.healthy, 99), HEALTHY_P99_S),
        budget("callback_p95_s", percentile(most.callbacks, 95), CALLBACK_P95_S),
        budget("failed_requests", sum(measured.failed for measured in (*waiting.values(), *ready.values())), 0),
    ]
    finish(figures, budgets, environment("rankscope", "dash"))


if __name__ == "__main__":
    main()
