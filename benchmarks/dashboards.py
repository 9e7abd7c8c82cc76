"""Cost of viewing a large run in the dashboard. Prints one JSON object.

The real command serves the dashboard, and the system's Chromium opens every view, with and without a selection. The first view is
the whole overview, in a browser that has opened the dashboard before (it keeps compiled scripts), and in a fresh one. The
requests of the browser are then repeated without it, one after the other and by 20 users at once. A run in progress grows by 30 s
of records of all its ranks while a page of it is open. Last, the offline report is written with an empty cache, what-if included.

The peers: a plain Dash page with a line of 100 points, which is the time of Dash and Plotly with little to show; and the heat
map's matrix as a plain Plotly figure.

    python benchmarks/dashboards.py [--ranks 1024] [--steps 10000] [--run RUN] [--repeats 5] [--first-view]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dash
import httpx
import numpy as np
import plotly
import plotly.graph_objects as go
from budget import budget
from make_run import MEANS_US, TRANSFER_US, Shape, begin_run, grow_run
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Request, ViewportSize, sync_playwright
from process_memory import peak_beside, pss_bytes

from rankscope.dashboards.registry import VIEWS
from rankscope.runs.reader import RunReader

FIRST_VIEW_S, CALLBACK_P95_S, PAYLOAD_BYTES, SERVER_BYTES, USERS_P95_S, LIVE_S = 1.0, 0.1, 1.5e6, 600 * 2**20, 1.0, 0.5
WHATIF_S, REPORT_S, OF_PLAIN = 20.0, 10.0, 1.5
USERS = 20
SELECTIONS = ("", "?rank=517", "?steps=2000-2400&rank=517", "?metric=wall_us", "?sort=host")
NEW_SECONDS = 30.0
WORKERS = len(os.sched_getaffinity(0))
CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu"]
VIEWPORT: ViewportSize = {"width": 1440, "height": 900}
UPDATE, PAGE = "/_dash-update-component", "/api/page"
BEEN_HERE = 4
"""Number of page loads after which Chromium keeps the compiled scripts."""
PLAIN_PAGE = """
import dash, plotly.graph_objects as go
from dash import dcc, html
app = dash.Dash(__name__, assets_folder="none")
line = go.Figure(go.Scatter(y=[number % 7 for number in range(100)]))
figure = html.Figure([dcc.Graph(figure=line), html.Figcaption("a line")], className="figure")
app.layout = html.Div([figure], id="view")
import gunicorn.app.base
class Server(gunicorn.app.base.BaseApplication):
    def load_config(self):
        self.cfg.set("bind", "127.0.0.1:0")
        self.cfg.set("threads", 4)
        self.cfg.set("when_ready", lambda server: print(server.LISTENERS[0], flush=True))
    def load(self):
        return app.server
Server().run()
"""
DRAWN = """() => {
  const figures = [...document.querySelectorAll('#view figure.figure')];
  const says = figures.map(figure => figure.querySelector('figcaption').textContent);
  const soon = [...says, ...[...document.querySelectorAll('#view .help')].map(help => help.textContent)];
  return document.querySelector('#view') !== null && says.every(said => said !== '') && !soon.some(said => said.endsWith(' …'))
    && figures.every(figure => figure.querySelector('.main-svg')) && document.querySelector('[role=progressbar]') === null;
}"""
"""JavaScript condition: every figure is drawn, and no result is pending."""
VERDICT = "() => document.querySelector('#verdict .sentence') !== null"
"""JavaScript condition: the text of the verdict is on the page."""
DERIVED_WITHIN_MS = 40 * 60_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a page made, and the time and size of its answer. ``body``: ``None`` of a page's content."""

    view: str
    address: str
    body: str | None
    seconds: float
    answered_bytes: int


@contextmanager
def served(root: Path, cache: Path) -> Iterator[tuple[str, int]]:
    """Run the dashboard command. Yields its address and process id."""
    command = [sys.executable, "-m", "rankscope", "dashboard", str(root), "--listen", "127.0.0.1:0"]
    with answering(command, {**os.environ, "XDG_CACHE_HOME": str(cache)}) as at:
        yield at


@contextmanager
def answering(command: list[str], environment: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Run a server that prints its address at its start. Yields its address and process id."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    found = next(found for line in process.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
    threading.Thread(target=process.stdout.read, daemon=True).start()
    try:
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def looked_at(browser: Browser, view: str, asked: list[Asked]) -> Iterator[Page]:
    """Yield a page of a fresh browser. Its update requests are appended to ``asked``."""
    made: list[Request] = []
    with browser.new_context(viewport=VIEWPORT) as session:
        page = session.new_page()
        page.on("requestfinished", lambda request: made.append(request))  # noqa: PLW0108  Playwright sets attributes on the handler
        yield page
        for request in made:
            response = request.response()
            address = urlsplit(request.url)
            if address.path in (UPDATE, PAGE) and response is not None:
                took = request.timing["responseEnd"] - request.timing["requestStart"]
                path = address.path if address.path == UPDATE else f"{address.path}?{address.query}"
                asked.append(Asked(view, path, request.post_data, took / 1e3, len(response.body())))


def seconds_to_draw(page: Page, address: str) -> float:
    """Return the seconds from opening an address until all figures are drawn."""
    return seconds_until(page, address, [DRAWN])[0]


def seconds_until(page: Page, address: str, conditions: Sequence[str]) -> list[float]:
    """Return the seconds from opening an address until each of the JavaScript conditions holds, one after the other."""
    begin = time.perf_counter()
    page.goto(address, wait_until="commit")
    seconds: list[float] = []
    for condition in conditions:
        page.wait_for_function(condition, timeout=DERIVED_WITHIN_MS)
        seconds.append(time.perf_counter() - begin)
    page.wait_for_load_state("networkidle")
    return seconds


@dataclass(frozen=True, slots=True)
class FirstViews:
    """Seconds of each view by browsers that have opened the page before, and of each by a fresh browser."""

    verdict: list[float]
    """Until the text of the verdict is shown."""
    drawn: list[float]
    plain: list[float]
    """Of the plain page of Dash's, until its figure is drawn."""
    fresh: list[float]
    fresh_plain: list[float]


def first_views(playwright: Playwright, browser: Browser, chromium: str, address: str, repeats: int) -> FirstViews:
    """Open the overview and the plain page in turn, so that both meet the same load of the machine."""
    told("the overview, again and again; a plain page of Dash's, too")
    with (
        answering([sys.executable, "-c", PLAIN_PAGE], dict(os.environ)) as (plain_url, _),
        known_browser(playwright, chromium) as ours,
        known_browser(playwright, chromium) as plains,
    ):
        seconds: list[tuple[float, float, float]] = []
        for _ in range(BEEN_HERE + repeats):
            with ours.new_page() as page:
                verdict, drawn = seconds_until(page, address, [VERDICT, DRAWN])
            with plains.new_page() as page:
                seconds.append((verdict, drawn, seconds_to_draw(page, plain_url)))
        fresh, fresh_plain = seconds_of_fresh_browsers(browser, (address, plain_url), repeats)
    known = [list(column) for column in zip(*seconds[BEEN_HERE:], strict=True)]
    return FirstViews(*known, fresh, fresh_plain)


@contextmanager
def known_browser(playwright: Playwright, chromium: str) -> Iterator[BrowserContext]:
    """Yield a browser that keeps what it has loaded and compiled."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium, args=CHROMIUM_ARGS, viewport=VIEWPORT
        ) as session,
    ):
        yield session


def seconds_of_fresh_browsers(browser: Browser, addresses: Sequence[str], repeats: int) -> list[list[float]]:
    """Return the seconds per address in fresh browsers; the addresses are opened in turn."""
    seconds: list[list[float]] = [[] for _ in addresses]
    for _ in range(repeats):
        for address, of_it in zip(addresses, seconds, strict=True):
            with looked_at(browser, "", []) as page:
                of_it.append(seconds_to_draw(page, address))
    return seconds


def seconds_of_views(browser: Browser, address: str, asked: list[Asked]) -> dict[str, list[float]]:
    """Return the seconds of every view of a run in fresh browsers, with each of ``SELECTIONS``.

    The requests of the views are appended to ``asked``.
    """
    seconds: dict[str, list[float]] = {}
    for view in VIEWS:
        told(f"the view {view.label}")
        name = view.slug or "overview"
        for selection in SELECTIONS:
            with looked_at(browser, name, asked) as page:
                seconds.setdefault(name, []).append(seconds_to_draw(page, f"{address}/{view.slug}".rstrip("/") + selection))
    return seconds


def percentile(values: list[float], share: float) -> float:
    """Return a percentile of measured values, NaN if there are none. ``share``: 0 to 1."""
    return float(np.percentile(values, 100 * share)) if values else float("nan")


def replayed(url: str, asked: list[Asked], repeats: int) -> list[tuple[str, float]]:
    """Return the view and the seconds of each request when it is made by itself."""
    with httpx.Client(timeout=60) as client:
        return [(one.view, timed(client, url, one)) for _ in range(repeats) for one in asked]


def timed(client: httpx.Client, url: str, one: Asked) -> float:
    """Return the seconds of one request."""
    begin = time.perf_counter()
    method = "GET" if one.body is None else "POST"
    headers = {"Content-Type": "application/json", "Origin": url}
    client.request(method, f"{url}{one.address}", content=one.body, headers=headers).raise_for_status()
    return time.perf_counter() - begin


def at_once(url: str, asked: list[Asked], requests: int) -> list[float]:
    """Return the seconds of each request of ``USERS`` parallel users; each user sends one after the other without a pause."""
    seconds: list[float] = []

    def user(number: int) -> None:
        draw = random.Random(number)
        with httpx.Client(timeout=120) as client:
            seconds.extend(timed(client, url, draw.choice(asked)) for _ in range(requests))

    users = [threading.Thread(target=user, args=(number,)) for number in range(USERS)]
    for one in users:
        one.start()
    for one in users:
        one.join()
    return seconds


def live_updates(browser: Browser, address: str, run: Path, shape: Shape, repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each update of an open page, and the seconds from each write until it is shown."""
    first = max(int(rows["step"].max()) for rows in RunReader(run).step_rows(0, 0)) + 1
    new = round(NEW_SECONDS * 1e6 / (sum(MEANS_US.values()) + TRANSFER_US + shape.slow_us))
    updates: list[float] = []
    seen: list[float] = []
    with browser.new_context(viewport=VIEWPORT) as session:
        page = session.new_page()
        page.goto(address)
        page.wait_for_function(DRAWN, timeout=DERIVED_WITHIN_MS)
        page.wait_for_load_state("networkidle")
        for number in range(repeats + 1):
            at = first + number * new
            grow_run(run, shape, at, at + new, workers=WORKERS)
            os.sync()
            written = time.time()
            began, ended = next_redraw(page)
            updates.append(ended - began)
            seen.append(ended - written)
    return updates[1:], seen[1:]  # without the first update, which reads the whole run


def next_redraw(page: Page) -> tuple[float, float]:
    """Wait for a poll that finds new records and causes requests.

    Returns the time at which the poll was sent, and the time of the last answer to these requests (unix seconds).
    """
    done: list[tuple[float, float]] = []

    def note(request: Request) -> None:
        if UPDATE in request.url:
            start = request.timing["startTime"] / 1e3
            done.append((start, start + request.timing["responseEnd"] / 1e3))

    page.on("requestfinished", note)
    until = time.monotonic() + 600
    while time.monotonic() < until:
        page.wait_for_timeout(200)
        # A poll that finds nothing new stands alone; requests for figures follow one that does within a moment.
        for number, (start, end) in enumerate(done[:-1]):
            if done[number + 1][0] - end < 0.5:
                page.wait_for_timeout(1500)
                page.remove_listener("requestfinished", note)
                caused = [last for began, last in done[number:] if began - end < 1.0]
                return start, max(caused)
    raise TimeoutError("the open page has not shown what was written")


def seconds_of_report(run: Path, folder: Path) -> float:
    """Return the seconds that ``rankscope report`` takes with an empty cache."""
    told("the report, nothing derived yet")
    command = [sys.executable, "-m", "rankscope", "report", str(run), "-o", str(folder / "report.html")]
    began = time.perf_counter()
    subprocess.run(command, env={**os.environ, "XDG_CACHE_HOME": str(folder / "empty")}, check=True, capture_output=True)
    return time.perf_counter() - began


def plain_figure(ranks: int, steps: int) -> tuple[float, int]:
    """Measure the peer, the heat map's matrix as a plain Plotly figure. Returns the seconds to make its JSON, and its bytes."""
    matrix = np.random.default_rng(0).random((ranks, steps))
    begin = time.perf_counter()
    text = go.Figure(go.Heatmap(z=matrix)).to_json()
    return time.perf_counter() - begin, len(text)


def written(run: Path, shape: Shape) -> Path:
    """Write a run of the given shape."""
    told(f"writing a run of {shape.ranks:,} ranks x {shape.steps:,} steps")
    begin_run(run, shape)
    grow_run(run, shape, 0, shape.steps, workers=WORKERS)
    return run


def rounded(seconds: list[float]) -> list[float]:
    """Round to milliseconds, the precision of these measurements."""
    return [round(one, 3) for one in seconds]


def told(what: str) -> None:
    """Report the current measurement on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--run", type=Path, help="written by make_run.py with these ranks and steps; it will have grown")
    parser.add_argument("--first-view", action="store_true", help="measure only the first view of the overview")
    args = parser.parse_args()
    shape = Shape(ranks=args.ranks, steps=args.steps)
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        run = args.run or written(Path(folder) / "runs" / "run", shape)
        run_id = RunReader(run).info.run_id
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        about = {"ranks": args.ranks, "steps": args.steps, "load_before": round(os.getloadavg()[0], 1)}
        cache = Path(folder) / "cache"
        with served(run, cache) as (url, pid):
            address = f"{url}/run/{run_id}"
            told("the first look, nothing derived yet")
            with peak_beside(cache) as making:
                with looked_at(browser, "cold", []) as page:
                    cold_s = seconds_to_draw(page, address)
                if not args.first_view:
                    told("what-if, nothing derived yet")
                    with looked_at(browser, "cold", []) as page:
                        whatif_s = seconds_to_draw(page, f"{address}/whatif")
            first = first_views(playwright, browser, chromium, address, args.repeats)
            if args.first_view:
                print_results(about, figures_of(first), first_view_budgets(first))
                return
            asked: list[Asked] = []
            views = seconds_of_views(browser, address, asked)
            told(f"{len(asked)} requests, {args.repeats} times one by one")
            alone = replayed(url, asked, args.repeats)
            told(f"{USERS} users at once")
            together = at_once(url, asked, requests=30)
            server_bytes = pss_bytes(pid)
            told("a page of a run that grows")
            with peak_beside(cache) as following:
                updates, seen = live_updates(browser, address, run, shape, args.repeats)
            live_bytes = pss_bytes(pid)
        browser.close()
        report_s = seconds_of_report(run, Path(folder))
    plain_s, plain_bytes = plain_figure(args.ranks, min(args.steps, 1000))
    slowest = max({view for view, _ in alone}, key=lambda of: percentile([s for view, s in alone if view == of], 0.95))
    figures: dict[str, Any] = {
        "cold_s": round(cold_s, 2),
        "whatif_cold_s": round(whatif_s, 2),
        "report_cold_s": round(report_s, 2),
        "making_peak_bytes": making[0],
        "following_peak_bytes": following[0],
        **figures_of(first),
        "views_s": {view: round(float(np.median(seconds)), 3) for view, seconds in views.items()},
        "requests": len(asked),
        "callback_p50_s": round(percentile([seconds for _, seconds in alone], 0.5), 4),
        "callback_p95_s_by_view": {
            of: round(percentile([seconds for view, seconds in alone if view == of], 0.95), 4)
            for of in sorted({v for v, _ in alone})
        },
        "slowest_view": slowest,
        "payload_bytes_by_view": {
            of: max(one.answered_bytes for one in asked if one.view == of) for of in sorted({one.view for one in asked})
        },
        "users_p50_s": round(percentile(together, 0.5), 4),
        "users_requests_per_s": round(len(together) / (sum(together) / USERS), 1),
        "server_bytes": server_bytes,
        "server_bytes_live": live_bytes,
        "live_update_s": rounded(updates),
        "live_written_to_shown_s": rounded(seen),
        "plain_plotly_1000_steps_s": round(plain_s, 3),
        "plain_plotly_1000_steps_bytes": plain_bytes,
    }
    budgets = [
        *first_view_budgets(first),
        budget("whatif_cold_s", whatif_s, WHATIF_S),
        budget("report_cold_s", report_s, REPORT_S),
        budget("callback_p95_s", percentile([seconds for _, seconds in alone], 0.95), CALLBACK_P95_S),
        budget("payload_bytes", max(one.answered_bytes for one in asked), PAYLOAD_BYTES),
        budget("server_bytes", max(server_bytes, live_bytes), SERVER_BYTES),
        budget("users_20_p95_s", percentile(together, 0.95), USERS_P95_S),
        budget("live_update_s", float(np.median(updates)), LIVE_S),
    ]
    print_results(about, figures, budgets)


def figures_of(first: FirstViews) -> dict[str, list[float]]:
    """Return the measured seconds of the first views."""
    return {
        "first_view_s": rounded(first.drawn),
        "first_view_verdict_s": rounded(first.verdict),
        "first_view_fresh_browser_s": rounded(first.fresh),
        "plain_dash_first_view_s": rounded(first.plain),
        "plain_dash_fresh_browser_s": rounded(first.fresh_plain),
    }


def first_view_budgets(first: FirstViews) -> list[dict[str, Any]]:
    """Return the budgets of the first views."""
    return [
        budget("first_view_s", float(np.median(first.drawn)), FIRST_VIEW_S),
        budget("first_view_over_plain_dash", float(np.median(first.drawn) / np.median(first.plain)), OF_PLAIN),
        budget("first_view_verdict_over_plain_dash", float(np.median(first.verdict) / np.median(first.plain)), OF_PLAIN),
        budget(
            "first_view_fresh_browser_over_plain_dash", float(np.median(first.fresh) / np.median(first.fresh_plain)), OF_PLAIN
        ),
    ]


def print_results(about: dict[str, Any], figures: dict[str, Any], budgets: list[dict[str, Any]]) -> None:
    """Print the result. ``about``: the measured run and the load before."""
    environment = {
        "python": platform.python_version(), "dash": dash.__version__, "plotly": plotly.__version__, "numpy": np.__version__,
        "cpus": WORKERS,
    }  # fmt: skip
    load = {"load_after": round(os.getloadavg()[0], 1)}
    print(json.dumps({"figures": {**about, **figures, **load}, "budgets": budgets, "environment": environment}, indent=2))


if __name__ == "__main__":
    main()
