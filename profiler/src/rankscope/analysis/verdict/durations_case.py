"""Judgement on the durations of a training job's collectives, with the doubts that durations raise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rankscope.analysis.collectives.cycles import REPEATS
from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.collectives.matched import MatchedCollectives
from rankscope.analysis.evidence.kernels.device_times import DeviceOwnTimes
from rankscope.analysis.inference.doubts import contradiction
from rankscope.analysis.inference.judging.job_judgement import Judgement, are_tested, judge
from rankscope.analysis.inference.judging.late_ranks import find_late
from rankscope.analysis.inference.judging.moving_wait import MOST_WAITING
from rankscope.analysis.inference.judging.rank_judge import judge_ranks
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks
from rankscope.analysis.inference.profiled_steps import ENOUGH_STEPS, DeviceStraggler, Profile, SignalsOf
from rankscope.analysis.inference.reasons.diagnosis import Diagnosis
from rankscope.analysis.result.analysis import Evidence
from rankscope.analysis.result.text import counted
from rankscope.analysis.verdict.builders import MissingEvidence, Setting, among_compared, ranks_were
from rankscope.analysis.verdict.job_verdict import Case, with_judgement
from rankscope.base.text import format_duration, ranks_text
from rankscope.runs.durations import SourceOfDurations

_MOST: Final = 0.8
"""Minimum share of the communication in matched collectives for a verdict."""
_HIDDEN: Final = 4
"""Factor by which the delay may be longer than the longest wait where collectives beside compute gather."""
_MUCH: Final = 0.05
"""Share of the time in which ranks wait, from which on some rank may be late."""
_AT_LEAST: Final = "This is usually too low: beside compute, only the longest wait of each delay counts."


@dataclass(frozen=True, slots=True)
class DurationEvidence:
    """Matched collectives of all ranks, and what else the verdict depends on."""

    matched: MatchedCollectives
    step_us: float
    """Mean time of a step; where steps are not known, of everything."""
    numbers: list[int]
    """Steps that count; a single one where steps are not known."""
    in_steps: bool
    """Whether steps are known."""
    overlapping: set[str]
    """Groups whose collectives run beside compute."""
    gathers: bool
    """True if one of them gathers, as with sharded parameters: then a delay may be several times the longest wait of a step."""
    unmatched_us: dict[int, float]
    matched_us: dict[int, float]
    source: SourceOfDurations
    own: list[DeviceOwnTimes] = field(default_factory=list)
    """Own times of each pipeline stage, or of all ranks. Empty where they are not known."""
    stages: dict[int, int | None] = field(default_factory=dict)
    """Pipeline stage of each rank; ``None`` without a pipeline."""
    least_own: list[DeviceOwnTimes] = field(default_factory=list)
    """The same without all time in which ranks of a pipeline may have waited for their sends."""
    is_pipeline: bool = False
    """True if only own times show which rank is late: at collectives, all stages before and after it are late with it."""
    waiting: float = 0.0
    """Share of the time in which ranks wait at the matched collectives, the steps with the longest waits left out."""
    hidden: Mapping[int, int] = field(default_factory=dict)
    """Number of collectives per rank that the source left out, where known."""
    warnings: list[str] = field(default_factory=list)

    @property
    def step_count(self) -> int | None:
        """Number of steps that count; ``None`` where steps are not known."""
        return len(self.numbers) if self.in_steps else None

    @property
    def steps(self) -> tuple[int, int] | None:
        """First step that counts and the one after the last; ``None`` where steps are not known."""
        return (self.numbers[0], self.numbers[-1] + 1) if self.in_steps and self.numbers else None

    def share(self, rank: int) -> float:
        """Return the share of a rank's communication that is in matched collectives."""
        matched, unmatched = self.matched_us.get(rank), self.unmatched_us.get(rank)
        if matched is None or unmatched is None:
            return 0.0
        return matched / (matched + unmatched) if matched + unmatched else 1.0

    @property
    def window_us(self) -> float:
        """Time over which the waits at matched collectives are summed."""
        return self.step_us * max(1, len(self.matched.blame.steps))

    @property
    def explained(self) -> float | None:
        """Mean of the ranks' shares; ``None`` without any communication."""
        shares = [self.share(rank) for rank in self.unmatched_us]
        return float(np.mean(shares)) if shares else None


def duration_case(
    evidence: DurationEvidence,
    setting: Setting,
    *,
    shares: Figures | None = None,
    signals_of: SignalsOf | None = None,
    explain: Callable[[Diagnosis], Diagnosis] = lambda diagnosis: diagnosis,
) -> Case:
    """Return the judgement on the ranks, with the doubts that durations raise.

    The rest is of a job that was also recorded. ``shares``: of the step's parts. ``signals_of``: in its step records.
    ``explain`` adds the physical reason, where there is one.
    """
    blame = evidence.matched.blame
    case = Case(setting, shares or {})
    if (missing := _useless(evidence) or _untested(evidence)) is not None:
        return replace(case, missing=_advised(missing, evidence, setting))
    # Where most communication is of ranks that cannot be matched, the time outside of communication shows who is late.
    by_own_times = (evidence.is_pipeline or (evidence.explained or 0.0) < _MOST) and are_tested(evidence.own)

    def at_most_us(_ranks: Sequence[int], group: DeviceOwnTimes) -> float:
        return _delay_us(evidence) / len(group.steps)

    judgement = judge(
        evidence.own if by_own_times else [],
        at_most_us=at_most_us,
        blame=None if by_own_times else blame,
        window_us=evidence.window_us,
    )
    doubt = _doubt(judgement, evidence)
    unproven = None if by_own_times else _why_inconclusive(evidence)
    restriction = among_compared(len(blame.ranks), setting.world_size, evidence.source.many)
    return with_judgement(
        replace(
            case,
            doubt=None if doubt is None else _advised(MissingEvidence(doubt), evidence, setting),
            unproven=None if unproven is None else _advised(unproven, evidence, setting),
            calm=f"{case.calm}{restriction}",
        ),
        judgement,
        lambda straggler: explain(_diagnosis(straggler, evidence, setting, signals_of)),
        more=MissingEvidence("repeat with more steps", "short_recording"),
    )


def _advised(missing: MissingEvidence, evidence: DurationEvidence, setting: Setting) -> MissingEvidence:
    """Return what is missing with the kind of lack that selects the advice: more ranks help only where some are missing."""
    if missing.lack is not None or len(evidence.matched.blame.ranks) < max(2, setting.world_size):
        return missing
    return replace(missing, lack="all_ranks_given")


def _diagnosis(
    straggler: DeviceStraggler, evidence: DurationEvidence, setting: Setting, signals_of: SignalsOf | None
) -> Diagnosis:
    steps = max(1, len(evidence.matched.blame.steps)) if straggler.times is None else len(straggler.times.steps)
    diagnosis = Profile(evidence.matched, {}, {}, evidence.window_us, steps).describe(
        straggler,
        unit_seen=setting.unit,
        explained=evidence.explained,
        signals_of=signals_of,
        stage=evidence.stages.get(straggler.slow.ranks[0]),
    )
    if straggler.times is None and evidence.overlapping:
        diagnosis = replace(diagnosis, note=f"{diagnosis.note} {_AT_LEAST}".strip())
    rows = [] if evidence.step_count is None else [Evidence(name="steps_judged", value=float(evidence.step_count), unit="steps")]
    if evidence.explained is not None:
        share = Evidence(name="communication_matched", value=evidence.explained, unit="ratio", detail="of the communication")
        rows.append(share)
    return replace(diagnosis, evidence=[*diagnosis.evidence, *rows])


def _doubt(judgement: Judgement[DeviceOwnTimes], evidence: DurationEvidence) -> str | None:
    """Return why a straggler may not be at fault; ``None`` where it is, or there is none."""
    straggler = judgement.straggler
    if straggler is None:
        return None
    if (
        doubt := contradiction(straggler, evidence.matched, evidence.window_us, known_share=0.0, source=evidence.source.many)
    ) is not None:
        return doubt
    if straggler.times is None:
        return _doubt_of_late(straggler.slow, evidence)
    others = _also_slow(straggler, judgement, evidence) if evidence.is_pipeline else []
    if not others:
        return None
    where = ", in several stages" if evidence.stages.get(others[0]) is not None else ""
    return (
        f"{ranks_were(sorted({*straggler.slow.ranks, *others}))} slow{where}: one may wait for another in messages that are "
        f"not in the {evidence.source.many}; {evidence.source.more_evidence}"
    )


def _also_slow(straggler: DeviceStraggler, judgement: Judgement[DeviceOwnTimes], evidence: DurationEvidence) -> list[int]:
    """Return the ranks of other stages that are slow, however long compute waited for sends.

    Of ranks that exchange messages without stages, as in a ring, all but the worst of several slow ones are returned.

    Where messages are missing, as small ones are by default, all stages before and after a slow one seem slow with it.
    """
    if evidence.stages.get(straggler.slow.ranks[0]) is None:
        return straggler.slow.ranks[1:]
    surely = {rank for group in evidence.least_own if (slow := judge_ranks(group).slow) is not None for rank in slow.ranks}
    others = [group.slow for group in judgement.groups if group.times is not straggler.times]
    return sorted(rank for slow in others if slow is not None for rank in surely & set(slow.ranks))


def _delay_us(evidence: DurationEvidence) -> float:
    """Return the longest time that any rank waited at matched collectives; infinite where no collective could be matched.

    A rank of a pipeline may take longer at no cost, in time that it would wait otherwise. What it costs, its pipeline is late by,
    and the other replicas wait for that when gradients are reduced.
    """
    return max(evidence.matched.blame.wait_us.values()) if evidence.matched.matching.matches else float("inf")


def _useless(evidence: DurationEvidence) -> MissingEvidence | None:
    """Return why the durations show for no rank whether it is late; ``None`` where they may."""
    if len(evidence.matched.blame.ranks) < 2:
        words = evidence.source
        return MissingEvidence(
            f"the {words.one} of one rank cannot show which rank waits for which; give the {words.many} of all ranks"
        )
    if not evidence.matched.matching.matches:
        return MissingEvidence("no collective could be matched across the ranks")
    alone = [rank for rank in evidence.matched.blame.ranks if rank not in evidence.unmatched_us]
    if alone and not evidence.source.is_exact:
        return MissingEvidence(
            f"{ranks_text(alone)} {'has' if len(alone) == 1 else 'have'} no collective in the steps of the others; ranks that "
            "meet in sends and receives only, as the stages of a pipeline, are judged where verbose logs of NCCL 2.30 or later "
            "have all of these, and each stage has several ranks"
        )
    if evidence.step_us <= 0:
        return MissingEvidence("the times at which operations were issued make no sense, so the length of a step is not known")
    if evidence.step_count is None and evidence.overlapping:
        return MissingEvidence(
            f"the {evidence.source.many} hold fewer than {REPEATS} steps, or no two are alike, and beside compute one delay "
            f"shows at many collectives of a step; {evidence.source.more_steps}",
            "short_recording",
        )
    return None


def _untested(evidence: DurationEvidence) -> MissingEvidence | None:
    """Return why ranks of a pipeline that only own times can judge are not judged; ``None`` where they are."""
    if not evidence.is_pipeline or are_tested(evidence.own):
        return None
    return MissingEvidence(
        "the own times of some ranks of the pipeline are not known, or of too few steps, and at collectives ranks may be late "
        f"for ranks of another stage, to which they send and from which they receive; {evidence.source.more_steps}",
        "short_recording",
    )


def _why_inconclusive(evidence: DurationEvidence) -> MissingEvidence | None:
    """Return why the durations do not prove that no rank is late; ``None`` where they do."""
    if evidence.gathers and (late := find_late(evidence.matched.blame, evidence.window_us / _HIDDEN)) is not None:
        least = format_duration(late.gain_us / max(1, len(evidence.matched.blame.steps)))
        return MissingEvidence(
            f"{ranks_were(late.ranks)} last at collectives beside compute, by at least {least} per step, but durations do not "
            f"show how much more of the waiting there delays the others; {evidence.source.more_evidence}, or trace some steps"
        )
    if (explained := evidence.explained or 0.0) < _MOST:
        return MissingEvidence(
            f"no rank is last at the matched collectives, but these are {explained:.0%} of the communication. {_IN_THE_REST}"
        )
    if evidence.step_count is None or evidence.step_count < ENOUGH_STEPS:
        steps_text = "steps are not known" if evidence.step_count is None else f"there are {counted(evidence.step_count, 'step')}"
        return MissingEvidence(
            f"no rank is last beyond chance, but {steps_text}; {ENOUGH_STEPS} or more are needed to say that no rank is late",
            "short_recording",
        )
    blame = evidence.matched.blame
    waiting = sum(blame.exposed_us.values()) / len(blame.ranks) / evidence.window_us
    if waiting >= MOST_WAITING:
        return MissingEvidence(
            f"no rank is last beyond chance, yet ranks wait for each other at least {waiting:.0%} of the time, for different "
            f"ones; {evidence.source.more_evidence}, or trace some steps"
        )
    return _left_out(evidence, evidence.step_count)


def _left_out(evidence: DurationEvidence, steps: int) -> MissingEvidence | None:
    """Return what the source leaves out that may hide a late rank; ``None`` where there is nothing."""
    if not evidence.source.is_exact and evidence.waiting > _MUCH:
        return MissingEvidence(
            f"ranks wait for each other {evidence.waiting:.0%} of the time, but the {evidence.source.many} do not show for "
            f"which of them; {evidence.source.more_order}"
        )
    rank = max(evidence.hidden, key=lambda each: evidence.hidden[each], default=None)
    if rank is not None and 2 * evidence.hidden[rank] >= steps:
        return MissingEvidence(
            f"no rank is last at the matched collectives, but {counted(evidence.hidden[rank], 'collective')} of rank {rank} "
            f"{'is' if evidence.hidden[rank] == 1 else 'are'} not in the {evidence.source.many}, and ranks may wait there"
        )
    return None


def _doubt_of_late(late: SlowRanks, evidence: DurationEvidence) -> str | None:
    """Return why the ranks that come last may not be at fault; ``None`` where they are."""
    rank = min(late.ranks, key=evidence.share)
    if (share := evidence.share(rank)) < _MOST:
        return f"rank {rank} is last at the matched collectives, but these are {share:.0%} of its communication. {_IN_THE_REST}"
    rank = max(late.ranks, key=evidence.unmatched_us.__getitem__)
    if 2 * evidence.unmatched_us[rank] >= late.gain_us:
        return (
            f"rank {rank} is last at the matched collectives, but its time in the rest of its communication is about as long as "
            f"it makes the others wait. {_IN_THE_REST}"
        )
    groups = Counter(
        member
        for group, members in evidence.matched.matching.matches.ranks_of_groups().items()
        if group in evidence.overlapping
        for member in members
    )
    if len(late.ranks) > 1 and any(groups[rank] > 1 for rank in late.ranks):
        return (
            f"{ranks_text(late.ranks)} come last, but they meet in several groups beside compute, where durations do not show "
            f"which of them waited for another; {evidence.source.more_evidence}"
        )
    shared = None if evidence.source.is_exact or len(late.ranks) < 2 else _shared(late, evidence.matched)
    if shared is not None:
        return (
            f"{ranks_text(late.ranks)} come last, but they meet in group {shared}, and the {evidence.source.many} do not show "
            f"whether one of them makes the others late; {evidence.source.more_evidence}"
        )
    return None


def _shared(late: SlowRanks, matched: MatchedCollectives) -> str | None:
    """Return a group in which late ranks meet without all others; ``None`` without one."""
    every = set(matched.blame.ranks)
    groups = matched.matching.matches.ranks_of_groups()
    shared = (group for group, members in groups.items() if set(members) < every and len(set(members) & set(late.ranks)) > 1)
    return next(shared, None)


_IN_THE_REST: Final = (
    "In the rest (sends and receives, groups with a missing rank or unknown members, operations that do not show which rank "
    "waits for which) ranks wait for others, too, and may be late for that reason"
)
