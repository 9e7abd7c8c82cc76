"""Copies by direction: time, bytes and rate."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.classify import direction_of
from rankscope.analysis.detail_result import CopyPart, Direction
from rankscope.analysis.grouping import by_key
from rankscope.analysis.intervals import Spans, measure, subtract, union

LARGEST_BYTES: Final = 2**40
"""Largest plausible copy, 1 TiB: a larger size is damage."""

MAX_ROWS: Final = 32
"""Largest number of kinds of copies reported, the longest first; a hostile trace may invent any number."""

_MEMORY: Final = re.compile(r"\(([A-Za-z ]{1,24}-> ?[A-Za-z ]{1,24})\)")


def memory_of(name: str) -> str | None:
    """Return the kinds of memory in an event's name, such as ``Pageable -> Device``; ``None`` where it has none."""
    found = _MEMORY.search(name)
    return found.group(1) if found else None


def copy_parts(
    names: list[str],
    name: NDArray[np.int32],
    *,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    size: NDArray[np.int64],
    collective: NDArray[np.bool_],
    hidden: Spans,
) -> list[CopyPart]:
    """Return one row per direction, memory and purpose, longest first.

    One entry per copy: ``name`` indexes ``names``, times are nanoseconds, ``size`` is in bytes and -1 where unknown. ``hidden``
    is compute and communication of the window.
    """
    kinds: dict[tuple[Direction, str | None], int] = {}
    of_name = {
        int(one): kinds.setdefault((direction_of(names[one]), memory_of(names[one])), len(kinds)) for one in np.unique(name)
    }
    kind = np.array([of_name[int(one)] for one in name], dtype=np.int64)
    labels = list(kinds)
    parts: list[CopyPart] = []
    for rows in by_key(kind, collective):
        direction, memory = labels[kind[rows[0]]]
        busy = union(start[rows], end[rows])
        sized = rows[(size[rows] >= 0) & (size[rows] <= LARGEST_BYTES)]
        took = measure(union(start[sized], end[sized]))
        total = int(size[sized].sum()) if len(sized) else None
        parts.append(
            CopyPart(
                direction=direction,
                memory=memory,
                events=len(rows),
                busy_us=measure(busy) / 1000,
                exposed_us=measure(subtract(busy, hidden)) / 1000,
                bytes=total,
                sized_events=len(sized),
                bytes_per_second=total * 1e9 / took if total is not None and took else None,
                collective=bool(collective[rows[0]]),
            )
        )
    return sorted(parts, key=lambda part: -part.busy_us)[:MAX_ROWS]
