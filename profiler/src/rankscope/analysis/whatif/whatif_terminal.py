"""Rendering of the answer for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from rankscope.analysis.costs.rare_steps import MATTERS
from rankscope.analysis.result.text import (
    GREEN,
    RED,
    UNKNOWN,
    YELLOW,
    aligned,
    counted,
    fitting,
    hours_text,
    losses,
    page,
    warning_lines,
    wrapped,
)
from rankscope.analysis.whatif.outcome import hosts_slow_together, loss_beyond_graph
from rankscope.analysis.whatif.whatif_result import CauseEffect, Effect, WhatIf
from rankscope.base.text import factor, format_duration, share_bound

SHOWN: Final = 9
"""Maximum rows of a table in a terminal; the JSON has all rows."""

_DISPENSABLE: Final = ("GPU-hours", "share")
"""Columns that are dropped on a narrow terminal, in this order."""

_CLEAR_SLOWDOWN: Final = 1.03
"""Slowdown from which the headline is a warning; the paper examines jobs from this value on."""

_EVIDENCE: Final = {
    "operations": "traced operations",
    "steps": "step records",
    "windows": "collectives of profiled steps",
    "traces": "collectives in the traces",
}


def render_text(result: WhatIf, *, width: int = 100, color: bool = False) -> str:
    """Render the headline, the source and a table for each kind of part, in lines of at most ``width`` columns."""
    tables = [
        _table("without", _ranks(result), width),
        _table("host", [(f"{row.host} ({counted(len(row.ranks), 'rank')})", row) for row in result.by_host], width),
        _table("data-parallel rank", [(str(row.dp_rank), row) for row in result.by_dp_rank], width),
        _table("stage", [(str(row.stage), row) for row in result.by_stage], width),
        _table("phase" if result.source.evidence == "steps" else "operation", [(row.op, row) for row in result.by_op], width),
        _table("cause", [(row.cause, row) for row in _causes(result)], width),
    ]
    parts = [_headline(result, width), _source(result, width), *tables, _legend(result, width)]
    slow = result.slowdown
    unsure = (result.source.rare_share or 0.0) >= MATTERS or loss_beyond_graph(result) is not None
    chosen = RED if slow is not None and slow >= _CLEAR_SLOWDOWN else YELLOW if slow is None or unsure else GREEN
    return page(parts, chosen if color else None)


def _headline(result: WhatIf, width: int) -> str:
    title = "INSUFFICIENT DATA" if result.slowdown is None else f"SLOWDOWN {factor(result.slowdown)}"
    facts = losses(result.gpu_hours_lost, result.cost)
    facts[:1] = [f"{fact} to all stragglers" for fact in facts[:1]]
    if result.m_worker is not None:
        facts.append(f"{_percent(result.m_worker)} by the slowest 3% of ranks (M_W)")
    if result.m_stage is not None:
        facts.append(f"{_percent(result.m_stage)} by the last stage (M_S)")
    return "\n".join([title, *wrapped(result.summary, width), *wrapped(" · ".join(facts), width)])


def _plain(value: float) -> str:
    """Format with two decimals, and zero without a minus sign."""
    return f"{round(value, 2) + 0.0:.2f}"


def _percent(share: float) -> str:
    return f"{round(100 * share)}%"


def _source(result: WhatIf, width: int) -> str:
    source = result.source
    lines = [source.path]
    steps = counted(source.steps, "typical step" if source.evidence == "steps" else "step")
    if source.rare_steps:
        steps += f" ({counted(source.rare_steps, 'rare step')} left out)"
    about = f"{counted(source.ranks, 'rank')}, {steps}"
    if source.evidence is not None:
        about += f", from {_EVIDENCE[source.evidence]}"
    if result.measured_step_seconds is not None and result.step_seconds is not None:
        measured, played = format_duration(result.measured_step_seconds * 1e6), format_duration(result.step_seconds * 1e6)
        about += f"; a step took {measured}, the graph plays {played}"
    if source.estimated_share:
        about += f"; {share_bound(source.estimated_share, upper=True)} of the ranks' steps are not recorded, and estimated"
    if source.simulated:
        about += ", GPU readings SIMULATED"
    return "\n".join([*lines, *textwrap.wrap(about, width), *warning_lines(source.warnings, width)])


def _ranks(result: WhatIf) -> list[tuple[str, Effect]]:
    """Return the rows of ranks; ranks of a host that are slow together have one row."""
    hosts = hosts_slow_together(result)
    on_hosts = {rank for host in hosts for rank in host.ranks}
    rows: list[tuple[str, Effect]] = [(f"host {row.host}", row) for row in hosts]
    rows += [(f"rank {row.rank}{_place(row.stage, row.dp_rank)}", row) for row in result.by_rank if row.rank not in on_hosts]
    return sorted(rows, key=lambda row: -row[1].slowdown)


def _place(stage: int | None, replica: int | None) -> str:
    return "" if stage is None or replica is None else f" (stage {stage}, dp {replica})"


def _table(title: str, rows: Sequence[tuple[str, Effect]], width: int) -> str:
    """Render one line per part, without columns that are unknown for all parts or that do not fit."""
    if not rows:
        return ""
    shown = rows[:SHOWN]
    effects = [row for _, row in shown]
    lost = [row.lost_seconds for row in effects if isinstance(row, CauseEffect)]
    # Causes have shares that add up, of the time that is lost to them; other parts overlap.
    shares = [row.lost_share if isinstance(row, CauseEffect) else row.share for row in effects]
    columns = {
        title: [name for name, _ in shown],
        "lost to it": [format_duration(seconds * 1e6) for seconds in lost] or [UNKNOWN] * len(shown),
        "slowdown": [factor(row.slowdown) for row in effects],
        "step without": [format_duration(row.without_step_seconds * 1e6) for row in effects],
        "saved": [_signed(row.saved_seconds) for row in effects],
        "share": [UNKNOWN if share is None else f"{share:.1%}" for share in shares],
        "GPU-hours": [UNKNOWN if row.gpu_hours_lost is None else hours_text(row.gpu_hours_lost) for row in effects],
        "cost": [UNKNOWN if row.cost is None else _plain(row.cost.amount) for row in effects],
    }
    known_columns = {name: cells for name, cells in columns.items() if name == title or set(cells) != {UNKNOWN}}
    table = [list(known_columns), *map(list, zip(*known_columns.values(), strict=True))]
    lines = aligned(fitting(table, width, _DISPENSABLE), left_columns=(0,))
    if len(rows) > SHOWN:
        lines += textwrap.wrap(f"{len(rows) - SHOWN} more not shown; --format json has them", width)
    return "\n".join(lines)


def _causes(result: WhatIf) -> list[CauseEffect]:
    """Return the causes, and all of them together."""
    if result.slowdown is None or result.ideal_step_seconds is None or not result.by_cause:
        return []
    return [
        *result.by_cause,
        CauseEffect(
            cause="all causes",
            lost_seconds=sum(row.lost_seconds for row in result.by_cause),
            lost_share=None if result.m_worker is None else sum(row.lost_share or 0.0 for row in result.by_cause),
            slowdown=result.slowdown,
            without_step_seconds=result.ideal_step_seconds,
            saved_seconds=result.saved_seconds or 0.0,
            share=None,
            gpu_hours_lost=result.gpu_hours_lost,
            cost=result.cost,
        ),
    ]


def _signed(seconds: float) -> str:
    return f"-{format_duration(-seconds * 1e6)}" if seconds < 0 else format_duration(seconds * 1e6)


def _legend(result: WhatIf, width: int) -> str:
    if result.slowdown is None:
        return ""
    text = (
        "slowdown: a step in which only this part is as it was, divided by the ideal step; saved: what a step gains if only this "
        "part is ideal; share: of all that is lost"
    )
    if result.savings_of == "verdict":
        text += (
            ". To be ideal is to be as fast as the median rank; but without a rank's or host's slowness, it still varies as the "
            "others do, as in the verdict"
        )
    if result.by_cause:
        text += (
            ". lost to it: how much longer this cause makes the last rank take than the typical one, while the others wait; "
            "these times add up to all that is lost, their shares to 100%"
        )
    return "\n".join(textwrap.wrap(text, width))
