"""Waterfall of a step from its known parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from rankscope.analysis.result.costs import MEANING, PartName, PartSource, Waterfall, WaterfallPart

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
"""Order in which parts get their time, each from what those before it left.

Parts from different sources may sum to more than the step."""

WHY_NOT: Final[dict[PartName, str]] = {
    "ideal": "needs the step's floating-point operations, from the script, and a GPU with a known peak",
    "copies": "neither a copy phase nor a profiled window is recorded",
    "input": "no data loader is seen",
    "pipeline_bubble": "no pipeline is seen",
}
"""Default reasons why a part is unknown."""

InnerName = Literal["idle", "between_steps", "stalled", "run_queue", "gc", "evaluation", "checkpoint"]
"""Names of inner parts. ``idle``: an accelerator is idle. ``between_steps``: own time between steps, without evaluations and
checkpoints. ``evaluation``, ``checkpoint``: own time in them, also inside forward. On CPUs, ``stalled``: the
training thread neither runs nor waits for a CPU inside the model's phases. ``run_queue``: it waits for a CPU. ``gc``: it collects
garbage."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Amount of one part: microseconds per step, and their source."""

    us: float
    source: PartSource


@dataclass(frozen=True, slots=True)
class Costs:
    """Known costs of a step. Missing parts are unknown."""

    step_us: float
    steps: int
    unit: Literal["step", "window"] = "step"
    amounts: dict[PartName, Amount] = field(default_factory=dict)
    notes: dict[PartName, str] = field(default_factory=dict)
    inner: dict[InnerName, Amount] = field(default_factory=dict)
    """Inner parts of these parts, which advice rests on."""
    extent_us: float | None = None
    """Time from the first start on any rank to the last end on any; for traces only."""
    largest: dict[PartName | InnerName, tuple[int, Amount]] = field(default_factory=dict)
    """Stage with the most of each part, and the amount; for pipelines, where the other fields are means over stages."""


def waterfall(costs: Costs) -> Waterfall:
    """Return parts that sum to the step, in whole nanoseconds.

    Each part gets at most the time that those before it in ``PRECEDENCE`` left.
    """
    step_ns = remaining = round(costs.step_us * 1000)
    part_ns: dict[PartName, int] = {}
    for name in PRECEDENCE:
        if (amount := costs.amounts.get(name)) is not None:
            part_ns[name] = min(round(min(max(amount.us, 0.0), costs.step_us) * 1000), remaining)
            remaining -= part_ns[name]
    part_ns["unexplained"] = remaining
    assert sum(part_ns.values()) == step_ns
    return Waterfall(
        unit=costs.unit,
        step_us=step_ns / 1000,
        steps=costs.steps,
        extent_us=costs.extent_us,
        parts=[_part(name, part_ns.get(name), step_ns, costs) for name in MEANING],
    )


def waiting_share(costs: Costs | None) -> float:
    """Return the share of the step that ranks wait for the last one; 0 where it is not known."""
    waiting = None if costs is None or costs.step_us <= 0 else costs.amounts.get("straggler_wait")
    return 0.0 if costs is None or waiting is None else waiting.us / costs.step_us


def _part(name: PartName, ns: int | None, step_ns: int, costs: Costs) -> WaterfallPart:
    amount = costs.amounts.get(name)
    return WaterfallPart(
        name=name,
        us=None if ns is None else ns / 1000,
        share=None if ns is None or not step_ns else ns / step_ns,
        source=None if amount is None else amount.source,
        note=costs.notes.get(name, WHY_NOT.get(name) if ns is None else _of_stages(name, costs)),
    )


def _of_stages(name: PartName, costs: Costs) -> str | None:
    """Return a note on the stage with the most of a part that is a mean over stages; ``None`` for other parts."""
    if name not in costs.largest or costs.step_us <= 0:
        return None
    stage, amount = costs.largest[name]
    return f"mean over the stages; most on stage {stage}, {amount.us / costs.step_us:.0%} of the step" if amount.us > 0 else None
