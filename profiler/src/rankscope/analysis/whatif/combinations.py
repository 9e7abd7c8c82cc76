"""What-if without several ranks and causes at once.

A step is a chain of stretches, each as long as its longest rank (``step_graph``). Whichever ranks are made ideal, the longest of
the others decides: so of every stretch the few longest ranks are kept, once for every set of causes that may be made ideal, and
any combination is answered from these at once, exactly as it would be from all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.step_order import blocks
from rankscope.analysis.whatif.step_graph import StepGraph, Stretches

MOST_RANKS: Final = 8
"""Ranks that can be made ideal together."""

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
    """The longest ranks of each stretch. ``above`` and ``rows`` are [sets of causes, stretches, ``MOST_RANKS`` + 1]."""

    ranks: Sequence[int]
    causes: Sequence[str]
    """A set of causes has the number whose bits tell which of them are in it."""
    steps: int
    ideal_us: float
    """All steps together, with every rank ideal."""
    above: NDArray[np.float32]
    """How much longer than the typical rank, microseconds, in no order; 0 where nobody is."""
    rows: NDArray[np.int32]
    """Whose it is: position in ``ranks``; -1 for nobody."""

    def without_step_seconds(self, ranks: Collection[int], causes: Collection[str]) -> float:
        """Mean step time with these ranks and causes ideal, at most ``MOST_RANKS`` of the former."""
        at = sum(1 << number for number, cause in enumerate(self.causes) if cause in causes)
        healed = np.isin(self.rows[at], [row for row, rank in enumerate(self.ranks) if rank in ranks])
        left = np.where(healed, np.float32(0.0), self.above[at]).max(axis=1)
        return (self.ideal_us + float(left.sum(dtype=np.float64))) / self.steps * _SECONDS

    def write(self, folder: Path) -> None:
        """Into files of ``folder``. Raises ``OSError``."""
        meta = _Meta(ranks=list(self.ranks), causes=list(self.causes), steps=self.steps, ideal_us=self.ideal_us)
        np.save(folder / _ABOVE, self.above)
        np.save(folder / _ROWS, self.rows)
        (folder / _META).write_bytes(msgspec.json.encode(meta))


def read_combinations(folder: Path) -> Combinations | None:
    """What ``write`` wrote, mapped into memory; ``None`` where nothing was. Raises ``OSError`` and ``ValueError``."""
    if not (folder / _META).is_file():
        return None
    meta = msgspec.json.decode((folder / _META).read_bytes(), type=_Meta)
    above, rows = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (_ABOVE, _ROWS))
    return Combinations(meta.ranks, meta.causes, meta.steps, meta.ideal_us, above, rows)


def combinations(graph: StepGraph, ranks: Sequence[int], causes: Mapping[str, Stretches]) -> Combinations:
    """Of a graph whose rows are ``ranks``, and what each cause took (``causes``: [ranks, stretches]).

    Causes may overlap: together they take no more than a rank's own time in the stretch is above the typical.
    """
    amounts = list(causes.values())
    kept, count = min(MOST_RANKS + 1, len(ranks)), len(graph.typical)
    above = np.zeros((1 << len(amounts), count, MOST_RANKS + 1), np.float32)
    rows = np.full(above.shape, -1, np.int32)
    for part in blocks(count):
        whole = np.maximum(graph.own[:, part] - graph.typical[part], 0.0)
        for at in range(len(above)):
            taken = [amount[:, part] for number, amount in enumerate(amounts) if at >> number & 1]
            left = np.maximum(whole - sum(taken[1:], start=taken[0]), 0.0) if taken else whole
            longest = np.argpartition(-left, kept - 1, axis=0)[:kept]
            above[at, part, :kept] = np.take_along_axis(left, longest, axis=0).T
            rows[at, part, :kept] = longest.T
    ideal = float(graph.typical.sum() + graph.transfers.sum())
    return Combinations(ranks, list(causes), len(graph.transfers), ideal, above, rows)
