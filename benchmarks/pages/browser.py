"""The dashboard in the system's Chromium: time until a view is drawn or shows what was written. Measures nothing by itself."""

from __future__ import annotations

import os
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
from urllib.parse import urlsplit

import numpy as np
from benchmarks.common.make_run import Shape, grow_run
from benchmarks.common.result import report_activity
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Request, ViewportSize

from rankscope.dashboards.registry import VIEWS
from rankscope.runs.reader import RunReader

SELECTIONS = ("", "?rank=517", "?steps=2000-2400&rank=517", "?metric=wall_us", "?sort=host")
NEW_SECONDS = 30.0
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
_DRAWN = """() => {
  const figures = [...document.querySelectorAll('#view figure.figure')];
  const says = figures.map(figure => figure.querySelector('figcaption').textContent);
  const soon = [...says, ...[...document.querySelectorAll('#view .help')].map(help => help.textContent)];
  return document.querySelector('#view') !== null && says.every(said => said !== '') && !soon.some(said => said.endsWith(' …'))
    && figures.FILTER.every(figure => figure.querySelector('.main-svg')) && document.querySelector('[role=progressbar]') === null;
}"""
DRAWN = _DRAWN.replace(".FILTER", "")
"""JavaScript condition: every figure is drawn, and no result is pending."""
IN_VIEW = _DRAWN.replace("FILTER", "filter(figure => figure.getBoundingClientRect().top < innerHeight)")
"""JavaScript condition: every figure in the window is drawn, all text is on the page, and no result is pending."""
VERDICT = "() => document.querySelector('#verdict .sentence') !== null"
"""JavaScript condition: the text of the verdict is on the page."""
LOOK = """(() => {
  const conditions = [CONDITIONS];
  window.lookedAt = conditions.map(() => null);
  const look = () => {
    conditions.forEach((holds, at) => window.lookedAt[at] ??= holds() ? performance.now() : null);
    if (window.lookedAt.includes(null)) requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""
"""JavaScript that notes the milliseconds since the page was asked for at which each condition holds, in a look per frame."""
DERIVED_WITHIN_MS = 40 * 60_000


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """A request that a page made, and the time and size of its answer. ``body``: ``None`` of a page's content."""

    view: str
    address: str
    body: str | None
    seconds: float
    answered_bytes: int


def chromium_path() -> str:
    """Return the path of the system's Chromium; end this process without one."""
    path = shutil.which("chromium")
    if path is None:
        sys.exit("chromium is not installed: apt-get install chromium")
    return path


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of seconds to a tenth of a millisecond, NaN without values."""
    return round(float(np.percentile(values, percent)), 4) if values else float("nan")


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
    address_match = next(
        address_match for line in process.stdout if (address_match := re.search(r"http://127\.0\.0\.1:\d+", line))
    )
    threading.Thread(target=process.stdout.read, daemon=True).start()
    try:
        yield address_match[0], process.pid
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def looked_at(browser: Browser, view: str, update_requests: list[UpdateRequest]) -> Iterator[Page]:
    """Yield a page of a fresh browser. Its update requests are appended to ``update_requests``."""
    finished_requests: list[Request] = []
    with browser.new_context(viewport=VIEWPORT) as session:
        page = session.new_page()
        page.on("requestfinished", lambda request: finished_requests.append(request))  # noqa: PLW0108  Playwright sets attributes on the handler
        yield page
        for request in finished_requests:
            response = request.response()
            address = urlsplit(request.url)
            if address.path in (UPDATE, PAGE) and response is not None:
                took = request.timing["responseEnd"] - request.timing["requestStart"]
                path = address.path if address.path == UPDATE else f"{address.path}?{address.query}"
                update_requests.append(UpdateRequest(view, path, request.post_data, took / 1e3, len(response.body())))


def seconds_to_draw(page: Page, address: str) -> float:
    """Return the seconds from opening an address until all figures are drawn."""
    return seconds_until(page, address, [DRAWN])[0]


def seconds_until(page: Page, address: str, conditions: Sequence[str]) -> list[float]:
    """Return the seconds from opening an address until each of the JavaScript conditions held in a frame for the first time.

    The page itself takes the time: a question from outside waits until the page has nothing else to do.
    """
    page.add_init_script(LOOK.replace("CONDITIONS", ", ".join(conditions)))
    page.goto(address, wait_until="commit")
    page.wait_for_function("() => window.lookedAt.every(time => time !== null)", timeout=DERIVED_WITHIN_MS)
    seconds: list[float] = page.evaluate("() => window.lookedAt.map(time => time / 1000)")
    page.wait_for_load_state("networkidle")
    return seconds


@dataclass(frozen=True, slots=True)
class FirstViews:
    """Seconds of each view by browsers that have opened the page before, and of each by a fresh browser."""

    verdict: list[float]
    """Until the text of the verdict is shown."""
    in_view: list[float]
    """Until everything is shown that is in the window, and all text."""
    drawn: list[float]
    """Until the figures below the window are drawn, too."""
    plain: list[float]
    """Of the plain page of Dash's, until its figure is drawn."""
    fresh: list[float]
    fresh_plain: list[float]


def first_views(playwright: Playwright, browser: Browser, chromium: str, address: str, repeats: int) -> FirstViews:
    """Open the overview and the plain page in turn, so that both meet the same load of the machine."""
    report_activity("the overview, again and again; a plain page of Dash's, too")
    with (
        answering([sys.executable, "-c", PLAIN_PAGE], dict(os.environ)) as (plain_url, _),
        known_browser(playwright, chromium) as ours,
        known_browser(playwright, chromium) as plains,
    ):
        seconds: list[list[float]] = []
        for _ in range(BEEN_HERE + repeats):
            with ours.new_page() as page:
                shown = seconds_until(page, address, [VERDICT, IN_VIEW, DRAWN])
            with plains.new_page() as page:
                seconds.append([*shown, seconds_to_draw(page, plain_url)])
        fresh, fresh_plain = seconds_of_fresh_browsers(browser, (address, plain_url), repeats)
    verdict, in_view, drawn, plain = (list(column) for column in zip(*seconds[BEEN_HERE:], strict=True))
    return FirstViews(verdict=verdict, in_view=in_view, drawn=drawn, plain=plain, fresh=fresh, fresh_plain=fresh_plain)


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
        for address, address_seconds in zip(addresses, seconds, strict=True):
            with looked_at(browser, "", []) as page:
                address_seconds.append(seconds_to_draw(page, address))
    return seconds


def seconds_of_views(browser: Browser, address: str, update_requests: list[UpdateRequest]) -> dict[str, list[float]]:
    """Return the seconds of every view of a run in fresh browsers, with each of ``SELECTIONS``.

    The requests of the views are appended to ``update_requests``.
    """
    seconds: dict[str, list[float]] = {}
    for view in VIEWS:
        report_activity(f"the view {view.label}")
        name = view.slug or "overview"
        for selection in SELECTIONS:
            with looked_at(browser, name, update_requests) as page:
                seconds.setdefault(name, []).append(seconds_to_draw(page, f"{address}/{view.slug}".rstrip("/") + selection))
    return seconds


def live_updates(browser: Browser, address: str, run: Path, shape: Shape, repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each update of an open page, and the seconds from each write until it is shown."""
    first = max(int(rows["step"].max()) for rows in RunReader(run).step_rows(0, 0)) + 1
    new = shape.steps_in(NEW_SECONDS)
    updates: list[float] = []
    delays_s: list[float] = []
    with browser.new_context(viewport=VIEWPORT) as session:
        page = session.new_page()
        page.goto(address)
        page.wait_for_function(DRAWN, timeout=DERIVED_WITHIN_MS)
        page.wait_for_load_state("networkidle")
        for number in range(repeats + 1):
            at = first + number * new
            grow_run(run, shape, at, at + new)
            os.sync()
            written = time.time()
            began, ended = next_redraw(page)
            updates.append(ended - began)
            delays_s.append(ended - written)
    return updates[1:], delays_s[1:]  # without the first update, which reads the whole run


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
