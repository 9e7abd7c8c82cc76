"""The judge of a job: which ranks make the others wait. Every source of evidence is judged here, by the same rules.

A source has own times of ranks that do the same work, or the order in which ranks came to matched collectives, or both:

1. Each group of ranks with the same work is judged (``rank_judge``). What chance makes likely in the other groups is no
   straggler, and a suspect is one if the other groups show that its excess is no noise (``few_replicas``).
2. What healing the ranks saves is limited by the schedule of their pipeline. The group in which they cost most counts.
3. Own times count first, since they cover all waiting. Where collectives show more than twice as much, these count.
4. Else: which ranks are suspects, and were all ranks tested?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.evidence.compared import OwnTimes
from rankscope.analysis.inference.judging.few_replicas import slow_replica
from rankscope.analysis.inference.judging.late_ranks import all_agree, find_late, late_suspect
from rankscope.analysis.inference.judging.outliers import by_chance_elsewhere
from rankscope.analysis.inference.judging.rank_judge import GroupAnswer, judge_ranks
from rankscope.analysis.inference.judging.significance import LIMIT, blocks_needed
from rankscope.analysis.inference.judging.slow_ranks import MINIMUM_EFFECT, SlowRanks

Times = TypeVar("Times", bound=OwnTimes)

Bound = Callable[[Sequence[int], Times], float]
"""Function from slow ranks, worst first, and their group to the time per step that healing them saves at most."""


def unbounded(_ranks: Sequence[int], _times: OwnTimes) -> float:
    """Return the bound of ranks that are in no pipeline."""
    return math.inf


@dataclass(frozen=True, slots=True)
class Straggler(Generic[Times]):
    """Ranks that make the others wait."""

    slow: SlowRanks
    """The ranks, with times per step; per window where ``times`` is ``None``."""
    times: Times | None
    """Own times by which they are slow; ``None``: they came last at matched collectives."""
    is_bounded: bool = False
    """True if the schedule of a pipeline lets them cost less than their own times show."""

    @property
    def slow_steps(self) -> list[int]:
        """Steps in which they were slow; empty where they came last at collectives."""
        steps = [] if self.times is None else self.times.steps
        return [step for step, affected in zip(steps, self.slow.affected.tolist(), strict=False) if affected]


@dataclass(frozen=True, slots=True)
class GroupJudgement(Generic[Times]):
    """Judgement on a group of ranks that do the same work."""

    times: Times
    answer: GroupAnswer
    """The answer by this group alone."""
    slow: SlowRanks | None
    """Its slow ranks, where the other groups do not contradict."""
    is_chance: bool = False
    """True if chance makes such ranks likely in one of so many groups."""

    @property
    def suspects(self) -> list[int]:
        """Ranks that may be slow."""
        return [] if self.slow is not None or self.is_chance else self.answer.suspects


@dataclass(frozen=True, slots=True)
class Judgement(Generic[Times]):
    """Answer of the judge: a straggler, or suspects, or neither."""

    straggler: Straggler[Times] | None = None
    """The costliest."""
    stragglers: Sequence[Straggler[Times]] = ()
    """Those by own times, one per group at most."""
    suspects: Sequence[int] = ()
    """Ranks that were slow at a cost, but too rarely to exclude chance; empty where there is a straggler."""
    suspected: GroupJudgement[Times] | None = None
    """Group of the suspects; ``None`` without any, and where they came last at collectives."""
    is_tested: bool = False
    """True if own times were tested, which cover all waiting; else the matched collectives alone were."""
    groups: Sequence[GroupJudgement[Times]] = ()


def judge(
    groups: Sequence[Times],
    *,
    hosts: Mapping[int, str] | None = None,
    at_most_us: Bound[Times] = unbounded,
    blame: Blame | None = None,
    window_us: float = 0.0,
) -> Judgement[Times]:
    """Judge the ranks of a job by the own times of ``groups`` and by the waits at matched collectives.

    ``hosts``: host of each rank, where known. ``blame``: those waits, summed over a typical window of ``window_us``.
    """
    judged = _judge_groups(groups, hosts or {})
    slow = [straggler for each in judged if (straggler := _costly(each, at_most_us)) is not None]
    worst = max(slow, key=lambda straggler: straggler.slow.gain_us, default=None)
    late = None if blame is None else find_late(blame, window_us, hosts)
    if worst is not None and worst.times is not None:
        window_gain_us = worst.slow.gain_us * len(worst.times.steps)
        if late is None or 2 * window_gain_us >= late.gain_us:
            return Judgement(worst, slow, is_tested=True, groups=judged)
    if late is not None:
        return Judgement(Straggler(late, None), slow, groups=judged)
    suspected = _suspected(judged, at_most_us)
    if suspected is not None:
        return Judgement(suspects=sorted(suspected.suspects), suspected=suspected, groups=judged)
    last = None if blame is None else late_suspect(blame, window_us)
    return Judgement(suspects=[] if last is None else [last], is_tested=are_tested(groups), groups=judged)


def are_tested(groups: Sequence[OwnTimes]) -> bool:
    """Return whether all of at least one group have enough steps to exclude chance."""
    return bool(groups) and all(len(times.steps) >= blocks_needed(len(times.ranks)) for times in groups)


def _judge_groups(groups: Sequence[Times], hosts: Mapping[int, str]) -> list[GroupJudgement[Times]]:
    """Judge each group beside the others."""
    alone = [_agreed(times, judge_ranks(times, hosts)) for times in groups]
    quiet = [judgement.times for judgement in alone if judgement.slow is None and not judgement.suspects]
    judged = [_beside(judgement, quiet) for judgement in alone]
    calm = [judgement.times for judgement in judged if judgement.slow is None]
    return [_corrected(judgement, calm) for judgement in judged]


def _agreed(times: Times, answer: GroupAnswer) -> GroupJudgement[Times]:
    slow = answer.slow
    return GroupJudgement(times, answer, slow if slow is None or all_agree(times.own, times.ranks, slow) else None)


def _beside(judged: GroupJudgement[Times], quiet: Sequence[Times]) -> GroupJudgement[Times]:
    """Return the judgement; the only suspect of the group is slow if it is beside ``quiet`` groups, without suspects."""
    if len(judged.suspects) != 1:
        return judged
    return replace(judged, slow=slow_replica(judged.times, judged.suspects[0], quiet))


def _corrected(judged: GroupJudgement[Times], calm: Sequence[Times]) -> GroupJudgement[Times]:
    """Return the judgement, corrected for the number of groups without slow ranks (``calm``)."""
    slow = judged.slow
    if slow is None or (slow.p_value or 0.0) + by_chance_elsewhere(judged.times, slow, calm) <= LIMIT:
        return judged
    return replace(judged, slow=None, is_chance=True)


def _costly(judged: GroupJudgement[Times], at_most_us: Bound[Times]) -> Straggler[Times] | None:
    """Return the slow ranks of a group if they cost enough to be named."""
    slow = judged.slow
    if slow is None:
        return None
    bound_us = at_most_us(slow.ranks, judged.times)
    if bound_us >= slow.gain_us:
        return Straggler(slow, judged.times)
    if bound_us < MINIMUM_EFFECT * judged.times.wall_us:
        return None
    return Straggler(replace(slow, gain_us=bound_us), judged.times, is_bounded=True)


def _suspected(groups: Sequence[GroupJudgement[Times]], at_most_us: Bound[Times]) -> GroupJudgement[Times] | None:
    """Return the group whose suspects are the slowest of those that may cost enough; ``None`` without any."""
    costly = [
        judgement
        for judgement in groups
        if judgement.suspects and at_most_us(judgement.suspects, judgement.times) >= MINIMUM_EFFECT * judgement.times.wall_us
    ]
    return max(costly, key=lambda judgement: judgement.answer.suspected_us, default=None)
