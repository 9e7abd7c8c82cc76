"""What-if result in words and numbers: the counterfactual step, and the distribution of the loss over the ranks."""

from __future__ import annotations

from typing import Final

from rankscope.analysis.whatif.result import WhatIf
from rankscope.dashboards.model.page import Block, Fact, Facts, Items, Text
from rankscope.dashboards.whatif.data import Answer, Pace, Thought
from rankscope.dashboards.words.units import duration
from rankscope.dashboards.words.wording import UNKNOWN, count, gpu_hours, moment, money, percent

_EVIDENCE: Final = {
    "steps": "step records",
    "windows": "the collectives of profiled steps",
    "traces": "the collectives in traces",
    "operations": "traced operations",
}
_HOW_TO_GET: Final = (
    "A what-if takes step records of all ranks that tell own time from waiting, five steps or more after warm-up; or three "
    "profiled steps with collectives that match (rankscope run --help says how to profile)."
)


def seconds_text(seconds: float) -> str:
    """Return a duration such as ``36.5 ms``."""
    return duration(1e6 * seconds)


def why_not(result: WhatIf) -> list[Block]:
    """Return the reason for a missing answer, and the records that one needs."""
    return [Text(result.summary, "reason"), Text(_HOW_TO_GET, "help")]


def without(result: WhatIf, thought: Thought | None, pace: Pace, *, price_given: bool) -> list[Block]:
    """Return the counterfactual step without the chosen parts, and the value of the saving. ``result`` must be ``ok``.

    ``price_given``: True if the price was entered on the page, False if it was recorded with the run.
    """
    if thought is None:
        choose = "Choose what to think away to see what it gains."
        return [Text(result.summary, "reason"), Text(choose, "help")]
    if thought.step_seconds is None:
        return [Text(f"Without {thought.label}: not known. {thought.why}", "reason")]
    actual = result.step_seconds or 0.0
    saved = actual - thought.step_seconds
    change = f"{seconds_text(saved)} shorter ({percent(saved / actual, digits=1)})" if saved > 0 else "no shorter"
    hours, amount = pace.gpu_hours_of(saved), pace.money_of(saved)
    of_job = (
        "CPU ranks lose no GPU time: give a price to count it" if hours is None else "of the GPU time of this job, at its pace"
    )
    return [
        Text(f"Without {thought.label} a step would be {change}.", "whatif-sentence", live=True),
        Facts(
            [
                Fact("Step", seconds_text(thought.step_seconds), detail=f"it takes {seconds_text(actual)}"),
                Fact("Saved a week", gpu_hours(hours), detail=of_job),
                Fact(
                    "Worth a week",
                    UNKNOWN if amount is None else money(amount, pace.currency),
                    detail=_price_source(pace, price_given=price_given),
                ),
            ]
        ),
    ]


def _price_source(pace: Pace, *, price_given: bool) -> str:
    if pace.price_per_gpu_hour is None:
        return "no price was recorded with the run: give one above"
    where = "as given above" if price_given else "as recorded with the run"
    return f"at {money(pace.price_per_gpu_hour, pace.currency)} per GPU-hour, {where}"


def fleet(answer: Answer, *, goes_on: bool) -> list[Block]:
    """Return S, M_W and M_S with their evidence; nothing if the answer is not ``ok``. ``goes_on``: the run is still going on."""
    result = answer.result
    if result.status != "ok":
        return []
    source = result.source
    about = f"Played on {_EVIDENCE[source.evidence or 'steps']}: {count(source.ranks, 'rank')}, {count(source.steps, 'step')}"
    about += (
        f" ({count(source.steps_left_out, 'step')} left out: warm-up, profiled or incomplete)." if source.steps_left_out else "."
    )
    if goes_on:
        about += f" The run goes on: this is as of {moment(answer.made_unix_ns)}."
    return [
        Facts(_measures(result)),
        Text(about, "help"),
        *([Items(source.warnings, "warnings")] if source.warnings else []),
    ]


def _measures(result: WhatIf) -> list[Fact]:
    slowest = f"rank {result.slowest_ranks[0]}" if len(result.slowest_ranks) == 1 else f"the {len(result.slowest_ranks)} slowest"
    return [
        Fact(
            "S, slowdown",
            UNKNOWN if result.slowdown is None else f"{result.slowdown:.3f}×",
            detail="step as it is ÷ step without any straggler",
        ),
        Fact(
            "M_W, slowest 3% of ranks",
            UNKNOWN if result.m_worker is None else f"{result.m_worker:.2f}",
            detail="hardly anything is lost, so there is nothing to share out"
            if result.m_worker is None
            else f"of the loss is gone without {slowest}. Near 1: a few ranks are to blame; near 0: not the ranks",
        ),
        Fact(
            "M_S, last stage",
            UNKNOWN if result.m_stage is None else f"{result.m_stage:.2f}",
            detail="no pipeline stages in this evidence"
            if result.m_stage is None
            else "of the loss is gone without it. Large: the model is cut unevenly",
        ),
        Fact(
            "Fit",
            UNKNOWN if result.discrepancy is None else f"{result.discrepancy:.3f}",
            detail="measured step ÷ played step; 1 is perfect, more than 5% off is not to be relied on",
        ),
    ]
