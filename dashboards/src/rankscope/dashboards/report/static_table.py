"""Conversion of the page's tables to HTML tables and to CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from rankscope.dashboards.model.drawn import Table
from rankscope.dashboards.report.static_html import attribute

MOST_ROWS: Final = 2_000
"""Maximum rows of a table in the file. The page has all of them."""

_FORMAT: Final = re.compile(r"d3\.format\('(,?(?:\.\d{1,2})?[fd%])'\)", re.ASCII)
"""Pattern of the d3 formats that mean the same in Python."""


@dataclass(frozen=True, slots=True)
class Column:
    """Visible column. ``format``: format of its numbers; ``""`` for none."""

    field: str
    label: str
    tooltip: str | None
    format: str


def columns_of(definitions: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the visible columns of an AG grid (``columnDefs``), with groups flattened."""
    return list(_columns(definitions, ""))


def _columns(definitions: Sequence[Mapping[str, Any]], group: str) -> Iterator[Column]:
    for definition in definitions:
        label = f"{group} {definition.get('headerName') or definition.get('field') or ''}".strip()
        if definition.get("children"):
            yield from _columns(definition["children"], label)
        elif definition.get("field") and not definition.get("hide"):
            formatter = definition.get("valueFormatter")
            function = formatter.get("function", "") if isinstance(formatter, Mapping) else ""
            found = _FORMAT.search(function)
            yield Column(definition["field"], label, definition.get("headerTooltip"), found[1] if found else "")


def data_of(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows unformatted, with all digits."""
    return Table(tuple(column.label for column in columns), [tuple(row.get(column.field) for column in columns) for row in rows])


def table_html(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table whose heads are buttons that sort it. It is readable without scripts."""
    numeric = [all(_is_number(value) for row in rows if (value := row.get(column.field)) is not None) for column in columns]
    heads = "".join(
        f'<th scope="col"{attribute("class", "n" if number else None)}{attribute("title", column.tooltip)}>'
        f'<button type="button" class="sort">{escape(column.label)}</button></th>'
        for column, number in zip(columns, numeric, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{attribute('class', 'n' if number else None)}>{escape(cell_text(row.get(column.field), column.format))}</td>"
            for column, number in zip(columns, numeric, strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table>"


def cell_text(value: object, number_format: str) -> str:
    """Return a cell's text; an unknown value is a dash."""
    if value is None:
        return "-"
    return format(value, number_format) if number_format and _is_number(value) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
