"""Own times of ranks from durations: the time of a step that is not spent in communication that compute waits for.

It covers operations that cannot be matched across ranks: sends and receives, uneven all-to-all. Their durations contain the
waiting. Sends without a batch are left out, as nothing waits for them at once. Of groups whose collectives run beside compute
only the longest wait of a step counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rankscope.analysis.collectives.arrivals import Arrivals, Flags, Numbers, combined, sums
from rankscope.analysis.collectives.growing_columns import NONE
from rankscope.analysis.collectives.stages import StageTransfer, stages_of_group
from rankscope.analysis.durations.duration_calls import DurationCalls
from rankscope.analysis.evidence.kernels.device_times import DeviceOwnTimes
from rankscope.runs.durations import PART, TRANSFER

_AT_ONCE_US: Final = 50.0


def own_times(
    calls: DurationCalls,
    step: Numbers,
    stages: Mapping[int, int | None],
    *,
    overlapping: set[str],
    matches: Arrivals,
    step_us: float,
    without_queued: bool = False,
) -> list[DeviceOwnTimes]:
    """Return the own times of each pipeline stage with several ranks; of all ranks where there is no pipeline.

    ``calls`` and ``step``: the operations that count, with their steps. ``stages``: stage of each rank, ``None`` without a
    pipeline. ``overlapping``: groups whose collectives run beside compute. ``matches``: matched collectives with the waits that
    count. ``step_us``: mean time of a step, which is the same on all ranks. ``without_queued``: leave out all that may be waiting
    for sends, too, see ``_queued_before``. Empty where any rank's operations have no durations, or a stage has one rank.
    """
    steps = np.unique(step)
    shape = len(calls.ranks), len(steps)
    overlapping_groups = [at for at, name in enumerate(calls.groups) if name in overlapping]
    blocks = ~np.isin(calls.group, overlapping_groups) & ~calls.has(PART) & ~calls.named("send")
    if without_queued:
        blocks |= _queued_before(calls) & ~np.isin(calls.group, overlapping_groups) & ~calls.has(PART)
    cell = (calls.place * len(steps) + np.searchsorted(steps, step))[blocks]
    # Steps in which a duration is missing do not count, nor those without communication.
    waited_us = np.where(sums(cell, np.ones(len(cell)), shape[0] * shape[1]) > 0, 0.0, np.nan)
    waited_us += sums(cell, calls.duration_us[blocks], shape[0] * shape[1])
    chosen = matches.chosen(np.isin(matches.group, overlapping_groups))
    place = np.searchsorted(calls.ranks, chosen.rank) * len(steps) + np.searchsorted(steps, chosen.step)[chosen.instance]
    waited_us += sums(place, (chosen.inside_ns - chosen.shortest_ns[chosen.instance]) / 1000, shape[0] * shape[1])
    own_us = step_us - waited_us.reshape(shape)
    by_stage: dict[int | None, list[int]] = {}
    for place_of_rank, rank in enumerate(calls.ranks):
        by_stage.setdefault(stages[rank], []).append(place_of_rank)
    result: list[DeviceOwnTimes] = []
    for places in by_stage.values():
        complete = np.isfinite(own_us[places]).all(axis=0)
        if len(places) < 2 or not complete.any():
            return []
        ranks = [calls.ranks[at] for at in places]
        result.append(DeviceOwnTimes(ranks, steps[complete].tolist(), own_us[places][:, complete], step_us))
    return result


def stages_of_calls(calls: DurationCalls, step: Numbers) -> dict[int, int]:
    """Return the pipeline stage of each rank that is in a pipeline.

    Steps are inferred, and may begin anywhere in a training step.
    """
    is_whole = ~calls.has(PART)
    batch: Numbers = np.cumsum(is_whole) - is_whole  # the parts of a batch come before it
    groups: dict[int, dict[int, list[StageTransfer]]] = {}
    for at in np.flatnonzero(calls.has(TRANSFER) & (calls.team != NONE)).tolist():
        rank, team = int(calls.rank[at]), int(calls.team[at])
        if rank in calls.teams[team]:
            messages = groups.setdefault(team, {}).setdefault(rank, [])
            if (op := calls.ops[calls.op[at]]) in ("send", "recv"):
                messages.append(StageTransfer(int(step[at]), int(batch[at]), op == "send", None))
    result: dict[int, int] = {}
    for team, of_group in groups.items():
        result = {**stages_of_group(of_group, calls.teams[team], in_order=False), **result}
    return result


def _queued_before(calls: DurationCalls) -> Flags:
    """Return the messages at whose end another one of the same group starts at once.

    It was queued behind the send, and compute may have waited for it all the time of the send, or for none of it.
    """
    messages = np.flatnonzero(calls.has(TRANSFER) & np.isfinite(calls.duration_us))
    link_of_message = combined(calls.place[messages], calls.group[messages])
    order = np.argsort(link_of_message, kind="stable")
    messages, link_of_message = messages[order], link_of_message[order]
    ended_us = calls.ended_ns[messages] / 1000
    at_once = (ended_us - calls.duration_us[messages])[1:] < ended_us[:-1] + _AT_ONCE_US
    queued = np.zeros(len(calls.rank), np.bool_)
    queued[messages[:-1][at_once & (link_of_message[1:] == link_of_message[:-1])]] = True
    return queued
