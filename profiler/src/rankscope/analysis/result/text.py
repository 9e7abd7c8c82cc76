"""Text of results: for people as blocks, colours, warnings, lists, counts, sizes and tables; for programs as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rankscope.base.text import one_line, printable

if TYPE_CHECKING:
    from rankscope.analysis.result.analysis import Cost  # text alone needs no types of results, which take longer to import

RED: Final = "\x1b[1;31m"
GREEN: Final = "\x1b[1;32m"
YELLOW: Final = "\x1b[1;33m"
CYAN: Final = "\x1b[1;36m"
_RESET: Final = "\x1b[0m"

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

UNKNOWN: Final = "-"
"""Placeholder for unknown values in tables."""


def page(blocks: Iterable[str], color: str | None = None) -> str:
    """Return the non-empty ``blocks``, separated by empty lines; the first line, which is the answer, in ``color``."""
    text = printable("\n\n".join(filter(None, blocks)))
    if color is None:
        return text
    answer, newline, rest = text.partition("\n")
    return f"{colored(answer, color)}{newline}{rest}"


def colored(text: str, color: str) -> str:
    """Return ``text`` in ``color``."""
    return f"{color}{text}{_RESET}"


def wrapped(text: str, width: int, *, indent: str = "", hanging: str = "") -> list[str]:
    """Wrap to lines of at most ``width`` columns, without breaking paths and commands. ``hanging`` indents all but the first."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


def warning_lines(warnings: Sequence[str], width: int) -> list[str]:
    """Return the lines of all warnings, in order."""
    return [line for warning in warnings for line in wrapped(f"warning: {warning}", width, hanging="  ")]


def listing(title: str, items: Sequence[str], width: int) -> str:
    """Return a block of ``items`` below their ``title``; empty without items."""
    lines = [line for item in items for line in wrapped(item, width, indent="  ", hanging="    ")]
    return "\n".join([title, *lines]) if lines else ""


def first_of(items: Sequence[object], most: int) -> str:
    """Return the first ``most`` items and the number of the others: ``a, b and 3 more``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def losses(gpu_hours: float | None, cost: Cost | None) -> list[str]:
    """Return the known facts of a loss: ``12.3 GPU-hours lost``, ``30.75 USD``."""
    found = [] if gpu_hours is None else [f"{hours_text(gpu_hours)} GPU-hours lost"]
    return found if cost is None else [*found, f"{cost.amount:.2f} {cost.currency}"]


def hours_text(hours: float) -> str:
    """Format hours: ``0.125``, ``12.3``, ``2,930``, or ``<0.001`` for smaller positive numbers."""
    if 0 < hours < 0.001:
        return "<0.001"
    return f"{hours:,.0f}" if hours >= 1000 else f"{hours:.3g}"


def size(number: int) -> str:
    """Format a number of bytes: ``384 B``, ``1.5 MiB``."""
    power = min(max(0, (number.bit_length() - 1) // 10), len(_UNITS) - 1)
    value = number / 1024**power
    return f"{value:.0f} {_UNITS[power]}" if power == 0 or value >= 10 else f"{value:.1f} {_UNITS[power]}"


def counted(count: int, thing: str) -> str:
    """Format a count with its noun: ``1 line``, ``2,000 lines``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """Return the lines of ``rows`` with right-aligned cells; cells of the columns ``left`` are left-aligned.

    Line breaks in cells are replaced: no name needs them, and they could imitate other parts of the page.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(widths[column]) if column in left else cell.rjust(widths[column]) for column, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def fitting(rows: list[list[str]], width: int, dispensable: Sequence[str]) -> list[list[str]]:
    """Return ``rows`` without as many of the ``dispensable`` columns, in their order, as it takes to fit ``width``.

    The first row has the names of the columns.
    """
    for name in dispensable:
        if max(len(line) for line in aligned(rows)) <= width:
            break
        if name in rows[0]:
            column = rows[0].index(name)
            rows = [row[:column] + row[column + 1 :] for row in rows]
    return rows


def json_of(result: object) -> bytes:
    """Encode a result as JSON in UTF-8; characters that UTF-8 cannot encode, as in undecodable file names, become ``?``."""
    try:
        return msgspec.json.encode(result)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(result)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value
