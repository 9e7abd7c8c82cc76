"""Builders of verdicts and findings, one per outcome: straggler, no straggler, insufficient data.

They write the sentences and compute slowdown, GPU-hours and money. Which outcome applies is decided by their callers, such as
``run_verdict``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.evidence.liveness import Liveness
from rankscope.analysis.inference.judging.moving_wait import MOST_WAITING
from rankscope.analysis.inference.reasons.diagnosis import Diagnosis
from rankscope.analysis.result.analysis import Cost, Evidence, Finding, Kind, Verdict, gpu_time_loss
from rankscope.analysis.result.data_quality import Problem
from rankscope.analysis.result.text import saves_text, units_text
from rankscope.analysis.verdict.advice import AdviceSubject, next_actions, reason_of
from rankscope.analysis.verdict.advice_rows import ROTATING
from rankscope.analysis.verdict.bottleneck import SHOWN, exposed_transfer, largest_besides_compute, limit_of, unknown_share
from rankscope.base.text import format_duration, ranks_text
from rankscope.runs.durations import DURATION_SOURCES, DurationSource

EvidenceSource = Literal["steps", "windows", "traces", DurationSource]


@dataclass(frozen=True, slots=True)
class Setting:
    """Properties of an analysis that its verdicts share."""

    source: EvidenceSource
    world_size: int
    steps: tuple[int, int] | None
    step_count: int
    """Number of steps slowed by the cause: all trained steps, not only the judged ones."""
    unit: str
    """Unit that times refer to: ``step`` or ``window``."""
    accelerated: bool
    """True if ranks run on accelerators, so that lost time is GPU time."""
    hosts: dict[int, str] = field(default_factory=dict)
    price_per_gpu_hour: float | None = None
    currency: str = "USD"
    run: str | None = None
    judged_ranks: int | None = None
    """Number of ranks that were compared."""
    judged_steps: int | None = None
    """Number of steps in which they were compared."""
    costs_at_most: float | None = None
    """Share of the step above which the cost of any rank or host is excluded, where none is named."""
    liveness: Liveness = "live"
    failed: bool = False
    """True if ranks crashed or were killed."""
    recorded_steps: int = 0
    capture: int | None = None
    """Number of steps to profile that may suffice for a verdict."""


_LackOfTraces = Literal["torn_trace", "no_communication", "unknown_ranks", "several_jobs"]
_LackOfRun = Literal["few_steps", "few_ranks", "few_windows", "one_rank_per_stage", "steps_apart", "unseen_groups"]
Lack = _LackOfRun | Literal["short_capture", "short_recording", "all_ranks_given"] | _LackOfTraces | Problem
"""Reason for insufficient data."""


@dataclass(frozen=True, slots=True)
class MissingEvidence:
    """What is missing for a verdict."""

    what: str
    """The missing data, as text."""
    lack: Lack | None = None
    steps_needed: int | None = None
    """Number of steps, about, that a run needs for a verdict."""
    lead: str | None = None
    """Beginning of the sentence on what limits the step; ``None``: what was recorded does not show that."""


def straggler_verdict(diagnosis: Diagnosis, setting: Setting) -> tuple[Verdict, list[Finding]]:
    """Return the verdict on stragglers and its findings: one for each host at fault, and one for the other ranks."""
    rotating = diagnosis.pattern == "rotating"
    rank = None if rotating else diagnosis.ranks[0]
    slowdown = diagnosis.step_us / (diagnosis.step_us - diagnosis.gain_us) if diagnosis.step_us > diagnosis.gain_us > 0 else None
    hours, cost = loss_of(diagnosis.gain_us, setting)
    summary = _sentence(diagnosis, setting)
    unadvised = Verdict(
        kind="straggler",
        rank=rank,
        ranks=sorted(diagnosis.ranks),
        hosts=diagnosis.hosts,
        pattern=diagnosis.pattern,
        cause=diagnosis.cause.cause,
        explained_by=diagnosis.cause.explained_by,
        phase=diagnosis.phase,
        group=diagnosis.group,
        stage=None if rotating else diagnosis.stage,
        steps=setting.steps,
        evidence_source=setting.source,
        confidence=diagnosis.confidence,
        cause_confidence=diagnosis.cause_confidence,
        slowdown=slowdown,
        saves=diagnosis.saves,
        costs_at_most=setting.costs_at_most if rotating else None,
        judged_ranks=setting.judged_ranks,
        judged_steps=setting.judged_steps,
        gpu_hours_lost=hours,
        cost=cost,
        summary=summary,
    )
    actions = next_actions(
        "straggler",
        AdviceSubject(setting.run, [] if rotating else diagnosis.ranks, setting.hosts, whole_hosts=diagnosis.hosts),
        cause=unadvised.cause,
        reason=reason_of(unadvised, diagnosis.evidence, accelerated=setting.accelerated, recorded=setting.run is not None),
    )
    verdict = msgspec.structs.replace(unadvised, next=[*([ROTATING] if rotating else []), *actions])
    finding = Finding(
        kind="straggler",
        rank=rank,
        ranks=[] if rotating else sorted(diagnosis.ranks),
        host=None if rank is None else setting.hosts.get(rank),
        cause=diagnosis.cause.cause,
        explained_by=diagnosis.cause.explained_by,
        phase=diagnosis.phase,
        pattern=diagnosis.pattern,
        steps=setting.steps,
        confidence=diagnosis.confidence,
        slowdown=slowdown,
        gpu_hours_lost=hours,
        summary=summary,
        evidence=diagnosis.evidence,
    )
    return verdict, _per_host(finding, diagnosis, setting)


def _per_host(finding: Finding, diagnosis: Diagnosis, setting: Setting) -> list[Finding]:
    """Return a finding for each host at fault, with its slow ranks, and one for the other ranks; the first has what all cost."""
    if not diagnosis.hosts:
        return [finding]
    units: list[tuple[str | None, list[int]]] = [
        (host, [rank for rank in diagnosis.ranks if setting.hosts.get(rank) == host]) for host in diagnosis.hosts
    ]
    single_ranks = [rank for rank in diagnosis.ranks if setting.hosts.get(rank) not in diagnosis.hosts]
    if single_ranks:
        units.append((None, single_ranks))
    first, *others = [
        msgspec.structs.replace(
            finding,
            rank=ranks[0],
            ranks=sorted(ranks),
            host=setting.hosts.get(ranks[0]),
            whole_host=host is not None,
            summary=_sentence(diagnosis, setting, ranks) if len(units) > 1 else finding.summary,
        )
        for host, ranks in units
    ]
    return [first, *(msgspec.structs.replace(other, slowdown=None, gpu_hours_lost=None, evidence=[]) for other in others)]


def finding_of_moving(diagnosis: Diagnosis, setting: Setting, *, lead: str) -> Finding:
    """Return the finding about waiting that moves between ranks, beside ranks that are named."""
    text = _sentence(diagnosis, setting)
    return Finding(
        kind="straggler",
        cause=diagnosis.cause.cause,
        explained_by=diagnosis.cause.explained_by,
        phase=diagnosis.phase,
        pattern="rotating",
        steps=setting.steps,
        summary=f"{lead}{text[0].lower()}{text[1:]}",
        evidence=diagnosis.evidence,
    )


def withhold_balanced(verdict: Verdict, waiting: float | None, setting: Setting) -> Verdict:
    """Return the verdict; not enough data instead of a green light where ranks wait for each other a tenth of the time.

    ``waiting``: share of the step or window that ranks wait for the last one; ``None``: not known.
    """
    if verdict.kind not in ("balanced", "compute_bound") or waiting is None or waiting < MOST_WAITING:
        return verdict
    why = verdict.summary.split(";")[0]
    missing = (
        f"{why[0].lower()}{why[1:]}, yet ranks wait for each other {waiting:.0%} of the {setting.unit}; more steps are needed, "
        "unless transfers take longer in some process groups (--detail)"
    )
    return as_judged(insufficient_verdict(MissingEvidence(missing, "few_steps"), setting), verdict)


def as_judged(verdict: Verdict, by: Verdict) -> Verdict:
    """Return a verdict with what was judged, and what it excludes, of the verdict ``by`` that it replaces."""
    return msgspec.structs.replace(
        verdict, costs_at_most=by.costs_at_most, judged_ranks=by.judged_ranks, judged_steps=by.judged_steps
    )


def no_straggler_verdict(
    shares: Figures, setting: Setting, *, confidence: float | None, why: str
) -> tuple[Verdict, list[Finding]]:
    """Return the verdict when no rank is an outlier: the limit of the step, or balanced.

    ``why``: the reason for this, as text. ``shares``: shares of the step's parts (``figures_of_costs``).
    """
    findings = limit_findings(shares, setting, lead=f"{why}; ", confidence=confidence)
    limit = findings[0] if findings else None
    kind: Kind = limit.kind if limit else "balanced"
    verdict = Verdict(
        kind=kind,
        steps=setting.steps,
        evidence_source=setting.source,
        confidence=confidence,
        costs_at_most=setting.costs_at_most,
        judged_ranks=setting.judged_ranks,
        judged_steps=setting.judged_steps,
        cause=limit.cause if limit else None,
        explained_by=limit.explained_by if limit else None,
        phase=limit.phase if limit else None,
        summary=limit.summary if limit else f"{why}; {_calm(shares, setting.unit)}.",
        next=next_actions(kind, AdviceSubject(setting.run), cause=limit.cause if limit else None, reason=_reason(limit, shares)),
    )
    return verdict, findings


def _reason(limit: Finding | None, shares: Figures) -> str | None:
    """Return what selects the next actions besides the cause: transfers, an explanation, or the phase."""
    if limit is None:
        return None
    if limit.kind == "communication_bound":
        return exposed_transfer(shares)
    return limit.explained_by or limit.phase


def _calm(shares: Figures, unit: str) -> str:
    """Return the clause that no part of the step reaches its limit, with the largest part besides compute."""
    if not shares:
        return f"where the time of the {unit} goes is not known"
    largest = largest_besides_compute(shares)
    if largest is None:
        return f"no part of the {unit} besides compute is known to take any of it"
    name, share = largest
    unknown = unknown_share(shares)
    unknown_clause = f"; what takes {unknown:.0%} of it is not known" if unknown >= _TOO_MUCH else ""
    basis = f"from {_BASIS[share.source]}"
    besides = f"besides compute the largest is {name}, {share.value:.0%} ({basis})"
    return f"no part of the {unit} that is known dominates: {besides}{unknown_clause}"


_SURE_OF_CAUSE: Final = 0.8
"""Confidence in the cause below which the sentence calls it probable."""
_TOO_MUCH: Final = 0.1
"""Share of the step outside all known parts from which on the sentence mentions it."""

_BASIS: Final[dict[str | None, str]] = {
    "steps": "step records",
    "windows": "profiled windows",
    "traces": "traces",
    **{kind: source.inputs for kind, source in DURATION_SOURCES.items()},
}
"""Sources of a share, in words."""


def among_compared(compared: int, world_size: int, having: str) -> str:
    """Return the restriction to the compared ranks, such as " among the 3 of 4 ranks with records"; empty if all are compared."""
    return f" among the {compared} of {world_size} ranks with {having}" if compared < world_size else ""


def ranks_were(ranks: Sequence[int]) -> str:
    """Return the ranks as the subject of a clause: "rank 3 was", "ranks 3 and 5 were"."""
    return f"{ranks_text(ranks)} {'was' if len(ranks) == 1 else 'were'}"


def rarely_slow(suspects: Sequence[int], more: MissingEvidence) -> MissingEvidence:
    """Return what is missing for ranks that were slow in too few steps to exclude chance. ``more``: what to do about it."""
    return replace(more, what=f"{ranks_were(suspects)} last, but the steps are too few to exclude chance; {more.what}")


def limit_findings(shares: Figures, setting: Setting, *, lead: str, confidence: float | None = None) -> list[Finding]:
    """Return the limit of the step as a finding whose sentence begins with ``lead``; empty when no part dominates."""
    limit = limit_of(shares)
    if limit is None:
        return []
    row, share = limit
    return [
        Finding(
            kind=row.kind,
            cause=row.cause,
            explained_by=row.explained_by,
            phase=row.phase,
            steps=setting.steps,
            confidence=confidence,
            summary=f"{lead}{share:.0%} {row.wording.replace('the step', f'the {setting.unit}')}.",
            evidence=[
                Evidence(
                    name=name,
                    value=shares[name].value,
                    unit="ratio",
                    detail=f"of the {setting.unit}, from {_BASIS[shares[name].source]}",
                )
                for name in SHOWN
                if name in shares
            ],
        )
    ]


def insufficient_verdict(missing: MissingEvidence, setting: Setting, *, command: str | None = None) -> Verdict:
    """Return the verdict for insufficient data. ``command``: the command that gives a verdict."""
    lack_kind = missing.lack
    over = _WHEN_OVER.get(lack_kind, lack_kind)
    reason: str | None = {
        "live": lack_kind,
        "silent": "silent",
        "over": "failed" if setting.failed and over != lack_kind else over,
    }[setting.liveness]
    return Verdict(
        kind="insufficient_data",
        steps_needed=missing.steps_needed,
        summary=f"Not enough data for a verdict: {missing.what}.",
        next=next_actions(
            "insufficient_data",
            AdviceSubject(setting.run),
            reason=reason,
            steps=setting.capture,
            recorded=setting.recorded_steps,
            needed=missing.steps_needed,
            command=command,
        ),
    )


_WHEN_OVER: Final[dict[Lack | None, str]] = {"few_steps": "few_steps_over", "few_windows": "few_windows_over"}


def loss_of(gain_us: float, setting: Setting) -> tuple[float | None, Cost | None]:
    """Return the GPU-hours and the money that a loss of ``gain_us`` per step costs; ``None`` where they are not known."""
    hours = gain_us * setting.step_count * setting.world_size / 3.6e9
    return gpu_time_loss(hours, accelerated=setting.accelerated, price=setting.price_per_gpu_hour, currency=setting.currency)


def _sentence(diagnosis: Diagnosis, setting: Setting, first: Sequence[int] = ()) -> str:
    """Return the sentence about slow ranks. ``first``: those that it begins with, of several units."""
    duration_text = f"the window's {format_duration(diagnosis.step_us)}" if setting.unit == "window" else f"the {setting.unit}"
    share = f"{diagnosis.wait_us / diagnosis.step_us:.0%} of {duration_text}" if diagnosis.step_us > 0 else ""
    per = f"{format_duration(diagnosis.wait_us)} {diagnosis.at_hand or f'per {setting.unit}'} ({share})"
    sure = f"{diagnosis.confidence:.0%} sure"
    victims = setting.world_size - len(diagnosis.ranks)
    others = "the other rank" if victims == 1 else f"the other {victims} ranks"
    cause = diagnosis.cause
    doubt = "probably " if (diagnosis.cause_confidence or 1.0) < _SURE_OF_CAUSE else ""
    facts = ", ".join(
        part
        for part in (
            f"cause {doubt}{cause.called or cause.cause}",
            f"explained by {cause.explained_by.replace('_', ' ')}" if cause.explained_by else "",
            f"phase {diagnosis.phase}" if diagnosis.phase else "",
            # Of waiting that moves, it is the certainty of the waiting, not of a rank.
            "" if diagnosis.pattern == "rotating" else sure,
        )
        if part
    )
    if diagnosis.pattern == "rotating":
        text = f"The ranks wait {per} for the rank that comes last, {len(diagnosis.ranks)} ranks in turn"
        text += f": {cause.wording} ({facts})"
    else:
        subject, verb = _subject(diagnosis, setting, first)
        often = " intermittently," if diagnosis.pattern == "intermittent" and len(diagnosis.ranks) == 1 else ""
        worst = "" if len(diagnosis.ranks) == 1 else f"for the worst of them, rank {diagnosis.ranks[0]}, "
        saves = saves_text(diagnosis.saves, diagnosis.ranks, diagnosis.hosts, "step")
        text = f"{subject} {verb} {others} wait{often} {per}{', and ' if saves else ''}{saves}: {worst}{cause.wording} ({facts})"
    return f"{text}. {diagnosis.note}" if diagnosis.note else f"{text}."


def _subject(diagnosis: Diagnosis, setting: Setting, first: Sequence[int]) -> tuple[str, str]:
    """Return the ranks or hosts at fault as the subject of a sentence, and its verb."""
    text = units_text(diagnosis.ranks, setting.hosts, diagnosis.hosts)
    if first and (other_ranks := [rank for rank in diagnosis.ranks if rank not in first]):
        first_units, other_units = (
            units_text(ranks, setting.hosts, sorted({setting.hosts[rank] for rank in ranks} & set(diagnosis.hosts)))
            for ranks in (first, other_ranks)
        )
        return f"{first_units[0].upper()}{first_units[1:]}, together with {other_units},", "makes" if setting.hosts[
            first[0]
        ] in diagnosis.hosts else "make"
    if len(diagnosis.ranks) == 1 and not diagnosis.hosts and (host := setting.hosts.get(diagnosis.ranks[0])):
        text += f" on host {host}"
    others = any(setting.hosts.get(rank) not in diagnosis.hosts for rank in diagnosis.ranks)
    units = len(diagnosis.hosts) + (others if diagnosis.hosts else len(diagnosis.ranks))
    text = f"The {text}" if diagnosis.hosts else text[0].upper() + text[1:]
    return text, "makes" if units == 1 else "make"
