"""The table of metrics in the documentation, from the catalogue.

``python -m rankscope.exporter.reference docs/exporter.md`` rewrites what stands between the two markers of that file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from rankscope.exporter.catalogue import CATALOGUE, CatalogueMetric

BEGIN: Final = "<!-- metrics: generated from the catalogue -->"
END: Final = "<!-- end of metrics -->"

_TITLES: Final = {"gpu": "GPUs", "rank": "Ranks", "exporter": "The exporter itself"}


def metric_tables() -> str:
    """One Markdown table per group of the catalogue."""
    return "\n".join(_table(title, [row for row in CATALOGUE if row.group == group]) for group, title in _TITLES.items())


def with_tables(document: str) -> str:
    """The document with the present tables between its markers; raises ``ValueError`` when it has none."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END} in the document")
    return f"{before}{BEGIN}\n\n{metric_tables()}\n{END}{after}"


def _table(title: str, rows: list[CatalogueMetric]) -> str:
    lines = [
        f"### {title}",
        "",
        "| metric | type | labels | what it says | from | DCGM | OpenTelemetry |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        cells = (f"`{row.name}`", row.type, labels, row.help, row.source, row.dcgm, row.otel)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text()))
