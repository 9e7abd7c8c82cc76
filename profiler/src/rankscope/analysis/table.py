"""Layout of text tables."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.base.text import one_line


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
