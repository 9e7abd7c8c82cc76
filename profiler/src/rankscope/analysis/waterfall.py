"""The waterfall of a step, out of what is known of its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from rankscope.analysis.waterfall_result import MEANING, PartName, PartSource, Waterfall, WaterfallPart

PRECEDENCE: Final[tuple[PartName, ...]] = (
    "pipeline_bubble",
    "exposed_communication",
    "straggler_wait",
    "input",
    "copies",
    "ideal",
    "compute",
    "host",
)
"""Where parts are read from different sources they may claim more than the step has: a part gets what those before it left."""

WHY_NOT: Final[dict[PartName, str]] = {
    "ideal": "needs the floating-point operations of the step, told by the script, and a GPU whose peak is known",
    "copies": "neither a copy phase nor a profiled window is recorded",
    "input": "no data loader is seen",
    "pipeline_bubble": "no pipeline is seen",
}
"""Why a part is not known where nobody knows better."""

InnerName = Literal["idle", "between_steps", "stalled", "run_queue", "gc"]
"""``idle``: an accelerator has nothing to do. ``between_steps``: own time there. The others on CPUs: the training thread neither
runs nor waits for a CPU inside the model's phases, waits for a CPU, collects garbage."""


@dataclass(frozen=True, slots=True)
class Amount:
    """What is known of one part: microseconds per step, and from where."""

    us: float
    source: PartSource


@dataclass(frozen=True, slots=True)
class Costs:
    """What is known of a step. Parts that are missing are not known."""

    step_us: float
    steps: int
    unit: Literal["step", "window"] = "step"
    known: dict[PartName, Amount] = field(default_factory=dict)
    notes: dict[PartName, str] = field(default_factory=dict)
    inner: dict[InnerName, Amount] = field(default_factory=dict)
    """Parts of parts, which advice rests on."""
    extent_us: float | None = None
    """Of traces: from the first start on any rank to the last end on any."""
    largest: dict[PartName | InnerName, tuple[int, Amount]] = field(default_factory=dict)
    """In a pipeline, where the others are means over stages: the stage that has most of each, and how much."""


def waterfall(costs: Costs) -> Waterfall:
    """Parts that sum to the step: whole nanoseconds, each part at most what those before it in ``PRECEDENCE`` left."""
    whole = left = round(costs.step_us * 1000)
    taken: dict[PartName, int] = {}
    for name in PRECEDENCE:
        if (amount := costs.known.get(name)) is not None:
            taken[name] = min(round(min(max(amount.us, 0.0), costs.step_us) * 1000), left)
            left -= taken[name]
    taken["unexplained"] = left
    assert sum(taken.values()) == whole
    return Waterfall(
        unit=costs.unit,
        step_us=whole / 1000,
        steps=costs.steps,
        extent_us=costs.extent_us,
        parts=[_part(name, taken.get(name), whole, costs) for name in MEANING],
    )


def _part(name: PartName, ns: int | None, whole: int, costs: Costs) -> WaterfallPart:
    amount = costs.known.get(name)
    return WaterfallPart(
        name=name,
        us=None if ns is None else ns / 1000,
        share=None if ns is None or not whole else ns / whole,
        source=None if amount is None else amount.source,
        note=costs.notes.get(name, WHY_NOT.get(name) if ns is None else _of_stages(name, costs)),
    )


def _of_stages(name: PartName, costs: Costs) -> str | None:
    """Of a part that is a mean over stages, where most of it is; ``None`` for others."""
    if name not in costs.largest or costs.step_us <= 0:
        return None
    stage, amount = costs.largest[name]
    return f"mean over the stages; most on stage {stage}, {amount.us / costs.step_us:.0%} of the step" if amount.us > 0 else None
