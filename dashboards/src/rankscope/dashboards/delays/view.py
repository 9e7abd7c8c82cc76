"""View of imposed waits: origins, victims, causes, and their course over the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rankscope.analysis.result.analysis import ImposedWait
from rankscope.analysis.result.hosts import worst_ranks
from rankscope.dashboards.charts.bar_names import BarNames, bar_names
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.charts.frame import drawn_note
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.hosts import UNKNOWN_HOST, blamed_hosts, blamed_ranks, known_hosts, rows_by_host, several_hosts
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.delays.data import CHARGED, RankDelay, WaitGroup
from rankscope.dashboards.delays.figures import (
    ALONE,
    NO_EVIDENCE,
    NO_STEPS,
    cause_bars,
    cause_timeline,
    imposed_bars,
    span_of,
    wait_matrix,
    wait_rows,
)
from rankscope.dashboards.delays.hosts import delays_by_host, group_by_host, imposed_by_host
from rankscope.dashboards.delays.tables import COLUMNS, HOST_COLUMNS, cost_table
from rankscope.dashboards.model.drawn import DrawnFigure, FigureData
from rankscope.dashboards.model.page import (
    Block,
    Choice,
    FigureBlock,
    Legend,
    Part,
    Section,
    Table,
    Text,
    rank_choice,
    rows_choice,
)
from rankscope.dashboards.model.picks import rank_of_bar, rank_of_row
from rankscope.dashboards.model.run_head import nothing_yet
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.words.units import duration
from rankscope.dashboards.words.wording import count, percent


def _names(run: RunData, state: PageState) -> BarNames:
    return bar_names(run.analysis, state.rows, state.rank)


def _rank_of_bar(run: RunData, rows: Callable[[RunData, PageState], Sequence[Any]], state: PageState, point: Any) -> PageState:
    """Select the rank of a bar; of a host, its worst."""
    names = _names(run, state)
    return rank_of_bar(state, {names.text(row.rank): row.rank for row in rows(run, state)}, point)


def _imposed_rows(run: RunData, state: PageState) -> list[ImposedWait]:
    rows, by_host = run.analysis.imposed_wait, rows_by_host(run.analysis, state.rows)
    return imposed_by_host(rows, known_hosts(run.analysis), _worst(run)) if by_host else rows


def _delay_rows(run: RunData, state: PageState) -> list[RankDelay]:
    rows, by_host = run.delays.ranks, rows_by_host(run.analysis, state.rows)
    return delays_by_host(rows, known_hosts(run.analysis), _worst(run)) if by_host else rows


def _worst(run: RunData) -> dict[str, int]:
    """Return the worst rank of each host; ranks of the wait that the analysis lacks count to no known host."""
    hosts = known_hosts(run.analysis)
    ranks: dict[str, list[int]] = {}
    for rank in sorted({*hosts, *(row.rank for row in run.analysis.imposed_wait), *(row.rank for row in run.delays.ranks)}):
        ranks.setdefault(hosts.get(rank, UNKNOWN_HOST), []).append(rank)
    return dict(zip(ranks, worst_ranks(run.analysis, ranks.values()), strict=True))


def _imposed(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    imposed, names = _imposed_rows(run, state), _names(run, state)
    most = max(imposed, key=lambda row: row.imposed_us, default=None)
    return DrawnFigure(
        imposed_bars(imposed, colors, names=names),
        FigureData(
            (names.row_kind, "imposed wait [us]", "of it exposed [us]", "share"),
            [(names.item(row.rank), row.imposed_us, row.imposed_exposed_us, row.share) for row in imposed],
        ),
        "The waits that ranks imposed are not known"
        if most is None
        else f"{names.row_kind.capitalize()} {names.item(most.rank)} made the others wait most",
    )


_BY_DURATIONS: Final = "In the last steps, by the durations of collectives"
_IMPOSED_IN: Final = {
    "windows": "In the profiled steps",
    "steps": "In all steps that were judged; what compute hides takes a profiled window",
    "traces": "In the traces",
    None: "In no step so far",
}


def _shown_group(run: RunData, state: PageState) -> WaitGroup | None:
    """Return the selected group, else the one with the most waiting, if there is one; host by host where rows are hosts."""
    groups, by_host = run.delays.groups, rows_by_host(run.analysis, state.rows)
    group = next((group for group in groups if group.key == state.group), groups[0] if groups else None)
    return group_by_host(group, known_hosts(run.analysis)) if group is not None and by_host else group


def _matrix(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    group = _shown_group(run, state)
    if group is None:
        return drawn_note(NO_EVIDENCE, colors)
    row_kind = "host" if group.by_host else "rank"
    cells = sorted(zip(group.victims, group.origins, group.waited_us, strict=True), key=lambda cell: -cell[2])
    rows = [(group.names[victim], group.names[origin], waited) for victim, origin, waited in cells]
    sentence = "No rank of this group waited"
    if rows:
        victim_name, origin_name, waited = rows[0]
        sentence = f"In {group.label}, {row_kind} {victim_name} waited longest: {duration(waited)} for {row_kind} {origin_name}"
    hosts = known_hosts(run.analysis)
    if group.by_host:
        blamed, picked = blamed_hosts(run.analysis), None if state.rank is None else hosts.get(state.rank)
    else:
        blamed, picked = [str(rank) for rank in blamed_ranks(run.analysis.verdict)], str(state.rank)
    place = {name: at for at, name in enumerate(group.names)}
    marked = [place[name] for name in blamed if name in place]
    return DrawnFigure(
        wait_matrix(
            group,
            worst_ranks(run.analysis, group.members),
            colors,
            hosts=hosts,
            blamed=marked,
            picked=None if picked is None else place.get(picked),
        ),
        FigureData((f"{row_kind} that waited", f"{row_kind} waited for", "wait [us]"), rows),
        sentence,
    )


def _origin_of_cell(run: RunData, state: PageState, point: Mapping[str, Any]) -> PageState:
    """Select the rank of the cell's row, or for a host its worst."""
    group = _shown_group(run, state)
    if group is None:
        return state
    worst = worst_ranks(run.analysis, group.members)
    return replace(state, rank=worst[wait_rows(group, worst, known_hosts(run.analysis)).row(point["y"])])


_SOURCES: Final = {
    "windows": "the collectives of {steps}. A wait is charged to the rank that caused it, also in other groups. "
    "The sections below cover all steps, without process groups",
    "steps": "{steps}: at each step the others wait for the rank with the longest own time. Step records do not contain "
    "process groups, so ranks that do the same work form one group; profile a window to see the real groups",
}


def _about_matrix(run: RunData, state: PageState) -> list[Block]:
    """Return the matrix's evidence source, and the groups that it leaves out."""
    delays = run.delays
    group = _shown_group(run, state)
    if group is None:
        return []
    if delays.matrix_source is None:
        text = "From sends, receives and operations with a root only. In a pipeline most of that is its schedule."
    else:
        steps = count(delays.matrix_steps, "profiled step" if delays.matrix_source == "windows" else "step")
        text = f"From {_SOURCES[delays.matrix_source].format(steps=steps)}."
    if group.by_host:
        text += (
            f" {count(group.ranks, 'rank')}, shown host by host; on the diagonal is what ranks of a host waited for each other."
        )
    total = sum(wait_group.imposed_us for wait_group in delays.groups)
    if len(delays.groups) > 1 and total > 0:
        text += f" This group has {percent(group.imposed_us / total)} of the waiting in {count(len(delays.groups), 'group')}."
    if delays.groups_left_out:
        text += f" {count(delays.groups_left_out, 'group')} with less waiting are left out."
    return [Text(text, "help")]


def _group_choice(run: RunData, state: PageState) -> Block:
    groups = run.delays.groups
    return Choice(
        field="group",
        label="Process group",
        options=[{"value": group.key, "label": group.label} for group in groups],
        value=state.group if state.group in {group.key for group in groups} else None,
        nothing=groups[0].label if groups else "none known",
        width=250,
    )


def _cause_bars(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    ranks, names = _delay_rows(run, state), _names(run, state)
    known_ranks = [rank for rank in ranks if rank.steps_us]
    sentence = "What made ranks late is not known"
    if known_ranks:
        worst = known_ranks[0]
        cause = max(worst.causes_us, key=lambda name: worst.causes_us[name])
        cost = duration(worst.steps_us or 0.0)
        sentence = (
            f"{names.row_kind.capitalize()} {names.item(worst.rank)} cost the others {cost}, most of it by: {CAUSES[cause].label}"
        )
    return DrawnFigure(
        cause_bars(ranks, colors, names=names),
        FigureData(
            (names.row_kind, "imposed wait [us]", *(f"{CAUSES[cause].label} [us]" for cause in CHARGED)),
            [(names.item(rank.rank), rank.steps_us, *(rank.causes_us.get(key) for key in CHARGED)) for rank in known_ranks],
        ),
        sentence,
    )


def _timeline(run: RunData, _state: PageState, colors: Palette) -> DrawnFigure:
    timeline = run.delays.timeline
    if timeline is None:
        return drawn_note(NO_STEPS, colors)
    causes = [key for key in CHARGED if key in timeline.causes_us]
    rows = [
        (
            timeline.first[at], timeline.last[at], timeline.steps[at], timeline.worst[at], timeline.worst_share[at],
            *(timeline.causes_us[cause][at] for cause in causes),
        )
        for at in range(len(timeline.first))
    ]  # fmt: skip
    totals = [sum(timeline.causes_us[cause][at] for cause in causes) for at in range(len(timeline.first))]
    worst = max(range(len(totals)), key=lambda at: totals[at] / timeline.steps[at], default=None)
    sentence = "No rank made others wait"
    if worst is not None and totals[worst] > 0:
        span = span_of(timeline.first[worst], timeline.last[worst])
        sentence = f"The others waited longest per step in {span}, most of it for rank {timeline.worst[worst]}"
    columns = ("first step", "last step", "steps judged", "rank charged with most", "its share")
    return DrawnFigure(
        cause_timeline(timeline, colors),
        FigureData((*columns, *(f"{CAUSES[cause].label} [us]" for cause in causes)), rows),
        sentence,
    )


def _blocks(run: RunData, state: PageState) -> list[Block]:
    by_host = rows_by_host(run.analysis, state.rows)
    if not (run.delays.groups or run.delays.timeline or run.analysis.imposed_wait):
        why = ALONE if run.analysis.source.world_size == 1 else NO_EVIDENCE
        return nothing_yet(run.summary, "No rank is known to wait", why)
    named = bool(run.analysis.verdict.ranks)
    sections = [
        Section(
            name="imposed",
            title="Who made others wait",
            help=f"{_IMPOSED_IN.get(run.analysis.imposed_wait_source, _BY_DURATIONS)}. Wait that each rank imposed, summed over "
            "the ranks that waited. What compute did not hide cost time: fix the longest bar first.",
            blocks=[
                Legend([("exposed_communication", "Cost time"), ("overlap", "Hidden by compute")]),
                FigureBlock(
                    name="imposed-bars",
                    reads=("rank", "rows"),
                    label="Bars of the wait each rank imposed on the others",
                    draw=partial(_imposed, run, state),
                    pick=partial(_rank_of_bar, run, _imposed_rows, state),
                ),
            ],
            tools=rows_choice(hosts=several_hosts(run.analysis), by_host=by_host),
        ),
        Section(
            name="waits",
            title="Who waited for whom",
            help="Ranks that waited (columns) and the ranks they waited for (rows). Prominent row: many waited for this rank. "
            "Grey: no rank waits for itself.",
            use="Click a cell to pick the rank of its row, or enter its number.",
            blocks=[
                Part("about-matrix", lambda: _about_matrix(run, state)),
                FigureBlock(
                    name="wait-matrix",
                    reads=("rank", "rows", "group"),
                    label="Heat map of who waited how long for whom within the process group",
                    draw=partial(_matrix, run, state),
                    height=360,
                    pick=partial(_origin_of_cell, run, state),
                ),
            ],
            tools=[_group_choice(run, state), rank_choice(state)],
        ),
        Section(
            name="causes",
            title="What it was for",
            help="The wait that each rank imposed over all steps, by the part of the step in which it was slower than the median "
            "rank. From step records, without warm-up and profiled steps.",
            blocks=[
                FigureBlock(
                    name="cause-bars",
                    reads=("rank", "rows"),
                    label="Stacked bars of the wait each rank imposed, by cause",
                    draw=partial(_cause_bars, run, state),
                    height=300,
                    pick=partial(_rank_of_bar, run, _delay_rows, state),
                )
            ],
        ),
        Section(
            name="timeline",
            title="When",
            help="The same over the steps of the run: a band is a lasting cause, a spike a single event. Hover for the rank "
            "that caused most of it.",
            blocks=[
                FigureBlock(
                    name="cause-timeline",
                    reads=(),
                    label="Stacked bars of the imposed wait per step, by cause, over the steps of the run",
                    draw=partial(_timeline, run, state),
                    height=300,
                )
            ],
        ),
        Section(
            name="rank-costs",
            title="What every rank cost",
            help="Summed over all ranks that waited, so it can exceed the duration of the run. Direct and knock-on waits are "
            "known of profiled steps only.",
            use="Click a row to pick its rank.",
            blocks=[
                Table(
                    name="rank-costs",
                    reads=("rows",),
                    columns=COLUMNS if not by_host else HOST_COLUMNS,
                    rows=lambda: cost_table(_delay_rows(run, state), known_hosts(run.analysis)),
                    file_name=f"rankscope-{run.summary.run_id}-rank-costs",
                    pick=partial(rank_of_row, state),
                )
            ],
        ),
    ]
    if named:
        return [*sections]
    calm: list[Block] = [
        Text("The verdict names no rank or host, so none is charged here: ranks that vary alike wait for each other, too.")
    ]
    return [*calm, *(section for section in sections if section.name not in _CHARGES)]


_CHARGES: Final = ("imposed", "causes", "rank-costs")
"""Sections that charge ranks with the waiting of others."""


VIEW: Final = View(
    slug="delays",
    label="Delays",
    help=Help(
        shows="Which ranks the others waited for, how long, at which steps, and why.",
        formula="In a collective, each rank waits from its own start to the start of the last rank. Over all steps: at each step "
        "the rank with the longest own time is charged with min(longest own time − own time, blocked time) of every other rank, "
        "divided by the parts in which it was slower than the median rank. If a rank was late only because it had waited for "
        "another one, that other rank is charged (knock-on).",
        do="Fix the longest bar first, by its largest cause. The what-if estimates the gain, since waits of ranks overlap.",
    ),
    blocks=_blocks,
)
