"""List of advice, largest gain first, with its evidence and a check of its effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, get_args

from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.costs import Advice, AdviceEvidence
from rankscope.analysis.result.text import is_among
from rankscope.dashboards.model.line import Span
from rankscope.dashboards.model.page import AdviceItem as Command
from rankscope.dashboards.model.page import Block, Group, Items, Text
from rankscope.dashboards.words.units import duration
from rankscope.dashboards.words.wording import EVIDENCE, percent

AS_ABOVE: Final = "The steps under “Do next”, at the top of this page."
NOTHING: Final = "No advice: no known figure exceeds its limit."


FIGURES: Final[Mapping[str, str]] = {
    **{
        f"straggler.{name}": "{} of the step is lost to the named ranks"
        for name in (
            *get_args(Cause),
            "cpu_contention",
            "enlarged_batches",
            "memory_pressure",
            "hardware",
            "device_unseen",
            "kernels",
            "processor",
            "profiler",
            "additional_work",
            "no_workers",
        )
    },
    "share.input": "{} of the step is waiting for the data loader",
    "share.copies": "{} of the step is copies that nothing hides",
    "share.compute": "{} of the step is compute, beyond what the device's peak would need",
    "share.all_compute": "{} of the step is compute",
    "share.exposed_communication": "{} of the step is communication that no compute hides",
    "share.overhead": "{} of the step is communication that no compute hides, and the host",
    "share.host": "{} of the step the host does not keep the device busy",
    "share.between_steps": "{} of the step is host code between the steps",
    "share.evaluation": "{} of the step is evaluation",
    "share.checkpoint": "{} of the step is writing checkpoints",
    "share.stalled": "{} of the step host code waits or sleeps",
    "share.run_queue": "{} of the step is waiting for a CPU",
    "share.gc": "{} of the step is garbage collection",
    "share.idle_unexplained": "{} of the step the device is idle, for the host or for input",
    "overlap_ratio": "{} of the communication is hidden by compute",
    "mfu": "{} of the device's peak is reached (MFU)",
    "accelerated": "the ranks have accelerators",
    "hosts": "the job has {}",
    "kernels.float32_share": "{} of the time of matrix multiplications is in 32 bits",
    "kernels.recompute_share": "{} of the compute is recomputed for activation checkpointing",
    "collectives.all_reduce_share": "{} of the time in collectives is all-reduce of gradients",
    "collectives.sharding_share": "{} of the time in collectives is all-gather and reduce-scatter of shards",
    "exposed.gradients": "{} of the communication that no compute hides reduces gradients",
    "exposed.shards": "{} of the communication that no compute hides is all-gather and reduce-scatter of shards",
    "exposed.activations": "{} of the communication that no compute hides exchanges activations of tensor parallelism",
    "exposed.tokens": "{} of the communication that no compute hides is all-to-all",
    "exposed.stages": "{} of the communication that no compute hides is between pipeline stages",
    "collectives.median_bytes": "half of all bytes are in messages of at most {}",
    "collectives.messages": "messages of that size: {}",
    "memory.peak_share": "{} of the device's memory is allocated at the peak",
    "memory.fragmentation": "{} of the reserved memory was never in use at one time",
    "memory.retries": "allocations that failed at first, after the start: {}",
    "memory.device_leak": "memory of the device grows by {}",
    "memory.host_leak": "memory of the process grows by {}",
    "pipeline.schedule": "{} of the step is the bubble of the pipeline's schedule",
    "pipeline.imbalance": "{} of the step is waiting because stages differ",
}
"""Figures in words; ``{}`` is the value."""


def advice_list(advice: list[Advice], next_actions: Sequence[str]) -> list[Block]:
    """Return the list of advice, or a line for an empty list. What ``next_actions`` of the verdict give is one item of it."""
    if not advice:
        return [Text(NOTHING, "help")]
    commands = dict.fromkeys(command for item in advice if (command := _check(item)[0]))
    above = [item for item in advice if is_among(item, next_actions)]
    items = [(above, AS_ABOVE) if item in above else ([item], item.action) for item in advice if item not in above[1:]]
    return [
        Items([_advice_blocks(same, action) for same, action in items], "advices", ordered=True),
        *(Command(f"To check: {check}") for check in commands),
    ]


def _advice_blocks(items: Sequence[Advice], action: str) -> list[Block]:
    """Return one item of the list for advice with the same action, largest gain first."""
    figures = dict.fromkeys(_figure(figure) for item in items for figure in item.evidence)
    checks = dict.fromkeys(_check(item)[1] for item in items)
    return [
        Group([Text(Span(_gain(items[0]), "strong")), Text(action)], "advice-action"),
        Items(list(figures), "advice-evidence"),
        Text(f"To check: {'; '.join(checks)}", "help"),
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
    words = FIGURES.get(figure.name, f"{figure.name} is {{}}")
    stage = "" if figure.stage is None else f" on stage {figure.stage}"
    reasons = [_limit(figure)] if "{}" in words else []
    reasons += [f"from {EVIDENCE.get(figure.source, figure.source)}"] if figure.source is not None else []
    return words.format(_value(figure.value, figure.unit)) + stage + (f" ({', '.join(reasons)})" if reasons else "")


def _limit(figure: AdviceEvidence) -> str:
    """Return the condition of a figure in words: ``advised from 5% on``."""
    comparison, _, limit = figure.limit.partition(" ")
    value = _value(float(limit), figure.unit)
    return f"advised from {value} on" if comparison == ">=" else f"advised below {value}"


def _value(value: float, unit: str) -> str:
    return f"{100 * value:.3g}%" if unit == "ratio" else f"{value:,.4g} {unit}"
