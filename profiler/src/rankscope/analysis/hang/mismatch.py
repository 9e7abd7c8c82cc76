"""Ranks that came to the same collective with different operations, sizes or data types."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

from rankscope.analysis.hang.meetings import Meeting
from rankscope.analysis.hang.progress import Lines
from rankscope.analysis.hang.records import Record
from rankscope.analysis.hang.result import Mismatch

What = Literal["op", "size", "dtype"]

_SAME_SIZES: Final = frozenset(
    {"all_reduce", "reduce", "broadcast", "all_gather", "_all_gather_base", "reduce_scatter", "_reduce_scatter_base"}
)
"""Collectives that need the same number of elements from every rank. (All-to-all, scatter and gather do not.)"""


def find_mismatches(meetings: Iterable[Meeting], lines: Lines) -> dict[Meeting, tuple[Mismatch, list[int]]]:
    """Return, per meeting with a mismatch: the values on which its ranks disagree, and the ranks in the minority.

    The minority is empty unless more than half of the ranks agree.
    """
    found: dict[Meeting, tuple[Mismatch, list[int]]] = {}
    for meeting in meetings:
        if meeting.transfer:
            continue
        records = dict(meeting.records)
        for rank in meeting.ended:
            line = lines.of(meeting.group, rank)
            if line is not None and meeting.sequence in line.collectives:
                records[rank] = line.collectives[meeting.sequence]
        for what, value_of in _CHECKS.items():
            values: dict[str, list[int]] = {}
            for rank in sorted(records):
                if (value := value_of(records[rank])) is not None:
                    values.setdefault(value, []).append(rank)
            if len(values) > 1:
                most = max(values.values(), key=len)
                minority = [] if 2 * len(most) <= len(records) else sorted(set(records) - set(most))
                group = meeting.group
                mismatch = Mismatch(
                    group=group.name, group_description=group.description, sequence=meeting.sequence, what=what, values=values
                )
                found[meeting] = mismatch, minority
                break
    return found


def _elements(record: Record) -> str | None:
    sizes = record.elements("input")
    return f"{sizes} elements" if record.op in _SAME_SIZES and sizes < 2**63 else None


def _types(record: Record) -> str | None:
    names = sorted(set(record.dtypes("input")))
    return ", ".join(names) if record.op in _SAME_SIZES and names else None


_CHECKS: Final[dict[What, Callable[[Record], str | None]]] = {
    "op": lambda record: record.op,
    "size": _elements,
    "dtype": _types,
}
"""Checks in this order, because a different operation also has different sizes."""
