"""Rendering of an analysis for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from rankscope.analysis.report.terminal_costs import (
    advice_text,
    bandwidth_table,
    leak_text,
    memory_text,
    throughput_text,
    waterfall_text,
)
from rankscope.analysis.report.terminal_detail import render_details
from rankscope.analysis.report.terminal_tables import (
    SHOWN_IN_DETAIL,
    host_table,
    imposed_table,
    ledger_table,
    main_table,
    pipeline_table,
    rank_table,
)
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.text import (
    CYAN,
    GREEN,
    RED,
    YELLOW,
    counted,
    excluded_text,
    judged_by,
    listing,
    losses,
    page,
    rare_text,
    saves_text,
    steps_of_verdict,
    warning_lines,
    wrapped,
)
from rankscope.analysis.verdict.bottleneck import HOST_OR_INPUT
from rankscope.base.text import factor

SHOWN_FINDINGS: Final = 3
SHOWN_ACTIONS: Final = 3
"""Number of further findings and actions shown at most without ``--detail``."""

FEW_STEPS: Final = 1000
"""Number of steps below which the fixed cost of the recorder's start weighs in its share."""

_LABEL: Final = 6
"""Columns of the labels of the answer's lines."""

_COLORS: Final = {"straggler": RED, "hang": RED, "balanced": GREEN, "insufficient_data": YELLOW}


def render_text(analysis: Analysis, *, width: int = 100, color: bool = False, detail: bool = False, command: str = "") -> str:
    """Return the answer in a few lines, its source, the ranks or hosts that show it, and advice, in lines of at most ``width``.

    Tables may need 80 columns, and omit columns that do not fit; the JSON has all. With ``detail``, also all other tables, and
    the time breakdown of the ranks for which it is known. ``command``: command that prints this text, unless it is the command
    that the user has just given.
    """
    verdict = analysis.verdict
    more = [] if detail else [f"{command} --detail (all tables)".strip()]
    more += [] if command else ["--format json"]
    further_actions = [action for action in verdict.next[1:] if not _is_page(action)][: None if detail else SHOWN_ACTIONS]
    parts = [
        _answer(analysis, more, width),
        _rare(analysis, width),
        _source(analysis, width, detail=detail),
        *(_detailed_tables(analysis, width) if detail else [main_table(analysis, width)]),
        leak_text(analysis, width),
        _more_findings(analysis, width, None if detail else SHOWN_FINDINGS),
        render_details(analysis, width) if detail else "",
        advice_text(analysis, [*verdict.next[:1], *further_actions], width),
        listing("then", further_actions, width),
    ]
    answer = RED if verdict.failure is not None else _COLORS.get(verdict.kind, CYAN)
    return page(parts, answer if color else None)


def _detailed_tables(analysis: Analysis, width: int) -> list[str]:
    return [
        host_table(analysis, width, SHOWN_IN_DETAIL),
        rank_table(analysis, width, SHOWN_IN_DETAIL),
        imposed_table(analysis, width),
        pipeline_table(analysis, width),
        bandwidth_table(analysis.collectives, width),
        ledger_table(analysis, width),
        waterfall_text(analysis, width),
        throughput_text(analysis, width),
        memory_text(analysis, width),
    ]


def _answer(analysis: Analysis, more: Sequence[str], width: int) -> str:
    """Return the answer: who is at fault, why, what that costs, what to do next, and where more is."""
    verdict = analysis.verdict
    kind = "host or input bound" if verdict.explained_by == HOST_OR_INPUT else verdict.kind.replace("_", " ")
    lines = [kind.upper()]
    if verdict.failure is not None:
        lines = [*textwrap.wrap(f"JOB FAILED: {verdict.failure}", width), f"before that: {kind.upper()}"]
    subject, colon, why = verdict.summary.partition(": ") if verdict.kind == "straggler" else ("", "", "")
    rows = [("who", subject), ("why", why)] if colon else [("what", verdict.summary)]
    rows += [("cost", _cost(analysis)), ("next", verdict.next[0] if verdict.next else ""), ("more", _more(analysis, more))]
    for label, text in rows:
        lines += wrapped(text, width, indent=f"{label:<{_LABEL}}", hanging=" " * _LABEL) if text else []
    return "\n".join(lines)


def _cost(analysis: Analysis) -> str:
    """Return what the verdict costs and how sure it is; what its sentence has already is not repeated."""
    verdict = analysis.verdict
    facts = []
    if verdict.slowdown is not None:
        facts.append(f"slowdown {factor(verdict.slowdown)}")
    facts += losses(verdict.gpu_hours_lost, verdict.cost)
    if facts and (steps := steps_of_verdict(analysis)):
        facts[0] = f"{steps}: {facts[0]}"
    if " saves " not in verdict.summary:
        facts.append(saves_text(verdict.saves, verdict.ranks, verdict.hosts))
    if "costs more than" not in verdict.summary:
        facts.append(excluded_text(verdict))
    if verdict.confidence is not None:
        facts.append(f"confidence {verdict.confidence:.0%}")
    facts.append(judged_by(verdict, analysis.source.world_size))
    return " · ".join(filter(None, facts))


def _more(analysis: Analysis, options: Sequence[str]) -> str:
    """Return the command with the pages of a run, and how to get what is not shown here."""
    pages = [action for action in analysis.verdict.next[1:] if _is_page(action)]
    return " · ".join(filter(None, [*pages, *options]))


def _is_page(action: str) -> bool:
    return action.startswith("rankscope dashboard ")


def _rare(analysis: Analysis, width: int) -> str:
    if analysis.rare_steps is None or analysis.rare_steps.summary in analysis.verdict.summary:
        return ""
    return "\n".join(textwrap.wrap(rare_text(analysis.rare_steps), width, subsequent_indent="  "))


def _source(analysis: Analysis, width: int, *, detail: bool) -> str:
    source = analysis.source
    least = "at least " if source.world_size_is_least else ""
    of_world = f" of {least}{source.world_size}" if source.world_size is not None else ""
    text = f"{counted(source.ranks, 'rank' if source.is_one_job else 'trace')}{of_world}, {counted(source.steps, 'step')}"
    if source.cycle is not None:
        last = ", the last" if source.cycle == source.cycles else ""
        text += f", cycle {source.cycle} of {source.cycles}{last} (--cycle N: another)"
    if source.coverage is not None:
        text += f", coverage {source.coverage:.0%}"
    if source.simulated:
        text += ", GPU readings SIMULATED"
    lines = [source.path, *textwrap.wrap(text, width)]
    exceeded = source.recorder_budget is not None and (source.recorder_share or 0.0) > source.recorder_budget
    if source.recorder_share is not None and (detail or exceeded):
        took = f"{source.recorder_share:.1%}" if source.recorder_share >= 0.0005 else "less than 0.1%"
        allowed = "" if source.recorder_budget is None else f" (budget {source.recorder_budget * 100:.3g}%)"
        if exceeded and source.steps < FEW_STEPS:
            allowed += (
                f": its start and the first profiled steps cost the same in every run, here spread over {source.steps} steps only"
            )
        lines += textwrap.wrap(f"the recorder took {took} of the step time{allowed}", width)
    return "\n".join([*lines, *warning_lines(source.warnings, width)])


def _more_findings(analysis: Analysis, width: int, most: int | None) -> str:
    other_findings = [finding for finding in analysis.findings if finding.summary not in analysis.verdict.summary]
    lines: list[str] = []
    for finding in other_findings[:most]:
        lines += textwrap.wrap(f"also: {finding.summary}", width, subsequent_indent="  ")
    if most is not None and len(other_findings) > most:
        lines.append(f"{counted(len(other_findings) - most, 'more finding')} not shown")
    return "\n".join(lines)
