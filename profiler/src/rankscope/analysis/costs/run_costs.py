"""Costs of the steps of a run, from step records and profiled windows together, and the cost of the recorder itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

import numpy as np

from rankscope.analysis.costs.step_costs import costs_of_steps
from rankscope.analysis.costs.waterfall import Amount, Costs
from rankscope.analysis.costs.window_costs import costs_of_windows, together
from rankscope.analysis.evidence.steps import StepTable
from rankscope.analysis.inference.run_evidence import RunEvidence
from rankscope.analysis.result.costs import Throughput
from rankscope.runs.records import RankInfo


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


def recorder_share(
    table: StepTable, infos: Mapping[int, RankInfo], *, earlier_us: Mapping[int, float] = MappingProxyType({})
) -> float | None:
    """Return the largest share of the step time that the recorder took on any rank; ``None`` if it is known for no rank.

    Only ranks with all their step records count, because the recorder's cost covers all steps. ``earlier_us``: summed wall time
    per rank of the steps before the table.
    """
    shares = []
    for row, rank in enumerate(table.ranks.tolist()):
        info = infos.get(rank)
        if info is None or info.recorder_cost_us is None:
            continue
        if info.dropped_records or info.unconfirmed_records or info.expired_records.get("steps"):
            continue
        wall = float(np.nansum(table.of_rank("wall_us", row), dtype=np.float64)) + earlier_us.get(rank, 0.0)
        if wall > 0 and info.recorder_cost_us >= 0:
            shares.append(info.recorder_cost_us / wall)
    return max(shares, default=None)
