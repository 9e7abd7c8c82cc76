"""What if somebody or something were not slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import html
from dash.development.base_component import Component

from rankscope.analysis.whatif.result import WhatIf
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.scenarios import Scenarios
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.figures.drawn import NO_TABLE, Drawn, Table
from rankscope.dashboards.figures.frame import note
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import duration
from rankscope.dashboards.figures.without import Without, without_bars
from rankscope.dashboards.pages import problem
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.pages.grid import number_column, text_column
from rankscope.dashboards.pages.live import figure, identity, part
from rankscope.dashboards.pages.pieces import section
from rankscope.dashboards.pages.sheet import save_sheet, sheet
from rankscope.dashboards.pages.wording import UNKNOWN, count, gpu_hours, milliseconds, moment, money, percent
from rankscope.dashboards.url_state import PageState
from rankscope.dashboards.views.savings import Pace, pace_of
from rankscope.dashboards.views.thought_away import ALL, Piece, pieces, thought_away
from rankscope.dashboards.views.view import Help, View

RANKS_SHOWN: Final = 20
"""Bars of ranks; the table has all that the answer has."""

_EVIDENCE: Final = {
    "steps": "step records",
    "windows": "the collectives of profiled steps",
    "traces": "the collectives in traces",
    "operations": "traced operations",
}


def _time(seconds: float) -> str:
    return duration(1e6 * seconds)


def _fact(name: str, value: str, detail: str) -> Component:
    unknown = " unknown" if value == UNKNOWN else ""
    return html.Div([html.Dt(name), html.Dd([value, html.Small(detail)], className=f"value{unknown}")], className="fact")


def _answer(run: RunData, state: PageState) -> list[Component]:
    """The step without what is chosen, and what that is worth."""
    scenarios = run.scenarios
    result = scenarios.answer.result
    if result.status != "ok":
        return [html.P(result.summary, className="reason"), html.P(_HOW_TO_GET, className="help")]
    thought = thought_away(scenarios, state.without)
    if thought is None:
        return [
            html.P(result.summary, className="reason"),
            html.P("Choose what to think away to see what it gains.", className="help"),
        ]
    if thought.step_seconds is None:
        return [html.P(f"Without {thought.label}: not known. {thought.why}", className="reason")]
    actual, pace = _actual(result), pace_of(scenarios.answer, state)
    saved = actual - thought.step_seconds
    change = f"{_time(saved)} shorter ({percent(saved / actual, digits=1)})" if saved > 0 else "no shorter"
    hours, amount = pace.gpu_hours_of(saved), pace.money_of(saved)
    return [
        html.P(f"Without {thought.label} a step would be {change}.", className="whatif-sentence", **aria(live="polite")),
        html.Dl(
            [
                _fact("Step", _time(thought.step_seconds), f"it takes {_time(actual)}"),
                _fact(
                    "Saved a week",
                    gpu_hours(hours),
                    "of the GPU time of this job, at its pace"
                    if hours is not None
                    else "CPU ranks lose no GPU time: give a price to count it",
                ),
                _fact(
                    "Worth a week",
                    UNKNOWN if amount is None else money(amount, pace.currency),
                    _price_source(state, pace),
                ),
            ],
            className="facts",
        ),
    ]


_HOW_TO_GET: Final = (
    "A what-if takes step records of all ranks that tell own time from waiting, five steps or more after warm-up; or three "
    "profiled steps with collectives that match (rankscope run --help says how to profile)."
)


def _price_source(state: PageState, pace: Pace) -> str:
    if pace.price_per_gpu_hour is None:
        return "no price was recorded with the run: give one above"
    where = "as given above" if state.price is not None else "as recorded with the run"
    return f"at {money(pace.price_per_gpu_hour, pace.currency)} per GPU-hour, {where}"


def _actual(result: WhatIf) -> float:
    assert result.step_seconds is not None  # it is ok
    return result.step_seconds


def _fleet(run: RunData, _state: PageState) -> list[Component]:
    """S, M_W, M_S, and what they are played on."""
    answer = run.scenarios.answer
    result = answer.result
    if result.status != "ok":
        return []
    source = result.source
    slowest = f"rank {result.slowest_ranks[0]}" if len(result.slowest_ranks) == 1 else f"the {len(result.slowest_ranks)} slowest"
    share = result.m_worker
    facts = [
        _fact(
            "S, slowdown",
            UNKNOWN if result.slowdown is None else f"{result.slowdown:.3f}×",
            "step as it is ÷ step without any straggler",
        ),
        _fact(
            "M_W, slowest 3% of ranks",
            UNKNOWN if share is None else f"{share:.2f}",
            f"of the loss is gone without {slowest}. Near 1: a few ranks are to blame; near 0: not the ranks"
            if share is not None
            else "hardly anything is lost, so there is nothing to share out",
        ),
        _fact(
            "M_S, last stage",
            UNKNOWN if result.m_stage is None else f"{result.m_stage:.2f}",
            "of the loss is gone without it. Large: the model is cut unevenly"
            if result.m_stage is not None
            else "no pipeline stages in this evidence",
        ),
        _fact(
            "Fit",
            UNKNOWN if result.discrepancy is None else f"{result.discrepancy:.3f}",
            "measured step ÷ played step; 1 is perfect, more than 5% off is not to be relied on",
        ),
    ]
    about = f"Played on {_EVIDENCE[source.evidence or 'steps']}: {count(source.ranks, 'rank')}, {count(source.steps, 'step')}"
    about += (
        f" ({count(source.steps_left_out, 'step')} left out: warm-up, profiled or incomplete)." if source.steps_left_out else "."
    )
    if run.summary.status in ("starting", "live"):
        about += f" The run goes on: this is as of {moment(answer.made_unix_ns)}."
    return [
        html.Dl(facts, className="facts"),
        html.P(about, className="help"),
        *([html.Ul([html.Li(text) for text in source.warnings], className="warnings")] if source.warnings else []),
    ]


def _bars(run: RunData, state: PageState, colors: Palette, kinds: tuple[str, ...], most: int) -> Drawn:
    scenarios = run.scenarios
    result = scenarios.answer.result
    if result.status != "ok":
        return Drawn(note("Not enough data for a what-if: above is what is missing.", colors), NO_TABLE, result.summary)
    pace = pace_of(scenarios.answer, state)
    found = sorted(
        (piece for piece in pieces(result) if piece.kind in kinds), key=lambda piece: piece.effect.without_step_seconds
    )
    rows = [_without(piece, pace) for piece in found[:most]]
    actual, ideal = _actual(result), result.ideal_step_seconds or 0.0
    says = "There is nothing to think away"
    if rows:
        saved = actual - rows[0].step_seconds
        says = f"Of {count(len(rows), 'part')}, {found[0].label} gains most: a step would be {_time(max(saved, 0.0))} shorter"
    return Drawn(
        without_bars(
            Without("", "as it is", actual, _time(actual)),
            Without(ALL, "without any straggler", ideal, _worth(actual - ideal, pace)),
            rows,
            colors,
            chosen=state.without,
        ),
        Table(
            (
                "without", "step [s]", "saved per step [s]", "share of the loss", "GPU-hours saved per week",
                f"money saved per week [{pace.currency}]",
            ),
            [
                (
                    piece.item, piece.effect.without_step_seconds, piece.effect.saved_seconds, piece.effect.share,
                    pace.gpu_hours_of(piece.effect.saved_seconds), pace.money_of(piece.effect.saved_seconds),
                )
                for piece in found
            ],
        ),
        says,
    )  # fmt: skip


def _worth(saved: float, pace: Pace) -> str:
    if saved <= 0:
        return "saves nothing"
    return f"−{_time(saved)}" + (f" · {worth}" if (worth := pace.worth(saved)) else "")


def _without(piece: Piece, pace: Pace) -> Without:
    return Without(
        piece.item, f"without {piece.label}", piece.effect.without_step_seconds, _worth(piece.effect.saved_seconds, pace)
    )


def _rank_bars(run: RunData, state: PageState, colors: Palette) -> Drawn:
    return _bars(run, state, colors, ("rank",), RANKS_SHOWN)


def _part_bars(run: RunData, state: PageState, colors: Palette) -> Drawn:
    return _bars(run, state, colors, ("stage", "cause", "phase", "operation"), RANKS_SHOWN)


def _toggled(_run: RunData, state: PageState, point: Mapping[str, Any]) -> PageState:
    """What was clicked is thought away, or not any more."""
    item = str(point["hovertext"])
    if not item:
        return replace(state, without=())
    kept = tuple(one for one in state.without if one != item)
    return replace(state, without=kept if item in state.without else (*kept, item))


COLUMNS: Final[list[dict[str, Any]]] = [
    {**text_column("part", "Without", width=170), "pinned": "left"},
    text_column("kind", "Kind", width=110),
    number_column("slowdown", "Slowdown", "Step with only this as it was and all else ideal ÷ ideal step", digits=3),
    number_column("step_ms", "Step ms", "Step with this ideal and all else as it was"),
    number_column("saved_ms", "Saved ms", "Per step; parts overlap, so savings do not add up"),
    number_column("share_percent", "Share %", "Of all that is lost", digits=1),
    number_column("gpu_hours", "GPU-h a week", "Saved per week at the pace of the run", digits=1, width=130),
    number_column("money", "Money a week", "The same at the price above, in its currency", width=130),
]


def _table(run: RunData, state: PageState) -> list[dict[str, Any]]:
    answer = run.scenarios.answer
    if answer.result.status != "ok":
        return []
    pace = pace_of(answer, state)
    return [
        {
            "id": piece.item,
            "part": piece.label,
            "kind": piece.kind,
            "slowdown": piece.effect.slowdown,
            "step_ms": milliseconds(1e6 * piece.effect.without_step_seconds),
            "saved_ms": milliseconds(1e6 * piece.effect.saved_seconds),
            "share_percent": None if piece.effect.share is None else 100 * piece.effect.share,
            "gpu_hours": pace.gpu_hours_of(piece.effect.saved_seconds),
            "money": pace.money_of(piece.effect.saved_seconds),
        }
        for piece in pieces(answer.result)
    ]


def _choice(scenarios: Scenarios, state: PageState) -> Component:
    result = scenarios.answer.result
    found = pieces(result) if result.status == "ok" else []
    groups: dict[str, list[dict[str, str]]] = {}
    for piece in found:
        groups.setdefault(f"{piece.kind.capitalize()}s", []).append({"value": piece.item, "label": piece.label})
    options = [
        {"group": "Everything", "items": [{"value": ALL, "label": "all stragglers"}]},
        *({"group": group, "items": items} for group, items in groups.items()),
    ]
    listed = {ALL, *(piece.item for piece in found)}
    if others := [item for item in state.without if item not in listed]:
        options.append({"group": "Others", "items": [{"value": item, "label": item.replace(":", " ")} for item in others]})
    choice: Component = dmc.MultiSelect(
        id=identity("control", "without"),
        label="Think away",
        data=options if found else [],
        value=list(state.without),
        placeholder="ranks, causes, phases …",
        disabled=not found,
        searchable=True,
        clearable=True,
        hidePickedOptions=True,
        size="xs",
        w=320,
        comboboxProps={"withinPortal": True},
    )
    return choice


def _price(scenarios: Scenarios, state: PageState) -> list[Component]:
    answer = scenarios.answer
    recorded = "none" if answer.price_per_gpu_hour is None else f"{answer.price_per_gpu_hour:g}"
    return [
        dmc.NumberInput(
            id=identity("control", "price"),
            label="Price of a GPU-hour",
            value="" if state.price is None else state.price,
            placeholder=recorded,
            min=0,
            max=999_999,
            decimalScale=4,
            allowNegative=False,
            debounce=400,
            size="xs",
            w=130,
        ),
        dmc.TextInput(
            id=identity("control", "currency"),
            label="Currency",
            value=state.currency or "",
            placeholder=answer.currency or "USD",
            debounce=400,
            size="xs",
            w=80,
        ),
    ]


def _layout(run: RunData, state: PageState) -> list[Component]:
    try:
        scenarios = run.scenarios
    except NotReadyError as error:
        return [problem.not_ready(run.summary.name, error.progress)]
    return [
        section(
            "whatif",
            "What if it were not slow",
            "The run is played once more, with what you think away as fast as the rank in the middle, all else as it was.",
            [part("whatif-answer", _answer(run, state))],
            tools=[_choice(scenarios, state), *_price(scenarios, state)],
        ),
        section(
            "whatif-ranks-of",
            "Without each rank",
            f"The {RANKS_SHOWN} ranks whose healing gains most. Of two equally slow ranks healing one gains nothing: click bars "
            "to think both away.",
            [figure("whatif-ranks", "Bars of the step time without each rank", height=400, long=True)],
        ),
        section(
            "whatif-parts-of",
            "Without each cause, phase or stage",
            "On all ranks at once. Parts overlap, so savings do not add up.",
            [
                figure(
                    "whatif-parts",
                    "Bars of the step time without each cause, phase, operation or stage",
                    height=300,
                    long=True,
                )
            ],
        ),
        section(
            "whatif-fleet-of",
            "How the loss is spread",
            "To compare jobs by: the measures of Understanding Stragglers in Large Model Training Using What-if Analysis "
            "(OSDI 2025).",
            [part("whatif-fleet", _fleet(run, state))],
        ),
        section(
            "whatif-table-of",
            "All parts",
            "At most 64 ranks, those with the largest slowdown. A dash means not known.",
            [sheet("whatif-table", COLUMNS, _table(run, state), file_name=f"rankscope-{run.summary.run_id}-whatif")],
            tools=[save_sheet("whatif-table")],
        ),
    ]


VIEW: Final = View(
    slug="whatif",
    label="What-if",
    help=Help(
        shows="How long a step would take without a rank, stage, cause, phase or all stragglers; in GPU-hours and money, too.",
        formula="Between two meetings the longest own time decides: T = Σ (longest own time + least blocked time). What is "
        "thought away counts as long as the rank in the middle took. Saved a week = 168 h × ranks × saved ÷ measured step.",
        do="Think away what you could fix, together if it is several, and compare what that is worth. Jitter alone makes S a "
        "little more than 1: whether a rank is slow beyond chance is what the verdict says.",
    ),
    layout=_layout,
    figures={"whatif-ranks": _rank_bars, "whatif-parts": _part_bars},
    parts={"whatif-answer": _answer, "whatif-fleet": _fleet},
    grids={"whatif-table": _table},
    picks={"whatif-ranks": _toggled, "whatif-parts": _toggled},
)
