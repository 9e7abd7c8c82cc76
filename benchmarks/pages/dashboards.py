"""Cost of viewing a large run in the dashboard. Prints one JSON object.

The real command serves the dashboard, and the system's Chromium opens every view, with and without a selection. The first view is
everything of the overview that is in a window of 1,440 x 900 pixels, and all text, in a browser that has opened the dashboard
before (it keeps compiled scripts); figures below the window follow. A fresh browser is measured until all is drawn. The requests
of the browser are then repeated without it, one after the other and by 20 users at once. A run in progress grows by 30 s of
records of all its ranks while a page of it is open. Last, the offline report is written with an empty cache, what-if included.

The peers: a plain Dash page with a line of 100 points, which is the time of Dash and Plotly with little to show; and the heat
map's matrix as a plain Plotly figure.

    python -m benchmarks.pages.dashboards [--ranks 1024] [--steps 10000] [--run RUN] [--repeats 5] [--first-view]
    python -m benchmarks.pages.dashboards --report [--former PYTHON] [--run RUN] [--repeats 5]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import httpx
import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from benchmarks.common.make_run import Shape, write_run
from benchmarks.common.processes import ended_children_cpu_s, peak_beside, pss_bytes
from benchmarks.common.result import budget, environment, finish, report_activity
from benchmarks.pages.browser import (
    CHROMIUM_ARGS,
    FirstViews,
    UpdateRequest,
    chromium_path,
    first_views,
    live_updates,
    looked_at,
    percentile,
    seconds_of_views,
    seconds_to_draw,
    served,
)
from playwright.sync_api import sync_playwright

from rankscope.runs.reader import RunReader

FIRST_VIEW_S, CALLBACK_P95_S, PAYLOAD_BYTES, SERVER_BYTES, USERS_P95_S, LIVE_S = 1.0, 0.1, 1.5e6, 600 * 2**20, 1.0, 0.5
WHATIF_S, REPORT_S, OF_PLAIN, ALL_OF_PLAIN = 20.0, 10.0, 1.5, 2.0
USERS = 20


def replayed(url: str, update_requests: list[UpdateRequest], repeats: int) -> list[tuple[str, float]]:
    """Return the view and the seconds of each request when it is made by itself."""
    with httpx.Client(timeout=60) as client:
        return [(item.view, timed(client, url, item)) for _ in range(repeats) for item in update_requests]


def timed(client: httpx.Client, url: str, request: UpdateRequest) -> float:
    """Return the seconds of one request."""
    begin = time.perf_counter()
    method = "GET" if request.body is None else "POST"
    headers = {"Content-Type": "application/json", "Origin": url}
    client.request(method, f"{url}{request.address}", content=request.body, headers=headers).raise_for_status()
    return time.perf_counter() - begin


def at_once(url: str, update_requests: list[UpdateRequest], requests: int) -> list[float]:
    """Return the seconds of each request of ``USERS`` parallel users; each user sends one after the other without a pause."""
    seconds: list[float] = []

    def user(number: int) -> None:
        draw = random.Random(number)
        with httpx.Client(timeout=120) as client:
            seconds.extend(timed(client, url, draw.choice(update_requests)) for _ in range(requests))

    users = [threading.Thread(target=user, args=(number,)) for number in range(USERS)]
    for item in users:
        item.start()
    for item in users:
        item.join()
    return seconds


def seconds_of_report(run: Path, python: str = sys.executable) -> tuple[float, float]:
    """Return the seconds that ``rankscope report`` takes with an empty cache, and its CPU time."""
    report_activity("the report, nothing derived yet")
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "rankscope", "report", str(run), "-o", f"{folder}/report.html", "--cache", f"{folder}/empty"]
        before, began = ended_children_cpu_s(), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        wall_s = time.perf_counter() - began
    return wall_s, ended_children_cpu_s() - before


def reports(run: Path, repeats: int, former: str | None) -> tuple[dict[str, list[float]], list[dict[str, Any]]]:
    """Measure reports, and in turn with them those of another installation. Return the figures and the budget."""
    now, others = [], []
    for _ in range(repeats):
        if former is not None:
            others.append(seconds_of_report(run, former))
        now.append(seconds_of_report(run))
    figures = {"report_cold_s": [wall_s for wall_s, _ in now], "report_cold_cpu_s": [cpu_s for _, cpu_s in now]}
    if others:
        figures |= {
            "former_report_cold_s": [wall_s for wall_s, _ in others],
            "former_report_cold_cpu_s": [cpu_s for _, cpu_s in others],
        }
    budgets = [budget("report_cold_s", float(np.median(figures["report_cold_s"])), REPORT_S)]
    return {name: rounded(seconds) for name, seconds in figures.items()}, budgets


def plain_figure(ranks: int, steps: int) -> tuple[float, int]:
    """Measure the peer, the heat map's matrix as a plain Plotly figure. Returns the seconds to make its JSON, and its bytes."""
    matrix = np.random.default_rng(0).random((ranks, steps))
    begin = time.perf_counter()
    text = go.Figure(go.Heatmap(z=matrix)).to_json()
    return time.perf_counter() - begin, len(text)


def rounded(seconds: list[float]) -> list[float]:
    """Round to milliseconds, the precision of these measurements."""
    return [round(second, 3) for second in seconds]


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--run", type=Path, help="written by make_run.py with these ranks and steps; it will have grown")
    parser.add_argument("--first-view", action="store_true", help="measure only the first view of the overview")
    parser.add_argument("--report", action="store_true", help="measure only the offline report, without a browser")
    parser.add_argument("--former", metavar="PYTHON", help="with --report: Python of another installation, measured in turn")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = arguments()
    shape = Shape(ranks=args.ranks, steps=args.steps)
    about = {"ranks": args.ranks, "steps": args.steps}
    if args.report:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            run = args.run or write_run(Path(folder) / "run", shape)
            finish_with(about, *reports(run, args.repeats, args.former))
    chromium = chromium_path()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        run = args.run or write_run(Path(folder) / "runs" / "run", shape)
        run_id = RunReader(run).info.run_id
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        cache = Path(folder) / "cache"
        with served(run, cache) as (url, pid):
            address = f"{url}/run/{run_id}"
            report_activity("the first look, nothing derived yet")
            with peak_beside(cache) as making:
                with looked_at(browser, "cold", []) as page:
                    cold_s = seconds_to_draw(page, address)
                if not args.first_view:
                    report_activity("what-if, nothing derived yet")
                    with looked_at(browser, "cold", []) as page:
                        whatif_s = seconds_to_draw(page, f"{address}/whatif")
            first = first_views(playwright, browser, chromium, address, args.repeats)
            if args.first_view:
                finish_with(about, figures_of(first), first_view_budgets(first))
            update_requests: list[UpdateRequest] = []
            views = seconds_of_views(browser, address, update_requests)
            report_activity(f"{len(update_requests)} requests, {args.repeats} times one by one")
            alone = replayed(url, update_requests, args.repeats)
            report_activity(f"{USERS} users at once")
            together = at_once(url, update_requests, requests=30)
            server_bytes = pss_bytes(pid)
            report_activity("a page of a run that grows")
            with peak_beside(cache) as following:
                updates, delays_s = live_updates(browser, address, run, shape, args.repeats)
            live_bytes = pss_bytes(pid)
        browser.close()
        report_s, _ = seconds_of_report(run)
    plain_s, plain_bytes = plain_figure(args.ranks, min(args.steps, 1000))
    callback_p95_s = {
        of: percentile([seconds for view, seconds in alone if view == of], 95) for of in sorted({view for view, _ in alone})
    }
    figures: dict[str, Any] = {
        "cold_s": round(cold_s, 2),
        "whatif_cold_s": round(whatif_s, 2),
        "report_cold_s": round(report_s, 2),
        "making_peak_bytes": making[0],
        "following_peak_bytes": following[0],
        **figures_of(first),
        "views_s": {view: round(float(np.median(seconds)), 3) for view, seconds in views.items()},
        "requests": len(update_requests),
        "callback_p50_s": percentile([seconds for _, seconds in alone], 50),
        "callback_p95_s_by_view": callback_p95_s,
        "slowest_view": max(callback_p95_s, key=lambda view: callback_p95_s[view]),
        "payload_bytes_by_view": {
            of: max(item.answered_bytes for item in update_requests if item.view == of)
            for of in sorted({item.view for item in update_requests})
        },
        "users_p50_s": percentile(together, 50),
        "users_requests_per_s": round(len(together) / (sum(together) / USERS), 1),
        "server_bytes": server_bytes,
        "server_bytes_live": live_bytes,
        "live_update_s": rounded(updates),
        "live_written_to_shown_s": rounded(delays_s),
        "plain_plotly_1000_steps_s": round(plain_s, 3),
        "plain_plotly_1000_steps_bytes": plain_bytes,
    }
    budgets = [
        *first_view_budgets(first),
        budget("whatif_cold_s", whatif_s, WHATIF_S),
        budget("report_cold_s", report_s, REPORT_S),
        budget("callback_p95_s", percentile([seconds for _, seconds in alone], 95), CALLBACK_P95_S),
        budget("payload_bytes", max(item.answered_bytes for item in update_requests), PAYLOAD_BYTES),
        budget("server_bytes", max(server_bytes, live_bytes), SERVER_BYTES),
        budget("users_20_p95_s", percentile(together, 95), USERS_P95_S),
        budget("live_update_s", float(np.median(updates)), LIVE_S),
    ]
    finish_with(about, figures, budgets)


def figures_of(first: FirstViews) -> dict[str, list[float]]:
    """Return the measured seconds of the first views."""
    return {
        "first_view_s": rounded(first.in_view),
        "first_view_all_figures_s": rounded(first.drawn),
        "first_view_verdict_s": rounded(first.verdict),
        "first_view_fresh_browser_s": rounded(first.fresh),
        "plain_dash_first_view_s": rounded(first.plain),
        "plain_dash_fresh_browser_s": rounded(first.fresh_plain),
    }


def first_view_budgets(first: FirstViews) -> list[dict[str, Any]]:
    """Return the budgets of the first views."""
    return [
        budget("first_view_s", float(np.median(first.in_view)), FIRST_VIEW_S),
        budget("first_view_over_plain_dash", float(np.median(first.in_view) / np.median(first.plain)), OF_PLAIN),
        budget("first_view_all_figures_over_plain_dash", float(np.median(first.drawn) / np.median(first.plain)), ALL_OF_PLAIN),
        budget("first_view_verdict_over_plain_dash", float(np.median(first.verdict) / np.median(first.plain)), OF_PLAIN),
        budget(
            "first_view_fresh_browser_over_plain_dash", float(np.median(first.fresh) / np.median(first.fresh_plain)), OF_PLAIN
        ),
    ]


def finish_with(about: dict[str, Any], figures: dict[str, Any], budgets: list[dict[str, Any]]) -> NoReturn:
    """Print the result and end. ``about``: the measured run."""
    finish({**about, **figures}, budgets, environment("rankscope", "dash", "plotly", "numpy"))


if __name__ == "__main__":
    main()
