"""Step times on a graph of step records: as they were, ideal, and with single ranks, phases or causes ideal or as they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.steps import Matrix
from rankscope.analysis.whatif.causes import CauseRow
from rankscope.analysis.whatif.graph import Times
from rankscope.analysis.whatif.outcome import MAX_RANKS, Part, slowest_count
from rankscope.analysis.whatif.step_graph import Block, StepGraph

OnlyAndWithout = tuple[Times, Times]
"""Two times per stretch of a block, or per step: with only one part as it was, and with only that part ideal."""


@dataclass(frozen=True, slots=True)
class StepScenarios:
    """Step times [steps] of every scenario, microseconds."""

    measured: Times
    actual: Times
    ideal: Times
    ranks: list[Part]
    """Ranks with the longest time above the typical, longest first. ``key``: the ``row`` of the graph."""
    slowest: list[int]
    """Rows of the slowest 3 % of the ranks."""
    without_slowest: Times
    phases: list[Part]
    causes: list[Part]


@dataclass(frozen=True, slots=True)
class _Played:
    """Results of one block. Arrays are [stretches] unless stated otherwise."""

    wall: Times
    """Measured step time, mean over the ranks, [steps]."""
    typical: Times
    last: NDArray[np.intp]
    """Row of the rank with the longest own time."""
    longest: Times
    second: Times
    """Longest own time of the other ranks; 0 without other ranks."""
    above: Times
    """Sum over all stretches of the own time above the typical, [ranks]."""
    parts: list[OnlyAndWithout]


def play_steps(graph: StepGraph, causes: Sequence[CauseRow]) -> StepScenarios:
    """Play all scenarios: each rank, phase and cause alone."""
    played = graph.of_blocks(lambda block: _play(block, causes))
    above = np.sum([one.above for one in played], axis=0)
    typical, longest, second = (_joined(getattr(one, name) for one in played) for name in ("typical", "longest", "second"))
    last = np.concatenate([one.last for one in played])
    order = np.argsort(-above, kind="stable")
    slowest = order[: slowest_count(len(order))]
    shown = order[:MAX_RANKS]
    rest = graph.of_blocks(lambda block: (block.own[:, shown], longest_without(block, slowest)))
    own = _joined(of_shown for of_shown, _ in rest)
    keys: list[dict[str, Any]] = [*({"op": phase} for phase in graph.phases), *({"cause": row.cause} for row in causes)]
    parts = [
        Part(key, *(graph.times(_joined(one.parts[at][which] for one in played)) for which in (0, 1)))
        for at, key in enumerate(keys)
    ]
    return StepScenarios(
        measured=_joined(one.wall for one in played),
        actual=graph.times(longest),
        ideal=graph.times(typical),
        ranks=[
            Part(
                {"row": row},
                only=graph.times(np.maximum(own[:, at], typical)),
                without=graph.times(np.maximum(np.where(last == row, second, longest), typical)),
            )
            for at, row in enumerate(shown.tolist())
        ],
        slowest=slowest.tolist(),
        without_slowest=graph.times(np.maximum(_joined(without for _, without in rest), typical)),
        phases=parts[: len(graph.phases)],
        causes=parts[len(graph.phases) :],
    )


def _joined(parts: Iterator[Times]) -> Times:
    return np.concatenate(list(parts))


def _play(block: Block, causes: Sequence[CauseRow]) -> _Played:
    last, longest, second = leaders(block.own)
    parts = [only_and_without(block, taken, stretches) for stretches, taken in map(block.lost_in, block.graph.phases)]
    parts += [only_and_without(block, row.amounts(block)) for row in causes]
    wall = block.graph.values("wall_us", block.ending)
    return _Played(
        wall=wall.mean(axis=1, dtype=np.float64),
        typical=block.typical,
        last=last,
        longest=longest,
        second=second,
        above=block.above.sum(axis=0),
        parts=parts,
    )


def leaders(own: Matrix) -> tuple[NDArray[np.intp], Times, Times]:
    """Return per stretch the row of the longest ``own`` time [stretches, ranks], that time, and the second longest.

    Of several longest the first row is returned.
    """
    at, last = np.arange(len(own)), own.argmax(axis=1)
    others = own.copy()
    others[at, last] = 0.0
    return last, own[at, last], others.max(axis=1)


def longest_without(block: Block, rows: NDArray[np.intp]) -> Times:
    """Return the longest own time [stretches] of the ranks that are not in ``rows``; 0 without such ranks."""
    others = block.own.copy()
    others[:, rows] = 0.0
    longest: Times = others.max(axis=1)
    return longest


def only_and_without(block: Block, amounts: Matrix | None, stretches: slice | NDArray[np.intp] = slice(None)) -> OnlyAndWithout:
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
