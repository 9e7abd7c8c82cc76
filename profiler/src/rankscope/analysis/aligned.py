"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """Rows as lines, columns as wide as they need; those in ``left`` keep to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(widths[column]) if column in left else cell.rjust(widths[column]) for column, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]
