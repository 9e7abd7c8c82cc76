"""Own times of ranks from Flight Recorder dumps: the time of a step that is not spent in communication that compute waits for.

It covers operations that cannot be matched across ranks: sends and receives, uneven all-to-all. Their durations contain the
waiting. Sends without a batch are left out, as nothing waits for them at once. Of groups whose collectives run beside compute
only the longest wait of a step counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rankscope.analysis.collectives.arrivals import Arrivals
from rankscope.analysis.collectives.stages import Message, stages_of_group
from rankscope.analysis.durations.calls import Call
from rankscope.analysis.evidence.device_times import DeviceOwnTimes


def own_times(
    stages: Mapping[int, int | None],
    kept: Mapping[int, Sequence[tuple[Call, int]]],
    *,
    overlapping: set[str],
    matches: Arrivals,
    step_us: float,
    without_queued: bool = False,
) -> list[DeviceOwnTimes]:
    """Return the own times of each pipeline stage with several ranks; of all ranks where there is no pipeline.

    ``stages``: stage of each rank, ``None`` without a pipeline. ``kept``: the operations that count, with their steps.
    ``overlapping``: groups whose collectives run beside compute. ``matches``: matched collectives with the waits that count.
    ``step_us``: mean time of a step, which is the same on all ranks. ``without_queued``: leave out all that may be waiting for
    sends, too, see ``_queued_before``. Empty where any rank's operations have no durations, or a stage has one rank.
    """
    waits = {rank: _waited_us(calls, overlapping, without_queued=without_queued) for rank, calls in kept.items()}
    beside = matches.chosen(np.isin(matches.group, [at for at, name in enumerate(matches.group_names) if name in overlapping]))
    waited = (beside.inside_ns - beside.shortest_ns[beside.instance]) / 1000
    for rank, step, us in zip(beside.rank.tolist(), beside.step[beside.instance].tolist(), waited.tolist(), strict=True):
        if step in waits[rank]:
            waits[rank][step] += us
    by_stage: dict[int | None, list[int]] = {}
    for rank in kept:
        by_stage.setdefault(stages[rank], []).append(rank)
    found: list[DeviceOwnTimes] = []
    for members in by_stage.values():
        steps = sorted(set.intersection(*(set(waits[rank]) for rank in members)))
        if len(members) < 2 or not steps:
            return []
        own = np.array([[step_us - waits[rank][step] for step in steps] for rank in members])
        found.append(DeviceOwnTimes(sorted(members), steps, own[np.argsort(members)], step_us))
    return found


def stages_of_calls(
    kept: Mapping[int, Sequence[tuple[Call, int]]], members: Mapping[int, Mapping[str, Sequence[int]]]
) -> dict[int, int]:
    """Return the pipeline stage of each rank that is in a pipeline. ``members``: of the groups that each rank knows, by name.

    Steps are inferred, and may begin anywhere in a training step.
    """
    groups: dict[tuple[int, ...], dict[int, list[Message]]] = {}
    for rank, calls in kept.items():
        batch = 0
        for call, step in calls:
            group = tuple(members[rank].get(call.group, ()))
            if call.is_transfer and rank in group:
                mine = groups.setdefault(group, {}).setdefault(rank, [])
                mine += [Message(step, batch, call.op == "send", None)] if call.op in ("send", "recv") else []
            # The parts of a batch come before it.
            batch += not call.is_part
    found: dict[int, int] = {}
    for group, messages in groups.items():
        found = {**stages_of_group(messages, group, in_order=False), **found}
    return found


def _waited_us(calls: Sequence[tuple[Call, int]], overlapping: set[str], *, without_queued: bool) -> dict[int, float]:
    """Return the time of communication that compute waits for, by step; without steps in which a duration is missing."""
    waited: dict[int, float] = {}
    incomplete: set[int] = set()
    queued = _queued_before(calls) if without_queued else set()
    for at, (call, step) in enumerate(calls):
        if call.group in overlapping or call.is_part or (call.op == "send" and at not in queued):
            continue
        if call.duration_us is None:
            incomplete.add(step)
        waited[step] = waited.get(step, 0.0) + (call.duration_us or 0.0)
    return {step: us for step, us in waited.items() if step not in incomplete}


def _queued_before(calls: Sequence[tuple[Call, int]]) -> set[int]:
    """Return the places of sends at whose end another message of the same group starts at once.

    It was queued behind the send, and compute may have waited for it all the time of the send, or for none of it.
    """
    found: set[int] = set()
    last: dict[str, int] = {}
    for at, (call, _) in enumerate(calls):
        if call.is_transfer and call.duration_us is not None:
            before = last.get(call.group)
            if before is not None and call.ended_ns / 1000 - call.duration_us < calls[before][0].ended_ns / 1000 + _AT_ONCE_US:
                found.add(before)
            last[call.group] = at
    return found


_AT_ONCE_US: Final = 50.0
