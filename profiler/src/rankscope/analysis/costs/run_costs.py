"""Costs of the steps of a run, from its step records and profiled windows together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from rankscope.analysis.costs.step_costs import costs_of_steps
from rankscope.analysis.costs.waterfall import Amount, Costs
from rankscope.analysis.costs.window_costs import costs_of_windows, together
from rankscope.analysis.inference.run_evidence import RunEvidence
from rankscope.analysis.result.costs import Throughput


def costs_of_run(run: RunEvidence, throughput: Throughput | None) -> Callable[[tuple[int, ...]], Costs | None]:
    """Return a function from ranks to the costs of the run's mean step without them; ``None`` where no costs are known.

    The excluded ranks are those that a verdict names: the costs of the others show what limits the step besides. Step records
    need no correction, because they describe the typical rank. Windows are those of the other ranks, if there are any.
    """
    accelerated = any(info.device_kind != "cpu" for info in run.infos.values())
    steps = costs_of_steps(run.table, world_size=run.world_size, accelerated=accelerated, pipeline=run.pipeline)
    return cache(lambda without: _with_ideal(together(steps, _windows(run, without), accelerated=accelerated), throughput))


def _windows(run: RunEvidence, without: tuple[int, ...]) -> Costs | None:
    if set(without) >= set(run.ranks):
        without = ()  # a rotating slowness may name all ranks
    return costs_of_windows(
        run.windows,
        run.blame if run.matching.matches else None,
        world_size=run.world_size,
        source="windows",
        without=without,
    )


def _with_ideal(costs: Costs | None, throughput: Throughput | None) -> Costs | None:
    """Return the costs with ``ideal`` split off compute: the time of the step's FLOPs at the device's peak rate."""
    if costs is None or throughput is None or throughput.mfu is None or throughput.flops_per_second_per_rank is None:
        return costs
    known = dict(costs.known)
    ideal = throughput.mfu * throughput.step_us
    known["ideal"] = Amount(ideal, "steps")
    if "compute" in known:
        known["compute"] = replace(known["compute"], us=max(0.0, known["compute"].us - ideal))
    return replace(costs, known=known)
