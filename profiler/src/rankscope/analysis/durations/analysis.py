"""Analysis of the durations of a training job's collectives: those of one collective show which rank came last.

Where all ranks of a collective wait for the last one, the kernel of a rank lasts from its arrival to their common end. So a
rank's wait is its duration minus the shortest of any member, and no clock is needed. Torch's Flight Recorder records durations
with ``TORCH_NCCL_ENABLE_TIMING=1``, and so does the NCCL Inspector plugin.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from rankscope.analysis.collectives.arrivals import Arrivals
from rankscope.analysis.collectives.blame import assign_blame
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.matched import Matched
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.waiting import NOBODY_WAITED
from rankscope.analysis.durations.calls import Call, Durations, RankCalls
from rankscope.analysis.durations.case import DurationEvidence, duration_case
from rankscope.analysis.durations.flight import read_flight_durations
from rankscope.analysis.durations.inspector import read_inspector_durations
from rankscope.analysis.durations.overlap import longest_waits, overlapping_by_autograd, overlapping_by_gaps
from rankscope.analysis.durations.own_times import own_times, stages_of_calls
from rankscope.analysis.evidence.device_times import DeviceOwnTimes
from rankscope.analysis.parallel.workers import ALONE, Engine
from rankscope.analysis.report.assembly import assemble, attribution_of_blame, matching_result
from rankscope.analysis.report.ranks import rank_result
from rankscope.analysis.result.analysis import Analysis, Source, Verdict
from rankscope.analysis.trace.locations import common_folder
from rankscope.analysis.verdict.builders import Setting
from rankscope.analysis.verdict.hung_run import hang_verdict
from rankscope.analysis.verdict.job_verdict import verdict_of
from rankscope.runs.durations import DurationSource
from rankscope.runs.records import CollectiveRecord

START_UP: Final = 2
"""Number of first steps that are left out, if enough others remain: their collectives contain start-up."""
_SHOWN_PATHS: Final = 4
"""Maximum number of paths in a command that is shown."""
_APART: Final = 0.2
"""Largest share of collectives that some dumps may lack without a warning."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Durations of all ranks, compared: what a verdict, and the analysis around it, are made from."""

    evidence: DurationEvidence
    numbers: list[int]
    """Steps that count; a single one where steps are not known."""
    warnings: list[str]

    @property
    def matched(self) -> Matched:
        """Matched collectives."""
        return self.evidence.matched

    @property
    def steps(self) -> tuple[int, int] | None:
        """First step that counts and the one after the last; ``None`` where steps are not known."""
        return (self.numbers[0], self.numbers[-1] + 1) if self.evidence.steps is not None and self.numbers else None


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
    read = read_flight_durations if kind == "flight_recorder" else read_inspector_durations
    durations = read(paths, engine)
    ranks, world_size = durations.ranks, durations.world_size
    compared = compare_durations(durations)
    evidence, blame = compared.evidence, compared.matched.blame
    in_steps, numbers, warnings = evidence.steps is not None, compared.numbers, compared.warnings
    setting = Setting(
        source=kind,
        world_size=world_size,
        steps=compared.steps,
        step_count=len(numbers),
        unit="step" if in_steps else "window",
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
    there = {rank: len({row.step for row in rows}) for rank, rows in compared.matched.collectives.items()}
    return assemble(
        Source(
            kind=kind,
            path=os.fspath(paths[0] if len(paths) == 1 else common_folder(paths)),
            ranks=len(ranks),
            world_size=world_size,
            steps=max(1, len(numbers)),
            coverage=sum(there.values()) / (world_size * max(1, len(numbers))),
            simulated=False,
            warnings=warnings,
        ),
        [rank_result(rank, breakdowns=[], blame=blame, steps=there.get(rank, 0)) for rank in sorted(ranks)],
        (verdict, findings),
        setting,
        matched=compared.matched,
        collectives=matching_result(compared.matched, None, explained=evidence.explained),
        attribution=attribution_of_blame(blame, kind),
        costs=None,
    )


def compare_durations(durations: Durations) -> Compared:
    """Infer the steps, match the collectives of all ranks, and charge the waits to the ranks that caused them."""
    kind, ranks, world_size, warnings = durations.kind, durations.ranks, durations.world_size, durations.warnings
    steps = durations.steps_of({rank: [call.issued for call in one.calls] for rank, one in ranks.items()})
    in_steps = bool(steps)
    if not in_steps:
        steps = {rank: [0] * len(one.calls) for rank, one in ranks.items()}
        warnings.append("no sequence of operations repeats, so steps are not known: everything counts as one")
    numbers = _counted(steps)
    kept = {rank: [*_in_steps(one.calls, steps.get(rank, ()), set(numbers))] for rank, one in ranks.items()}
    places = _places(kept)
    longest = max((call.duration_us or 0.0 for calls in kept.values() for call, _ in calls), default=0.0)
    slots = max(places.values(), default=0) + 1
    collectives = {
        rank: _records(calls, ranks[rank].members, places, round(1000 * longest) + 1, slots) for rank, calls in kept.items()
    }
    matching = match_collectives(collectives, world_size=world_size)
    if kind == "flight_recorder":
        overlapping = overlapping_by_autograd(kept.values())
    else:
        overlapping = overlapping_by_gaps(matching.matches, kept)
    reduced = longest_waits(matching.matches, overlapping) if in_steps else matching.matches
    blame = assign_blame(reduced, Clocks(residual_ns=0.0), sorted(ranks))
    matched = Matched(matching, Clocks(), NOBODY_WAITED, blame, collectives, kind)
    step_us = float(np.median([_step_us(calls) for calls in kept.values()]))
    # Of logs of NCCL Inspector own times are known in pipelines only, whose sends and receives are all in them.
    are_all = len(kept) == world_size and set(kept) == set(range(world_size))
    whole = (kind == "flight_recorder" or bool(durations.stages)) and in_steps and are_all
    found = durations.stages or stages_of_calls(kept, {rank: one.members for rank, one in ranks.items()})
    stages = {rank: found.get(rank) for rank in kept}
    own: list[DeviceOwnTimes] = []
    least: list[DeviceOwnTimes] = []
    if whole:
        of_calls = partial(own_times, stages, kept, overlapping=overlapping, matches=reduced, step_us=step_us)
        own, least = of_calls(), of_calls(without_queued=True) if durations.stages else []
    evidence = DurationEvidence(
        matched,
        step_us=step_us,
        steps=len(numbers) if in_steps else None,
        overlapping=overlapping,
        gathers=_gather_beside(matching.matches, overlapping),
        unmatched_us=_unmatched_us(kept, _between(ranks, steps, numbers), matching.matches),
        matched_us=_matched_us(matching.matches),
        own=own,
        least_own=least,
        stages=stages,
        is_pipeline=bool(durations.stages),
        wording=durations.wording,
        is_exact=kind == "flight_recorder",
        waiting=_waiting(matching.matches, len(ranks), step_us),
        hidden=durations.hidden,
    )
    if len(ranks) < world_size:
        warnings.append(durations.wording.missing.format(found=len(ranks), world_size=world_size))
    lacking, instances = matching.unmatched_by.get("incomplete", 0), len(matching.matches) + matching.unmatched
    if lacking > _APART * instances:
        warnings.append(
            f"{lacking:,} of {instances:,} collectives are in the {durations.wording.many} of some ranks only: "
            f"{durations.wording.together}"
        )
    return Compared(evidence, numbers, warnings)


def _counted(steps: Mapping[int, Sequence[int | None]]) -> list[int]:
    """Return the steps that count, ascending: without start-up and without the last, whose durations may be missing."""
    numbers = sorted({step for row in steps.values() for step in row if step is not None})
    return numbers[START_UP:-1] if len(numbers) > 3 * START_UP else numbers


def _in_steps(calls: Sequence[Call], steps: Sequence[int | None], numbers: set[int]) -> Iterator[tuple[Call, int]]:
    """Yield the calls in the steps ``numbers``, with their step, but the first of each group, which sets up the connections."""
    for call, step in zip(calls, steps, strict=False):
        if step is not None and step in numbers and call.issued.created_ns and (not call.is_matchable or call.sequence > 1):
            yield call, step


def _step_us(calls: Sequence[tuple[Call, int]]) -> float:
    """Return the mean time of a step of one rank; of a single one, from its first call to the last end."""
    starts: dict[int, int] = {}
    for call, step in calls:
        starts.setdefault(step, call.issued.created_ns)
    if len(starts) > 1:
        first, last = min(starts), max(starts)
        return (starts[last] - starts[first]) / (last - first) / 1000
    ends = (call.issued.created_ns / 1000 + (call.duration_us or 0.0) for call, _ in calls)
    return max(ends, default=0.0) - min(starts.values(), default=0) / 1000


_Places = dict[tuple[int, str, int], int]


def _places(kept: Mapping[int, Sequence[tuple[Call, int]]]) -> _Places:
    """Return the place of each collective (step, group, number) in its step: after all that any member issued before it.

    A host runs ahead of its device, so the time of a call does not show when the device came to it; the order does.
    """
    places: _Places = {}
    for _ in range(_PASSES):
        changed = False
        for calls in kept.values():
            last: dict[int, int] = {}
            for call, step in calls:
                if not call.is_matchable:
                    continue
                key = (step, call.group, call.sequence)
                at = max(places.get(key, 0), last.get(step, 0) + 1)
                changed |= places.get(key) != at
                places[key] = last[step] = at
        if not changed:
            break
    return places


_PASSES: Final = 30
"""Maximum number of passes; each takes an order over one more group. Damaged dumps may contradict each other."""


def _records(
    calls: Sequence[tuple[Call, int]], members: Mapping[str, list[int]], places: _Places, slot_ns: int, slots: int
) -> list[CollectiveRecord]:
    """Return the collectives with a duration. Their times are no measurements: each place has a slot of ``slot_ns``."""
    rows: list[CollectiveRecord] = []
    for call, step in calls:
        if not call.is_matchable or call.duration_us is None:
            continue
        place = places[step, call.group, call.sequence]
        start = (step * slots + place) * slot_ns
        rows.append(
            CollectiveRecord(
                step=step,
                group=call.group,
                group_ranks=members.get(call.group),
                index=place,
                sequence=call.sequence,
                op=call.op,
                bytes=call.bytes,
                enqueue_unix_ns=start,
                start_unix_ns=start,
                end_unix_ns=start + round(1000 * call.duration_us),
                stream=0,
            )
        )
    return rows


def _waiting(matches: Arrivals, ranks: int, step_us: float) -> float:
    """Return the mean waiting of the ranks, as a share of a step, without the tenth of the steps in which it is longest."""
    place = np.unique(matches.step, return_inverse=True)[1][matches.instance]
    waits = np.bincount(place, (matches.inside_ns - matches.shortest_ns[matches.instance]) / 1000)
    usual = sorted(waits.tolist())[: max(1, len(waits) * 9 // 10)]
    return float(np.mean(usual)) / ranks / step_us if usual and step_us > 0 else 0.0


def _between(
    ranks: Mapping[int, RankCalls], steps: Mapping[int, Sequence[int | None]], numbers: Sequence[int]
) -> dict[int, list[Call]]:
    """Return the operations of autograd between the steps that count. Others there are evaluations, which do not matter."""
    found: dict[int, list[Call]] = {}
    for rank, one in ranks.items():
        mine = steps.get(rank, ())
        inside = [at for at, step in enumerate(mine) if step is not None and numbers and numbers[0] <= step <= numbers[-1]]
        between = range(inside[0], inside[-1]) if inside else range(0)
        found[rank] = [one.calls[at] for at in between if mine[at] is None and one.calls[at].issued.backward]
    return found


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


def _unmatched_us(
    kept: Mapping[int, Sequence[tuple[Call, int]]], between: Mapping[int, Sequence[Call]], matches: Arrivals
) -> dict[int, float]:
    """Return each rank's time in operations that are in no matched collective; one without a duration counts as the mean one."""
    matched = _matched_us(matches)
    found: dict[int, float] = {}
    for rank, calls in kept.items():
        every = [call for call, _ in calls] + list(between[rank])
        timed = [call.duration_us for call in every if call.duration_us is not None]
        # The duration of a send or receive in a batch is that of the batch.
        batched = any(call.op == "coalesced" for call in every)
        unknown = sum(call.duration_us is None and not (call.is_part and batched) for call in every)
        if timed:
            found[rank] = max(0.0, sum(timed) - matched.get(rank, 0.0)) + unknown * sum(timed) / len(timed)
    return found
