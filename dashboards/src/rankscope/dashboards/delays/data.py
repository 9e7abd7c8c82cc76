"""Imposed wait by origin, victim and cause, computed from all evidence of a run.

The analysis lists only the costliest pairs of ranks. This module lists all pairs, aggregated by host in large groups. Causes come
from the step records. At each step the rank with the longest own time is charged with the wait of its peers. The charge is split
by the parts (phases, GC, run queue) in which this rank took longer than the median rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.causes import CAUSES, CauseRow
from rankscope.analysis.collectives.traffic.bandwidth import directed_rows
from rankscope.analysis.evidence.activities import activity_times
from rankscope.analysis.evidence.compared import StepOwnTimes, imposed_by_step, waits_for_last
from rankscope.analysis.evidence.order import by_step, of_blocks
from rankscope.analysis.evidence.peers import stage_of
from rankscope.analysis.evidence.step_table.steps import Stored
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.dashboards.charts.causes import CAUSES as SHOWN
from rankscope.runs.records import Phase

RANK_BY_RANK: Final = 64
"""Largest group whose matrix is rank by rank; the matrix of a larger group is host by host."""

MOST_NAMES: Final = 128
"""Most rows and columns of a matrix; with more hosts, one row stands for several adjacent hosts."""

MOST_GROUPS: Final = 256
MOST_BINS: Final = 240

_LONGEST_KEY: Final = 200
"""Characters; group names may have any length."""

Values = NDArray[np.float64]


class WaitGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Imposed wait within one process group: a sparse matrix of origins (waited for) and victims (waiting)."""

    key: str
    """Unique in a run; part of addresses."""
    label: str
    ranks: int
    imposed_us: float
    by_host: bool
    names: list[str]
    """Names of rows and columns: ranks, or hosts."""
    members: list[list[int]]
    """Per name: its ranks."""
    origins: list[int]
    """Per cell: position in ``names``."""
    victims: list[int]
    waited_us: list[float]


_PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "optimizer", "between_steps")
"""Phases that are charged with what no cause explains."""

_EXPLAINED: Final = tuple(row for row in CAUSES if row.meter is not None or row.tag is not None or row.phases)
"""Causes with a signal in step records, in the order in which they are charged."""

_CHARGED: Final = {*(row.explained_by or row.cause for row in _EXPLAINED), *_PHASES, "unknown"}

CHARGED: Final = tuple(cause for cause in SHOWN if cause in _CHARGED)
"""Causes that imposed wait is charged to, in the order in which they are shown."""


class RankDelay(msgspec.Struct, frozen=True, kw_only=True):
    """Wait that one rank imposed on others. ``None``: not known."""

    rank: int
    direct_us: float | None
    """Imposed in groups that contain this rank."""
    knock_on_us: float | None
    """Imposed in groups that do not contain this rank: their last rank had itself waited for this one."""
    exposed_us: float | None
    """Part of ``direct_us`` and ``knock_on_us`` that no compute hid."""
    steps_us: float | None
    """Imposed in all judged steps, from the step records."""
    last_in: int | None
    """Number of steps in which the rank arrived last."""
    causes_us: dict[str, float]
    """``steps_us`` by cause."""


class CauseTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Imposed wait by cause over the steps of the run. Lists are by bin, ascending."""

    first: list[int]
    last: list[int]
    steps: list[int]
    """Number of judged steps in the bin."""
    causes_us: dict[str, list[float]]
    """Sums over the bin."""
    worst: list[int]
    """Rank that is charged with most of the bin's wait."""
    worst_share: list[float | None]


class Delays(msgspec.Struct, frozen=True, kw_only=True):
    """All imposed wait of a run: matrices per group, sums per rank and a timeline of causes."""

    matrix_source: str | None
    """``windows`` or ``steps``; ``None``: the run has neither source."""
    matrix_steps: int
    groups: list[WaitGroup]
    """Most imposed wait first."""
    groups_left_out: int
    ranks: list[RankDelay]
    """Ranks that imposed any wait."""
    timeline: CauseTimeline | None
    """``None``: the step records do not separate own time from blocked time."""


def delays_of(run: RunEvidence) -> Delays:
    """Compute the ``Delays`` of a run that has been read."""
    charges = [_charged(own_times) for own_times in run.compared]
    windows = bool(run.blame.steps)
    groups = list(_window_groups(run)) if windows else [_step_group(run, own_times) for own_times in run.compared]
    groups += _directed_groups(run)
    groups.sort(key=lambda group: -group.imposed_us)
    return Delays(
        matrix_source="windows" if windows else "steps" if run.compared else None,
        matrix_steps=len(run.blame.steps) if windows else max((own_times.own.shape[1] for own_times in run.compared), default=0),
        groups=_with_distinct_names(groups[:MOST_GROUPS]),
        groups_left_out=max(0, len(groups) - MOST_GROUPS),
        ranks=_ranks(run, charges, windows=windows),
        timeline=_timeline(charges) if charges else None,
    )


def _with_distinct_names(groups: Sequence[WaitGroup]) -> list[WaitGroup]:
    """Return the groups with unique keys: repeated keys get a number."""
    counts: dict[str, int] = {}
    unique_groups: list[WaitGroup] = []
    for group in groups:
        counts[group.key] = number = counts.get(group.key, 0) + 1
        unique_groups.append(group if number == 1 else msgspec.structs.replace(group, key=f"{group.key} ({number})"))
    return unique_groups


def _window_groups(run: RunEvidence) -> Iterator[WaitGroup]:
    pairs = run.blame.pairs
    for number, (name, members) in enumerate(pairs.groups):
        of_group = pairs.group == number
        origins = pairs.origin[of_group].tolist()
        rows = zip(origins, pairs.victim[of_group].tolist(), pairs.imposed_us[of_group].tolist(), strict=True)
        label = f"{name or 'group without a name'} · {_members(members)}"
        yield _group(run, label, sorted({*members, *origins}), rows, ranks=len(members))


def _directed_groups(run: RunEvidence) -> list[WaitGroup]:
    """Return waits in sends, receives and operations with a root. None is imposed: most are the schedule of a pipeline."""
    pairs: dict[str, dict[tuple[int, int], float]] = {}
    for row in directed_rows(run.matched.waits):
        of = pairs.setdefault(row.group, {})
        key = (row.origin, row.waiter)
        of[key] = of.get(key, 0.0) + row.wait_us
    return [
        _group(
            run,
            f"{name}: sends, receives and operations with a root",
            sorted({rank for pair in waits_by_pair for rank in pair}),
            ((origin, waiter, waited) for (origin, waiter), waited in waits_by_pair.items()),
        )
        for name, waits_by_pair in pairs.items()
    ]


def _step_group(run: RunEvidence, judged: StepOwnTimes) -> WaitGroup:
    last, wait = waits_for_last(judged)
    axis = _axis(run, judged.ranks)
    matrix = axis.no_cells()
    for victim in range(len(matrix)):
        victim_waits = wait[axis.of == victim].sum(axis=0)
        matrix[:, victim] = np.bincount(axis.of[last], weights=victim_waits, minlength=len(matrix))
    stages = {stage_of(run.infos.get(rank)) for rank in judged.ranks}
    stage = stages.pop() if len(stages) == 1 else None
    label = _members(judged.ranks) if stage is None else f"stage {stage} · {_members(judged.ranks)}"
    return _of_matrix(label, axis, matrix, ranks=len(judged.ranks))


def _group(
    run: RunEvidence, label: str, members: Sequence[int], pairs: Iterable[tuple[int, int, float]], *, ranks: int | None = None
) -> WaitGroup:
    axis = _axis(run, members)
    at = {rank: row for row, rank in enumerate(members)}
    matrix = axis.no_cells()
    for origin, victim, waited in pairs:
        matrix[axis.of[at[origin]], axis.of[at[victim]]] += waited
    return _of_matrix(label, axis, matrix, ranks=len(members) if ranks is None else ranks)


def _of_matrix(label: str, axis: _Axis, matrix: Values, *, ranks: int) -> WaitGroup:
    origins, victims = np.nonzero(matrix)
    members: list[list[int]] = [[] for _ in axis.names]
    for rank, place in zip(axis.members, axis.of.tolist(), strict=True):
        members[place].append(int(rank))
    return WaitGroup(
        key=label[:_LONGEST_KEY],
        label=label,
        ranks=ranks,
        imposed_us=float(matrix.sum()),
        by_host=len(axis.names) < len(axis.members),
        names=axis.names,
        members=members,
        origins=origins.tolist(),
        victims=victims.tolist(),
        waited_us=matrix[origins, victims].round(1).tolist(),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """Axis of a matrix, shared by rows and columns."""

    members: Sequence[int]
    names: list[str]
    of: NDArray[np.intp]
    """[members]: position of each member in ``names``."""

    def no_cells(self) -> Values:
        """Return a matrix of zeros, [origins, victims]."""
        return np.zeros((len(self.names), len(self.names)))


def _axis(run: RunEvidence, members: Sequence[int]) -> _Axis:
    if len(members) <= RANK_BY_RANK:
        return _Axis(members, [str(rank) for rank in members], np.arange(len(members)))
    host_of = run.hosts
    hosts = [host_of.get(rank, "host not known") for rank in members]
    host_names = list(dict.fromkeys(hosts))
    each = -(-len(host_names) // MOST_NAMES)
    several = [host_names[at : at + each] for at in range(0, len(host_names), each)]
    names = [merged[0] if len(merged) == 1 else f"{merged[0]} … {merged[-1]}" for merged in several]
    place = {host: at // each for at, host in enumerate(host_names)}
    return _Axis(members, names, np.array([place[host] for host in hosts], dtype=np.intp))


def _members(ranks: Sequence[int]) -> str:
    """Return the ranks as text, such as ``ranks 0 to 7`` or ``8 ranks: 0, 16, 32 …``."""
    ranks = sorted(ranks)
    if len(ranks) == ranks[-1] - ranks[0] + 1 and len(ranks) > 2:
        return f"ranks {ranks[0]:,} to {ranks[-1]:,}"
    shown = ", ".join(str(rank) for rank in ranks[:4])
    return f"ranks {shown}" if len(ranks) <= 4 else f"{len(ranks):,} ranks: {shown} …"


@dataclass(frozen=True, slots=True)
class _ChargedSteps:
    """Last rank of each judged step, and its charge by cause. Arrays are [steps]."""

    steps: NDArray[np.int64]
    rank: NDArray[np.int64]
    causes: Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class _LastRanks:
    """The rank that is last at each judged step, compared with the median rank."""

    judged: StepOwnTimes
    last: NDArray[np.intp]
    """Its row, [steps]."""

    def excess(self, metric: str) -> Values | None:
        """Return by how much its metric exceeds the median, at least 0, [steps]; ``None`` where no rank has the metric."""
        judged = self.judged
        if not judged.table.is_known(metric):
            return None
        return self._excess_of(lambda steps: judged.table.some(metric, steps, judged.rows))

    def excess_of(self, row: CauseRow) -> Values | None:
        """Return the same of the time that a cause takes."""
        if row.meter is not None:
            return self.excess(row.meter)
        if row.tag is not None:
            times = activity_times(self.judged.table, row.tag, self.judged.rows)
            return self._excess_of(times.in_steps) if times.is_present else None
        of_phases = [us for phase in row.phases if (us := self.excess(f"own_{phase}_us")) is not None]
        return sum(of_phases[1:], start=of_phases[0]) if of_phases else None

    def _excess_of(self, values_of: Callable[[slice], Stored]) -> Values | None:
        """Return the excess of values [ranks, steps of a slice]; ``None`` if all of them are NaN."""
        place = (len(self.judged.ranks) - 1) // 2

        def of_block(steps: slice) -> tuple[Values, bool]:
            values = by_step(values_of(steps))
            unknown = np.isnan(values)
            values[unknown] = 0.0
            of_last = values[np.arange(len(values)), self.last[steps]].astype(np.float64)
            values.sort(axis=1)
            return np.maximum(of_last - values[:, place], 0.0), not unknown.all()

        blocks, has_values = zip(*of_blocks(self.judged.own.shape, of_block), strict=True)
        return np.concatenate(blocks) if any(has_values) else None


def _charged(judged: StepOwnTimes) -> _ChargedSteps:
    last, wait = imposed_by_step(judged)
    ranks = _LastRanks(judged, last)
    excess = ranks.excess("own_us")
    assert excess is not None  # judged ranks have own times
    remaining = excess.copy()
    by_cause: dict[str, Values] = {}
    for row in _EXPLAINED:
        if (amount := ranks.excess_of(row)) is not None:
            cause = row.explained_by or row.cause
            by_cause[cause] = np.minimum(amount, remaining)
            remaining = remaining - by_cause[cause]
    inside = {phase: amount for phase in _PHASES if (amount := ranks.excess(f"own_{phase}_us")) is not None}
    total = sum(inside.values(), start=np.zeros_like(remaining))
    # Phases contain the causes taken above, so each phase gets its share of the remainder.
    part = np.divide(np.minimum(total, remaining), total, out=np.zeros_like(total), where=total > 0)
    for phase, amount in inside.items():
        by_cause[phase] = amount * part
    remaining = remaining - total * part
    by_cause["unknown"] = remaining
    # Wait without any excess own time has no known cause.
    scale = np.divide(wait, excess, out=np.zeros_like(excess), where=excess > 0)
    causes = {cause: amount * scale for cause, amount in by_cause.items()}
    causes["unknown"] = causes["unknown"] + np.where(excess > 0, 0.0, wait)
    return _ChargedSteps(judged.table.steps, np.array(judged.ranks, dtype=np.int64)[last], causes)


def _ranks(run: RunEvidence, charges: Sequence[_ChargedSteps], *, windows: bool) -> list[RankDelay]:
    direct: dict[int, float] = {}
    knock_on: dict[int, float] = {}
    exposed: dict[int, float] = {}
    pairs = run.blame.pairs
    insides = [frozenset(members) for _, members in pairs.groups]
    columns = (pairs.group, pairs.origin, pairs.imposed_us, pairs.exposed_us)
    for group, origin, imposed, bare in zip(*(column.tolist() for column in columns), strict=True):
        of = direct if origin in insides[group] else knock_on
        of[origin] = of.get(origin, 0.0) + imposed
        exposed[origin] = exposed.get(origin, 0.0) + bare
    by_cause: dict[int, dict[str, float]] = {}
    last_in: dict[int, int] = {}
    for charge in charges:
        for rank, count in zip(*np.unique(charge.rank, return_counts=True), strict=True):
            of_rank = charge.rank == rank
            last_in[int(rank)] = int(count)
            by_cause[int(rank)] = {cause: float(amount[of_rank].sum()) for cause, amount in charge.causes.items()}
    delays = [
        RankDelay(
            rank=rank,
            direct_us=direct.get(rank, 0.0) if windows else None,
            knock_on_us=knock_on.get(rank, 0.0) if windows else None,
            exposed_us=exposed.get(rank, 0.0) if windows else None,
            steps_us=sum(by_cause.get(rank, {}).values()) if charges else None,
            last_in=last_in.get(rank, 0) if charges else None,
            causes_us=by_cause.get(rank, {}),
        )
        for rank in sorted({*direct, *knock_on, *by_cause})
    ]
    return sorted(delays, key=lambda row: (-(row.steps_us or 0.0), -(row.direct_us or 0.0), row.rank))


def _timeline(charges: Sequence[_ChargedSteps]) -> CauseTimeline:
    steps = np.unique(np.concatenate([charge.steps for charge in charges]))
    width = -(-len(steps) // MOST_BINS)
    count = -(-len(steps) // width)
    causes = list(dict.fromkeys(cause for charge in charges for cause in charge.causes))
    sums = {cause: np.zeros(count) for cause in causes}
    by_rank: list[dict[int, float]] = [{} for _ in range(count)]
    for charge in charges:
        at = np.searchsorted(steps, charge.steps) // width
        for cause, amount in charge.causes.items():
            sums[cause] += np.bincount(at, weights=amount, minlength=count)
        cause_total = sum(charge.causes.values(), start=np.zeros(len(at)))
        for bin_, rank, amount in zip(at.tolist(), charge.rank.tolist(), cause_total.tolist(), strict=True):
            by_rank[bin_][rank] = by_rank[bin_].get(rank, 0.0) + amount
    worst = [max(of, key=lambda rank, of=of: (of[rank], -rank)) for of in by_rank]  # type: ignore[misc]
    totals = [sum(of.values()) for of in by_rank]
    return CauseTimeline(
        first=steps[::width].tolist(),
        last=[int(steps[min((at + 1) * width, len(steps)) - 1]) for at in range(count)],
        steps=[min(width, len(steps) - at * width) for at in range(count)],
        causes_us={cause: values.round(1).tolist() for cause, values in sums.items() if values.any()},
        worst=worst,
        worst_share=[of[rank] / total if total > 0 else None for of, rank, total in zip(by_rank, worst, totals, strict=True)],
    )
