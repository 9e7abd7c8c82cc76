"""The tables of collectors and metrics in the documentation, from the catalogue.

``python -m rankscope.exporter.reference docs/exporter.md`` rewrites what stands between the two markers of that file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from rankscope.exporter.catalogue import CATALOGUE, COLLECTORS, CatalogueMetric
from rankscope.exporter.pages.otlp_names import otel_name

BEGIN: Final = "<!-- metrics: generated from the catalogue -->"
END: Final = "<!-- end of metrics -->"

_ALWAYS: Final = "exporter"
_LEGEND: Final = """\
Metrics of GPUs have the label `uuid`, the GPU's or the MIG device's; the other labels are named. DCGM names begin with
`DCGM_FI_` and stand on the page of `--compat dcgm`; those in parentheses need a file of counters. OpenTelemetry names go out with
`--otlp`.
"""


def metric_tables() -> str:
    """A Markdown table of the collectors, and one of the metrics of each."""
    parts = [_collectors(), _LEGEND]
    for name, collector in COLLECTORS.items():
        switch = "on" if collector.default_on else "off"
        parts.append(_table(f"`{name}` ({switch} by default)", [row for row in CATALOGUE if row.collector == name]))
    parts.append(_table("The exporter itself", [row for row in CATALOGUE if row.collector == _ALWAYS]))
    return "\n".join(parts)


def with_tables(document: str) -> str:
    """The document with the present tables between its markers; raises ``ValueError`` when it has none."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END} in the document")
    return f"{before}{BEGIN}\n\n{metric_tables()}\n{END}{after}"


def _collectors() -> str:
    lines = ["| collector | by default | what it brings |", "|---|---|---|"]
    for name, collector in COLLECTORS.items():
        lines.append(f"| `{name}` | {'on' if collector.default_on else 'off'} | {collector.help} |")
    return "\n".join(lines) + "\n"


def _table(title: str, rows: list[CatalogueMetric]) -> str:
    lines = [
        f"### {title}",
        "",
        "| metric | type | labels | what it says | from | DCGM | OpenTelemetry |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels if label != "uuid")
        dcgm = ", ".join(f"`{entry.name}`" if entry.default_on else f"(`{entry.name}`)" for entry in row.dcgm)
        cells = (f"`{row.name}`", row.type, labels, row.help, row.source, dcgm, _otel(row))
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _otel(row: CatalogueMetric) -> str:
    otel = otel_name(row.name, row.type)
    if otel is None:
        return ""
    told = ", ".join(f"`{key}={value}`" for key, value in otel.attributes.items() if key != "hw.type")
    return f"`{otel.name}` in `{otel.unit}`" + (f", {told}" if told else "")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text()))
