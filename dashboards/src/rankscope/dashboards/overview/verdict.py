"""Verdict card: summary, evidence, cost, next steps."""

from __future__ import annotations

from rankscope.alerts.watch.findings import reading
from rankscope.analysis.result.analysis import Analysis, Finding, Source, Verdict
from rankscope.dashboards.data.source import RunSummary
from rankscope.dashboards.model.page import (
    Advice,
    Badge,
    Block,
    Details,
    Fact,
    Facts,
    Group,
    Heading,
    Items,
    Link,
    Pieces,
    Span,
    Text,
    badge,
)
from rankscope.dashboards.model.state import PageState, run_path
from rankscope.dashboards.words import wording

MAX_FINDINGS = 6


def verdict_card(run: RunSummary, analysis: Analysis) -> list[Block]:
    """Return the content of the verdict's section, most important first."""
    verdict = analysis.verdict
    tone = wording.verdict_tone(verdict.kind, may_be_well=run.may_be_well)
    parts: list[Block] = [
        Pieces(_badges(analysis, tone)),
        Heading(verdict.summary, 2, "sentence", name="verdict-sentence"),
        Facts(_facts(analysis)),
    ]
    # The reader has the dashboard open already.
    steps = [text for text in verdict.next if not text.startswith("rankscope dashboard")]
    if steps:
        parts.append(Group([Heading("Do next"), *map(Advice, steps)], "next"))
    if verdict.rank is not None and verdict.kind != "hang":
        parts.append(_where_to_see(run.run_id, verdict.rank))
    others = [finding for finding in analysis.findings if finding.summary != verdict.summary]
    if others or any(finding.evidence for finding in analysis.findings):
        parts.append(_findings(analysis.findings))
    if analysis.source.warnings:
        parts.append(_warnings(analysis.source.warnings))
    return [Group(parts, f"verdict tone-{tone}")]


def _badges(analysis: Analysis, tone: str) -> list[Badge]:
    verdict = analysis.verdict
    badges = [badge(wording.KIND_LABELS[verdict.kind], tone=tone)]
    if verdict.cause is not None:
        badges.append(badge(wording.CAUSE_LABELS[verdict.cause], title="Cause"))
    if verdict.explained_by is not None:
        badges.append(badge(f"explained by {verdict.explained_by.replace('_', ' ')}"))
    if verdict.phase is not None:
        badges.append(badge(f"phase {verdict.phase.replace('_', ' ')}", title="The part of the step in which the time is lost"))
    if verdict.pattern is not None:
        badges.append(badge(f"{verdict.pattern} pattern", title="Whether it is always the same rank"))
    badges += _place(analysis)
    return badges


def _place(analysis: Analysis) -> list[Badge]:
    """Return badges with rank, host and GPU of the blamed rank, or with the ranks if there are several."""
    verdict = analysis.verdict
    if verdict.rank is None:
        if not verdict.ranks:
            return []
        shown = ", ".join(map(str, verdict.ranks[:8])) + (" …" if len(verdict.ranks) > 8 else "")
        return [badge(f"ranks {shown}")]
    places = [badge(f"rank {verdict.rank}", tone="emphasis")]
    result = next((rank for rank in analysis.ranks if rank.rank == verdict.rank), None)
    if result is not None and result.host is not None:
        places.append(badge(f"host {result.host}"))
    if result is not None and result.gpu_uuid is not None:
        uuid = result.gpu_uuid
        places.append(badge(uuid if len(uuid) <= 16 else f"{uuid[:12]}…", title=f"GPU {uuid}"))
    return places


def _facts(analysis: Analysis) -> list[Fact]:
    verdict, source = analysis.verdict, analysis.source
    facts: list[Fact] = []
    # Without a blamed rank, and of a hang, these numbers often do not exist and are left out. Else they are shown as unknown.
    slow = verdict.rank is not None and verdict.kind != "hang"
    if verdict.confidence is not None or slow:
        facts.append(Fact("Confidence", wording.percent(verdict.confidence), meter=verdict.confidence))
    if verdict.slowdown is not None or slow:
        facts.append(
            Fact(
                "Slowdown",
                wording.slowdown(verdict.slowdown),
                why="Step time as it is over step time without the cause",
            )
        )
    on_gpus = any(rank.device_kind != "cpu" for rank in analysis.ranks)
    if verdict.gpu_hours_lost is not None or (slow and on_gpus):
        facts.append(
            Fact("GPU time lost", wording.gpu_hours(verdict.gpu_hours_lost), why="Excess time x number of ranks, so far")
        )
    if verdict.cost is not None:
        facts.append(Fact("Cost so far", wording.money(verdict.cost.amount, verdict.cost.currency)))
    facts += [
        _evidence(verdict, source),
        Fact(
            "Coverage",
            wording.percent(source.coverage),
            why="Ranks x steps with evidence over those expected",
            meter=source.coverage,
            detail=_ranks_there(source),
        ),
    ]
    return facts


def _ranks_there(source: Source) -> str:
    return (
        f"{source.ranks:,} of {wording.count(source.world_size, 'rank')}"
        if source.world_size
        else wording.count(source.ranks, "rank")
    )


def _evidence(verdict: Verdict, source: Source) -> Fact:
    why, steps = "Which records the verdict rests on", _steps(verdict, source)
    if verdict.evidence_source is None:
        return Fact("Evidence", steps, why=why)
    return Fact("Evidence", wording.EVIDENCE[verdict.evidence_source], why=why, detail=steps)


def _steps(verdict: Verdict, source: Source) -> str:
    if verdict.steps is None or verdict.steps[1] <= verdict.steps[0]:
        return wording.count(source.steps, "step")
    return f"steps {verdict.steps[0]} to {verdict.steps[1] - 1}"


def _where_to_see(run_id: str, rank: int) -> Block:
    """Return links to the views of the verdict's evidence, with the blamed rank picked."""
    picked = PageState(rank=rank).search
    ways = (
        ("ranks", f"every step of rank {rank}", picked),
        ("blame", "who waited for it", picked),
        ("whatif", "the run without its slowness", PageState(rank=rank, without=(f"rank:{rank}",)).search),
    )
    links = [Link(text, run_path(run_id, view) + search) for view, text, search in ways]
    return Text(["See ", links[0], ", ", links[1], ", ", links[2], "."], "see")


def _findings(findings: list[Finding]) -> Block:
    rows: list[Block] = []
    for finding in findings[:MAX_FINDINGS]:
        numbers = [
            [Span(name), Span(value, "b"), Span(detail or "", "small")]
            for name, value, detail in ((*reading(item), item.detail) for item in finding.evidence)
        ]
        rows.append(Group([Text(finding.summary), Items(numbers)], "finding"))
    more = len(findings) - MAX_FINDINGS
    if more > 0:
        rows.append(Text(f"… and {wording.count(more, 'more finding')}", "help"))
    return Details(f"Evidence: {wording.count(len(findings), 'finding')}, the most costly first", rows)


def _warnings(warnings: list[str]) -> Block:
    return Group([Heading("What limits the evidence"), Items(warnings)], "warnings", role="note")
