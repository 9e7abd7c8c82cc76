"""Costs of the steps of a run, from its step records and profiled windows together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

from rankscope.analysis.costs.step_costs import costs_of_steps
from rankscope.analysis.costs.waterfall import Amount, Costs
from rankscope.analysis.costs.window_costs import IDLE, NO_HOST, costs_of_windows
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.result.costs import PartName, Throughput

_FROM_WINDOWS: Final[tuple[PartName, ...]] = ("exposed_communication", "straggler_wait")


def costs_of_run(run: RunEvidence, throughput: Throughput | None) -> Callable[[tuple[int, ...]], Costs | None]:
    """Return a function from ranks to the costs of the run's mean step without them; ``None`` where no costs are known.

    The excluded ranks are those that a verdict names: the costs of the others show what limits the step besides. Step records
    need no correction, because they describe the typical rank. Windows are those of the other ranks, if there are any.
    """
    accelerated = run.accelerated
    steps = costs_of_steps(run.typical.table, world_size=run.world_size, accelerated=accelerated, pipeline=run.pipeline)
    return cache(lambda without: _with_ideal(merged_costs(steps, _windows(run, without), accelerated=accelerated), throughput))


def _windows(run: RunEvidence, without: tuple[int, ...]) -> Costs | None:
    if set(without) >= set(run.ranks):
        without = ()  # a rotating slowness may name all ranks
    return costs_of_windows(
        run.windows, run.blame if run.matching.matches else None, world_size=run.world_size, source="windows", without=without
    )


def _with_ideal(costs: Costs | None, throughput: Throughput | None) -> Costs | None:
    """Return the costs with ``ideal`` split off compute: the time of the step's FLOPs at the device's peak rate."""
    if costs is None or throughput is None or throughput.mfu is None or throughput.flops_per_second_per_rank is None:
        return costs
    amounts = dict(costs.amounts)
    ideal = throughput.mfu * throughput.step_us
    amounts["ideal"] = Amount(ideal, "steps")
    if "compute" in amounts:
        amounts["compute"] = replace(amounts["compute"], us=max(0.0, amounts["compute"].us - ideal))
    return replace(costs, amounts=amounts)


def merged_costs(steps: Costs | None, windows: Costs | None, *, accelerated: bool) -> Costs | None:
    """Return the costs of a run, merged from the records of all ``steps`` and from its ``windows``.

    On a device only windows show compute and copies. Profiling slows the host, but not the kernels. So the rest of a step
    (neither compute, communication, copies nor input) is idle time caused by the host, up to the idle time that the windows
    saw. On CPUs the times of the training thread, known for all steps, are preferred.
    """
    if steps is None or windows is None:
        return steps or windows
    if accelerated and "idle" not in windows.inner:
        return steps  # the profiler did not see the ranks' devices
    amounts, notes = dict(steps.amounts), dict(steps.notes)
    if accelerated:
        for name in ("compute", "copies"):
            amounts[name] = windows.amounts[name]
            notes.pop(name, None)
    if "pipeline_bubble" not in amounts:
        missing = [name for name in _FROM_WINDOWS if name not in amounts]
        for name in missing:
            notes.pop(name, None)
            if name in windows.amounts:
                amounts[name] = windows.amounts[name]
            if name in windows.notes:
                notes[name] = windows.notes[name]
    if not accelerated and "compute" not in amounts:
        amounts["compute"] = windows.amounts["compute"]
        notes["compute"] = "operators on the training thread; in profiled steps"
        notes["host"] = NO_HOST
    # Amounts from windows are means over all stages.
    largest = {
        name: largest_amount
        for name, largest_amount in steps.largest.items()
        if name not in amounts or amounts[name].source == "steps"
    }
    merged = replace(steps, amounts=amounts, notes=notes, inner=steps.inner | windows.inner, largest=largest)
    return _host_of_device(merged) if accelerated else merged


def _host_of_device(costs: Costs) -> Costs:
    unattributed_us = max(0.0, costs.step_us - sum(amount.us for amount in costs.amounts.values()))
    idle = Amount(min(unattributed_us, costs.inner["idle"].us), "windows")
    if "input" not in costs.amounts:
        share = idle.us / costs.step_us if costs.step_us > 0 else 0.0
        notes = costs.notes | dict.fromkeys(("input", "host"), IDLE.format(share=share))
        return replace(costs, notes=notes, inner=costs.inner | {"idle": idle})
    return replace(
        costs,
        amounts=costs.amounts | {"host": idle},
        notes={name: note for name, note in costs.notes.items() if name != "host"},
        inner={name: amount for name, amount in costs.inner.items() if name != "idle"},
    )
