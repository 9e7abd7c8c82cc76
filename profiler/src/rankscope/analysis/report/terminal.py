"""Rendering of an analysis for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from rankscope.analysis.report.terminal_costs import advice_text, bandwidth_table, memory_text, throughput_text, waterfall_text
from rankscope.analysis.report.terminal_detail import render_details
from rankscope.analysis.result.analysis import Analysis, RankResult
from rankscope.analysis.result.hosts import HostResult, hosts_of
from rankscope.analysis.result.text import (
    CYAN,
    GREEN,
    RED,
    UNKNOWN,
    YELLOW,
    aligned,
    cell,
    counted,
    excluded_text,
    fitting,
    judged_text,
    listing,
    losses,
    page,
    rare_text,
    saves_text,
    share_cell,
    steps_of_verdict,
    table,
    units_text,
    warning_lines,
    wrapped,
)
from rankscope.analysis.verdict.bottleneck import HOST_OR_INPUT
from rankscope.base.text import factor, format_duration, ranges_text, shortened

SHOWN_RANKS: Final = 16
"""Number of ranks shown at most; the JSON has all of them."""

SHOWN_HOSTS: Final = 8
"""Number of hosts shown at most, where there are more ranks than shown."""

SHOWN_IMPOSING: Final = 8
"""Number of ranks with imposed wait shown at most."""

SHOWN_ORIGINS: Final = 4
SHOWN_VICTIMS: Final = 8
"""Number of origins (rows) and victims (columns) shown at most in the wait attribution; the JSON has more."""

FEW_STEPS: Final = 1000
"""Number of steps below which the fixed cost of the recorder's start weighs in its share."""

_LABEL: Final = 6
"""Columns of the labels of the answer's lines."""

_COLORS: Final = {"straggler": RED, "hang": RED, "balanced": GREEN, "insufficient_data": YELLOW}
_TRUNCATED: Final = "*"
_OF_WHAT_IS_LEFT: Final = "of what is left of its trace, and in no mean; what is missing is not known, which is not zero"
_AT_FAULT: Final = "<"
_DISPENSABLE: Final = ("copies", "overlap", "hidden")
"""Columns dropped on a narrow terminal, in this order."""
_DISPENSABLE_OF_HOSTS: Final = ("ranks", "blocked/step")


def render_text(analysis: Analysis, *, width: int = 100, color: bool = False, detail: bool = False) -> str:
    """Return the answer in a few lines, then its source, tables and advice, in lines of at most ``width`` columns.

    Tables may need 80 columns.

    With ``detail``, also the time breakdown of the ranks for which it is known. Tables omit columns that do not fit; the JSON
    has all.
    """
    parts = [
        _answer(analysis, width),
        _rare(analysis, width),
        _source(analysis, width),
        _host_table(analysis, width),
        _rank_table(analysis, width),
        _imposed_table(analysis, width),
        _pipeline_table(analysis, width),
        bandwidth_table(analysis.collectives, width),
        _ledger_table(analysis, width),
        waterfall_text(analysis, width),
        throughput_text(analysis, width),
        memory_text(analysis, width),
        _more_findings(analysis, width),
        render_details(analysis, width) if detail else "",
        advice_text(analysis, width),
        listing("then", [action for action in analysis.verdict.next[1:] if not _is_page(action)], width),
    ]
    answer = RED if analysis.verdict.failure is not None else _COLORS.get(analysis.verdict.kind, CYAN)
    return page(parts, answer if color else None)


def _answer(analysis: Analysis, width: int) -> str:
    """Return the answer: who is at fault, why, what that costs, what to do next, and where more is."""
    verdict = analysis.verdict
    kind = "host or input bound" if verdict.explained_by == HOST_OR_INPUT else verdict.kind.replace("_", " ")
    lines = [kind.upper()]
    if verdict.failure is not None:
        lines = [*textwrap.wrap(f"JOB FAILED: {verdict.failure}", width), f"before that: {kind.upper()}"]
    who, colon, why = verdict.summary.partition(": ") if verdict.kind == "straggler" else ("", "", "")
    rows = [("who", who), ("why", why)] if colon else [("what", verdict.summary)]
    rows += [("cost", _cost(analysis)), ("next", verdict.next[0] if verdict.next else ""), ("more", _more(analysis))]
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
        facts.append(saves_text(verdict))
    if "costs more than" not in verdict.summary:
        facts.append(excluded_text(verdict))
    if verdict.confidence is not None:
        facts.append(f"confidence {verdict.confidence:.0%}")
    if judged := judged_text(verdict, analysis.source.world_size):
        facts.append(f"judged: {judged}")
    if verdict.evidence_source is not None:
        facts.append(f"judged by {verdict.evidence_source.replace('_', ' ')}")
    return " · ".join(filter(None, facts))


def _more(analysis: Analysis) -> str:
    """Return the command with the pages of a run, and the options with more than the text below."""
    pages = [action for action in analysis.verdict.next[1:] if _is_page(action)]
    return " · ".join([*pages, "the tables below", "--detail", "--format json"])


def _is_page(action: str) -> bool:
    return action.startswith("rankscope dashboard ")


def _rare(analysis: Analysis, width: int) -> str:
    if analysis.rare_steps is None or analysis.rare_steps.summary in analysis.verdict.summary:
        return ""
    return "\n".join(textwrap.wrap(rare_text(analysis.rare_steps), width, subsequent_indent="  "))


def _source(analysis: Analysis, width: int) -> str:
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
    if source.recorder_share is not None:
        took = f"{source.recorder_share:.1%}" if source.recorder_share >= 0.0005 else "less than 0.1%"
        allowed = "" if source.recorder_budget is None else f" (budget {source.recorder_budget * 100:.3g}%)"
        if source.recorder_budget is not None and source.recorder_share > source.recorder_budget and source.steps < FEW_STEPS:
            allowed += (
                f": its start and the first profiled steps cost the same in every run, here spread over {source.steps} steps only"
            )
        lines += textwrap.wrap(f"the recorder took {took} of the step time{allowed}", width)
    return "\n".join([*lines, *warning_lines(source.warnings, width)])


def _host_table(analysis: Analysis, width: int) -> str:
    """Return the hosts at fault, then those that impose most wait; empty for a small job, one host, or one rank per host."""
    hosts = hosts_of(analysis)
    if len(analysis.ranks) <= SHOWN_RANKS or len(hosts) < 2 or len(hosts) == len(analysis.ranks):
        return ""
    stepped = any(row.own_us is not None for row in hosts)
    header = ["host", "ranks", "imposed"]
    if stepped:
        header += ["own/step", "worst rank", "blocked/step"]
    shown = sorted(hosts, key=_prominence)[:SHOWN_HOSTS]
    rows = [header, *(_host_row(row, stepped=stepped) for row in shown)]
    lines = aligned(fitting(rows, width, _DISPENSABLE_OF_HOSTS), left=(0,))
    legend = "imposed: share of all imposed wait"
    if stepped:
        legend += "; own and blocked: medians over the ranks of the host; worst rank: at fault, or with the longest own time"
    if any(row.at_fault for row in shown):
        legend = f"{_AT_FAULT} at fault; {legend}"
    lines += textwrap.wrap(legend, width)
    if len(shown) < len(hosts):
        lines.append(f"{counted(len(hosts) - len(shown), 'more host')} not shown")
    return "\n".join(lines)


def _prominence(row: HostResult) -> tuple[bool, float, float]:
    return not row.at_fault, -(row.imposed_share or 0.0), -(row.own_us or 0.0)


def _host_row(row: HostResult, *, stepped: bool) -> list[str]:
    name = shortened(row.host, 24) + (f" {_AT_FAULT}" if row.at_fault else "")
    cells = [name, ranges_text(row.ranks, most=3), cell(row.imposed_share, ".1%")]
    if stepped:
        worst = f"{row.worst}: {cell(row.worst_own_us, format_duration)}"
        cells += [cell(row.own_us, format_duration), worst, cell(row.blocked_us, format_duration)]
    return cells


def _rank_table(analysis: Analysis, width: int) -> str:
    shown = _interesting(analysis)
    if not shown:
        return ""
    profiled = any(row.window_us is not None for row in shown)
    stepped = any(row.wall_us is not None for row in shown)
    header = ["rank", "host"]
    if profiled:
        header += ["compute", "overlap", "exposed", "copies", "idle", "hidden"]
    if stepped:
        header += ["own/step", "blocked/step"]
    rows = [header]
    for row in shown:
        cells = [f"{row.rank}{_TRUNCATED if row.truncated else ''}", cell(row.host, lambda host: shortened(host, 20))]
        if profiled:
            parts = (row.compute_us, row.overlap_us, row.exposed_communication_us, row.exposed_memcpy_us, row.idle_us)
            cells += [*(share_cell(part, row.window_us) for part in parts), cell(row.overlap_ratio, ".0%")]
        if stepped:
            cells += [cell(row.own_us, format_duration), cell(row.blocked_us, format_duration)]
        rows.append(cells)
    rows = fitting(rows, width, _DISPENSABLE)
    lines = aligned(rows, left=(1,))
    if profiled or stepped:
        lines += textwrap.wrap(_legend(rows[0]), width)
    if any(row.truncated for row in shown):
        lines += textwrap.wrap(f"{_TRUNCATED} incomplete: {_OF_WHAT_IS_LEFT}", width)
    if len(shown) < len(analysis.ranks):
        lines += textwrap.wrap(
            f"{counted(len(analysis.ranks) - len(shown), 'more rank')} not shown; --format json has all", width
        )
    return "\n".join(lines)


def _legend(header: Sequence[str]) -> str:
    """Return the explanation of the shown columns."""
    parts = ["of the profiled window"] if "compute" in header else []
    if "overlap" in header:
        parts.append("overlap is communication under compute, hidden its share of all communication")
    elif "hidden" in header:
        parts.append("hidden is the share of communication under compute")
    if "own/step" in header:
        parts.append("own and blocked are medians over the steps, which need not add up")
    return "; ".join(parts)


def _interesting(analysis: Analysis) -> list[RankResult]:
    """Return all ranks of a small job; else the named ranks, those that impose most wait, and the slowest, in order of rank."""
    if len(analysis.ranks) <= SHOWN_RANKS:
        return analysis.ranks
    slowest = sorted(analysis.ranks, key=lambda row: -(row.own_us if row.own_us is not None else -1.0))
    order = [
        *analysis.verdict.ranks,
        *(row.rank for row in analysis.imposed_wait[: SHOWN_RANKS // 2] if row.imposed_us > 0),
        *(row.rank for row in slowest),
    ]
    chosen = set(list(dict.fromkeys(order))[:SHOWN_RANKS])
    return [row for row in analysis.ranks if row.rank in chosen]


def _imposed_table(analysis: Analysis, width: int) -> str:
    rows = [row for row in analysis.imposed_wait if row.imposed_us > 0]
    if not rows or not analysis.verdict.ranks:
        return ""
    cells = [["rank", "imposed", "exposed", "share"]]
    for row in rows[:SHOWN_IMPOSING]:
        times = (cell(row.imposed_us, format_duration), cell(row.imposed_exposed_us, format_duration))
        cells.append([str(row.rank), *times, cell(row.share, ".1%")])
    sources = {
        "steps": "step records",
        "windows": "collectives of the profiled steps",
        "traces": "collectives",
    }
    where = sources.get(analysis.imposed_wait_source or "steps", "durations of collectives")
    title = f"imposed wait, summed over the ranks that waited (from {where})"
    lines = [*textwrap.wrap(title, width), *table(cells, len(rows))]
    lines += textwrap.wrap(_imposed_per_step(analysis), width)
    if analysis.collectives.matched:
        residual = analysis.collectives.clock_residual_us
        agree = f"; ends agree within {format_duration(residual)}" if residual is not None else ""
        matched = f"{counted(analysis.collectives.matched, 'collective')} matched, {analysis.collectives.unmatched} not{agree}"
        matched += _clocks(analysis)
        lines += textwrap.wrap(matched, width)
    return "\n".join(lines)


def _imposed_per_step(analysis: Analysis) -> str:
    """Return the imposed wait of the named ranks in the unit of the verdict's sentence; empty where no finding has it."""
    verdict = analysis.verdict
    found = next((one for finding in analysis.findings for one in finding.evidence if one.name == "imposed_wait"), None)
    if verdict.kind != "straggler" or found is None or found.detail is None or not found.detail.startswith("per step"):
        return ""
    hosts = {row.rank: row.host for row in analysis.ranks if row.host is not None}
    whose = units_text(verdict.ranks, hosts, verdict.hosts)
    return f"imposed wait of {whose}: {format_duration(found.value)} {found.detail} (from step records)"


def _clocks(analysis: Analysis) -> str:
    """Return a note on clocks that drifted or were set, which an administrator may want to fix; empty without any."""
    clocks = [(row.clock, row.rank) for row in analysis.ranks if row.clock is not None]
    drift, rank = max(((abs(clock.drift_ppm or 0.0), rank) for clock, rank in clocks), default=(0.0, 0))
    said = f"; clocks drift, that of rank {rank} most, by {drift:.3g} us per second: corrected" if drift else ""
    set_anew = [rank for clock, rank in clocks if clock.settings > 1]
    return said + (f"; {counted(len(set_anew), 'rank')} with a clock that was set meanwhile: corrected" if set_anew else "")


def _pipeline_table(analysis: Analysis, width: int) -> str:
    found = analysis.pipeline
    if found is None:
        return ""
    cells = [["stage", "ranks", "busy/step", "waits"]]
    cells += [
        [str(one.stage), str(len(one.ranks)), format_duration(one.busy_us), f"{one.bubble:.1%}"]
        for one in found.stages[:SHOWN_RANKS]
    ]
    schedule = found.schedule or "of an unknown schedule"
    of = f", {found.microbatches} micro-batches" if found.microbatches is not None else ""
    ideal = f", {found.ideal_bubble:.1%} with equal stages" if found.ideal_bubble is not None else ""
    uneven = f"; busiest micro-batch {found.microbatch_imbalance:+.0%}" if found.microbatch_imbalance is not None else ""
    lines = textwrap.wrap(f"pipeline {schedule}{of}: waits {found.bubble:.1%} of the step{ideal}{uneven}", width)
    return "\n".join([*lines, *table(cells, len(found.stages))])


def _ledger_table(analysis: Analysis, width: int) -> str:
    """Return the wait attribution: the worst origins in rows, their victims in as many columns as fit; then the groups."""
    ledger = analysis.ledger
    if ledger is None or len(ledger.matrix) < 2 or not analysis.verdict.ranks:
        return ""
    waited: dict[tuple[int, int], float] = {}
    for row in ledger.matrix:
        waited[row.origin, row.victim] = waited.get((row.origin, row.victim), 0.0) + row.imposed_exposed_us
    origins = list(dict.fromkeys(origin for origin, _ in waited))[:SHOWN_ORIGINS]
    victims = sorted(list(dict.fromkeys(victim for origin, victim in waited if origin in origins))[:SHOWN_VICTIMS])
    cells = [
        ["", *(f"rank {victim}" for victim in victims)],
        *([f"rank {origin}", *(cell(waited.get((origin, victim)), format_duration) for victim in victims)] for origin in origins),
    ]
    while len(cells[0]) > 2 and max(map(len, aligned(cells))) > width:
        cells = [row[:-1] for row in cells]
    lines = textwrap.wrap("who waited (columns) because of whom (rows), as far as no compute hid it", width)
    lines += aligned(cells, left=(0,))
    left = len({victim for _, victim in waited}) - (len(cells[0]) - 1)
    if left > 0 or ledger.rest.rows:
        lines += textwrap.wrap("more ranks waited; --format json has the largest amounts and the sum of the rest", width)
    if ledger.groups > 1:
        for group in [one for one in ledger.by_group if one.worst is not None][:SHOWN_ORIGINS]:
            members = ", ".join(map(str, group.ranks[:8])) + (", …" if group.size > 8 else "")
            text = f"group {group.group or UNKNOWN} ({members}): {format_duration(group.imposed_exposed_us)}"
            lines += textwrap.wrap(f"{text}, most because of rank {group.worst}", width, subsequent_indent="  ")
    return "\n".join(lines)


def _more_findings(analysis: Analysis, width: int) -> str:
    rest = [finding for finding in analysis.findings if finding.summary not in analysis.verdict.summary]
    lines: list[str] = []
    for finding in rest:
        lines += textwrap.wrap(f"also: {finding.summary}", width, subsequent_indent="  ")
    return "\n".join(lines)
