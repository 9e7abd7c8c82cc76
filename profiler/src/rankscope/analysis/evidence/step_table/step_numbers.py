"""Step numbers that count in an analysis, where ranks counted their steps differently; ``simultaneous`` finds such ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.base.text import ranks_text
from rankscope.runs.records import CollectiveRecord, StepBreakdown

Ints = NDArray[np.int64]
Row = TypeVar("Row", StepBreakdown, CollectiveRecord)


@dataclass(frozen=True, slots=True)
class NewNumbers:
    """Numbers of the steps of a rank after those of the reference rank."""

    own: Ints
    """Numbers that the rank gave, ascending."""
    new: Ints
    """Numbers of the reference rank, ascending; steps that are one of its steps together have the same. -1: none."""

    def of(self, steps: Ints) -> Ints:
        """Return the new numbers of the rank's ``steps``; -1 where there is none."""
        if not len(self.own):
            return np.full(len(steps), -1)
        places = np.searchsorted(self.own, steps).clip(max=len(self.own) - 1)
        return np.where(self.own[places] == steps, self.new[places], -1)

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the records of profiled steps with new numbers: of steps that are one together, those of the last."""
        last = np.append(np.diff(self.new) != 0, True)
        numbers = dict(zip(self.own[last].tolist(), self.new[last].tolist(), strict=True))
        return [_numbered(row, number) for row in rows if (number := numbers.get(row.step, -1)) >= 0]


def _numbered(row: Row, number: int) -> Row:
    return row if row.step == number else msgspec.structs.replace(row, step=number)


@dataclass(frozen=True, slots=True)
class SeparateRank:
    """Example of a step of a rank that ran while the reference rank was in one of another number."""

    step: int
    reference_step: int


@dataclass(frozen=True, slots=True)
class Places:
    """Columns from which the values of a row are moved, and those to which; several may be one together."""

    source: NDArray[np.intp]
    target: NDArray[np.intp]

    @property
    def firsts(self) -> NDArray[np.intp]:
        """Positions in both at which another target begins."""
        return np.flatnonzero(np.diff(self.target, prepend=-1))


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """Ranks whose steps have other numbers than those that ran at the same time on the other ranks."""

    reference: int = -1
    """Rank whose numbers count."""
    changed: Mapping[int, NewNumbers] = field(default_factory=dict)
    """Ranks whose steps get its numbers."""
    separate_ranks: Mapping[int, SeparateRank] = field(default_factory=dict)
    """Ranks whose steps cannot be compared with those of the others."""

    def comparable(self, ranks: Collection[int]) -> list[int]:
        """Return those of ``ranks`` whose steps can be compared."""
        return [rank for rank in ranks if rank not in self.separate_ranks]

    def places(self, ranks: Ints, steps: Ints) -> dict[int, Places]:
        """Return the new columns of the ``steps`` of each row of ``ranks`` that changes."""
        places: dict[int, Places] = {}
        for rank, changed in self.changed.items():
            new = changed.of(steps)
            source = np.flatnonzero(new >= 0)
            places[int(np.searchsorted(ranks, rank))] = Places(source, np.searchsorted(steps, new[source]))
        return places

    def memory(self, rank: int, samples: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the memory samples of a rank, whose first column has the steps, with the numbers that count."""
        if rank not in self.changed:
            return samples
        new = self.changed[rank].of(samples[:, 0].astype(np.int64))
        return np.column_stack([new, samples[:, 1:]])[new >= 0]

    def breakdowns(self, rank: int, rows: list[StepBreakdown]) -> list[StepBreakdown]:
        """Return the breakdowns of a rank with the numbers that count."""
        return self.changed[rank].rows(rows) if rank in self.changed else rows

    def collectives(self, rank: int, rows: list[CollectiveRecord]) -> list[CollectiveRecord]:
        """Return the collectives of a rank with the numbers that count: those of other times are not matched."""
        return [] if rank in self.separate_ranks else self.changed[rank].rows(rows) if rank in self.changed else rows

    def warnings(self) -> list[str]:
        """Return the warnings about these ranks."""
        warnings: list[str] = []
        if self.changed:
            ranks = sorted(self.changed)
            its = "its" if len(ranks) == 1 else "their"
            warnings.append(
                f"{ranks_text(ranks)} did another number of steps than rank {self.reference} in the same time "
                f"({self._difference(ranks[0])}), as with uneven inputs or extra optimizer steps: {its} steps are compared with "
                f"those of the same time, by the numbers of rank {self.reference}"
            )
        return [*warnings, self.incomparable()] if self.separate_ranks else warnings

    def incomparable(self) -> str:
        """Return which ranks cannot be compared, and why."""
        ranks = sorted(self.separate_ranks)
        example = self.separate_ranks[ranks[0]]
        return (
            f"steps of {ranks_text(ranks)} cannot be compared with those of rank {self.reference}: step {example.step} of rank "
            f"{ranks[0]} ran while rank {self.reference} was in step {example.reference_step}"
        )

    def _difference(self, rank: int) -> str:
        numbers = self.changed[rank]
        own, new = numbers.own[numbers.new >= 0], numbers.new[numbers.new >= 0]
        at = own[np.flatnonzero(own != new)[0]]
        return f"from step {at} of rank {rank} on, and its step {own[-1]} ran with step {new[-1]}"


ALL_ALIKE: Final = StepNumbers()
"""Numbers that need no change."""


def moved(matrix: NDArray[Any], places: Mapping[int, Places], blank: float, join: Callable[..., Any] = np.add.reduceat) -> Any:
    """Return a copy of a matrix with the values of some rows moved and joined; the rest of these rows is ``blank``."""
    result = matrix.copy()
    for row, of_row in places.items():
        result[row] = blank
        if len(of_row.source):
            result[row, of_row.target[of_row.firsts]] = join(matrix[row, of_row.source], of_row.firsts)
    return result


def first_of_each(values: Ints, firsts: NDArray[np.intp]) -> Ints:
    """Return the first of the values that are joined."""
    return values[firsts]
