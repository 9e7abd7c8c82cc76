"""Generator of the documentation's tables of collectors, metrics (from the catalogue) and Xids.

``python -m rankscope.exporter.reference docs`` rewrites the text between the markers of the two pages in that folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankscope.exporter.catalogue import CATALOGUE, COLLECTORS, CatalogueMetric, DcgmName
from rankscope.exporter.pages.otlp_metrics import otel_name
from rankscope.exporter.xids import XIDS

_ALWAYS: Final = "exporter"
_LEGEND: Final = """\
Metrics of GPUs have the label `uuid`, the GPU's or the MIG device's; the other labels are named. DCGM names begin with
`DCGM_FI_`, unless they have another prefix here, and stand on the page of `--compat dcgm`; those in parentheses need a file of
counters. OpenTelemetry names go out with `--otlp`.
"""


def metric_tables() -> str:
    """Return a Markdown table of the collectors, and one of the metrics of each."""
    parts = [_collectors(), _LEGEND]
    for name, collector in COLLECTORS.items():
        switch = "on" if collector.default_on else "off"
        parts.append(_table(f"`{name}` ({switch} by default)", [row for row in CATALOGUE if row.collector == name]))
    parts.append(_table("The exporter itself", [row for row in CATALOGUE if row.collector == _ALWAYS]))
    return "\n".join(parts)


def xid_table() -> str:
    """Return a Markdown table of the Xids."""
    lines = ["| Xid | name | meaning | mostly from | usual action | needs an operator |", "|---|---|---|---|---|---|"]
    for xid in sorted(XIDS.values(), key=lambda row: row.code):
        act = "if it is fatal" if xid.graded else "yes" if xid.actionable else ""
        lines.append(f"| {xid.code} | `{xid.name}` | {xid.meaning} | {xid.cause} | {xid.action.replace('_', ' ')} | {act} |")
    return "\n".join(lines) + "\n"


TABLES: Final[dict[str, tuple[str, str, Callable[[], str]]]] = {
    "exporter-metrics.md": ("<!-- metrics: generated from the catalogue -->", "<!-- end of metrics -->", metric_tables),
    "exporter-xids.md": ("<!-- xids: generated from xids.toml -->", "<!-- end of xids -->", xid_table),
}
"""Pages, the markers in each, and what stands between them."""


def with_tables(page: str, document: str) -> str:
    """Return the document of a page with the current tables between its markers; raises ``ValueError`` if one is missing."""
    opening, closing, tables = TABLES[page]
    before, begin, remainder = document.partition(opening)
    _, end, after = remainder.partition(closing)
    if not begin or not end:
        raise ValueError(f"no {opening} … {closing} in the document")
    return f"{before}{begin}\n\n{tables()}\n{end}{after}"


def _collectors() -> str:
    lines = ["| collector | by default | content |", "|---|---|---|"]
    for name, collector in COLLECTORS.items():
        lines.append(f"| `{name}` | {'on' if collector.default_on else 'off'} | {collector.help} |")
    return "\n".join(lines) + "\n"


def _table(title: str, rows: list[CatalogueMetric]) -> str:
    lines = [
        f"### {title}",
        "",
        "| metric | type | labels | meaning | from | DCGM | OpenTelemetry |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels if label != "uuid")
        dcgm = ", ".join(dict.fromkeys(map(_dcgm, row.dcgm)))
        cells = (f"`{row.name}`", row.type, labels, row.help, row.source, dcgm, _otel(row))
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _dcgm(entry: DcgmName) -> str:
    name = f"`{entry.full_name.removeprefix('DCGM_FI_')}`"
    return name if entry.default_on else f"({name})"


def _otel(row: CatalogueMetric) -> str:
    otel = otel_name(row.name, row.type)
    if otel is None:
        return ""
    attributes = ", ".join(f"`{key}={value}`" for key, value in otel.attributes.items() if key != "hw.type")
    return f"`{otel.name}` in `{otel.unit}`" + (f", {attributes}" if attributes else "")


if __name__ == "__main__":
    for name in TABLES:
        path = Path(sys.argv[1]) / name
        path.write_text(with_tables(name, path.read_text()))
