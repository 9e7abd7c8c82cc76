"""List of advice, largest gain first, with its evidence and a check of its effect."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from rankscope.analysis.result.costs import Advice, AdviceEvidence
from rankscope.dashboards.figures.units import duration
from rankscope.dashboards.pages.pieces import advice as command_line
from rankscope.dashboards.pages.wording import percent

NOTHING: Final = "Nothing is advised: no figure that is known is beyond its limit. What is not known advises nothing either."


def advice_list(advice: list[Advice]) -> list[Component]:
    """Return the list of advice, or a line for an empty list."""
    if not advice:
        return [html.P(NOTHING, className="help")]
    commands = dict.fromkeys(command for item in advice if (command := _check(item)[0]))
    return [
        html.Ol([html.Li(_one(item)) for item in advice], className="advices"),
        *(command_line(f"To check: {one}") for one in commands),
    ]


def _one(item: Advice) -> list[Component]:
    return [
        html.Div([html.Strong(_gain(item)), html.Span(item.action)], className="advice-action"),
        html.Ul([html.Li(_figure(figure)) for figure in item.evidence], className="advice-evidence"),
        html.P(f"To check: {_check(item)[1]}", className="help"),
    ]


def _check(item: Advice) -> tuple[str, str]:
    """Return the command that checks the effect (the same for most advice), and its expected result."""
    command, _, must = item.check.rpartition(": ")
    return (command, must) if command.startswith("rankscope ") else ("", item.check)


def _gain(item: Advice) -> str:
    if item.gain_share_at_most is None:
        return "Saves no time by itself"
    us = "" if item.gain_us_at_most is None else f" ({duration(item.gain_us_at_most)})"
    cost = "" if item.cost_share_at_most is None else f", costs at most {percent(item.cost_share_at_most)}"
    return f"Saves at most {percent(item.gain_share_at_most)} of the step{us}{cost}"


def _figure(figure: AdviceEvidence) -> str:
    value = f"{figure.value:.3g}" if figure.unit == "ratio" else f"{figure.value:,.4g} {figure.unit}"
    stage = "" if figure.stage is None else f" of stage {figure.stage}"
    source = "" if figure.source is None else f", from {figure.source}"
    return f"{figure.name}{stage} = {value} ({figure.limit}{source})"
