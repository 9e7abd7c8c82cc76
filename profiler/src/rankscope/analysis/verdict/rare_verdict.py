"""Verdict with its rare steps.

They are the headline if they cost more than what is wrong with the typical step, and either are one rank's or a tenth of the time
is lost.
"""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

from rankscope.analysis.costs.rare_steps import chance_alone
from rankscope.analysis.costs.waterfall import Costs, waiting_share
from rankscope.analysis.inference.judging.moving_wait import MOST_WAITING
from rankscope.analysis.inference.judging.significance import LIMIT
from rankscope.analysis.result.analysis import Cost, Evidence, Finding, Kind, Pattern, RareSteps, Verdict
from rankscope.analysis.statistics import chance_of_next
from rankscope.analysis.verdict.advice import AdviceSubject, next_actions
from rankscope.analysis.verdict.advice_rows import ROTATING
from rankscope.analysis.verdict.bottleneck import limit_of, shares_of
from rankscope.analysis.verdict.builders import Setting, as_judged, loss_of

_FEW: Final = "Whether this recurs is not known."


def with_rare_steps(
    verdict: Verdict, findings: list[Finding], rare: RareSteps | None, setting: Setting, costs: Costs | None
) -> tuple[Verdict, list[Finding]]:
    """Return the verdict and the findings with what the rare steps cost.

    What happened once is no verdict: then there is not enough data. Waiting that several ranks cause in turn is ``rotating``.
    ``costs``: those of the typical step.
    """
    if rare is None:
        return verdict, findings
    kind, pattern = _kind(rare, setting.judged_ranks or setting.world_size)
    lost = rare.share + (1 - rare.share) * waiting_share(costs)
    typical_loss = (1 - rare.share) * _typical_loss(verdict, costs)
    hours, cost = loss_of(rare.lost_us / max(1, setting.step_count), setting)
    if kind is None:
        if verdict.kind != "balanced" or lost < MOST_WAITING:
            return msgspec.structs.replace(verdict, summary=f"{verdict.summary} {rare.summary}"), findings
        unclear = Verdict(
            kind="insufficient_data",
            summary=f"{rare.summary} {_FEW} The typical step: {_lowered(verdict.summary)}",
            next=_look_around(rare, setting),
        )
        return as_judged(unclear, verdict), findings
    finding = _finding(rare, kind, pattern, setting, hours)
    if rare.share <= typical_loss or (lost < MOST_WAITING and rare.rank is None):
        return msgspec.structs.replace(verdict, summary=f"{verdict.summary} {rare.summary}"), [*findings, finding]
    headline = as_judged(_verdict(rare, finding, verdict, setting, cost), verdict)
    return headline, [finding, *findings]


def _look_around(rare: RareSteps, setting: Setting) -> list[str]:
    """Return what to look at after steps that may not recur."""
    steps_text = f"step{'s' if len(rare.steps) > 1 else ''} {', '.join(map(str, rare.steps))}"
    place = "host " + rare.host if rare.host is not None else "the hosts"
    actions = [f"Look at {place} around {steps_text}: dmesg -T, journalctl, the log of the scheduler, storage"]
    return actions if setting.run is None else [*actions, f"rankscope dashboard {shlex.quote(setting.run)}"]


def _typical_loss(verdict: Verdict, costs: Costs | None) -> float:
    """Return the share of the typical step that the verdict on it is about; 0 where it names nothing that costs time."""
    if verdict.kind in ("balanced", "compute_bound", "insufficient_data"):
        return 0.0
    if verdict.slowdown is not None:
        return 1 - 1 / verdict.slowdown
    limit = limit_of(shares_of(costs))
    return 0.0 if limit is None else limit[1]


def _kind(rare: RareSteps, ranks: int) -> tuple[Kind | None, Pattern | None]:
    """Return the kind of a verdict on the rare steps of a job of so many ranks, and its pattern; ``None``: they show no kind."""
    is_activity = rare.cause in ("evaluation", "checkpoint")
    if rare.rank is not None:
        # An activity recurs on its rank. Pauses may fall on the same of equal ranks by chance.
        is_chance = chance_alone(rare.count, rare.count, max(2, ranks)) > LIMIT
        return ("straggler", "intermittent") if is_activity or not is_chance else (None, None)
    if is_activity:
        return "host_bound", None
    if rare.count > 1 and rare.moves:
        return "straggler", "rotating"
    return ("communication_bound", None) if rare.count > 1 and rare.cause == "communication" else (None, None)


def _finding(rare: RareSteps, kind: Kind, pattern: Pattern | None, setting: Setting, hours: float | None) -> Finding:
    return Finding(
        kind=kind,
        rank=rare.rank,
        ranks=[] if rare.rank is None else [rare.rank],
        host=rare.host,
        cause=rare.cause or ("unknown" if kind == "straggler" else None),
        pattern=pattern,
        steps=setting.steps,
        slowdown=1 / (1 - rare.share) if rare.share < 1 else None,
        gpu_hours_lost=hours,
        summary=rare.summary,
        evidence=[
            Evidence(name="rare_steps", value=float(rare.count), unit="steps", detail=f"of {rare.of_steps:,}"),
            Evidence(name="rare_share", value=rare.share, unit="ratio", detail="of the run's time, beyond typical steps"),
            Evidence(name="longest", value=rare.longest_us, unit="us", detail="longest rare step"),
            Evidence(name="typical", value=rare.typical_us, unit="us", detail="typical step"),
        ],
    )


def _verdict(rare: RareSteps, finding: Finding, typical: Verdict, setting: Setting, cost: Cost | None) -> Verdict:
    rotating = finding.pattern == "rotating"
    subject = AdviceSubject(setting.run, finding.ranks, setting.hosts)
    actions = next_actions(finding.kind, subject, cause=finding.cause, reason=None)
    typical_summary = typical.summary if typical.kind != "insufficient_data" else ""
    return Verdict(
        kind=finding.kind,
        rank=finding.rank,
        ranks=finding.ranks,
        pattern=finding.pattern,
        cause=finding.cause,
        steps=setting.steps,
        evidence_source=setting.source,
        confidence=round(chance_of_next(rare.count, rare.count), 3),
        slowdown=finding.slowdown,
        gpu_hours_lost=finding.gpu_hours_lost,
        cost=cost,
        summary=f"{rare.summary} The typical step: {_lowered(typical_summary)}" if typical_summary else rare.summary,
        next=[*([ROTATING] if rotating else []), *actions],
    )


def _lowered(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"
