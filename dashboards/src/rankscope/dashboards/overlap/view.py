"""View of profiled time: compute, communication, their overlap, and the cost of collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from rankscope.analysis.causes import IDLE_CAUSES
from rankscope.analysis.result.analysis import RankResult
from rankscope.analysis.result.collectives import CollectiveBandwidth
from rankscope.analysis.result.text import reasons_text
from rankscope.dashboards.charts.bar_names import bar_names
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.hosts import blamed_ranks, rows_by_host, several_hosts
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.drawn import DrawnFigure, FigureData
from rankscope.dashboards.model.page import (
    Block,
    FigureBlock,
    Heading,
    Items,
    Legend,
    Part,
    Section,
    Text,
    choice,
    rank_choice,
    rows_choice,
)
from rankscope.dashboards.model.picks import rank_of_bar
from rankscope.dashboards.model.run_head import nothing_yet
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.overlap.figures import (
    ALL_UP_TO,
    NO_WINDOW,
    NOTABLE,
    PARTS,
    SHOWN,
    bandwidth_bars,
    bandwidth_text,
    breakdown_bars,
    by_cost,
    collective_name,
    cost_us,
    means_by_host,
    wait_bars,
)
from rankscope.dashboards.words.units import duration
from rankscope.dashboards.words.wording import count, percent


def _bar_rows(run: RunData, state: PageState) -> list[RankResult]:
    """Return the ranks, or a row per host."""
    names = bar_names(run.analysis, state.rows, state.rank)
    return means_by_host(run.analysis, names.hosts) if names.by_host else run.analysis.ranks


def _pick(run: RunData, state: PageState, point: Mapping[str, Any]) -> PageState:
    names = bar_names(run.analysis, state.rows, state.rank)
    return rank_of_bar(state, {names.text(row.rank): row.rank for row in _bar_rows(run, state)}, point)


def _bars(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    names, ranks = bar_names(run.analysis, state.rows, state.rank), _bar_rows(run, state)
    columns = (
        names.row_kind, "profiled steps", "window, all [us]", "compute, all [us]", "overlap, all [us]",
        "exposed communication, all [us]", "exposed copies, all [us]", "idle, all [us]",
    )  # fmt: skip
    rows = [
        (
            names.item(rank.rank), rank.profiled_steps, rank.window_us, rank.compute_us, rank.overlap_us,
            rank.exposed_communication_us, rank.exposed_memcpy_us, rank.idle_us,
        )
        for rank in ranks
    ]  # fmt: skip
    profiled = sum(rank.window_us is not None for rank in ranks)
    return DrawnFigure(
        breakdown_bars(ranks, colors, names=names, cause=run.analysis.verdict.cause),
        FigureData(columns, rows),
        f"Profiled time of {profiled:,} of {count(len(ranks), names.row_kind)} by what it was spent on",
    )


def _idle_legend(run: RunData) -> list[tuple[str, str]]:
    """Return the legend of the idle time that the verdict explains."""
    cause = run.analysis.verdict.cause
    if cause not in IDLE_CAUSES or not blamed_ranks(run.analysis.verdict):
        return []
    style = CAUSES[cause]
    return [(style.color, f"Idle: {style.label}")] if style.color != "idle" else []


def _hidden(ranks: Sequence[RankResult]) -> str:
    """Return how much of the communication compute hides, on all ranks and on the rank with the least."""
    ratios = [(rank.overlap_ratio, rank.rank) for rank in ranks if rank.overlap_ratio is not None]
    if not ratios:
        return "The profiled steps have no communication to hide."
    lowest, rank = min(ratios)
    middle = percent(float(np.median([ratio for ratio, _ in ratios])))
    return f"Compute hides {middle} of the communication of the median rank, and {percent(lowest)} on rank {rank}, the lowest."


def _rows(run: RunData, state: PageState) -> list[CollectiveBandwidth]:
    rows = run.analysis.collectives.by_op
    # A link from another run may name a group that this run does not have: it is ignored.
    return by_cost(rows, state.group if state.group in {row.group for row in rows} else None)


def _waits(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    rows = _rows(run, state)
    first = next((row for row in rows if row.transfer_us is not None), None)
    sentence = "Transfer and waiting in collectives are not known"
    if first is not None:
        sentence = f"Most time goes into {collective_name(first)}: {duration(cost_us(first))} of a rank"
    columns = (
        "operation", "process group", "ranks", "median size [bytes]", "instances", "matched", "median transfer [us]",
        "transfer, 10th percentile [us]", "transfer, 90th percentile [us]", "mean wait of a rank [us]",
        "transfer and wait, all [us]",
    )  # fmt: skip
    cells = [
        (
            row.op, row.group, row.group_size, row.bytes, row.count, row.matched, row.transfer_us, row.transfer_p10_us,
            row.transfer_p90_us, row.wait_us, None if row.transfer_us is None else cost_us(row),
        )
        for row in rows
    ]  # fmt: skip
    return DrawnFigure(wait_bars(rows, colors), FigureData(columns, cells), sentence)


def _bandwidth(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    rows = _rows(run, state)
    columns = (
        "operation", "process group", "ranks", "median size [bytes]", "algorithm bandwidth [GB/s]", "bus bandwidth [GB/s]",
        "bus, 10th percentile [GB/s]", "bus, 90th percentile [GB/s]", "bus at least [GB/s]", "link", "expected [GB/s]",
        "why expected is not known", "share of expected", "bound by",
    )  # fmt: skip
    cells = [
        (
            row.op, row.group, row.group_size, row.bytes, row.algorithm_gb_s, row.bus_gb_s, row.bus_p10_gb_s, row.bus_p90_gb_s,
            row.bus_at_least_gb_s, row.link, row.expected_gb_s, row.expected_unknown, row.share, row.bound_by,
        )
        for row in rows
    ]  # fmt: skip
    slow = [row for row in rows if row.share is not None and row.bound_by == "bandwidth"]
    sentence = "Bandwidth and the expected bandwidth of the links are not known"
    if slow:
        worst = min(slow, key=lambda row: row.share or 0.0)
        sentence = f"Farthest below its link's rate: {collective_name(worst)}, {bandwidth_text(worst)}"
    return DrawnFigure(bandwidth_bars(rows, colors), FigureData(columns, cells), sentence)


def _about_collectives(run: RunData, state: PageState) -> list[Block]:
    """Return the reasons for missing rows, transfers and bandwidths."""
    collectives = run.analysis.collectives
    rows = _rows(run, state)
    lines = []
    if len(rows) > SHOWN:
        lines.append(f"Shown: the {SHOWN} costliest of {len(rows):,}; the CSV has all of them.")
    unknown = sum(row.transfer_us is None for row in rows)
    if unknown:
        lines.append(
            f"The transfer of {unknown:,} of {len(rows):,} is not known: no instance was matched on all ranks of its group."
        )
    if collectives.unmatched:
        reasons = reasons_text(collectives.unmatched_by)
        lines.append(f"{collectives.unmatched:,} instances could not be matched{f' ({reasons})' if reasons else ''}.")
    if collectives.excluded:
        lines.append(f"Left out, since their records do not show which rank waited: {reasons_text(collectives.excluded)}.")
    unknown_reasons = {row.expected_unknown for row in rows if row.expected_unknown is not None}
    lines += [f"Why the expected bandwidth is not known: {why}." for why in sorted(unknown_reasons)]
    return [Items(lines, "help")] if lines else []


def _blocks(run: RunData, state: PageState) -> list[Block]:
    if not run.analysis.collectives.by_op and all(rank.window_us is None for rank in run.analysis.ranks):
        return nothing_yet(run.summary, "No profiled step is known", NO_WINDOW)
    by_host = rows_by_host(run.analysis, state.rows)
    rows = "hosts" if by_host else "ranks"
    many = len(_bar_rows(run, state)) > ALL_UP_TO
    shown_text = f" Shown: the mean and the {NOTABLE} {rows} that differ most from it." if many else ""
    groups = sorted({row.group for row in run.analysis.collectives.by_op})
    choices = [{"value": group, "label": group} for group in groups]
    return [
        Section(
            name="breakdown",
            title="Where the time went",
            help="Mean per profiled step. Exposed communication on all ranks but one means that they wait for that one; on all "
            "ranks alike, that the network is slow." + shown_text,
            blocks=[
                Legend([*((part.color, part.label) for part in PARTS), *_idle_legend(run)]),
                Part("overlap-hidden", lambda: [Text(_hidden(run.analysis.ranks), "help")], reads=()),
                FigureBlock(
                    name="breakdown-bars",
                    reads=("rank", "rows"),
                    label="Stacked bars of compute, overlap, exposed communication, exposed copies and idle time per rank",
                    draw=partial(_bars, run, state),
                    pick=partial(_pick, run, state),
                ),
            ],
            tools=[*rows_choice(hosts=several_hosts(run.analysis), by_host=by_host), rank_choice(state)],
        ),
        Section(
            name="collectives",
            title="Collectives: transfer or waiting",
            help="By operation, process group and size; the costliest first. Collectives that run at the same time count each. "
            "Waiting ends when the last rank arrives: look for that rank. A faster link, larger or fewer messages shorten the "
            "transfer.",
            blocks=[
                Legend([("exposed_communication", "Transfer"), ("straggler_wait", "Waiting for later ranks")]),
                FigureBlock(
                    name="collective-waits",
                    reads=("group",),
                    label="Stacked bars of transfer and waiting per collective",
                    draw=partial(_waits, run, state),
                    long=True,
                ),
                Heading("Bandwidth of the transfer"),
                FigureBlock(
                    name="collective-bandwidth",
                    reads=("group",),
                    label="Bars of bus bandwidth per collective, marks of the expected one",
                    draw=partial(_bandwidth, run, state),
                    long=True,
                ),
                Part("about-collectives", lambda: _about_collectives(run, state), reads=("group",)),
            ],
            tools=[choice("group", "Process group", choices, state, nothing="all")],
        ),
    ]


VIEW: Final = View(
    slug="overlap",
    label="Overlap",
    help=Help(
        shows="How much communication compute hides, where the rest of the time goes, and which collectives are costly.",
        formula="Window = compute + exposed communication + exposed copies + idle. Overlap ratio = communication that ran while "
        "compute did ÷ all communication; it is not defined without communication. Transfer begins when the last rank arrives. "
        "Bus bandwidth = size ÷ transfer × the operation's factor (2 (n − 1) ÷ n of an all-reduce), as nccl-tests has it.",
        do="Exposed communication on all ranks alike: larger buckets, other overlap, a faster link. On all but one: that one. "
        "Bandwidth far below its mark, and not bound by latency: look at the link.",
    ),
    blocks=_blocks,
)
