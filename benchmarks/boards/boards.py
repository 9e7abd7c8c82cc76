"""Queries of the Grafana boards to a Prometheus with about a thousand GPUs, and their time. Prints one JSON object.

A real Prometheus is filled with hours of every series of 128 hosts of 8 GPUs, of three training runs on them, and of
node_exporter's InfiniBand metrics: copies of the pages of the real exporter. The series of the recording rules are added. Then
every query of every board is sent as Grafana sends it when a user opens the board: over the board's initial time range, on a
screen 1,920 pixels wide, with the initial values of its variables. Graphs are range queries; figures and tables are instant ones.
Queries are sent one after the other, and those of a board that opens also six at once, as many as a browser does. Of the repeats
the least counts, because other work on the machine only adds; CPU seconds of Prometheus are independent of such work.

The peer: the cost of the recorded series of a board without rules that recorded them before, over the same time.

    python -m benchmarks.boards.boards [--hosts 128] [--hours 6] [--interval 30] [--repeats 3]
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml
from benchmarks.boards.remote_write import FilledPrometheus, empty_prometheus, rests_on, rules_in_order
from benchmarks.boards.site import GPUS, alerts, site
from benchmarks.common.processes import free_port
from benchmarks.common.result import budget, environment, finish, report_activity
from tests.dashboards.grafana.grafana_model import Json, Target, all_boards, put_in, targets

from rankscope.alerts.rules.rule_file import rules_text
from rankscope.alerts.rules.thresholds import load_thresholds

QUERY_BUDGET_S = 1.0
"""Limit for the slowest query of a board, so that panels appear at once."""
OPENING_BUDGET_S = 1.0
"""Limit for the CPU time of all queries of opening a board, divided by ``CORES``: what a Prometheus that is not busy takes."""
CORES = 2
AT_ONCE = 6
"""Queries that a browser sends at once to one host."""
LINES_BUDGET = 300
"""Maximum number of series of one graph: more cannot be read, nor drawn quickly."""
ROWS_BUDGET = 1024
"""Maximum number of rows of a table: one for each GPU."""
CHUNK_S = 3600
LONG_HOURS = 24
RULES_EVERY_S = 60
SCREEN = 1920
PRICE = "[price]\nper_gpu_hour = 2.5\n"
ROUNDED = (
    *((0.75, 0.5), (1.5, 1), (3.5, 2), (7.5, 5), (12.5, 10), (17.5, 15), (25, 20), (45, 30), (90, 60), (210, 120)),
    *((450, 300), (750, 600), (1050, 900), (1500, 1200), (2700, 1800), (5400, 3600)),
)
"""Pairs of seconds: an interval up to the first is rounded to the second, as in Grafana."""


@dataclass(frozen=True, slots=True)
class Question:
    """One query of a board. ``step_s``: step of a range query, ``None`` for an instant query. ``later``: its row is closed."""

    board: str
    panel: str
    kind: str
    expr: str
    range_s: int
    step_s: float | None
    later: bool


@dataclass(frozen=True, slots=True)
class MeasuredQuery:
    """A query, the size of its answer, and its least times of all repeats. ``worst_s``: the longest."""

    question: Question
    samples: int
    series: int
    s: float
    worst_s: float
    cpu_s: float


def seconds_of(text: str) -> int:
    """Convert Grafana's ``now-6h`` or ``1m`` to seconds."""
    number, unit = re.fullmatch(r"(?:now-)?(\d+)([mh])", text).groups()  # type: ignore[union-attr]
    return int(number) * {"m": 60, "h": 3600}[unit]


def question(board: Json, target: Target, values: dict[str, list[str] | str], interval_s: int) -> Question:
    """Return the query as Grafana sends it to a data source that is scraped every ``interval_s``."""
    panel = target.panel
    range_s = seconds_of(board["time"]["from"])
    least = max(interval_s, seconds_of(panel["interval"]) if panel.get("interval") else 0)
    exact = range_s / (SCREEN * panel["gridPos"]["w"] // 24)
    step = max(next((rounded for up_to, rounded in ROUNDED if exact <= up_to), 7200), least)
    built_in = {
        "__rate_interval": f"{max(step + interval_s, 4 * interval_s):g}s",
        "__range_s": str(range_s),
        "__range": f"{range_s}s",
        "__interval_ms": f"{1000 * step:g}",
        "__interval": f"{step:g}s",
    }
    (ones,) = [item for item in panel["targets"] if item["refId"] == target.letter]
    expr = put_in(target.expr, values, built_in=built_in)
    later = panel not in board["panels"]
    return Question(target.board, panel["title"], panel["type"], expr, range_s, None if ones.get("instant") else step, later)


def chosen(board: str) -> dict[str, list[str] | str]:
    """Return the initial values of a board's variables: all, but one host or one run where the board is about one."""
    names = ("instance", "gpu", "run_id", "rank", "slurm_job_id", "comm_name", "collective")
    every = dict.fromkeys(names, ".+")
    everything: dict[str, list[str] | str] = {"cluster": ".*", **every, "job": ["gpus"]}
    if board.startswith("rankscope-node"):
        return everything | {"instance": ["node001:9838"]}
    return everything | {"run_id": ["llama-20260101-7"]} if board == "rankscope-run" else everything


def fill(into: FilledPrometheus, args: argparse.Namespace, end_s: int, port: int) -> int:
    """Write all scraped series. Returns their number."""
    long_s, short_s = max(LONG_HOURS, args.hours) * 3600, args.hours * 3600
    if args.quick:
        long_s = short_s
    start_s = end_s - long_s
    report_activity(f"reading the exporter's pages for {args.hosts} hosts")
    blocks = site(args.hosts, port, start_s)
    rng = np.random.default_rng(7)
    for begin_s in range(start_s, end_s, CHUNK_S):
        times_s = np.arange(begin_s, min(begin_s + CHUNK_S, end_s + 1), args.interval)
        for block in blocks:
            if block.long or begin_s >= end_s - short_s:
                into.write(block.labels, times_s * 1000, block.values(times_s, start_s, rng))
        report_activity(f"{(begin_s + CHUNK_S - start_s) / 3600:.0f} h of {long_s // 3600} h are written")
    groups = yaml.load(rules_text(), yaml.CSafeLoader)["groups"]
    names = [(rule["alert"], rule["labels"]["severity"]) for group in groups for rule in group["rules"] if "alert" in rule]
    for head, times_ms, value in alerts(names, args.hosts, end_s, long_s, RULES_EVERY_S):
        into.write([head], times_ms, np.full((1, len(times_ms)), value))
    return sum(len(block.labels) for block in blocks)


def recorded(into: FilledPrometheus, rules: list[dict[str, Any]], start_s: int, end_s: int) -> dict[str, float]:
    """Record the series that the rules would have recorded. Returns the seconds per recorded name, over the whole time."""
    seconds: dict[str, float] = {}
    for rule in rules:
        took = into.record(
            rule["expr"], rule["record"], rule.get("labels", {}), start_s=start_s, end_s=end_s, step_s=RULES_EVERY_S
        )
        seconds[rule["record"]] = seconds.get(rule["record"], 0.0) + took
    return seconds


def ask(of: FilledPrometheus, question: Question, end_s: int, **more: str) -> tuple[float, bytes]:
    """Send a query. Returns its seconds and the answer."""
    if question.step_s is None:
        return of.query("query", query=question.expr, time=end_s, **more)
    # Grafana aligns the time range to the step.
    end = math.floor(end_s / question.step_s) * question.step_s
    begin = math.floor((end_s - question.range_s) / question.step_s) * question.step_s
    return of.query("query_range", query=question.expr, start=begin, end=end, step=question.step_s, **more)


def measured(of: FilledPrometheus, questions: list[Question], end_s: int, repeats: int) -> list[MeasuredQuery]:
    """Return the seconds of each query; the boards are queried in turn."""
    sizes: list[tuple[int, int]] = []
    report_activity(f"asking {len(questions)} queries for the first time: not counted")
    for item in questions:
        data = msgspec.json.decode(ask(of, item, end_s, stats="all")[1])["data"]
        samples = int(data["stats"]["samples"]["totalQueryableSamples"])
        sizes.append((samples, len(data["result"])))
    seconds: list[list[float]] = [[] for _ in questions]
    cpu_seconds: list[list[float]] = [[] for _ in questions]
    for repeat in range(repeats):
        report_activity(f"asking {len(questions)} queries, {repeat + 1} of {repeats}")
        for item, item_seconds, item_cpu_seconds in zip(questions, seconds, cpu_seconds, strict=True):
            before = of.cpu_s()
            item_seconds.append(ask(of, item, end_s)[0])
            item_cpu_seconds.append(of.cpu_s() - before)
    return [
        MeasuredQuery(item, samples, series, min(took), max(took), min(cpu))
        for item, (samples, series), took, cpu in zip(questions, sizes, seconds, cpu_seconds, strict=True)
    ]


def opening(of: FilledPrometheus, questions: list[Question], end_s: int, repeats: int) -> float:
    """Return the seconds from the first query of a board that opens to the last answer, ``AT_ONCE`` queries at a time."""
    collected = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in range(repeats):
            began = time.perf_counter()
            list(pool.map(lambda item: ask(of, item, end_s), [item for item in questions if not item.later]))
            collected.append(time.perf_counter() - began)
    return round(min(collected), 3)


def of_board(results: list[MeasuredQuery], rules: list[dict[str, Any]], rule_seconds: dict[str, float]) -> dict[str, Any]:
    """Return the figures of one board."""
    slowest = max(results, key=lambda item: item.s)
    opened = [item for item in results if not item.question.later]
    lines: dict[tuple[str, str], int] = {}
    for item in results:
        key = (item.question.kind, item.question.panel)
        is_table = key[0] == "table"
        lines[key] = max(lines.get(key, 0), item.series) if is_table else lines.get(key, 0) + item.series
    graph = max(((count, title) for (kind, title), count in lines.items() if kind != "table"), default=(0, ""))
    table = max(((count, title) for (kind, title), count in lines.items() if kind == "table"), default=(0, ""))
    needed = set().union(*(rests_on(item.question.expr, rules) for item in results))
    return {
        "queries": len(results),
        "queries_at_once": len(opened),
        "total_s": round(sum(item.s for item in opened), 3),
        "opening_cpu_s": round(sum(item.cpu_s for item in opened), 3),
        "total_of_closed_rows_s": round(sum(item.s for item in results if item.question.later), 3),
        "slowest_s": round(slowest.s, 3),
        "slowest_cpu_s": round(max(item.cpu_s for item in results), 3),
        "slowest": slowest.question.panel,
        "worst_s_of_any": round(max(item.worst_s for item in results), 3),
        "samples": sum(item.samples for item in results),
        "series": sum(item.series for item in results),
        "most_lines_of_a_graph": [graph[1], graph[0]],
        "most_rows_of_a_table": [table[1], table[0]],
        "without_rules_more_s": round(sum(rule_seconds[name] for name in needed), 3),
        "slowest_queries": [
            {
                "panel": item.question.panel,
                "s": round(item.s, 3),
                "cpu_s": round(item.cpu_s, 3),
                "samples": item.samples,
                "series": item.series,
            }
            for item in sorted(results, key=lambda item: -item.s)[:5]
        ],
    }


def budgets_of(boards: dict[str, dict[str, Any]]) -> list[dict[str, object]]:
    """Return the budgets of the boards."""
    return [
        budget(f"{name}: {quantity}", value, limit)
        for name, figures in boards.items()
        for quantity, value, limit in (
            ("slowest_query_cpu_s", figures["slowest_cpu_s"], QUERY_BUDGET_S),
            ("opening_cpu_s_per_core", round(figures["opening_cpu_s"] / CORES, 3), OPENING_BUDGET_S),
            ("most_lines_of_a_graph", figures["most_lines_of_a_graph"][1], LINES_BUDGET),
            ("most_rows_of_a_table", figures["most_rows_of_a_table"][1], ROWS_BUDGET),
        )
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=128, help="of 8 GPUs each, at least 8")
    parser.add_argument("--hours", type=int, default=6, help="of the past; of alerts and Xids there are 24")
    parser.add_argument("--interval", type=int, default=30, help="seconds between two scrapes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="does it work at all: no longer past of alerts, no waiting")
    args = parser.parse_args()
    program = shutil.which("prometheus", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        parser.error("needs the program prometheus: apt-get install prometheus")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "thresholds.toml").write_text(PRICE)
        rules = rules_in_order(rules_text(settings=load_thresholds(folder / "thresholds.toml")))
        with empty_prometheus(program, folder, f"127.0.0.1:{free_port()}") as prometheus:
            end_s = int(time.time()) // 60 * 60
            series = fill(prometheus, args, end_s, free_port())
            report_activity(f"recording what {len(rules)} rules say of {args.hours} h")
            rule_seconds = recorded(prometheus, rules, end_s - args.hours * 3600, end_s)
            if not args.quick:
                report_activity("waiting until Prometheus has tidied up")
                prometheus.settle()
            load_asking = os.getloadavg()[0]
            boards = all_boards()
            questions = [
                question(board, target, chosen(uid), args.interval) for uid, board in boards.items() for target in targets(board)
            ]
            result = measured(prometheus, questions, end_s, args.repeats)
            opens = {
                uid: opening(prometheus, [item for item in questions if item.board == uid], end_s, args.repeats)
                for uid in sorted(boards)
            }
            once = [prometheus.query("query", query=rule["expr"], time=end_s)[0] for rule in rules]
    of_boards = {
        uid: {"opens_s": opens[uid], **of_board([item for item in result if item.question.board == uid], rules, rule_seconds)}
        for uid in sorted(boards)
    }
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    figures = {
        "hosts": args.hosts,
        "gpus": GPUS * args.hosts,
        "series": series,
        "hours": args.hours,
        "scrape_interval_s": args.interval,
        "boards": of_boards,
        "all_recording_rules_once_s": round(sum(once), 3),
        "queries_without_a_series": sum(item.series == 0 for item in result),
    }
    prometheus_version = (version.stdout or version.stderr).split("(")[0].strip()
    about = {"prometheus": prometheus_version, "load_when_asking_begins": round(load_asking, 2)}
    finish(figures, budgets_of(of_boards), environment("rankscope", **about))


if __name__ == "__main__":
    main()
