"""Draw the Grafana boards without Grafana: every panel's queries to a Prometheus, as a plain page, photographed by Chromium.

A Prometheus is filled as in ``benchmarks/boards/boards.py`` with simulated hosts, or ``--prometheus`` is queried. The page takes
titles, places, units, legends, thresholds, mappings, columns and texts for missing data from the boards' JSON. It is a model of
Grafana, good enough to find empty panels, wrong units and unreadable legends.

    python scripts/board_pictures.py FOLDER [--hosts 8] [--hours 6] [--uid rankscope-run] [--top 1400]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import msgspec
from benchmarks.boards import boards
from benchmarks.boards.remote_write import FilledPrometheus, empty_prometheus, rules_in_order
from benchmarks.common.processes import free_port
from playwright.sync_api import sync_playwright
from tests.dashboards.grafana.grafana_model import Json, Target, all_boards, targets

from rankscope.alerts.rules.rule_file import rules_text
from rankscope.alerts.rules.thresholds import load_thresholds

CSS = """
body { margin: 0; padding: 8px; width: 1584px; background: #f4f5f5; font: 12px sans-serif; color: #24292e }
h1 { font-size: 18px; margin: 4px } h1 small { font-weight: normal; color: #666 } h2 { font-size: 14px; margin: 10px 4px 4px }
.row { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: 30px; gap: 8px }
.panel { background: #fff; border: 1px solid #ddd; padding: 4px 6px; overflow: hidden; display: flex; flex-direction: column }
.panel b { font-weight: 600; white-space: nowrap } .value { font-size: 26px; margin: auto; text-align: center }
.value.words { font-size: 15px } .legend { overflow: hidden; flex: 1; columns: 2; font-size: 11px }
table { border-spacing: 8px 1px }
.legend div { white-space: nowrap; overflow: hidden; text-overflow: ellipsis } .none { margin: auto; color: #888 }
th { text-align: left; color: #555 } td { white-space: nowrap; max-width: 220px; overflow: hidden; text-overflow: ellipsis }
"""
PALETTE = (
    "#7eb26d",
    "#eab839",
    "#6ed0e0",
    "#ef843c",
    "#e24d42",
    "#1f78c1",
    "#ba43a9",
    "#705da0",
    "#508642",
    "#cca300",
    "#447ebc",
)
GREY = "#8e8e8e"
SCALES = {
    "watt": (("W", 1), ("kW", 1e3), ("MW", 1e6)),
    "hertz": (("Hz", 1), ("kHz", 1e3), ("MHz", 1e6), ("GHz", 1e9)),
    "bytes": (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40)),
    "Bps": (("B/s", 1), ("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12)),
    "flops": (("FLOP/s", 1), ("MFLOP/s", 1e6), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15)),
    "s": (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1), ("min", 60), ("h", 3600), ("d", 86400)),
    **{
        unit: ((words, 1), (f"K{words}", 1e3), (f"M{words}", 1e6))
        for unit, words in (("cps", " c/s"), ("opm", " ops/min"), ("short", ""))
    },
    "kwatth": (("kWh", 1), ("MWh", 1e3)),
    "celsius": (("°C", 1),),
}
"""Unit of Grafana to (text, size) of its scaled units."""
TRUTH = {"bool": ("false", "true"), "bool_yes_no": ("no", "yes"), "bool_on_off": ("off", "on")}


def format_value(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a value as Grafana writes it in this unit."""
    if math.isnan(value):
        return "–"
    if unit == "dateTimeAsIso":
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value / 1000))
    if unit in TRUTH:
        return TRUTH[unit][value != 0]
    text, size = "", 1.0
    if unit == "percentunit":
        text, size = "%", 0.01
    elif unit in SCALES:
        text, size = next((scale for scale in reversed(SCALES[unit]) if abs(value) >= scale[1]), SCALES[unit][0])
        text = text if value or len(SCALES[unit]) == 1 else ""
    number = value / size
    return (
        f"{number:.{decimals}f}" if decimals is not None else f"{number:.4g}" if abs(number) < 1e4 else f"{number:.0f}"
    ) + f" {text}".rstrip()


def mapped(value: str, mappings: list[Json]) -> tuple[str, str] | None:
    """Return text and colour of a mapped value."""
    for mapping in mappings:
        mapped_value = mapping["options"].get(value)
        if mapped_value is not None:
            return mapped_value["text"], mapped_value.get("color") or ""
    return None


def css(name: str) -> str:
    """Return the name that CSS has for a colour of Grafana."""
    return name.replace("semi-dark-", "").replace("dark-", "dark")


def colour(value: float, limits: Json) -> str:
    """Return the colour of the highest threshold that the value reaches."""
    reached = [step["color"] for step in limits["steps"] if step["value"] is None or value >= step["value"]]
    return reached[-1] if reached else ""


@dataclass(frozen=True, slots=True)
class LegendSeries:
    """An answer's series with its legend; ``tells``: its values are drawn nowhere."""

    letter: str
    labels: dict[str, str]
    points: list[tuple[float, float]]
    legend: str
    tells: bool


@dataclass(frozen=True, slots=True)
class PrometheusRange:
    """A Prometheus and the end of the time range."""

    prometheus: FilledPrometheus
    end_s: int
    interval_s: int

    def series(self, board: Json, target: Target) -> Iterator[LegendSeries]:
        """Yield the series that a panel's query returns."""
        question = boards.question(board, target, boards.chosen(board["uid"]), self.interval_s)
        if question.step_s is None:
            _, content = self.prometheus.query("query", query=question.expr, time=self.end_s)
        else:
            begin = self.end_s - question.range_s
            _, content = self.prometheus.query(
                "query_range", query=question.expr, start=begin, end=self.end_s, step=question.step_s
            )
        pattern = next(query["legendFormat"] for query in target.panel["targets"] if query["refId"] == target.letter)
        for result in msgspec.json.decode(content)["data"]["result"]:
            points = [(float(moment), float(value)) for moment, value in result.get("values") or [result["value"]]]
            labels: dict[str, str] = result["metric"]
            yield LegendSeries(target.letter, labels, points, legend_of(pattern, labels), "NaN" in question.expr[:4])


def legend_of(pattern: str, labels: dict[str, str]) -> str:
    """Return a series' legend: ``pattern`` with the values of its ``{{labels}}``."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda name: labels.get(name[1], ""), pattern).strip()


def graph(panel: Json, series: list[LegendSeries], begin_s: float, end_s: float) -> str:
    """Return lines over time as SVG, and a legend with the latest and the greatest values."""
    defaults, overrides = panel["fieldConfig"]["defaults"], panel["fieldConfig"]["overrides"]
    unit = defaults["unit"]
    named = {item["matcher"]["options"]: item["properties"] for item in overrides if item["matcher"]["id"] == "byName"}
    dashed = {
        item["matcher"]["options"] for item in overrides if any(part["id"] == "custom.lineStyle" for part in item["properties"])
    }
    stacked = defaults["custom"].get("stacking", {}).get("mode") == "normal"
    lines = [line for line in series if not line.tells]
    total: dict[float, float] = {}
    drawn = []
    for line in lines:
        points = [(moment, value) for moment, value in line.points if math.isfinite(value)]
        if stacked:
            for moment, value in points:
                total[moment] = total.get(moment, 0.0) + value
            points = [(moment, total[moment]) for moment, _ in points]
        drawn.append(points)
    values = [value for points in drawn for _, value in points] or [0.0]
    low = min([defaults["min"]] if "min" in defaults else values)
    high = max([*values, *([defaults["max"]] if "max" in defaults else [])])
    high = high if high > low else low + 1
    width, height = 66 * panel["gridPos"]["w"] - 100, 38 * panel["gridPos"]["h"] - 138
    parts = []
    for share in (0, 0.5, 1):
        y = height * (1 - share) + 8
        label = escape(format_value(low + share * (high - low), unit))
        parts.append(f'<path d="M70 {y} H{width + 70}" stroke="#ddd"/><text x="64" y="{y + 4}" text-anchor="end">{label}</text>')
    for moment in (begin_s, (begin_s + end_s) / 2, end_s):
        x = 70 + width * (moment - begin_s) / (end_s - begin_s)
        anchor = "end" if moment == end_s else "start" if moment == begin_s else "middle"
        parts.append(
            f'<text x="{x}" y="{height + 22}" text-anchor="{anchor}">{time.strftime("%H:%M", time.gmtime(moment))}</text>'
        )
    legend = []
    for index, (line, points) in enumerate(zip(lines, drawn, strict=True)):
        stroke = next(
            (part["value"]["fixedColor"] for part in named.get(line.legend, ()) if part["id"] == "color"), PALETTE[index % 11]
        )
        stroke = css(stroke)
        path = " ".join(
            f"{70 + width * (x - begin_s) / (end_s - begin_s):.1f},{8 + height * (high - y) / (high - low):.1f}"
            for x, y in points
        )
        dash = ' stroke-dasharray="6 4"' if line.letter in dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}"{dash}/>')
        line_values = [value for _, value in line.points]
        numbers = f"{format_value(line_values[-1], unit)}, max {format_value(max(line_values), unit)}"
        legend.append(
            (line_values[-1], f'<div><span style="color:{stroke}">▬</span> {escape(line.legend)}: {escape(numbers)}</div>')
        )
    ordered = [text for _, text in sorted(legend, key=lambda pair: pair[0], reverse=panel["options"]["legend"]["sortDesc"])]
    ordered += [f'<div style="color:{GREY}">▬ {escape(line.legend)}</div>' for line in series if line.tells]
    if not series:
        return f'<div class="none">{escape(defaults["noValue"])}</div>'
    return _drawing(width + 78, height + 28, parts, ordered)


def figure(panel: Json, series: list[LegendSeries]) -> str:
    """Return a single value, or the text for none."""
    defaults = panel["fieldConfig"]["defaults"]
    if not series:
        return f'<div class="value words" style="color:{GREY}">{escape(defaults["noValue"])}</div>'
    value = series[0].points[-1][1]
    words = mapped(f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}", defaults["mappings"])
    text, paint = words or (
        format_value(value, defaults["unit"], defaults.get("decimals")),
        colour(value, defaults["thresholds"]),
    )
    name = f"<br><small>{escape(series[0].legend)}</small>" if series[0].legend else ""
    return f'<div class="value{" words" if words else ""}" style="color:{paint}">{escape(text)}{name}</div>'


def table(panel: Json, series: list[LegendSeries]) -> str:
    """Return the rows of all queries, merged by their labels, with the columns of the panel."""
    several = len(panel["targets"]) > 1
    rows: dict[str, dict[str, Any]] = {}
    for line in series:
        labels = {name: value for name, value in line.labels.items() if name != "__name__"}
        rows.setdefault(json.dumps(labels, sort_keys=True), dict(labels))[f"Value #{line.letter}" if several else "Value"] = (
            line.points[-1][1]
        )
    options = panel["transformations"][-1]["options"]
    titles = {
        source: options["renameByName"][source] for source in sorted(options["indexByName"], key=options["indexByName"].get)
    }
    looks = {
        item["matcher"]["options"]: {part["id"]: part["value"] for part in item["properties"]}
        for item in panel["fieldConfig"]["overrides"]
        if item["matcher"]["id"] == "byName"
    }
    columns = [
        (source, title, looks.get(title, {}))
        for source, title in titles.items()
        if not looks.get(title, {}).get("custom.hidden") and any(source in row for row in rows.values())
    ]
    by = [item["displayName"] for item in panel.get("options", {}).get("sortBy", ())]
    source = next((source for source, title in titles.items() if title in by), "")
    ordered = sorted(rows.values(), key=lambda row: -row.get(source, -math.inf) if isinstance(row.get(source, 0.0), float) else 0)
    if not rows:
        return f'<div class="none">{escape(panel["fieldConfig"]["defaults"]["noValue"])}</div>'
    head = "".join(f"<th>{escape(title)}</th>" for _, title, _ in columns)
    body = ("".join(_cell(row.get(source, ""), look) for source, _, look in columns) for row in ordered[:12])
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def _cell(value: str | float, look: dict[str, Any]) -> str:
    if value == "":
        return "<td>–</td>"
    words = mapped(f"{value:g}" if isinstance(value, float) else value, look.get("mappings", []))
    text = words[0] if words else format_value(value, look.get("unit", "short")) if isinstance(value, float) else value
    paint = colour(value, look["thresholds"]) if isinstance(value, float) and "thresholds" in look else "inherit"
    return f'<td style="color:{paint}">{escape(text)}</td>'


def states(panel: Json, series: list[LegendSeries], begin_s: float, end_s: float) -> str:
    """Return a bar of coloured states for each series, or of a heatmap one of shades for each bucket."""
    mappings = panel["fieldConfig"]["defaults"].get("mappings", [])
    if panel["type"] == "heatmap":  # Grafana turns cumulative buckets into counts
        series = sorted(series, key=lambda line: float(line.legend))
        series = [
            LegendSeries(
                line.letter,
                line.labels,
                [(moment, value - below) for (moment, value), (_, below) in zip(line.points, less, strict=False)],
                line.legend,
                False,
            )
            for line, less in zip(series, [[(0.0, 0.0)] * 2000, *(line.points for line in series)], strict=False)
        ]
    peak = max((value for line in series for _, value in line.points), default=1) or 1
    width = 66 * panel["gridPos"]["w"] - 180
    lines: list[str] = []
    for line in [drawn for drawn in series if not drawn.tells]:
        step, name = width / max(1, len(line.points)), escape(line.legend)
        cells = []
        for moment, value in line.points:
            paint = (mapped(f"{value:g}", mappings) or ("", f"rgba(31,120,193,{value / peak:.2f})"))[1]
            x = 120 + width * (moment - begin_s) / (end_s - begin_s)
            cells.append(f'<rect x="{x:.1f}" width="{step + 0.6:.1f}" height="14" fill="{css(paint)}"/>')
        lines.append(f'<g transform="translate(0,{17 * len(lines)})"><text y="11">{name}</text>{"".join(cells)}</g>')
    words = [
        f'<div><span style="color:{css(part["color"])}">■</span> {part["text"]}</div>'
        for mapping in mappings
        for part in mapping["options"].values()
    ]
    words += [f'<div style="color:{GREY}">▬ {escape(line.legend)}</div>' for line in series if line.tells]
    return _drawing(width + 130, 17 * len(lines), lines, words)


def _drawing(width: float, height: float, parts: list[str], legend: list[str]) -> str:
    svg = f'<svg width="{width}" height="{height}" font-size="11">{"".join(parts)}</svg>'
    return f'{svg}<div class="legend">{"".join(legend)}</div>'


def page(board: Json, source: PrometheusRange) -> tuple[str, list[str]]:
    """Return a board as HTML, and the titles of panels without any series."""
    range_s = boards.seconds_of(board["time"]["from"])
    by_panel: dict[int, list[LegendSeries]] = {}
    for target in targets(board):
        by_panel.setdefault(target.panel["id"], []).extend(source.series(board, target))
    empty, parts = [], []
    for row in board["panels"]:
        if row["type"] == "row":
            parts.append(f'</div><h2>{"▸" if row["collapsed"] else "▾"} {escape(row["title"])}</h2><div class="row">')
            top = row["gridPos"]["y"] + 1
        for panel in row.get("panels", []) if row["type"] == "row" else [row]:
            series = by_panel[panel["id"]]
            if not any(not line.tells for line in series):
                empty.append(panel["title"])
            kind, span = panel["type"], (source.end_s - range_s, source.end_s)
            if kind in ("state-timeline", "heatmap"):
                content = states(panel, series, *span)
            else:
                content = (
                    {"stat": figure, "table": table}[kind](panel, series) if kind != "timeseries" else graph(panel, series, *span)
                )
            place = panel["gridPos"]
            where = f"grid-area: {place['y'] - top + 1} / {place['x'] + 1} / span {place['h']} / span {place['w']}"
            parts.append(f'<div class="panel" style="{where}"><b>{escape(panel["title"])}</b>{content}</div>')
    title = f"{escape(board['title'])} <small>simulated data; drawn from the board's JSON, not by Grafana</small>"
    return f'<meta charset="utf-8"><style>{CSS}</style><h1>{title}</h1><div>{"".join(parts)}</div>', empty


def draw(source: PrometheusRange, folder: Path, uids: list[str], top: int) -> None:
    """Write page and picture of each board; ``top``: height of the pictures, 0 for all of a board."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        sheet = browser.new_page(viewport={"width": 1600, "height": top or 1000}, device_scale_factor=0.75 if top else 1)
        for uid, board in all_boards().items():
            if uids and uid not in uids:
                continue
            text, empty = page(board, source)
            (folder / f"{uid}.html").write_text(text, encoding="utf-8")
            sheet.set_content(text)
            sheet.screenshot(path=folder / f"{uid}.png", full_page=not top)
            print(f"{uid}: without a series: {', '.join(empty) or 'none'}")
        browser.close()


def main() -> None:
    """Fill a Prometheus and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--hours", type=int, default=6)
    parser.add_argument("--interval", type=int, default=30)
    parser.add_argument("--uid", action="append", default=[], help="only this board; repeatable")
    parser.add_argument("--top", type=int, default=0, help="only so many pixels of each board")
    parser.add_argument("--prometheus", help="URL of a filled Prometheus, with --end")
    parser.add_argument("--end", type=int, default=int(time.time()) // 60 * 60, help="end of the time ranges, in Unix seconds")
    args = parser.parse_args()
    args.quick = True
    if args.prometheus:
        client = httpx.Client(timeout=60, trust_env=False)
        draw(PrometheusRange(FilledPrometheus(args.prometheus, client), args.end, args.interval), args.folder, args.uid, args.top)
        return
    program = shutil.which("prometheus", path="/usr/bin:/usr/sbin:/usr/local/bin")
    if program is None:
        parser.error("needs the program prometheus: apt-get install prometheus")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        (Path(name) / "thresholds.toml").write_text(boards.PRICE)
        rules = rules_in_order(rules_text(settings=load_thresholds(Path(name) / "thresholds.toml")))
        with empty_prometheus(program, Path(name), f"127.0.0.1:{free_port()}") as prometheus:
            boards.fill(prometheus, args, args.end, free_port())
            boards.recorded(prometheus, rules, args.end - args.hours * 3600, args.end)
            draw(PrometheusRange(prometheus, args.end, args.interval), args.folder, args.uid, args.top)


if __name__ == "__main__":
    main()
