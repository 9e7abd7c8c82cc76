"""Profiled steps of a job, from windows, captures or traces: their judgement, and the description of a straggler in them.

They have own times on devices, and the waits at matched collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rankscope.analysis.collectives.arrivals import sums
from rankscope.analysis.collectives.matched import MatchedCollectives
from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.evidence.kernels.device_times import DeviceOwnTimes, DeviceTimes, device_own_times, times_of_windows
from rankscope.analysis.inference.judging.job_judgement import Bound, Judgement, Straggler, judge
from rankscope.analysis.inference.judging.moving_wait import MovingWait
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks
from rankscope.analysis.inference.pipeline_bound import saved_by_waits_us, waited_for_us
from rankscope.analysis.inference.reasons.diagnosis import Diagnosis, described_as_moving, diagnosis_of, own_time_evidence
from rankscope.analysis.inference.reasons.signals import Signals
from rankscope.analysis.inference.reasons.slow_kernels import with_kernels
from rankscope.analysis.inference.reasons.trace_signals import with_traces
from rankscope.analysis.result.analysis import Evidence
from rankscope.analysis.statistics import chance_of_next, excess_of_rank
from rankscope.runs.records import StepBreakdown

ENOUGH_STEPS: Final = 8
"""Number of steps below which the answer says that it rests on a few, and is less sure that the slowness lasts."""

DeviceStraggler = Straggler[DeviceOwnTimes]


@dataclass(frozen=True, slots=True)
class Profile:
    """Profiled steps of all ranks."""

    matched: MatchedCollectives
    times: Mapping[int, DeviceTimes]
    """Times on the devices; empty where some ranks are missing, as those may be slower."""
    breakdowns: Mapping[int, Sequence[StepBreakdown]]
    window_us: float
    """The typical window over which the waits of ``matched`` were summed."""
    steps: int = 1
    """Number of steps in a window; one stands for a window that is judged as a whole."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Host of each rank, where known."""

    @property
    def blame(self) -> Blame:
        """Waits at the matched collectives."""
        return self.matched.blame

    def judge(self) -> Judgement[DeviceOwnTimes]:
        """Judge the ranks by own times on the devices and by the order in which they came to matched collectives."""
        groups = device_own_times(self.times, self.blame)
        return judge(groups, hosts=self.hosts, at_most_us=self.bound(), blame=self.blame, window_us=self.window_us)

    def bound(self) -> Bound[DeviceOwnTimes]:
        """Return the function that limits what slow ranks cost by the waits for them, where they are stages of a pipeline."""
        waited_us = waited_for_us(self.blame, self.matched.waits)
        stages = {rank: times.stage for rank, times in self.times.items()}

        def at_most_us(ranks: Sequence[int], group: DeviceOwnTimes) -> float:
            return saved_by_waits_us(ranks, group, stages, waited_us, self.blame)

        return at_most_us

    def describe(
        self,
        straggler: DeviceStraggler,
        *,
        unit_seen: str = "step",
        explained: float | None = None,
        signals_of: SignalsOf | None = None,
        stage: int | None = None,
    ) -> Diagnosis:
        """Describe a straggler. Times are per step.

        ``unit_seen``: name of the unit that the waits count, for messages. ``explained``: the share of the communication that
        they rest on, where known. ``signals_of`` returns the signals in step records of the same job; by default those of the
        profiled steps count. ``stage``: pipeline stage of the worst rank; by default that of its trace.
        """
        slow, worst = straggler.slow, straggler.slow.ranks[0]
        trace = self.times.get(worst)
        by_own_times = straggler.times is not None
        signals = device_step_signals(straggler, self.times) if by_own_times else self._late_signals(slow)
        if signals_of is not None:
            affected = frozenset(straggler.slow_steps) if by_own_times else self._late_steps(slow)
            signals = replace(signals_of(slow.ranks, signals.own_us, affected), transfer_us=signals.transfer_us)
        if by_own_times:
            stage = trace.stage if stage is None and trace is not None else stage
            diagnosis = _diagnosis_by_own_times(straggler, signals, self.blame, stage=stage, per_window=self.steps == 1)
        else:
            diagnosis = diagnosis_of_late(
                slow, self.blame, self.window_us, signals, steps=self.steps, unit_seen=unit_seen, explained=explained
            )
        if trace is None:
            return diagnosis
        steps = straggler.slow_steps if by_own_times else sorted(trace.own_us)
        return with_kernels(
            diagnosis, self.times, self._alike(trace) if straggler.times is None else straggler.times.ranks, steps
        )

    def describe_moving(self, times: DeviceOwnTimes, moving: MovingWait) -> Diagnosis:
        """Describe the waiting for whichever rank is last, with what its device does longer than the others'. Times are per
        window.
        """
        slow, count = moving.as_slow(times), len(times.steps)
        busy = np.array(
            [[row.compute_us + row.exposed_memcpy_us for row in self._rows(rank, times.steps)] for rank in times.ranks]
        )
        longer = float((busy[moving.last, np.arange(count)] - np.median(busy, axis=0)).mean())
        diagnosis = diagnosis_of(
            slow,
            Signals(own_us=slow.gain_us, device_busy_us=longer),
            wait_us=count * slow.gain_us,
            step_us=count * times.wall_us,
            confidence=confidence_of_slow(slow, count),
            evidence=own_time_evidence(slow, count),
            factor=count,
            unit="window",
        )
        return described_as_moving(diagnosis, moving, count * slow.gain_us)

    def _rows(self, rank: int, steps: Sequence[int]) -> list[StepBreakdown]:
        by_step = {row.step: row for row in self.times[rank].by_step}
        return [by_step[step] for step in steps]

    def _alike(self, trace: DeviceTimes) -> list[int]:
        """Return the ranks of the same stage: stages of a pipeline do different work."""
        return [rank for rank, times in self.times.items() if times.stage == trace.stage]

    def _late_steps(self, slow: SlowRanks) -> frozenset[int] | None:
        return late_steps(slow, self.blame) if self.steps > 1 else None

    def _late_signals(self, slow: SlowRanks) -> Signals:
        signals = late_signals(slow, self.breakdowns, self.blame, steps=self.steps)
        worst = slow.ranks[0]
        if worst not in self.times:
            return signals
        peers = [rank for rank in self._alike(self.times[worst]) if rank not in slow.ranks]
        steps = self.times[worst].own_us
        return with_traces(signals, self.times, worst, peers, steps, per=len(steps) / self.steps)


SignalsOf = Callable[[Sequence[int], float, Collection[int] | None], Signals]
"""Function from slow ranks, their excess per step, and their slow steps if not all, to the signals of the worst."""


def profile_of_windows(
    windows: Mapping[int, Reduction], matched: MatchedCollectives, world_size: int | None, hosts: Mapping[int, str]
) -> Profile | None:
    """Return the profiled steps of a run, ``matched``; ``None`` without any."""
    breakdowns = {rank: reduction.breakdowns for rank, reduction in windows.items()}
    counts = [len(rows) for rows in breakdowns.values() if rows]
    if not counts:
        return None
    window_us = sum(row.window_us for rows in breakdowns.values() for row in rows) / len(counts)
    return Profile(matched, times_of_windows(windows, world_size), breakdowns, window_us, max(counts), hosts)


def device_step_signals(straggler: DeviceStraggler, times: Mapping[int, DeviceTimes]) -> Signals:
    """Return the signals for the cause of the worst rank: means over its slow steps, in excess of the median of its peers."""
    slow, steps = straggler.slow, straggler.slow_steps
    rank = slow.ranks[0]
    ranks = [] if straggler.times is None else straggler.times.ranks
    peers = [peer for peer in ranks if peer not in slow.ranks]
    breakdowns = {each: [row for row in times[each].by_step if row.step in steps] for each in (rank, *peers) if each in times}
    busy = busy_excess(rank, breakdowns, peers)
    return with_traces(Signals(own_us=slow.excess_us, device_busy_us=busy), times, rank, peers, steps)


def late_signals(late: SlowRanks, breakdowns: Mapping[int, Sequence[StepBreakdown]], blame: Blame, *, steps: int = 1) -> Signals:
    """Return the signals for the cause of the worst late rank: means per step in excess of the median of its peers.

    ``late`` and ``blame`` are sums over ``steps``. ``breakdowns``: of each step, or of the whole window as one step. If the rank
    is late intermittently, they are means of its slow steps: in the others it may be faster for reasons of its own.
    """
    rank = late.ranks[0]
    peers = [peer for peer in blame.ranks if peer not in late.ranks]
    transfer = excess_of_rank(blame.transfer_us, rank, peers)
    slow = late_steps(late, blame) if steps > 1 else None
    if slow is not None:
        breakdowns = {each: [row for row in rows if row.step in slow] for each, rows in breakdowns.items()}
    return Signals(
        own_us=late.gain_us / steps if slow is None else late.excess_us / len(blame.steps),
        device_busy_us=busy_excess(rank, breakdowns, peers),
        transfer_us=None if transfer is None else transfer / (steps if slow is None else len(slow)),
    )


def late_steps(late: SlowRanks, blame: Blame) -> frozenset[int] | None:
    """Return the steps in which a rank is late intermittently; ``None`` where it always is, or they are not known."""
    if late.pattern == "fixed" or len(late.affected) != len(blame.steps):
        return None
    return frozenset(step for step, is_slow in zip(blame.steps, late.affected.tolist(), strict=True) if is_slow)


def busy_excess(rank: int, breakdowns: Mapping[int, Sequence[StepBreakdown]], peers: Sequence[int]) -> float | None:
    """Return a rank's mean compute and exposed copies per window minus the median of its ``peers``.

    ``None`` where the rank or all its peers lack complete windows, or none of them shows any work but communication.
    """
    busy = {
        each: float(np.mean(busy_us))
        for each, rows in breakdowns.items()
        if (busy_us := [row.compute_us + row.exposed_memcpy_us for row in rows if not row.truncated])
    }
    return excess_of_rank(busy, rank, peers) if any(busy.values()) else None


def diagnosis_of_late(
    slow: SlowRanks,
    blame: Blame,
    window_us: float,
    signals: Signals,
    *,
    steps: int = 1,
    unit_seen: str = "step",
    explained: float | None = None,
) -> Diagnosis:
    """Describe a rank that was late in windows of ``window_us`` and ``steps`` steps each; times are per step.

    ``unit_seen``: name of the unit that ``blame`` counts, for messages. ``explained``: the share of the communication that
    ``blame`` rests on, where known.
    """
    victims = max(1, len(blame.ranks) - len(slow.ranks))
    exposed = max(0.0, sum(blame.exposed_us[rank] for rank in slow.ranks) - _among(slow.ranks, blame))
    diagnosis = diagnosis_of(
        slow,
        signals,
        factor=1 / steps,
        wait_us=exposed / victims / steps,
        step_us=window_us / steps,
        confidence=confidence_of_slow(slow, len(blame.steps), explained=explained),
        evidence=imposed_evidence(blame, slow.ranks),
        unit="window" if steps == 1 else "step",
        last_of=f"{'collectives' if len(blame.steps) < 2 else 'steps'} in which one rank clearly was last",
        group=_where(blame, slow.ranks[0]),
    )
    return _if_few(diagnosis, len(blame.steps), unit_seen, steps)


def _among(ranks: Sequence[int], blame: Blame) -> float:
    """Return the exposed waits of ``ranks`` for each other, in microseconds."""
    pairs = blame.pairs
    return float(pairs.exposed_us[np.isin(pairs.origin, ranks) & np.isin(pairs.victim, ranks)].sum())


def imposed_evidence(blame: Blame, ranks: Sequence[int]) -> list[Evidence]:
    """Return the evidence of how long others waited for ``ranks``; empty where no rank waited."""
    imposed, exposed = (sum(each[rank] for rank in ranks) for each in (blame.imposed_us, blame.exposed_us))
    total = sum(blame.imposed_us.values())
    rows = [
        Evidence(name="imposed_wait", value=imposed, unit="us", detail="summed over the victims"),
        Evidence(name="imposed_wait_exposed", value=exposed, unit="us", detail="the part that no compute hid"),
    ]
    if total > 0:
        rows.append(Evidence(name="imposed_wait_share", value=imposed / total, unit="ratio", detail="of all imposed wait"))
    return rows


def confidence_of_slow(slow: SlowRanks, steps: int, *, explained: float | None = None) -> float:
    """Return the confidence in ranks that ``steps`` profiled steps show to be slow.

    ``explained``: share of the communication that the evidence rests on, where known.
    """
    slow_steps = int(slow.affected.sum()) if len(slow.affected) == steps else steps
    lasts = chance_of_next(slow_steps, steps) if steps < ENOUGH_STEPS else 0.99
    return round(min(lasts, 1.0 if explained is None else explained, slow.certainty), 3)


def _if_few(diagnosis: Diagnosis, count: int, unit_seen: str, steps: int) -> Diagnosis:
    """Return the diagnosis; of fewer than ``ENOUGH_STEPS`` units with the texts that it rests on few.

    ``count``: number of units, named ``unit_seen``. With several ``steps`` per unit the text marks times as per unit.
    """
    if count >= ENOUGH_STEPS:
        return diagnosis
    at_hand = f"in the {count} {unit_seen}s at hand" if count > 1 else f"in the one {unit_seen} at hand"
    if count > 1 and steps > 1:
        at_hand = f"per {unit_seen} in the {count} at hand"
    return replace(diagnosis, at_hand=at_hand, note=f"At least {ENOUGH_STEPS} steps are needed to show whether it lasts.")


def _where(blame: Blame, rank: int) -> str | None:
    """Return the process group in which others waited most for a rank; ``None`` where there is only one group."""
    pairs = blame.pairs
    waits = sums(pairs.group, pairs.exposed_us * (pairs.origin == rank), len(pairs.groups))
    return pairs.groups[int(waits.argmax())][0] if len(waits) > 1 else None


def _diagnosis_by_own_times(
    straggler: DeviceStraggler, signals: Signals, blame: Blame, *, stage: int | None, per_window: bool = False
) -> Diagnosis:
    """Describe a straggler by own times. Times are per step, or ``per_window`` of all steps.

    ``signals``: for the cause, see ``device_step_signals``. ``blame``: the waits at matched collectives, if there are any.
    ``stage``: pipeline stage of the worst rank.
    """
    slow, compared = straggler.slow, straggler.times
    assert compared is not None, "named by own times"
    count = len(compared.steps)
    diagnosis = diagnosis_of(
        slow,
        signals,
        wait_us=slow.gain_us,
        step_us=compared.wall_us,
        confidence=confidence_of_slow(slow, count),
        evidence=[*own_time_evidence(slow, count), *(imposed_evidence(blame, slow.ranks) if blame.steps else [])],
        stage=stage,
    )
    factor = count if per_window else 1
    return replace(
        _if_few(diagnosis, count, "step", 1),
        gain_us=factor * slow.gain_us,
        wait_us=factor * slow.gain_us,
        step_us=factor * compared.wall_us,
    )
