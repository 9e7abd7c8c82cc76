"""The verdict on a job, from the judgement on its ranks and the doubts about it. Every source takes this way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.evidence.kernels.device_times import DeviceOwnTimes
from rankscope.analysis.inference.judging.job_judgement import Judgement
from rankscope.analysis.inference.profiled_steps import DeviceStraggler
from rankscope.analysis.inference.reasons.diagnosis import Diagnosis
from rankscope.analysis.result.analysis import Finding, Verdict
from rankscope.analysis.verdict.builders import (
    MissingEvidence,
    Setting,
    insufficient_verdict,
    limit_findings,
    no_straggler_verdict,
    rarely_slow,
    straggler_verdict,
)

VerdictAndFindings = tuple[Verdict, list[Finding]]
"""A verdict, and all findings, most costly first."""


@dataclass(frozen=True, slots=True)
class Case:
    """Answer of the judge about one source, described, with the reasons to doubt it."""

    setting: Setting
    shares: Figures
    """Shares of the step's parts."""
    missing: MissingEvidence | None = None
    """What is missing for a judgement on any rank."""
    doubt: MissingEvidence | None = None
    """What is missing for a judgement on ranks that seem slow."""
    diagnosis: Diagnosis | None = None
    """Ranks at fault."""
    shares_without: Figures | None = None
    """Shares of the step's parts without these ranks; ``None``: not known."""
    unproven: MissingEvidence | None = None
    """What is missing for the answer that no rank is at fault."""
    calm: str = "No rank makes the others wait beyond chance"
    """That answer."""
    confidence: float | None = None
    """Confidence in it."""
    besides: Sequence[Finding] = ()
    """Findings beside the verdict."""

    @property
    def lacking(self) -> MissingEvidence | None:
        """What is missing for a verdict; ``None`` where there is one."""
        if self.missing is not None or self.setting.world_size == 1:
            return self.missing
        return self.doubt or (self.unproven if self.diagnosis is None else None)


def with_judgement(
    case: Case,
    judgement: Judgement[DeviceOwnTimes],
    describe: Callable[[DeviceStraggler], Diagnosis],
    *,
    more: MissingEvidence,
    shares_without: Callable[[Sequence[int]], Figures | None] = lambda _: None,
    unmatched: MissingEvidence | None = None,
) -> Case:
    """Return the case of profiled steps, or of durations, with the answer of the judge.

    ``describe`` describes a straggler. ``more``: what to do about ranks that were slow too rarely to exclude chance.
    ``shares_without``: shares of the step's parts without some ranks. ``unmatched``: what is missing where neither own times nor
    matched collectives could be tested.
    """
    if judgement.suspects:
        return replace(case, doubt=rarely_slow(judgement.suspects, more))
    if judgement.straggler is not None:
        if case.doubt is not None:
            return case
        diagnosis = describe(judgement.straggler)
        return replace(case, diagnosis=diagnosis, shares_without=shares_without(diagnosis.ranks))
    return case if unmatched is None or judgement.is_tested else replace(case, missing=unmatched)


def verdict_of(case: Case) -> VerdictAndFindings:
    """Return the verdict and the findings of a case."""
    setting, shares = case.setting, case.shares
    missing_evidence = case.lacking
    if missing_evidence is not None:
        return insufficient_verdict(missing_evidence, setting), [] if missing_evidence.lead is None else limit_findings(
            shares, setting, lead=missing_evidence.lead
        )
    if setting.world_size == 1:
        return no_straggler_verdict(shares, setting, confidence=None, why="There is one rank, so no rank waits for another")
    if case.diagnosis is not None:
        verdict, findings = straggler_verdict(case.diagnosis, setting)
        return verdict, [*findings, *case.besides, *limit_findings(case.shares_without or {}, setting, lead="Besides that, ")]
    verdict, findings = no_straggler_verdict(shares, setting, confidence=case.confidence, why=case.calm)
    return verdict, [*findings, *case.besides]
