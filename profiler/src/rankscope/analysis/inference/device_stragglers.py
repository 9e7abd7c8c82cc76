"""Stragglers on devices: ranks whose own time on the device is longer than that of the ranks that do the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.analysis.collectives.blame import Blame
from rankscope.analysis.collectives.waiting import Waits
from rankscope.analysis.evidence.device_times import DeviceOwnTimes, DeviceTimes, device_own_times
from rankscope.analysis.inference.cause import Signals, cause_of
from rankscope.analysis.inference.judge import by_chance_elsewhere, judge_ranks
from rankscope.analysis.inference.late import (
    all_agree,
    chance_evidence,
    few_steps,
    find_late,
    imposed_evidence,
    late_named,
    late_signals,
    sure,
    too_few,
)
from rankscope.analysis.inference.named import Named
from rankscope.analysis.inference.pipelined import saved_at_most_us, waited_for_us, waits_for
from rankscope.analysis.inference.significance import LIMIT, blocks_needed
from rankscope.analysis.inference.slow import MINIMUM_EFFECT, Slow
from rankscope.analysis.inference.slow_kernels import with_kernels
from rankscope.analysis.inference.trace_signals import with_host_evidence, with_traces
from rankscope.analysis.inference.twins import slow_twin
from rankscope.analysis.result.analysis import Evidence
from rankscope.runs.records import StepBreakdown


@dataclass(frozen=True, slots=True)
class DeviceStraggler:
    """Slow ranks, and the own times by which they are."""

    slow: Slow
    compared: DeviceOwnTimes

    @property
    def late_steps(self) -> list[int]:
        """Steps in which the ranks were slow."""
        return [step for step, affected in zip(self.compared.steps, self.slow.affected.tolist(), strict=True) if affected]


@dataclass(frozen=True, slots=True)
class WindowJudgement:
    """Answer of profiled steps about the ranks; at most one of the first three."""

    device: DeviceStraggler | None = None
    """Ranks with longer own times on the device."""
    late: Slow | None = None
    """Ranks that came last at collectives; times are per window."""
    suspects: Sequence[int] = ()
    """Ranks that were slow at a cost, but too rarely to exclude chance."""
    is_whole: bool = False
    """True if own times on the devices were tested, which cover all waiting; else the matched collectives alone were."""


def judge_windows(blame: Blame, waits: Waits, times: Mapping[int, DeviceTimes], window_us: float) -> WindowJudgement:
    """Judge profiled steps by own times on the devices and by the order in which ranks came to matched collectives.

    ``times``: of all ranks of the job; empty where some are missing, as those may be slower. ``window_us``: the typical window
    over which ``blame`` was summed. Own times count first, since they cover all waiting; where the order at collectives shows
    more than twice as much, it counts.
    """
    waited_us, stages = waited_for_us(blame, waits), {rank: one.stage for rank, one in times.items()}
    groups = device_own_times(times, blame)

    def at_most_us(ranks: Sequence[int], group: DeviceOwnTimes) -> float:
        return saved_at_most_us(ranks, waits_for(group.ranks, len(group.steps), stages, waited_us, blame))

    device, calm = slowest(groups, at_most_us)
    late = find_late(blame, window_us)
    if device is not None and (late is None or 2 * device.slow.gain_us * len(device.compared.steps) >= late.gain_us):
        return WindowJudgement(device=device, is_whole=True)
    if late is not None:
        return WindowJudgement(late=late)
    if suspects := suspected(calm, at_most_us):
        return WindowJudgement(suspects=suspects)
    last = too_few(blame, window_us)
    return WindowJudgement(suspects=() if last is None else [last], is_whole=are_tested(groups))


Cap = Callable[[Sequence[int], DeviceOwnTimes], float]
"""Function from slow ranks, worst first, and their group to the time per step that healing them can save."""


def slowest(groups: Sequence[DeviceOwnTimes], at_most_us: Cap) -> tuple[DeviceStraggler | None, list[DeviceOwnTimes]]:
    """Return the slow ranks of the group in which they cost most, if any, and the groups without slow ranks."""
    found = _beside_others(
        [
            (group, None if slow is None or not all_agree(group.own, group.ranks, slow) else slow)
            for group, slow in ((group, judge_ranks(group).slow) for group in groups)
        ]
    )
    calm = [group for group, slow in found if slow is None]
    worst: DeviceStraggler | None = None
    for group, slow in found:
        if slow is None or (slow.p_value or 0.0) + by_chance_elsewhere(group, slow, calm) > LIMIT:
            continue
        gain = min(slow.gain_us, at_most_us(slow.ranks, group))
        if gain >= MINIMUM_EFFECT * group.wall_us and (worst is None or gain > worst.slow.gain_us):
            worst = DeviceStraggler(replace(slow, gain_us=gain), group)
    return worst, calm


def _beside_others(found: Sequence[tuple[DeviceOwnTimes, Slow | None]]) -> list[tuple[DeviceOwnTimes, Slow | None]]:
    """Return the groups with their slow ranks, those added that are slow beside the ranks of the other groups."""
    suspects = [[] if slow is not None else judge_ranks(group).suspects for group, slow in found]
    calm = [group for (group, slow), ranks in zip(found, suspects, strict=True) if slow is None and not ranks]
    return [
        (group, slow_twin(group, ranks[0], calm) if len(ranks) == 1 else slow)
        for (group, slow), ranks in zip(found, suspects, strict=True)
    ]


def suspected(groups: Sequence[DeviceOwnTimes], at_most_us: Cap) -> list[int]:
    """Return the ranks of groups without slow ranks that were slow at a cost, but too rarely to exclude chance."""
    found = [
        one
        for group in groups
        if (one := judge_ranks(group)).suspects and at_most_us(one.suspects, group) >= MINIMUM_EFFECT * group.wall_us
    ]
    return sorted(max(found, key=lambda one: one.suspected_us).suspects) if found else []


def are_tested(groups: Sequence[DeviceOwnTimes]) -> bool:
    """Return whether all of at least one group have enough steps to exclude chance."""
    return bool(groups) and all(len(group.steps) >= blocks_needed(len(group.ranks)) for group in groups)


def device_step_signals(found: DeviceStraggler, times: Mapping[int, DeviceTimes]) -> Signals:
    """Return the signals for the cause of the worst rank: means over its slow steps, in excess of the median of its peers."""
    slow, compared = found.slow, found.compared
    rank = slow.ranks[0]
    peers = [peer for peer in compared.ranks if peer not in slow.ranks]
    steps = found.late_steps
    busy = _excess({one: _busy(times[one].by_step, steps) for one in (rank, *peers)}, rank)
    return with_traces(Signals(own_us=slow.excess_us, device_busy_us=busy), times, rank, peers, steps)


def _busy(rows: Sequence[StepBreakdown], steps: Sequence[int]) -> float | None:
    return _mean({row.step: row.compute_us + row.exposed_memcpy_us for row in rows}, steps)


def _mean(by_step: Mapping[int, float] | None, steps: Sequence[int]) -> float | None:
    known = [] if by_step is None else [by_step[step] for step in steps if step in by_step]
    return float(np.mean(known)) if known else None


def _excess(values: Mapping[int, float | None], rank: int) -> float | None:
    mine = values[rank]
    peers = [value for one, value in values.items() if one != rank and value is not None]
    return None if mine is None or not peers else mine - float(np.median(peers))


def window_named(
    found: WindowJudgement,
    blame: Blame,
    times: Mapping[int, DeviceTimes],
    breakdowns: Mapping[int, Sequence[StepBreakdown]],
    window_us: float,
    *,
    steps: int = 1,
    seen: str = "step",
    explained: float | None = None,
) -> Named | None:
    """Describe the ranks that ``judge_windows`` found by the evidence of the window alone; ``None`` without any.

    Times are per step of the ``steps`` in the window; one step stands for a window that is judged as a whole. ``seen`` and
    ``explained``: see ``late_named``.
    """
    if found.device is not None:
        slow, compared = found.device.slow, found.device.compared
        stage = times[slow.ranks[0]].stage
        signals = device_step_signals(found.device, times)
        named = device_named(found.device, signals, blame, stage=stage, per_window=steps == 1)
        affected = [step for step, is_slow in zip(compared.steps, slow.affected.tolist(), strict=True) if is_slow]
        return with_kernels(with_host_evidence(named, signals), times, compared.ranks, affected)
    if found.late is not None:
        signals = late_signals(found.late, breakdowns, blame, steps=steps)
        worst = found.late.ranks[0]
        every = sorted(times[worst].own_us) if worst in times else []
        # Stages of a pipeline do different work.
        alike = [rank for rank in times if worst in times and times[rank].stage == times[worst].stage]
        peers = [rank for rank in alike if rank not in found.late.ranks]
        signals = with_traces(signals, times, worst, peers, every, per=len(every) / steps)
        named = late_named(found.late, blame, window_us, signals, steps=steps, seen=seen, explained=explained)
        return with_kernels(with_host_evidence(named, signals), times, alike, every)
    return None


def device_named(found: DeviceStraggler, signals: Signals, blame: Blame, *, stage: int | None, per_window: bool = False) -> Named:
    """Describe the ranks found. Times are per step, or ``per_window`` of all steps.

    ``signals``: for the cause, see ``device_step_signals``. ``blame``: the waits at matched collectives, if there are any.
    ``stage``: pipeline stage of the worst rank.
    """
    slow, compared = found.slow, found.compared
    count = len(compared.steps)
    times = count if per_window else 1
    own = "time of the device without exposed communication"
    evidence = [
        Evidence(
            name="own_time_excess",
            value=slow.excess_us,
            unit="us",
            detail=f"{own}, beyond the median of the ranks with the same work, in its slow steps",
        ),
        Evidence(name="saved", value=slow.gain_us, unit="us", detail="per step, were it as fast as the slowest of the others"),
        Evidence(name="last", value=slow.last_share, unit="ratio", detail="of the steps, in which its own time was the longest"),
        Evidence(name="steps_judged", value=float(count), unit="steps"),
        *chance_evidence(slow),
        *(imposed_evidence(blame, slow.ranks) if blame.steps else []),
    ]
    for name, value, unit in (
        ("device_busy_excess", signals.device_busy_us, "us"),
        ("work_excess", signals.work, "ratio"),
        ("phase_excess.data", signals.phases_us.get("data"), "us"),
    ):
        if value is not None:
            evidence.append(Evidence(name=name, value=value, unit=unit, detail="over the median of its peers, in its slow steps"))
    return Named(
        ranks=slow.ranks,
        pattern=slow.pattern,
        cause=cause_of(signals),
        phase=signals.phase,
        gain_us=slow.gain_us * times,
        wait_us=slow.gain_us * times,
        step_us=compared.wall_us * times,
        confidence=sure(slow, count),
        stage=stage,
        evidence=evidence,
        **few_steps(count, "step", 1),
    )
