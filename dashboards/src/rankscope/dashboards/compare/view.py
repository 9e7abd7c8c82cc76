"""Page that compares runs: improvements and regressions, their significance, and their place by part of the step and host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.analysis.compare.result import CompareResult, Comparison, Side
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.compare.data import Compared
from rankscope.dashboards.compare.figures import compared_with, side_name
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.many_state import MOST_COMPARED, CompareState
from rankscope.dashboards.pages.live import figure
from rankscope.dashboards.pages.pieces import badge, run_link, section, simulated_band, table
from rankscope.dashboards.pages.problem import problem_page
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording
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


def compare_page(source: RunSource, search: str | None, config: DashboardConfig) -> Component:
    """Return the page of a comparison. Raises ``NotReadyError`` while it is being computed, else ``RankscopeError``."""
    del config
    state = CompareState.parse(search)
    if (wrong := not_comparable(state)) is not None:
        return problem_page("There is nothing to compare", wrong, hint="Select two runs or more in the list, then Compare.")
    compared = compared_of(source, state)
    result = compared.result
    return html.Div(
        [
            html.H1("Compare", className="page-title"),
            html.Section(_verdicts(result), className="card verdicts", id="compare-verdict"),
            section("sides", "What is compared", "The first is what the others are compared with.", [_sides(result.sides)]),
            section(
                "distribution",
                "Step times",
                "A point says which share of steps took at most so long: a curve further right is slower; a long flat top "
                "means rare slow steps.",
                [figure("compare-steps", "Curves of the distribution of step times, one per run", height=340, many=True)],
            ),
            *(_scaling() if result.scaling is not None else _differences(result, state)),
            # The scaling page has no choices to keep in the address.
            *(
                []
                if result.scaling is not None
                else [dcc.Location(id="compare-address", refresh="callback-nav", search=search or "")]
            ),
            dcc.Store(id="many-shown", data={"search": search or ""}),
        ],
        className="stack",
    )


def not_comparable(state: CompareState) -> str | None:
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


def compared_of(source: RunSource, state: CompareState) -> Compared:
    """Return the comparison requested by the address. Raises as ``compare_page`` does."""
    if (wrong := not_comparable(state)) is not None:
        raise RankscopeError(wrong)
    return source.compared(state.runs, state.at)


def _verdicts(result: CompareResult) -> list[Component]:
    """Return a block per comparison, or the summary of the scaling."""
    parts: list[Component] = [simulated_band()] if any(side.simulated for side in result.sides) else []
    if result.scaling is not None:
        parts += [html.Div(badge("Scaling"), className="badges"), html.H2(result.scaling.summary, className="sentence small")]
    for one in result.comparisons:
        parts.append(
            html.Div(
                [
                    html.Div(
                        [badge(LABELS[one.outcome], tone=TONES[one.outcome]), f"{one.b} against {one.a}"], className="badges"
                    ),
                    html.H2(one.summary, className="sentence small"),
                    *([html.P(f"Also different: {'; '.join(one.differs)}", className="help")] if one.differs else []),
                ]
            )
        )
    parts.append(
        html.P(
            f"Real: what the noise within the runs does not explain; all intervals of a comparison hold at once with "
            f"{result.confidence:.0%}. What matters: at least {result.min_change:.2%} of the step. Runs of the same code "
            "differ, too, and no test on two runs can tell by how much: compare two of the same code first.",
            className="help",
        )
    )
    return parts


def _sides(sides: Sequence[Side]) -> Component:
    columns = (
        ("Side", "names"), ("Ranks", "number"), ("Steps compared", "number"), ("Mean step", "number"), ("Throughput", "number"),
        ("Left out, missing", "names"),
    )  # fmt: skip
    return table(columns, map(_side, sides))


def _side(side: Side) -> tuple[Any, ...]:
    left = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in side.left_out.items() if count]
    return (
        [html.Strong(f"{side.label} "), run_link(side.run_id, side.name)],
        f"{side.ranks:,} of {side.world_size:,}",
        f"{side.used_steps:,} ({side.steps[0]:,} to {side.steps[1] - 1:,})",
        "-" if side.step_us is None else duration(side.step_us),
        _throughput(side),
        "; ".join([*left, *side.warnings]) or "nothing",
    )


def _throughput(side: Side) -> str:
    if side.tokens_per_s is not None:
        return f"{side.tokens_per_s:,.0f} tokens/s"
    return "-" if side.samples_per_s is None else f"{side.samples_per_s:,.1f} samples/s"


def _scaling() -> list[Component]:
    return [
        section(
            "scaling",
            "Scaling efficiency",
            "Work per second against the smallest run, over what as many times the ranks would ideally do. Bars at the points "
            "are intervals.",
            [
                figure(
                    "scaling-efficiency", "Line of the efficiency over the world size, against the ideal", height=320, many=True
                )
            ],
        ),
        section(
            "losses",
            "Where the efficiency went",
            "What a unit of work takes more rank-time for than in the smallest run; the parts add up to 100% minus the "
            "efficiency.",
            [figure("scaling-losses", "Bars of the parts of the lost efficiency per world size", height=340, many=True)],
        ),
    ]


def _differences(result: CompareResult, state: CompareState) -> list[Component]:
    comparison = compared_with(result)
    assert comparison is not None, "every comparison that is not of scaling has one"
    which = f" Drawn: {_names(result, comparison)}." if len(result.comparisons) > 1 else ""
    return [
        section(
            "parts",
            "Where in the step",
            "Parts of the average step; they add up to it. The line is the interval that noise leaves: across 0 it may be "
            f"nothing.{which}",
            [figure("compare-parts", "Differences of the parts of the step, with intervals", height=300, many=True)],
        ),
        section(
            "inside",
            "Inside the parts, and in profiled steps",
            "Own time is what a rank needs for itself. Compute, communication and idle time are of the profiled steps only.",
            [figure("compare-own", "Differences of own, blocked and device times, with intervals", height=300, many=True)],
        ),
        section(
            "changed",
            "On which host",
            "How much longer than its peers' a rank's own time became: after a node swap, look at the host that came.",
            [figure("compare-ranks", "Changes of own time above the peers', per host or rank", height=300, many=True)],
            tools=[
                dmc.SegmentedControl(
                    id="compare-by",
                    data=[{"value": "host", "label": "Hosts"}, {"value": "rank", "label": "Ranks"}],
                    value=state.by,
                    size="xs",
                )
            ],
        ),
    ]


def _names(result: CompareResult, comparison: Comparison) -> str:
    names = {side.label: side_name(side) for side in result.sides}
    others = wording.count(len(result.comparisons) - 1, "other comparison")
    return f"{names[comparison.b]} against {names[comparison.a]}; {others} in words above"
