"""Analysis of the durations of a training job's collectives: those of one collective show which rank came last.

Where all ranks of a collective wait for the last one, the kernel of a rank lasts from its arrival to their common end. So a
rank's wait is its duration minus the shortest of any member, and no clock is needed. Torch's Flight Recorder records durations
with ``TORCH_NCCL_ENABLE_TIMING=1``, and so does the NCCL Inspector plugin.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from rankscope.analysis.collectives.arrivals import Arrivals, Flags, Numbers, combined, numbered
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.growing_columns import NONE
from rankscope.analysis.collectives.matched import MatchedCollectives
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.waits.blame import assign_blame
from rankscope.analysis.collectives.waits.waiting import NO_WAITS
from rankscope.analysis.durations.duration_calls import DurationCalls
from rankscope.analysis.durations.overlap import longest_waits, overlapping_by_autograd, overlapping_by_gaps
from rankscope.analysis.durations.own_times import own_times, stages_of_calls
from rankscope.analysis.durations.sources import Durations, reader
from rankscope.analysis.evidence.kernels.device_times import DeviceOwnTimes
from rankscope.analysis.parallel.workers import ALONE, Engine
from rankscope.analysis.report.assembly import assemble, attribution_of_blame, matching_result
from rankscope.analysis.report.ranks import rank_result
from rankscope.analysis.result.analysis import Analysis, Source, Verdict
from rankscope.analysis.trace.locations import common_folder
from rankscope.analysis.verdict.builders import Setting
from rankscope.analysis.verdict.durations_case import DurationEvidence, duration_case
from rankscope.analysis.verdict.hung_run import hang_verdict
from rankscope.analysis.verdict.job_verdict import verdict_of
from rankscope.runs.durations import AUTOGRAD, PART, TRANSFER, DurationSource

START_UP: Final = 2
"""Number of first steps that are left out, if enough others remain: their collectives contain start-up."""
_SHOWN_PATHS: Final = 4
"""Maximum number of paths in a command that is shown."""
_MOST_INCOMPLETE: Final = 0.2
"""Largest share of collectives that some dumps may lack without a warning."""


def analyze_durations(
    paths: Sequence[Path],
    kind: DurationSource,
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "USD",
    engine: Engine = ALONE,
) -> Analysis:
    """Analyse the durations of a job, one file per rank. If dumps show a hang, that is the verdict, as in a run.

    Raises ``InputError`` for input without durations, unless it shows a hang.
    """
    durations = reader(kind).read_durations(paths, engine)
    ranks, world_size, warnings = durations.calls.ranks, durations.world_size, durations.warnings
    evidence = compare_durations(durations)
    matched = evidence.matched
    setting = Setting(
        source=kind,
        world_size=world_size,
        steps=evidence.steps,
        step_count=len(evidence.numbers),
        unit="step" if evidence.in_steps else "window",
        accelerated=True,
        price_per_gpu_hour=price_per_gpu_hour,
        currency=currency,
    )
    verdict, findings = verdict_of(duration_case(evidence, setting))
    if durations.hang is not None and durations.hang.kind == "hang":
        shown = paths if len(paths) <= _SHOWN_PATHS else [common_folder(paths)]
        verdict, hang = hang_verdict(durations.hang, shlex.join(map(os.fspath, shown)))
        findings = [hang, *findings]
    elif durations.hang is not None and verdict.kind != "straggler":
        # Ranks wait for long, perhaps for others whose dumps are missing: the job may hang.
        verdict = Verdict(kind="insufficient_data", summary=durations.hang.summary, next=durations.hang.next)
    warnings += [f"rank {rank} is {name}" for rank in verdict.ranks if (name := durations.names.get(rank)) is not None]
    records = matched.matching.matches.records
    steps = Counter(records.rank[numbered(records.rank, records.step)[0]].tolist())
    return assemble(
        Source(
            kind=kind,
            path=os.fspath(paths[0] if len(paths) == 1 else common_folder(paths)),
            ranks=len(ranks),
            world_size=world_size,
            steps=max(1, len(evidence.numbers)),
            coverage=steps.total() / (world_size * max(1, len(evidence.numbers))),
            simulated=False,
            warnings=warnings,
        ),
        [rank_result(rank, breakdowns=[], blame=matched.blame, steps=steps[rank]) for rank in ranks],
        (verdict, findings),
        setting,
        matched=matched,
        collectives=matching_result(matched, None, explained=evidence.explained),
        attribution=attribution_of_blame(matched.blame, kind),
        costs=None,
    )


def compare_durations(durations: Durations) -> DurationEvidence:
    """Infer the steps, match the collectives of all ranks, and charge the waits to the ranks that caused them."""
    every, world_size, warnings = durations.calls, durations.world_size, durations.warnings
    step = durations.steps_of(every)
    in_steps = bool((step != NONE).any())
    if not in_steps:
        step = np.zeros(len(step), np.int64)
        warnings.append("no sequence of operations repeats, so steps are not known: everything counts as one")
    numbers = _counted(step)
    # The first of each group sets up the connections.
    is_in_steps = np.isin(step, numbers) & (every.issued_ns > 0) & (~every.is_matchable | (every.number > 1))
    calls, step_of_call = every.chosen(is_in_steps), step[is_in_steps]
    timed = calls.is_matchable & np.isfinite(calls.duration_us)
    place = _places(calls, step_of_call)
    chosen, index, step_of_record = calls.chosen(timed), place[timed], step_of_call[timed]
    # Times of these records are no measurements: each place of a step has a slot of its own.
    slot = np.searchsorted(numbers, step_of_record) * (int(place.max(initial=0)) + 1) + index
    slot_ns = min(round(1000 * float(np.nanmax(calls.duration_us, initial=0.0))) + 1, 2**62 // (int(slot.max(initial=0)) + 1))
    records = chosen.records(step_of_record, index, slot * slot_ns)
    matching = match_collectives(records, world_size=world_size)
    matches = matching.matches
    source = durations.source
    if source.is_exact:
        overlapping = overlapping_by_autograd(calls)
    else:
        transfers = calls.has(TRANSFER)
        ends = {rank: np.sort(calls.ended_ns[part][transfers[part]] / 1000).tolist() for rank, part in calls.of_ranks()}
        overlapping = overlapping_by_gaps(matches, chosen.ended_ns, ends)
    reduced = longest_waits(matches, overlapping) if in_steps else matches
    blame = assign_blame(reduced, Clocks(residual_ns=0.0), every.ranks)
    matched = MatchedCollectives(matching, Clocks(), NO_WAITS, blame, {}, source.kind)
    step_us = _step_us(calls, step_of_call)
    # Of logs of NCCL Inspector own times are known in pipelines only, whose sends and receives are all in them.
    are_all = every.ranks == list(range(world_size))
    stages = durations.stages or stages_of_calls(calls, step_of_call)
    stages = {rank: stages.get(rank) for rank in every.ranks}
    own: list[DeviceOwnTimes] = []
    least: list[DeviceOwnTimes] = []
    if (source.is_exact or durations.stages) and in_steps and are_all:
        of_calls = partial(own_times, calls, step_of_call, stages, overlapping=overlapping, matches=reduced, step_us=step_us)
        own, least = of_calls(), of_calls(without_queued=True) if durations.stages else []
    matched_us = _matched_us(matches)
    evidence = DurationEvidence(
        matched,
        step_us=step_us,
        numbers=numbers.tolist(),
        in_steps=in_steps,
        overlapping=overlapping,
        gathers=_gather_beside(matches, overlapping),
        unmatched_us=_unmatched_us(every.chosen(is_in_steps | _between(every, step, numbers)), matched_us),
        matched_us=matched_us,
        own=own,
        least_own=least,
        stages=stages,
        is_pipeline=bool(durations.stages),
        source=source,
        waiting=_waiting(matches, len(every.ranks), step_us),
        hidden=durations.hidden,
        warnings=warnings,
    )
    if len(every.ranks) < world_size:
        warnings.append(source.missing.format(found=len(every.ranks), world_size=world_size))
    incomplete, instances = matching.unmatched_by.get("incomplete", 0), len(matches) + matching.unmatched
    if incomplete > _MOST_INCOMPLETE * instances:
        warnings.append(
            f"{incomplete:,} of {instances:,} collectives are in the {source.many} of some ranks only: {source.together}"
        )
    return evidence


def _counted(step: Numbers) -> Numbers:
    """Return the steps that count, ascending: without start-up and without the last, whose durations may be missing."""
    numbers = np.unique(step[step != NONE])
    return numbers[START_UP:-1] if len(numbers) > 3 * START_UP else numbers


def _step_us(calls: DurationCalls, step: Numbers) -> float:
    """Return the median over the ranks of the mean time of a step; of a single one, from its first call to the last end."""
    times_us: list[float] = []
    for _, part in calls.of_ranks():
        issued_ns, numbers = calls.issued_ns[part], step[part]
        if not len(numbers):
            times_us.append(0.0)
        elif (count := int(numbers.max() - numbers.min())) > 0:
            first, last = issued_ns[numbers == numbers.min()][0], issued_ns[numbers == numbers.max()][0]
            times_us.append(float(last - first) / count / 1000)
        else:
            ends_us = issued_ns / 1000 + np.nan_to_num(calls.duration_us[part])
            times_us.append(float(ends_us.max() - issued_ns[0] / 1000))
    return float(np.median(times_us))


def _places(calls: DurationCalls, step: Numbers) -> Numbers:
    """Return the place of each collective (step, group, number) in its step: after all that any member issued before it.

    A host runs ahead of its device, so the time of a call does not show when the device came to it; the order does. The place of
    other operations is 0.
    """
    row = np.flatnonzero(calls.is_matchable)
    first, instance = numbered(step[row], calls.group[row], calls.number[row])
    order = np.lexsort((step[row], calls.place[row]))
    row, instance = row[order], instance[order]
    begins = np.flatnonzero(np.diff(combined(calls.place[row], step[row]), prepend=-1))
    lengths = np.diff(np.append(begins, len(row)))
    number = np.arange(len(row)) - np.repeat(begins, lengths)
    # From one step of a rank to the next, ``rise`` goes up by more than the places of any step.
    rise = np.repeat(np.arange(len(begins)), lengths) * (len(row) + 1)
    edges = np.searchsorted(calls.place[row], np.arange(len(calls.ranks) + 1))
    parts = [slice(*edge) for edge in pairwise(edges.tolist())]
    place = np.zeros(len(first), np.int64)
    for _ in range(_PASSES):
        before = place.copy()
        for part in parts:
            # Each operation of a step is at least one place after the one before.
            least = np.maximum(place[instance[part]], number[part] + 1) - number[part] + rise[part]
            place[instance[part]] = np.maximum.accumulate(least) + number[part] - rise[part]
        if (before == place).all():
            break
    places = np.zeros(len(step), np.int64)
    places[row] = place[instance]
    return places


_PASSES: Final = 30
"""Maximum number of passes; each takes an order over one more group. Damaged dumps may contradict each other."""


def _waiting(matches: Arrivals, ranks: int, step_us: float) -> float:
    """Return the mean waiting of the ranks, as a share of a step, without the tenth of the steps in which it is longest."""
    place = np.unique(matches.step, return_inverse=True)[1][matches.instance]
    waits = np.bincount(place, (matches.inside_ns - matches.shortest_ns[matches.instance]) / 1000)
    usual = sorted(waits.tolist())[: max(1, len(waits) * 9 // 10)]
    return float(np.mean(usual)) / ranks / step_us if usual and step_us > 0 else 0.0


def _between(calls: DurationCalls, step: Numbers, numbers: Numbers) -> Flags:
    """Return the operations of autograd between the steps that count. Others there are evaluations, which do not matter."""
    between = np.zeros(len(step), np.bool_)
    for _, part in calls.of_ranks():
        inside = np.flatnonzero((step[part] >= numbers[:1].sum()) & (step[part] <= numbers[-1:].sum())) + part.start
        if len(inside):
            between[inside[0] : inside[-1]] = True
    return np.asarray(between & (step == NONE) & calls.has(AUTOGRAD))


def _matched_us(matches: Arrivals) -> dict[int, float]:
    """Return each rank's time in matched collectives."""
    ranks, place = np.unique(matches.rank, return_inverse=True)
    sums = np.bincount(place, matches.inside_ns / 1000, len(ranks))
    return dict(zip(ranks.tolist(), sums.tolist(), strict=True))


def _gather_beside(matches: Arrivals, overlapping: set[str]) -> bool:
    """Return whether shards are gathered in a group whose collectives run beside compute."""
    names, groups = matches.records.ops, matches.group_names
    used = set(zip(matches.op.tolist(), matches.group.tolist(), strict=True))
    return any(names[op].startswith("all_gather") and groups[group] in overlapping for op, group in used)


def _unmatched_us(calls: DurationCalls, matched_us: Mapping[int, float]) -> dict[int, float]:
    """Return each rank's time in operations that are in no matched collective; one without a duration counts as the mean one."""
    unmatched: dict[int, float] = {}
    unknown, batch = np.isnan(calls.duration_us), calls.named("coalesced")
    for rank, part in calls.of_ranks():
        timed_us = calls.duration_us[part][~unknown[part]]
        # The duration of a send or receive in a batch is that of the batch.
        excused = calls.has(PART)[part] & batch[part].any()
        if len(timed_us):
            total_us = float(timed_us.sum())
            mean_us = total_us / len(timed_us)
            unmatched[rank] = max(0.0, total_us - matched_us.get(rank, 0.0)) + int((unknown[part] & ~excused).sum()) * mean_us
    return unmatched
