"""Sets of time: the line of time is cut at every instant that matters, and a set of time is a set of the pieces."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

Cells = set[int]


class Grid:
    """Line of time, cut at ``instants`` (nanoseconds): piece i lies between the instants i and i + 1."""

    def __init__(self, instants: Iterable[int]) -> None:
        self.instants = sorted(set(instants))
        self._number = {instant: number for number, instant in enumerate(self.instants)}

    def cells(self, start: int, end: int) -> Cells:
        """Return the pieces from one instant to another."""
        return set(range(self._number[start], self._number[end]))

    def union(self, spans: Iterable[tuple[int, int]]) -> Cells:
        """Return the pieces that lie in any of the spans."""
        union: Cells = set()
        for start, end in spans:
            union |= self.cells(start, end)
        return union

    def us(self, cells: Cells) -> float:
        """Return the length of a set in microseconds."""
        return sum(self.instants[cell + 1] - self.instants[cell] for cell in cells) / 1000

    def gaps(self, cells: Cells) -> list[Cells]:
        """Return the runs of neighbouring pieces of a set."""
        runs: list[Cells] = []
        for cell in sorted(cells):
            if runs and cell - 1 in runs[-1]:
                runs[-1].add(cell)
            else:
                runs.append({cell})
        return runs

    def end(self, cells: Cells) -> int:
        """Return the instant at which a set ends."""
        return self.instants[max(cells) + 1]


def quantile(values: Iterable[float], at: float) -> float:
    """Return a quantile, linear between the two nearest values."""
    ordered = sorted(values)
    place = at * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def middle(values: Iterable[float]) -> float:
    """Return the median."""
    return float(median(values))
