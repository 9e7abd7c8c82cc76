"""Line of code at which a slow rank stalls: its samples of Python stacks compared with those of healthy ranks.

Ranks that wait for each other have steps of the same length, so shares of samples are shares of the same time. What the slow rank
does longer than the others has a larger share on it, and waiting for other ranks a smaller one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rankscope.analysis.inference.reasons.loading import loading_line
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.result.analysis import StalledLine
from rankscope.runs.records import Phase, StackLine, StackSamples

COMPARED: Final = 8
"""Largest number of healthy ranks that are compared."""
LEAST_SAMPLES: Final = 20
"""Least number of samples of the rank, and of all ranks that it is compared with."""
LEAST_EXCESS: Final = 0.05
"""Least difference of the shares."""
LEAST_PART: Final = 0.3
"""Least part of the time that the rank costs, as a share of the step, that the difference must explain."""
DEVIATIONS: Final = 4.0
"""Least difference in standard deviations; several lines are tested, and samples of one step are not independent."""
_CLEARLY: Final = 0.7
_Place = tuple[str, int, str]


class _Count(NamedTuple):
    samples: int
    at: Counter[_Place]

    def share(self, place: _Place) -> float:
        return self.at[place] / self.samples


def evenly(ranks: Sequence[int]) -> Sequence[int]:
    """Return at most ``COMPARED`` of the ranks, evenly chosen."""
    return ranks[:: -(-len(ranks) // COMPARED)] if ranks else []


def line_of_run(
    run: RunEvidence, rank: int, healthy: Sequence[int], steps: tuple[int, int] | None, *, cost_share: float
) -> tuple[StalledLine | None, str | None]:
    """Return the line at which a rank of a run stalls, see ``find_stalled_line``, and the reason why samples are missing, if any.

    ``healthy``: ranks to compare with. ``steps``: the first step that counts, and the one after the last.
    """
    rows = list(run.reader.stacks(run.table.attempt, rank))
    own_samples = samples_in(rows, steps)
    others = [samples_in(run.reader.stacks(run.table.attempt, peer), steps) for peer in healthy] if own_samples else []
    line = find_stalled_line(own_samples, others, cost_share=cost_share) if own_samples else None
    return line, next((row.missing[:200] for row in reversed(rows) if row.missing), None)


def samples_in(rows: Iterable[StackSamples], steps: tuple[int, int] | None) -> list[StackSamples]:
    """Return the rows with samples in ``steps`` (the first, and the one after the last), without damaged ones."""
    return [
        row
        for row in rows
        if row.samples > 0
        and sum(line.samples for line in row.lines) <= 2 * row.samples
        and all(line.samples > 0 for line in row.lines)
        and (
            steps is None
            or row.first_step is None
            or row.last_step is None
            or (row.first_step < steps[1] and row.last_step >= steps[0])
        )
    ]


def find_stalled_line(
    own_samples: Sequence[StackSamples], others: Sequence[Sequence[StackSamples]], *, cost_share: float
) -> StalledLine | None:
    """Return the line with the largest excess on a slow rank, or ``None`` where none is beyond chance and large enough.

    ``others``: samples of each healthy rank. ``cost_share``: share of the step that the slow rank costs.
    """
    rank, healthy = _count(own_samples), [counted for rows in others if (counted := _count(rows)).samples]
    healthy_count = _Count(sum(counted.samples for counted in healthy), sum((counted.at for counted in healthy), Counter()))
    if rank.samples < LEAST_SAMPLES or healthy_count.samples < LEAST_SAMPLES:
        return None
    place = max(rank.at, key=lambda line: rank.share(line) - healthy_count.share(line), default=None)
    if place is None:
        return None
    share, usual = rank.share(place), healthy_count.share(place)
    if share - usual < max(LEAST_EXCESS, LEAST_PART * cost_share) or share <= max(counted.share(place) for counted in healthy):
        return None
    pooled = (rank.at[place] + healthy_count.at[place]) / (rank.samples + healthy_count.samples)
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / rank.samples + 1 / healthy_count.samples))
    if share - usual < DEVIATIONS * deviation:
        return None
    lines_of_place = [row for rows in own_samples for row in rows.lines if _place(row) == place]
    most = max(lines_of_place, key=lambda row: row.samples)
    loading = loading_line(most.batches_from, own_samples, others)
    named = most if loading is None or loading.line is None else loading.line
    loader_line = None if named is most or loading is None else loading
    return StalledLine(
        file=named.file,
        line=named.line,
        function=named.function,
        call=named.call,
        innermost=named.innermost,
        phase=_phase(lines_of_place),
        runs_in="training_thread" if loader_line is None else "worker_process" if loader_line.in_process else "background_thread",
        loads=loading is not None or most.batches_from == "loader",
        share=share,
        samples=rank.samples,
        healthy_share=usual,
        healthy_samples=healthy_count.samples,
    )


def _place(line: StackLine) -> _Place:
    return line.file, line.line, line.function


def _count(rows: Iterable[StackSamples]) -> _Count:
    samples, at = 0, Counter[_Place]()
    for row in rows:
        samples += row.samples
        for line in row.lines:
            at[_place(line)] += line.samples
    return _Count(samples, at)


def _phase(lines: Sequence[StackLine]) -> Phase | None:
    """Return the phase of most samples of a line, ``None`` unless it is clear."""
    phases = Counter[Phase | None]()
    for line in lines:
        phases[line.phase] += line.samples
    del phases[None]
    if not phases:
        return None
    phase, count = phases.most_common(1)[0]
    return phase if count >= _CLEARLY * phases.total() else None
