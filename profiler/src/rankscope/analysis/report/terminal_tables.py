"""Tables of ranks, hosts and waits of an analysis for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from typing import Final

from rankscope.analysis.result.analysis import Analysis, RankResult
from rankscope.analysis.result.hosts import HostResult, hosts_of
from rankscope.analysis.result.text import UNKNOWN, aligned, cell, counted, fitting, share_cell, table, units_text
from rankscope.base.text import format_duration, ranges_text, shortened

SHOWN_ROWS: Final = 10
"""Number of ranks or hosts shown at most."""

SHOWN_IN_DETAIL: Final = 64
"""Number of ranks or hosts shown at most with ``--detail``; the JSON has all of them."""

SHOWN_IMPOSING: Final = 8
"""Number of ranks with imposed wait shown at most."""

SHOWN_STAGES: Final = 16
"""Number of pipeline stages shown at most."""

SHOWN_ORIGINS: Final = 4
SHOWN_VICTIMS: Final = 8
"""Number of origins (rows) and victims (columns) shown at most in the wait attribution; the JSON has more."""

_TRUNCATED: Final = "*"
_OF_WHAT_IS_LEFT: Final = "of what is left of its trace, and in no mean; what is missing is not known, which is not zero"
_AT_FAULT: Final = "<"
_DISPENSABLE: Final = ("copies", "overlap", "hidden")
"""Columns dropped on a narrow terminal, in this order."""
_DISPENSABLE_OF_HOSTS: Final = ("ranks", "blocked/step")


def main_table(analysis: Analysis, width: int) -> str:
    """Return the table that shows the verdict: stages of a pipeline, hosts where it names hosts of a large job, else ranks."""
    if analysis.verdict.kind == "pipeline_bubble" and analysis.pipeline is not None:
        return pipeline_table(analysis, width)
    hosts = host_table(analysis, width) if analysis.verdict.hosts else ""
    return hosts or rank_table(analysis, width)


def host_table(analysis: Analysis, width: int, most: int = SHOWN_ROWS) -> str:
    """Return the hosts at fault, then those that impose most wait; empty for a small job, one host, or one rank per host."""
    hosts = hosts_of(analysis)
    if len(analysis.ranks) <= SHOWN_ROWS or len(hosts) < 2 or len(hosts) == len(analysis.ranks):
        return ""
    stepped = any(row.own_us is not None for row in hosts)
    header = ["host", "ranks", "imposed"]
    if stepped:
        header += ["own/step", "worst rank", "blocked/step"]
    shown = sorted(hosts, key=_prominence)[:most]
    rows = [header, *(_host_row(row, stepped=stepped) for row in shown)]
    lines = aligned(fitting(rows, width, _DISPENSABLE_OF_HOSTS), left_columns=(0,))
    legend = "imposed: share of all imposed wait"
    if stepped:
        legend += "; own and blocked: medians over the ranks of the host; worst rank: at fault, or with the longest own time"
    if any(row.at_fault for row in shown):
        legend = f"{_AT_FAULT} at fault; {legend}"
    lines += textwrap.wrap(legend, width)
    if len(shown) < len(hosts):
        lines.append(_not_shown(len(hosts) - len(shown), "host", most))
    return "\n".join(lines)


def _not_shown(count: int, noun: str, most: int) -> str:
    text = f"{counted(count, f'more {noun}')} not shown"
    return f"{text}; --format json has all" if most == SHOWN_IN_DETAIL else text


def _prominence(row: HostResult) -> tuple[bool, float, float]:
    return not row.at_fault, -(row.imposed_share or 0.0), -(row.own_us or 0.0)


def _host_row(row: HostResult, *, stepped: bool) -> list[str]:
    name = shortened(row.host, 24) + (f" {_AT_FAULT}" if row.at_fault else "")
    cells = [name, ranges_text(row.ranks, most=3), cell(row.imposed_share, ".1%")]
    if stepped:
        worst = f"{row.worst}: {cell(row.worst_own_us, format_duration)}"
        cells += [cell(row.own_us, format_duration), worst, cell(row.blocked_us, format_duration)]
    return cells


def rank_table(analysis: Analysis, width: int, most: int = SHOWN_ROWS) -> str:
    """Return all ranks of a small job; else the ranks at fault, then those with the longest own time."""
    verdict = analysis.verdict
    at_fault: set[int] = set() if verdict.pattern == "rotating" else set(verdict.ranks)
    shown = _shown_ranks(analysis, at_fault, most)
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
    longest = max(len(_marks(row, at_fault)) for row in shown)
    for row in shown:
        cells = [f"{row.rank}{_marks(row, at_fault):<{longest}}", cell(row.host, lambda host: shortened(host, 20))]
        if profiled:
            parts = (row.compute_us, row.overlap_us, row.exposed_communication_us, row.exposed_memcpy_us, row.idle_us)
            cells += [*(share_cell(part, row.window_us) for part in parts), cell(row.overlap_ratio, ".0%")]
        if stepped:
            cells += [cell(row.own_us, format_duration), cell(row.blocked_us, format_duration)]
        rows.append(cells)
    rows = fitting(rows, width, _DISPENSABLE)
    lines = aligned(rows, left_columns=(1,))
    named = f"{_AT_FAULT} at fault" if any(row.rank in at_fault for row in shown) else ""
    if legend := "; ".join(filter(None, [named, _legend(rows[0])])):
        lines += textwrap.wrap(legend, width)
    if any(row.truncated for row in shown):
        lines += textwrap.wrap(f"{_TRUNCATED} incomplete: {_OF_WHAT_IS_LEFT}", width)
    if len(shown) < len(analysis.ranks):
        lines.append(_not_shown(len(analysis.ranks) - len(shown), "rank", most))
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


def _shown_ranks(analysis: Analysis, at_fault: Collection[int], most: int) -> list[RankResult]:
    if len(analysis.ranks) <= most:
        return analysis.ranks
    return sorted(analysis.ranks, key=lambda row: (row.rank not in at_fault, -(row.own_us if row.own_us is not None else -1.0)))[
        :most
    ]


def _marks(row: RankResult, at_fault: Collection[int]) -> str:
    return (_TRUNCATED if row.truncated else "") + (f" {_AT_FAULT}" if row.rank in at_fault else "")


def imposed_table(analysis: Analysis, width: int) -> str:
    """Return the ranks that impose most wait; empty where the verdict names no rank."""
    rows = [row for row in analysis.imposed_wait if row.imposed_us > 0]
    if not rows or not analysis.verdict.ranks:
        return ""
    cells = [["rank", "imposed", "exposed", "share"]]
    for row in rows[:SHOWN_IMPOSING]:
        times = (cell(row.imposed_us, format_duration), cell(row.imposed_exposed_us, format_duration))
        cells.append([str(row.rank), *times, cell(row.share, ".1%")])
    sources = {"steps": "step records", "windows": "collectives of the profiled steps", "traces": "collectives"}
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
    evidence = (row for finding in analysis.findings for row in finding.evidence)
    imposed_wait = next((row for row in evidence if row.name == "imposed_wait"), None)
    if verdict.kind != "straggler" or imposed_wait is None or not (imposed_wait.detail or "").startswith("per step"):
        return ""
    hosts = {row.rank: row.host for row in analysis.ranks if row.host is not None}
    named_text = units_text(verdict.ranks, hosts, verdict.hosts)
    return f"imposed wait of {named_text}: {format_duration(imposed_wait.value)} {imposed_wait.detail} (from step records)"


def _clocks(analysis: Analysis) -> str:
    """Return a note on clocks that drifted or were set, which an administrator may want to fix; empty without any."""
    clocks = [(row.clock, row.rank) for row in analysis.ranks if row.clock is not None]
    drift, rank = max(((abs(clock.drift_ppm or 0.0), rank) for clock, rank in clocks), default=(0.0, 0))
    drift_text = f"; clocks drift, that of rank {rank} most, by {drift:.3g} us per second: corrected" if drift else ""
    set_anew = [rank for clock, rank in clocks if clock.settings > 1]
    return drift_text + (f"; {counted(len(set_anew), 'rank')} with a clock that was set meanwhile: corrected" if set_anew else "")


def pipeline_table(analysis: Analysis, width: int) -> str:
    """Return the stages of a pipeline with their waiting."""
    pipeline = analysis.pipeline
    if pipeline is None:
        return ""
    cells = [["stage", "ranks", "busy/step", "waits"]]
    cells += [
        [str(stage.stage), str(len(stage.ranks)), format_duration(stage.busy_us), f"{stage.bubble:.1%}"]
        for stage in pipeline.stages[:SHOWN_STAGES]
    ]
    schedule = pipeline.schedule or "of an unknown schedule"
    of = f", {pipeline.microbatches} micro-batches" if pipeline.microbatches is not None else ""
    ideal = f", {pipeline.ideal_bubble:.1%} with equal stages" if pipeline.ideal_bubble is not None else ""
    lines = textwrap.wrap(f"pipeline {schedule}{of}: waits {pipeline.bubble:.1%} of the step{ideal}", width)
    return "\n".join([*lines, *table(cells, len(pipeline.stages))])


def ledger_table(analysis: Analysis, width: int) -> str:
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
    lines += aligned(cells, left_columns=(0,))
    hidden_victims = len({victim for _, victim in waited}) - (len(cells[0]) - 1)
    if hidden_victims > 0 or ledger.rest.rows:
        lines += textwrap.wrap("more ranks waited; --format json has the largest amounts and the sum of the rest", width)
    if ledger.groups > 1:
        for group in [group_wait for group_wait in ledger.by_group if group_wait.worst is not None][:SHOWN_ORIGINS]:
            members = ", ".join(map(str, group.ranks[:8])) + (", …" if group.size > 8 else "")
            text = f"group {group.group or UNKNOWN} ({members}): {format_duration(group.imposed_exposed_us)}"
            lines += textwrap.wrap(f"{text}, most because of rank {group.worst}", width, subsequent_indent="  ")
    return "\n".join(lines)
