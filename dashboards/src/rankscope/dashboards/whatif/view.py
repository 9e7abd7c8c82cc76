"""What-if view: counterfactual step times without slow ranks, stages, causes or phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rankscope.analysis.whatif.outcome import hosts_slow_together, rare_steps_text
from rankscope.analysis.whatif.whatif_result import Effect, WhatIf
from rankscope.base.text import sentence_case
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import BEING_WRITTEN
from rankscope.dashboards.model.drawn import DrawnFigure, FigureData
from rankscope.dashboards.model.page import Block, Choice, Entry, Fact, Facts, FigureBlock, Items, Part, Section, Text
from rankscope.dashboards.model.run_head import nothing_yet
from rankscope.dashboards.model.state import PageState, host_item
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.whatif.counterfactuals import ALL, Counterfactual, step_without
from rankscope.dashboards.whatif.data import Removable, WeekCost, WhatIfAnswer, removables, week_cost_of
from rankscope.dashboards.whatif.figures import CounterfactualBar, without_bars
from rankscope.dashboards.words.units import duration, in_unit, time_unit
from rankscope.dashboards.words.wording import UNKNOWN, count, gpu_hours, money, percent, slowdown, utc_time

_EVIDENCE: Final = {
    "steps": "step records",
    "windows": "the collectives of profiled steps",
    "traces": "the collectives in traces",
    "operations": "traced operations",
}
_HOW_TO_GET: Final = (
    "A what-if needs step records of all ranks with separate own and blocked times, of at least five steps after warm-up; or "
    "three profiled steps with matched collectives (see rankscope run --help)."
)


def seconds_text(seconds: float) -> str:
    """Return a duration such as ``36.5 ms``."""
    return duration(1e6 * seconds)


def saving_blocks(result: WhatIf, counterfactual: Counterfactual | None, week: WeekCost, *, price_given: bool) -> list[Block]:
    """Return the counterfactual step without the chosen parts, and the value of the saving. ``result`` must be ``ok``.

    ``price_given``: True if the price was entered on the page, False if it was recorded with the run.
    """
    if counterfactual is None:
        return [Text(result.summary, "reason")]
    if counterfactual.step_seconds is None:
        return [Text(f"Without {counterfactual.label}: not known. {counterfactual.why}", "reason")]
    actual, measured = result.step_seconds or 0.0, result.measured_step_seconds or 0.0
    saved = actual - counterfactual.step_seconds
    step = "typical step" if result.source.evidence == "steps" else "step"
    rare = rare_steps_text(result.source)
    change = f"{seconds_text(saved)} shorter ({percent(saved / measured, digits=1)})" if saved > 0 else "no shorter"
    hours, amount = week.gpu_hours_of(saved), week.money_of(saved)
    of_job = (
        "CPU ranks lose no GPU time; enter a price to count it" if hours is None else "of the GPU time of this job, at its pace"
    )
    return [
        Text(f"Without {counterfactual.label} a {step} would be {change}.", "whatif-sentence", live=True),
        *([] if rare is None else [Text(f"{sentence_case(rare)}.", "help")]),
        Facts(
            [
                Fact(step.capitalize(), seconds_text(counterfactual.step_seconds), detail=f"it takes {seconds_text(actual)}"),
                Fact("Saved a week", gpu_hours(hours), detail=of_job),
                Fact(
                    "Worth a week",
                    UNKNOWN if amount is None else money(amount, week.currency),
                    detail=_price_source(week, price_given=price_given),
                ),
            ]
        ),
    ]


def _price_source(week: WeekCost, *, price_given: bool) -> str:
    if week.price_per_gpu_hour is None:
        return "no price was recorded with the run; enter one above"
    where = "as entered above" if price_given else "as recorded with the run"
    return f"at {money(week.price_per_gpu_hour, week.currency)} per GPU-hour, {where}"


def measure_blocks(answer: WhatIfAnswer, *, goes_on: bool) -> list[Block]:
    """Return S, M_W and M_S with their evidence. ``goes_on``: the run is still going on."""
    result = answer.result
    source = result.source
    about = (
        f"Simulated from {_EVIDENCE[source.evidence or 'steps']}: {count(source.ranks, 'rank')}, {count(source.steps, 'step')}"
    )
    about += (
        f" ({count(source.steps_left_out, 'step')} left out: warm-up, profiled, rare or incomplete)."
        if source.steps_left_out
        else "."
    )
    if source.estimated_share:
        about += f" Of the ranks' steps, {percent(source.estimated_share, digits=1)} are not recorded, and estimated."
    if goes_on:
        about += f" The run goes on: this is as of {utc_time(answer.made_unix_ns)}."
    return [Facts(_measures(result)), Text(about, "help"), *([Items(source.warnings, "warnings")] if source.warnings else [])]


def _measures(result: WhatIf) -> list[Fact]:
    stage = Fact(
        "M_S, last stage",
        UNKNOWN if result.m_stage is None else f"{result.m_stage:.2f}",
        detail="of the loss is due to it. Large: the model is divided unevenly",
    )
    slowest = f"rank {result.slowest_ranks[0]}" if len(result.slowest_ranks) == 1 else f"the {len(result.slowest_ranks)} slowest"
    return [
        Fact("S, slowdown", slowdown(result.slowdown), detail="step as it is ÷ step without any straggler"),
        Fact(
            "M_W, slowest 3% of ranks",
            UNKNOWN if result.m_worker is None else f"{result.m_worker:.2f}",
            detail="the loss is too small to attribute"
            if result.m_worker is None
            else f"of the loss is due to {slowest}. Near 1: a few slow ranks; near 0: all ranks alike",
        ),
        *([stage] if result.by_stage else []),
        Fact(
            "Fit",
            UNKNOWN if result.discrepancy is None else f"{result.discrepancy:.3f}",
            detail="measured step ÷ simulated step; unreliable if it differs from 1 by more than 0.05",
        ),
    ]


RANKS_SHOWN: Final = 20
"""Maximum number of bars. The table has all parts of the answer."""


def _week_cost(run: RunData, state: PageState) -> WeekCost:
    """Return the cost of a week with the run's answer, which must be ``ok``."""
    return week_cost_of(run.whatif, price=state.price, currency=state.currency)


def _answer(run: RunData, state: PageState) -> list[Block]:
    counterfactual = step_without(run, state.without)
    return saving_blocks(run.whatif.result, counterfactual, _week_cost(run, state), price_given=state.price is not None)


def _bars(run: RunData, state: PageState, colors: Palette, *, kinds: tuple[str, ...]) -> DrawnFigure:
    result = run.whatif.result
    week = _week_cost(run, state)
    candidates = sorted(
        (part for part in removables(result) if part.kind in kinds), key=lambda part: part.effect.without_step_seconds
    )
    hidden = hidden_items(result)
    # Of two equally slow ranks, neither saves anything alone.
    matter = [
        part for part in candidates if part.item in state.without or (_matters(part.effect) and part.item not in hidden)
    ] or candidates[:1]
    actual, ideal = result.step_seconds or 0.0, result.ideal_step_seconds or 0.0
    unit = time_unit(1e6 * actual)
    rows = [_bar_without(part, week, unit) for part in matter[:RANKS_SHOWN]]
    sentence = "There is nothing to leave out"
    if rows:
        saved = actual - rows[0].step_seconds
        gain = seconds_text(max(saved, 0.0))
        sentence = f"Of {count(len(candidates), 'part')}, {candidates[0].label} gains most: a step would be {gain} shorter"
    return DrawnFigure(
        without_bars(
            CounterfactualBar("", "as it is", actual, in_unit(1e6 * actual, unit)),
            CounterfactualBar(ALL, "without any straggler", ideal, _worth(actual - ideal, week, unit)),
            rows,
            colors,
            chosen=state.without,
        ),
        FigureData(
            (
                "without", "slowdown", "step [s]", "saved per step [s]", "share of the loss", "GPU-hours saved per week",
                f"money saved per week [{week.currency}]",
            ),
            [
                (
                    part.item, part.effect.slowdown, part.effect.without_step_seconds, part.effect.saved_seconds,
                    part.effect.share, week.gpu_hours_of(part.effect.saved_seconds), week.money_of(part.effect.saved_seconds),
                )
                for part in candidates
            ],
        ),
        sentence,
    )  # fmt: skip


def hidden_items(result: WhatIf) -> set[str]:
    """Return the items that no bar shows: ranks of a host that gains more than they gain one by one, else the host itself."""
    slow = {host.host: host for host in hosts_slow_together(result)}
    ranks = {f"rank:{rank}" for host in slow.values() for rank in host.ranks}
    return ranks | {host_item(host.host) for host in result.by_host if host.host not in slow}


def _matters(effect: Effect) -> bool:
    """Return whether a part saves 0.1% of the step, or would slow the ideal job by 2% alone."""
    return effect.saved_seconds >= 0.001 * effect.without_step_seconds or (effect.slowdown or 1.0) >= 1.02


def _worth(saved: float, week: WeekCost, unit: tuple[float, str]) -> str:
    if saved <= 0:
        return "saves nothing"
    hours, amount = week.gpu_hours_of(saved), week.money_of(saved)
    worth = (
        "" if hours is None else f" · {gpu_hours(hours)}{'' if amount is None else f', {money(amount, week.currency)}'} a week"
    )
    return f"−{in_unit(1e6 * saved, unit)}{worth}"


def _bar_without(removable: Removable, week: WeekCost, unit: tuple[float, str]) -> CounterfactualBar:
    effect = removable.effect
    return CounterfactualBar(
        removable.item, f"without {removable.label}", effect.without_step_seconds, _worth(effect.saved_seconds, week, unit)
    )


def _toggled(state: PageState, point: Mapping[str, Any]) -> PageState:
    """Toggle the clicked item in the list of removed items; the bar of the actual step clears the list."""
    item = str(point["hovertext"])
    if not item:
        return replace(state, without=())
    remaining_items = tuple(kept_item for kept_item in state.without if kept_item != item)
    return replace(state, without=remaining_items if item in state.without else (*remaining_items, item))


def _choice(answer: WhatIfAnswer, state: PageState) -> Choice:
    choices = removables(answer.result)
    groups: dict[str, list[dict[str, str]]] = {}
    for removable in choices:
        groups.setdefault(f"{removable.kind.capitalize()}s", []).append({"value": removable.item, "label": removable.label})
    options: list[dict[str, Any]] = [
        {"group": "Everything", "items": [{"value": ALL, "label": "all stragglers"}]},
        *({"group": group, "items": items} for group, items in groups.items()),
    ]
    listed = {ALL, *(removable.item for removable in choices)}
    if others := [item for item in state.without if item not in listed]:
        options.append({"group": "Others", "items": [{"value": item, "label": item.replace(":", " ")} for item in others]})
    return Choice(
        field="without",
        label="Compare without",
        options=options if choices else [],
        value=list(state.without),
        nothing="ranks, hosts, causes, phases …",
        width=320,
        many=True,
    )


def _price(answer: WhatIfAnswer, state: PageState) -> list[Block]:
    recorded = "none" if answer.price_per_gpu_hour is None else f"{answer.price_per_gpu_hour:g}"
    return [
        Entry(
            field="price",
            label="Price of a GPU-hour",
            value="" if state.price is None else state.price,
            nothing=recorded,
            width=130,
            decimals=4,
        ),
        Entry(field="currency", label="Currency", value=state.currency or "", nothing=answer.currency or "USD", width=80),
    ]


def _blocks(run: RunData, state: PageState) -> list[Block]:
    answer = run.whatif
    if (result := answer.result).status != "ok":
        return nothing_yet(run.summary, result.summary.removesuffix("."), _HOW_TO_GET)
    toggle = partial(_toggled, state)
    return [
        Section(
            name="whatif",
            title="What if it were not slow",
            help="The run is simulated again without the slowness of what you remove; all else stays as it was.",
            use="Choose it under “Compare without”, or click bars.",
            blocks=[Part("whatif-answer", lambda: _answer(run, state))],
            tools=[_choice(answer, state), *_price(answer, state)],
        ),
        Section(
            name="whatif-ranks-of",
            title="Without each rank or host" if result.by_host else "Without each rank",
            help=f"At most {RANKS_SHOWN} slow ones, largest gain first; the CSV has all. Ranks of a host that are slow together "
            f"have one bar. Of two equally slow ranks, fixing one gains nothing. {_VARIES[result.savings_of]}",
            blocks=[
                FigureBlock(
                    name="whatif-ranks",
                    reads=("without", "price", "currency"),
                    label="Bars of the step time without each rank or host",
                    draw=partial(_bars, run, state, kinds=("rank", "host")),
                    height=400,
                    long=True,
                    pick=toggle,
                )
            ],
        ),
        Section(
            name="whatif-parts-of",
            title="Without each cause, phase or stage",
            help="On all ranks at once. Parts overlap, so savings do not add up. The CSV also has parts that save nothing.",
            blocks=[
                FigureBlock(
                    name="whatif-parts",
                    reads=("without", "price", "currency"),
                    label="Bars of the step time without each cause, phase, operation or stage",
                    draw=partial(_bars, run, state, kinds=("stage", "cause", "phase", "operation")),
                    height=300,
                    long=True,
                    pick=toggle,
                )
            ],
        ),
        Section(
            name="whatif-fleet-of",
            title="How the loss is spread",
            help="To compare jobs: the measures of Understanding Stragglers in Large Model Training Using What-if Analysis "
            "(OSDI 2025).",
            blocks=[Part("whatif-fleet", lambda: measure_blocks(answer, goes_on=run.summary.status in BEING_WRITTEN))],
        ),
    ]


_VARIES: Final = {
    "verdict": "A rank removed alone still varies as the others do, as in the verdict; together with other parts, it is as the "
    "median rank.",
    "graph": "A removed rank is as the median one.",
}


VIEW: Final = View(
    slug="whatif",
    label="What-if",
    help=Help(
        shows="How long a step would take without a rank, host, stage, cause, phase or all stragglers, and what that saves.",
        formula="Between two collectives the longest own time decides: T = Σ (longest own time + shortest blocked time). Removed "
        "parts take as long as on the median rank. Saved a week = 168 h × ranks × saved ÷ measured step. Simulated are "
        "the typical steps, as for the verdict; a week has rare steps, too.",
        do="Remove what you could fix, several parts together if you could fix several. Jitter alone makes S slightly larger "
        "than 1; the verdict decides whether a rank is slower than by chance.",
    ),
    blocks=_blocks,
)
