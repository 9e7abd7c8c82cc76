"""Where the steps of a run go: what its step records and its profiled windows tell together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from rankscope.analysis.run_evidence import RunEvidence
from rankscope.analysis.step_costs import costs_of_steps
from rankscope.analysis.throughput_result import Throughput
from rankscope.analysis.waterfall import Amount, Costs
from rankscope.analysis.window_costs import costs_of_windows, together


def costs_of_run(run: RunEvidence, throughput: Throughput | None) -> Callable[[tuple[int, ...]], Costs | None]:
    """The costs of the mean step of a run without some ranks; they are ``None`` where nothing is known of them.

    Without those that a verdict names, for what limits the step besides: what they do has been said. Of step records their part
    is taken out by itself, for these are told of the typical rank; windows are those of the others, if there are any.
    """
    accelerated = any(info.device_kind != "cpu" for info in run.infos.values())
    steps = costs_of_steps(run.table, world_size=run.world_size, accelerated=accelerated, pipeline=run.pipeline)
    return cache(lambda without: _with_ideal(together(steps, _windows(run, without), accelerated=accelerated), throughput))


def _windows(run: RunEvidence, without: tuple[int, ...]) -> Costs | None:
    if set(without) >= set(run.ranks):
        without = ()  # a slowness that moves may be of all of them
    return costs_of_windows(
        run.windows,
        run.blame if run.matching.matches else None,
        world_size=run.world_size,
        source="windows",
        without=without,
    )


def _with_ideal(costs: Costs | None, throughput: Throughput | None) -> Costs | None:
    """With what the step's floating-point operations would take at the device's peak, which is a part of its compute."""
    if costs is None or throughput is None or throughput.mfu is None or throughput.flops_per_second_per_rank is None:
        return costs
    known = dict(costs.known)
    ideal = throughput.mfu * throughput.step_us
    known["ideal"] = Amount(ideal, "steps")
    if "compute" in known:
        known["compute"] = replace(known["compute"], us=max(0.0, known["compute"].us - ideal))
    return replace(costs, known=known)
