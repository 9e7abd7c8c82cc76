"""Signals of a slow rank in step records: its excess over its peers, by phase and by signal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.causes import row_of
from rankscope.analysis.evidence.activities import ACTIVITIES, ActivityTimes, activity_times, phase_metric
from rankscope.analysis.evidence.order import by_step, of_blocks
from rankscope.analysis.evidence.step_table.rank_columns import GIVEN_WORK
from rankscope.analysis.evidence.step_table.steps import StepTable, Stored
from rankscope.analysis.inference.judging.significance import block_slices
from rankscope.analysis.inference.reasons.signals import Signals
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.statistics import medians, relative_excess
from rankscope.runs.records import PHASES

MOST_PEERS: Final = 128
"""Number of peers compared at most: they suffice for a median, and thousands take longer for the same result."""

MOST_MOVING: Final = 16
"""Number of ranks at most whose signals make up those of a slowness that moves."""

OTHER_PROFILER: Final = "profiler"
"""Tag of a step in which the script's own profiler was on."""


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
    row, others = int(np.searchsorted(table.ranks, rank)), np.searchsorted(table.ranks, peers)
    excess = _excess_of(table, row, affected, _some(others), own=own_us is None)
    return _signals([excess], own_us=own_us, device_busy_us=device_busy_us)


def signals_of_moving(table: StepTable, last: NDArray[np.intp], affected: NDArray[np.bool_], rows: NDArray[np.intp]) -> Signals:
    """Return the signals of a slowness that moves: in each of the ``affected`` steps [steps], those of the rank that was last.

    ``last``: its row of the table, [steps]. ``rows``: rows of the compared ranks; at each step the others of them are its peers.
    At most ``MOST_MOVING`` ranks count, those that were last most often, against as many peers each.
    """
    counts = np.bincount(last[affected], minlength=len(table.ranks))
    often = np.argsort(-counts, kind="stable")[:MOST_MOVING]
    excesses = [
        _excess_of(table, int(row), affected & (last == row), _some(rows[rows != row], MOST_MOVING), own=True)
        for row in often
        if counts[row]
    ]
    return _signals(excesses, own_us=None, device_busy_us=None)


def _some(rows: NDArray[np.intp], most: int = MOST_PEERS) -> NDArray[np.intp]:
    """Return at most ``most`` of the rows, evenly spaced."""
    return rows[:: max(1, -(-len(rows) // most))]


@dataclass(frozen=True, slots=True)
class _ComparedRank:
    """One rank and its peers, as rows of a table."""

    table: StepTable
    row: int
    others: NDArray[np.intp]
    own: bool
    """True: phases are compared by own time; False: by wall time."""

    @property
    def rows(self) -> NDArray[np.intp]:
        """The rank and its peers."""
        return np.array([self.row, *self.others], dtype=np.intp)

    def excess(self, metric: str, steps: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the excess over the median of the peers, at those of the steps [steps] that all of them recorded."""
        parts = self._of_blocks(metric, steps, _beyond)
        return np.concatenate(parts) if parts else np.zeros(0)

    def work_excess(self, metric: str, steps: NDArray[np.bool_]) -> float | None:
        """Return the excess of the rank's mean over the median of its peers' means, as a ratio."""
        parts = self._of_blocks(metric, steps, lambda both: both.sum(axis=0, dtype=np.float64))
        of_rank, *of_peers = sum(parts, np.zeros(len(self.rows)))
        return relative_excess(of_rank, of_peers)

    def _of_blocks(
        self, metric: str, wanted: NDArray[np.bool_], function: Callable[[Stored], NDArray[np.float64]]
    ) -> list[NDArray[np.float64]]:
        """Return ``function`` of blocks [steps, the rank and its peers], for the wanted steps that half of them recorded."""
        if not np.isfinite(self.table.of_rank(metric, self.row)).any():
            return []

        def of(steps: slice) -> NDArray[np.float64] | None:
            if not wanted[steps].any():
                return None
            both = by_step(self._values(metric, steps))[wanted[steps]]
            recorded = np.isfinite(both)
            if not recorded.all():
                both = _filled(both, recorded)
            return function(both) if len(both) else None

        return [part for part in of_blocks(self.table.profiled.shape, of) if part is not None]

    def _values(self, metric: str, steps: slice) -> Stored:
        """Return a metric, [the rank and its peers, steps].

        A record that has other phases, but not the one asked for, has 0 of it: only some ranks may load data.
        """
        table, rows = self.table, self.rows
        values = table.some(metric, steps, rows)
        phase = next((phase for phase in PHASES if metric in (f"{phase}_us", f"own_{phase}_us")), None)
        if phase is None or np.isfinite(values).all():
            return values
        has_phases = np.logical_or.reduce([np.isfinite(table.some(f"{each}_us", steps, rows)) for each in PHASES])
        absent = has_phases & np.isnan(table.some(f"{phase}_us", steps, rows))
        if metric.startswith("own_"):
            absent &= np.isfinite(table.some("own_us", steps, rows))
        return np.where(np.isnan(values) & absent, values.dtype.type(0), values)

    def activities(self, steps: NDArray[np.bool_]) -> list[_ActivityExcess]:
        """Return the activities of the rank in the steps."""
        activities = []
        for cause, tag in ACTIVITIES.items():
            tagged = self.table.tagged(tag)
            if not tagged[self.row, steps].any():
                continue
            times = activity_times(self.table, tag, self.rows, own=self.own)
            activities.append(
                _ActivityExcess(
                    cause,
                    excess=self._time_beyond(times, steps),
                    share=float(tagged[self.row, steps].mean()),
                    share_of_peers=float(tagged[np.ix_(self.others, steps)].mean()),
                    is_measured=times.is_measured(0, steps & tagged[self.row]),
                )
            )
        return activities

    def _time_beyond(self, times: ActivityTimes, wanted: NDArray[np.bool_]) -> NDArray[np.float64]:
        blocks = of_blocks(self.table.profiled.shape, lambda steps: _beyond(by_step(times.in_steps(steps)[:, wanted[steps]])))
        return np.concatenate(blocks)

    def profiler_us(self, steps: NDArray[np.bool_]) -> float:
        """Return the part of the own excess that comes with the script's own profiler: 0 unless it is on in most of the steps on
        this rank and not on its peers. Without steps of the rank that lack it, that is all of the excess; infinite where own
        times are unknown.
        """
        tagged = self.table.tagged(OTHER_PROFILER)
        alone = steps.any() and tagged[self.row, steps].mean() >= 0.5 > tagged[np.ix_(self.others, steps)].mean()
        if not alone:
            return 0.0
        if not self.own:
            return float("inf")
        slow, usual = (self.excess("own_us", step_mask) for step_mask in (steps, ~tagged[self.row]))
        return float(slow.sum() / max(1, len(slow)) - usual.sum() / max(1, len(usual)))


@dataclass(frozen=True, slots=True)
class _ActivityExcess:
    """Checkpoints or evaluations of a rank in some steps."""

    cause: Cause
    excess: NDArray[np.float64]
    """Time in them over the median of the peers, at each step."""
    share: float
    """Share of the steps that have the tag."""
    share_of_peers: float
    """The same of the peers' records."""
    is_measured: bool
    """True if the recorder measured the time."""


@dataclass(frozen=True, slots=True)
class _Excess:
    """Excess of one rank over the median of its peers in its affected steps."""

    steps: int
    """Number of its affected steps."""
    over: dict[str, NDArray[np.float64]]
    """Excess by metric, and by cause for activities, at each affected step in which it is known."""
    work: dict[str, float]
    """Relative excess of the sum over the affected steps, by metric of work."""
    activities: dict[Cause, _ActivityExcess]
    profiler_us: float
    """See ``_ComparedRank.profiler_us``."""
    has_peers: bool
    """True with two or more peers."""


def _excess_of(table: StepTable, row: int, affected: NDArray[np.bool_], others: NDArray[np.intp], *, own: bool) -> _Excess:
    compared = _ComparedRank(table, row, others, own)
    phases = [*(phase_metric(phase, own=own) for phase in PHASES), *(f"{phase}_us" for phase in PHASES)]
    metrics = dict.fromkeys((*phases, "own_us", "cpu_us", "run_queue_us", "gc_us"))
    over = {metric: excess for metric in metrics if len(excess := compared.excess(metric, affected))}
    activities = {activity.cause: activity for activity in compared.activities(affected)}
    return _Excess(
        steps=int(affected.sum()),
        over=over | {cause: activity.excess for cause, activity in activities.items()},
        work={metric: more for metric in GIVEN_WORK if (more := compared.work_excess(metric, affected)) is not None},
        activities=activities,
        profiler_us=compared.profiler_us(affected),
        has_peers=len(others) > 1,
    )


def _filled(both: Stored, recorded: NDArray[np.bool_]) -> Stored:
    """Return the steps that the rank and half of its peers recorded, with the peers' median where a peer did not."""
    enough = recorded[:, 0] & (2 * recorded[:, 1:].sum(axis=1) >= both.shape[1] - 1)
    both, recorded = both[enough], recorded[enough]
    if not len(both) or recorded.all():
        return both
    middle = np.nanmedian(both[:, 1:], axis=1, keepdims=True)
    filled: Stored = np.where(recorded, both, middle.astype(both.dtype))
    return filled


def _beyond(both: Stored) -> NDArray[np.float64]:
    """Return the first value of each row beyond the median of the others, which are sorted in place."""
    excess: NDArray[np.float64] = both[:, 0] - medians(both[:, 1:])
    return excess


def _signals(excesses: Sequence[_Excess], *, own_us: float | None, device_busy_us: float | None) -> Signals:
    """Return the signals of some ranks together, each with its affected steps."""
    over = {
        metric: np.concatenate(
            [excess.over.get(metric, np.zeros(excess.steps if metric in ACTIVITIES else 0)) for excess in excesses]
        )
        for metric in dict.fromkeys(metric for excess in excesses for metric in excess.over)
    }
    means = {metric: float(values.mean()) for metric, values in over.items() if len(values)}
    work = {metric: _weighted(excesses, [excess.work.get(metric) for excess in excesses]) for metric in GIVEN_WORK}
    model_elements, loaded = work["model_elements"], work["input_elements"]
    loaded = work["samples"] if loaded is None else loaded
    activities_of = {cause: [excess.activities.get(cause) for excess in excesses] for cause in ACTIVITIES}
    shares = {
        cause: _weighted(excesses, [0.0 if activity is None else activity.share for activity in activities]) or 0.0
        for cause, activities in activities_of.items()
    }
    of_peers = {
        cause: _weighted(excesses, [None if activity is None else activity.share_of_peers for activity in activities]) or 0.0
        for cause, activities in activities_of.items()
    }
    measured = {cause for excess in excesses for cause, activity in excess.activities.items() if activity.is_measured}
    least = max(0.5, _AS_OFTEN * max(shares.values()))
    activities = [cause for cause in ACTIVITIES if cause in means and (cause in measured or shares[cause] >= least)]
    kind = "own_" if own_us is None else ""
    signals = Signals(
        own_us=own_us if own_us is not None else means.get("own_us", 0.0),
        phases_us={phase: means[f"{kind}{phase}_us"] for phase in PHASES if f"{kind}{phase}_us" in means},
        host_us=_total([means.get(f"{phase}_us") for phase in PHASES]) if all(excess.has_peers for excess in excesses) else None,
        cpu_us=means.get("cpu_us"),
        run_queue_us=means.get("run_queue_us"),
        gc_us=means.get("gc_us"),
        work=loaded if model_elements is None else model_elements,
        loaded_work=None if model_elements is None else loaded,
        activities_us={cause: means[cause] for cause in activities},
        alone=frozenset(cause for cause in activities if of_peers[cause] < 0.5),
        profiler_us=min(
            _weighted(excesses, [excess.profiler_us for excess in excesses]) or 0.0, float("inf") if own_us is None else own_us
        ),
        device_busy_us=device_busy_us,
    )
    parts = {metric: np.array([values[block].mean() for block in block_slices(len(values))]) for metric, values in over.items()}
    return replace(signals, agreement=_agreement(signals, parts, kind))


def _weighted(excesses: Sequence[_Excess], values: Sequence[float | None]) -> float | None:
    """Return the mean of the known ``values`` [excesses], weighted by the affected steps of each."""
    weighted = [(value, excess.steps) for value, excess in zip(values, excesses, strict=True) if value is not None]
    total = sum(steps for _, steps in weighted)
    return sum(value * steps for value, steps in weighted) / total if total else None


def _total(parts: Sequence[float | None]) -> float | None:
    """Return the sum of the parts that are known; ``None`` without any."""
    recorded = [part for part in parts if part is not None]
    return sum(recorded) if recorded else None


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
            activities_us={cause: value[cause] for cause in signals.activities_us},
        )

    same = row_of(signals)
    return sum(row_of(drawn(draw)) is same for draw in range(_DRAWS)) / _DRAWS


_AS_OFTEN: Final = 0.9
"""Least frequency of an activity in the slow steps, relative to the most frequent one. If half of the slow steps have a
checkpoint and all have an evaluation, only the evaluation explains them."""
