"""Step times on a graph of step records: as they were, ideal, and with ranks, phases or causes ideal or as they were.

A step is a chain of stretches, each as long as its longest rank (``step_graph``). What a rank or host alone saves is what the
verdict says of it (``inference.healing``): healed, it varies as the others do.

If some ranks and causes are made ideal together, the longest of the others decides. So the few longest ranks of every stretch are
stored for every set of causes that may be made ideal. They answer any combination fast, and exactly as all ranks would.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.lateness import Lateness
from rankscope.analysis.evidence.order import leaders_of_block
from rankscope.analysis.evidence.step_table.steps import Matrix
from rankscope.analysis.whatif.cause_parts import Causes
from rankscope.analysis.whatif.graph import Times
from rankscope.analysis.whatif.healed import HealingSavings
from rankscope.analysis.whatif.outcome import MAX_RANKS, JobPart, slowest_count
from rankscope.analysis.whatif.step_graph import StretchBlock

MOST_RANKS: Final = 8
"""Maximum number of ranks that can be made ideal together."""

MOST_CAUSES: Final = 4
"""Maximum number of causes that can be made ideal together: every set of them is stored."""

_META: Final = "combinations.json"
_ABOVE: Final = "above.npy"
_ROWS: Final = "rows.npy"
_SECONDS: Final = 1e-6


OnlyAndWithout = tuple[Times, Times]
"""Two times per stretch of a block, or per step: with only one part as it was, and with only that part ideal."""


@dataclass(frozen=True, slots=True)
class StepScenarios:
    """Step times [steps] of every scenario, microseconds."""

    measured: Times
    actual: Times
    ideal: Times
    ranks: list[JobPart]
    """Ranks with the longest time above the typical, longest first."""
    hosts: list[JobPart]
    """Hosts, the same."""
    slowest: list[int]
    """The slowest 3 % of the ranks."""
    without_slowest: Times
    phases: list[JobPart]
    causes: list[JobPart]
    """Causes with their ``lost``, which add up to ``actual`` - ``ideal``."""


@dataclass(frozen=True, slots=True)
class _BlockResult:
    """Results of one block. Arrays are [stretches] unless stated otherwise."""

    wall: Times
    """Measured step time, mean over the ranks, [steps]."""
    late: Lateness
    above: Times
    """Sum over all stretches of the own time above the typical, [ranks]."""
    parts: list[OnlyAndWithout]
    lost: Times
    """Part of each cause in ``late.lost``, [causes, stretches]."""


def play_steps(causes: Causes, healed: HealingSavings) -> StepScenarios:
    """Play all scenarios on the graph of ``causes``: each rank, host, phase and cause alone. ``healed``: of the graph's ranks."""
    graph, ranks = causes.graph, healed.ranks
    played = graph.of_blocks(lambda block: _play(block, causes))
    above = np.sum([block_result.above for block_result in played], axis=0)
    late = Lateness.joined([block_result.late for block_result in played])
    actual = graph.times(late.leaders.largest)
    order = np.argsort(-above, kind="stable").tolist()
    slowest = [ranks[row] for row in order[: slowest_count(len(order))]]
    rows_of = {host: np.flatnonzero(np.isin(ranks, members)) for host, members in healed.hosts.items()}
    hosts = sorted(rows_of, key=lambda host: -above[rows_of[host]].max())[:MAX_RANKS]
    units = [([row], {"rank": ranks[row]}) for row in order[:MAX_RANKS]]
    units += [(rows_of[host].tolist(), {"host": host, "ranks": healed.hosts[host]}) for host in hosts]
    longest = graph.of_blocks(lambda block: np.stack([block.own[:, rows].max(axis=1) for rows, _ in units]))
    of_units = [
        JobPart(
            key,
            only=graph.times(np.maximum(own, late.middle)),
            without=actual - healed.saves_us([ranks[row] for row in rows]),
        )
        for (rows, key), own in zip(units, np.concatenate(longest, axis=1), strict=True)
    ]
    keys: list[dict[str, Any]] = [*({"op": phase} for phase in graph.phases), *({"cause": name} for name in causes.names)]
    parts = [
        JobPart(key, *(graph.times(_joined(block_result.parts[at][variant] for block_result in played)) for variant in (0, 1)))
        for at, key in enumerate(keys)
    ]
    lost = np.concatenate([block_result.lost for block_result in played], axis=1)
    return StepScenarios(
        measured=_joined(block_result.wall for block_result in played),
        actual=actual,
        ideal=graph.times(late.middle),
        ranks=of_units[: len(units) - len(hosts)],
        hosts=of_units[len(units) - len(hosts) :],
        slowest=slowest,
        without_slowest=actual - healed.saves_us(slowest),
        phases=parts[: len(graph.phases)],
        causes=[
            replace(part, lost=graph.per_step(of_cause)) for part, of_cause in zip(parts[len(graph.phases) :], lost, strict=True)
        ],
    )


def _joined(parts: Iterator[Times]) -> Times:
    return np.concatenate(list(parts))


def _play(block: StretchBlock, causes: Causes) -> _BlockResult:
    late = Lateness(leaders_of_block(block.own.copy()), block.typical)
    last = late.leaders.rows
    parts = [only_and_without(block, phase_lost, stretches) for stretches, phase_lost in map(block.lost_in, block.graph.phases)]
    of_causes = causes.parts(block)
    parts += [only_and_without(block, part) for part in of_causes]
    at = np.arange(len(last))
    wall = block.graph.values("wall_us", block.ending)
    return _BlockResult(
        wall=wall.mean(axis=1, dtype=np.float64),
        late=late,
        above=block.above.sum(axis=0),
        parts=parts,
        lost=np.stack([np.zeros(len(last)) if part is None else part[at, last] for part in of_causes]),
    )


def only_and_without(
    block: StretchBlock, amounts: Matrix | None, stretches: slice | NDArray[np.intp] = slice(None)
) -> OnlyAndWithout:
    """Return the longest time of each stretch with only ``amounts`` of the own time above the typical, and with all but these.

    ``amounts`` are [some stretches, ranks], of all stretches by default; ``None``: 0. Each is limited to the rank's own time
    above the typical in the stretch.
    """
    only, without = block.typical.copy(), block.typical + block.above.max(axis=1)
    if amounts is not None:
        above, typical = block.above[stretches], block.typical[stretches]
        part = np.minimum(amounts, above)
        only[stretches] = typical + part.max(axis=1)
        without[stretches] = typical + np.subtract(above, part, out=part).max(axis=1)
    return only, without


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
        lateness = np.where(healed, np.float32(0.0), self.above[at]).max(axis=1)
        return (self.ideal_us + float(lateness.sum(dtype=np.float64))) / self.steps * _SECONDS

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


def combinations(causes: Causes, ranks: Sequence[int], names: Sequence[str]) -> Combinations:
    """Compute the combinations of the ``ranks`` of a graph, one per row, and of those of its causes that ``names`` has."""
    graph = causes.graph
    places = [causes.names.index(name) for name in names]

    def of_block(block: StretchBlock) -> tuple[float, NDArray[np.float32], NDArray[np.int32]]:
        parts = causes.parts(block)
        return _longest(block, [parts[place] for place in places])

    blocks = graph.of_blocks(of_block)
    return Combinations(
        ranks=ranks,
        causes=list(names),
        steps=len(graph.transfers),
        ideal_us=sum(typical for typical, _, _ in blocks) + float(graph.transfers.sum()),
        above=np.concatenate([above for _, above, _ in blocks], axis=1),
        rows=np.concatenate([rows for _, _, rows in blocks], axis=1),
    )


def _longest(block: StretchBlock, amounts: Sequence[Matrix | None]) -> tuple[float, NDArray[np.float32], NDArray[np.int32]]:
    """Return the ideal time of a block's stretches, and ``above`` and ``rows`` of ``Combinations`` for them."""
    stretches, ranks = block.shape
    kept_count = min(MOST_RANKS + 1, ranks)
    above = np.zeros((1 << len(amounts), stretches, MOST_RANKS + 1), np.float32)
    rows = np.full(above.shape, -1, np.int32)
    each = np.arange(stretches)
    for at in range(len(above)):
        # A cause that took no time in this block changes nothing: reuse the set without it.
        same = sum(1 << number for number, amount in enumerate(amounts) if at >> number & 1 and amount is not None)
        if same != at:
            above[at], rows[at] = above[same], rows[same]
            continue
        remaining = block.above.copy()
        for number, amount in enumerate(amounts):
            if at >> number & 1 and amount is not None:
                remaining -= amount
        np.maximum(remaining, 0.0, out=remaining)
        for place in range(kept_count):  # for so few, several times as fast as a partition
            longest = remaining.argmax(axis=1)
            above[at, :, place], rows[at, :, place] = remaining[each, longest], longest
            remaining[each, longest] = -1.0
    return float(block.typical.sum()), above, rows
