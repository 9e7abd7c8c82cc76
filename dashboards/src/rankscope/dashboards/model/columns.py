"""Columns of tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

LOCAL_TIME: Final = "In the time zone of the browser; UTC on hover"
"""Tooltip of a column of times that ``LocalTime`` draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a table. Unknown values are shown as a dash; a saved file has all digits."""

    field: str
    name: str
    tooltip: str | None = None
    digits: int | None = None
    """Digits after the decimal point; ``None``: a column of texts."""
    width: int = 130
    pinned: bool = False
    hover: bool = False
    """True: its cells show their whole text on hover."""
    hover_field: str = ""
    """Field whose text its cells show on hover instead."""
    renderer: str = ""
    """Component of assets/*.js that draws its cells."""
    unit_field: str = ""
    """Field whose text follows the number."""
    if_known: bool = False
    """True: hidden where no row has a value."""
    fills: int = 0
    """Minimum width of a column that takes the free width."""
    narrow: int = 0
    """Width on a narrow screen; 0: hidden there, if the table has columns with one."""

    @property
    def is_link(self) -> bool:
        """True if its cells are links to other pages: a click on one does not pick its row."""
        return self.renderer in ("Name", "Runbook")


def number_column(field: str, name: str, tooltip: str, *, digits: int = 2, width: int = 116, **others: Any) -> Column:
    """Return a column of numbers."""
    return Column(field=field, name=name, tooltip=tooltip, digits=digits, width=width, **others)


def text_column(field: str, name: str, *, width: int = 130, **others: Any) -> Column:
    """Return a column of texts."""
    return Column(field=field, name=name, width=width, **others)


def known_columns(columns: Iterable[Column], rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns without those ``if_known`` of which no row has a value."""
    return [column for column in columns if not column.if_known or any(row.get(column.field) is not None for row in rows)]
