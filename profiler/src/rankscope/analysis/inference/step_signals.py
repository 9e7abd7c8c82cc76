"""Signals of a slow rank in step records: its excess over its peers, by phase and by signal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.order import by_step, of_blocks
from rankscope.analysis.evidence.steps import StepTable, Stored
from rankscope.analysis.inference.cause import Signals, cause_of
from rankscope.analysis.inference.significance import block_slices
from rankscope.analysis.result.analysis import Cause
from rankscope.runs.records import PHASES, Phase

MOST_PEERS: Final = 128
"""Number of peers compared at most: they suffice for a median, and thousands take longer for the same result."""


def signals_of(
    table: StepTable,
    rank: int,
    affected: NDArray[np.bool_],
    peers: Sequence[int],
    *,
    device_busy_us: float | None,
    own_us: float | None = None,
) -> Signals:
    """Return the signals of one rank against its ``peers`` in the steps marked ``affected`` [steps].

    At most ``MOST_PEERS`` of the peers are compared, evenly spaced. ``own_us``: the excess per step, for records that do not
    separate own time from waiting. Phases are then compared by their wall times: the other ranks wait in another phase than the
    one in which the slow rank is late, or else no phase stands out.
    """
    peers = peers[:: max(1, -(-len(peers) // MOST_PEERS))]
    row, others = int(np.searchsorted(table.ranks, rank)), np.searchsorted(table.ranks, peers)
    kind = "own_" if own_us is None else ""

    compared = np.array([row, *others])

    parts: dict[str, NDArray[np.float64]] = {}

    def mean_excess(metric: str) -> float | None:
        """Return the mean excess over the median of the peers; its parts are kept for ``_agreement``."""
        found = over_peers(metric, lambda both: both[:, 0] - _medians(both[:, 1:]))
        if not found:
            return None
        over = np.concatenate(found)
        parts[metric] = np.array([over[block].mean(dtype=np.float64) for block in block_slices(len(over))])
        return float(over.mean())

    def work_excess(metric: str) -> float | None:
        """Return the excess of the rank's mean over the median of its peers' means, as a ratio."""
        sums = over_peers(metric, lambda both: both.sum(axis=0, dtype=np.float64))
        mine, *theirs = sum(sums, np.zeros(len(compared)))
        usual = float(np.median(theirs))
        return float(mine) / usual - 1 if usual > 0 else None

    def over_peers(metric: str, function: Callable[[Stored], NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Return ``function`` of blocks [steps, the rank and its peers], for the affected steps that all of them recorded."""
        if not np.isfinite(table.of_rank(metric, row)).any():
            return []
        found = of_blocks(table.profiled.shape, lambda steps: of_block(metric, steps, function))
        return [part for part in found if part is not None]

    def of_block(metric: str, steps: slice, function: Callable[[Stored], NDArray[np.float64]]) -> NDArray[np.float64] | None:
        both = by_step(table.some(metric, steps, compared))[affected[steps]]
        there = np.isfinite(both).all(axis=1)
        if not there.all():
            both = both[there]
        return function(both) if len(both) else None

    phases: dict[Phase, float] = {}
    for phase in PHASES:
        over = mean_excess(f"{kind}{phase}_us")
        if over is not None:
            phases[phase] = over
    alone, longer = _activities(table, affected, row, others)
    given, loaded = work_excess("model_elements"), work_excess("input_elements")
    loaded = work_excess("samples") if loaded is None else loaded
    signals = Signals(
        own_us=own_us if own_us is not None else mean_excess("own_us") or 0.0,
        phases_us=phases,
        host_us=_total([mean_excess(f"{phase}_us") for phase in PHASES]) if len(peers) > 1 else None,
        cpu_us=mean_excess("cpu_us"),
        run_queue_us=mean_excess("run_queue_us"),
        gc_us=mean_excess("gc_us"),
        work=loaded if given is None else given,
        loaded_work=None if given is None else loaded,
        alone=alone,
        longer=longer,
        device_busy_us=device_busy_us,
    )
    return replace(signals, agreement=_agreement(signals, parts, kind))


def _total(parts: Sequence[float | None]) -> float | None:
    """Return the sum of the parts that are known; ``None`` without any."""
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


_DRAWS: Final = 200


def _agreement(signals: Signals, parts: Mapping[str, NDArray[np.float64]], kind: str) -> float | None:
    """Return the share of bootstrap samples of blocks of steps in which the cause is that of ``signals``.

    ``parts``: mean of each metric in each block. A metric that some steps lack has blocks of its own, in the same order.
    """
    blocks = min((len(part) for part in parts.values()), default=0)
    if not blocks:
        return None
    rng = np.random.default_rng(0)
    picks = rng.integers(0, blocks, size=(_DRAWS, blocks))
    means = {metric: part[picks].mean(axis=1).tolist() for metric, part in parts.items()}

    def drawn(draw: int) -> Signals:
        value = {metric: of_draws[draw] for metric, of_draws in means.items()}
        return replace(
            signals,
            own_us=value.get("own_us", signals.own_us),
            phases_us={phase: value[f"{kind}{phase}_us"] for phase in signals.phases_us},
            host_us=_total([value.get(f"{phase}_us") for phase in PHASES]) if signals.host_us is not None else None,
            cpu_us=value.get("cpu_us"),
            run_queue_us=value.get("run_queue_us"),
            gc_us=value.get("gc_us"),
        )

    same = cause_of(signals)
    return sum(cause_of(drawn(draw)) is same for draw in range(_DRAWS)) / _DRAWS


ACTIVITIES: Final[dict[Cause, str]] = {"checkpoint": "checkpoint", "evaluation": "eval"}
"""Causes that tags of step records show, and the tag of each."""

_AS_OFTEN: Final = 0.9
"""Least frequency of an activity in the slow steps, relative to the most frequent one. If half of the slow steps have a
checkpoint and all have an evaluation, only the evaluation explains them."""


def _activities(
    table: StepTable, affected: NDArray[np.bool_], row: int, others: NDArray[np.intp]
) -> tuple[frozenset[Cause], frozenset[Cause]]:
    """Return the activities that most of a rank's affected steps are tagged with, in two sets.

    The first has those that most of its peers lack at these steps. The second has those that the peers share, but that most of
    the rank's other steps lack. ``row``, ``others``: the rank and its peers, as rows of the table.
    """
    mine = {cause: float(table.tagged(tag)[row, affected].mean()) for cause, tag in ACTIVITIES.items() if affected.any()}
    least = max(0.5, _AS_OFTEN * max(mine.values(), default=0.0))
    found = {cause: table.tagged(ACTIVITIES[cause]) for cause, share in mine.items() if share >= least}
    alone = frozenset(cause for cause, tagged in found.items() if tagged[np.ix_(others, affected)].mean() < 0.5)
    longer = frozenset(
        cause
        for cause, tagged in found.items()
        if cause not in alone and not affected.all() and tagged[row, ~affected].mean() < 0.5
    )
    return alone, longer


def _medians(values: Stored) -> NDArray[np.float64]:
    """Return the median of each row; sorts ``values`` in place."""
    values.sort(axis=1)
    count = values.shape[1]
    middle: NDArray[np.float64] = values[:, [(count - 1) // 2, count // 2]].mean(axis=1, dtype=np.float64)
    return middle
