"""Answers for several ranks and causes ideal at once.

A step is a chain of stretches, each as long as its longest rank (``step_graph``). If some ranks are made ideal, the longest of
the others decides. So the few longest ranks of every stretch are stored for every set of causes that may be made ideal. They
answer any combination fast, and exactly as all ranks would.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.whatif.causes import CauseRow
from rankscope.analysis.whatif.step_graph import Block, StepGraph

MOST_RANKS: Final = 8
"""Maximum number of ranks that can be made ideal together."""

_META: Final = "combinations.json"
_ABOVE: Final = "above.npy"
_ROWS: Final = "rows.npy"
_SECONDS: Final = 1e-6


class _Meta(msgspec.Struct, frozen=True, kw_only=True):
    ranks: list[int]
    causes: list[str]
    steps: int
    ideal_us: float


@dataclass(frozen=True, slots=True)
class Combinations:
    """Longest ranks of each stretch. ``above`` and ``rows`` are [sets of causes, stretches, ``MOST_RANKS`` + 1]."""

    ranks: Sequence[int]
    causes: Sequence[str]
    """Causes; bit N of the index of a set of causes stands for cause N."""
    steps: int
    ideal_us: float
    """Sum of all step times with every rank ideal."""
    above: NDArray[np.float32]
    """Own time above the typical rank's, microseconds, unordered; 0 where no rank is above."""
    rows: NDArray[np.int32]
    """Position in ``ranks`` of the rank that ``above`` belongs to; -1: no rank."""

    def without_step_seconds(self, ranks: Collection[int], causes: Collection[str]) -> float:
        """Return the mean step time with these ranks (at most ``MOST_RANKS``) and causes ideal."""
        at = sum(1 << number for number, cause in enumerate(self.causes) if cause in causes)
        healed = np.isin(self.rows[at], [row for row, rank in enumerate(self.ranks) if rank in ranks])
        left = np.where(healed, np.float32(0.0), self.above[at]).max(axis=1)
        return (self.ideal_us + float(left.sum(dtype=np.float64))) / self.steps * _SECONDS

    def write(self, folder: Path) -> None:
        """Write files into ``folder``. Raises ``OSError``."""
        meta = _Meta(ranks=list(self.ranks), causes=list(self.causes), steps=self.steps, ideal_us=self.ideal_us)
        np.save(folder / _ABOVE, self.above)
        np.save(folder / _ROWS, self.rows)
        (folder / _META).write_bytes(msgspec.json.encode(meta))


def read_combinations(folder: Path) -> Combinations | None:
    """Map the files of ``write`` into memory; ``None`` where there are none. Raises ``OSError`` and ``ValueError``."""
    if not (folder / _META).is_file():
        return None
    meta = msgspec.json.decode((folder / _META).read_bytes(), type=_Meta)
    above, rows = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (_ABOVE, _ROWS))
    return Combinations(meta.ranks, meta.causes, meta.steps, meta.ideal_us, above, rows)


def combinations(graph: StepGraph, ranks: Sequence[int], causes: Sequence[CauseRow]) -> Combinations:
    """Compute the combinations of the ``ranks`` of a graph, one per row, and of causes.

    Causes may overlap: together they take no more than the rank's own time above the typical in the stretch.
    """
    found = graph.of_blocks(lambda block: _longest(block, causes))
    return Combinations(
        ranks=ranks,
        causes=[row.cause for row in causes],
        steps=len(graph.transfers),
        ideal_us=sum(typical for typical, _, _ in found) + float(graph.transfers.sum()),
        above=np.concatenate([above for _, above, _ in found], axis=1),
        rows=np.concatenate([rows for _, _, rows in found], axis=1),
    )


def _longest(block: Block, causes: Sequence[CauseRow]) -> tuple[float, NDArray[np.float32], NDArray[np.int32]]:
    """Return the ideal time of a block's stretches, and ``above`` and ``rows`` of ``Combinations`` for them."""
    stretches, ranks = block.shape
    amounts = [row.amounts(block) for row in causes]
    kept = min(MOST_RANKS + 1, ranks)
    above = np.zeros((1 << len(causes), stretches, MOST_RANKS + 1), np.float32)
    rows = np.full(above.shape, -1, np.int32)
    for at in range(len(above)):
        # A cause that took no time in this block changes nothing: reuse the set without it.
        same = sum(1 << number for number, taken in enumerate(amounts) if at >> number & 1 and taken is not None)
        if same != at:
            above[at], rows[at] = above[same], rows[same]
            continue
        left = block.above.copy()
        for number, taken in enumerate(amounts):
            if at >> number & 1 and taken is not None:
                left -= taken
        np.maximum(left, 0.0, out=left)
        longest = left.argpartition(ranks - kept, axis=1)[:, ranks - kept :]
        above[at, :, :kept] = np.take_along_axis(left, longest, axis=1)
        rows[at, :, :kept] = longest
    return float(block.typical.sum()), above, rows
