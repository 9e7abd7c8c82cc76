"""Page that compares runs: improvements and regressions, their significance, and their place by part of the step and host."""

from __future__ import annotations

from functools import partial
from shlex import quote
from typing import Final

from rankscope.analysis.compare.compare_result import CompareResult, Comparison, Side
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.compare.data import ComparedRuns
from rankscope.dashboards.compare.figures import own_times, part_differences, rank_changes, step_distributions, steps_overlay
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.data.trend import Trend
from rankscope.dashboards.model.line import Line, Span, badge, named_link
from rankscope.dashboards.model.page import (
    AdviceItem,
    Block,
    Choice,
    FigureBlock,
    Group,
    Heading,
    Inline,
    Rows,
    Section,
    Text,
    choice,
)
from rankscope.dashboards.model.run_head import problem, simulated_band
from rankscope.dashboards.model.state import MOST_COMPARED, PageState, run_path
from rankscope.dashboards.model.view import SitePage
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words.units import duration

TONES = {
    "worse": "bad",
    "better": "good",
    "mixed": "fair",
    "same": "plain",
    "undecided": "unknown",
    "insufficient_data": "unknown",
}
LABELS = {
    "worse": "Worse", "better": "Better", "mixed": "Mixed", "same": "Same", "undecided": "Undecided",
    "insufficient_data": "Not enough data", "untested": "Not tested",
}  # fmt: skip


def _blocks(source: RunSource, search: str | None, _config: DashboardConfig) -> list[Block]:
    """Return the page of a comparison. Raises ``NotReadyError`` while it is being computed, else ``RankscopeError``."""
    state = PageState.parse(search)
    if (wrong := not_comparable(state)) is not None:
        return [problem("There is nothing to compare", wrong, hint="Mark two runs or more in the list, then Compare.")]
    compared = compared_of(source, state)
    result = compared.result
    return [
        Heading("Compare", 1, "page-title"),
        Group(_verdicts(result, state), "card verdicts", "section", name="compare-verdict"),
        Section(name="sides", title="What is compared", help="The first run is the baseline.", blocks=[_sides(result)]),
        Section(
            name="distribution",
            title="Step times",
            help="Cumulative distribution: a curve further right is slower; a long flat top means rare slow steps.",
            blocks=[
                FigureBlock(
                    name="compare-steps",
                    reads=("runs", "at"),
                    label="Curves of the distribution of step times, one per run",
                    draw=partial(step_distributions, compared),
                    height=340,
                ),
                Heading("Over the steps"),
                FigureBlock(
                    name="compare-course",
                    reads=("runs", "at"),
                    label="Lines of the step time over the steps, one per run",
                    draw=lambda colors: steps_overlay(_trends(source, result), colors, at=state.at),
                    height=340,
                ),
            ],
        ),
        *(_differences(result, state) if result.scaling is None else []),
    ]


def not_comparable(state: PageState) -> str | None:
    """Return why the runs in the address cannot be compared; ``None`` if a comparison can be attempted."""
    if not state.runs:
        return "The address names no run."
    if len(state.runs) == 1 and state.at is None:
        return (
            "The address names one run: name another, or with at=STEP a step of this one, to compare what was before and after."
        )
    if len(state.runs) > 1 and state.at is not None:
        return "A step (at=STEP) divides one run into before and after; the address names several."
    if len(state.runs) > MOST_COMPARED:
        return f"The address names {len(state.runs)} runs; at most {MOST_COMPARED} are compared at once."
    return None


def compared_of(source: RunSource, state: PageState) -> ComparedRuns:
    """Return the comparison requested by the address. Raises as the page does."""
    if (wrong := not_comparable(state)) is not None:
        raise RankscopeError(wrong)
    return source.compared(state.runs, state.at)


def _trends(source: RunSource, result: CompareResult) -> list[tuple[str, Trend]]:
    """Return name and trend of each run; a run that is divided has one."""
    names = {side.run_id: side.name if result.mode == "before_after" else side.label for side in result.sides}
    return [(name, RunData(source, source.summary(run_id)).trend) for run_id, name in names.items()]


def _chosen(result: CompareResult, state: PageState) -> Comparison:
    """Return the comparison in the address, else the first one."""
    return next((comparison for comparison in result.comparisons if comparison.b == state.pair), result.comparisons[0])


def _all(result: CompareResult) -> Block:
    """Return a table of all comparisons."""
    steps = {side.label: side.typical_us for side in result.sides}
    rows: list[tuple[Line, ...]] = [
        (
            named_link(comparison.b, _address(result, comparison)),
            badge(LABELS[comparison.outcome], tone=TONES[comparison.outcome]),
            *("-" if (us := steps[name]) is None else duration(us) for name in (comparison.a, comparison.b)),
        )
        for comparison in result.comparisons
    ]
    baseline = result.comparisons[0].a
    return Rows(
        (("Run", "names"), ("Result", ""), (f"Typical step of {baseline}", "number"), ("Its typical step", "number")), rows
    )


def _address(result: CompareResult, comparison: Comparison) -> str:
    runs = tuple(side.run_id for side in result.sides)
    return f"/compare{PageState(runs=runs, pair=comparison.b).search}"


def _verdicts(result: CompareResult, state: PageState) -> list[Block]:
    """Return the chosen comparison in a sentence, with a table of all if there are several, or the summary of the scaling."""
    parts: list[Block] = [simulated_band()] if any(side.simulated for side in result.sides) else []
    if result.scaling is not None:
        parts += [Inline(badge("Scaling")), Heading(result.scaling.summary, 2, "sentence small")]
        paths = " ".join(quote(side.path) for side in result.sides)
        parts.append(AdviceItem(f"Efficiency by world size, and where the rest went: rankscope compare {paths}"))
    if result.comparisons:
        comparison = _chosen(result, state)
        parts.append(
            Group(
                [
                    Inline(
                        [
                            badge(LABELS[comparison.outcome], tone=TONES[comparison.outcome]),
                            Span(_subject(comparison, result), style="sides"),
                        ]
                    ),
                    Heading(comparison.sentence, 2, "sentence small"),
                    *([Text(comparison.details)] if comparison.details else []),
                    *([Text(f"Also different: {'; '.join(comparison.differs)}", "help")] if comparison.differs else []),
                ]
            )
        )
    if len(result.comparisons) > 1:
        parts.append(_all(result))
    parts.append(
        Text(
            f"A difference is significant if the noise within the runs does not explain it; all intervals of a comparison hold "
            f"together with {result.confidence:.0%}. Differences below {result.min_change:.2%} of the step are ignored. Runs of "
            "the same code differ, too: compare two of them first.",
            "help",
        )
    )
    return parts


def _subject(comparison: Comparison, result: CompareResult) -> str:
    text = f"{comparison.b} against {comparison.a}"
    if result.mode != "before_after":
        return text
    side = result.sides[-1]
    return f"{side.name}: {text} step {side.steps[0]:,}"


def _sides(result: CompareResult) -> Block:
    columns = (
        ("Side", "names"), ("Ranks", "number"), ("Steps compared", "number"), ("Typical step", "number"), ("Mean step", "number"),
        ("Throughput", "number"), ("Left out, missing", "names"),
    )  # fmt: skip
    return Rows(columns, [_side(side, divided=result.mode == "before_after") for side in result.sides])


def _side(side: Side, *, divided: bool) -> tuple[Line, ...]:
    name = named_link(side.name if divided else side.label, run_path(side.run_id))
    unused = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in side.left_out.items() if count]
    return (
        [Span(f"{side.label} ", "strong"), name] if divided else name,
        f"{side.ranks:,} of {side.world_size:,}",
        f"{side.used_steps:,} ({side.steps[0]:,} to {side.steps[1] - 1:,})",
        *("-" if us is None else duration(us) for us in (side.typical_us, side.step_us)),
        _throughput(side),
        "; ".join([*unused, *side.warnings]) or "nothing",
    )


def _throughput(side: Side) -> str:
    if side.tokens_per_s is not None:
        return f"{side.tokens_per_s:,.0f} tokens/s"
    return "-" if side.samples_per_s is None else f"{side.samples_per_s:,.1f} samples/s"


def _differences(result: CompareResult, state: PageState) -> list[Block]:
    comparison = _chosen(result, state)
    pairs = [{"value": pair.b, "label": f"{pair.b} against {pair.a}"} for pair in result.comparisons]
    several = len({rank.host_b for rank in comparison.ranks}) > 1  # a single host has no peers to compare with; its ranks do
    choose_pair = Choice(field="pair", label="Compared", options=pairs, value=comparison.b, width=260)
    units = [{"value": "host", "label": "Hosts"}, {"value": "rank", "label": "Ranks"}]
    return [
        Section(
            name="parts",
            title="Where in the step",
            help="Parts of the average step, which add up to its difference. Lines are their confidence intervals: "
            "one across 0 may be noise, unless the median, which is tested as well, has changed beyond it.",
            blocks=[
                FigureBlock(
                    name="compare-parts",
                    reads=("runs", "at", "pair"),
                    label="Differences of the parts of the step, with intervals",
                    draw=partial(part_differences, comparison),
                    height=300,
                )
            ],
            tools=[choose_pair] if len(pairs) > 1 else [],
        ),
        Section(
            name="inside",
            title="Inside the parts, and in profiled steps",
            help="Own time is wall time without waiting. Compute, communication and idle time are of profiled steps only.",
            blocks=[
                FigureBlock(
                    name="compare-own",
                    reads=("runs", "at", "pair"),
                    label="Differences of own, blocked and device times, with intervals",
                    draw=partial(own_times, comparison),
                    height=300,
                )
            ],
        ),
        Section(
            name="changed",
            title="On which host" if several else "On which rank",
            help="Change of a rank's own time relative to its peers. It is undecided where only that of the peers has changed "
            "beyond the noise. After a node swap, look at the new host.",
            blocks=[
                FigureBlock(
                    name="compare-ranks",
                    reads=("runs", "at", "pair", "by"),
                    label="Changes of own time above the peers', per host or rank",
                    draw=partial(rank_changes, comparison, result.sides, by=state.by if several else "rank"),
                    height=300,
                )
            ],
            tools=[choice("by", "Shown by", units, state, width=110)] if several else [],
        ),
    ]


PAGE: Final = SitePage(path="/compare", title="Compare", blocks=_blocks, subject="The comparison", in_navigation=False)
