"""First view of a run: verdict, waterfall of a step's time, trend over the steps, throughput, memory, advice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.costs import MEANING, Memory, Throughput, Waterfall, WaterfallPart
from rankscope.analysis.result.text import size
from rankscope.base.text import sentence_case
from rankscope.dashboards.charts.downsampled_trend import downsample
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.script import Script
from rankscope.dashboards.data.trend import MEDIAN, PERCENTILES, Trend
from rankscope.dashboards.model.drawn import NO_DATA, DrawnFigure, FigureData, cell
from rankscope.dashboards.model.page import Block, Details, Fact, Facts, FigureBlock, Group, Heading, Part, Section, Terms
from rankscope.dashboards.model.picks import steps_of_drag
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.overview.advice import advice_list
from rankscope.dashboards.overview.changes import changes
from rankscope.dashboards.overview.figures import STYLES, parts_of, rate_line, rate_name, trend_lines, waterfall_bars
from rankscope.dashboards.overview.script_rows import add_rows, in_range
from rankscope.dashboards.overview.verdict import verdict_card
from rankscope.dashboards.words import wording
from rankscope.dashboards.words.units import duration
from rankscope.dashboards.words.wording import count, percent
from rankscope.dashboards.words.wording import rate as per_second

_GPU_MEMORY: Final = "GPU memory left"


def work_and_memory(analysis: Analysis) -> list[Fact]:
    """Return the run's throughput, its model FLOP/s utilisation, and its memory use."""
    on_gpus = any(rank.device_kind not in (None, "cpu") for rank in analysis.ranks)
    memory = [fact for fact in _memory(analysis.memory) if on_gpus or fact.name != _GPU_MEMORY]
    return [*_work(analysis.throughput, "of the job" if analysis.rare_steps is None else "of the job, in typical steps"), *memory]


def _work(work: Throughput | None, of: str) -> Iterator[Fact]:
    rates = [] if work is None else [("Samples", work.samples_per_second), ("Tokens", work.tokens_per_second)]
    rates_given = [(name, rate) for name, rate in rates if rate is not None]
    yield from (Fact(name, wording.rate(rate), detail=of) for name, rate in rates_given)
    if not rates_given:
        missing = "the script does not report samples or tokens, or not all ranks are recorded"
        yield Fact("Throughput", wording.UNKNOWN, detail=missing)
    if work is None or work.mfu is None:
        yield Fact("Model FLOP/s utilisation", wording.UNKNOWN, detail=_why_no_mfu(work))
    else:
        against = f"of the {work.peak_dtype} peak of {work.gpu_name}"
        yield Fact("Model FLOP/s utilisation", wording.percent(work.mfu, digits=1), meter=work.mfu, detail=against)


def _why_no_mfu(work: Throughput | None) -> str:
    if work is None or work.flops_per_second_per_rank is None:
        return "the script does not report floating-point operations"
    return "the peak of these GPUs is not known" if work.gpu_name else "ranks have no GPU, or several models"


def _memory(memory: Memory | None) -> Iterator[Fact]:
    ranks = [] if memory is None else memory.ranks
    shares = (rank for rank in ranks if rank.peak_share is not None)
    fullest = max(shares, key=lambda rank: rank.peak_share or 0.0, default=None)
    if fullest is None or fullest.device_bytes is None or fullest.peak_allocated_bytes is None:
        largest = max((rank.peak_allocated_bytes for rank in ranks if rank.peak_allocated_bytes is not None), default=None)
        if largest is None:
            yield Fact(_GPU_MEMORY, wording.UNKNOWN, detail="no sample of a GPU's memory")
        else:
            yield Fact(_GPU_MEMORY, wording.UNKNOWN, detail=f"{size(largest)} used at most; the device's size is not known")
    else:
        free_bytes = max(0, fullest.device_bytes - fullest.peak_allocated_bytes)
        of = f"of {size(fullest.device_bytes)}, on rank {fullest.rank}, the fullest"
        yield Fact(_GPU_MEMORY, size(free_bytes), meter=fullest.peak_share, detail=of, why="Size less the peak of tensors")
    resident = max(
        (rank for rank in ranks if rank.resident_bytes is not None), key=lambda rank: rank.resident_bytes or 0, default=None
    )
    if resident is not None and resident.resident_bytes is not None:
        yield Fact("Host memory", size(resident.resident_bytes), detail=f"of the process of rank {resident.rank}, the largest")
    leaks = [] if memory is None else [growth for growth in memory.growth if growth.leaking]
    if leaks:
        full = min((growth.steps_until_full for growth in leaks if growth.steps_until_full is not None), default=None)
        until = "" if full is None else f"; full in {full:,} steps at most"
        rate = size(round(abs(leaks[0].bytes_per_1000_steps)))
        yield Fact("Memory grows", f"{rate} per 1,000 steps", detail=f"{leaks[0].kind} memory of rank {leaks[0].rank}{until}")


def _waterfall(run: RunData, colors: Palette) -> DrawnFigure:
    fall = run.analysis.waterfall
    rows = (
        []
        if fall is None
        else [(part.name, part.us, part.share, part.source, part.note, MEANING[part.name]) for part in fall.parts]
    )
    return DrawnFigure(
        waterfall_bars(fall, colors),
        FigureData(("part", "time [us]", "share of the step", "source", "note", "meaning"), rows),
        "Where a step's time goes is not known" if fall is None else _largest_part(fall),
    )


def _largest_part(fall: Waterfall) -> str:
    largest = max(fall.parts, key=lambda part: part.us or 0.0)
    return (
        f"The mean {fall.unit} takes {duration(fall.step_us)}; its largest part is {STYLES[largest.name].label}"
        f" with {percent(largest.share)}"
    )


def _parts(run: RunData) -> list[Block]:
    """Return the meaning of each part of the waterfall, or the reason why it is unknown."""
    fall = run.analysis.waterfall
    if fall is None:
        return []
    terms = [(STYLES[part.name].label.capitalize(), _about_part(part), part.us is not None) for part in parts_of(fall)]
    return [Details("What the parts are", [Terms(terms, "meanings")])]


_SOURCES: Final = {"steps": "From step records", "windows": "From profiled steps", "traces": "From traces", None: None}


def _about_part(part: WaterfallPart) -> str:
    means = MEANING[part.name]
    source = "Not known" if part.us is None else _SOURCES[part.source]
    return ". ".join(filter(None, [sentence_case(means), source, part.note])) + "."


def _trend(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    trend = run.trend
    first, last = _chosen_steps(trend, state)
    attempts = run.summary.attempts
    picture = trend_lines(trend, first, last, colors, attempt=f"attempt {attempts}" if attempts > 1 else None)
    # The address alone sets the zoom: the axis range that the browser remembers belongs to other steps.
    picture.update_layout(uirevision=str(state.steps))
    if first == last:
        return DrawnFigure(picture, NO_DATA, "No step is recorded here")
    script = in_range(run.script, int(trend.steps[first]), int(trend.steps[last - 1]))
    if picture.data:  # else a note
        add_rows(picture, script, colors)
    downsampled = downsample(trend, first, last)
    wall = [f"step time, {percentile}th percentile of the ranks [us]" for percentile in PERCENTILES]
    columns = ("step", "steps", *wall, "longest step time [us]", "own time of the slowest rank [us]", "slowest rank")
    rows = [
        (
            int(step), downsampled.steps_per_point, *map(cell, downsampled.wall_us[:, at]), cell(downsampled.longest_us[at]),
            cell(downsampled.highest_own_us[at]),
            None if downsampled.slowest[at] < 0 else int(downsampled.slowest[at]),
        )
        for at, step in enumerate(downsampled.steps)
    ]  # fmt: skip
    return DrawnFigure(picture, FigureData(columns, rows), _trend_in_words(trend, first, last) + _reports_in_words(script))


def _reports_in_words(script: Script) -> str:
    last = ", ".join(f"{name} {values[-1]:,.4g}" for name, (_, values) in script.metrics.items())
    tagged = ", ".join(f"{tag} {count(len(steps), 'step')}" for tag, steps in script.tags.items())
    parts = [f"last {last}" if last else "", f"tagged {tagged}" if tagged else ""]
    return f". The script of rank {script.rank}: {'; '.join(filter(None, parts))}" if last or tagged else ""


def _trend_in_words(trend: Trend, first: int, last: int) -> str:
    typical = trend.wall_us[MEDIAN, first:last]
    if not np.isfinite(typical).any():
        return "Step times are not known"
    change_count = sum(first <= change.at < last for change in trend.changes)
    changed = "does not change lastingly" if not change_count else f"changes lastingly {count(change_count, 'time')}"
    return f"Over {last - first:,} steps the median step takes {duration(float(np.nanmedian(typical)))} and {changed}"


def _rate(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    trend = run.trend
    first, last = _chosen_steps(trend, state)
    work = run.analysis.throughput
    picture, rate, downsampled = rate_line(trend, first, last, colors, replicas=None if work is None else work.replicas)
    picture.update_layout(uirevision=str(state.steps))
    name = rate_name(trend)
    sentence = "Throughput is not known"
    if np.isfinite(rate).any():
        sentence = f"{name.capitalize()}: typically {per_second(float(np.nanmedian(rate)))}"
    rows = [(int(step), cell(value)) for step, value in zip(downsampled.steps, rate, strict=True)]
    return DrawnFigure(picture, FigureData(("step", f"{name} per second"), rows), sentence)


def _chosen_steps(trend: Trend, state: PageState) -> tuple[int, int]:
    """Return the indices of the chosen steps in ``trend``: the first, and the one after the last."""
    if state.steps is None:
        return 0, len(trend.steps)
    first, last = np.searchsorted(trend.steps, (state.steps[0], state.steps[1] + 1)).tolist()
    return first, last


def _blocks(run: RunData, state: PageState) -> list[Block]:
    steps = partial(steps_of_drag, state)
    return [
        Group(
            [Part("verdict", lambda: verdict_card(run.summary, run.analysis), reads=())],
            "card",
            "section",
            name="verdict",
            labelled_by="verdict-sentence",
            live=True,
        ),
        Section(
            name="waterfall",
            title="Where a step's time goes",
            help="From the ideal step to the mean one: each part begins where the one before it ends. Unmeasured "
            "parts are counted as unexplained.",
            blocks=[
                FigureBlock(
                    name="waterfall",
                    reads=(),
                    label="Bars of the parts of a step, one below the other",
                    draw=partial(_waterfall, run),
                    height=430,
                ),
                Part("waterfall-parts", lambda: _parts(run), reads=()),
            ],
        ),
        Section(
            name="trend",
            title="Step after step",
            help="Wide bands: ranks differ. A dotted line close to the solid one: one rank computes, the others wait. "
            "Below: metrics and tags of the script.",
            use="Drag over steps to zoom, double-click to see all again.",
            blocks=[
                FigureBlock(
                    name="trend",
                    reads=("steps",),
                    label="Lines of the step time over the steps",
                    draw=partial(_trend, run, state),
                    height=340,
                    zoom=steps,
                ),
                Heading("What changed when"),
                Part("changes", lambda: changes(run, state)),
                Heading("Throughput"),
                FigureBlock(
                    name="rate",
                    reads=("steps",),
                    label="Line of what is done per second over the steps",
                    draw=partial(_rate, run, state),
                    height=190,
                    zoom=steps,
                ),
                Part("facts", lambda: [Facts(work_and_memory(run.analysis), "plain")], reads=()),
            ],
        ),
        Section(
            name="advice",
            title="What to try",
            help="Largest gain first. The saving is an upper bound, since another limit may be reached first.",
            blocks=[Part("advice", lambda: advice_list(run.analysis.advice, run.analysis.verdict.next), reads=())],
        ),
    ]


VIEW: Final = View(
    slug="",
    label="Overview",
    help=Help(
        shows="The rank that the others wait for, why, what it costs, what to do next; where a step's time goes; the course of "
        "the run.",
        formula="The verdict has the time that the others wait for the blamed rank in a typical step; the waterfall has the mean "
        "over the typical steps; what to try and what-if have the gain of a fix, which is smaller if another rank is then the "
        "last. GPU time lost: additional time of the steps × ranks. The parts of the waterfall sum to the mean step after "
        "warm-up. Bands: percentiles over the ranks at each step; where a point covers several steps, their median; the "
        "longest step time and the highest own time are of any of them. Changes: lasting changes of the median step time of 5% "
        "or more, without profiled steps, that occur in at most one of a thousand random orders of the steps.",
        do="Take the next steps; open Evidence for the numbers. Then work on the longest part of the step.",
    ),
    blocks=_blocks,
)
