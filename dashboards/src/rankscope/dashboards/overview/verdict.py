"""Verdict card: summary, evidence, cost, next steps."""

from __future__ import annotations

from dataclasses import replace

from rankscope.analysis.result.analysis import Analysis, Finding, RareSteps, Source, Verdict
from rankscope.analysis.result.text import judged_text, reading, steps_of_verdict
from rankscope.analysis.verdict.bottleneck import HOST_OR_INPUT
from rankscope.analysis.whatif.step_scenarios import MOST_RANKS
from rankscope.base.text import ranges_text, sentence_case, share_bound, shortened
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.data.source import RunSummary
from rankscope.dashboards.model.line import Badge, PageLink, Span, badge
from rankscope.dashboards.model.page import AdviceItem, Block, Details, Fact, Facts, Group, Heading, Inline, Items, Text
from rankscope.dashboards.model.state import PageState, host_item, run_path
from rankscope.dashboards.words import wording
from rankscope.dashboards.words.units import duration

MAX_FINDINGS = 6
_SHOWN_HOSTS = 4


def verdict_card(run: RunSummary, analysis: Analysis) -> list[Block]:
    """Return the content of the verdict's section, most important first."""
    verdict = analysis.verdict
    tone = wording.verdict_tone(verdict.kind, may_be_well=run.may_be_well)
    parts: list[Block] = [
        Inline(_badges(analysis, tone)),
        *([Heading(f"The job failed: {verdict.failure}", 2, "sentence")] if verdict.failure is not None else []),
        Heading(verdict.summary, 2, "sentence" if verdict.failure is None else "sentence small", name="verdict-sentence"),
        Facts(_facts(analysis)),
    ]
    if analysis.rare_steps is not None:
        parts.append(_rare(run.run_id, analysis.rare_steps, analysis.verdict))
    # The reader has the dashboard open already.
    steps = [text for text in verdict.next if not text.startswith("rankscope dashboard")]
    if steps:
        parts.append(Group([Heading("Do next"), *map(AdviceItem, steps)], "next"))
    if verdict.rank is not None and verdict.kind != "hang":
        parts.append(_where_to_see(run.run_id, verdict))
    others = [finding for finding in analysis.findings if finding.summary != verdict.summary]
    if others or any(finding.evidence for finding in analysis.findings):
        parts.append(_findings(analysis.findings))
    if analysis.source.warnings:
        limits = [Heading("What limits the evidence"), Items([sentence_case(warning) for warning in analysis.source.warnings])]
        parts.append(Group(limits, "warnings", role="note"))
    return [Group(parts, f"verdict tone-{tone if verdict.failure is None else 'bad'}")]


def _badges(analysis: Analysis, tone: str) -> list[Badge]:
    verdict = analysis.verdict
    either = verdict.explained_by == HOST_OR_INPUT
    badges = [badge("Host or input bound" if either else wording.KIND_LABELS[verdict.kind], tone=tone)]
    if verdict.cause is not None:
        badges.append(badge(CAUSES[verdict.cause].label, title="Cause"))
    if verdict.explained_by is not None and not either:
        badges.append(badge(f"explained by {verdict.explained_by.replace('_', ' ')}"))
    if verdict.phase is not None:
        badges.append(badge(f"phase {verdict.phase.replace('_', ' ')}", title="The part of the step in which the time is lost"))
    if verdict.pattern is not None:
        badges.append(badge(f"{verdict.pattern} pattern", title="Whether it is always the same rank"))
    badges += _place(analysis)
    return badges


def _place(analysis: Analysis) -> list[Badge]:
    """Return badges with the hosts at fault and their ranks; else with rank, host and GPU of the blamed rank, or the ranks."""
    verdict = analysis.verdict
    if verdict.hosts:
        more = len(verdict.hosts) - _SHOWN_HOSTS
        hosts = [badge(f"host {host}", tone="emphasis", title="At fault as a whole") for host in verdict.hosts[:_SHOWN_HOSTS]]
        several = "s" if len(verdict.ranks) > 1 else ""
        ranks = [badge(f"rank{several} {ranges_text(verdict.ranks)}")] if verdict.ranks else []
        return [*hosts, *([badge(f"and {wording.count(more, 'more host')}")] if more > 0 else []), *ranks]
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
        places.append(badge(shortened(uuid, 16), title=f"GPU {uuid}"))
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
            Fact("Slowdown", wording.slowdown(verdict.slowdown), why="Step time as it is over step time without the cause")
        )
    if verdict.saves is not None:
        low, high = (max(0.0, bound) for bound in verdict.saves)
        facts.append(
            Fact(
                "Healing saves",
                f"{share_bound(low, upper=False)} to {share_bound(high, upper=True)}",
                why="Of the typical step, if what is named were as fast as the others: the interval that the data support",
                detail="of the typical step",
            )
        )
    if verdict.costs_at_most is not None:
        facts.append(
            Fact(
                "Any rank or host costs",
                f"at most {share_bound(verdict.costs_at_most, upper=True)}",
                why="The data exclude that a rank or host costs more",
                detail="of the typical step",
            )
        )
    on_gpus = any(rank.device_kind != "cpu" for rank in analysis.ranks)
    if verdict.gpu_hours_lost is not None or (slow and on_gpus):
        facts.append(
            Fact(
                "GPU time lost",
                wording.gpu_hours(verdict.gpu_hours_lost),
                why="Excess time x number of ranks, so far",
                detail=steps_of_verdict(analysis) or None,
            )
        )
    if verdict.cost is not None:
        facts.append(Fact("Cost so far", wording.money(verdict.cost.amount, verdict.cost.currency)))
    facts += [
        _judged_by(verdict, source),
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


def _judged_by(verdict: Verdict, source: Source) -> Fact:
    why = f"Which records the verdict rests on, of the ranks that were compared: {_steps(verdict, source)}"
    judged = judged_text(verdict, source.world_size) or _steps(verdict, source)
    if verdict.evidence_source is None:
        return Fact("Judged by", judged, why=why)
    return Fact("Judged by", wording.EVIDENCE[verdict.evidence_source], why=why, detail=judged)


def _steps(verdict: Verdict, source: Source) -> str:
    if verdict.steps is None or verdict.steps[1] <= verdict.steps[0]:
        return wording.count(source.steps, "step")
    return f"steps {verdict.steps[0]} to {verdict.steps[1] - 1}"


def _rare(run_id: str, rare: RareSteps, verdict: Verdict) -> Block:
    """Return what rare steps cost, with a link to them. The verdict is about the other, typical steps."""
    text = [] if rare.summary in verdict.summary else [Text(rare.summary)]
    share = f"{rare.share:.0%}" if rare.share >= 0.0995 else f"{rare.share:.1%}"
    shown = PageState(rank=rare.rank, steps=(rare.steps[0], rare.steps[-1])).search if rare.steps else ""
    facts = [
        Fact("Share of the run's time", share, meter=rare.share, detail="beyond as many typical steps"),
        Fact("Rare steps", f"{rare.count:,}", detail=f"of {wording.count(rare.of_steps, 'step')}"),
        Fact("The longest", duration(rare.longest_us), detail=f"typical: {duration(rare.typical_us)}"),
    ]
    blocks: list[Block] = [Heading("Rare steps beside the typical one"), *text, Facts(facts)]
    if rare.steps:
        blocks.append(Text(["See ", PageLink("these steps of all ranks", run_path(run_id, "ranks") + shown), "."], "see"))
    return Group(blocks, "rare")


def _where_to_see(run_id: str, verdict: Verdict) -> Block:
    """Return links to the views of the verdict's evidence, with the blamed rank picked."""
    several = len(verdict.hosts) > 1
    blamed = ("the hosts" if several else f"host {shortened(verdict.hosts[0], 40)}") if verdict.hosts else f"rank {verdict.rank}"
    picked = PageState(rank=verdict.rank)
    ways = (
        ("ranks", f"every step of {blamed}", picked.search),
        ("delays", f"who waited for {'them' if several else 'it'}", picked.search),
        (
            "whatif",
            f"the run without {'their' if several else 'its'} slowness",
            replace(picked, without=_without(verdict)).search,
        ),
    )
    links = [PageLink(text, run_path(run_id, view) + search) for view, text, search in ways]
    return Text(["See ", links[0], ", ", links[1], ", ", links[2], "."], "see")


def _without(verdict: Verdict) -> tuple[str, ...]:
    """Return the items to remove in the what-if: the hosts at fault, if it can remove so many ranks, else the worst rank."""
    if not verdict.hosts:
        return (f"rank:{verdict.rank}",)
    return tuple(map(host_item, verdict.hosts)) if len(verdict.hosts) == 1 or len(verdict.ranks) <= MOST_RANKS else ()


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
